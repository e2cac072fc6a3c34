//! Times and limits of the connection to the API server, so that tests need not wait.

use std::time::Duration;

/// See the module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Tuning {
    /// Longest wait for an answer to begin, and in a list for its next piece.
    pub(super) answer: Duration,
    /// A watch in which nothing comes for this long is dead: bookmarks come once a minute.
    pub(super) silence: Duration,
    /// The interval of the requests that check whether the API server still answers,
    pub(super) pulse: Duration,
    /// and has this long to answer: after two times this and the pause it is lost, 20 s in all.
    pub(super) pulse_answer: Duration,
    /// The requested duration of watches in seconds: from the first, below the second.
    pub(super) watch_seconds: (u64, u64),
    /// A watch that ends sooner is a failure.
    pub(super) watch_min: Duration,
    /// Pause after a first failure; it doubles up to the second.
    pub(super) backoff_first: Duration,
    pub(super) backoff_max: Duration,
    /// No `Retry-After` is obeyed for longer.
    pub(super) retry_after_max: Duration,
    /// A watch that was interrupted for longer does not resume: everything is listed.
    pub(super) resume_max: Duration,
    /// A watch that resumes has this long to report what happened to the newest change.
    pub(super) explanation: Duration,
    /// EndpointSlices whose endpoints were not kept, and that fit again, are listed no more often than this.
    pub(super) refit: Duration,
    /// How often a kind that the API server does not have is requested.
    pub(super) absent: Duration,
    /// The objects on disk are used when the API server has not answered for this long, or fails.
    pub(super) boot_wait: Duration,
    /// The disk is written this long after a change,
    pub(super) save_settle: Duration,
    /// and no more often than this.
    pub(super) save_interval: Duration,
    /// Without a change it is noted this often that the objects on disk are still right.
    pub(super) confirm_interval: Duration,
}

impl Default for Tuning {
    fn default() -> Self {
        Self {
            answer: Duration::from_secs(30),
            silence: Duration::from_secs(100),
            pulse: Duration::from_secs(5),
            pulse_answer: Duration::from_secs(4),
            watch_seconds: (240, 300),
            watch_min: Duration::from_secs(5),
            backoff_first: Duration::from_millis(250),
            backoff_max: Duration::from_secs(30),
            retry_after_max: Duration::from_secs(120),
            resume_max: Duration::from_secs(60),
            explanation: Duration::from_secs(5),
            refit: Duration::from_secs(60),
            absent: Duration::from_secs(60),
            boot_wait: Duration::from_secs(5),
            save_settle: Duration::from_secs(2),
            save_interval: Duration::from_secs(10),
            confirm_interval: Duration::from_secs(30),
        }
    }
}
