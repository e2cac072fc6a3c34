//! Silences the kernel on an interface that the gateway uses by `net_af_packet`.
//!
//! There the kernel also receives every frame, and it has the gateway's own addresses on the tap: it would answer
//! twice, and forward packets that the gateway forwards. Sysctls of that one interface stop it behind the packet
//! sockets: no answer to ARP, no IPv6, and a strict reverse path filter, which drops all IPv4 because every return
//! route uses the tap. (`tc ... action drop` would be more direct, but not every kernel has the classifier.) Frames
//! that the gateway sends are not affected.
//!
//! Other programs change them, often without the intention: a write to `all` sets the value of every interface. So they are
//! looked at again and again ([`SysctlGuard::look_after`]).
//!
//! Invariant: the sysctls are restored on drop. Until then their original values are in the device's [`Record`], so
//! that after a kill the next process restores those, and not the values that it finds.

use std::cell::Cell;
use std::io;
use std::path::PathBuf;

use crate::links::record::{Kept, Record};

/// The sysctls to set, below `/proc/sys/net`. For the filters, the larger of the interface's value and that of `all`
/// applies.
const SYSCTLS: [(&str, &str, &str); 4] = [
    ("ipv4", "rp_filter", "1"),
    ("ipv4", "arp_ignore", "8"),
    ("ipv4", "forwarding", "0"),
    ("ipv6", "disable_ipv6", "1"),
];

/// Why the kernel could not be silenced.
#[derive(Debug, thiserror::Error)]
#[error(
    "{interface}: cannot keep the kernel from answering there too: writing {value:?} to {path}: {source}"
)]
pub struct SysctlGuardError {
    /// The kernel interface.
    interface: String,
    /// The file of the sysctl.
    path: String,
    /// The value to write.
    value: String,
    /// The error of the kernel.
    source: io::Error,
}

/// Keeps the kernel silent on an interface until it is dropped.
#[derive(Debug)]
pub struct SysctlGuard {
    /// The original values, in the order in which they were changed.
    before: Vec<(PathBuf, String)>,
    record: Record,
    /// Whether the log has said that another program changes them. It may do so every second.
    has_told: Cell<bool>,
}

impl SysctlGuard {
    /// Whether the kernel receives the same frames as the device: `net_af_packet` shares the interface with it.
    #[must_use]
    pub fn is_needed(device: &str) -> bool {
        device.starts_with("net_af_packet")
    }

    /// Silences the interface in this thread's network namespace. `record` is the record of its device.
    ///
    /// # Errors
    /// When a sysctl cannot be written (no root, a read-only /proc). A sysctl that the kernel does not have, such as
    /// those of IPv6 if that is compiled out, is skipped.
    pub fn begin(interface: &str, record: &Record) -> Result<Self, SysctlGuardError> {
        let left = record.read().sysctls;
        let (mut before, mut changes) = (Vec::new(), Vec::new());
        for (family, name, value) in SYSCTLS {
            let path = path(interface, family, name);
            let Ok(found) = std::fs::read_to_string(&path) else { continue };
            if found.trim() != value {
                before.push((path.clone(), found.trim().to_owned()));
                changes.push((path, value));
            } else if let Some(left) = left.iter().find(|(changed, _)| *changed == path) {
                // A process that was killed had set it.
                before.push(left.clone());
            }
        }
        let guard = Self { before, record: record.clone(), has_told: Cell::new(false) };
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

    /// Sets those again that another program has changed.
    pub fn look_after(&self, interface: &str) {
        for (family, name, value) in SYSCTLS {
            let path = path(interface, family, name);
            let Ok(found) = std::fs::read_to_string(&path) else { continue };
            let found = found.trim();
            if found == value {
                continue;
            }
            match std::fs::write(&path, value) {
                Ok(()) if self.has_told.replace(true) => {
                    tracing::debug!(path = %path.display(), found, value, "a sysctl was changed, and is set again");
                }
                Ok(()) => tracing::warn!(
                    path = %path.display(), found, value,
                    "another program has changed a sysctl of the interface, so that the kernel took the gateway's packets: set again"
                ),
                Err(error) => {
                    tracing::debug!(path = %path.display(), found, %error, "cannot set the sysctl again");
                }
            }
        }
    }

    /// Forgets the original values without restoring them: the interface no longer exists, and neither do its sysctls.
    pub fn forget(mut self) {
        self.before.clear();
    }

    fn remember(&self) {
        self.record.write(&Kept { pid: Some(std::process::id()), sysctls: self.before.clone() });
    }
}

/// The file of a sysctl.
fn path(interface: &str, family: &str, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/{name}"))
}

impl Drop for SysctlGuard {
    fn drop(&mut self) {
        for (path, value) in self.before.drain(..).rev() {
            // The interface may no longer exist. Then there is nothing to restore.
            if let Err(error) = std::fs::write(&path, value) {
                tracing::debug!(path = %path.display(), %error, "cannot restore the sysctl");
            }
        }
        self.remember();
    }
}
