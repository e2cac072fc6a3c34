//! What is measured: the size of the cluster, and the rates and duration of changes and packets.

use std::time::Duration;

use tidegate_control_bench::cluster::Variant;
use tidegate_control_bench::world::Size;

/// The number of Services with one endpoint each. Their packets make changes visible from outside.
pub(crate) const SINGLES: usize = 50;
/// One change in this many concerns such a Service.
pub(crate) const SINGLE_EACH: usize = 5;

/// The measurement to make.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(crate) size: Size,
    pub(crate) variant: Variant,
    /// Changes per second.
    pub(crate) rate: u64,
    pub(crate) time: Duration,
    /// Packets per second.
    pub(crate) packets: u64,
    /// The interval between requests for `/metrics` with a series for each backend; zero for none.
    pub(crate) scrape: Duration,
    /// The number of requests for `/metrics` in each form, instead of changes and packets; zero for none.
    pub(crate) scrapes: usize,
    /// Whether to start smaller clusters first, to find the memory of a Service and of an endpoint.
    pub(crate) measures_sizes: bool,
}
