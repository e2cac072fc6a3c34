//! What is known of a device across a crash: the process that has it, and the sysctls that it changed, as they were.
//!
//! A small file below [`DIRECTORY`] for each device, written when it is taken and removed when it is given back. After
//! a `kill -9` it stays, and the next process finds there what the kernel's own values no longer tell.
//!
//! Invariant: nothing depends on the file being there or being right: without it a value that is found is taken for the
//! original, and a lock is kept by the kernel ([`super::lock`]).

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Where the files are.
pub const DIRECTORY: &str = "/run/tidegate/devices";

/// The file of one device.
#[derive(Debug, Clone)]
pub struct Record {
    path: PathBuf,
}

/// What it says.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// The process that took the device.
    pub pid: Option<u32>,
    /// Sysctls that it changed, with the values before.
    pub sysctls: Vec<(PathBuf, String)>,
}

impl Record {
    /// Of a device, in this thread's network namespace.
    #[must_use]
    pub fn of(device: &str) -> Self {
        Self::within(Path::new(DIRECTORY), device)
    }

    fn within(directory: &Path, device: &str) -> Self {
        // Devices of two namespaces may have one name.
        let namespace = fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino());
        let device: String = device
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
            .collect();
        Self { path: directory.join(format!("{namespace}-{device}")) }
    }

    /// What the file says; nothing where there is none.
    #[must_use]
    pub fn read(&self) -> Kept {
        let mut kept = Kept::default();
        for line in fs::read_to_string(&self.path).unwrap_or_default().lines() {
            match line.split_once(' ') {
                Some(("pid", pid)) => kept.pid = pid.parse().ok(),
                Some((path, value)) if path.starts_with("/proc/sys/net/") => {
                    kept.sysctls.push((path.into(), value.to_owned()));
                }
                _ => {}
            }
        }
        kept
    }

    /// Writes it. Where that is not possible (a read-only `/run`) a crash leaves the sysctls changed for good.
    pub fn write(&self, kept: &Kept) {
        let mut text = kept.pid.map(|pid| format!("pid {pid}\n")).unwrap_or_default();
        for (path, value) in &kept.sysctls {
            text.push_str(&format!("{} {}\n", path.display(), value.trim()));
        }
        let new = self.path.with_extension("new");
        let written = self
            .path
            .parent()
            .map_or(Ok(()), fs::create_dir_all)
            .and_then(|()| fs::write(&new, text))
            .and_then(|()| fs::rename(&new, &self.path));
        if let Err(error) = written {
            tracing::warn!(path = %self.path.display(), %error, "what was changed would be forgotten by a crash");
        }
    }

    /// Removes it, and the directory when it was the last one.
    pub fn remove(&self) {
        // Nothing is left to be done about a file that stays.
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_nothing_is_left_of_a_record_that_was_removed() {
        let directory = std::env::temp_dir().join(format!("tidegate-record-{}", std::process::id()));
        let record = Record::within(&directory, "netdev/eth0:1");
        assert_eq!(record.read(), Kept::default());
        let sysctl = PathBuf::from("/proc/sys/net/ipv4/conf/eth0/rp_filter");
        let kept = Kept { pid: Some(7), sysctls: vec![(sysctl, "2".to_owned())] };
        record.write(&kept);
        assert_eq!(record.read(), kept);
        record.remove();
        assert!(!directory.exists());
    }
}
