//! The page of `/metrics`: collects the sample that `telemetry` renders.
//!
//! Each module has its own counters; here they are only collected.

use std::time::Duration;

use tidegate_announce::status::Status as AnnounceStatus;
use tidegate_dataplane::gateway::BackendFlowStats;

use super::flow_sharing::Shown;
use super::layer2::Layer2View;
use super::state::State;
use crate::telemetry::{
    self, BuildSample, CheckSample, DataplaneSample, FlowLogSample, GatewaySample, LogSample, Process,
    PublicationSample, RoundSample, Sample,
};

/// How long a scrape, or a command, waits for the workers to count the flows of backends.
const FLOW_COUNT_WAIT: Duration = Duration::from_millis(100);

impl State {
    /// The flows of each backend, counted by the workers.
    pub(super) fn backend_flows(&self) -> Vec<BackendFlowStats> {
        tokio::task::block_in_place(|| self.dataplane.backend_flows(FLOW_COUNT_WAIT))
    }

    /// The page of `/metrics`.
    pub(super) fn metrics(&self) -> String {
        let last = self.last();
        let outcome = last.as_ref().map(|round| &round.outcome);
        let interfaces: Vec<String> =
            self.dataplane.interfaces().iter().map(|interface| interface.name.clone()).collect();
        let per_backend = self.shows_backends();
        let stats = self.dataplane.stats();
        let cluster = self.cluster();
        let plans = cluster.as_ref().map(|cluster| ("plan", cluster.comparisons.0, cluster.comparisons.1));
        let comparisons: Vec<_> = self.comparisons.read().into_iter().chain(plans).collect();
        let announced = self.announcements();
        let withheld = announced.as_deref().map(AnnounceStatus::withheld_counts).unwrap_or_default();
        telemetry::render(&Sample {
            build: BuildSample {
                version: env!("CARGO_PKG_VERSION"),
                commit: tidegate_cli::COMMIT,
                dpdk: &tidegate_dataplane::dpdk_version(),
                gateway: &self.name,
            },
            dataplane: DataplaneSample {
                interfaces: &interfaces,
                links: &self.dataplane.links().report(),
                ports: &self.dataplane.links().port_reports(),
                stats: &stats,
                services: &self.dataplane.service_stats(),
                limited: &self.dataplane.limited_services(),
                backend_flows: &if per_backend { self.backend_flows() } else { Vec::new() },
                packet_buffers: self.dataplane.buffers(),
            },
            round: RoundSample {
                services: outcome.map_or(&[], |outcome| &outcome.services),
                findings: outcome.map_or(&[], |outcome| &outcome.findings),
                own_findings: last.as_ref().map_or(&[], |round| &round.own_findings),
                pools: outcome.map_or(&[], |outcome| &outcome.pools),
                stale_files: last.as_ref().map_or(&[], |round| &round.manifests.stale),
                slices_left_out: last.as_ref().map_or(0, |round| round.manifests.slices_left_out),
            },
            publication: PublicationSample {
                generations: self.generations(),
                failures: self.publications.failures(),
                timings: self.publications.timings(),
            },
            checks: CheckSample { results: &self.checks().read(), load: self.checks().load() },
            gateway: GatewaySample {
                drain: self.drain.phase(),
                ready: self.health().ready,
                degraded: self.degraded().len(),
                configuration_refused: self.refused_configuration().is_some(),
                unsaved: &self.unsaved().map(|(what, why)| (what, why.is_some())),
                comparisons: &comparisons,
            },
            latencies: &self.latencies(&stats),
            flow_sharing: self.flow_sharing().as_ref().map(Shown::sample).as_ref(),
            flow_log: self
                .flow_log()
                .map(|log| FlowLogSample {
                    records: log.counts.records(),
                    lost: log.counts.lost(self.dataplane.flow_logs()),
                })
                .as_ref(),
            log: LogSample {
                events: &self.events.counts().collect::<Vec<_>>(),
                suppressed: self.rounds.suppressed_lines()
                    + self.events.suppressed()
                    + cluster.as_ref().map_or(0, |cluster| cluster.log_lines_left_out),
                lost: crate::logging::lost_lines(),
            },
            source: &self.source_state(),
            credentials_expire: self.credentials_expire(),
            cluster,
            announce: announced
                .as_deref()
                .map(|status| telemetry::AnnounceSample { status, withheld: &withheld }),
            layer2: self.layer2().and_then(Layer2View::counts),
            process: Process::read().ok().as_ref(),
            per_backend,
        })
    }
}
