//! Limits on the resources of this host that the checks may use.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Limits on checks in progress and on checks a second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// The maximum number of checks by TCP, HTTP and UDP in progress, each with a socket.
    pub plain_max: usize,
    /// The maximum number of TLS checks in progress: each costs a millisecond of CPU for the handshake, and tens of
    /// kilobytes.
    pub tls_max: usize,
    /// The maximum number of checks started per second. If the targets' intervals require more, intervals are
    /// stretched.
    pub per_second_max: u32,
}

impl Default for Limits {
    /// 5000 checks a second are enough for 10,000 targets with an interval of 2 s.
    fn default() -> Self {
        Self { plain_max: 2048, tls_max: 128, per_second_max: 5000 }
    }
}

impl Limits {
    /// The defaults, reduced so that checks use at most half of the process's file descriptors. First raises the
    /// process's limit as far as the system allows, up to 65,536.
    #[must_use]
    pub fn for_this_process() -> Self {
        let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
        let aim = maximum.unwrap_or(u64::MAX).min(65_536);
        let raised = current.is_some_and(|now| now < aim)
            && setrlimit(Resource::Nofile, Rlimit { current: Some(aim), maximum }).is_ok();
        let may_open = if raised { aim } else { current.unwrap_or(u64::MAX) };
        Self::default().within(usize::try_from(may_open / 2).unwrap_or(usize::MAX))
    }

    /// These limits, reduced so that checks need no more than `descriptors`.
    fn within(self, descriptors: usize) -> Self {
        let tls_max = self.tls_max.min(descriptors / 8).max(1);
        let plain_max = self.plain_max.min(descriptors.saturating_sub(tls_max)).max(1);
        Self { plain_max, tls_max, ..self }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checks_use_at_most_half_of_the_descriptors() {
        for descriptors in [16, 512, 1024, 65_536] {
            let limits = Limits::default().within(descriptors);
            assert!(limits.plain_max + limits.tls_max <= descriptors);
            assert!(limits.plain_max >= limits.tls_max && limits.tls_max > 0);
        }
        assert_eq!(Limits::default().within(65_536), Limits::default());
        let here = Limits::for_this_process();
        let now = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        assert!((here.plain_max + here.tls_max) as u64 <= now / 2);
    }
}
