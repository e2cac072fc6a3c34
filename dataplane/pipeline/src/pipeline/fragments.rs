//! Forwards fragments: the decision for the first fragment of a datagram applies to its later fragments, which have
//! no ports.
//!
//! This is the last stage, and off the fast path: the fragments of a datagram mostly arrive in one burst, and the
//! decision for the first fragment is known only after it is forwarded. [`crate::fragments`] is the table.
//!
//! With several workers, a first fragment goes to the worker that owns its flow, like any packet with ports. The worker
//! that received it sends the later fragments there, too. A worker that receives a later fragment without having seen
//! the first hands it over to the datagram's gatherer: the worker that the hash of the key selects, which is informed
//! of every first fragment. So a later fragment is handed over at most twice, and doesn't overtake the first.
//!
//! A later fragment whose first fragment is unknown gets the verdict of an unmatched packet, and is listed in
//! [`BurstOutput::unknown_fragments`](super::BurstOutput): the caller may queue it and process it again.

use tidegate_snapshot::Snapshot;
use tidegate_spec::ids::WorkerIndex;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{DropReason, Refusal, TransmitReason, Verdict};
use tidegate_wire::Headers;

use super::answered_frames;
use super::burst::{Burst, Destination};
use super::masquerade::Leg;
use super::output::{FirstFragment, FlowNote, Note, UnknownFragment};
use super::state::Pipeline;
use crate::fragments::{Decision, FragmentKey};
use crate::frame::Frame;

/// The maximum number of hand-overs of a later fragment: to the gatherer, and to the worker that owns the flow.
const HAND_OVERS_MAX: u8 = 2;

impl Pipeline {
    /// Stores the decision for each first fragment of a burst.
    #[cold]
    pub(super) fn store_first_fragments<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>) {
        for packet in std::mem::take(&mut burst.first_fragments) {
            let at = burst.frame_of(packet);
            let Some(key) = FragmentKey::of(&burst.packets[usize::from(packet)].headers) else { continue };
            let delivery = burst.deliveries.iter().find(|delivery| delivery.packet == packet);
            let verdict = burst.out.verdicts[at];
            let decision = match verdict {
                Verdict::Transmit { why: TransmitReason::Masqueraded, .. } => {
                    self.masqueraded(burst, &burst.packets[usize::from(packet)].headers)
                }
                _ => {
                    let port = burst.packets[usize::from(packet)].headers.src_port;
                    decision(verdict, delivery.map(|delivery| &delivery.destination), port)
                }
            };
            let owner = match decision {
                Decision::OtherWorker(owner) => owner,
                _ => self.worker,
            };
            self.fragments.insert(key, decision, burst.now);
            let gatherer = self.fragments.gatherer(&key, self.workers);
            burst.out.first_fragments.push(FirstFragment { key, owner, gatherer });
        }
    }

    /// Records that the worker `owner` has seen the first fragment of a datagram. Later fragments are handed over to
    /// it.
    pub fn record_first_fragment(&mut self, key: FragmentKey, owner: WorkerIndex, now: Now) {
        // `owner` itself records nothing, because it gets the first fragment.
        if owner != self.worker {
            self.fragments.insert(key, Decision::OtherWorker(owner), now);
        }
    }

    /// Sends fragments without ports to the destination of their first fragment.
    #[cold]
    pub(super) fn follow_first_fragments<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>) {
        for packet in std::mem::take(&mut burst.later_fragments) {
            let at = burst.frame_of(packet);
            let h = burst.packets[usize::from(packet)].headers;
            let Some(key) = FragmentKey::of(&h) else { continue };
            match self.fragments.lookup(&key, burst.now) {
                None => self.unknown_fragment(burst, at, &h, key),
                Some(Decision::Ended(verdict)) => burst.set(at, verdict),
                Some(Decision::Routed) => self.route_on(burst, at, &h),
                Some(Decision::Masqueraded { local }) => {
                    self.send_masqueraded(burst, at, &h, Leg::Outward { local });
                }
                Some(Decision::Unmasqueraded { source }) => {
                    self.send_masqueraded(burst, at, &h, Leg::Inward { source });
                }
                Some(Decision::Echo) => {
                    let answered = answered_frames::echo_reply(burst, at, &h);
                    burst.answer_or(at, answered, TransmitReason::EchoReply, Refusal::IcmpUnsupported);
                }
                Some(Decision::OtherWorker(owner))
                    if owner != self.worker && burst.arrival.hand_overs() < HAND_OVERS_MAX =>
                {
                    burst.set(at, Verdict::HandOver(owner));
                }
                Some(decision) => match stored(burst.view.snapshot, decision) {
                    // The deny lists and source ranges may have changed since the first fragment.
                    Some(Destination::Backend { .. }) if burst.view.snapshot.denies(&h.src) => {
                        burst.set(at, Refusal::SourceDenied);
                    }
                    Some(Destination::Backend { service, .. })
                        if !burst.view.snapshot.is_in_range(service, &h.src) =>
                    {
                        burst.set(at, Refusal::SourceRange);
                    }
                    Some(destination) => {
                        burst.out.notes[at] = note(decision);
                        self.deliver_one(burst, packet, &destination);
                        if destination.service().logged > 0 {
                            self.log_packet(burst, packet, &destination, client_port(decision), false);
                        }
                    }
                    None => self.unserved(burst, at, &h),
                },
            }
        }
    }

    /// Processes a fragment whose first fragment was not seen here.
    fn unknown_fragment<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        key: FragmentKey,
    ) {
        let gatherer = self.fragments.gatherer(&key, self.workers);
        // Each receiver of a multicast or broadcast packet reassembles it, and the kernel is one of them.
        let to_one = h.dst.is_single_host();
        if to_one && gatherer != self.worker && burst.arrival.hand_overs() == 0 {
            return burst.set(at, Verdict::HandOver(gatherer));
        }
        self.unserved(burst, at, h);
        if to_one {
            // A frame is listed once, so the list has capacity. Its position is below `BURST`.
            let _ = burst.out.unknown_fragments.try_push(UnknownFragment { frame: at as u8, key });
        }
    }
}

fn note(decision: Decision) -> Note {
    match decision {
        Decision::ToBackend { service, backend, .. } => {
            Note { service: Some(service), backend: Some(backend), flow: FlowNote::Known }
        }
        Decision::ToClient { service, backend, .. } => {
            Note { service: Some(service), backend: Some(backend), flow: FlowNote::Known }
        }
        Decision::Echo
        | Decision::Routed
        | Decision::Masqueraded { .. }
        | Decision::Unmasqueraded { .. }
        | Decision::OtherWorker(_)
        | Decision::Ended(_) => Note::default(),
    }
}

/// The client's port of a packet to a backend.
fn client_port(decision: Decision) -> u16 {
    if let Decision::ToBackend { client_port, .. } = decision { client_port } else { 0 }
}

/// The decision for the later fragments of a datagram whose first fragment has this verdict, destination and source
/// port.
fn decision(verdict: Verdict, destination: Option<&Destination<'_>>, client_port: u16) -> Decision {
    let to = match verdict {
        Verdict::Transmit {
            why: TransmitReason::Forward | TransmitReason::Reply | TransmitReason::IcmpError,
            ..
        }
        // The first fragment waits for its next hop, so the later ones wait, too.
        | Verdict::Drop(DropReason::Refused(Refusal::NeighborUnresolved)) => destination,
        Verdict::HandOver(owner) => return Decision::OtherWorker(owner),
        Verdict::Transmit { why: TransmitReason::EchoReply, .. } => return Decision::Echo,
        Verdict::Transmit { why: TransmitReason::Routed, .. } => return Decision::Routed,
        _ => None,
    };
    match to {
        Some(&Destination::Backend { service, backend, local }) => {
            Decision::ToBackend { service: service.id, backend: backend.id, local, client_port }
        }
        Some(&Destination::Client { service, backend, client }) => {
            Decision::ToClient { service: service.id, backend, client }
        }
        None => Decision::Ended(match verdict {
            Verdict::Transmit { why: TransmitReason::PacketTooBig, .. } => Refusal::TooBig.into(),
            Verdict::Transmit { why: TransmitReason::TtlExceeded, .. } => Refusal::TtlExceeded.into(),
            Verdict::Transmit { why: TransmitReason::NoEndpoints, .. } => Refusal::NoEndpoints.into(),
            Verdict::Transmit { why: TransmitReason::NoService, .. } => Refusal::NoService.into(),
            Verdict::Transmit { why: TransmitReason::NotRouted, .. } => Refusal::NotRouted.into(),
            Verdict::Transmit { .. } => Refusal::FragmentUnknown.into(),
            ended => ended,
        }),
    }
}

/// The destination of a stored decision, if its service and backend still exist.
fn stored(snapshot: &Snapshot, decision: Decision) -> Option<Destination<'_>> {
    Some(match decision {
        Decision::ToBackend { service, backend, local, .. } => Destination::Backend {
            service: snapshot.service_by_id(service)?,
            backend: snapshot.backend(backend)?,
            local,
        },
        Decision::ToClient { service, backend, client } => {
            Destination::Client { service: snapshot.service_by_id(service)?, backend, client }
        }
        Decision::Echo
        | Decision::Routed
        | Decision::Masqueraded { .. }
        | Decision::Unmasqueraded { .. }
        | Decision::OtherWorker(_)
        | Decision::Ended(_) => return None,
    })
}
