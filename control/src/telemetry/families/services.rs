//! The families of Services: traffic, limits, backends, local ports and health checks.
//!
//! Invariant: no series depends on the VIPs of a Service, which are summed.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use tidegate_dataplane::gateway::{BackendFlowStats, BackendStats, ServiceStats};
use tidegate_policy::reconcile::view::{BackendViewState, ServiceView};
use tidegate_snapshot::counters::{Direction, Traffic};
use tidegate_snapshot::service_limits::{LimitDrop, LimitedService};
use tidegate_spec::ForwardingMode;
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::SNAT_PORT_MIN;

use crate::telemetry::exposition::{Exposition, Family, Value};
use crate::telemetry::sample::Sample;
use crate::telemetry::series_limit::WithoutSeries;

/// The labels of a service port's series, which are independent of its VIPs.
type PortKey<'a> = [&'a str; 4];

const PORT_LABELS: [&str; 4] = ["namespace", "service", "port", "protocol"];
const BACKEND_LABELS: [&str; 5] = ["namespace", "service", "port", "protocol", "backend"];

/// A value for each backend of a service port, over the VIPs of the Service, with the label of the backend.
type Backends<'a, T> = BTreeMap<(PortKey<'a>, SocketAddr), (String, T)>;

/// The value of a backend. Its label is formatted once: a page may have several families of 200,000 backends.
fn value_of<'m, 'a, T>(
    backends: &'m mut Backends<'a, T>,
    port: PortKey<'a>,
    address: SocketAddr,
    new: impl FnOnce() -> T,
) -> &'m mut T {
    &mut backends.entry((port, address)).or_insert_with(|| (address.to_string(), new())).1
}

/// Adds a series for each backend that has this value.
fn of_backends<T, V: Into<Value>>(
    mut family: Family<'_, 5>,
    backends: &Backends<'_, T>,
    value: impl Fn(&T) -> Option<V>,
) {
    for (([namespace, service, port, protocol], _), (backend, of_backend)) in backends {
        if let Some(value) = value(of_backend) {
            family.sample([namespace, service, port, protocol, backend], value);
        }
    }
}

fn address_of(backend: &BackendStats) -> SocketAddr {
    SocketAddr::new(backend.address.ip(), backend.port)
}

fn port_key(stats: &ServiceStats) -> PortKey<'_> {
    [&stats.namespace, &stats.name, &stats.port_name, stats.key.protocol.as_str()]
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
pub(in crate::telemetry) fn service_info(page: &mut Exposition, services: &[std::sync::Arc<ServiceView>]) {
    let mut ports: BTreeMap<PortKey<'_>, &str> = BTreeMap::new();
    for service in services {
        for port in &service.ports {
            let Some(app_protocol) = &port.app_protocol else { continue };
            let key = [&*service.namespace, &*service.name, &*port.name, port.protocol.as_str()];
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

/// The counts of a backend.
struct Counts {
    mode: ForwardingMode,
    traffic: [Traffic; 2],
    connections: u64,
    set_aside: u64,
}

/// Backends of services. These families can be switched off.
pub(in crate::telemetry) fn backends(
    page: &mut Exposition,
    stats: &[ServiceStats],
    services: &[std::sync::Arc<ServiceView>],
    without_series: &WithoutSeries<'_>,
) {
    let mut counts: Backends<'_, Counts> = BTreeMap::new();
    for port in stats.iter().filter(|port| !without_series.has(&port.namespace, &port.name)) {
        for one in &port.backends {
            let none =
                || Counts { mode: port.mode, traffic: Default::default(), connections: 0, set_aside: 0 };
            let of_backend = value_of(&mut counts, port_key(port), address_of(one), none);
            of_backend.traffic.iter_mut().zip(one.traffic).for_each(|(sum, traffic)| sum.add(traffic));
            of_backend.connections += one.connections;
            of_backend.set_aside += one.set_aside as u64;
        }
    }
    let mut traffic = |name, help, value: fn(Traffic) -> u64| {
        let labels = ["namespace", "service", "port", "protocol", "backend", "direction"];
        let mut family = page.counter(name, help, labels);
        for (([namespace, service, port, protocol], _), (backend, counts)) in &counts {
            for (direction, traffic) in directions(counts.mode, counts.traffic) {
                family.sample([namespace, service, port, protocol, backend, direction], value(traffic));
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
    let family = page.counter("tidegate_backend_connections_total", help, BACKEND_LABELS);
    of_backends(family, &counts, |counts| Some(counts.connections));

    let help = "Workers that have set the backend aside (give it no new flows) because it refused or ignored \
                connections; absent if there are none.";
    let family = page.gauge("tidegate_backend_set_aside_workers", help, BACKEND_LABELS);
    of_backends(family, &counts, |counts| Some(counts.set_aside).filter(|workers| *workers > 0));

    // Whether it is up, and the percentage of its warm-up.
    let mut states: Backends<'_, (bool, Option<u8>)> = BTreeMap::new();
    for service in services.iter().filter(|one| !without_series.has(&one.namespace, &one.name)) {
        // A refused port does not forward.
        for port in service.ports.iter().filter(|port| port.refused.is_none()) {
            let key = [&*service.namespace, &*service.name, &*port.name, port.protocol.as_str()];
            for one in &port.backends {
                let address = SocketAddr::new(one.address, one.port);
                let (up, warm_up) = value_of(&mut states, key, address, Default::default);
                *up |= one.state == BackendViewState::Active;
                *warm_up = one.warm_up_percent.or(*warm_up);
            }
        }
    }
    let help = "1 while the backend accepts new flows, else 0: a draining backend keeps its existing flows, a backend \
                that is down keeps only TCP and SCTP flows.";
    let family = page.gauge("tidegate_backend_up", help, BACKEND_LABELS);
    of_backends(family, &states, |(up, _)| Some(*up));
    let help = "Fraction of its full share of new flows that the backend gets while it warms up (slowStart); absent \
                if the backend gets its full share.";
    let family = page.gauge("tidegate_backend_warm_up_ratio", help, BACKEND_LABELS);
    of_backends(family, &states, |(_, percent)| percent.map(|percent| f64::from(percent) / 100.0));
    let help = "Backends that have no series of their own, because there are too many backends; a backend counts once \
                for each service port and address.";
    page.gauge("tidegate_backends_without_series", help, []).sample([], without_series.backends());
}

/// Flows of backends, and local ports of `fullnat`. The families with a series for each backend can be switched off too.
pub(in crate::telemetry) fn flows(
    page: &mut Exposition,
    stats: &[ServiceStats],
    flows: &[BackendFlowStats],
    without_series: &WithoutSeries<'_>,
) {
    let help = "Local ports that one SNAT address can use for one backend and protocol, over all workers.";
    page.gauge("tidegate_snat_ports_max", help, []).sample([], 0x1_0000 - u64::from(SNAT_PORT_MIN));
    let detailed = stats.iter().filter(|port| !without_series.has(&port.namespace, &port.name));
    let backends = detailed.flat_map(|port| port.backends.iter().map(move |one| (one.id, (port, one))));
    let backends: BTreeMap<BackendId, _> = backends.collect();
    // A Service with several VIPs has a separate backend for each, and they share the ports of an endpoint.
    let mut ports: BTreeMap<(String, PortKey<'_>, String, &str), u64> = BTreeMap::new();
    let mut active: Backends<'_, u64> = BTreeMap::new();
    for (port, backend) in backends.values() {
        value_of(&mut active, port_key(port), address_of(backend), || 0);
    }
    for one in flows {
        let Some((port, backend)) = backends.get(&one.backend) else { continue };
        let backend = address_of(backend);
        *value_of(&mut active, port_key(port), backend, || 0) += one.established();
        let Some(local) = one.local else { continue };
        for (phase, count) in one.flows {
            let key = (local.ip().to_string(), port_key(port), backend.to_string(), phase.as_str());
            *ports.entry(key).or_default() += count;
        }
    }
    let help = "Established flows of the backend, over all workers.";
    let family = page.gauge("tidegate_backend_connections", help, BACKEND_LABELS);
    of_backends(family, &active, |count| Some(*count));
    let help = "Local ports of the SNAT address that are in use towards the backend, by the state of the port's flow; \
                a new flow may take the port of a flow that is not established.";
    let labels = ["address", "namespace", "service", "port", "protocol", "backend", "state"];
    let mut family = page.gauge("tidegate_snat_ports", help, labels);
    for ((address, [namespace, service, port, protocol], backend, state), count) in &ports {
        family.sample([address, namespace, service, port, protocol, backend, state], *count);
    }
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
            let key = [&*service.namespace, &*service.name, &*port.name, port.protocol.as_str()];
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
