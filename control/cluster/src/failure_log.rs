//! How many lines failed writes may log.
//!
//! A write that fails is retried every minute, and one namespace may have thousands of Services whose writes an
//! admission webhook refuses. So each namespace has a budget of lines: a burst, and a rate after that. The next line of
//! the namespace says how many were left out. Writes to what has no namespace are the operator's, and always logged.
//!
//! Invariant: pure: the clock is an argument.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::bucket::Bucket;

/// Lines of one namespace at once,
const BURST: u32 = 50;
/// and one more after each of these.
const INTERVAL: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    /// Namespaces that have logged lately, with how many lines were left out since the last one.
    namespaces: BTreeMap<String, (Bucket, u64)>,
}

/// Whether a failure is to be logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// With how many of its namespace were left out before, if any were.
    Logged(Option<u64>),
    LeftOut,
}

impl FailureLog {
    pub(super) fn failed(&mut self, namespace: &str, now: Instant) -> Line {
        if namespace.is_empty() {
            return Line::Logged(None);
        }
        self.namespaces.retain(|_, (lines, left_out)| *left_out > 0 || !lines.is_full(now));
        let (lines, left_out) =
            self.namespaces.entry(namespace.to_owned()).or_insert_with(|| (Bucket::new(BURST, INTERVAL), 0));
        if lines.take(now).is_err() {
            *left_out += 1;
            return Line::LeftOut;
        }
        Line::Logged(Some(std::mem::take(left_out)).filter(|count| *count > 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_with_thousands_of_failures_logs_a_burst_and_a_rate_and_others_are_logged() {
        let (start, mut log) = (Instant::now(), FailureLog::default());
        let logged = |log: &mut FailureLog, namespace, count: usize, now| {
            (0..count).filter(|_| log.failed(namespace, now) != Line::LeftOut).count()
        };
        assert_eq!(logged(&mut log, "hostile", 2_500, start), 50);
        assert_eq!(logged(&mut log, "shop", 1, start), 1);
        assert_eq!(logged(&mut log, "", 1_000, start), 1_000);
        let later = start + Duration::from_secs(60);
        assert_eq!(log.failed("hostile", later), Line::Logged(Some(2_450)));
        assert_eq!(logged(&mut log, "hostile", 2_500, later), 5);
        assert!(log.namespaces.len() < 2, "the other one is forgotten");
    }
}
