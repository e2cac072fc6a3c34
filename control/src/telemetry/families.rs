//! Defines every metric: its name, help text and the source of its value.
//!
//! [`render`](super::render) calls each function once. Names are written in full, so that they can be searched for.
//!
//! Invariant: every counter exists from the first scrape, at 0, because a rate over a series that appears with its
//! first event misses that event.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use jiff::Timestamp;
use tidegate_admin_api::GatewayDrainState;
use tidegate_conntrack::NotRestored;
use tidegate_dataplane::gateway::{
    InterfaceLink, LinkState, PortReport, Restored, ServiceStats, SnatPortStats, Stats, WorkerState,
};
use tidegate_pipeline::pipeline::CookieCounts;
use tidegate_policy::reconcile::Reason;
use tidegate_policy::reconcile::view::{BackendViewState, ServiceView};
use tidegate_snapshot::counters::{Direction, Traffic};
use tidegate_snapshot::service_limits::{LimitDrop, LimitedService};
use tidegate_source::SourceState;
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::SNAT_PORT_MIN;
use tidegate_spec::verdict::DropReason;

use super::detail::WithoutSeries;
use super::exposition::Exposition;
use super::latency::{HEALTH_CHECK, Latencies, PUBLICATION, PUNT_QUEUE, WORKER_TURN};
use super::process::Process;
use super::sample::{FlowSharingSample, Layer2Counts, Sample};

/// Build information.
pub(super) fn build(page: &mut Exposition, version: &str) {
    let help = "Always 1; the label is the version of the binary.";
    page.gauge("tidegate_build_info", help, ["version"]).sample([version], true);
}

/// Links of interfaces, and of the taps that mirror them for the kernel.
pub(super) fn links(page: &mut Exposition, links: &[InterfaceLink]) {
    let is_up = |state: LinkState| state == LinkState::Up;
    let help = "1 while the interface has a link, else 0; the gateway is not ready while it is 0.";
    let mut up = page.gauge("tidegate_interface_up", help, ["interface"]);
    for link in links {
        up.sample([&link.name], is_up(link.port.state));
    }
    let help = "Changes of the interface's link state (up, down, no carrier, gone) since the start.";
    let mut transitions = page.counter("tidegate_interface_transitions_total", help, ["interface"]);
    for link in links {
        transitions.sample([&link.name], link.port.transitions);
    }
    let help = "Changes of the MAC address of the interface's device by other programs since the start; a configured address is restored.";
    let mut changes = page.counter("tidegate_interface_mac_changes_total", help, ["interface"]);
    for link in links {
        changes.sample([&link.name], link.mac_changes);
    }
    let taps = || links.iter().filter_map(|link| link.tap.as_ref().map(|(_, tap)| (&link.name, tap)));
    let help = "1 while the tap by which the kernel sends and receives on the interface is up, else 0.";
    let mut up = page.gauge("tidegate_tap_up", help, ["interface"]);
    for (name, tap) in taps() {
        up.sample([name], is_up(tap.state));
    }
    let help = "Changes of the link state of the interface's tap since the start.";
    let mut transitions = page.counter("tidegate_tap_transitions_total", help, ["interface"]);
    for (name, tap) in taps() {
        transitions.sample([name], tap.transitions);
    }
}

/// What the drivers of ports count.
pub(super) fn ports(page: &mut Exposition, links: &[InterfaceLink], ports: &[PortReport]) {
    let ports = || links.iter().zip(ports);
    let help = "What the driver of the interface counts, by DPDK's name of the counter (rx_missed_errors, rx_q0_packets ...); read once a second, and begins at 0 when the device is opened.";
    let mut stats = page.counter("tidegate_port_stat_total", help, ["interface", "stat"]);
    for (link, port) in ports() {
        for (stat, value) in &port.stats {
            stats.sample([&link.name, stat.as_str()], *value);
        }
    }
    let help = "Speed of the interface's link in bytes per second; absent if it is not known.";
    let mut speed = page.gauge("tidegate_interface_speed_bytes", help, ["interface"]);
    for (link, port) in ports() {
        if let Some(mbps) = port.mbps {
            speed.sample([&link.name], u64::from(mbps) * 125_000);
        }
    }
}

/// Frames by interface and by verdict.
pub(super) fn frames(page: &mut Exposition, stats: &Stats, names: &[String]) {
    let name = |at: usize| match names.get(at) {
        Some(name) => Cow::Borrowed(name.as_str()),
        None => Cow::Owned(at.to_string()),
    };
    let labels = ["interface", "direction"];
    let mut packets =
        page.counter("tidegate_packets_total", "Frames that workers received (rx) and sent (tx).", labels);
    for (at, one) in stats.interfaces.iter().enumerate() {
        packets.sample([&name(at), "rx"], one.rx_packets).sample([&name(at), "tx"], one.tx_packets);
    }
    let mut bytes = page.counter(
        "tidegate_bytes_total",
        "Bytes of the frames that workers received (rx) and sent (tx).",
        labels,
    );
    for (at, one) in stats.interfaces.iter().enumerate() {
        bytes.sample([&name(at), "rx"], one.rx_bytes).sample([&name(at), "tx"], one.tx_bytes);
    }

    let help =
        "ARP and neighbour discovery packets in which another station claimed an address of the gateway.";
    let mut conflicts = page.counter("tidegate_address_conflicts_total", help, ["interface"]);
    for (at, one) in stats.interfaces.iter().enumerate() {
        conflicts.sample([&name(at)], one.address_conflicts);
    }

    let help = "Packets of a sample whose TCP or UDP checksum their sender left to its NIC, and nothing completed: their receivers drop them.";
    let mut partial = page.counter("tidegate_partial_checksums_total", help, ["interface"]);
    for (at, one) in stats.interfaces.iter().enumerate() {
        partial.sample([&name(at)], one.checksums_partial);
    }

    let mut drops = page.counter("tidegate_drops_total", "Frames dropped, by reason.", ["reason"]);
    let mut by_reason = [0; DropReason::COUNT];
    for (why, count) in &stats.drops {
        by_reason[why.index()] += count;
    }
    for why in DropReason::all() {
        drops.sample([why.as_str()], by_reason[why.index()]);
    }
    let help = "Frames sent, by reason: forwarded packets, and answers of the gateway itself.";
    let mut transmits = page.counter("tidegate_transmits_total", help, ["reason"]);
    for (why, count) in &stats.transmits {
        transmits.sample([why.as_str()], *count);
    }
    let mut punts = page.counter("tidegate_punts_total", "Frames for the kernel, by reason.", ["reason"]);
    for (why, count) in &stats.punts {
        punts.sample([why.as_str()], *count);
    }
    let help = "Frames passed from the worker that received them to the worker that owns their flow.";
    page.counter("tidegate_hand_overs_total", help, []).sample([], stats.hand_overs);
    let help = "Packets of a sample by whether their NIC brought them to the worker that the gateway computes (expected) or to another one (elsewhere: replies of fullnat may be lost); 0 where drivers do not report how they distribute packets.";
    page.counter("tidegate_rss_checks_total", help, ["result"])
        .sample(["expected"], stats.arrivals_as_computed)
        .sample(["elsewhere"], stats.arrivals_elsewhere);
}

/// Frames between the workers and the kernel, and the neighbours that the slow path resolves.
pub(super) fn kernel(page: &mut Exposition, stats: &Stats) {
    let slow = &stats.slow_path;
    page.counter(
        "tidegate_kernel_packets_total",
        "Frames given to the kernel and received from it, by direction.",
        ["direction"],
    )
    .sample(["to_kernel"], slow.to_kernel)
    .sample(["from_kernel"], slow.from_kernel);
    let help = "Frames to and from the kernel that were lost because a queue was full or no buffer was free, by direction.";
    page.counter("tidegate_kernel_drops_total", help, ["direction"])
        .sample(["to_kernel"], slow.to_kernel_dropped)
        .sample(["from_kernel"], slow.from_kernel_dropped);
    let help = "ARP and neighbour discovery requests, probes and announcements that the gateway sent.";
    page.counter("tidegate_neighbor_frames_total", help, []).sample([], slow.neighbor_frames);
    let help = "Neighbours that only packets asked for and that were not added, because all on-demand entries of the link and family were in use.";
    page.counter("tidegate_neighbors_refused_total", help, []).sample([], slow.neighbors_refused);
    let help = "Neighbours that only packets asked for and that were removed to make room for newer ones.";
    page.counter("tidegate_neighbors_evicted_total", help, []).sample([], slow.neighbors_evicted);
    let help = "Entries of the neighbour table, by kind: next hops of backends and routes, and entries that only packets asked for (on_demand).";
    page.gauge("tidegate_neighbors", help, ["kind"])
        .sample(["next_hop"], stats.neighbors.next_hops)
        .sample(["on_demand"], stats.neighbors.on_demand);
    let help = "Entries that the neighbour table has room for, by kind.";
    page.gauge("tidegate_neighbors_max", help, ["kind"])
        .sample(["next_hop"], stats.neighbors.next_hops_max)
        .sample(["on_demand"], stats.neighbors.on_demand_max);
    let help = "Frames for the kernel, by class and result: passed on, over the rate of the class, or dropped at a full queue.";
    let mut family = page.counter("tidegate_punts_by_class_total", help, ["class", "result"]);
    for (class, count) in &stats.punt_classes {
        family
            .sample([class.as_str(), "passed"], count.passed)
            .sample([class.as_str(), "rate_limited"], count.rate_limited)
            .sample([class.as_str(), "queue_full"], count.queue_full);
    }
    let help = "Frames of the kernel and of neighbour resolution that workers sent.";
    page.counter("tidegate_injected_packets_total", help, []).sample([], slow.injected);
    let help = "Frames of the kernel and of neighbour resolution that were dropped because the transmit queue was full.";
    page.counter("tidegate_injected_drops_total", help, []).sample([], slow.injected_dropped);
}

/// Workers and their flows.
pub(super) fn workers(page: &mut Exposition, stats: &Stats) {
    let workers: Vec<_> = stats.workers.iter().map(|one| (one.worker.to_string(), one)).collect();
    let mut gauge =
        page.gauge("tidegate_worker_up", "1 while the worker runs and makes progress, else 0.", ["worker"]);
    for (worker, one) in &workers {
        gauge.sample([worker], one.state == WorkerState::Running);
    }
    let help = "1 while the thread for the kernel's packets and for neighbour resolution runs, else 0.";
    page.gauge("tidegate_slow_path_up", help, []).sample([], stats.slow_path.is_well);
    let help = "How often a thread of the packet path has begun to hang: it was alive and made no progress.";
    let mut counter = page.counter("tidegate_thread_hangs_total", help, ["thread"]);
    for (worker, one) in &workers {
        counter.sample([&format!("worker {worker}")], one.hangs);
    }
    counter.sample(["slow path"], stats.slow_path.hangs);
    let help = "Share of time in which the worker had work, from 0 to 1, over the last second or longer.";
    let mut gauge = page.gauge("tidegate_worker_busy_ratio", help, ["worker"]);
    for (worker, one) in &workers {
        gauge.sample([worker], one.busy_ratio);
    }
    let help =
        "CPU cycles for each frame while there was work, over the last second or longer; 0 without traffic.";
    let mut gauge = page.gauge("tidegate_worker_cycles_per_packet", help, ["worker"]);
    for (worker, one) in &workers {
        gauge.sample([worker], one.cycles_per_packet);
    }
    let mut counter = page.counter(
        "tidegate_worker_packets_total",
        "Frames that went through the worker's pipeline.",
        ["worker"],
    );
    for (worker, one) in &workers {
        counter.sample([worker], one.frames);
    }
    let help = "Requests of the worker for neighbour resolution that were lost because a queue was full; the next packet repeats them.";
    let mut counter = page.counter("tidegate_neighbor_events_lost_total", help, ["worker"]);
    for (worker, one) in &workers {
        counter.sample([worker], one.neighbor_events_lost);
    }
    let mut gauge = page.gauge("tidegate_flows", "Flows in the worker's flow tables.", ["worker"]);
    for (worker, one) in &workers {
        gauge.sample([worker], one.flows);
    }
    let help = "SYN cookies sent to clients, accepted when they came back, and segments refused because they had none.";
    let mut counter = page.counter("tidegate_syn_cookies_total", help, ["result"]);
    let sum =
        |of: fn(&CookieCounts) -> u64| stats.workers.iter().map(|one| of(&one.syn_cookies)).sum::<u64>();
    counter.sample(["sent"], sum(|counts| counts.sent));
    counter.sample(["accepted"], sum(|counts| counts.accepted));
    counter.sample(["refused"], sum(|counts| counts.refused));
    let help = "Service ports whose new connections get SYN cookies on the worker because of a SYN flood.";
    let mut gauge = page.gauge("tidegate_services_under_syn_flood", help, ["worker"]);
    for (worker, one) in &workers {
        gauge.sample([worker], one.services_under_flood);
    }
    let help = "Flows removed from a flow table, by reason.";
    let mut counter = page.counter("tidegate_flow_evictions_total", help, ["reason"]);
    for (why, count) in &stats.evictions {
        counter.sample([why.as_str()], *count);
    }
    let help =
        "New flows that got no flow table entry, because every flow that could be evicted was established.";
    page.counter("tidegate_flows_refused_total", help, []).sample([], stats.flows_refused);
    let help = "How often a worker set a backend aside because it refused or ignored new connections.";
    page.counter("tidegate_backends_set_aside_total", help, []).sample([], stats.backends_set_aside);
    let help = "How often a backend that a worker had set aside answered a new connection again.";
    page.counter("tidegate_backends_returned_total", help, []).sample([], stats.backends_returned);
    let help = "Resets and ICMP errors that were not sent because of the rate limit of their kind.";
    let mut counter = page.counter("tidegate_answers_suppressed_total", help, ["kind"]);
    for (kind, count) in &stats.answers_suppressed {
        counter.sample([kind.as_str()], *count);
    }
    let help = "ICMP errors that reduced the path MTU of a tunnel.";
    page.counter("tidegate_path_mtus_learnt_total", help, []).sample([], stats.path_mtus_learnt);
}

/// What the start found of flows of earlier processes.
pub(super) fn restored(page: &mut Exposition, restored: &Restored) {
    let help = "Flows that this process found in the flow tables of earlier ones, by result: restored, or the reason why not.";
    let mut gauge = page.gauge("tidegate_restored_flows", help, ["result"]);
    gauge.sample(["restored"], restored.counts.restored);
    for (why, count) in NotRestored::ALL.iter().zip(restored.counts.not_restored) {
        gauge.sample([why.as_str()], count);
    }
    let help = "Flow tables of earlier processes that this process refused as a whole: single ones that are damaged, or all of a process, counted as one, of another version or from before a boot.";
    page.gauge("tidegate_restored_refused_tables", help, []).sample([], restored.refused_tables);
    let help = "Time in which a worker restored flows at the start, and forwarded nothing; the longest of all workers.";
    page.gauge("tidegate_restored_seconds", help, []).sample([], restored.took.as_secs_f64());
}

/// Durations that workers, the slow path, the health checks and the daemon's loop recorded.
pub(super) fn latencies(page: &mut Exposition, latencies: &Latencies) {
    let help = "Time of one turn of a worker's loop that had work: receive a burst from each interface, process and send it.";
    page.histogram("tidegate_worker_turn_seconds", help, latencies.worker_turn.reading(WORKER_TURN));
    let help =
        "Time that a frame for the kernel waited in a queue, from the worker until the slow path took it.";
    page.histogram("tidegate_punt_queue_seconds", help, latencies.punt_queue.reading(PUNT_QUEUE));
    let help = "Time from the start of a health check to its result; a check without an answer counts with its timeout.";
    page.histogram("tidegate_health_check_seconds", help, latencies.health_check.reading(HEALTH_CHECK));
    let help = "Time from when the workers were given a snapshot until every worker forwarded by it.";
    page.histogram("tidegate_publication_seconds", help, latencies.publication.reading(PUBLICATION));
}

/// The labels of a service port's series, which are independent of its VIPs.
type PortKey<'a> = [&'a str; 4];

const PORT_LABELS: [&str; 4] = ["namespace", "service", "port", "protocol"];
const BACKEND_LABELS: [&str; 5] = ["namespace", "service", "port", "protocol", "backend"];

fn port_key(stats: &ServiceStats) -> PortKey<'_> {
    [&stats.namespace, &stats.name, &stats.port_name, stats.key.protocol.as_str()]
}

/// Services.
pub(super) fn services(page: &mut Exposition, stats: &[ServiceStats]) {
    let mut ports: BTreeMap<(PortKey<'_>, &str), Traffic> = BTreeMap::new();
    for one in stats {
        for (direction, traffic) in Direction::ALL.into_iter().zip(one.traffic) {
            // Replies of the DSR modes don't pass through the gateway: a series that stays 0 would look like silence.
            if one.mode.is_dsr() && direction == Direction::Reply {
                continue;
            }
            let sum = ports.entry((port_key(one), direction.as_str())).or_default();
            sum.packets += traffic.packets;
            sum.bytes += traffic.bytes;
        }
    }
    let labels = ["namespace", "service", "port", "protocol", "direction"];
    let help = "Packets forwarded for the service port over all its VIPs, by direction (request, reply); the DSR modes have no replies here.";
    let mut family = page.counter("tidegate_service_packets_total", help, labels);
    for (([namespace, service, port, protocol], direction), traffic) in &ports {
        family.sample([namespace, service, port, protocol, direction], traffic.packets);
    }
    let help = "Bytes of the IP packets forwarded for the service port over all its VIPs, by direction (request, reply); the DSR modes have no replies here.";
    let mut family = page.counter("tidegate_service_bytes_total", help, labels);
    for (([namespace, service, port, protocol], direction), traffic) in &ports {
        family.sample([namespace, service, port, protocol, direction], traffic.bytes);
    }
}

/// Services with limits.
pub(super) fn limits(page: &mut Exposition, limited: &[LimitedService]) {
    let help = "Packets that a limit of the Service dropped, by reason, for each Service with an annotation max-connections, max-connection-rate or max-bandwidth; since it has one.";
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
pub(super) fn service_info(page: &mut Exposition, services: &[std::sync::Arc<ServiceView>]) {
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

/// Backends of services. These families can be switched off.
pub(super) fn backends(
    page: &mut Exposition,
    stats: &[ServiceStats],
    services: &[std::sync::Arc<ServiceView>],
    without_series: &WithoutSeries<'_>,
) {
    let mut connections: BTreeMap<(PortKey<'_>, String), u64> = BTreeMap::new();
    let mut set_aside: BTreeMap<(PortKey<'_>, String), u64> = BTreeMap::new();
    for port in stats.iter().filter(|port| !without_series.has(&port.namespace, &port.name)) {
        for one in &port.backends {
            let backend = std::net::SocketAddr::new(one.address.ip(), one.port).to_string();
            if one.set_aside > 0 {
                *set_aside.entry((port_key(port), backend.clone())).or_default() += one.set_aside as u64;
            }
            *connections.entry((port_key(port), backend)).or_default() += one.connections;
        }
    }
    let help = "New flows that were assigned to the backend.";
    let mut family = page.counter("tidegate_backend_connections_total", help, BACKEND_LABELS);
    for (([namespace, service, port, protocol], backend), count) in &connections {
        family.sample([namespace, service, port, protocol, backend], *count);
    }

    let help = "Workers that have set the backend aside because it refused or ignored new connections; only for backends with any.";
    let mut family = page.gauge("tidegate_backend_set_aside_workers", help, BACKEND_LABELS);
    for (([namespace, service, port, protocol], backend), workers) in &set_aside {
        family.sample([namespace, service, port, protocol, backend], *workers);
    }

    let mut up: BTreeMap<(PortKey<'_>, String), bool> = BTreeMap::new();
    let mut warm_up: BTreeMap<(PortKey<'_>, String), u8> = BTreeMap::new();
    for service in services.iter().filter(|one| !without_series.has(&one.namespace, &one.name)) {
        // A refused port does not forward.
        for port in service.ports.iter().filter(|port| port.refused.is_none()) {
            let key = [&*service.namespace, &*service.name, &*port.name, port.protocol.as_str()];
            for one in &port.backends {
                let backend = std::net::SocketAddr::new(one.address, one.port).to_string();
                if let Some(percent) = one.warm_up_percent {
                    warm_up.insert((key, backend.clone()), percent);
                }
                *up.entry((key, backend)).or_default() |= one.state == BackendViewState::Active;
            }
        }
    }
    let help = "1 while the backend takes new flows; 0 while it keeps only the flows that it has.";
    let mut family = page.gauge("tidegate_backend_up", help, BACKEND_LABELS);
    for (([namespace, service, port, protocol], backend), up) in &up {
        family.sample([namespace, service, port, protocol, backend], *up);
    }
    let help = "The part of its new flows that a backend takes while it warms up (slowStart); absent if it takes all.";
    let mut family = page.gauge("tidegate_backend_warm_up_ratio", help, BACKEND_LABELS);
    for (([namespace, service, port, protocol], backend), percent) in &warm_up {
        family.sample([namespace, service, port, protocol, backend], f64::from(*percent) / 100.0);
    }
    let help = "Backends, over all service ports and addresses, that have no series of their own because there are too many.";
    page.gauge("tidegate_backends_without_series", help, []).sample([], without_series.backends());
}

/// Local ports of `fullnat`. This family has a series for each backend and can be switched off too.
pub(super) fn snat_ports(
    page: &mut Exposition,
    stats: &[ServiceStats],
    snat_ports: &[SnatPortStats],
    without_series: &WithoutSeries<'_>,
) {
    let help = "Local ports that one SNAT address has towards one backend and protocol, over all workers.";
    page.gauge("tidegate_snat_ports_max", help, []).sample([], 0x1_0000 - u64::from(SNAT_PORT_MIN));
    let detailed = stats.iter().filter(|port| !without_series.has(&port.namespace, &port.name));
    let backends = detailed.flat_map(|port| port.backends.iter().map(move |one| (one.id, (port, one))));
    let backends: BTreeMap<BackendId, _> = backends.collect();
    // A Service with several VIPs has a separate backend for each, and they share the ports of an endpoint.
    let mut ports: BTreeMap<(String, PortKey<'_>, String, &str), u64> = BTreeMap::new();
    for one in snat_ports {
        let Some((port, backend)) = backends.get(&one.backend) else { continue };
        let backend = std::net::SocketAddr::new(backend.address.ip(), backend.port).to_string();
        for (phase, count) in one.ports {
            let key = (one.address.ip().to_string(), port_key(port), backend.clone(), phase.as_str());
            *ports.entry(key).or_default() += count;
        }
    }
    let help = "Local ports of the SNAT address in use towards the backend, by the state of their flows; only \
                established flows keep theirs when a new flow needs one.";
    let labels = ["address", "namespace", "service", "port", "protocol", "backend", "state"];
    let mut family = page.gauge("tidegate_snat_ports", help, labels);
    for ((address, [namespace, service, port, protocol], backend, state), count) in &ports {
        family.sample([address, namespace, service, port, protocol, backend, state], *count);
    }
}

/// Health checks of backends.
pub(super) fn health(page: &mut Exposition, sample: &Sample<'_>) {
    let mut checks =
        page.counter("tidegate_health_checks_total", "Health checks of backends, by result.", ["result"]);
    for (result, count) in sample.checks.results {
        checks.sample([result], *count);
    }
    let load = &sample.checks.load;
    let help = "Health checks that started late by more than their interval.";
    page.counter("tidegate_health_checks_late_total", help, []).sample([], load.late);
    let help = "Health checks in progress.";
    page.gauge("tidegate_health_checks_in_flight", help, []).sample([], load.under_way);
    let help = "Targets of health checks, by state; a damped target, which flaps, is also counted as passing or failing.";
    page.gauge("tidegate_health_targets", help, ["state"])
        .sample(["passing"], load.targets.saturating_sub(load.failing))
        .sample(["failing"], load.failing)
        .sample(["damped"], load.damped);
    let help = "Largest factor by which the check intervals of a namespace are stretched to stay within the limit of checks a second; 1 while none is.";
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
    let help = "Backends of the service port that take new flows; the fewest over its VIPs.";
    let mut family = page.gauge("tidegate_service_backends", help, PORT_LABELS);
    for (key, count) in &active {
        family.sample(*key, *count);
    }
    let help = "1 while all backends of the service port fail their checks on one of its VIPs and all backends stay in use (fail open), else 0.";
    let mut family = page.gauge("tidegate_health_fail_open", help, PORT_LABELS);
    for (key, open) in &open {
        family.sample(*key, *open);
    }
}

/// The control plane.
pub(super) fn control(page: &mut Exposition, sample: &Sample<'_>) {
    let help =
        "Generation of the newest desired state, and of the state that every worker has applied, by kind.";
    page.gauge("tidegate_snapshot_generation", help, ["kind"])
        .sample(["desired"], sample.publication.generations.desired)
        .sample(["applied"], sample.publication.generations.applied);
    let help = "1 for the state of the drain of the gateway, else 0: it serves; it announces nothing and packets still come; none come any more.";
    let mut states = page.gauge("tidegate_gateway_state", help, ["state"]);
    for state in GatewayDrainState::ALL {
        states.sample([state.as_str()], usize::from(state == sample.drain));
    }
    let help =
        "Desired states that could not be published to the workers; the last good state keeps forwarding.";
    page.counter("tidegate_publish_failures_total", help, []).sample([], sample.publication.failures);
    let help = "Comparisons of an incremental result with one computed from scratch, by layer.";
    let mut made = page.counter("tidegate_incremental_comparisons_total", help, ["layer"]);
    for (layer, count, _) in sample.comparisons {
        made.sample([layer], *count);
    }
    let help = "Comparisons in which an incremental result differed from the one computed from scratch, by layer; above 0 \
                there is a bug in the gateway.";
    let mut differed = page.counter("tidegate_incremental_differences_total", help, ["layer"]);
    for (layer, _, count) in sample.comparisons {
        differed.sample([layer], *count);
    }
    let help =
        "Time of one reconcile, from its inputs to a snapshot that was published to the workers or refused.";
    page.histogram("tidegate_sync_duration_seconds", help, sample.publication.timings.sync.read());
    let help = "Time from when the source saw a change until every worker had applied it.";
    page.histogram(
        "tidegate_network_programming_duration_seconds",
        help,
        sample.publication.timings.programming.read(),
    );

    let help = "Addresses of the pool, by state: assigned to Services, free, reserved because they are the gateway's own, or \
                outside: held by Services and no longer in the pool.";
    let mut pools = page.gauge("tidegate_pool_addresses", help, ["pool", "state"]);
    for one in sample.round.pools {
        pools
            .sample([&one.pool, "assigned"], one.assigned)
            .sample([&one.pool, "free"], one.free())
            .sample([&one.pool, "reserved"], one.reserved)
            .sample([&one.pool, "outside"], one.outside);
    }
    let help = "1 while the gateway is ready, which /readyz answers with 200, else 0; a drained gateway is not ready.";
    page.gauge("tidegate_ready", help, []).sample([], sample.ready);
    let help = "Faults of the gateway that `tidegate status` shows as DEGRADED.";
    page.gauge("tidegate_degraded", help, []).sample([], sample.degraded);
    let mut findings: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in sample.round.findings.iter().chain(sample.round.own_findings) {
        *findings.entry(finding.reason.as_str()).or_default() += 1;
    }
    let help = "Findings about objects, by reason: requests that were not granted, and misconfigurations that traffic shows; only reasons with any.";
    let mut family = page.gauge("tidegate_findings", help, ["reason"]);
    for (reason, count) in &findings {
        family.sample([reason], *count);
    }
    let denied = sample.round.findings.iter().filter(|one| one.reason == Reason::ExternalIpDenied).count();
    let help = "External IPs that Services request and that no pool authorises; at most 33 of each Service are counted.";
    page.gauge("tidegate_external_ip_denied", help, []).sample([], denied);

    let help = "1 while the configuration that was read last, or a list of it, is refused and the previous one is in force, else 0.";
    page.gauge("tidegate_configuration_refused", help, [])
        .sample([], usize::from(sample.configuration_refused));
    let help = "1 while state that a restart needs is not kept, by state: addresses of Services, what operators have \
                drained, flows, the lists of `protection`, the last objects.";
    let mut unsaved = page.gauge("tidegate_state_unsaved", help, ["state"]);
    for (what, is_unsaved) in sample.unsaved {
        unsaved.sample([what], usize::from(*is_unsaved));
    }
    if let Some(sharing) = sample.flow_sharing {
        flow_sharing(page, sharing);
    }
    let help = "Manifest files with errors whose last good state is kept.";
    page.gauge("tidegate_source_stale_files", help, []).sample([], sample.round.stale_files.len());
    let since = sample.round.stale_files.iter().map(|file| file.since).min();
    let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
    let help = "Unix time since which a manifest file has had errors, for the file with the oldest errors; 0 while no file has errors.";
    page.gauge("tidegate_source_stale_timestamp_seconds", help, [])
        .sample([], since.map_or(0.0, |since| since.as_secs_f64()));

    let help = "Log lines about faults of objects and about failed writes that were left out, because their namespace had too many.";
    page.counter("tidegate_log_lines_left_out_total", help, []).sample([], sample.log_lines_left_out);
    let help = "Log lines that were lost, because nobody read standard error.";
    page.counter("tidegate_log_lines_lost_total", help, []).sample([], sample.log_lines_lost);
    let help = "EndpointSlices whose endpoints are not kept, because a Service lists too many or a namespace is above its share.";
    page.gauge("tidegate_source_endpoint_slices_left_out", help, []).sample([], sample.round.slices_left_out);

    source(page, sample.source);

    let (capacity, free) = sample.dataplane.packet_buffers;
    page.gauge("tidegate_packet_buffers", "Packet buffers (mbufs), by state.", ["state"])
        .sample(["free"], free)
        .sample(["used"], capacity.saturating_sub(free));
}

/// The API server, or the directory.
fn source(page: &mut Exposition, source: &SourceState) {
    let help =
        "1 while the source of objects answers; at 0 the gateway forwards with the last known objects.";
    page.gauge("tidegate_source_connected", help, []).sample([], source.connected);
    let help = "Unix time of the last change between a source that answers and one that does not.";
    page.gauge("tidegate_source_connected_timestamp_seconds", help, [])
        .sample([], seconds(Some(source.since)));
    let help = "Unix time at which the objects were last known to be up to date with the source; 0 before the first time.";
    let synced = source.last_sync(Timestamp::now());
    page.gauge("tidegate_source_last_sync_timestamp_seconds", help, []).sample([], seconds(synced));
    let help = "Attempts to read from the API server that failed.";
    page.counter("tidegate_source_failures_total", help, []).sample([], source.failures);
    let help = "1 while the gateway forwards with objects that it read from disk at the start, else 0.";
    page.gauge("tidegate_source_from_disk", help, []).sample([], source.from_disk);
    let help = "Files of objects on disk that could not be used at the start.";
    page.counter("tidegate_source_corrupt_files_total", help, []).sample([], source.corrupt_files);
    let help = "Objects that vanished from the API server or became older there, and that the gateway keeps for apiLossGrace.";
    let mut kept = page.gauge("tidegate_source_kept_objects", help, ["kind"]);
    for one in &*source.kept {
        kept.sample([one.kind], one.count);
    }
}

fn seconds(at: Option<Timestamp>) -> f64 {
    at.map_or(0.0, |at| at.as_duration().as_secs_f64())
}

/// Writes to the cluster.
pub(super) fn cluster(page: &mut Exposition, cluster: &tidegate_cluster::Reading) {
    let help = "1 while this gateway leads and writes the status of Services, else 0.";
    page.gauge("tidegate_leader", help, []).sample([], cluster.leads);
    let help = "Writes to Services and AddressPools that wait to be sent.";
    page.gauge("tidegate_cluster_writes_pending", help, []).sample([], cluster.pending);
    let help = "Writes to Services and AddressPools, by result.";
    let mut writes = page.counter("tidegate_cluster_writes_total", help, ["result"]);
    for (result, count) in cluster.writes {
        writes.sample([result], count);
    }
    let help = "Events about objects of the cluster, by result; dropped ones were over their rate limit.";
    let mut events = page.counter("tidegate_events_total", help, ["result"]);
    for (result, count) in cluster.events {
        events.sample([result], count);
    }
}

/// Owners of VIPs on layer 2.
pub(super) fn layer2(page: &mut Exposition, layer2: &Layer2Counts) {
    let help = "Groups of VIPs (Leases, or VRRP groups of keepalived) for which one of several gateways answers ARP and neighbour discovery, by whether this gateway is the owner.";
    page.gauge("tidegate_layer2_groups", help, ["owner"])
        .sample(["this"], layer2.owned)
        .sample(["other"], layer2.groups.saturating_sub(layer2.owned));
    let help = "Times that this gateway became the owner of a group of VIPs by a Lease.";
    page.counter("tidegate_layer2_leases_taken_total", help, []).sample([], layer2.taken);
    let help = "Looks at the Leases of VIPs, and writes to them, that failed; the gateway stops to answer for VIPs when its Leases end.";
    page.counter("tidegate_layer2_lease_failures_total", help, []).sample([], layer2.failures);
}

/// The exchange of flows with other gateways.
fn flow_sharing(page: &mut Exposition, sharing: &FlowSharingSample) {
    let help = "1 while flows are shared with this gateway and nothing was lost, else 0: connections may break if it takes over.";
    let mut up = page.gauge("tidegate_flow_sharing_peer_up", help, ["peer"]);
    for (peer, is_up, ..) in &sharing.peers {
        up.sample([peer], usize::from(*is_up));
    }
    let help = "Messages about flows that wait to be sent to this gateway.";
    let mut queue = page.gauge("tidegate_flow_sharing_peer_queue", help, ["peer"]);
    for (peer, _, waiting, _) in &sharing.peers {
        queue.sample([peer], *waiting);
    }
    let help = "Seconds since something was heard from this gateway. Absent if nothing was.";
    let mut silence = page.gauge("tidegate_flow_sharing_peer_silence_seconds", help, ["peer"]);
    for (peer, .., heard) in &sharing.peers {
        if let Some(heard) = heard {
            silence.sample([peer], *heard);
        }
    }
    let (sent, sent_again, received) = sharing.datagrams;
    let help = "Datagrams to other gateways, and those from them that were used.";
    page.counter("tidegate_flow_sharing_datagrams_total", help, ["direction"])
        .sample(["sent"], sent)
        .sample(["received"], received);
    let help = "Datagrams that were sent again because no acknowledgement came in time.";
    page.counter("tidegate_flow_sharing_resent_total", help, []).sample([], sent_again);
    let help = "Datagrams at the socket for flow sharing that were not used, by reason.";
    let mut rejected = page.counter("tidegate_flow_sharing_rejected_total", help, ["reason"]);
    for (reason, count) in &sharing.rejected {
        rejected.sample([*reason], *count);
    }
    let help =
        "Messages about flows from other gateways, by their result. Each worker counts those that it gets.";
    let mut learned = page.counter("tidegate_flow_sharing_learned_total", help, ["result"]);
    for (result, count) in &sharing.learned {
        learned.sample([*result], *count);
    }
    let help = "Messages about flows that were lost because too many waited, at a worker or for a peer. A walk of the flow tables repeats them.";
    let mut lost = page.counter("tidegate_flow_sharing_lost_total", help, ["at"]);
    for (at, count) in sharing.lost {
        lost.sample([at], count);
    }
}

/// The process, with the names that client libraries use.
pub(super) fn process(page: &mut Exposition, process: &Process) {
    let help = "User and system CPU time in seconds; a worker that polls uses all of its core.";
    page.counter("process_cpu_seconds_total", help, []).sample([], process.cpu_seconds);
    page.gauge("process_resident_memory_bytes", "Resident memory in bytes.", [])
        .sample([], process.resident_bytes);
    page.gauge("process_virtual_memory_bytes", "Virtual memory in bytes.", [])
        .sample([], process.virtual_bytes);
    page.gauge("process_open_fds", "Open file descriptors.", []).sample([], process.open_fds);
    if let Some(max) = process.max_fds {
        page.gauge("process_max_fds", "Limit of open file descriptors.", []).sample([], max);
    }
    page.gauge("process_threads", "Threads.", []).sample([], process.threads);
    let help = "Unix time at which the process started.";
    page.gauge("process_start_time_seconds", help, []).sample([], process.start_time_seconds);
}
