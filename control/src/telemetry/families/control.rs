//! The families of the control plane: desired states, pools, findings, the source, the cluster, other gateways.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use jiff::Timestamp;
use tidegate_admin_api::GatewayDrainState;
use tidegate_policy::reconcile::Reason;
use tidegate_source::SourceState;

use crate::telemetry::exposition::Exposition;
use crate::telemetry::sample::{FlowSharingSample, Layer2Counts, Sample};

/// The control plane.
pub(in crate::telemetry) fn control(page: &mut Exposition, sample: &Sample<'_>) {
    desired_states(page, sample);
    pools(page, sample);
    condition(page, sample);
    on_disk(page, sample);
    if let Some(sharing) = sample.flow_sharing {
        flow_sharing(page, sharing);
    }
    stale_files(page, sample);
    log_lines(page, sample);
    let help = "EndpointSlices whose endpoints are ignored because a Service lists too many or a namespace exceeds its share.";
    page.gauge("tidegate_source_endpoint_slices_left_out", help, []).sample([], sample.round.slices_left_out);

    source(page, sample.source);

    let (capacity, free) = sample.dataplane.packet_buffers;
    page.gauge("tidegate_packet_buffers", "Packet buffers (mbufs), by state.", ["state"])
        .sample(["free"], free)
        .sample(["used"], capacity.saturating_sub(free));
}

/// Desired states, and how long they take to reach the workers.
fn desired_states(page: &mut Exposition, sample: &Sample<'_>) {
    let help =
        "Generation of the latest desired state, and of the state that every worker has applied, by kind.";
    page.gauge("tidegate_snapshot_generation", help, ["kind"])
        .sample(["desired"], sample.publication.generations.desired)
        .sample(["applied"], sample.publication.generations.applied);
    let help = "Drain state of the gateway: 1 for the current state (serving, draining or drained).";
    let mut states = page.gauge("tidegate_gateway_state", help, ["state"]);
    for state in GatewayDrainState::ALL {
        states.sample([state.as_str()], usize::from(state == sample.gateway.drain));
    }
    let help =
        "Desired states that could not be published to the workers; the last good state keeps forwarding.";
    page.counter("tidegate_publish_failures_total", help, []).sample([], sample.publication.failures);
    let help = "Comparisons of an incremental result with one computed from scratch, by layer.";
    let mut made = page.counter("tidegate_incremental_comparisons_total", help, ["layer"]);
    for (layer, count, _) in sample.gateway.comparisons {
        made.sample([layer], *count);
    }
    let help = "Comparisons in which an incremental result differed from the one computed from scratch, by layer; a value above 0 \
                is a bug in the gateway.";
    let mut differed = page.counter("tidegate_incremental_differences_total", help, ["layer"]);
    for (layer, _, count) in sample.gateway.comparisons {
        differed.sample([layer], *count);
    }
    let help = "Duration of one reconcile, from its inputs to a snapshot that was published to the workers or refused.";
    page.histogram("tidegate_sync_duration_seconds", help, sample.publication.timings.sync.read());
    let help = "Time from when the source saw a change until every worker had applied it.";
    page.histogram(
        "tidegate_network_programming_duration_seconds",
        help,
        sample.publication.timings.programming.read(),
    );
}

/// Pools of addresses.
fn pools(page: &mut Exposition, sample: &Sample<'_>) {
    let help = "Addresses of the pool, by state: assigned to Services, free, reserved for gateways, nodes and others that use \
                them, or outside: assigned to Services although they are no longer in the pool.";
    let mut pools = page.gauge("tidegate_pool_addresses", help, ["pool", "state"]);
    for one in sample.round.pools {
        pools
            .sample([&one.pool, "assigned"], one.assigned)
            .sample([&one.pool, "free"], one.free())
            .sample([&one.pool, "reserved"], one.reserved)
            .sample([&one.pool, "outside"], one.outside);
    }
}

/// The health of the gateway and its objects.
fn condition(page: &mut Exposition, sample: &Sample<'_>) {
    let help =
        "1 while the gateway is ready (`/readyz` returns 200), else 0; a drained gateway is not ready.";
    page.gauge("tidegate_ready", help, []).sample([], sample.gateway.ready);
    let help = "Faults of the gateway that `tidegate status` shows as DEGRADED.";
    page.gauge("tidegate_degraded", help, []).sample([], sample.gateway.degraded);
    let mut findings: BTreeMap<&str, usize> = BTreeMap::new();
    for finding in sample.round.findings.iter().chain(sample.round.own_findings) {
        *findings.entry(finding.reason.as_str()).or_default() += 1;
    }
    let help = "Findings about objects, by reason: requests that were not granted, misconfigurations, and failures such as all health checks failing; only reasons that occur.";
    let mut family = page.gauge("tidegate_findings", help, ["reason"]);
    for (reason, count) in &findings {
        family.sample([reason], *count);
    }
    let denied = sample.round.findings.iter().filter(|one| one.reason == Reason::ExternalIpDenied).count();
    let help = "External IPs that Services request and that no pool authorises; at most 33 of each Service are counted.";
    page.gauge("tidegate_external_ip_denied", help, []).sample([], denied);
}

/// The configuration on disk, and the state that a restart needs.
fn on_disk(page: &mut Exposition, sample: &Sample<'_>) {
    let help = "1 while the latest configuration, or one of its lists, is refused and the previous one is in use, else 0.";
    page.gauge("tidegate_configuration_refused", help, [])
        .sample([], usize::from(sample.gateway.configuration_refused));
    let help = "1 while data that a restart needs is not saved, else 0, by kind of data: addresses of Services, \
                what operators have drained, flows, the lists of `protection`, the last objects.";
    let mut unsaved = page.gauge("tidegate_state_unsaved", help, ["state"]);
    for (what, is_unsaved) in sample.gateway.unsaved {
        unsaved.sample([what], usize::from(*is_unsaved));
    }
}

/// Files of manifests with errors.
fn stale_files(page: &mut Exposition, sample: &Sample<'_>) {
    let help = "Manifest files with errors whose last good state is kept.";
    page.gauge("tidegate_source_stale_files", help, []).sample([], sample.round.stale_files.len());
    let since = sample.round.stale_files.iter().map(|file| file.since).min();
    let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
    let help = "Unix time since which a manifest file has had errors, for the file with the oldest errors; 0 while no file has errors.";
    page.gauge("tidegate_source_stale_timestamp_seconds", help, [])
        .sample([], since.map_or(0.0, |since| since.as_secs_f64()));
}

/// Suppressed and lost log lines.
fn log_lines(page: &mut Exposition, sample: &Sample<'_>) {
    let help = "Log lines about faults of objects and about failed writes that were suppressed because their namespace had too many.";
    page.counter("tidegate_log_lines_left_out_total", help, []).sample([], sample.log.suppressed);
    let help = "Log lines that were lost because nothing read standard error.";
    page.counter("tidegate_log_lines_lost_total", help, []).sample([], sample.log.lost);
}

/// The API server, or the directory.
fn source(page: &mut Exposition, source: &SourceState) {
    let help =
        "1 while the source of objects answers, else 0: the gateway forwards with the last known objects.";
    page.gauge("tidegate_source_connected", help, []).sample([], source.connected);
    let help = "Unix time at which the source of objects last started or stopped answering.";
    page.gauge("tidegate_source_connected_timestamp_seconds", help, [])
        .sample([], seconds(Some(source.since)));
    let help = "Unix time at which the objects were last known to be up to date with the source; 0 before the first time.";
    let synced = source.last_sync(Timestamp::now());
    page.gauge("tidegate_source_last_sync_timestamp_seconds", help, []).sample([], seconds(synced));
    let help = "Failed attempts to read from the API server.";
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
pub(in crate::telemetry) fn cluster(page: &mut Exposition, cluster: &tidegate_cluster::Reading) {
    let help = "1 while this gateway leads and writes the status of Services, else 0.";
    page.gauge("tidegate_leader", help, []).sample([], cluster.leads);
    let help = "Writes to Services and AddressPools that are waiting to be sent.";
    page.gauge("tidegate_cluster_writes_pending", help, []).sample([], cluster.pending);
    let help = "Writes to Services and AddressPools, by result.";
    let mut writes = page.counter("tidegate_cluster_writes_total", help, ["result"]);
    for (result, count) in cluster.writes {
        writes.sample([result], count);
    }
    let help = "Events about objects of the cluster, by result; dropped ones exceeded their rate limit.";
    let mut events = page.counter("tidegate_events_total", help, ["result"]);
    for (result, count) in cluster.events {
        events.sample([result], count);
    }
}

/// Owners of VIPs on layer 2.
pub(in crate::telemetry) fn layer2(page: &mut Exposition, layer2: &Layer2Counts) {
    let help = "Groups of VIPs (Leases, or VRRP groups of keepalived) for which only one gateway answers ARP and neighbour discovery, by whether this gateway is the owner.";
    page.gauge("tidegate_layer2_groups", help, ["owner"])
        .sample(["this"], layer2.owned)
        .sample(["other"], layer2.groups.saturating_sub(layer2.owned));
    let help = "Times that this gateway acquired the Lease of a group of VIPs.";
    page.counter("tidegate_layer2_leases_taken_total", help, []).sample([], layer2.taken);
    let help = "Failed reads and writes of the Leases of VIPs; the gateway stops answering for VIPs when its Leases expire.";
    page.counter("tidegate_layer2_lease_failures_total", help, []).sample([], layer2.failures);
}

/// Sharing flows with other gateways.
fn flow_sharing(page: &mut Exposition, sharing: &FlowSharingSample) {
    let help = "1 while flows are shared with this peer and nothing was lost, else 0: connections may break if it takes over.";
    let mut up = page.gauge("tidegate_flow_sharing_peer_up", help, ["peer"]);
    for (peer, is_up, ..) in &sharing.peers {
        up.sample([peer], usize::from(*is_up));
    }
    let help = "Messages about flows that are waiting to be sent to this peer.";
    let mut queue = page.gauge("tidegate_flow_sharing_peer_queue", help, ["peer"]);
    for (peer, _, waiting, _) in &sharing.peers {
        queue.sample([peer], *waiting);
    }
    let help = "Seconds since anything was received from this peer; absent if nothing was.";
    let mut silence = page.gauge("tidegate_flow_sharing_peer_silence_seconds", help, ["peer"]);
    for (peer, .., seconds) in &sharing.peers {
        if let Some(seconds) = seconds {
            silence.sample([peer], *seconds);
        }
    }
    let (sent, sent_again, received) = sharing.datagrams;
    let help = "Datagrams sent to other gateways, and accepted from them, by direction.";
    page.counter("tidegate_flow_sharing_datagrams_total", help, ["direction"])
        .sample(["sent"], sent)
        .sample(["received"], received);
    let help = "Datagrams that were resent because no acknowledgement arrived in time.";
    page.counter("tidegate_flow_sharing_resent_total", help, []).sample([], sent_again);
    let help = "Datagrams received by the flow sharing socket that were rejected, by reason.";
    let mut rejected = page.counter("tidegate_flow_sharing_rejected_total", help, ["reason"]);
    for (reason, count) in &sharing.rejected {
        rejected.sample([*reason], *count);
    }
    let help = "Messages about flows received from other gateways, by result; a message that several workers receive counts once for each.";
    let mut results = page.counter("tidegate_flow_sharing_learned_total", help, ["result"]);
    for (result, count) in &sharing.results {
        results.sample([*result], *count);
    }
    let help = "Messages about flows that were lost because the queue of a worker or a peer was full; a walk of the flow tables repeats them.";
    let mut lost = page.counter("tidegate_flow_sharing_lost_total", help, ["at"]);
    for (at, count) in sharing.lost {
        lost.sample([at], count);
    }
}
