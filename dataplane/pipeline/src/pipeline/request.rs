//! A packet to a service port, the known state of its flow, and its backend: the data that the stages of
//! [`super::service_flows`] pass to each other and to other code that creates flows.

use arrayvec::ArrayVec;
use tidegate_conntrack::{DsrHit, FlowHash, FlowKey, IdleTimeout, NatHit, NewFlow, Packet};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_spec::ForwardingMode;
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::tcp::flags;
use tidegate_wire::{Addr, Headers, proto, sctp};

use super::output::FlowNote;
use super::passive::Syn;

pub(super) type Requests<'s> = ArrayVec<Request<'s>, BURST>;

/// A packet to a service port, with its state between the stages.
#[derive(Clone, Copy)]
pub(super) struct Request<'s> {
    pub(super) packet: u8,
    pub(super) service: &'s Service,
    pub(super) key: FlowKey,
    pub(super) kind: Packet,
    pub(super) flow_hash: FlowHash,
    /// The hash for the choice of a backend, which is the same on every gateway.
    pub(super) choice_hash: u64,
    pub(super) found: Found,
}

/// The result of the look-up of a request's flow.
#[derive(Clone, Copy)]
pub(super) enum Found {
    /// The flow is not known.
    Unknown,
    /// The flow has an entry.
    Known(Known),
    /// The flow needs no entry: its hash selects this backend, and it isn't in flux (`flowTracking: on-change`).
    Stable(BackendId),
}

impl Found {
    #[inline(always)]
    pub(super) fn known(&self) -> Option<&Known> {
        match self {
            Self::Known(known) => Some(known),
            Self::Unknown | Self::Stable(_) => None,
        }
    }

    pub(super) fn is_known(&self) -> bool {
        self.known().is_some()
    }
}

impl From<Option<Known>> for Found {
    #[inline(always)]
    fn from(known: Option<Known>) -> Self {
        known.map_or(Self::Unknown, Self::Known)
    }
}

/// The content of a flow entry.
#[derive(Clone, Copy)]
pub(super) struct Known {
    pub(super) backend: BackendId,
    pub(super) local: Option<Endpoint>,
    pub(super) syn: Syn,
}

impl From<DsrHit> for Known {
    fn from(hit: DsrHit) -> Self {
        Self { backend: hit.backend, local: None, syn: Syn::of(hit.reopened, false) }
    }
}

impl Known {
    /// The meaning of a flow entry for a packet of this client. If an adopted flow has had no packet here, a SYN
    /// doesn't keep its SNAT address: the other gateway may be gone.
    #[inline]
    pub(super) fn translated(
        hit: &NatHit,
        mode: ForwardingMode,
        client: &FlowKey,
        snapshot: &Snapshot,
    ) -> Self {
        let local = local_of(hit, mode, &client.addr(), client.port());
        let is_of_another = || mode == ForwardingMode::FullNat && !snapshot.is_snat_address(&hit.source);
        let reopened = hit.reopened || hit.adopted && is_of_another();
        Self { backend: hit.backend, local, syn: Syn::of(reopened, hit.repeated) }
    }
}

/// The source of a known flow's packets; `None` if it is the client's own. It always differs with `fullnat`. With `nat`
/// it differs if the backend is its own client, or if another flow has the client's port towards this backend.
#[inline]
pub(super) fn local_of(hit: &NatHit, mode: ForwardingMode, client: &Addr, port: u16) -> Option<Endpoint> {
    let local = Endpoint { addr: hit.source, port: hit.source_port };
    let changed = hit.source_port != port || hit.source != *client;
    (mode == ForwardingMode::FullNat || changed).then_some(local)
}

impl<'s> Request<'s> {
    /// The SYN of a flow that is moved from `backend` to another one.
    pub(super) fn again(
        service: &'s Service,
        packet: u8,
        (key, flow_hash): (FlowKey, FlowHash),
        backend: BackendId,
    ) -> Self {
        let found = Found::Known(Known { backend, local: None, syn: Syn::No });
        Self { packet, service, key, kind: Packet::Tcp(flags::SYN), flow_hash, choice_hash: 0, found }
    }

    /// This request, as if its packet were the SYN of its connection.
    pub(super) fn with_syn(&self) -> Self {
        Self { kind: Packet::Tcp(flags::SYN), ..*self }
    }

    /// The flow that its packet creates.
    #[inline(always)]
    pub(super) fn new_flow(&self, backend: BackendId, idle: IdleTimeout, now: Now) -> NewFlow {
        NewFlow { key: self.key, hash: self.flow_hash, backend, packet: self.kind, idle, now }
    }

    /// The index of its packet in the burst.
    pub(super) fn index(&self) -> usize {
        usize::from(self.packet)
    }

    #[inline(always)]
    pub(super) fn choice_hash(&self, snapshot: &Snapshot, h: &Headers) -> u64 {
        match self.found {
            // The hash isn't computed in advance for a known flow.
            Found::Known(_) => choice_hash(snapshot, self.service, h),
            Found::Unknown | Found::Stable(_) => self.choice_hash,
        }
    }
}

/// The part of a packet that affects the state of its flow.
#[inline]
pub(super) fn kind_of(h: &Headers) -> Packet {
    match h.proto {
        proto::TCP => Packet::Tcp(h.tcp_flags),
        proto::SCTP => Packet::Sctp(sctp::Kind::from_bits(h.tcp_flags)),
        _ => Packet::Datagram,
    }
}

#[inline]
pub(super) fn choice_hash(snapshot: &Snapshot, service: &Service, h: &Headers) -> u64 {
    snapshot.choice_hash(service, (&h.src, h.src_port), (&h.dst, h.dst_port), h.proto)
}

/// The result of stage 4 for one packet.
pub(super) struct Chosen<'s> {
    pub(super) backend: &'s Backend,
    pub(super) local: Option<Endpoint>,
    pub(super) flow: FlowNote,
}
