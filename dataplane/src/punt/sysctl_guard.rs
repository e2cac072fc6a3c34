//! Silences the kernel on an interface that the gateway uses through `net_af_packet`.
//!
//! The kernel also receives every frame there, and it has the gateway's own addresses on the tap: it would answer
//! twice, and forward packets that the gateway forwards. Sysctls of that interface prevent this: no answers to ARP, no
//! IPv6, and a strict reverse path filter, which drops all IPv4 because every return route uses the tap. (`tc ...
//! action drop` would be more direct, but not every kernel has the classifier.) Frames that the gateway sends are not
//! affected.
//!
//! Other programs change these sysctls, often unintentionally: a write to `all` sets the value of every interface. So
//! they are checked regularly ([`SysctlGuard::restore_changed`]). A renamed interface keeps its values under its new
//! name ([`SysctlGuard::follow`]).
//!
//! Invariant: the sysctls are restored on drop. Until then their original values are in the device's [`Record`], so
//! that after a kill the next process restores the original values instead of the ones that it finds.

use std::cell::Cell;
use std::{io, mem};

use super::sysctl::{self, path};
use crate::links::device_state::{Record, RecordContents};

/// The sysctls to set, below `/proc/sys/net`. For the filters, the kernel applies the larger of the values of the
/// interface and of `all`.
const SYSCTLS: [(&str, &str, &str); 4] = [
    ("ipv4", "rp_filter", "1"),
    ("ipv4", "arp_ignore", "8"),
    ("ipv4", "forwarding", "0"),
    ("ipv6", "disable_ipv6", "1"),
];

/// Why the kernel could not be silenced.
#[derive(Debug, thiserror::Error)]
#[error(
    "{interface}: cannot keep the kernel from answering on this interface: cannot write {value:?} to {path}: {source}"
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

/// Keeps the kernel silent on an interface until dropped.
#[derive(Debug)]
pub struct SysctlGuard {
    /// The current name of the interface.
    interface: String,
    /// Family, name and original value, in the order in which they were changed.
    before: Vec<(&'static str, &'static str, String)>,
    record: Record,
    /// Whether a change by another program has been logged: changes may happen every second.
    has_logged: Cell<bool>,
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
    /// If a sysctl can't be written (no root; a read-only /proc, without the host's mount). A sysctl that the kernel
    /// lacks is skipped, such as those of IPv6 in a kernel without it.
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
                // A killed process changed it, so restore the recorded value.
                before.push((family, name, original.clone()));
            }
        }
        let (interface, record) = (interface.to_owned(), record.clone());
        let guard = Self { interface, before, record, has_logged: Cell::new(false) };
        guard.remember();
        for (path, value) in changes {
            sysctl::write(&path, value).map_err(|source| SysctlGuardError {
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
                "net.ipv4.conf.all.rp_filter is 2: the kernel may also answer on the interface; set the sysctl to 0"
            );
        }
        Ok(guard)
    }

    /// Restores sysctls that another program has changed.
    pub fn restore_changed(&self) {
        for (family, name, value) in SYSCTLS {
            let path = path(&self.interface, family, name);
            let Ok(found) = std::fs::read_to_string(&path) else { continue };
            let found = found.trim();
            if found == value {
                continue;
            }
            match sysctl::write(&path, value) {
                Ok(()) if self.has_logged.replace(true) => {
                    tracing::debug!(path = %path.display(), found, value, "a sysctl was changed: restored");
                }
                Ok(()) => tracing::warn!(
                    path = %path.display(), found, value,
                    "another program changed a sysctl of the interface, so the kernel processed the gateway's packets; the sysctl is restored"
                ),
                Err(error) => {
                    tracing::debug!(path = %path.display(), found, %error, "cannot restore the sysctl");
                }
            }
        }
    }

    /// Follows the interface to another name. `record` is the record of that name and gets the original values.
    pub fn follow(&mut self, interface: &str, record: &Record) {
        interface.clone_into(&mut self.interface);
        let left = mem::replace(&mut self.record, record.clone());
        self.remember();
        // Another interface may get the former name, so its record must not contain these values.
        left.write(&RecordContents { pid: Some(std::process::id()), sysctls: Vec::new() });
    }

    /// Restores the original values on the interface, which now has this name.
    pub fn restore(mut self, interface: &str) {
        interface.clone_into(&mut self.interface);
    }

    /// Forgets the original values without restoring them: the interface and its sysctls no longer exist.
    pub fn forget(mut self) {
        self.before.clear();
    }

    fn remember(&self) {
        let original = |(family, name, value): &(&str, &str, String)| {
            (path(&self.interface, family, name), value.clone())
        };
        let sysctls = self.before.iter().map(original).collect();
        self.record.write(&RecordContents { pid: Some(std::process::id()), sysctls });
    }
}

impl Drop for SysctlGuard {
    fn drop(&mut self) {
        for (family, name, value) in self.before.drain(..).rev() {
            let path = path(&self.interface, family, name);
            // The interface may no longer exist. Then there is nothing to restore.
            if let Err(error) = sysctl::write(&path, &value) {
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
            has_logged: Cell::new(false),
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
