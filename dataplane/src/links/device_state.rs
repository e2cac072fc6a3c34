//! Device state that survives a crash: the process that uses the device, and the original values of the sysctls that it
//! changed.
//!
//! Each device has a small file below [`DIRECTORY`]. It is written when the device is locked and removed when it is
//! released. After a `kill -9` the file remains, and the next process reads the original values from it.
//!
//! A device belongs to a network namespace, and the file name begins with the inode number of that namespace. When the
//! namespace is deleted, so are its devices and their sysctls, and the kernel later reuses the number. [`sweep`]
//! removes such files when a gateway starts, but only if the namespace is certain to be gone ([`namespaces::gone`]).
//!
//! Invariant: nothing depends on the file being present or correct. Without it, the current value of a sysctl counts as
//! the original one. The kernel keeps the lock ([`super::lock`]).

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use tidegate_host::atomic_file;

use super::namespaces;

/// The directory of the files.
pub const DIRECTORY: &str = "/run/tidegate/devices";

/// The file of one device.
#[derive(Debug, Clone)]
pub struct Record {
    path: PathBuf,
}

/// The contents of a record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RecordContents {
    /// The process that locked the device.
    pub pid: Option<u32>,
    /// The sysctls that it changed, with their original values.
    pub sysctls: Vec<(PathBuf, String)>,
}

impl Record {
    /// The record of a device in this thread's network namespace.
    #[must_use]
    pub fn of(device: &str) -> Self {
        Self::within(Path::new(DIRECTORY), device)
    }

    pub(crate) fn within(directory: &Path, device: &str) -> Self {
        // Devices in two namespaces may have the same name.
        let namespace = own_namespace();
        let device: String = device
            .chars()
            .map(|c| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' })
            .collect();
        Self { path: directory.join(format!("{namespace}-{device}")) }
    }

    /// The contents of the file; empty if there is none.
    #[must_use]
    pub fn read(&self) -> RecordContents {
        let mut kept = RecordContents::default();
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

    /// Writes the file. If that fails (a read-only `/run`), a crash leaves the sysctls changed permanently.
    pub fn write(&self, kept: &RecordContents) {
        let mut text = kept.pid.map(|pid| format!("pid {pid}\n")).unwrap_or_default();
        for (path, value) in &kept.sysctls {
            text.push_str(&format!("{} {}\n", path.display(), value.trim()));
        }
        let directory = self.path.parent().map_or(Ok(()), fs::create_dir_all);
        let replace = |()| atomic_file::replace(&self.path, |out| out.write_all(text.as_bytes()));
        if let Err(error) = directory.and_then(replace) {
            tracing::warn!(path = %self.path.display(), %error, "cannot record the original sysctls of a device: a \
                crash would leave the gateway's values in place");
        }
    }

    /// Removes the file, and the directory if that was the last file.
    pub fn remove(&self) {
        // A file that can't be removed does no harm.
        let _ = fs::remove_file(&self.path);
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

/// Removes the records of devices whose network namespace no longer exists. If that can't be determined, all records
/// stay.
pub fn sweep() {
    sweep_within(Path::new(DIRECTORY));
}

/// A file and its inode number. A rewritten record is a different file.
type Found = (PathBuf, u64);

fn sweep_within(directory: &Path) {
    let mut found = by_namespace(directory);
    found.remove(&own_namespace());
    if found.is_empty() {
        return;
    }
    match namespaces::gone(found.keys().copied().collect()) {
        Ok(gone) => {
            for path in gone.iter().filter_map(|namespace| found.remove(namespace)).flatten() {
                tracing::info!(path = %path.0.display(), "removed the record of a device whose network namespace is gone");
                remove(&path);
            }
        }
        Err(error) => {
            tracing::debug!(%error, "device records kept: their network namespaces may still exist");
        }
    }
}

/// All records, grouped by the network namespace of their device.
fn by_namespace(directory: &Path) -> BTreeMap<u64, Vec<Found>> {
    let mut found: BTreeMap<u64, Vec<Found>> = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let namespace = entry.file_name().to_str().and_then(|name| name.split_once('-')?.0.parse().ok());
        if let (Some(namespace), Ok(metadata)) = (namespace, entry.metadata()) {
            found.entry(namespace).or_default().push((entry.path(), metadata.ino()));
        }
    }
    found
}

/// Removes a file, unless a gateway in a new namespace with the same number has replaced it.
fn remove((path, inode): &Found) {
    if fs::symlink_metadata(path).is_ok_and(|metadata| metadata.ino() == *inode)
        && let Err(error) = fs::remove_file(path)
    {
        tracing::debug!(path = %path.display(), %error, "cannot remove the device record");
    }
}

/// The inode number of this thread's network namespace.
fn own_namespace() -> u64 {
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |file| file.ino())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_leaves_nothing_when_removed() {
        let directory = std::env::temp_dir().join(format!("tidegate-record-{}", std::process::id()));
        let record = Record::within(&directory, "netdev/eth0:1");
        assert_eq!(record.read(), RecordContents::default());
        let sysctl = PathBuf::from("/proc/sys/net/ipv4/conf/eth0/rp_filter");
        let kept = RecordContents { pid: Some(7), sysctls: vec![(sysctl, "2".to_owned())] };
        record.write(&kept);
        assert_eq!(record.read(), kept);
        record.remove();
        assert!(!directory.exists());
    }
    #[test]
    fn records_of_functions_of_one_nic_are_written_by_different_names() {
        let directory = std::env::temp_dir().join(format!("tidegate-functions-{}", std::process::id()));
        let records = ["0000:03:00.0", "0000:03:00.1"].map(|device| Record::within(&directory, device));
        for (record, pid) in records.iter().zip(1..) {
            record.write(&RecordContents { pid: Some(pid), sysctls: Vec::new() });
        }
        assert_eq!(records.each_ref().map(|record| record.read().pid), [Some(1), Some(2)]);
        records.iter().for_each(Record::remove);
        assert!(!directory.exists());
    }

    #[test]
    fn only_records_of_namespaces_that_are_gone_are_swept() {
        let directory = std::env::temp_dir().join(format!("tidegate-sweep-{}", std::process::id()));
        let own = Record::within(&directory, "eth0");
        own.write(&RecordContents::default());
        // No namespace has this number: numbers start at 0xf0000000.
        let (gone, foreign) = (directory.join("7-eth0"), directory.join("notes"));
        fs::write(&gone, "pid 1\n").expect("written");
        fs::write(&foreign, "").expect("written");
        sweep_within(&directory);
        assert_eq!([gone.exists(), foreign.exists(), own.path.exists()], [false, true, true]);
        fs::remove_dir_all(&directory).expect("removed");
    }
}
