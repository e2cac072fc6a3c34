//! Silences the kernel on an interface that the gateway uses by `net_af_packet`.
//!
//! There the kernel also receives every frame, and it has the gateway's own addresses on the tap: it would answer
//! twice, and forward packets that the gateway forwards. Sysctls of that one interface stop it behind the packet
//! sockets: no answer to ARP, no IPv6, and a strict reverse path filter, which drops all IPv4 because every return
//! route uses the tap. (`tc ... action drop` would be more direct, but not every kernel has the classifier.) Frames
//! that the gateway sends are not affected.
//!
//! Invariant: the sysctls are restored on drop. Until then their original values are in the device's [`Record`], so
//! that after a kill the next process restores those, and not the values that it finds.

use std::io;
use std::path::PathBuf;

use crate::links::record::{Kept, Record};

/// What is set, below `/proc/sys/net`. The larger of the interface's value and that of `all` counts for the filters.
const SYSCTLS: [(&str, &str, &str); 4] = [
    ("ipv4", "rp_filter", "1"),
    ("ipv4", "arp_ignore", "8"),
    ("ipv4", "forwarding", "0"),
    ("ipv6", "disable_ipv6", "1"),
];

/// Why the kernel could not be kept quiet.
#[derive(Debug, thiserror::Error)]
#[error(
    "{interface}: cannot keep the kernel from answering there too: writing {value:?} to {path}: {source}"
)]
pub struct SysctlGuardError {
    /// The kernel interface.
    interface: String,
    /// What was being set.
    path: String,
    /// To what.
    value: String,
    /// What the kernel said.
    source: io::Error,
}

/// The kernel keeps quiet on an interface for as long as this lives.
#[derive(Debug)]
pub struct SysctlGuard {
    /// What to write back, in the order in which it was changed.
    before: Vec<(PathBuf, String)>,
    record: Record,
}

impl SysctlGuard {
    /// Whether the kernel hears what a device hears: `net_af_packet` shares the interface with it.
    #[must_use]
    pub fn is_needed(device: &str) -> bool {
        device.starts_with("net_af_packet")
    }

    /// Begins, in this thread's network namespace; `record` is the device's.
    ///
    /// # Errors
    /// When a sysctl cannot be written (no root, a read-only /proc). One that the kernel does not have, such as
    /// those of IPv6 where that is compiled out, is passed over.
    pub fn begin(interface: &str, record: &Record) -> Result<Self, SysctlGuardError> {
        let left = record.read().sysctls;
        let (mut before, mut changes) = (Vec::new(), Vec::new());
        for (family, name, value) in SYSCTLS {
            let path = PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/{name}"));
            let Ok(found) = std::fs::read_to_string(&path) else { continue };
            if found.trim() != value {
                before.push((path.clone(), found.trim().to_owned()));
                changes.push((path, value));
            } else if let Some(left) = left.iter().find(|(changed, _)| *changed == path) {
                // Set by a process that was killed.
                before.push(left.clone());
            }
        }
        let guard = Self { before, record: record.clone() };
        guard.remember();
        for (path, value) in changes {
            std::fs::write(&path, value).map_err(|source| SysctlGuardError {
                interface: interface.to_owned(),
                path: path.display().to_string(),
                value: value.to_owned(),
                source,
            })?;
        }
        if std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").is_ok_and(|all| all.trim() == "2")
        {
            tracing::warn!(
                interface,
                "net.ipv4.conf.all.rp_filter is 2: the kernel may also answer on the port; set it to 0"
            );
        }
        Ok(guard)
    }

    /// The interface is gone, and with it all that was set: nothing is put back.
    pub fn forget(mut self) {
        self.before.clear();
    }

    fn remember(&self) {
        self.record.write(&Kept { pid: Some(std::process::id()), sysctls: self.before.clone() });
    }
}

impl Drop for SysctlGuard {
    fn drop(&mut self) {
        for (path, value) in self.before.drain(..).rev() {
            // The interface may be gone by now; then there is nothing to put back.
            if let Err(error) = std::fs::write(&path, value) {
                tracing::debug!(path = %path.display(), %error, "cannot restore the sysctl");
            }
        }
        self.remember();
    }
}
