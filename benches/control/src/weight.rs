//! The memory of this process: resident memory, without pages that it shares with other processes.
//!
//! Read from `/proc/self`; every number is in bytes.

use anyhow::{Context, Result};
use procfs::process::Process;

/// Anonymous resident memory: heap, stacks, and packet memory that is not in hugepages.
///
/// # Errors
/// `/proc` cannot be read.
pub fn anonymous() -> Result<u64> {
    let status = Process::myself().context("/proc/self")?.status().context("/proc/self/status")?;
    Ok(status.rssanon.context("RssAnon in /proc/self/status")? * 1024)
}

/// All resident memory.
///
/// # Errors
/// `/proc` cannot be read.
pub fn resident() -> Result<u64> {
    let status = Process::myself().context("/proc/self")?.status().context("/proc/self/status")?;
    Ok(status.vmrss.context("VmRSS in /proc/self/status")? * 1024)
}
