//! What this process weighs: resident memory, without the pages that others would share with it.
//!
//! Read from `/proc/self`; every number is in bytes.

use anyhow::{Context, Result};
use procfs::process::Process;

/// Anonymous resident memory: heap, stacks, and packet memory where that is not in huge pages.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn anonymous() -> Result<u64> {
    let status = Process::myself().context("/proc/self")?.status().context("/proc/self/status")?;
    Ok(status.rssanon.context("RssAnon in /proc/self/status")? * 1024)
}

/// All resident memory.
///
/// # Errors
/// When `/proc` cannot be read.
pub fn resident() -> Result<u64> {
    let status = Process::myself().context("/proc/self")?.status().context("/proc/self/status")?;
    Ok(status.vmrss.context("VmRSS in /proc/self/status")? * 1024)
}
