//! The `process_*` metrics that every dashboard has, as the kernel reports them.
//!
//! No other file of telemetry reads data from outside the process. The daemon calls it for each scrape.

use procfs::process::{LimitValue, Process as Proc};
use procfs::{ProcError, WithCurrentSystemInfo as _};

/// The values of `/proc/self`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Process {
    /// User and system time of all threads.
    pub cpu_seconds: f64,
    /// Resident memory.
    pub resident_bytes: u64,
    /// Virtual memory.
    pub virtual_bytes: u64,
    /// Open file descriptors.
    pub open_fds: usize,
    /// The soft limit of open file descriptors; `None` if there is none.
    pub max_fds: Option<u64>,
    /// Threads.
    pub threads: u64,
    /// Unix time of its start, to a hundredth of a second.
    pub start_time_seconds: f64,
}

impl Process {
    /// Reads the values.
    ///
    /// # Errors
    /// If there is no `/proc`, or it cannot be read.
    pub fn read() -> Result<Self, ProcError> {
        let proc = Proc::myself()?;
        let stat = proc.stat()?;
        let per_second = procfs::ticks_per_second() as f64;
        let max_fds = match proc.limits()?.max_open_files.soft_limit {
            LimitValue::Value(max) => Some(max),
            LimitValue::Unlimited => None,
        };
        Ok(Self {
            cpu_seconds: (stat.utime + stat.stime) as f64 / per_second,
            resident_bytes: stat.rss_bytes().get(),
            virtual_bytes: stat.vsize,
            open_fds: proc.fd_count()?,
            max_fds,
            threads: u64::try_from(stat.num_threads).unwrap_or(0),
            start_time_seconds: procfs::boot_time_secs()? as f64 + stat.starttime as f64 / per_second,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_is_alive() {
        let process = Process::read().expect("tests run where /proc is mounted");
        assert!(process.resident_bytes > 0 && process.resident_bytes <= process.virtual_bytes, "{process:?}");
        assert!(process.open_fds > 0 && process.threads > 0, "{process:?}");
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs_f64();
        // The kernel counts ticks from boot, and a machine that was suspended deviates further.
        assert!((now - process.start_time_seconds).abs() < 3600.0, "{process:?} at {now}");
    }
}
