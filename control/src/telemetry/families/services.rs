//! The families of Services: traffic, limits, backends, local ports and health checks.
//!
//! Invariant: no series depends on the VIPs of a Service, which are summed.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tidegate_dataplane::gateway::{BackendFlowStats, ServiceStats};
use tidegate_policy::reconcile::view::{BackendViewState, PortView, ServiceView};
use tidegate_snapshot::counters::{Direction, Traffic};
use tidegate_snapshot::service_limits::{LimitDrop, LimitedService};
use tidegate_spec::ForwardingMode;
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::SNAT_PORT_MIN;

use crate::telemetry::exposition::{Exposition, Labels};
use crate::telemetry::sample::Sample;
use crate::telemetry::series_limit::WithoutSeries;

/// The labels of a service port's series, which are independent of its VIPs.
type PortKey<'a> = [&'a str; 4];

const PORT_LABELS: [&str; 4] = ["namespace", "service", "port", "protocol"];
const BACKEND_LABELS: [&str; 5] = ["namespace", "service", "port", "protocol", "backend"];

fn port_key(stats: &ServiceStats) -> PortKey<'_> {
    [&stats.namespace, &stats.name, &stats.port_name, stats.key.protocol.as_str()]
}

fn view_key<'a>(service: &'a ServiceView, port: &'a PortView) -> PortKey<'a> {
    [&service.namespace, &service.name, &port.name, port.protocol.as_str()]
}

/// The traffic of each direction that passes through the gateway. Replies of the DSR modes don't: a series that stays 0
/// would look like silence.
fn directions(mode: ForwardingMode, traffic: [Traffic; 2]) -> impl Iterator<Item = (&'static str, Traffic)> {
    let all = Direction::ALL.into_iter().zip(traffic);
    let passing = all.filter(move |&(direction, _)| !mode.is_dsr() || direction == Direction::Request);
    passing.map(|(direction, traffic)| (direction.as_str(), traffic))
}

/// Services.
pub(in crate::telemetry) fn services(page: &mut Exposition, stats: &[ServiceStats]) {
    let mut ports: BTreeMap<(PortKey<'_>, &str), Traffic> = BTreeMap::new();
    for one in stats {
        for (direction, traffic) in directions(one.mode, one.traffic) {
            ports.entry((port_key(one), direction)).or_default().add(traffic);
        }
    }
    let labels = ["namespace", "service", "port", "protocol", "direction"];
    let help = "Packets forwarded for the service port over all its VIPs, by direction (request, reply); the DSR \
                modes have no reply series, because replies bypass the gateway.";
    let mut family = page.counter("tidegate_service_packets_total", help, labels);
    for (([namespace, service, port, protocol], direction), traffic) in &ports {
        family.sample([namespace, service, port, protocol, direction], traffic.packets);
    }
    let help = "Bytes of the IP packets forwarded for the service port over all its VIPs, by direction (request, \
                reply); the DSR modes have no reply series, because replies bypass the gateway.";
    let mut family = page.counter("tidegate_service_bytes_total", help, labels);
    for (([namespace, service, port, protocol], direction), traffic) in &ports {
        family.sample([namespace, service, port, protocol, direction], traffic.bytes);
    }
}

/// Services with limits.
pub(in crate::telemetry) fn limits(page: &mut Exposition, limited: &[LimitedService]) {
    let help = "Packets dropped by a limit of the Service, by reason; counted since the Service got its first \
                annotation max-connections, max-connection-rate or max-bandwidth.";
    let mut family =
        page.counter("tidegate_service_limit_drops_total", help, ["namespace", "service", "reason"]);
    for one in limited {
        for by in LimitDrop::ALL {
            family.sample([one.namespace(), one.name(), by.refusal().as_str()], one.drops(by));
        }
    }
    let counted = || limited.iter().filter_map(|one| Some((one, one.limits().connections?)));
    let help = "Flows of the Service, for each Service with the annotation max-connections.";
    let mut family = page.gauge("tidegate_service_connections", help, ["namespace", "service"]);
    for (one, _) in counted() {
        family.sample([one.namespace(), one.name()], one.connections());
    }
    let help = "The value of the annotation max-connections of the Service.";
    let mut family = page.gauge("tidegate_service_connections_max", help, ["namespace", "service"]);
    for (one, max) in counted() {
        family.sample([one.namespace(), one.name()], u64::from(max.get()));
    }
}

/// Properties of service ports.
pub(in crate::telemetry) fn service_info(page: &mut Exposition, services: &[Arc<ServiceView>]) {
    let mut ports: BTreeMap<PortKey<'_>, &str> = BTreeMap::new();
    for service in services {
        for port in &service.ports {
            let Some(app_protocol) = &port.app_protocol else { continue };
            let key = view_key(service, port);
            ports.insert(key, app_protocol);
        }
    }
    let help =
        "Always 1, for each service port that has an appProtocol; the label app_protocol is its value.";
    let labels = ["namespace", "service", "port", "protocol", "app_protocol"];
    let mut family = page.gauge("tidegate_service_info", help, labels);
    for ([namespace, service, port, protocol], app_protocol) in &ports {
        family.sample([namespace, service, port, protocol, app_protocol], true);
    }
}

/// The backends of service ports, over the VIPs of each Service.
type Backends<'a> = BTreeMap<PortKey<'a>, BTreeMap<SocketAddr, Backend>>;

struct Backend {
    labels: Labels,
    /// `None` if the published snapshot doesn't have the backend.
    counts: Option<Counts>,
    /// `None` if the last round doesn't have the backend.
    state: Option<State>,
}

struct Counts {
    mode: ForwardingMode,
    traffic: [Traffic; 2],
    connections: u64,
    set_aside: u64,
    established: u64,
    /// Local ports in use, by SNAT address and state of their flow.
    local_ports: BTreeMap<(IpAddr, &'static str), u64>,
}

#[derive(Default)]
struct State {
    is_up: bool,
    warm_up_percent: Option<u8>,
}

fn backend<'b, 'a>(
    backends: &'b mut Backends<'a>,
    port: PortKey<'a>,
    address: SocketAddr,
) -> &'b mut Backend {
    backends.entry(port).or_default().entry(address).or_insert_with(|| {
        let [namespace, service, name, protocol] = port;
        let values = [namespace, service, name, protocol, &address.to_string()];
        Backend { labels: Labels::new(BACKEND_LABELS, values), counts: None, state: None }
    })
}

/// Collects the counts of backends.
fn add_counts<'a>(
    backends: &mut Backends<'a>,
    stats: &'a [ServiceStats],
    flows: &[BackendFlowStats],
    without_series: &WithoutSeries<'_>,
) {
    // A Service with several VIPs has a separate backend for each.
    let mut by_id: HashMap<BackendId, (PortKey<'_>, SocketAddr)> = HashMap::new();
    for port in stats.iter().filter(|port| !without_series.has(&port.namespace, &port.name)) {
        for one in &port.backends {
            let address = SocketAddr::new(one.address.ip(), one.port);
            let counts = backend(backends, port_key(port), address).counts.get_or_insert_with(|| Counts {
                mode: port.mode,
                traffic: Default::default(),
                connections: 0,
                set_aside: 0,
                established: 0,
                local_ports: BTreeMap::new(),
            });
            counts.traffic.iter_mut().zip(one.traffic).for_each(|(sum, traffic)| sum.add(traffic));
            counts.connections += one.connections;
            counts.set_aside += one.set_aside as u64;
            by_id.insert(one.id, (port_key(port), address));
        }
    }
    for one in flows {
        let Some(&(port, address)) = by_id.get(&one.backend) else { continue };
        let Some(counts) = &mut backend(backends, port, address).counts else { continue };
        counts.established += one.established();
        let Some(local) = one.local else { continue };
        for (phase, count) in one.flows {
            *counts.local_ports.entry((local.ip(), phase.as_str())).or_default() += count;
        }
    }
}

/// Collects the states of backends.
fn add_states<'a>(
    backends: &mut Backends<'a>,
    services: &'a [Arc<ServiceView>],
    without_series: &WithoutSeries<'_>,
) {
    for service in services.iter().filter(|one| !without_series.has(&one.namespace, &one.name)) {
        // A refused port does not forward.
        for port in service.ports.iter().filter(|port| port.refused.is_none()) {
            let key = view_key(service, port);
            for one in &port.backends {
                let address = SocketAddr::new(one.address, one.port);
                let state = backend(backends, key, address).state.get_or_insert_default();
                state.is_up |= one.state == BackendViewState::Active;
                state.warm_up_percent = one.warm_up_percent.or(state.warm_up_percent);
            }
        }
    }
}

/// Backends of services. These families can be switched off.
pub(in crate::telemetry) fn backends(
    page: &mut Exposition,
    stats: &[ServiceStats],
    flows: &[BackendFlowStats],
    services: &[Arc<ServiceView>],
    without_series: &WithoutSeries<'_>,
) {
    let mut backends = Backends::new();
    add_counts(&mut backends, stats, flows, without_series);
    add_states(&mut backends, services, without_series);
    let all = || backends.values().flat_map(BTreeMap::values);
    let counted = || all().filter_map(|one| Some((&one.labels, one.counts.as_ref()?)));
    let with_state = || all().filter_map(|one| Some((&one.labels, one.state.as_ref()?)));

    let mut traffic = |name, help, value: fn(Traffic) -> u64| {
        let mut family = page.counter(name, help, ["direction"]);
        for (labels, counts) in counted() {
            for (direction, traffic) in directions(counts.mode, counts.traffic) {
                family.sample_with(labels, [direction], value(traffic));
            }
        }
    };
    traffic(
        "tidegate_backend_packets_total",
        "Packets forwarded to the backend (request) and from it (reply); the DSR modes have no reply series.",
        |traffic| traffic.packets,
    );
    traffic(
        "tidegate_backend_bytes_total",
        "Bytes of the IP packets forwarded to the backend (request) and from it (reply); the DSR modes have no reply \
         series.",
        |traffic| traffic.bytes,
    );
    let help = "New flows that were assigned to the backend.";
    let mut family = page.counter("tidegate_backend_connections_total", help, []);
    for (labels, counts) in counted() {
        family.sample_with(labels, [], counts.connections);
    }
    let help = "Established flows of the backend, over all workers.";
    let mut family = page.gauge("tidegate_backend_connections", help, []);
    for (labels, counts) in counted() {
        family.sample_with(labels, [], counts.established);
    }
    let help = "Workers that have set the backend aside (give it no new flows) because it refused or ignored \
                connections; absent if there are none.";
    let mut family = page.gauge("tidegate_backend_set_aside_workers", help, []);
    for (labels, counts) in counted().filter(|(_, counts)| counts.set_aside > 0) {
        family.sample_with(labels, [], counts.set_aside);
    }
    let help = "1 while the backend accepts new flows, else 0: a draining backend keeps its existing flows, a backend \
                that is down keeps only TCP and SCTP flows.";
    let mut family = page.gauge("tidegate_backend_up", help, []);
    for (labels, state) in with_state() {
        family.sample_with(labels, [], state.is_up);
    }
    let help = "Fraction of its full share of new flows that the backend gets while it warms up (slowStart); absent \
                if the backend gets its full share.";
    let mut family = page.gauge("tidegate_backend_warm_up_ratio", help, []);
    for (labels, state) in with_state() {
        if let Some(percent) = state.warm_up_percent {
            family.sample_with(labels, [], f64::from(percent) / 100.0);
        }
    }
    let help = "Local ports of the SNAT address that are in use towards the backend, by the state of the port's flow; \
                a new flow may take the port of a flow that is not established.";
    let mut family = page.gauge("tidegate_snat_ports", help, ["address", "state"]);
    for (labels, counts) in counted() {
        for ((address, state), count) in &counts.local_ports {
            family.sample_with(labels, [&address.to_string(), state], *count);
        }
    }
    let help = "Local ports that one SNAT address can use for one backend and protocol, over all workers.";
    page.gauge("tidegate_snat_ports_max", help, []).sample([], 0x1_0000 - u64::from(SNAT_PORT_MIN));
    let help = "Backends that have no series of their own, because there are too many backends; a backend counts once \
                for each service port and address.";
    page.gauge("tidegate_backends_without_series", help, []).sample([], without_series.backends());
}

/// Health checks of backends.
pub(in crate::telemetry) fn health(page: &mut Exposition, sample: &Sample<'_>) {
    let mut checks =
        page.counter("tidegate_health_checks_total", "Health checks of backends, by result.", ["result"]);
    for (result, count) in sample.checks.results {
        checks.sample([result], *count);
    }
    let load = &sample.checks.load;
    let help = "Health checks that started more than one interval late.";
    page.counter("tidegate_health_checks_late_total", help, []).sample([], load.late);
    let help = "Health checks in progress.";
    page.gauge("tidegate_health_checks_in_flight", help, []).sample([], load.in_progress);
    let help = "Targets of health checks, by state; a damped (flapping) target is also counted as passing or failing.";
    page.gauge("tidegate_health_targets", help, ["state"])
        .sample(["passing"], load.targets.saturating_sub(load.failing))
        .sample(["failing"], load.failing)
        .sample(["damped"], load.damped);
    let help = "Largest factor by which the health check intervals of a namespace are stretched to stay within the \
                limit of checks per second; 1 while no interval is stretched.";
    page.gauge("tidegate_health_interval_stretch_ratio", help, []).sample([], load.stretch);

    let mut open: BTreeMap<PortKey<'_>, bool> = BTreeMap::new();
    let mut active: BTreeMap<PortKey<'_>, usize> = BTreeMap::new();
    for service in sample.round.services {
        for port in service.ports.iter().filter(|port| port.refused.is_none()) {
            let key = view_key(service, port);
            *open.entry(key).or_default() |= port.fail_open;
            let of_vip = port.count(BackendViewState::Active);
            active.entry(key).and_modify(|least| *least = of_vip.min(*least)).or_insert(of_vip);
        }
    }
    let help = "Backends of the service port that accept new flows; if its VIPs differ, the lowest number.";
    let mut family = page.gauge("tidegate_service_backends", help, PORT_LABELS);
    for (key, count) in &active {
        family.sample(*key, *count);
    }
    let help = "1 while all backends of the service port fail their health checks on one of its VIPs, so that all \
                stay in use (fail open); else 0.";
    let mut family = page.gauge("tidegate_health_fail_open", help, PORT_LABELS);
    for (key, open) in &open {
        family.sample(*key, *open);
    }
}
