//! Times and limits of the connection to the API server. Tests use shorter times.

use std::time::Duration;

/// The times and limits.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tuning {
    /// The maximum wait for the start of a response, and for each further part of a list.
    pub(super) response: Duration,
    /// A watch without any event for this time is dead: bookmarks arrive once a minute.
    pub(super) silence: Duration,
    pub(super) health_probe: ProbeTimes,
    /// The requested duration of watches in seconds: at least the first value, and below the second.
    pub(super) watch_seconds: (u64, u64),
    /// A watch that ends sooner counts as a failure.
    pub(super) watch_min: Duration,
    /// The pause after a first failure. It doubles up to `backoff_max`.
    pub(super) backoff_first: Duration,
    pub(super) backoff_max: Duration,
    /// The longest `Retry-After` that is respected.
    pub(super) retry_after_max: Duration,
    /// A watch that was interrupted for longer doesn't resume: everything is listed.
    pub(super) resume_max: Duration,
    /// How long a resumed watch may take to report the newest change.
    pub(super) explanation: Duration,
    /// The minimum interval between two lists of EndpointSlices whose endpoints were not kept and that fit again.
    pub(super) refit: Duration,
    /// The interval of requests for an optional kind that the API server doesn't have, doesn't allow the gateway to
    /// read, or is removing. Its definition or the permission may appear at any time.
    pub(super) absent: Duration,
    /// The interval of these requests for a kind of the Gateway API, which most clusters lack.
    pub(super) absent_gateway_api: Duration,
    /// The objects on disk are used when the API server has not responded for this long, or fails.
    pub(super) boot_wait: Duration,
    pub(super) save: SaveTimes,
}

/// Times of the requests that check whether the API server still responds.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProbeTimes {
    pub(super) interval: Duration,
    /// The response timeout of such a request. The API server counts as lost after two timeouts and the pauses, less
    /// than 20 s in total.
    pub(super) response: Duration,
}

/// When the objects are saved to disk.
#[derive(Debug, Clone, Copy)]
pub(super) struct SaveTimes {
    /// How long after a change the objects are saved.
    pub(super) delay: Duration,
    /// The minimum interval between two saves.
    pub(super) interval: Duration,
    /// The interval at which unchanged objects on disk are confirmed.
    pub(super) confirm_interval: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            response: Duration::from_secs(30),
            silence: Duration::from_secs(100),
            health_probe: ProbeTimes { interval: Duration::from_secs(5), response: Duration::from_secs(4) },
            watch_seconds: (240, 300),
            watch_min: Duration::from_secs(5),
            backoff_first: Duration::from_millis(250),
            backoff_max: Duration::from_secs(30),
            retry_after_max: Duration::from_secs(120),
            resume_max: Duration::from_secs(60),
            explanation: Duration::from_secs(5),
            refit: Duration::from_secs(60),
            absent: Duration::from_secs(5),
            absent_gateway_api: Duration::from_secs(30),
            boot_wait: Duration::from_secs(5),
            save: SaveTimes {
                delay: Duration::from_secs(2),
                interval: Duration::from_secs(10),
                confirm_interval: Duration::from_secs(30),
            },
        }
    }
}
