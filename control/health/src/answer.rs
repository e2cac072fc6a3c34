//! The outcome of one check, as the prober returns it to the runner and the schedule.

use super::Failure;

/// The outcome of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// Whether it was good.
    pub result: CheckResult,
    /// The weight that the node returned with it.
    pub weight: Option<u16>,
}

impl From<CheckResult> for Answer {
    fn from(result: CheckResult) -> Self {
        Self { result, weight: None }
    }
}

/// The three ways in which a check ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckResult {
    /// As it should be.
    Success,
    /// The target's fault, or the network's between us.
    Failure(Failure),
    /// The gateway's own fault: says nothing about the target.
    Inconclusive,
}

impl CheckResult {
    /// Whether the target itself has said what is wrong, by HTTP.
    pub(crate) fn says_something(self) -> bool {
        matches!(self, Self::Failure(Failure::Status(_) | Failure::NotHttp))
    }
}
