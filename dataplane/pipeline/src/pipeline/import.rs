//! Imports a flow of another gateway ([`flow_replication`](super::flow_replication)) or of an earlier process of this
//! gateway ([`restore`](super::restore)).
//!
//! Invariant: a flow is imported only to a backend of its own service port, in a mode for which its entry was made, and
//! only at a worker that receives its packets.

use tidegate_conntrack::flow_record::LocalFlow;
use tidegate_conntrack::{Imported, Origin};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_spec::limits::SNAT_PORT_MIN;
use tidegate_spec::now::Now;
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::Addr;
use tidegate_wire::rewrite::Endpoint;

use super::owners::{RssDistribution, owner_of_client};
use super::state::Pipeline;
use crate::forward::snat_ports::{Steering, owner_of_port};

/// The result of importing an update from another gateway.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum ImportOutcome {
    /// The flow is stored.
    New,
    /// The flow was known.
    Known,
    /// The flow has ended, and is removed if it has had no packets here.
    Gone,
    /// Only other workers need the flow.
    Elsewhere,
    /// This gateway has no such service port, or uses another forwarding mode for it.
    UnknownService,
    /// The service has no such backend here.
    UnknownBackend,
    /// The client is not admitted.
    NotAdmitted,
    /// A flow in use on this gateway has the same addresses and ports.
    Conflict,
    /// The flow table is too full.
    Full,
}

impl ImportOutcome {
    /// The number of variants.
    pub const COUNT: usize = 9;

    /// All variants, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::New,
        Self::Known,
        Self::Gone,
        Self::Elsewhere,
        Self::UnknownService,
        Self::UnknownBackend,
        Self::NotAdmitted,
        Self::Conflict,
        Self::Full,
    ];

    /// The name in metrics.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Known => "known",
            Self::Gone => "gone",
            Self::Elsewhere => "elsewhere",
            Self::UnknownService => "unknown_service",
            Self::UnknownBackend => "unknown_backend",
            Self::NotAdmitted => "not_admitted",
            Self::Conflict => "conflict",
            Self::Full => "full",
        }
    }
}

impl Pipeline {
    /// Imports a flow with the ids of this snapshot. A flow that has had packets here doesn't change.
    pub(super) fn import(
        &mut self,
        snapshot: &Snapshot,
        flow: &LocalFlow,
        from: Origin,
        now: Now,
    ) -> ImportOutcome {
        let Some(service) = snapshot.service_by_id(flow.name.service()).filter(|one| fits(one, flow, from))
        else {
            return ImportOutcome::UnknownService;
        };
        let Some(backend) = snapshot.backend(flow.backend) else { return ImportOutcome::UnknownBackend };
        if !snapshot.admits(service, &flow.name.addr()) {
            return ImportOutcome::NotAdmitted;
        }
        // A connection of a client with affinity may arrive at any worker.
        let is_affinity = flow.name.is_affinity_key();
        if !is_affinity && self.workers > 1 && !self.receives(snapshot, service, backend, flow, from) {
            return ImportOutcome::Elsewhere;
        }
        let own_timeout = if is_affinity { service.affinity_timeout() } else { service.idle };
        let idle = flow.idle_timeout.unwrap_or(own_timeout);
        if flow.idle_ms >= idle.millis() {
            // The flow would expire at once.
            return ImportOutcome::Gone;
        }
        let imported = self.flows.import(flow, backend.endpoint, idle, from, now);
        if is_affinity && imported == Imported::New {
            self.import_affinity(service, flow, now);
        }
        if let (Imported::New | Imported::Known, Some(tags)) = (imported, flow.tags) {
            self.adopt_association(snapshot, service, flow, tags, now);
        }
        match imported {
            Imported::New => ImportOutcome::New,
            Imported::Known => ImportOutcome::Known,
            Imported::Conflict => ImportOutcome::Conflict,
            Imported::Outdated => {
                self.sharing.contradict(flow.name);
                ImportOutcome::Conflict
            }
            Imported::Full => ImportOutcome::Full,
        }
    }

    /// Whether this worker, one of several, processes packets of a flow, received or handed over.
    fn receives(
        &self,
        snapshot: &Snapshot,
        service: &Service,
        backend: &Backend,
        flow: &LocalFlow,
        from: Origin,
    ) -> bool {
        let (addr, proto) = (flow.name.addr(), service.protocol.number());
        let (client, backend) = ((&addr, flow.name.port()), (&backend.address, backend.port));
        let local = flow.translation.as_ref().map(|one| (&one.local.addr, one.local.port));
        let is_own = |addr: &Addr| snapshot.snat_addresses(addr.family()).binary_search(addr).is_ok();
        let is_foreign = from == Origin::Peer
            || service.mode == ForwardingMode::FullNat && local.is_some_and(|(addr, _)| !is_own(addr));
        if is_foreign {
            return self.may_receive(snapshot, service, client, backend, local);
        }
        let is_owner = || owner_of_client(client, proto, self.workers) == self.worker;
        match (self.snat_ports.steering(), local) {
            (Steering::Single, _) => true,
            (_, Some(_)) if service.mode == ForwardingMode::Nat => is_owner(),
            (Steering::Partition, None) => true,
            (Steering::Partition, Some((_, port))) => {
                is_owner() && owner_of_port(port, self.workers) == self.worker
            }
            (Steering::Rss(rss), local) => {
                rss.queue(client, (&service.vip, service.port)) == self.worker
                    && local.is_none_or(|local| rss.queue(backend, local) == self.worker)
            }
        }
    }

    /// Whether this worker may get packets of a flow of another gateway. That gateway may distribute packets to its
    /// workers differently, so the two directions may reach two workers here, which then both adopt the flow. `local`
    /// is the destination of replies.
    fn may_receive(
        &self,
        snapshot: &Snapshot,
        service: &Service,
        client: (&Addr, u16),
        backend: (&Addr, u16),
        local: Option<(&Addr, u16)>,
    ) -> bool {
        let (vip, proto) = ((&service.vip, service.port), service.protocol.number());
        let of_request = self.owners().of_request(service, client, vip, proto, RssDistribution::Other);
        let of_reply = local.and_then(|local| {
            self.owners().of_reply(snapshot, backend, local, proto, RssDistribution::Other)
        });
        of_request.is_none_or(|owner| owner == self.worker) || of_reply == Some(self.worker)
    }
}

/// Whether a flow is valid for this service and its mode.
fn fits(service: &Service, flow: &LocalFlow, from: Origin) -> bool {
    let client = Endpoint { addr: flow.name.addr(), port: flow.name.port() };
    let is_of_mode = if flow.name.is_affinity_key() {
        service.affinity_ms != 0 && flow.translation.is_none()
    } else {
        service.mode.is_dsr() == flow.translation.is_none()
    };
    let is_of_family = |addr: &Addr| addr.family() == service.vip.family();
    is_of_mode
        && is_of_family(&client.addr)
        && flow.translation.is_none_or(|one| is_of_family(&one.local.addr) && one.local.addr.is_single_host())
        && match from {
            Origin::Peer => is_possible(service, flow, &client),
            // Its local address is that of its mode, or of the gateway from which the earlier process adopted it.
            Origin::EarlierProcess => match (service.mode, &flow.translation) {
                (ForwardingMode::Nat, Some(one)) => one.local == client,
                (_, one) => one.is_none_or(|one| one.local.port >= SNAT_PORT_MIN),
            },
        }
}

/// Whether another gateway can have a flow with these states, tags and ports.
fn is_possible(service: &Service, flow: &LocalFlow, client: &Endpoint) -> bool {
    let is_affinity = flow.name.is_affinity_key();
    let has_connection = !is_affinity && service.protocol != Protocol::Udp;
    client.addr.is_single_host()
        && is_affinity == (client.port == 0)
        && flow.client.has_connection() == has_connection
        && (flow.tags.is_none() || !is_affinity && service.protocol == Protocol::Sctp)
        && flow
            .translation
            .is_none_or(|one| one.local.port != 0 && one.server.has_connection() == has_connection)
}
