//! What is checked and how: the key that Services which want the same check of the same endpoint share.
//!
//! Values only; `reconcile` makes targets, the runner checks them, and reconcile asks [`Failing`] about them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How an endpoint is checked. Only TCP connect so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Probe {
    /// From the start of one check to the start of the next.
    pub interval: Duration,
    /// A check that takes longer has failed; at most the interval.
    pub timeout: Duration,
    /// Successes in a row that bring a failing target back; at least 1.
    pub healthy_threshold: u32,
    /// Failures in a row that take a passing target out; at least 1.
    pub unhealthy_threshold: u32,
}

/// One endpoint with one way of checking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Target {
    /// Where to connect to.
    pub address: SocketAddr,
    /// How.
    pub probe: Probe,
}

/// The targets that fail now. A target that is not in it passes or was never checked: Kubernetes already said
/// ready, so a gateway that has just started forwards at once and takes out what it then finds failing.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Failing(Arc<BTreeSet<Target>>);

impl Failing {
    /// Whether the target fails.
    #[must_use]
    pub fn contains(&self, target: &Target) -> bool {
        self.0.contains(target)
    }

    /// How many fail.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none fails.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The failing targets, sorted.
    pub fn iter(&self) -> impl Iterator<Item = &Target> {
        self.0.iter()
    }
}

impl FromIterator<Target> for Failing {
    fn from_iter<I: IntoIterator<Item = Target>>(targets: I) -> Self {
        Self(Arc::new(targets.into_iter().collect()))
    }
}
