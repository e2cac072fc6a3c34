//! What the checks found out, as `reconcile` reads it: who fails and why, who flaps, what weights nodes tell.
//!
//! An immutable value that costs an `Arc` to pass on; the runner makes a new one when a target turns, not with
//! every check. It names only targets about which there is something to say.
//!
//! Invariant: a target that is not named passes, or was never checked.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use super::Target;

/// Why a check failed; of a failing target, the last failure before it turned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// No answer within the timeout.
    Timeout,
    /// Nothing listens there: RST, or ICMP port unreachable for UDP.
    Refused,
    /// No way there: ICMP, no neighbour, no route.
    Unreachable,
    /// The connection ended before the answer.
    Closed,
    /// The TLS handshake failed.
    Tls,
    /// What came is not HTTP.
    NotHttp,
    /// An HTTP status that is not good.
    Status(u16),
    /// Another error of the system, by its number where it has one.
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
            Self::Status(code) => write!(f, "status {code}"),
            Self::System(Some(code)) => std::io::Error::from_raw_os_error(*code).fmt(f),
            Self::System(None) => f.write_str("an error of the system"),
        }
    }
}

/// What is known of one target. The default is that of a target that was never checked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Standing {
    /// Why it fails, where it does.
    pub failure: Option<Failure>,
    /// How often its thresholds were raised because it flaps, 0 to [`DAMPING_MAX`](super::DAMPING_MAX).
    pub damping: u8,
    /// What a node's health-check node port told last: its number of ready endpoints of the Service, capped at
    /// 65535. Known from the first answer on, failing answers (503 with weight 0: the last endpoint left) included.
    pub weight: Option<u16>,
}

/// What is known of all targets.
///
/// ```
/// use tidegate::health::{Check, Failure, Probe, Rules, Standing, Target, Verdicts};
/// let probe = Probe { check: Check::Tcp, rules: Rules::default() }.into();
/// let target = Target::new("192.0.2.7:80".parse().unwrap(), &probe);
/// assert!(!Verdicts::default().fails(&target));
/// let refused = Standing { failure: Some(Failure::Refused), ..Standing::default() };
/// assert!(Verdicts::from_iter([(target.clone(), refused)]).fails(&target));
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Verdicts(Arc<BTreeMap<Target, Standing>>);

impl Verdicts {
    /// What is known of a target.
    #[must_use]
    pub fn of(&self, target: &Target) -> Standing {
        self.0.get(target).copied().unwrap_or_default()
    }

    /// Whether the target fails.
    #[must_use]
    pub fn fails(&self, target: &Target) -> bool {
        self.of(target).failure.is_some()
    }

    /// The weight that a node told; see [`Standing::weight`].
    #[must_use]
    pub fn weight(&self, target: &Target) -> Option<u16> {
        self.of(target).weight
    }

    /// The targets that fail, sorted.
    pub fn failing(&self) -> impl Iterator<Item = &Target> {
        self.0.iter().filter(|(_, standing)| standing.failure.is_some()).map(|(target, _)| target)
    }

    /// The targets whose standing differs between the two: what was decided by them has to be decided anew.
    #[must_use]
    pub fn differing(&self, other: &Self) -> BTreeSet<Target> {
        if Arc::ptr_eq(&self.0, &other.0) {
            return BTreeSet::new();
        }
        let differs = |(target, _): &(&Target, &Standing)| self.of(target) != other.of(target);
        self.0.iter().chain(other.0.iter()).filter(differs).map(|(target, _)| target.clone()).collect()
    }

    /// Puts down what is known of a target now.
    pub(super) fn set(&mut self, target: &Target, standing: Standing) {
        let map = Arc::make_mut(&mut self.0);
        if standing == Standing::default() {
            map.remove(target);
        } else {
            map.insert(target.clone(), standing);
        }
    }
}

impl FromIterator<(Target, Standing)> for Verdicts {
    fn from_iter<I: IntoIterator<Item = (Target, Standing)>>(standings: I) -> Self {
        Self(Arc::new(standings.into_iter().filter(|(_, s)| *s != Standing::default()).collect()))
    }
}

/// Targets that fail, each by a timeout.
impl FromIterator<Target> for Verdicts {
    fn from_iter<I: IntoIterator<Item = Target>>(targets: I) -> Self {
        let standing = Standing { failure: Some(Failure::Timeout), ..Standing::default() };
        targets.into_iter().map(|target| (target, standing)).collect()
    }
}
