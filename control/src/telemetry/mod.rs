//! The page of `/metrics`, in the Prometheus text format 0.0.4.
//!
//! At each scrape the daemon collects a [`Sample`] of plain values and [`render`]s it; [`serve`] answers the scrapes.
//! Only [`Timings`] persist between scrapes. Names and labels are an interface: a change needs a line in the
//! CHANGELOG.
//!
//! Counters start with the daemon; the counters of a Service start when its ports are first served. The series of a
//! removed Service disappear. If a Service loses a VIP, its counters fall by that VIP's share, which
//! `rate()` reads as a reset.
//!
//! Invariant: [`render`] is a pure function, and no series is written twice: Services are summed over their VIPs.

mod announcing;
mod exposition;
mod families;
mod latency;
mod process;
mod sample;
mod series_limit;
mod serve;
mod timings;

#[cfg(test)]
mod tests;

pub use exposition::CONTENT_TYPE;
pub use latency::Latencies;
pub use process::Process;
pub use sample::{
    AnnounceSample, BuildSample, CheckSample, DataplaneSample, FlowLogSample, FlowSharingSample,
    GatewaySample, Generations, Layer2Counts, LogSample, PublicationSample, RoundSample, Sample,
};
pub use serve::serve;
pub use timings::Timings;

use exposition::Exposition;
use series_limit::WithoutSeries;

/// The page.
#[must_use]
pub fn render(sample: &Sample<'_>) -> String {
    let mut page = Exposition::default();
    families::build(&mut page, &sample.build);
    let DataplaneSample { stats, services, .. } = sample.dataplane;
    families::frames(&mut page, stats, sample.dataplane.interfaces);
    families::kernel(&mut page, stats);
    families::links(&mut page, sample.dataplane.links);
    families::ports(&mut page, sample.dataplane.links, sample.dataplane.ports);
    families::workers(&mut page, stats);
    if let Some(restored) = &stats.restored {
        families::restored(&mut page, restored);
    }
    families::latencies(&mut page, sample.latencies);
    families::services(&mut page, services);
    families::limits(&mut page, sample.dataplane.limited);
    families::service_info(&mut page, sample.round.services);
    if sample.per_backend {
        let without_series = WithoutSeries::of(sample.round.services);
        let flows = sample.dataplane.backend_flows;
        families::backends(&mut page, services, flows, sample.round.services, &without_series);
    }
    families::health(&mut page, sample);
    families::control(&mut page, sample);
    if let Some(announce) = &sample.announce {
        announcing::announcements(&mut page, announce);
    }
    if let Some(cluster) = &sample.cluster {
        families::cluster(&mut page, cluster);
    }
    if let Some(layer2) = &sample.layer2 {
        families::layer2(&mut page, layer2);
    }
    if let Some(process) = sample.process {
        families::process(&mut page, process);
    }
    page.finish()
}
