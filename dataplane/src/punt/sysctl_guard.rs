//! Silences the kernel on an interface that the gateway uses by `net_af_packet`.
//!
//! There the kernel also receives every frame, and it has the gateway's own addresses on the tap: it would answer
//! twice, and forward packets that the gateway forwards. Sysctls of that one interface stop it behind the packet
//! sockets: no answer to ARP, no IPv6, and a strict reverse path filter, which drops all IPv4 because every return
//! route uses the tap. (`tc ... action drop` would be more direct, but not every kernel has the classifier.) Frames
//! that the gateway sends are not affected.
//!
//! Other programs change them, often without the intention: a write to `all` sets the value of every interface. So they are
//! looked at again and again ([`SysctlGuard::look_after`]). An interface that is renamed keeps its values, below its new
//! name ([`SysctlGuard::follow`]).
//!
//! Invariant: the sysctls are restored on drop. Until then their original values are in the device's [`Record`], so
//! that after a kill the next process restores those, and not the values that it finds.

use std::cell::Cell;
use std::path::PathBuf;
use std::{io, mem};

use crate::links::device_state::{Kept, Record};

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
    /// The name that the interface has now.
    interface: String,
    /// Family, name and original value, in the order in which they were changed.
    before: Vec<(&'static str, &'static str, String)>,
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
                before.push((family, name, found.trim().to_owned()));
                changes.push((path, value));
            } else if let Some((_, original)) = left.iter().find(|(changed, _)| *changed == path) {
                // A process that was killed had set it.
                before.push((family, name, original.clone()));
            }
        }
        let (interface, record) = (interface.to_owned(), record.clone());
        let guard = Self { interface, before, record, has_told: Cell::new(false) };
        guard.remember();
        for (path, value) in changes {
            std::fs::write(&path, value).map_err(|source| SysctlGuardError {
                interface: guard.interface.clone(),
                path: path.display().to_string(),
                value: value.to_owned(),
                source,
            })?;
        }
        if std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/rp_filter").is_ok_and(|all| all.trim() == "2")
        {
            tracing::warn!(
                interface = guard.interface,
                "net.ipv4.conf.all.rp_filter is 2: the kernel may also answer on the port; set it to 0"
            );
        }
        Ok(guard)
    }

    /// Sets those again that another program has changed.
    pub fn look_after(&self) {
        for (family, name, value) in SYSCTLS {
            let path = path(&self.interface, family, name);
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

    /// Follows the interface to another name. `record` is the record of that name, and gets the original values.
    pub fn follow(&mut self, interface: &str, record: &Record) {
        interface.clone_into(&mut self.interface);
        let left = mem::replace(&mut self.record, record.clone());
        self.remember();
        // Another interface may get the former name.
        left.write(&Kept { pid: Some(std::process::id()), sysctls: Vec::new() });
    }

    /// Restores the original values on the interface, which has this name now.
    pub fn restore(mut self, interface: &str) {
        interface.clone_into(&mut self.interface);
    }

    /// Forgets the original values without restoring them: the interface no longer exists, and neither do its sysctls.
    pub fn forget(mut self) {
        self.before.clear();
    }

    fn remember(&self) {
        let original = |(family, name, value): &(&str, &str, String)| {
            (path(&self.interface, family, name), value.clone())
        };
        let sysctls = self.before.iter().map(original).collect();
        self.record.write(&Kept { pid: Some(std::process::id()), sysctls });
    }
}

/// The file of a sysctl.
fn path(interface: &str, family: &str, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/{name}"))
}

impl Drop for SysctlGuard {
    fn drop(&mut self) {
        for (family, name, value) in self.before.drain(..).rev() {
            let path = path(&self.interface, family, name);
            // The interface may no longer exist. Then there is nothing to restore.
            if let Err(error) = std::fs::write(&path, value) {
                tracing::debug!(path = %path.display(), %error, "cannot restore the sysctl");
            }
        }
        self.remember();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn original_values_move_to_the_record_of_the_new_name() {
        let directory = std::env::temp_dir().join(format!("tidegate-guard-{}", std::process::id()));
        let [former, new] = ["no-such-old", "no-such-new"].map(|name| Record::within(&directory, name));
        let mut guard = SysctlGuard {
            interface: "no-such-old".to_owned(),
            before: vec![("ipv4", "arp_ignore", "2".to_owned())],
            record: former.clone(),
            has_told: Cell::new(false),
        };
        guard.remember();
        assert_eq!(former.read().sysctls, [(path("no-such-old", "ipv4", "arp_ignore"), "2".to_owned())]);
        guard.follow("no-such-new", &new);
        assert!(former.read().sysctls.is_empty());
        assert_eq!(new.read().sysctls, [(path("no-such-new", "ipv4", "arp_ignore"), "2".to_owned())]);
        drop(guard);
        assert!(new.read().sysctls.is_empty());
        former.remove();
        new.remove();
        assert!(!directory.exists());
    }
}
