//! The families of the control plane: desired states, pools, findings, the source, the cluster, other gateways.

use std::collections::BTreeMap;
use std::time::UNIX_EPOCH;

use jiff::Timestamp;
use tidegate_admin_api::GatewayDrainState;
use tidegate_policy::reconcile::Reason;
use tidegate_source::SourceState;

use crate::telemetry::exposition::Exposition;
use crate::telemetry::latency::{PROGRAMMING, SYNC};
use crate::telemetry::sample::{FlowLogSample, FlowSharingSample, Layer2Counts, Sample};

/// The control plane.
pub(in crate::telemetry) fn control(page: &mut Exposition, sample: &Sample<'_>) {
    desired_states(page, sample);
    pools(page, sample);
    condition(page, sample);
    on_disk(page, sample);
    if let Some(sharing) = sample.flow_sharing {
        flow_sharing(page, sharing);
    }
    if let Some(log) = sample.flow_log {
        flow_log(page, log);
    }
    stale_files(page, sample);
    log_lines(page, sample);
    let help = "EndpointSlices that are ignored because their Service has too many endpoints or their namespace \
                exceeds its share of memory.";
    page.gauge("tidegate_source_endpoint_slices_left_out", help, []).sample([], sample.round.slices_left_out);

    source(page, sample.source);
    credentials(page, sample.credentials_expire);

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
    let help = "Desired states that could not be published to the workers; the workers keep using the last good state.";
    page.counter("tidegate_publish_failures_total", help, []).sample([], sample.publication.failures);
    let help = "Self-checks that compared an incremental update with a full recomputation, by layer.";
    let mut made = page.counter("tidegate_incremental_comparisons_total", help, ["layer"]);
    for (layer, count, _) in sample.gateway.comparisons {
        made.sample([layer], *count);
    }
    let help = "Self-checks in which an incremental update differed from a full recomputation, by layer; a value \
                above 0 is a bug in the gateway.";
    let mut differed = page.counter("tidegate_incremental_differences_total", help, ["layer"]);
    for (layer, _, count) in sample.gateway.comparisons {
        differed.sample([layer], *count);
    }
    let help = "Duration of one reconcile, from reading its inputs until a snapshot was published to the workers or \
                refused.";
    page.histogram("tidegate_sync_duration_seconds", help, &sample.publication.timings.sync.read(), SYNC);
    let help =
        "Time from when the gateway saw a change of an object until every worker had applied the change.";
    page.histogram(
        "tidegate_network_programming_duration_seconds",
        help,
        &sample.publication.timings.programming.read(),
        PROGRAMMING,
    );
}

/// Pools of addresses.
fn pools(page: &mut Exposition, sample: &Sample<'_>) {
    let help = "Addresses of the pool, by state: assigned to a Service, free, reserved (used by a gateway, a node or \
                another host), or outside (still assigned to a Service, but no longer in the pool).";
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
    let help = "Findings about objects, by reason: requests that were not granted, misconfigurations, and failures \
                such as all health checks failing; absent for a reason without findings.";
    let mut family = page.gauge("tidegate_findings", help, ["reason"]);
    for (reason, count) in &findings {
        family.sample([reason], *count);
    }
    let denied = sample.round.findings.iter().filter(|one| one.reason == Reason::ExternalIpDenied).count();
    let help =
        "External IPs that Services request but no pool authorises; at most 33 per Service are counted.";
    page.gauge("tidegate_external_ip_denied", help, []).sample([], denied);
}

/// The configuration on disk, and the state that a restart needs.
fn on_disk(page: &mut Exposition, sample: &Sample<'_>) {
    let help = "1 while the gateway refuses the latest configuration or a list file of `protection` and uses the last \
                good one, else 0.";
    page.gauge("tidegate_configuration_refused", help, [])
        .sample([], usize::from(sample.gateway.configuration_refused));
    let help = "1 while data that a restart needs is not saved, else 0, by kind of data: addresses of Services, \
                drains by operators, flows, the lists of `protection`, and the last known objects.";
    let mut unsaved = page.gauge("tidegate_state_unsaved", help, ["state"]);
    for (what, is_unsaved) in sample.gateway.unsaved {
        unsaved.sample([what], usize::from(*is_unsaved));
    }
}

/// Files of manifests with errors.
fn stale_files(page: &mut Exposition, sample: &Sample<'_>) {
    let help = "Manifest files with errors; the gateway keeps using the last good content of each file.";
    page.gauge("tidegate_source_stale_files", help, []).sample([], sample.round.stale_files.len());
    let since = sample.round.stale_files.iter().map(|file| file.since).min();
    let since = since.and_then(|since| since.duration_since(UNIX_EPOCH).ok());
    let help = "Unix time of the oldest error that a manifest file still has; 0 while no file has errors.";
    page.gauge("tidegate_source_stale_timestamp_seconds", help, [])
        .sample([], since.map_or(0.0, |since| since.as_secs_f64()));
}

/// Suppressed and lost log lines.
fn log_lines(page: &mut Exposition, sample: &Sample<'_>) {
    let help = "Log lines about faulty objects, failed writes and events that were suppressed, because there were too many for \
                one namespace.";
    page.counter("tidegate_log_lines_left_out_total", help, []).sample([], sample.log.suppressed);
    let help = "Log lines that were lost because no program read standard error.";
    page.counter("tidegate_log_lines_lost_total", help, []).sample([], sample.log.lost);
    let help = "Recorded events, as `tidegate events` shows them.";
    let mut events = page.counter("tidegate_recorded_events_total", help, ["reason"]);
    for (reason, count) in sample.log.events {
        events.sample([reason.as_str()], *count);
    }
}

/// The API server, or the directory.
fn source(page: &mut Exposition, source: &SourceState) {
    let help = "1 while the source of objects (API server or directory) answers; while 0, the gateway forwards with \
                the last known objects.";
    page.gauge("tidegate_source_connected", help, []).sample([], source.connected);
    let help = "Unix time at which the source of objects (API server or directory) last started or stopped answering.";
    page.gauge("tidegate_source_connected_timestamp_seconds", help, [])
        .sample([], seconds(Some(source.since)));
    let help = "Unix time at which the objects were last known to match their source (API server or directory); 0 \
                before the first time.";
    let synced = source.last_sync(Timestamp::now());
    page.gauge("tidegate_source_last_sync_timestamp_seconds", help, []).sample([], seconds(synced));
    let help = "Failed attempts to read from the API server.";
    page.counter("tidegate_source_failures_total", help, []).sample([], source.failures);
    let help = "1 while the gateway forwards with objects that it read from disk at the start, because the API server \
                has not answered yet; else 0.";
    page.gauge("tidegate_source_from_disk", help, []).sample([], source.from_disk);
    let help = "Files with saved objects that could not be used at startup.";
    page.counter("tidegate_source_corrupt_files_total", help, []).sample([], source.corrupt_files);
    let help = "Objects that vanished from the API server or went back to an older version there; the gateway keeps \
                its copies for apiLossGrace.";
    let mut kept = page.gauge("tidegate_source_kept_objects", help, ["kind"]);
    for one in &*source.kept {
        kept.sample([one.kind], one.count);
    }
}

/// The credentials for the API server.
fn credentials(page: &mut Exposition, expire: Option<Timestamp>) {
    let help = "Unix time at which the token or the client certificate for the API server expires, whichever needs \
                attention first; absent if neither expires.";
    let mut family = page.gauge("tidegate_source_credentials_expiry_timestamp_seconds", help, []);
    if expire.is_some() {
        family.sample([], seconds(expire));
    }
}

fn seconds(at: Option<Timestamp>) -> f64 {
    at.map_or(0.0, |at| at.as_duration().as_secs_f64())
}

/// Writes to the cluster.
pub(in crate::telemetry) fn cluster(page: &mut Exposition, cluster: &tidegate_cluster::Reading) {
    let help = "1 while this gateway is the leader, which writes the status of Services, else 0.";
    page.gauge("tidegate_leader", help, []).sample([], cluster.leads);
    let help = "Writes to Services and AddressPools that are waiting to be sent.";
    page.gauge("tidegate_cluster_writes_pending", help, []).sample([], cluster.pending);
    let help = "Writes to Services and AddressPools, by result.";
    let mut writes = page.counter("tidegate_cluster_writes_total", help, ["result"]);
    for (result, count) in cluster.writes {
        writes.sample([result], count);
    }
    let help = "Kubernetes Events of the gateway, by result; dropped Events exceeded the rate limit or met a full \
                queue.";
    let mut events = page.counter("tidegate_events_total", help, ["result"]);
    for (result, count) in cluster.events {
        events.sample([result], count);
    }
}

/// Owners of VIPs on layer 2.
pub(in crate::telemetry) fn layer2(page: &mut Exposition, layer2: &Layer2Counts) {
    let help = "Groups of VIPs (one Lease or one VRRP group of keepalived each), by owner: this gateway, or another \
                one. Only the owner answers ARP and neighbour discovery.";
    page.gauge("tidegate_layer2_groups", help, ["owner"])
        .sample(["this"], layer2.owned)
        .sample(["other"], layer2.groups.saturating_sub(layer2.owned));
    let help = "Times that this gateway acquired the Lease of a group of VIPs.";
    page.counter("tidegate_layer2_leases_taken_total", help, []).sample([], layer2.taken);
    let help = "Failed reads and writes of the Leases of VIPs; the gateway stops answering ARP and neighbour \
                discovery for a VIP when the Lease expires.";
    page.counter("tidegate_layer2_lease_failures_total", help, []).sample([], layer2.failures);
}

/// The flow log.
fn flow_log(page: &mut Exposition, log: &FlowLogSample) {
    let help = "Records of logged flows that the workers created and the flow log received, by event (begin or end of \
                a flow).";
    let mut records = page.counter("tidegate_flow_log_records_total", help, ["event"]);
    for (event, count) in log.records {
        records.sample([event], count);
    }
    let help = "Records that are missing in the flow log, by reason: the queue of a worker was full, the flow got no \
                entry in its table, its Service was removed long ago, or an output failed.";
    let mut lost = page.counter("tidegate_flow_log_lost_total", help, ["reason"]);
    for (reason, count) in log.lost {
        lost.sample([reason.as_str()], count);
    }
}

/// Sharing flows with other gateways.
fn flow_sharing(page: &mut Exposition, sharing: &FlowSharingSample) {
    let help = "1 while flows are shared with this peer and nothing was lost; while 0, connections may break if the \
                peer takes over.";
    let mut up = page.gauge("tidegate_flow_sharing_peer_up", help, ["peer"]);
    for (peer, is_up, ..) in &sharing.peers {
        up.sample([peer], usize::from(*is_up));
    }
    let help = "Messages about flows that are waiting to be sent to this peer.";
    let mut queue = page.gauge("tidegate_flow_sharing_peer_queue", help, ["peer"]);
    for (peer, _, waiting, _) in &sharing.peers {
        queue.sample([peer], *waiting);
    }
    let help = "Seconds since the last datagram was received from this peer; absent before the first.";
    let mut silence = page.gauge("tidegate_flow_sharing_peer_silence_seconds", help, ["peer"]);
    for (peer, .., seconds) in &sharing.peers {
        if let Some(seconds) = seconds {
            silence.sample([peer], *seconds);
        }
    }
    let (sent, sent_again, received) = sharing.datagrams;
    let help = "Flow sharing datagrams, by direction: sent to other gateways, or received from other gateways and \
                accepted.";
    page.counter("tidegate_flow_sharing_datagrams_total", help, ["direction"])
        .sample(["sent"], sent)
        .sample(["received"], received);
    let help = "Flow sharing datagrams that were resent because no acknowledgement arrived in time.";
    page.counter("tidegate_flow_sharing_resent_total", help, []).sample([], sent_again);
    let help = "Datagrams received by the flow sharing socket that were rejected, by reason.";
    let mut rejected = page.counter("tidegate_flow_sharing_rejected_total", help, ["reason"]);
    for (reason, count) in &sharing.rejected {
        rejected.sample([*reason], *count);
    }
    let help = "Messages about flows received from other gateways, by result; a message counts once for each worker \
                that receives it.";
    let mut results = page.counter("tidegate_flow_sharing_learned_total", help, ["result"]);
    for (result, count) in &sharing.results {
        results.sample([*result], *count);
    }
    let help = "Messages about flows that were lost because the queue of a worker or a peer was full; the next walk \
                of the flow tables sends them again.";
    let mut lost = page.counter("tidegate_flow_sharing_lost_total", help, ["at"]);
    for (at, count) in sharing.lost {
        lost.sample([at], count);
    }
}
