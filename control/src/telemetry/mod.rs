//! What operators graph and alert on: the page of `/metrics`, in the Prometheus text format 0.0.4.
//!
//! The daemon gathers a [`Sample`] of plain values at each scrape and [`render`]s it; [`serve`] answers the
//! scrapes. Only [`Timings`] live from scrape to scrape. Names and labels are an interface: they change with a line
//! in the CHANGELOG. BGP has no metric while there is no BGP.
//!
//! Counters are since the start of the daemon, and those of a Service since its ports are served: a Service that
//! is removed takes its series along, one that loses a VIP falls by that VIP's share, which `rate()` reads as a reset.
//!
//! Invariant: [`render`] is a pure function, and no series is written twice: Services are summed over their VIPs.

mod exposition;
mod families;
mod latency;
mod process;
mod sample;
mod serve;
mod timings;

#[cfg(test)]
mod tests;

pub use exposition::CONTENT_TYPE;
pub use latency::{Latencies, Latency};
pub use process::Process;
pub use sample::{Generations, Sample};
pub use serve::{Listener, serve};
pub use timings::Timings;

use exposition::Exposition;

/// The page.
#[must_use]
pub fn render(sample: &Sample<'_>) -> String {
    let mut page = Exposition::default();
    families::build(&mut page, sample.version);
    families::frames(&mut page, sample.stats, sample.interfaces);
    families::links(&mut page, sample.links);
    families::workers(&mut page, sample.stats);
    families::latencies(&mut page, sample.latencies);
    families::services(&mut page, sample.service_stats);
    families::service_info(&mut page, sample.services);
    if sample.per_backend {
        families::backends(&mut page, sample.service_stats, sample.services);
        families::snat_ports(&mut page, sample.service_stats, sample.snat_ports);
    }
    families::health(&mut page, sample);
    families::control(&mut page, sample);
    if let Some(cluster) = &sample.cluster {
        families::cluster(&mut page, cluster);
    }
    if let Some(process) = sample.process {
        families::process(&mut page, process);
    }
    page.finish()
}
