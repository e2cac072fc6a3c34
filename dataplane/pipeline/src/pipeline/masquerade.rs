//! Masquerade: traffic that backends originate leaves with a SNAT address of the gateway as its source
//! (`dataplane.gateway.masquerade`), and answers are returned to the backend.
//!
//! Off the fast path: [`super::transit`] calls it for packets of backends' networks, and [`super::local`] for packets to a
//! SNAT address that belong to no flow of a Service. It masquerades TCP, UDP and ICMP echo, and ICMP errors about them.
//!
//! Local ports come from the same rotation as for `fullnat` ([`SnatPorts`](crate::forward::snat_ports::SnatPorts)), so
//! that answers reach the worker that owns the flow. Echo identifiers are always split among workers by remainder. A
//! source keeps its SNAT address as long as the list of addresses doesn't change (RFC 4787 REQ-2).
//!
//! A masqueraded flow never takes a port from a flow of a Service to the same endpoint, but a `fullnat` flow without
//! a free port evicts a masqueraded flow.
//!
//! A flow ends when its source is no longer masqueraded or the gateway loses its SNAT address.

use tidegate_conntrack::{FlowKey, IdleTimeout, Masquerade, Packet, ReplyKey};
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::{Snapshot, Transit};
use tidegate_spec::ids::WorkerIndex;
use tidegate_spec::limits::{
    MASQUERADE_ECHO_IDLE, MASQUERADE_TCP_IDLE, MASQUERADE_UDP_IDLE, SNAT_PORT_PROBES,
};
use tidegate_spec::verdict::{Refusal, TransmitReason, Verdict};
use tidegate_structures::hash::{key_hash, scale};
use tidegate_wire::icmp::Problem;
use tidegate_wire::quote::{self, Quote};
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{Addr, Headers, L4Checksum, ipv6, proto};

use super::answered_frames;
use super::burst::Burst;
use super::next_hop::next_hop_by_route;
use super::owners::{RssDistribution, owner_of_client};
use super::reply_ports::is_better;
use super::request::kind_of;
use super::state::Pipeline;
use super::transit::returns_to_sender;
use crate::forward;
use crate::forward::snat_ports::{Steering, owner_of_port};
use crate::fragments::Decision;
use crate::frame::Frame;

/// The direction of a packet of a masqueraded flow.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Leg {
    /// To the host outside, with this source.
    Outward {
        /// SNAT address and port.
        local: Endpoint,
    },
    /// To the backend.
    Inward {
        /// The backend's own address and port.
        source: Endpoint,
    },
}

/// The ends of a packet: the backend or the SNAT address, and the host outside.
type Ends = (Endpoint, Endpoint);

impl Pipeline {
    /// Masquerades a packet of a backend's network, or refuses it. The caller has checked its source.
    #[cold]
    pub(super) fn masquerade<F: Frame>(&mut self, burst: &mut Burst<'_, '_, F>, at: usize, h: &Headers) {
        // The first fragment may belong to a flow.
        if h.is_later_fragment() {
            return burst.set(at, Refusal::FragmentUnknown);
        }
        let Some(ends) = outward_ends(h) else {
            if h.is_icmp_error() {
                return burst.set(at, Refusal::IcmpErrorUnknown);
            }
            return self.not_routed(burst, at, h, Problem::AdminProhibited);
        };
        if ipv6::is_authenticated(burst.frames[at].bytes(), h) {
            return burst.set(at, Refusal::Authenticated);
        }
        let snapshot = burst.view.snapshot;
        if let Some(owner) =
            self.owner_outward(snapshot, h.proto, &ends, RssDistribution::of(h, self.snat_ports.steering()))
            && let Err(verdict) = self.check_owner(owner, burst.arrival, h.proto)
        {
            return burst.set(at, verdict);
        }
        // A packet whose hop limit ends here creates no flow.
        if h.ttl <= 1 {
            return self.refuse_undeliverable(burst, at, h, 0, 0);
        }
        let is_loop =
            next_hop_by_route(&burst.view, &h.dst).is_ok_and(|hop| returns_to_sender(burst, at, &hop));
        if is_loop || snapshot.route(&h.dst).is_none() {
            return self.not_routed(burst, at, h, Problem::NoRoute);
        }
        let (source, peer) = &ends;
        let known = self.flows.masquerades.outward(h.proto, source, peer, kind_of(h), burst.now);
        let known = known.filter(|local| snapshot.snat_addresses(h.family).contains(&local.addr));
        match known.map_or_else(|| self.begin_masquerade(burst, h, &ends), Ok) {
            Ok(local) => {
                self.send_masqueraded(burst, at, h, Leg::Outward { local });
            }
            // The flow of this connection is lost.
            Err(Refusal::NoFlow) => {
                let answered = snapshot.policy().reset_unknown_flows && self.reset(burst, at, h);
                burst.answer_or(at, answered, TransmitReason::NoFlow, Refusal::NoFlow);
            }
            Err(refusal) => burst.set(at, refusal),
        }
    }

    /// Sends an answer to a SNAT address to the backend of the masqueraded flow. Returns false if there is no such
    /// flow; the packet then has no verdict yet.
    #[cold]
    pub(super) fn returns_to_backend<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
    ) -> bool {
        let snapshot = burst.view.snapshot;
        let is_on = snapshot.transit().is_some_and(Transit::may_masquerade);
        if !is_on || !snapshot.snat_addresses(h.family).contains(&h.dst) {
            return false;
        }
        let Some(ends) = inward_ends(h) else { return false };
        if let Some(owner) =
            self.owner_inward(snapshot, h.proto, &ends, RssDistribution::of(h, self.snat_ports.steering()))
            && let Err(verdict) = self.check_owner(owner, burst.arrival, h.proto)
        {
            burst.set(at, verdict);
            return true;
        }
        let (local, peer) = &ends;
        let source = self.flows.masquerades.inward(h.proto, local, peer, kind_of(h), burst.now);
        let Some(source) = source.filter(|source| snapshot.masquerades(&source.addr, &peer.addr)) else {
            return false;
        };
        if ipv6::is_authenticated(burst.frames[at].bytes(), h) {
            burst.set(at, Refusal::Authenticated);
        } else {
            self.send_masqueraded(burst, at, h, Leg::Inward { source });
        }
        true
    }

    /// Forwards an ICMP error about a packet of a masqueraded flow. Returns false if it is about no masqueraded flow.
    #[cold]
    pub(super) fn about_masquerade<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        quoted: &Quote,
    ) -> bool {
        let snapshot = burst.view.snapshot;
        let Some(transit) = snapshot.transit().filter(|transit| transit.may_masquerade()) else {
            return false;
        };
        let inward = snapshot.snat_addresses(quoted.family).contains(&quoted.src) && h.dst == quoted.src;
        let outward = transit.masquerades(&quoted.dst, &quoted.src)
            && transit.sources.admits(&h.src)
            && h.dst == quoted.src
            && self.leads_back(burst, at, h);
        let (mut from, mut to) = (
            Endpoint { addr: quoted.src, port: quoted.src_port },
            Endpoint { addr: quoted.dst, port: quoted.dst_port },
        );
        if is_icmp(quoted.proto) {
            // An echo identifier counts as the port of our end only.
            (if inward { &mut to } else { &mut from }).port = 0;
        }
        let owner = if inward {
            self.owner_inward(snapshot, quoted.proto, &(from, to), RssDistribution::Other)
        } else if outward {
            self.owner_outward(snapshot, quoted.proto, &(to, from), RssDistribution::Other)
        } else {
            return false;
        };
        if let Some(owner) = owner
            && let Err(verdict) = self.check_owner(owner, burst.arrival, proto::ICMP)
        {
            burst.set(at, verdict);
            return true;
        }
        let flows = &self.flows.masquerades;
        let leg = if inward {
            flows
                .peek_inward(quoted.proto, &from, &to, burst.now)
                .filter(|source| snapshot.masquerades(&source.addr, &to.addr))
                .map(|source| Leg::Inward { source })
        } else {
            flows.peek_outward(quoted.proto, &to, &from, burst.now).map(|local| Leg::Outward { local })
        };
        let Some(leg) = leg else { return false };
        if ipv6::is_authenticated(burst.frames[at].bytes(), h) {
            burst.set(at, Refusal::Authenticated);
        } else {
            self.send_masqueraded(burst, at, h, leg);
        }
        true
    }

    /// The decision for the later fragments of a masqueraded packet.
    #[cold]
    pub(super) fn masqueraded<F: Frame>(&self, burst: &Burst<'_, '_, F>, h: &Headers) -> Decision {
        let flows = &self.flows.masquerades;
        let out = outward_ends(h).and_then(|(source, peer)| {
            let local = flows.peek_outward(h.proto, &source, &peer, burst.now)?;
            Some(Decision::Masqueraded { local })
        });
        let back = || {
            let (local, peer) = inward_ends(h)?;
            let source = flows.peek_inward(h.proto, &local, &peer, burst.now)?;
            Some(Decision::Unmasqueraded { source })
        };
        out.or_else(back).unwrap_or(Decision::Ended(Refusal::FragmentUnknown.into()))
    }

    /// Rewrites and sends a packet of a masqueraded flow, or an ICMP error about one.
    #[cold]
    pub(super) fn send_masqueraded<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        before: &Headers,
        leg: Leg,
    ) {
        let to = match leg {
            Leg::Outward { .. } => before.dst,
            Leg::Inward { source } => source.addr,
        };
        let hop = match next_hop_by_route(&burst.view, &to) {
            Ok(hop) => hop,
            Err(no_next_hop) => return no_next_hop.report(burst, at),
        };
        // The packet would return to the station that sent it, and might loop.
        if matches!(leg, Leg::Outward { .. }) && returns_to_sender(burst, at, &hop) {
            return self.not_routed(burst, at, before, Problem::NoRoute);
        }
        if (before.ttl <= 1 || !hop.fits(before.ip_len()))
            && !self.passes_in_fragments(burst, at, before, 0, &hop)
        {
            return;
        }
        let (frame, mut h) = (&mut burst.frames[at], *before);
        let rewritten = match leg {
            Leg::Outward { local } => forward::masquerade::outward(frame, &mut h, &hop.link, local),
            Leg::Inward { source } => forward::masquerade::inward(frame, &mut h, &hop.link, source),
        };
        if let Err(no_headroom) = rewritten {
            return burst.set(at, Refusal::from(no_headroom));
        }
        let mut why = TransmitReason::Masqueraded;
        if h.is_icmp_error() {
            why = TransmitReason::IcmpError;
            translate_quote(frame, &h, leg);
        }
        burst.set(at, Verdict::Transmit { interface: hop.interface, why });
    }

    /// Creates a masqueraded flow. Returns its local address and port.
    fn begin_masquerade<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        h: &Headers,
        &(source, peer): &Ends,
    ) -> Result<Endpoint, Refusal> {
        let (packet, now) = (kind_of(h), burst.now);
        if packet.has_connection() && !packet.is_opening() {
            return Err(Refusal::NoFlow);
        }
        let snapshot = burst.view.snapshot;
        let addresses = snapshot.snat_addresses(h.family);
        let chosen = scale(key_hash(&source.addr, 0, 0), u32::try_from(addresses.len()).unwrap_or(u32::MAX));
        let &addr = addresses.get(chosen as usize).ok_or(Refusal::SnatPortsExhausted)?;
        let local = match h.proto {
            proto::TCP | proto::UDP => self.free_port(burst, h.proto, addr, &peer),
            _ => self.free_echo(burst, h.proto, addr, &peer),
        };
        let local = local.ok_or(Refusal::SnatPortsExhausted)?;
        let idle = match packet {
            Packet::Tcp(_) => MASQUERADE_TCP_IDLE,
            _ if h.proto == proto::UDP => MASQUERADE_UDP_IDLE,
            _ => MASQUERADE_ECHO_IDLE,
        };
        let flow = Masquerade { proto: h.proto, source, peer, local };
        let inserted = self.flows.masquerades.insert(&flow, packet, IdleTimeout::new(idle), now);
        inserted.map_or(Err(Refusal::MasqueradeFull), |()| Ok(local))
    }

    /// The state of a reply key for a Service's new flow: `found`, unless a masqueraded flow to the same endpoint has
    /// the address and port. The new flow may evict that masqueraded flow, but prefers another port.
    #[inline]
    pub(super) fn or_masqueraded(
        &self,
        found: ReplyKey,
        reply: &FlowKey,
        backend: &Backend,
        proto: u8,
    ) -> ReplyKey {
        const TAKEN: ReplyKey = ReplyKey::Opening { idle_ms: 0 };
        let flows = &self.flows.masquerades;
        let is_taken = !flows.is_empty() && flows.has_local(proto, &local_of(reply), &endpoint_of(backend));
        if is_taken { found.max(TAKEN) } else { found }
    }

    /// Ends the masqueraded flow to the same endpoint that has the address and port of a Service's new flow.
    #[inline]
    pub(super) fn take_from_masquerade(&mut self, reply: &FlowKey, backend: &Backend, proto: u8) {
        let flows = &mut self.flows.masquerades;
        if !flows.is_empty() {
            flows.take_local(proto, &local_of(reply), &endpoint_of(backend));
        }
    }

    /// The best of several local ports towards a peer: a port without a flow, or else one whose flow has ended or is
    /// not established.
    fn free_port<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        proto: u8,
        addr: Addr,
        peer: &Endpoint,
    ) -> Option<Endpoint> {
        let (snapshot, now) = (burst.view.snapshot, burst.now);
        let hash = Snapshot::hash_endpoint(&peer.addr, proto, peer.port);
        let endpoint = snapshot.endpoint(hash, &peer.addr, proto, peer.port);
        let pair = self.snat_ports.pair(addr, (peer.addr, peer.port), proto);
        let mut best = (ReplyKey::Taken, None);
        for _ in 0..SNAT_PORT_PROBES {
            let Some((port, position)) = self.snat_ports.next(&pair) else { continue };
            let local = Endpoint { addr, port };
            let of_service = endpoint.is_some_and(|endpoint| {
                let reply = FlowKey::reply(endpoint, addr, port);
                self.flows.nat.peek_reply(&reply, self.flows.hash(&reply), now).is_some()
            });
            let found = self.flows.masquerades.local_key(proto, &local, peer, now);
            if !of_service && is_better(found, best.0) {
                best = (found, Some((local, position)));
            }
            if best.0 <= ReplyKey::Over {
                break;
            }
        }
        let (local, position) = best.1?;
        // The ports after the chosen one were only examined, so the rotation continues with them.
        self.snat_ports.resume_after(position);
        Some(local)
    }

    /// [`Self::free_port`] for an echo identifier.
    fn free_echo<F: Frame>(
        &mut self,
        burst: &Burst<'_, '_, F>,
        proto: u8,
        addr: Addr,
        peer: &Endpoint,
    ) -> Option<Endpoint> {
        let (workers, worker) = (u16::from(self.workers), u16::from(self.worker));
        // This worker's identifiers below 2^16 - `workers`.
        let count = u16::MAX / workers;
        let mut best = (ReplyKey::Taken, None);
        for _ in 0..SNAT_PORT_PROBES {
            self.next_echo_id = (self.next_echo_id + 1) % count;
            let local = Endpoint { addr, port: self.next_echo_id * workers + worker };
            let found = self.flows.masquerades.local_key(proto, &local, peer, burst.now);
            if is_better(found, best.0) {
                best = (found, Some(local));
            }
            if best.0 <= ReplyKey::Over {
                break;
            }
        }
        best.1
    }

    /// The worker that owns the flow of a backend's packets; `None` if it is the worker that receives them. A packet
    /// that may belong to a flow of a Service goes to the worker of that flow ([`super::reply_flows`]).
    fn owner_outward(
        &self,
        snapshot: &Snapshot,
        proto: u8,
        (source, peer): &Ends,
        distribution: RssDistribution,
    ) -> Option<WorkerIndex> {
        if self.workers == 1 {
            return None;
        }
        let of = |end: &Endpoint| Some(owner_of_client((&end.addr, end.port), proto, self.workers));
        if is_icmp(proto) {
            return of(source);
        }
        let hash = Snapshot::hash_endpoint(&source.addr, proto, source.port);
        if snapshot.endpoint(hash, &source.addr, proto, source.port).is_some() {
            return of(peer);
        }
        match self.snat_ports.steering() {
            Steering::Partition => of(source),
            Steering::Rss(rss) if distribution == RssDistribution::Other => {
                Some(rss.queue((&source.addr, source.port), (&peer.addr, peer.port)))
            }
            Steering::Single | Steering::Rss(_) => None,
        }
    }

    /// [`Self::owner_outward`] for packets to a SNAT address.
    fn owner_inward(
        &self,
        snapshot: &Snapshot,
        proto: u8,
        (local, peer): &Ends,
        distribution: RssDistribution,
    ) -> Option<WorkerIndex> {
        if self.workers == 1 {
            return None;
        }
        if is_icmp(proto) {
            return Some(owner_of_port(local.port, self.workers));
        }
        self.owners().of_reply(
            snapshot,
            (&peer.addr, peer.port),
            (&local.addr, local.port),
            proto,
            distribution,
        )
    }

    /// Whether a packet arrived through the interface that leads to its source, in a frame from one station.
    pub(super) fn leads_back<F: Frame>(&self, burst: &Burst<'_, '_, F>, at: usize, h: &Headers) -> bool {
        let route = burst.view.snapshot.route(&h.src);
        route.is_some_and(|hop| hop.interface == burst.arrival.interface())
            && h.src.is_single_host()
            && answered_frames::is_from_one_station(&burst.frames[at])
    }
}

/// The destination of replies with this key.
fn local_of(reply: &FlowKey) -> Endpoint {
    Endpoint { addr: reply.addr(), port: reply.port() }
}

fn endpoint_of(backend: &Backend) -> Endpoint {
    Endpoint { addr: backend.address, port: backend.port }
}

const fn is_icmp(number: u8) -> bool {
    matches!(number, proto::ICMP | proto::ICMPV6)
}

/// The backend and the host outside of a packet that a backend originates; `None` if it is not masqueraded.
fn outward_ends(h: &Headers) -> Option<Ends> {
    let source = Endpoint { addr: h.src, port: h.src_port };
    match h.l4_checksum {
        L4Checksum::Tcp | L4Checksum::Udp | L4Checksum::UdpZero => {
            Some((source, Endpoint { addr: h.dst, port: h.dst_port }))
        }
        _ if h.is_echo_request() => Some((source, Endpoint { addr: h.dst, port: 0 })),
        _ => None,
    }
}

/// The SNAT address and the host outside of an answer; `None` if it can't answer masqueraded packets.
fn inward_ends(h: &Headers) -> Option<Ends> {
    let local = Endpoint { addr: h.dst, port: h.dst_port };
    match h.l4_checksum {
        L4Checksum::Tcp | L4Checksum::Udp | L4Checksum::UdpZero => {
            Some((local, Endpoint { addr: h.src, port: h.src_port }))
        }
        _ if h.is_echo_reply() => Some((local, Endpoint { addr: h.src, port: 0 })),
        _ => None,
    }
}

/// Translates the packet that an error quotes, which travelled in the opposite direction.
fn translate_quote<F: Frame>(frame: &mut F, h: &Headers, leg: Leg) {
    let Ok(Some(mut quoted)) = quote::parse(frame.bytes(), h) else { return };
    let (src, dst) = match leg {
        Leg::Outward { local } => (None, Some(local)),
        Leg::Inward { source } => (Some(source), None),
    };
    quote::translate(frame.bytes_mut(), h, &mut quoted, src, dst);
}
