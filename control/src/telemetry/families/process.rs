//! The families of the process: its build, durations recorded by its threads, and its resources.

use crate::telemetry::exposition::Exposition;
use crate::telemetry::latency::{HEALTH_CHECK, Latencies, PUBLICATION, PUNT_QUEUE, WORKER_ITERATION};
use crate::telemetry::process::Process;
use crate::telemetry::sample::BuildSample;

/// Build information.
pub(in crate::telemetry) fn build(page: &mut Exposition, build: &BuildSample<'_>) {
    let help = "Always 1; the labels are the version and the commit of the binary, the version of DPDK, and the name of \
                the gateway.";
    page.gauge("tidegate_build_info", help, ["version", "commit", "dpdk", "gateway"])
        .sample([build.version, build.commit, build.dpdk, build.gateway], true);
}

/// Durations that workers, the slow path, the health checks and the daemon's loop recorded.
pub(in crate::telemetry) fn latencies(page: &mut Exposition, latencies: &Latencies) {
    let help = "Duration of one loop iteration with work in a worker: receive a burst from each interface, process \
                and send it.";
    page.histogram("tidegate_worker_turn_seconds", help, &latencies.worker_iteration, WORKER_ITERATION);
    let help = "Time that a frame for the kernel waited in the queue between a worker and the slow path.";
    page.histogram("tidegate_punt_queue_seconds", help, &latencies.punt_queue, PUNT_QUEUE);
    let help = "Time from the start of a health check to its result, or to its timeout if no answer arrives.";
    page.histogram("tidegate_health_check_seconds", help, &latencies.health_check, HEALTH_CHECK);
    let help = "Time from the publication of a snapshot until every worker used it.";
    page.histogram("tidegate_publication_seconds", help, &latencies.publication, PUBLICATION);
}

/// The process, with the names that client libraries use.
pub(in crate::telemetry) fn process(page: &mut Exposition, process: &Process) {
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
