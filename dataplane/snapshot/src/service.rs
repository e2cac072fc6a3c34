//! Service ports as the packet path reads them, and the table that finds one by (VIP, protocol, port).
//!
//! [`Service`] is the one cache line that a packet needs; [`ServiceInfo`] is the rest, for display. Both are at the
//! index of their [`ServiceId`]. Snapshot compilation builds them; other modules decide on the packets of a service.
//!
//! Invariant: a look-up compares the whole key, and the id of a removed service finds nothing.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use imbl::Vector;
use tidegate_conntrack::IdleTimeout;
use tidegate_select::selector::Selector;
use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::limits::FURTHER_VIPS_MAX;
use tidegate_spec::{
    BackendState, ForwardingMode, NoEndpoints, PassiveHealth, Protocol, Scheduler, ServiceKey, SynCookies,
};
use tidegate_structures::hash::key_hash;
use tidegate_structures::key_index::KeyIndex;
use tidegate_structures::table::{Table, table_len};
use tidegate_wire::Addr;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::{ProxyTlvs, VpceId};

use crate::service_limits::LimitFlags;
use crate::source_ranges::SourceRanges;

/// The data of a service port that the packet path needs: one cache line.
#[derive(Debug, Clone)]
#[repr(align(64))]
pub struct Service {
    /// The VIP.
    pub vip: Addr,
    /// Its id.
    pub id: ServiceId,
    /// `sessionAffinity: ClientIP` timeout in milliseconds, 0 for none.
    pub affinity_ms: u32,
    /// Idle time of an established flow of its protocol.
    pub idle: IdleTimeout,
    /// The position of its source ranges among the snapshot's, plus one; 0 if all clients are admitted.
    pub(crate) source_ranges: u32,
    /// The limits of its Service, and whether it rejects new flows, which packets must check.
    pub limited: LimitFlags,
    /// The port, in host order.
    pub port: u16,
    /// The limit for the segment size in SYNs, which the path may lower; with 0, SYNs stay as they are. See
    /// [`MssClamp`](tidegate_spec::MssClamp).
    pub mss_limit: u16,
    /// Transport protocol.
    pub protocol: Protocol,
    /// How packets reach the backends.
    pub mode: ForwardingMode,
    /// The answer to a client when no backend takes new flows.
    pub no_endpoints: NoEndpoints,
    /// The input of the choice of a backend.
    pub basis: ChoiceBasis,
    /// Which flows have entries, and in which table.
    pub entries: Entries,
    /// The DSCP of `dsr-dscp`, below 64; 0 with the other modes.
    pub dscp: u8,
    /// The version of the PROXY protocol whose header the backends get.
    pub proxy_protocol: Option<ProxyVersion>,
    /// The TLVs of that header.
    pub proxy_tlvs: ProxyTlvs,
    /// When its new connections are answered with SYN cookies: the choice of the Service or of the gateway. `Off` where
    /// they have no effect.
    pub syn_cookies: SynCookies,
    /// Which of its packets may take the fast path.
    pub fast_path: FastPath,
    /// Whether new flows avoid backends that refuse or ignore them: [`ServiceInfo::passive_health`] has the rules.
    pub passive: bool,
    /// One in this many of its flows is logged; 0 for none.
    pub logged: u16,
    /// The data by which the backend of a new flow is chosen.
    pub(crate) selector: Selector,
}

const _: () = assert!(size_of::<Service>() == 64);

/// Which packets of a service the fast path of the pipeline may send. Its other packets take the stages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FastPath {
    /// None.
    Off,
    /// Packets that neither start nor end a connection.
    Known,
    /// Also first packets of flows: only the hash, the client's address and SYN cookies under flood have a say.
    New,
}

/// The input of the hash that chooses a backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChoiceBasis {
    /// The 5-tuple: [`flow_selection_hash`](tidegate_structures::selection_key::flow_selection_hash).
    Flow,
    /// The client's address, with `sessionAffinity: ClientIP`, `hash: client` and `scheduler: sh`:
    /// [`client_selection_hash`](tidegate_structures::selection_key::client_selection_hash).
    Client,
    /// The VIP, hashed like a client's address, with `scheduler: dh`.
    Vip,
}

/// Which flows of a service have entries, and in which table. It follows from the mode and
/// [`FlowTracking`](tidegate_spec::FlowTracking).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Entries {
    /// Each flow, in the table of DSR flows.
    EachFlow,
    /// Flows in flux only, in the table of DSR flows (`flowTracking: on-change`).
    InFlux,
    /// Each flow, in the table of NAT flows.
    Pairs,
}

impl Service {
    /// Whether only flows in flux have entries.
    #[inline]
    #[must_use]
    pub fn on_change(&self) -> bool {
        self.entries == Entries::InFlux
    }

    /// How long a client keeps its backend after its last connection, for a service with affinity.
    #[must_use]
    pub fn affinity_timeout(&self) -> IdleTimeout {
        IdleTimeout::new(Duration::from_millis(u64::from(self.affinity_ms)))
    }

    /// The backend of a new flow with this selection hash; `None` if no backend takes new flows, or if the choice
    /// depends on the worker ([`Selector::depends_on_worker`]).
    #[inline]
    #[must_use]
    pub fn select(&self, hash: u64) -> Option<BackendId> {
        self.selector.owner(hash)
    }

    /// Prefetches the data that [`Self::select`] reads.
    #[inline]
    pub fn prefetch_choice(&self, hash: u64) {
        self.selector.prefetch(hash);
    }

    /// The data by which the backend of a new flow is chosen.
    #[must_use]
    pub fn selector(&self) -> &Selector {
        &self.selector
    }

    /// Its entry in the index.
    fn entry(&self) -> (u64, usize) {
        (key_hash(&self.vip, self.protocol.number(), self.port), self.id.index())
    }

    #[inline]
    fn is(&self, vip: &Addr, proto: u8, port: u16) -> bool {
        self.vip == *vip && self.port == port && self.protocol.number() == proto
    }
}

/// A service port for display: the data that [`Service`] omits.
#[derive(Debug, Clone, PartialEq)]
pub struct ServiceInfo {
    /// Its id.
    pub id: ServiceId,
    /// The key that packets are matched on.
    pub key: ServiceKey,
    /// Kubernetes namespace.
    pub namespace: String,
    /// Kubernetes name.
    pub name: String,
    /// Name of the port, or its number in decimal.
    pub port_name: String,
    /// How packets reach the backends.
    pub mode: ForwardingMode,
    /// How the backend of a new flow is chosen.
    pub scheduler: Scheduler,
    /// The version of the PROXY protocol whose header the backends get.
    pub proxy_protocol: Option<ProxyVersion>,
    /// The TLVs of that header.
    pub proxy_tlvs: ProxyTlvs,
    /// The text of [`ProxyTlvs::VPCE_ID`].
    pub vpce_id: VpceId,
    /// What happens when backends refuse or ignore new connections, if the mode and the protocol allow it.
    pub passive_health: Option<PassiveHealth>,
    /// The admitted clients; `None` admits all.
    pub source_ranges: Option<Arc<SourceRanges>>,
    /// The share of new flows that are rejected, in parts per million ([`Snapshot::rejects`](crate::Snapshot::rejects)).
    pub rejected_ppm: u32,
    /// The programmed backends in the order of (address, port). The index is the backend's position.
    pub backends: Box<[BackendInfo]>,
}

impl ServiceInfo {
    /// `namespace/name:port`, the spelling used by `replay`, `explain` and the tables of the CLI.
    #[must_use]
    pub fn label(&self) -> String {
        format!("{}/{}:{}", self.namespace, self.name, self.port_name)
    }
}

/// A backend for display.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendInfo {
    /// Its id.
    pub id: BackendId,
    /// Its endpoint's id.
    pub endpoint: EndpointId,
    /// Its address.
    pub address: Addr,
    /// Its port.
    pub port: u16,
    /// Configured weight.
    pub weight: u16,
    /// Which packets it may receive.
    pub state: BackendState,
}

/// Service ports, each with the other VIPs of its Service.
pub(crate) type FurtherVips = Arc<[(ServiceId, Box<[Addr]>)]>;

/// All service ports of a snapshot.
#[derive(Debug)]
pub(crate) struct Services {
    index: KeyIndex,
    /// Indexed by id. The record at a vacant index has an id of another index, so that no id matches it.
    records: Table<Service>,
    infos: Vector<Option<Arc<ServiceInfo>>>,
    /// The ids in the order of their keys.
    by_key: Arc<[ServiceId]>,
}

impl Services {
    /// Bytes of the records and of the index of this many service ports.
    pub(crate) fn bytes_for(services: usize) -> usize {
        table_len(services) * size_of::<Service>() + KeyIndex::bytes_for(services)
    }

    /// Bytes of the records and of the index.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.records) + self.index.memory_bytes()
    }

    /// A table for `indices` indices, of services in the order of their keys.
    pub(crate) fn build(indices: usize, services: Vec<(Service, ServiceInfo)>) -> Self {
        let mut records: Vec<Service> = (0..table_len(indices)).map(vacant_service).collect();
        let mut infos: Vec<Option<Arc<ServiceInfo>>> = vec![None; indices];
        let by_key: Arc<[ServiceId]> = services.iter().map(|(service, _)| service.id).collect();
        for (service, info) in services {
            let at = service.id.index();
            records[at] = service;
            infos[at] = Some(Arc::new(info));
        }
        let index = KeyIndex::build(by_key.iter().map(|id| records[id.index()].entry()));
        Self { index, records: records.into(), infos: infos.into_iter().collect(), by_key }
    }

    /// A copy for `indices` indices, without the services in `gone`, and with `revised`, which replace services of the
    /// same id or are new. `by_key` are the ids in the order of their keys.
    pub(crate) fn revised(
        &self,
        indices: usize,
        gone: &[ServiceId],
        revised: Vec<(Service, ServiceInfo)>,
        by_key: Arc<[ServiceId]>,
    ) -> Self {
        let mut infos = self.infos.clone();
        (infos.len()..indices).for_each(|_| infos.push_back(None));
        let lost: Vec<_> = gone.iter().map(|id| self.records[id.index()].entry()).collect();
        let new = revised.iter().filter(|(service, _)| self.by_id(service.id).is_none());
        let new: Vec<_> = new.map(|(service, _)| service.entry()).collect();
        let index = if lost.is_empty() && new.is_empty() {
            Some(self.index.clone())
        } else {
            self.index.edited(&lost, &new, |at| self.records[at].entry().0)
        };
        let more = self.records.len()..table_len(indices);
        let records = self.records.revised(more.map(vacant_service), |records| {
            // A new service may have the index of a removed one.
            for at in gone.iter().map(|id| id.index()) {
                records.set(at, vacant_service(at));
                infos.set(at, None);
            }
            for (service, info) in revised {
                let at = service.id.index();
                records.set(at, service);
                infos.set(at, Some(Arc::new(info)));
            }
        });
        let rebuilt = || KeyIndex::build(by_key.iter().map(|id| records[id.index()].entry()));
        let index = index.unwrap_or_else(rebuilt);
        Self { index, records, infos, by_key }
    }

    /// The ids in the order of their keys.
    pub(crate) fn by_key(&self) -> &Arc<[ServiceId]> {
        &self.by_key
    }

    /// The services that compare the loads of their backends, in the order of their keys.
    pub(crate) fn compared(&self) -> Arc<[ServiceId]> {
        let compared = self.iter().filter(|(_, info)| info.scheduler.compares_loads());
        compared.map(|(service, _)| service.id).collect()
    }

    /// For each SCTP service port in a mode that translates, the other VIPs of its Service with the same family and
    /// port, at most [`FURTHER_VIPS_MAX`]. Service ports without other VIPs are not listed. In the order of ids.
    pub(crate) fn further_vips(&self) -> FurtherVips {
        let concerns = |service: &Service| {
            service.protocol == Protocol::Sctp
                && !service.mode.is_dsr()
                && service.no_endpoints != NoEndpoints::Unserved
        };
        let mut groups: HashMap<_, Vec<&Service>> = HashMap::new();
        for (service, info) in self.iter().filter(|(service, _)| concerns(service)) {
            let same = (&info.namespace, &info.name, service.port, service.vip.is_v4());
            groups.entry(same).or_default().push(service);
        }
        let mut all: Vec<(ServiceId, Box<[Addr]>)> = Vec::new();
        for group in groups.values().filter(|group| group.len() > 1) {
            for one in group {
                let others = group.iter().filter(|other| other.id != one.id && other.mode == one.mode);
                all.push((one.id, others.map(|other| other.vip).take(FURTHER_VIPS_MAX).collect()));
            }
        }
        all.sort_unstable_by_key(|(id, _)| id.raw());
        all.into()
    }

    #[inline]
    pub(crate) fn prefetch(&self, hash: u64) {
        self.index.prefetch(hash);
    }

    #[inline]
    pub(crate) fn find(&self, hash: u64, vip: &Addr, proto: u8, port: u16) -> Option<&Service> {
        let at = self.index.find(hash, |at| self.records[at].is(vip, proto, port))?;
        Some(&self.records[at])
    }

    #[inline]
    pub(crate) fn by_id(&self, id: ServiceId) -> Option<&Service> {
        self.records.get(id.index()).filter(|service| service.id == id)
    }

    pub(crate) fn info(&self, id: ServiceId) -> Option<&ServiceInfo> {
        self.infos.get(id.index())?.as_deref().filter(|info| info.id == id)
    }

    /// The service of a key.
    pub(crate) fn at(
        &self,
        (vip, protocol, port): &(Addr, Protocol, u16),
    ) -> Option<(&Service, &ServiceInfo)> {
        let proto = protocol.number();
        let service = self.find(key_hash(vip, proto, *port), vip, proto, *port)?;
        Some((service, self.info(service.id)?))
    }

    pub(crate) fn iter(&self) -> impl ExactSizeIterator<Item = (&Service, &ServiceInfo)> {
        self.by_key.iter().map(|id| {
            let info = self.infos.get(id.index()).and_then(Option::as_deref);
            (&self.records[id.index()], info.expect("an id in the list has its service"))
        })
    }
}

/// A raw id that never occurs at `index`, because it contains an adjacent index.
pub(crate) fn vacant_raw(index: usize) -> u32 {
    BackendId::new(index ^ 1, 0).raw()
}

/// The record at an index without a service.
fn vacant_service(index: usize) -> Service {
    Service {
        vip: Addr::UNSPECIFIED,
        id: ServiceId::from_raw(vacant_raw(index)),
        affinity_ms: 0,
        idle: IdleTimeout::new(Duration::ZERO),
        source_ranges: 0,
        limited: LimitFlags::default(),
        port: 0,
        mss_limit: 0,
        protocol: Protocol::Tcp,
        mode: ForwardingMode::DsrL2,
        no_endpoints: NoEndpoints::Drop,
        basis: ChoiceBasis::Flow,
        entries: Entries::EachFlow,
        dscp: 0,
        proxy_protocol: None,
        proxy_tlvs: ProxyTlvs::NONE,
        syn_cookies: SynCookies::Off,
        fast_path: FastPath::Off,
        passive: false,
        logged: 0,
        selector: Selector::default(),
    }
}
