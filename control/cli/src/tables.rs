//! Formats every response as a table for people. Scripts use `-o json`, which prints the response itself.
//!
//! Headers and cells follow kubectl: upper case, `<pending>`, `<none>`, ages like `3m20s`. Each answer has one
//! function. This module does not query the daemon.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use jiff::Timestamp;
use tidegate_admin_api::{
    BackendRow, BackendViewState, BackendWhy, FlowRow, FlowRowKind, FlowsAnswer, HealthState, HealthView,
    PoolView, PortView, ServiceView,
};
use tidegate_model::objects::ServiceType;
use tidegate_policy::reconcile::DrainTarget;
use tidegate_policy::reconcile::view::{EdgeView, VipView};

use super::output::{Table, age};

/// The table of `services`. Ages are counted up to `now`.
#[must_use]
pub fn services(services: &[&ServiceView], now: Timestamp) -> Table {
    let headers = [
        "NAMESPACE",
        "NAME",
        "TYPE",
        "VIP",
        "PORT(S)",
        "MODE",
        "BACKENDS",
        "STATUS",
        "SINCE",
        "AGE",
        "+POOL",
        "+ANNOUNCED",
        "+MESSAGE",
    ];
    let mut table = Table::new(&headers);
    for service in services {
        let vips: Vec<String> = service.vips.iter().map(|v| v.address.to_string()).collect();
        let pools = service.vips.iter().map(|vip| vip.pool.as_str());
        let pools: BTreeSet<&str> = pools.filter(|pool| !pool.is_empty()).collect();
        let modes: BTreeSet<&str> = service.ports.iter().map(|p| p.mode.as_str()).collect();
        let ports: BTreeSet<(u16, &str)> =
            service.ports.iter().map(|p| (p.port, p.protocol.as_str())).collect();
        let ports: Vec<String> = ports.iter().map(|(port, protocol)| format!("{port}/{protocol}")).collect();
        let waits = service.pending.is_some();
        let vip = match (vips.is_empty(), waits) {
            (true, true) => "<pending>".to_owned(),
            (false, true) => format!("{},<pending>", vips.join(",")),
            _ => vips.join(","),
        };
        table.row([
            service.namespace.clone(),
            service.name.clone(),
            service.service_type.map_or("", ServiceType::as_str).to_owned(),
            vip,
            ports.join(","),
            modes.into_iter().collect::<Vec<_>>().join(","),
            backends_of(service),
            state_of(service).to_owned(),
            age_of(service.since.as_deref(), now),
            age_of(service.created.as_deref(), now),
            pools.into_iter().collect::<Vec<_>>().join(","),
            announced(service),
            message_of(service),
        ]);
    }
    table
}

/// How this gateway announces the addresses of a Service: `l2,bgp`, or `other-group` if their pools select other
/// gateways.
fn announced(service: &ServiceView) -> String {
    let of_pools = service.vips.iter().filter(|vip| vip.is_of_pool());
    let methods: BTreeSet<String> = of_pools.map(announcement).collect();
    methods.into_iter().collect::<Vec<_>>().join("; ")
}

/// How this gateway announces one address, and who owns it on layer 2.
pub(super) fn announcement(vip: &VipView) -> String {
    let EdgeView { outside_group, layer2, bgp, owner, owned_by, unable } = &vip.edge;
    let l2 = match (owner, owned_by) {
        (None, _) if unable.is_some() => "l2 unable".to_owned(),
        (None, _) => "l2".to_owned(),
        (Some(_), Some(by)) => format!("l2 by {by}"),
        (Some(_), None) => "l2 by nobody".to_owned(),
    };
    let methods: Vec<String> =
        layer2.then_some(l2).into_iter().chain(bgp.then(|| "bgp".to_owned())).collect();
    match (outside_group, methods.is_empty()) {
        (true, _) => "other-group".to_owned(),
        (false, true) => "<none>".to_owned(),
        (false, false) => methods.join(","),
    }
}

/// The number of distinct backends that accept new flows, and the number of all distinct backends.
fn backends_of(service: &ServiceView) -> String {
    let all = service.ports.iter().flat_map(|p| &p.backends);
    let distinct: BTreeSet<(SocketAddr, bool)> =
        all.map(|b| (SocketAddr::new(b.address, b.port), b.state == BackendViewState::Active)).collect();
    let active = distinct.iter().filter(|(_, active)| *active).count();
    let all: BTreeSet<SocketAddr> = distinct.iter().map(|(address, _)| *address).collect();
    format!("{active}/{}", all.len())
}

pub(super) fn state_of(service: &ServiceView) -> &'static str {
    let refused = service.ports.iter().filter(|p| p.refused.is_some()).count();
    match (&service.pending, refused) {
        _ if service.refused.is_some() => "Refused",
        _ if service.unapplied.is_some() => "NotApplied",
        (Some(_), _) if service.vips.is_empty() => "Pending",
        (_, n) if n > 0 && n == service.ports.len() => "Refused",
        (Some(_), _) | (None, 1..) => "Partial",
        _ if has_no_next_hop(service) => "Partial",
        (None, 0) => "Programmed",
    }
}

/// Whether a backend should serve but no worker has it.
fn has_no_next_hop(service: &ServiceView) -> bool {
    service.ports.iter().flat_map(|port| &port.backends).any(|one| one.why == BackendWhy::NoNextHop)
}

/// The time since then, if it is known.
pub(super) fn age_of(time: Option<&str>, now: Timestamp) -> String {
    let time = time.and_then(|text| text.parse::<Timestamp>().ok());
    let seconds = time.map(|at| u64::try_from(now.as_second() - at.as_second()).unwrap_or(0));
    seconds.map_or_else(|| "<unknown>".to_owned(), age)
}

fn message_of(service: &ServiceView) -> String {
    let refused = |p: &PortView| p.refused.as_ref().map(|why| format!("{}/{}: {why}", p.port, p.protocol));
    let note = |p: &PortView| p.note.as_ref().map(|why| format!("{}/{}: {why}", p.port, p.protocol));
    let of_ports: BTreeSet<String> =
        service.ports.iter().flat_map(|port| refused(port).into_iter().chain(note(port))).collect();
    let whole = service.refused.iter().chain(&service.unapplied).chain(&service.pending);
    whole.chain(&service.warnings).cloned().chain(of_ports).collect::<Vec<_>>().join("; ")
}

/// The table of `backends`. Ages are counted up to `now`.
#[must_use]
pub fn backends(rows: &[&BackendRow], now: Timestamp) -> Table {
    let headers = [
        "NAMESPACE",
        "SERVICE",
        "PORT",
        "VIP",
        "BACKEND",
        "STATE",
        "REASON",
        "SINCE",
        "WEIGHT",
        "CONNECTIONS",
        "+ACTIVE",
        "+PACKETS",
        "+BYTES",
        "+HEALTH",
        "+NODE",
        "+ZONE",
        "+POD",
        "+WARM-UP",
        "+SET-ASIDE",
        "+PATH-MTU",
    ];
    let mut table = Table::new(&headers);
    for row in rows {
        let backend = &row.backend;
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let number = |value: Option<u64>| value.map_or_else(String::new, |n| n.to_string());
        table.row([
            row.namespace.clone(),
            row.service.clone(),
            format!("{}/{}", row.service_port, row.protocol),
            row.vip.to_string(),
            SocketAddr::new(backend.address, backend.port).to_string(),
            state(backend.state).to_owned(),
            why(backend.why).to_owned(),
            age_of(row.since.as_deref(), now),
            backend.weight.to_string(),
            number(row.forwarding.connections),
            number(row.forwarding.active),
            number(row.forwarding.packets),
            number(row.forwarding.bytes),
            health(&backend.health),
            text(&backend.node),
            text(&backend.zone),
            text(&backend.pod),
            backend.warm_up_percent.map_or_else(String::new, |percent| format!("{percent}%")),
            row.forwarding.set_aside_workers.map_or_else(String::new, |workers| workers.to_string()),
            number(row.forwarding.path_mtu.map(u64::from)),
        ]);
    }
    table
}

pub(super) fn state(state: BackendViewState) -> &'static str {
    match state {
        BackendViewState::Active => "Active",
        BackendViewState::Draining => "Draining",
        BackendViewState::Down => "Down",
    }
}

fn why(why: BackendWhy) -> &'static str {
    match why {
        BackendWhy::Ready => "Ready",
        BackendWhy::TerminatingChosen => "TerminatingChosen",
        BackendWhy::Terminating => "Terminating",
        BackendWhy::NotReady => "NotReady",
        BackendWhy::Unhealthy => "Unhealthy",
        BackendWhy::FailOpen => "FailOpen",
        BackendWhy::Drained => "Drained",
        BackendWhy::WeightZero => "WeightZero",
        BackendWhy::OtherZone => "OtherZone",
        BackendWhy::OtherNode => "OtherNode",
        BackendWhy::Removed => "Removed",
        BackendWhy::NoNextHop => "NoNextHop",
    }
}

/// The health of a backend: `Passing`, or `Failing: connection refused, damped x4`. Empty if there are no checks.
fn health(health: &HealthView) -> String {
    let state = match (health.state, &health.failure) {
        (HealthState::Unchecked, _) => return String::new(),
        (HealthState::Passing, _) => "Passing".to_owned(),
        (HealthState::Failing, None) => "Failing".to_owned(),
        (HealthState::Failing, Some(why)) => format!("Failing: {why}"),
    };
    match health.damping {
        0 => state,
        level => format!("{state}, damped x{}", 1_u32 << level.min(31)),
    }
}

/// The table of `flows`, with one line for each flow. `has_bytes` adds what was counted of each.
pub(super) fn flows(rows: &[&FlowRow], has_bytes: bool) -> Table {
    let counts: &[&str] = if has_bytes { &["BYTES", "+PACKETS"] } else { &[] };
    let headers = [
        "NAMESPACE",
        "SERVICE",
        "PROTOCOL",
        "CLIENT",
        "VIP",
        "BACKEND",
        "STATE",
        "IDLE",
        "+PORT",
        "+MODE",
        "+KIND",
        "+SOURCE",
    ];
    let mut table = Table::new(&[&headers, counts].concat());
    for row in rows {
        let count = |n: Option<u64>| n.map_or_else(|| "<unknown>".to_owned(), |n| n.to_string());
        let counts = has_bytes.then(|| [count(row.bytes), count(row.packets)]);
        let address = |address: Option<SocketAddr>, none: &str| {
            address.map_or_else(|| none.to_owned(), |address| address.to_string())
        };
        let is_masqueraded = row.kind == FlowRowKind::Masquerade;
        let name = |name: &str, none: &str| if is_masqueraded { none.to_owned() } else { name.to_owned() };
        let cells = [
            name(&row.namespace, "<none>"),
            name(&row.service, "<masquerade>"),
            row.protocol.clone(),
            match row.kind {
                FlowRowKind::Affinity => row.client.ip().to_string(),
                FlowRowKind::Dsr | FlowRowKind::Masquerade | FlowRowKind::Nat => row.client.to_string(),
            },
            row.vip.to_string(),
            address(row.backend, if is_masqueraded { "<none>" } else { "<gone>" }),
            row.state.clone(),
            age(row.idle_seconds.into()),
            name(&row.port_name, "<none>"),
            row.mode.clone(),
            row.kind.as_str().to_owned(),
            address(row.source, "<none>"),
        ];
        table.row(cells.into_iter().chain(counts.into_iter().flatten()));
    }
    table
}

/// The table of `flows --count`, with one line for each worker. The numbers of evicted flows, by reason, are only in
/// the data formats and the metrics.
pub(super) fn flow_counts(answer: &FlowsAnswer) -> Table {
    let mut table = Table::new(&["WORKER", "FLOWS", "CAPACITY", "USED"]);
    for worker in &answer.workers {
        let used = 100.0 * worker.flows as f64 / worker.capacity.max(1) as f64;
        table.row([
            worker.worker.to_string(),
            worker.flows.to_string(),
            worker.capacity.to_string(),
            format!("{used:.1}%"),
        ]);
    }
    table
}

/// The table of `pools`.
#[must_use]
pub fn pools(pools: &[&PoolView]) -> Table {
    let mut table = Table::new(&[
        "NAME",
        "TOTAL",
        "ASSIGNED",
        "FREE",
        "STATUS",
        "+OBJECT",
        "+OUTSIDE",
        "+GATEWAYS",
        "+ANNOUNCE",
        "+IN USE BY",
    ]);
    for pool in pools {
        let named = pool.some_users.join(", ");
        let in_use_by = match pool.users.saturating_sub(pool.some_users.len()) {
            0 => named,
            more => format!("{named} and {more} more"),
        };
        let PoolView { name, total, assigned, free, .. } = pool;
        table.row([
            name.clone(),
            total.to_string(),
            assigned.to_string(),
            free.to_string(),
            pool_state(pool).to_owned(),
            pool.object.clone().unwrap_or_default(),
            pool.outside.to_string(),
            if pool.gateways.is_empty() { "<all>".to_owned() } else { pool.gateways.clone() },
            if pool.announce.is_empty() { "<none>".to_owned() } else { pool.announce.join(",") },
            in_use_by,
        ]);
    }
    table
}

pub(super) fn pool_state(pool: &PoolView) -> &'static str {
    match (pool.removed, pool.disabled, pool.free) {
        (true, ..) => "RemovedInUse",
        (false, true, _) => "Disabled",
        (false, false, 0) => "Full",
        (false, false, _) => "Available",
    }
}

/// The output line of `drain` and `undrain`, in the format of kubectl.
pub(super) fn drained(target: &DrainTarget, done: &str, backends: usize) -> String {
    let kind = match target {
        DrainTarget::Backend(..) => "backend",
        DrainTarget::Node(_) => "node",
    };
    match backends {
        0 => format!("{kind}/{target} {done} (currently no backend of any Service)"),
        1 => format!("{kind}/{target} {done} (1 backend of a service port)"),
        n => format!("{kind}/{target} {done} ({n} backends of service ports)"),
    }
}
