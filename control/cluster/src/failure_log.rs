//! Limits the log lines of failed writes.
//!
//! A failed write is retried every minute, and an admission webhook may refuse the writes of thousands of Services in
//! one namespace. Each namespace therefore has a budget ([`LineBudgets`]). The next logged line of the namespace
//! contains the number of lines left out.
//!
//! Invariant: pure; the clock is an argument.

use tokio::time::Instant;

use super::line_budget::LineBudgets;

/// Decides which failed writes are logged.
#[derive(Debug, Default)]
pub(super) struct FailureLog {
    lines: LineBudgets,
}

/// Whether a failure is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Line {
    /// Log it, with the number of earlier lines of its namespace that were left out, if any.
    Logged(Option<u64>),
    LeftOut,
}

impl FailureLog {
    pub(super) fn failed(&mut self, namespace: &str, now: Instant) -> Line {
        self.lines.remove_idle(now);
        if !self.lines.take(namespace, now) {
            return Line::LeftOut;
        }
        Line::Logged(Some(self.lines.take_left_out(namespace)).filter(|count| *count > 0))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_namespace_with_thousands_of_failures_silences_no_other() {
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
        assert!(log.lines.namespaces() < 2, "the other one is removed");
    }
}
