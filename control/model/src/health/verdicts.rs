//! The results of health checks as `reconcile` reads them: which targets fail and why, which flap, and the weights
//! that nodes report.
//!
//! An immutable value behind an `Arc`. The runner creates a new value when the state of a target changes, not after
//! every check. It contains only targets that fail, flap or report a weight.
//!
//! Invariant: a target that is not listed passes, or was never checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::Target;

/// Why a check failed. For a failing target, it is the failure that changed its state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// No answer within the timeout.
    Timeout,
    /// Nothing listens on the port: RST, or ICMP port unreachable for UDP.
    Refused,
    /// It cannot be reached: ICMP, no neighbour, no route.
    Unreachable,
    /// The connection ended before the answer.
    Closed,
    /// The TLS handshake failed.
    Tls,
    /// The answer is not HTTP.
    NotHttp,
    /// A DSR backend that answers at its own address but not at the VIP: clients get no answer.
    NotOnVip,
    /// An HTTP status that does not count as success.
    Status(u16),
    /// Another error of the system, with its number if it has one.
    System(Option<i32>),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Timeout => f.write_str("no answer in time"),
            Self::Refused => f.write_str("connection refused"),
            Self::Unreachable => f.write_str("unreachable"),
            Self::Closed => f.write_str("connection closed before an answer"),
            Self::Tls => f.write_str("TLS handshake failed"),
            Self::NotHttp => f.write_str("the answer is not HTTP"),
            Self::NotOnVip => f.write_str("answers on its own address, not on the VIP"),
            Self::Status(code) => write!(f, "HTTP status {code}"),
            Self::System(Some(code)) => std::io::Error::from_raw_os_error(*code).fmt(f),
            Self::System(None) => f.write_str("a system error"),
        }
    }
}

/// The state of one target. The default is the state of a target that was never checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HealthStatus {
    /// Why it fails, if it does.
    pub failure: Option<Failure>,
    /// How often its thresholds were raised because it flaps, 0 to 3.
    pub damping: u8,
    /// The last value that a node's health-check node port reported: its number of ready endpoints of the Service, at
    /// most 65535. It is known from the first answer on, even if that answer is a failure (503 with weight 0 after the
    /// last endpoint was removed).
    pub weight: Option<u16>,
}

/// The states of all targets.
///
/// ```
/// use tidegate_model::health::{Check, Failure, Probe, Rules, HealthStatus, Target, Verdicts};
/// let probe = Probe::new(Check::Tcp, Rules::default()).into();
/// let target = Target::new("192.0.2.7:80".parse().unwrap(), &probe);
/// assert!(!Verdicts::default().fails(&target));
/// let refused = HealthStatus { failure: Some(Failure::Refused), ..HealthStatus::default() };
/// assert!(Verdicts::from_iter([(target.clone(), refused)]).fails(&target));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdicts {
    statuses: Arc<BTreeMap<Target, HealthStatus>>,
    failing: usize,
    damped: usize,
}

impl Verdicts {
    /// The state of a target.
    #[must_use]
    pub fn of(&self, target: &Target) -> HealthStatus {
        self.statuses.get(target).copied().unwrap_or_default()
    }

    /// Whether the target fails.
    #[must_use]
    pub fn fails(&self, target: &Target) -> bool {
        self.of(target).failure.is_some()
    }

    /// The weight that a node reported; see [`HealthStatus::weight`].
    #[must_use]
    pub fn weight(&self, target: &Target) -> Option<u16> {
        self.of(target).weight
    }

    /// The targets that fail, sorted.
    pub fn failing(&self) -> impl Iterator<Item = &Target> {
        self.statuses.iter().filter(|(_, status)| status.failure.is_some()).map(|(target, _)| target)
    }

    /// The number of targets that fail.
    #[must_use]
    pub fn failing_count(&self) -> usize {
        self.failing
    }

    /// The number of targets with damping.
    #[must_use]
    pub fn damped_count(&self) -> usize {
        self.damped
    }

    /// The targets whose state differs between the two. Results that depend on them must be recomputed.
    #[must_use]
    pub fn differing(&self, other: &Self) -> BTreeSet<Target> {
        if Arc::ptr_eq(&self.statuses, &other.statuses) {
            return BTreeSet::new();
        }
        let differs = |(target, _): &(&Target, &HealthStatus)| self.of(target) != other.of(target);
        let both = self.statuses.iter().chain(other.statuses.iter());
        both.filter(differs).map(|(target, _)| target.clone()).collect()
    }

    /// Sets the state of a target.
    pub fn set(&mut self, target: &Target, status: HealthStatus) {
        let statuses = Arc::make_mut(&mut self.statuses);
        let before = if status == HealthStatus::default() {
            statuses.remove(target)
        } else {
            statuses.insert(target.clone(), status)
        };
        let before = before.unwrap_or_default();
        self.failing += usize::from(status.failure.is_some());
        self.failing -= usize::from(before.failure.is_some());
        self.damped += usize::from(status.damping > 0);
        self.damped -= usize::from(before.damping > 0);
    }
}

impl FromIterator<(Target, HealthStatus)> for Verdicts {
    fn from_iter<I: IntoIterator<Item = (Target, HealthStatus)>>(statuses: I) -> Self {
        let mut verdicts = Self::default();
        statuses.into_iter().for_each(|(target, status)| verdicts.set(&target, status));
        verdicts
    }
}

/// The given targets fail, each with a timeout.
impl FromIterator<Target> for Verdicts {
    fn from_iter<I: IntoIterator<Item = Target>>(targets: I) -> Self {
        let status = HealthStatus { failure: Some(Failure::Timeout), ..HealthStatus::default() };
        targets.into_iter().map(|target| (target, status)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Check, Probe, Rules};
    use super::*;

    fn target(last: u8) -> Target {
        let probe = Probe::new(Check::Tcp, Rules::default()).into();
        Target::new(([192, 0, 2, last], 80).into(), &probe)
    }

    #[test]
    fn differing_targets_must_be_recomputed_in_both_directions() {
        let old: Verdicts = [target(1), target(2)].into_iter().collect();
        let mut new = old.clone();
        assert!(old.differing(&new).is_empty());
        new.set(&target(1), HealthStatus::default());
        new.set(&target(2), HealthStatus { damping: 1, ..old.of(&target(2)) });
        new.set(&target(3), HealthStatus { weight: Some(4), ..HealthStatus::default() });
        let expected = BTreeSet::from([target(1), target(2), target(3)]);
        assert_eq!((old.differing(&new), new.differing(&old)), (expected.clone(), expected));
        assert_eq!((new.failing_count(), new.damped_count(), new.weight(&target(3))), (1, 1, Some(4)));
        assert_eq!(
            (old.failing_count(), old.fails(&target(1))),
            (2, true),
            "others keep what they were given"
        );
    }
}
