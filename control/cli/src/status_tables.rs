//! The text of `status`: lines about the gateway as a whole, and tables of its parts.

use std::fmt::Write as _;

use tidegate_admin_api::{
    FindingView, FlowLogStatus, FlowPeerStatus, FlowSharingStatus, GatewayDrainState, GatewayDrainStatus,
    InterfaceStatus, LatencyStatus, NeighborsStatus, RestoredStatus, SourceStatus, Status, WorkerStatus,
};

use super::announce_tables;
use super::output::{Format, Style, Table, age};

/// The text of `status`: the gateway as a whole, then tables of its parts. `-o wide` adds latencies and the complete
/// findings.
pub(super) fn status(status: &Status, style: Style) -> String {
    let mut text = String::new();
    for (key, value) in facts(status) {
        writeln!(text, "{:<12} {value}", format!("{key}:")).expect("writing to a String cannot fail");
    }
    let is_wide = style.format == Format::Wide;
    let latencies = if is_wide { &*status.latencies } else { &[] };
    let tables = [
        workers(&status.workers),
        latency_table(latencies),
        interfaces(&status.interfaces),
        ports(if is_wide { &status.interfaces } else { &[] }),
        announce_tables::peers(
            status.announce.iter().flat_map(|a| &a.bgp).next().map_or(&[], |bgp| &bgp.peers),
        ),
        findings(&status.findings),
    ];
    for table in tables.into_iter().filter(|table| !table.is_empty()) {
        text.push('\n');
        text.push_str(&table.render(is_wide, !style.no_headers));
    }
    for error in &status.source.errors {
        writeln!(text, "\n{error}").expect("writing to a String cannot fail");
    }
    text
}

/// The gateways in one line each, for `status -w`.
pub(super) fn lines(all: &[&Status]) -> Table {
    let headers = [
        "NAME",
        "READY",
        "HEALTHY",
        "STATE",
        "SERVICES",
        "PENDING",
        "BACKENDS",
        "FINDINGS",
        "SOURCE",
        "GENERATION",
        "UPTIME",
        "+DEGRADED",
    ];
    let mut table = Table::new(&headers);
    let yes = |is_so: bool| if is_so { "yes" } else { "no" }.to_owned();
    for status in all {
        table.row([
            status.name.clone(),
            yes(status.ready),
            yes(status.healthy),
            status.drain.state.as_str().to_owned(),
            status.services.to_string(),
            status.services_pending.to_string(),
            format!("{}/{}", status.backends_active, status.backends),
            status.findings.len().to_string(),
            if status.source.connected { "connected" } else { "lost" }.to_owned(),
            format!("{}/{}", status.generation_applied, status.generation_desired),
            age(status.uptime_seconds),
            status.degraded.join("; "),
        ]);
    }
    table
}

/// The lines about the gateway as a whole: name and value.
#[must_use]
pub fn facts(status: &Status) -> Vec<(&'static str, String)> {
    let mut facts = Vec::new();
    let mut fact = |key: &'static str, value: String| facts.push((key, value));
    let word = |yes: bool| if yes { "yes" } else { "no" };
    fact("Name", status.name.clone());
    fact("Version", status.version.clone());
    fact("Pid", status.pid.to_string());
    fact("Up for", age(status.uptime_seconds));
    fact("Healthy", word(status.healthy).to_owned());
    fact("Ready", word(status.ready).to_owned());
    status.degraded.iter().for_each(|what| fact("DEGRADED", what.clone()));
    fact(
        "Generation",
        format!("{} applied, {} desired", status.generation_applied, status.generation_desired),
    );
    if let Some(fingerprint) = &status.selection_key {
        fact("Selection", format!("key fingerprint {fingerprint}"));
    }
    if !status.layer2.is_empty() {
        let groups = status.layer2.iter().map(|(group, owner)| format!("{group}: {owner}"));
        fact("Layer 2", groups.collect::<Vec<_>>().join(", "));
    }
    if let Some(sharing) = &status.flow_sharing {
        fact("Sharing", flow_sharing(sharing));
        sharing.peers.iter().for_each(|peer| fact("Peer", flow_peer(peer, &sharing.key)));
    }
    if let Some(log) = &status.flow_log {
        fact("Flow log", flow_log(log));
        log.troubles.iter().for_each(|what| fact("Flow log lacks", what.clone()));
    }
    let SourceStatus { kind, location, errors, since, last_error, .. } = &status.source;
    let faults = if errors.is_empty() { String::new() } else { format!(" ({} faults)", errors.len()) };
    fact("Source", format!("{kind} {location}{faults}"));
    if let Some(cluster) = &status.cluster {
        let waiting = format!("{} writes pending, {} failed", cluster.writes_pending, cluster.writes_failed);
        let other = cluster.leader.as_deref().map_or_else(|| "unknown".to_owned(), str::to_owned);
        fact("Leader", if cluster.leads { format!("yes, {waiting}") } else { format!("no, {other}") });
    }
    if let Some(since) = since.as_ref().filter(|_| !status.source.connected) {
        let objects =
            if status.source.from_disk { "the objects saved on disk" } else { "the last known objects" };
        let why = last_error.as_deref().unwrap_or("no answer yet");
        fact("Source lost", format!("since {since} ({why}); forwarding with {objects}"));
    }
    if let Some(why) = last_error.as_ref().filter(|_| status.source.connected) {
        fact("Source lacks", why.clone());
    }
    status.source.kept.iter().for_each(|kept| fact("Source kept", kept.clone()));
    let NeighborsStatus { next_hops, next_hops_max, on_demand, on_demand_max } = status.neighbors;
    let full = if status.neighbors.is_full() { ", full: further next hops are ignored" } else { "" };
    let usage = format!(
        "{next_hops} of {next_hops_max} next hops, {on_demand} of {on_demand_max} other neighbors{full}"
    );
    fact("Neighbors", usage);
    fact("Services", format!("{}, {} pending", status.services, status.services_pending));
    status.refused.iter().for_each(|object| fact("Refused", object.clone()));
    fact("Backends", format!("{} of {} active", status.backends_active, status.backends));
    if let Some(restored) = &status.restored {
        fact("Restored", restored_flows(restored));
    }
    if let Some(announce) = &status.announce {
        announce_tables::facts(announce).into_iter().for_each(|(key, value)| fact(key, value));
    }
    let drained = if status.drained.is_empty() { "none".to_owned() } else { status.drained.join(", ") };
    fact("Drained", drained);
    if status.drain.state != GatewayDrainState::Serving {
        let GatewayDrainStatus { state, by, since, .. } = &status.drain;
        let by: Vec<&str> = by.iter().map(|by| by.as_str()).collect();
        let since = since.as_deref().unwrap_or("now");
        let progress = drain_progress(&status.drain);
        fact("Gateway", format!("{} since {since} (by {}): {progress}", state.as_str(), by.join(", ")));
    }
    facts
}

/// Where flows are logged, and what was lost, as text.
fn flow_log(log: &FlowLogStatus) -> String {
    let lost = log.lost.iter().map(|(reason, count)| format!(", {count} lost ({reason})"));
    format!("{}: {} records{}", log.outputs.join(", "), log.records, lost.collect::<String>())
}

/// How flows are shared, as text.
fn flow_sharing(sharing: &FlowSharingStatus) -> String {
    format!(
        "mode {}, key fingerprint {}{}{}",
        sharing.mode,
        sharing.key,
        sharing.accepted_key.as_ref().map(|key| format!(", also accepts key {key}")).unwrap_or_default(),
        if sharing.finds_peers { ", discovers peers" } else { "" }
    )
}

/// A gateway with which flows are shared, as text. Its key is shown if it is not `own_key`.
fn flow_peer(peer: &FlowPeerStatus, own_key: &str) -> String {
    let name = peer.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
    let silence = peer
        .heard_ago_milliseconds
        .map(|ms| format!(", last message received {ms} ms ago"))
        .unwrap_or_default();
    let waiting = format!("{} messages queued, {} batches unacknowledged", peer.waiting, peer.unacknowledged);
    let key = peer.key.as_ref().filter(|key| *key != own_key);
    let key = key.map(|key| format!(", key {key}")).unwrap_or_default();
    format!("{}{name} {}{silence}, {waiting}{key}", peer.address, peer.state)
}

/// What happened to the flows of earlier processes, as text.
fn restored_flows(restored: &RestoredStatus) -> String {
    let RestoredStatus { done, flows, not_restored, refused_tables, milliseconds } = restored;
    let mut text = format!("{flows} flows of the previous process");
    if !done {
        text.push_str(", still restoring");
    } else if flows + not_restored.values().sum::<u64>() > 0 {
        text.push_str(&format!(" in {milliseconds} ms"));
    }
    for (why, count) in not_restored {
        text.push_str(&format!(", {count} lost ({why})"));
    }
    if *refused_tables > 0 {
        text.push_str(&format!("; at least {refused_tables} flow tables were not restored; see the log"));
    }
    text
}

/// The traffic that a draining gateway still receives, as text.
pub(super) fn drain_progress(drain: &GatewayDrainStatus) -> String {
    let GatewayDrainStatus { flows, packets_per_second, last_packet, quiet_seconds, .. } = drain;
    let last = match last_packet {
        Some(at) => format!("the last packet at {at}"),
        None => "no packet since the drain started".to_owned(),
    };
    format!(
        "{packets_per_second:.0} packets/s, {last}, {flows} flows; drained after {quiet_seconds} s without a packet"
    )
}

/// The table of the workers.
#[must_use]
pub fn workers(all: &[WorkerStatus]) -> Table {
    let headers =
        ["WORKER", "CORE", "STATE", "BUSY", "CYCLES/PACKET", "FLOWS", "+FLOW-TABLE-MIB", "+FLOW-TABLE-PAGES"];
    let mut workers = Table::new(&headers);
    for w in all {
        workers.row([
            w.worker.to_string(),
            w.core.to_string(),
            w.state.clone(),
            format!("{:.1}%", 100.0 * w.busy_ratio),
            format!("{:.0}", w.cycles_per_packet),
            w.flows.to_string(),
            (w.flow_table_bytes >> 20).to_string(),
            w.flow_table_pages.clone(),
        ]);
    }
    workers
}

fn latency_table(all: &[LatencyStatus]) -> Table {
    let mut latencies = Table::new(&["LATENCY", "COUNT", "P50(us)", "P99(us)", "MAX(us)"]);
    for one in all {
        let micros = |value: f64| format!("{value:.1}");
        let [p50, p99, max] = [one.p50_us, one.p99_us, one.max_us].map(micros);
        latencies.row([one.name.clone(), one.count.to_string(), p50, p99, max]);
    }
    latencies
}

/// The ports as their drivers report them, for `-o wide`.
#[must_use]
pub fn ports(all: &[InterfaceStatus]) -> Table {
    let headers = [
        "PORT",
        "DRIVER",
        "SPEED",
        "MTU",
        "QUEUES",
        "RSS",
        "DESCRIPTORS",
        "RX-MISSED",
        "RX-OFFLOADS",
        "TX-OFFLOADS",
    ];
    let mut ports = Table::new(&headers);
    for InterfaceStatus { name, port, .. } in all {
        ports.row([
            name.clone(),
            port.driver.clone(),
            port.speed_mbps.map(|mbps| format!("{mbps}Mbit/s")).unwrap_or_default(),
            port.mtu.to_string(),
            port.queues.to_string(),
            port.rss.clone(),
            format!("{}/{}", port.rx_descriptors, port.tx_descriptors),
            port.rx_missed.to_string(),
            port.rx_offloads.join(","),
            port.tx_offloads.join(","),
        ]);
    }
    ports
}

/// The table of the interfaces.
#[must_use]
pub fn interfaces(all: &[InterfaceStatus]) -> Table {
    let headers = [
        "INTERFACE",
        "DEVICE",
        "MAC",
        "LINK",
        "SINCE",
        "RX-PACKETS",
        "TX-PACKETS",
        "+RX-BYTES",
        "+TX-BYTES",
        "+TAP",
        "+TAP-LINK",
    ];
    let mut interfaces = Table::new(&headers);
    for i in all {
        interfaces.row([
            i.name.clone(),
            i.device.clone(),
            i.mac.clone(),
            i.link.state.clone(),
            i.link.since.clone(),
            i.rx_packets.to_string(),
            i.tx_packets.to_string(),
            i.rx_bytes.to_string(),
            i.tx_bytes.to_string(),
            i.tap.as_ref().map(|tap| tap.name.clone()).unwrap_or_default(),
            i.tap.as_ref().map(|tap| tap.link.state.clone()).unwrap_or_default(),
        ]);
    }
    interfaces
}

/// The table of findings.
#[must_use]
pub fn findings(all: &[FindingView]) -> Table {
    let mut findings = Table::new(&["SEVERITY", "REASON", "OBJECT", "MESSAGE", "+ACCEPTED", "+LOCATION"]);
    for f in all {
        findings.row([
            f.severity.clone(),
            f.reason.clone(),
            f.object.clone(),
            f.message.clone(),
            f.accepted.clone().unwrap_or_default(),
            f.location.clone().unwrap_or_default(),
        ]);
    }
    findings
}
