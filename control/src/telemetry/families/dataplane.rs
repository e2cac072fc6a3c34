//! The families of the dataplane: interfaces, frames, the kernel, workers and their flows.

use std::borrow::Cow;

use tidegate_conntrack::NotRestored;
use tidegate_dataplane::gateway::{InterfaceLink, LinkState, PortReport, Restored, Stats, WorkerState};
use tidegate_pipeline::pipeline::CookieCounts;
use tidegate_spec::verdict::DropReason;

use crate::telemetry::exposition::Exposition;

/// Links of interfaces, and of the taps that mirror them for the kernel.
pub(in crate::telemetry) fn links(page: &mut Exposition, links: &[InterfaceLink]) {
    let is_up = |state: LinkState| state == LinkState::Up;
    let help = "1 while the interface has a link; else 0, which makes the gateway not ready.";
    let mut up = page.gauge("tidegate_interface_up", help, ["interface"]);
    for link in links {
        up.sample([&link.name], is_up(link.port.state));
    }
    let help = "Changes of the interface's link state (up, down, no carrier, gone) since the start.";
    let mut transitions = page.counter("tidegate_interface_transitions_total", help, ["interface"]);
    for link in links {
        transitions.sample([&link.name], link.port.transitions);
    }
    let help = "How often another program has changed the MAC address of the interface's device since the start; the \
                gateway restores a configured address.";
    let mut changes = page.counter("tidegate_interface_mac_changes_total", help, ["interface"]);
    for link in links {
        changes.sample([&link.name], link.mac_changes);
    }
    let taps = || links.iter().filter_map(|link| link.tap.as_ref().map(|(_, tap)| (&link.name, tap)));
    let help = "1 while the tap through which the kernel sends and receives on the interface is up, else 0.";
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

/// The counters of the ports' drivers.
pub(in crate::telemetry) fn ports(page: &mut Exposition, links: &[InterfaceLink], ports: &[PortReport]) {
    let ports = || links.iter().zip(ports);
    let help = "Counters of the interface's driver, by DPDK's name (rx_missed_errors, rx_q0_packets ...); read once a second, and reset when the device is opened.";
    let mut stats = page.counter("tidegate_port_stat_total", help, ["interface", "stat"]);
    for (link, port) in ports() {
        for (stat, value) in &port.stats {
            stats.sample([&link.name, stat.as_str()], *value);
        }
    }
    let help = "Speed of the interface's link in bytes per second; absent if unknown.";
    let mut speed = page.gauge("tidegate_interface_speed_bytes", help, ["interface"]);
    for (link, port) in ports() {
        if let Some(mbps) = port.mbps {
            speed.sample([&link.name], u64::from(mbps) * 125_000);
        }
    }
}

/// Frames by interface and by verdict.
pub(in crate::telemetry) fn frames(page: &mut Exposition, stats: &Stats, names: &[String]) {
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

    let help = "Sampled packets with a partial TCP or UDP checksum, because the sender expected its NIC to complete \
                the checksum; receivers drop such packets.";
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
    let help = "Sampled packets, by whether RSS delivered them to the worker that the gateway had computed (expected) \
                or to another worker (elsewhere: replies of fullnat may be lost); 0 if drivers do not report how \
                they distribute packets.";
    page.counter("tidegate_rss_checks_total", help, ["result"])
        .sample(["expected"], stats.arrivals_as_computed)
        .sample(["elsewhere"], stats.arrivals_elsewhere);
}

/// Frames between the workers and the kernel, and the neighbours that the slow path resolves.
pub(in crate::telemetry) fn kernel(page: &mut Exposition, stats: &Stats) {
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
    let help = "Neighbours that a packet needed (on_demand) and that were not added, because all on_demand entries of \
                the link and address family were in use.";
    page.counter("tidegate_neighbors_refused_total", help, []).sample([], slow.neighbors_refused);
    let help = "On-demand neighbours that were evicted in favour of newer ones.";
    page.counter("tidegate_neighbors_evicted_total", help, []).sample([], slow.neighbors_evicted);
    let help = "Entries of the neighbour table, by kind: next hops of backends and routes (next_hop), and other \
                neighbours, added when a packet needs them (on_demand).";
    page.gauge("tidegate_neighbors", help, ["kind"])
        .sample(["next_hop"], stats.neighbors.next_hops)
        .sample(["on_demand"], stats.neighbors.on_demand);
    let help = "Capacity of the neighbour table in entries, by kind.";
    page.gauge("tidegate_neighbors_max", help, ["kind"])
        .sample(["next_hop"], stats.neighbors.next_hops_max)
        .sample(["on_demand"], stats.neighbors.on_demand_max);
    let help = "Frames for the kernel, by class and result: passed on, over the rate limit of the class, or dropped at a full queue.";
    let mut family = page.counter("tidegate_punts_by_class_total", help, ["class", "result"]);
    for (class, count) in &stats.punt_classes {
        family
            .sample([class.as_str(), "passed"], count.passed)
            .sample([class.as_str(), "rate_limited"], count.rate_limited)
            .sample([class.as_str(), "queue_full"], count.queue_full);
    }
    let help = "Frames from the kernel and from neighbour resolution that workers sent.";
    page.counter("tidegate_injected_packets_total", help, []).sample([], slow.injected);
    let help = "Frames from the kernel and from neighbour resolution that were dropped because the transmit queue was \
                full.";
    page.counter("tidegate_injected_drops_total", help, []).sample([], slow.injected_dropped);
}

/// Workers and their flows.
pub(in crate::telemetry) fn workers(page: &mut Exposition, stats: &Stats) {
    let workers: Vec<_> = stats.workers.iter().map(|one| (one.worker.to_string(), one)).collect();
    let mut gauge =
        page.gauge("tidegate_worker_up", "1 while the worker runs and makes progress, else 0.", ["worker"]);
    for (worker, one) in &workers {
        gauge.sample([worker], one.state == WorkerState::Running);
    }
    let help = "1 while the slow path runs (the thread for the kernel's packets and for neighbour resolution), else 0.";
    page.gauge("tidegate_slow_path_up", help, []).sample([], stats.slow_path.is_healthy);
    let help = "How often a worker or the slow path started to hang (the thread was alive but made no progress), by \
                thread.";
    let mut counter = page.counter("tidegate_thread_hangs_total", help, ["thread"]);
    for (worker, one) in &workers {
        counter.sample([&format!("worker {worker}")], one.hangs);
    }
    counter.sample(["slow path"], stats.slow_path.hangs);
    let help = "Fraction of time in which the worker had work, from 0 to 1, over the last second or longer.";
    let mut gauge = page.gauge("tidegate_worker_busy_ratio", help, ["worker"]);
    for (worker, one) in &workers {
        gauge.sample([worker], one.busy_ratio);
    }
    let help =
        "CPU cycles per frame while the worker had work, over the last second or longer; 0 without traffic.";
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
    let help = "Neighbour resolution requests of the worker that were lost because a queue was full; the next packet \
                repeats the request.";
    let mut counter = page.counter("tidegate_neighbor_events_lost_total", help, ["worker"]);
    for (worker, one) in &workers {
        counter.sample([worker], one.neighbor_events_lost);
    }
    let mut gauge = page.gauge("tidegate_flows", "Flows in the worker's flow tables.", ["worker"]);
    for (worker, one) in &workers {
        gauge.sample([worker], one.flows);
    }
    let help = "SYN cookies, by result: sent to clients, accepted from clients, or refused (segments without a valid \
                cookie).";
    let mut counter = page.counter("tidegate_syn_cookies_total", help, ["result"]);
    let sum =
        |of: fn(&CookieCounts) -> u64| stats.workers.iter().map(|one| of(&one.syn_cookies)).sum::<u64>();
    counter.sample(["sent"], sum(|counts| counts.sent));
    counter.sample(["accepted"], sum(|counts| counts.accepted));
    counter.sample(["refused"], sum(|counts| counts.refused));
    let help = "Service ports for which the worker uses SYN cookies because of a SYN flood.";
    let mut gauge = page.gauge("tidegate_services_under_syn_flood", help, ["worker"]);
    for (worker, one) in &workers {
        gauge.sample([worker], one.services_under_flood);
    }
    let help = "Flows removed from a flow table, by reason.";
    let mut counter = page.counter("tidegate_flow_evictions_total", help, ["reason"]);
    for (why, count) in &stats.evictions {
        counter.sample([why.as_str()], *count);
    }
    let help = "New flows that got no entry in the full flow table because no other flow could be evicted.";
    page.counter("tidegate_flows_refused_total", help, []).sample([], stats.flows_refused);
    let help = "How often a worker set a backend aside (gave it no more new flows) because the backend refused or \
                ignored connections.";
    page.counter("tidegate_backends_set_aside_total", help, []).sample([], stats.backends_set_aside);
    let help = "How often a backend answered a new connection after a worker had set it aside (given it no new \
                flows).";
    page.counter("tidegate_backends_returned_total", help, []).sample([], stats.backends_returned);
    let help = "Resets and ICMP errors that were not sent because of the rate limit of their kind.";
    let mut counter = page.counter("tidegate_answers_suppressed_total", help, ["kind"]);
    for (kind, count) in &stats.answers_suppressed {
        counter.sample([kind.as_str()], *count);
    }
    let help = "ICMP errors that reduced the path MTU of a tunnel.";
    page.counter("tidegate_path_mtus_learnt_total", help, []).sample([], stats.path_mtus_received);
}

/// The flows of earlier processes found at the start.
pub(in crate::telemetry) fn restored(page: &mut Exposition, restored: &Restored) {
    let help = "Flows that this process found in the flow tables of earlier processes, by result: restored, or the \
                reason why the flow was not restored.";
    let mut gauge = page.gauge("tidegate_restored_flows", help, ["result"]);
    gauge.sample(["restored"], restored.counts.restored);
    for (why, count) in NotRestored::ALL.iter().zip(restored.counts.not_restored) {
        gauge.sample([why.as_str()], count);
    }
    let help = "Flow tables of earlier processes that were refused; if a whole process was refused (another version, \
                or a reboot), all its tables count as one.";
    page.gauge("tidegate_restored_refused_tables", help, []).sample([], restored.refused_tables);
    let help =
        "Longest time for which a worker restored flows at the start; a worker forwards nothing meanwhile.";
    page.gauge("tidegate_restored_seconds", help, []).sample([], restored.took.as_secs_f64());
}
