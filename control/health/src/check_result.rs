//! The outcome of one check, as the prober returns it to the runner and the schedule.

use super::Failure;

/// The outcome of one check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Answer {
    /// The result of the check.
    pub result: CheckResult,
    /// The weight that the node reported, if any.
    pub weight: Option<u16>,
}

impl From<CheckResult> for Answer {
    fn from(result: CheckResult) -> Self {
        Self { result, weight: None }
    }
}

/// The three possible results of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckResult {
    /// The check succeeded.
    Success,
    /// The target, or the network towards it, has a fault.
    Failure(Failure),
    /// The gateway itself has a fault, so the result says nothing about the target.
    Inconclusive,
}

impl CheckResult {
    /// Whether the target itself reported the fault, by HTTP.
    pub(crate) fn is_from_target(self) -> bool {
        matches!(self, Self::Failure(Failure::Status(_) | Failure::NotHttp))
    }
}
