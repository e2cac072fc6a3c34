//! Builds the records of service ports and backends, for packets and for display.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::Duration;

use tidegate_conntrack::IdleTimeout;
use tidegate_select::loads::{LoadMember, LoadSelector};
use tidegate_select::maglev::{self, Tables};
use tidegate_select::rendezvous::{self, Identity, Rendezvous};
use tidegate_select::round_robin::RoundRobin;
use tidegate_select::selector::{SeatsInFlux, Selector, Slots};
use tidegate_select::warm_up::{self, WarmUp};
use tidegate_spec::ids::{BackendId, EndpointId, ServiceId};
use tidegate_spec::limits;
use tidegate_spec::{
    BackendState, ChoiceOptions, FlowTracking, FormerWeight, ForwardingMode, HashInput, LoadRule,
    NetworkSpec, PassiveHealth, Problem, Protocol, Scheduler, ServiceKey, ServiceLimits, ServiceSpec,
    SynCookies, WARM_UP_STEPS,
};
use tidegate_wire::Addr;
use tidegate_wire::proxy_header::ProxyVersion;
use tidegate_wire::proxy_tlvs::ProxyTlvs;

use super::services::{Programmed, Reachable};
use crate::backend::{Backend, LastStage};
use crate::service::{BackendInfo, ChoiceBasis, Entries, FastPath, Service, ServiceInfo};
use crate::service_limits::LimitFlags;
use crate::source_ranges::SourceRanges;

/// What the records of all services depend on.
pub(super) struct Common<'a> {
    pub(super) tables: &'a Tables,
    pub(super) network: &'a NetworkSpec,
}

/// The records of a service whose backends have ids: for packets and for display, and the problem of its selection, if
/// any. Appends the records of its backends to `hot`. `ranges` is the position of its source ranges, counted from 1 (0
/// if it has none), and the ranges.
pub(super) fn finish(
    service: &Programmed<'_>,
    id: ServiceId,
    named: impl Iterator<Item = (BackendId, EndpointId)>,
    ranges: (u32, Option<Arc<SourceRanges>>),
    common: &Common<'_>,
    hot: &mut Vec<Backend>,
) -> (Service, ServiceInfo, Option<Problem>) {
    let infos = backends_of(service, id, named, hot);
    let (selector, problem) = selector(service, &infos, common.tables);
    let record = hot_service(service, id, ranges.0, selector, common.network);
    (record, info(service.spec, id, ranges.1, infos), problem)
}

/// The backends of a service for display. Appends their records for packets to `hot`.
fn backends_of(
    service: &Programmed<'_>,
    id: ServiceId,
    named: impl Iterator<Item = (BackendId, EndpointId)>,
    hot: &mut Vec<Backend>,
) -> Vec<BackendInfo> {
    let named = service.backends.iter().zip(named);
    named
        .map(|(backend, (id_of_backend, endpoint))| {
            hot.push(hot_backend(service, id, backend, id_of_backend, endpoint));
            BackendInfo {
                id: id_of_backend,
                endpoint,
                address: backend.address,
                port: backend.spec.port,
                weight: backend.spec.weight,
                state: backend.spec.state,
            }
        })
        .collect()
}

/// The selector of a service. It depends only on the backends that take new flows.
fn selector(
    service: &Programmed<'_>,
    backends: &[BackendInfo],
    tables: &Tables,
) -> (Selector, Option<Problem>) {
    // In the order of (address, port), like all backends.
    let candidates: Vec<&BackendInfo> =
        backends.iter().filter(|b| b.state == BackendState::Active && b.weight > 0).collect();
    if let Some(moved) = moved(service.spec).filter(|moved| !moved.is_empty()) {
        return seats_in_flux(service, backends, &candidates, moved);
    }
    if candidates.is_empty() {
        return (Selector::default(), None);
    }
    let steps = steps(service.spec, &candidates);
    match service.spec.scheduler {
        Scheduler::WeightedRoundRobin => round_robin(service, &candidates, &steps),
        Scheduler::Loads(rule) => (loads(&candidates, &steps, rule), None),
        _ if steps.is_empty() => by_hash(service, &candidates, tables),
        _ => {
            let (all, problem) = by_hash(service, &candidates, tables);
            let is_warm = |backend: &&&BackendInfo| !steps.iter().any(|&(id, _)| id == backend.id);
            let warm: Vec<&BackendInfo> = candidates.iter().filter(is_warm).copied().collect();
            let (warm, _) = by_hash(service, &warm, tables);
            (Selector::WarmUp(Arc::new(WarmUp::new(all, warm, steps))), problem)
        }
    }
}

/// The seats or the table of a scheduler that chooses by a hash.
fn by_hash(
    service: &Programmed<'_>,
    candidates: &[&BackendInfo],
    tables: &Tables,
) -> (Selector, Option<Problem>) {
    if let Scheduler::Maglev { slots } = service.spec.scheduler {
        return maglev_table(service, candidates, slots, tables);
    }
    let (seats, problem) = seats(service, candidates);
    (Selector::Rendezvous(seats), problem)
}

/// The backends that are warming up, with their steps. Empty if no other backend takes new flows: then they share all
/// flows.
fn steps(spec: &ServiceSpec, candidates: &[&BackendInfo]) -> Vec<(BackendId, u8)> {
    if spec.choice.warming.is_empty() {
        return Vec::new();
    }
    let warming: HashMap<(Addr, u16), u8> =
        spec.choice.warming.iter().map(|one| ((one.address.into(), one.port), one.step)).collect();
    let step = |backend: &&BackendInfo| {
        let step = warming.get(&(backend.address, backend.port)).filter(|&&step| step < WARM_UP_STEPS)?;
        Some((backend.id, *step))
    };
    let steps: Vec<(BackendId, u8)> = candidates.iter().filter_map(step).collect();
    if steps.len() < candidates.len() { steps } else { Vec::new() }
}

/// The weights for round robin and for the comparison of loads.
fn weights(candidates: &[&BackendInfo], steps: &[(BackendId, u8)]) -> Vec<u16> {
    if steps.is_empty() {
        return candidates.iter().map(|backend| backend.weight).collect();
    }
    let steps: HashMap<BackendId, u8> = steps.iter().copied().collect();
    let weights: Vec<_> =
        candidates.iter().map(|backend| (backend.weight, steps.get(&backend.id).copied())).collect();
    warm_up::scaled(&weights)
}

/// The input of the choice.
fn basis(spec: &ServiceSpec) -> ChoiceBasis {
    match spec.scheduler {
        Scheduler::DestinationHash => ChoiceBasis::Vip,
        Scheduler::SourceHash => ChoiceBasis::Client,
        _ if spec.affinity.is_some() || spec.choice.hash == HashInput::Client => ChoiceBasis::Client,
        _ => ChoiceBasis::Flow,
    }
}

/// The round-robin ring.
fn round_robin(
    service: &Programmed<'_>,
    candidates: &[&BackendInfo],
    steps: &[(BackendId, u8)],
) -> (Selector, Option<Problem>) {
    let weights = weights(candidates, steps);
    let members: Vec<_> =
        candidates.iter().zip(weights).map(|(backend, weight)| (backend.id, weight)).collect();
    let built = RoundRobin::build(&members);
    // A warm-up scales the weights temporarily, so the resulting divisor is not reported.
    let divisor = if steps.is_empty() { built.divisor } else { 1 };
    let problem = divided(service, candidates, divisor, limits::WRR_RING_MAX);
    (Selector::RoundRobin(Arc::new(built.ring)), problem)
}

/// The backends whose loads are compared.
fn loads(candidates: &[&BackendInfo], steps: &[(BackendId, u8)], rule: LoadRule) -> Selector {
    let weights = weights(candidates, steps);
    let members =
        candidates.iter().zip(weights).map(|(backend, weight)| LoadMember { owner: backend.id, weight });
    Selector::Loads(Arc::new(LoadSelector { rule, members: members.collect() }))
}

/// The problem to report if the weights of a service were divided.
fn divided(
    service: &Programmed<'_>,
    candidates: &[&BackendInfo],
    divisor: u32,
    max: usize,
) -> Option<Problem> {
    (divisor > 1).then(|| Problem::WeightsDivided {
        service: service.spec.key,
        label: service.spec.label(),
        sum: candidates.iter().map(|backend| u64::from(backend.weight)).sum(),
        max,
        divisor,
    })
}

/// Seats by rendezvous. If the client or the VIP alone determines the choice, ports don't count, so that a client
/// reaches the same backend on all ports of a Service.
fn seats(service: &Programmed<'_>, candidates: &[&BackendInfo]) -> (Rendezvous, Option<Problem>) {
    let protocol = service.spec.key.protocol.number();
    let by_address = basis(service.spec) != ChoiceBasis::Flow;
    let mut before: Option<(Addr, u32)> = None;
    let mut identity = |backend: &BackendInfo| {
        if !by_address {
            return Identity::of_port(backend.address, backend.port, protocol);
        }
        let occurrence = before.filter(|&(address, _)| address == backend.address).map_or(0, |(_, n)| n + 1);
        before = Some((backend.address, occurrence));
        Identity::of_address(backend.address, occurrence)
    };
    let member = |backend: &&BackendInfo| rendezvous::Member {
        identity: identity(backend),
        weight: backend.weight,
        owner: backend.id,
    };
    let members: Vec<_> = candidates.iter().map(member).collect();
    let built = Rendezvous::build(&members);
    let problem = divided(service, candidates, built.divisor, limits::RENDEZVOUS_SEATS_MAX);
    (built.rendezvous, problem)
}

/// The backends with a recently changed weight, if packets without an entry may belong to a former owner; otherwise
/// `None`.
fn moved(spec: &ServiceSpec) -> Option<&[FormerWeight]> {
    let can = spec.mode.is_dsr()
        && spec.scheduler == Scheduler::Rendezvous
        && spec.affinity.is_none()
        && matches!(spec.key.protocol, Protocol::Tcp | Protocol::Udp);
    match &spec.flow_tracking {
        FlowTracking::OnChange(moved) | FlowTracking::AlwaysAfter(moved) if can => Some(moved),
        FlowTracking::OnChange(_) | FlowTracking::AlwaysAfter(_) | FlowTracking::Always => None,
    }
}

/// Whether flows of a service that tracks on change need no entry. Logged flows need one, and a known flow must differ
/// from a new one if a share of the new ones is rejected.
fn may_be_untracked(spec: &ServiceSpec) -> bool {
    moved(spec).is_some() && spec.flow_log.is_none() && spec.rejected_ppm == 0
}

/// The seats by the current and by the former weights. Former seats follow from addresses and weights alone. They
/// include backends that this gateway no longer knows, because other gateways may still know them and must choose
/// alike.
fn seats_in_flux(
    service: &Programmed<'_>,
    backends: &[BackendInfo],
    candidates: &[&BackendInfo],
    moved: &[FormerWeight],
) -> (Selector, Option<Problem>) {
    let address_and_port = |backend: &BackendInfo| (backend.address, backend.port);
    let former: BTreeMap<(Addr, u16), u16> =
        moved.iter().map(|one| ((one.address.into(), one.port), one.weight)).collect();
    let weight = |backend: &BackendInfo| {
        let present = if backend.state == BackendState::Active { backend.weight } else { 0 };
        former.get(&address_and_port(backend)).copied().unwrap_or(present)
    };
    let known = backends.iter().map(|backend| BackendInfo { weight: weight(backend), ..*backend });
    let is_unknown =
        |at: &(Addr, u16)| backends.binary_search_by(|known| address_and_port(known).cmp(at)).is_err();
    let unknown = former.iter().filter(|(at, _)| is_unknown(at)).map(|(&(address, port), &weight)| {
        let (id, endpoint) = (BackendId::ABSENT, EndpointId::from_raw(u32::MAX));
        BackendInfo { id, endpoint, address, port, weight, state: BackendState::Down }
    });
    let mut then: Vec<BackendInfo> = known.chain(unknown).filter(|backend| backend.weight > 0).collect();
    then.sort_unstable_by_key(address_and_port);
    let then: Vec<&BackendInfo> = then.iter().collect();
    let (present, problem) = seats(service, candidates);
    let (former, _) = seats(service, &then);
    let both = SeatsInFlux { present, former };
    (Selector::InFlux(Arc::new(both)), problem)
}

/// The Maglev table, shared by all services with equal backends.
fn maglev_table(
    service: &Programmed<'_>,
    candidates: &[&BackendInfo],
    slots: u32,
    tables: &Tables,
) -> (Selector, Option<Problem>) {
    let member = |backend: &&BackendInfo| maglev::Member { address: backend.address, weight: backend.weight };
    let table = tables.table(candidates.iter().map(member).collect(), slots);
    let problem = ((slots as usize) < candidates.len()).then(|| Problem::TableTooSmall {
        service: service.spec.key,
        label: service.spec.label(),
        slots,
        backends: candidates.len(),
    });
    let owners = candidates.iter().map(|backend| backend.id).collect();
    (Selector::Maglev(Arc::new(Slots::new(table, owners))), problem)
}

fn hot_backend(
    service: &Programmed<'_>,
    service_id: ServiceId,
    backend: &Reachable<'_>,
    id: BackendId,
    endpoint: EndpointId,
) -> Backend {
    Backend {
        address: backend.address,
        id,
        service: service_id,
        endpoint,
        neighbor: backend.neighbor,
        port: backend.spec.port,
        interface: backend.interface,
        family: backend.address.family(),
        state: backend.spec.state,
        mode: service.spec.mode,
        protocol: service.spec.key.protocol,
        encapsulation: service.spec.mode.encapsulation(&service.spec.tunnel),
        last_stage: last_stage(service.spec),
    }
}

fn last_stage(spec: &ServiceSpec) -> LastStage {
    let is_plain = spec.limits.bandwidth.is_none();
    match spec.mode {
        ForwardingMode::DsrL2 if is_plain => LastStage::Link,
        ForwardingMode::DsrIpip if is_plain && spec.mss_clamp.limit() == 0 => LastStage::IpInIp,
        mode if mode.is_dsr() => LastStage::Checks,
        _ => LastStage::Translation,
    }
}

fn hot_service(
    service: &Programmed<'_>,
    id: ServiceId,
    source_ranges: u32,
    selector: Selector,
    network: &NetworkSpec,
) -> Service {
    Service {
        vip: service.vip,
        id,
        affinity_ms: service.spec.affinity.map_or(0, |timeout| millis(timeout).max(1)),
        idle: IdleTimeout::new(match service.spec.key.protocol {
            Protocol::Tcp => service.spec.idle_timeout_tcp,
            Protocol::Udp => service.spec.idle_timeout_udp,
            Protocol::Sctp => service.spec.idle_timeout_sctp,
        }),
        source_ranges,
        limited: LimitFlags::new(service.spec),
        port: service.spec.key.port,
        mss_limit: service.spec.mss_clamp.limit(),
        protocol: service.spec.key.protocol,
        mode: service.spec.mode,
        no_endpoints: service.spec.no_endpoints,
        basis: basis(service.spec),
        entries: match service.spec.flow_tracking {
            _ if !service.spec.mode.is_dsr() => Entries::Pairs,
            FlowTracking::OnChange(_) if may_be_untracked(service.spec) => Entries::InFlux,
            _ => Entries::EachFlow,
        },
        dscp: if service.spec.mode == ForwardingMode::DsrDscp { service.spec.tunnel.dscp & 0x3f } else { 0 },
        proxy_protocol: proxy_protocol(service.spec),
        proxy_tlvs: proxy_tlvs(service.spec),
        syn_cookies: syn_cookies(service.spec, network),
        fast_path: fast_path(service.spec, network),
        passive: passive_health(service.spec).is_some(),
        logged: service.spec.flow_log.map_or(0, NonZeroU16::get),
        selector,
    }
}

/// Which packets of a service may take the fast path. The pattern is complete: a new option doesn't compile until
/// somebody decides whether the fast path (`pipeline/fast_path`) treats its packets like the stages. If it doesn't, the
/// option must be named here, and the property test of the pipeline (`tests/fast_path`) must set it.
fn fast_path(spec: &ServiceSpec, network: &NetworkSpec) -> FastPath {
    let ServiceSpec {
        key: ServiceKey { vip: _, protocol, port: _ },
        mode,
        scheduler,
        affinity,
        mss_clamp,
        limits: ServiceLimits { connections, connection_rate, bandwidth },
        proxy_protocol: _,
        rejected_ppm,
        flow_log,
        syn_cookies: _,
        // New flows take the fast path only while no backend has failed.
        passive_health: _,
        // They are in the records, which both forms of the pipeline read: the encapsulation, the hash and the selector,
        // which entries a flow has, its timeout, and the clients.
        tunnel: _,
        choice: ChoiceOptions { hash: _, warming: _ },
        flow_tracking: _,
        idle_timeout_tcp: _,
        idle_timeout_udp: _,
        idle_timeout_sctp: _,
        source_ranges: _,
        backends: _,
        // It has an effect only if no backend takes new flows. Then the fast path creates none.
        no_endpoints: _,
        // They have an effect only with the PROXY protocol.
        proxy_tlvs: _,
        vpce_id: _,
        // They have no effect on the packets of a flow.
        namespace: _,
        name: _,
        port_name: _,
        layer2: _,
    } = spec;
    let is_known_only_to_stages = bandwidth.is_some()
        || proxy_protocol(spec).is_some()
        || *mode == ForwardingMode::DsrDscp
        || *protocol == Protocol::Sctp
        || flow_log.is_some();
    if is_known_only_to_stages {
        return FastPath::Off;
    }
    let is_by_hash = match scheduler {
        Scheduler::Rendezvous | Scheduler::SourceHash | Scheduler::DestinationHash => affinity.is_none(),
        Scheduler::Maglev { .. } | Scheduler::WeightedRoundRobin | Scheduler::Loads(_) => false,
    };
    let is_limited = connections.is_some() || connection_rate.is_some() || network.source_rate.is_some();
    let changes_syns = *protocol == Protocol::Tcp
        && (mss_clamp.limit() > 0 || syn_cookies(spec, network) == SynCookies::Always);
    if is_by_hash && !is_limited && !changes_syns && *rejected_ppm == 0 {
        FastPath::New
    } else {
        FastPath::Known
    }
}

/// When new connections are answered with SYN cookies, where that has an effect.
fn syn_cookies(spec: &ServiceSpec, network: &NetworkSpec) -> SynCookies {
    let can = !spec.mode.is_dsr() && spec.key.protocol == Protocol::Tcp;
    if can { spec.syn_cookies.unwrap_or(network.policy.syn_cookies) } else { SynCookies::Off }
}

fn info(
    spec: &ServiceSpec,
    id: ServiceId,
    source_ranges: Option<Arc<SourceRanges>>,
    backends: Vec<BackendInfo>,
) -> ServiceInfo {
    ServiceInfo {
        id,
        key: spec.key,
        namespace: spec.namespace.clone(),
        name: spec.name.clone(),
        port_name: spec.port_name.clone(),
        mode: spec.mode,
        scheduler: spec.scheduler,
        proxy_protocol: spec.proxy_protocol,
        proxy_tlvs: proxy_tlvs(spec),
        vpce_id: spec.vpce_id,
        passive_health: passive_health(spec),
        source_ranges,
        rejected_ppm: spec.rejected_ppm,
        backends: backends.into(),
    }
}

/// The version of the PROXY protocol, where it has an effect. The option TOA is for TCP, and backends of `nat` see the
/// client's address anyway.
fn proxy_protocol(spec: &ServiceSpec) -> Option<ProxyVersion> {
    spec.proxy_protocol.filter(|version| match version {
        ProxyVersion::V1 | ProxyVersion::V2 => !spec.mode.is_dsr(),
        ProxyVersion::Toa => spec.mode == ForwardingMode::FullNat && spec.key.protocol == Protocol::Tcp,
    })
}

/// The TLVs of the header, where they have an effect: version 1 has none, and a datagram belongs to no connection.
fn proxy_tlvs(spec: &ServiceSpec) -> ProxyTlvs {
    match (spec.proxy_protocol, spec.key.protocol) {
        _ if spec.mode.is_dsr() => ProxyTlvs::NONE,
        (Some(ProxyVersion::V2), Protocol::Tcp) => spec.proxy_tlvs,
        (Some(ProxyVersion::V2), Protocol::Udp) => spec.proxy_tlvs.without(ProxyTlvs::UNIQUE_ID),
        _ => ProxyTlvs::NONE,
    }
}

/// The rules of passive health, where they have an effect: the gateway sees the answers, and another backend exists.
fn passive_health(spec: &ServiceSpec) -> Option<PassiveHealth> {
    let candidates = spec.backends.iter().filter(|one| one.state == BackendState::Active && one.weight > 0);
    let can = !spec.mode.is_dsr() && spec.key.protocol == Protocol::Tcp && candidates.take(2).count() > 1;
    spec.passive_health.filter(|rules| can && rules.is_on())
}

/// Whole milliseconds, below 2^31: ages are differences modulo 2^32.
fn millis(duration: Duration) -> u32 {
    u32::try_from(duration.as_millis()).unwrap_or(u32::MAX).min(i32::MAX as u32)
}
