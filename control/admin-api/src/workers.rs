//! The part of `status` about workers and durations.

use serde::{Deserialize, Serialize};

/// One worker.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WorkerStatus {
    /// Its number.
    pub worker: u8,
    /// Its core.
    pub core: usize,
    /// `running`; `hung` if it makes no progress; otherwise the reason why it does not run.
    pub state: String,
    /// The fraction of time in which it had work, 0 to 1.
    pub busy_ratio: f64,
    /// Cycles per packet over the last measurement interval.
    pub cycles_per_packet: f64,
    /// The number of flows in its tables.
    pub flows: u64,
    /// The page size of its flow tables: `huge pages`, `transparent huge pages` or `4 KiB pages`.
    #[serde(default)]
    pub flow_table_pages: String,
    /// The size of its allocated flow tables in bytes. A table is allocated when a Service first needs it.
    #[serde(default)]
    pub flow_table_bytes: u64,
}

/// Durations of one part of the gateway since the start, with an error of at most 4 %.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LatencyStatus {
    /// `worker-turn`: a loop iteration of a worker that had work. `punt-queue`: the queueing time of a frame for the
    /// kernel. `health-check`: from the start of a check to its result or timeout. `publication`: from the publication
    /// of a snapshot until every worker has applied it.
    pub name: String,
    /// The number of recorded durations.
    pub count: u64,
    /// The median, in microseconds.
    pub p50_us: f64,
    /// The 99th percentile, in microseconds.
    pub p99_us: f64,
    /// The longest, in microseconds.
    pub max_us: f64,
}
