//! Exports flows to other gateways, and imports theirs.
//!
//! All gateways choose backends alike, so another gateway finds the backend of most flows by itself. The exceptions are
//! flows in flux, for which a gateway without an entry would choose another backend; clients whose session affinity is
//! in flux; and NAT flows, whose translation is state. A worker exports a flow when its state changes
//! (`FlowTables::take_changes`). It also walks through its tables, a few hash buckets in each loop iteration: after a
//! change of backends, which puts flows in flux; periodically, for gateways that missed updates; and for a gateway that
//! has lost its tables.
//!
//! Invariant: nothing here blocks. Without sharing, the only cost is one comparison in each iteration of the worker's
//! loop.

use tidegate_conntrack::flow_record::{FlowName, FlowRecord, FlowUpdate, LocalFlow, Walks};
use tidegate_conntrack::{FlowKey, Origin};
use tidegate_select::selector::Selector;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::Service;
use tidegate_spec::Protocol;
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::SHARING_BUCKETS_PER_ITERATION;
use tidegate_spec::now::Now;
use tidegate_wire::rewrite::Endpoint;

use super::import::ImportOutcome;
use super::on_change;
use super::sharing_walks::{SharedFlows, Sharing};
use super::state::Pipeline;

impl Pipeline {
    /// Sets which flows are shared. `walks` counts the walks requested so far, which are skipped.
    pub fn set_shared_flows(&mut self, flows: Option<SharedFlows>, walks: Walks) {
        self.flows.enable_journal(flows.is_some());
        self.sharing = Sharing::new(flows, walks);
    }

    /// Which flows are shared.
    #[inline]
    #[must_use]
    pub fn shared_flows(&self) -> Option<SharedFlows> {
        self.sharing.flows
    }

    /// Sends the flows that have changed, and continues the walk in progress while `may_walk`. Returns whether there
    /// is more to walk. Call it in each iteration of the worker's loop.
    pub fn share(
        &mut self,
        snapshot: &Snapshot,
        walks: Walks,
        may_walk: bool,
        now: Now,
        mut send: impl FnMut(FlowUpdate),
    ) -> bool {
        let Some(shared) = self.sharing.flows else { return false };
        if self.flows.has_changes() {
            self.flows.take_changes(now, |change| match change {
                FlowUpdate::Live(flow) => {
                    let record = record(snapshot, shared, &flow, Agreement::Presumed);
                    record.into_iter().for_each(|record| send(FlowUpdate::Live(record)));
                }
                FlowUpdate::Gone(key) => gone(snapshot, shared, &key).into_iter().for_each(&mut send),
            });
        }
        while let Some(key) = self.sharing.contradicted.pop() {
            let is_dsr = key.is_affinity_key()
                || snapshot.service_by_id(key.service()).is_some_and(|service| service.mode.is_dsr());
            let flow = self.flows.shared_flow(&key, is_dsr, now);
            let record = flow.and_then(|flow| record(snapshot, shared, &flow, Agreement::Contradicted));
            record.into_iter().for_each(|record| send(FlowUpdate::Live(record)));
        }
        let sharing = &mut self.sharing;
        if sharing.walk.is_none() {
            sharing.walk = sharing.next_walk(snapshot, walks);
        }
        if !may_walk {
            return sharing.walk.is_some();
        }
        let Some(walk) = &mut sharing.walk else { return false };
        let with_nat = !walk.only_dsr && shared == SharedFlows::Nat;
        let next =
            self.flows.scan_shared(walk.cursor, SHARING_BUCKETS_PER_ITERATION, with_nat, now, |flow| {
                if walk.is_complete || !flow.is_relayed {
                    let record = record(snapshot, shared, &flow, Agreement::Presumed);
                    record.into_iter().for_each(|record| send(FlowUpdate::Live(record)));
                }
            });
        match next {
            Some(cursor) => walk.cursor = cursor,
            None => sharing.end_walk(),
        }
        sharing.walk.is_some()
    }

    /// The number of complete walks ([`Walks::complete`]) that have ended.
    #[must_use]
    pub fn walked(&self) -> u64 {
        self.sharing.walked()
    }

    /// Imports a flow, or the end of a flow, from another gateway. A flow that has had packets here doesn't change.
    pub fn adopt(&mut self, snapshot: &Snapshot, update: &FlowUpdate, now: Now) -> ImportOutcome {
        let name = update.name();
        let (vip, proto) = (name.service.vip.into(), name.service.protocol.number());
        let hash = Snapshot::hash_service(&vip, proto, name.service.port);
        let Some(service) = snapshot.service(hash, &vip, proto, name.service.port) else {
            return ImportOutcome::UnknownService;
        };
        let key = if name.is_affinity() {
            FlowKey::affinity(service.id, name.client.addr)
        } else {
            FlowKey::flow(service.id, name.client.addr, name.client.port)
        };
        let record = match update {
            FlowUpdate::Live(record) => record,
            FlowUpdate::Gone(_) => {
                self.flows.remove_adopted(&key, key.is_affinity_key() || service.mode.is_dsr());
                return ImportOutcome::Gone;
            }
        };
        let Some(info) = snapshot.service_info(service.id) else { return ImportOutcome::UnknownService };
        let endpoint = (record.backend.addr, record.backend.port);
        let Ok(at) = info.backends.binary_search_by(|backend| (backend.address, backend.port).cmp(&endpoint))
        else {
            return ImportOutcome::UnknownBackend;
        };
        self.import(snapshot, &record.with(key, info.backends[at].id), Origin::Peer, now)
    }
}

/// What other gateways probably know about a flow.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Agreement {
    /// They find the flow's backend by themselves, unless the flow is in flux.
    Presumed,
    /// One of them has reported an earlier connection of the same client port.
    Contradicted,
}

/// The record of a flow; `None` if other gateways don't need it, or can't use it.
fn record(
    snapshot: &Snapshot,
    shared: SharedFlows,
    flow: &LocalFlow,
    agreement: Agreement,
) -> Option<FlowRecord> {
    let service = snapshot.service_by_id(flow.name.service())?;
    let is_affinity = flow.name.is_affinity_key();
    let client = Endpoint { addr: flow.name.addr(), port: flow.name.port() };
    let is_agreed =
        || agreement == Agreement::Presumed && !is_in_flux(snapshot, service, &client, flow.backend);
    let is_shared = if is_affinity {
        // Only walks send affinity: in a flood from many sources, changes of affinity would displace other updates.
        service.affinity_ms != 0 && !is_agreed()
    } else if client.port == 0 || service.mode.is_dsr() != flow.translation.is_none() {
        false
    } else if service.mode.is_dsr() {
        // Services that track on change have entries only for flows that were in flux. The others share a flow only
        // once it is established, if it is in flux then.
        service.on_change() || agreement == Agreement::Contradicted || !flow.is_opening() && !is_agreed()
    } else {
        shared == SharedFlows::Nat
    };
    if !is_shared {
        return None;
    }
    let backend = snapshot.backend(flow.backend)?;
    let name = FlowName { service: snapshot.service_info(service.id)?.key, client };
    let record = flow.with(name, Endpoint { addr: backend.address, port: backend.port });
    let tags = record.tags.filter(|_| service.protocol == Protocol::Sctp);
    Some(FlowRecord { tags, idle_timeout: None, ..record })
}

/// The update for a flow that has left the table.
fn gone(snapshot: &Snapshot, shared: SharedFlows, key: &FlowKey) -> Option<FlowUpdate> {
    let service = snapshot.service_by_id(key.service())?;
    let is_shared = match service.mode.is_dsr() {
        // Affinity expires on each gateway by itself.
        _ if key.is_affinity_key() => false,
        true => service.on_change(),
        false => shared == SharedFlows::Nat,
    };
    let client = Endpoint { addr: key.addr(), port: key.port() };
    let name = FlowName { service: snapshot.service_info(service.id)?.key, client };
    is_shared.then_some(FlowUpdate::Gone(name))
}

/// Whether a gateway without an entry may send the next packet of this flow to another backend, whether or not it has
/// seen the same changes as this one. The service must track every flow.
fn is_in_flux(snapshot: &Snapshot, service: &Service, client: &Endpoint, backend: BackendId) -> bool {
    let (src, vip) = ((&client.addr, client.port), (&service.vip, service.port));
    let hash = snapshot.choice_hash(service, src, vip, service.protocol.number());
    let former = match service.protocol {
        Protocol::Tcp => on_change::former(snapshot, service, hash).map(|backend| backend.id),
        Protocol::Udp | Protocol::Sctp => None,
    };
    // While a backend warms up, a gateway that started to use it at another time may choose another one.
    let warms_up = match service.selector() {
        Selector::WarmUp(both) => both.all().owner(hash).is_some_and(|owner| both.step(owner).is_some()),
        _ => false,
    };
    service.select(hash) != Some(backend) || former.is_some_and(|former| former != backend) || warms_up
}
