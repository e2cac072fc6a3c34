//! The runtime directory: a directory for each configuration, of which the symbolic link `current` names one.
//!
//! It contains private keys. So only its owner can read it, and only one edge uses it.
//!
//! Invariant: `current` always names a complete configuration.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use tidegate_host::atomic_file;
use tidegate_model::objects::ObjectKey;

use crate::certificates::KeyPair;
use crate::render::{self, Rendered, certificate_file};

const CURRENT: &str = "current";
const PREFIX: &str = "configuration-";
const LOCK: &str = "lock";
/// `f_type` of a tmpfs (statfs(2)).
const TMPFS: i64 = 0x0102_1994;

/// The runtime directory of a running edge.
#[derive(Debug)]
pub struct Runtime {
    path: PathBuf,
    number: u64,
    /// Whether it is on a tmpfs, so that keys are never on a disk.
    pub is_tmpfs: bool,
    _lock: File,
}

impl Runtime {
    /// Creates the directory, and removes what an earlier edge left.
    ///
    /// # Errors
    /// If it can't be created, if others can read it, or if another edge uses it.
    pub fn open(path: &Path) -> io::Result<Self> {
        DirBuilder::new().recursive(true).mode(0o700).create(path)?;
        let metadata = fs::symlink_metadata(path)?;
        // In a directory such as /dev/shm, another user may have created it.
        if !metadata.is_dir() || metadata.uid() != rustix::process::geteuid().as_raw() {
            return Err(io::Error::other("it is not a directory of the user of this process"));
        }
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            let what = format!("its mode is {mode:o}, so that others have access; accepted: 700");
            return Err(io::Error::other(what));
        }
        let lock = lock_file(path)?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| io::Error::other("another tidegate-edge uses it"))?;
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_name().to_string_lossy().starts_with(PREFIX) {
                fs::remove_dir_all(entry.path())?;
            }
        }
        #[allow(clippy::useless_conversion, clippy::unnecessary_cast)]
        // The type depends on the architecture.
        let is_tmpfs = rustix::fs::statfs(path)?.f_type as i64 == TMPFS;
        Ok(Self { path: path.to_owned(), number: 0, is_tmpfs, _lock: lock })
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The configuration file that HAProxy reads.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.path.join(CURRENT).join(render::FILE)
    }

    /// Writes a configuration beside the current one. Dropping the result removes it, unless it was activated.
    ///
    /// # Errors
    /// If a file can't be written.
    pub fn stage(
        &mut self,
        rendered: &Rendered,
        pairs: &BTreeMap<ObjectKey, Arc<KeyPair>>,
    ) -> io::Result<Staged> {
        self.number += 1;
        let staged =
            Staged { directory: self.path.join(format!("{PREFIX}{}", self.number)), is_active: false };
        write(&staged.directory, rendered, pairs)?;
        Ok(staged)
    }

    /// Makes a staged configuration the current one. Returns the one before.
    ///
    /// # Errors
    /// If the link can't be replaced.
    pub fn activate(&self, staged: &mut Staged) -> io::Result<Option<PathBuf>> {
        let before = fs::read_link(self.path.join(CURRENT)).ok();
        self.link(&staged.directory)?;
        staged.is_active = true;
        Ok(before.filter(|before| *before != staged.directory))
    }

    /// Makes an earlier configuration the current one again, and removes the one that is now current.
    ///
    /// # Errors
    /// If the link can't be replaced.
    pub fn restore(&self, before: &Path) -> io::Result<()> {
        let failed = fs::read_link(self.path.join(CURRENT));
        self.link(before)?;
        fs::remove_dir_all(failed?)
    }

    fn link(&self, target: &Path) -> io::Result<()> {
        let beside = self.path.join("current.new");
        let _ = fs::remove_file(&beside);
        symlink(target, &beside)?;
        fs::rename(beside, self.path.join(CURRENT))
    }
}

/// A configuration that is not the current one yet.
#[derive(Debug)]
pub struct Staged {
    directory: PathBuf,
    is_active: bool,
}

impl Staged {
    /// Its configuration file.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.directory.join(render::FILE)
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.is_active {
            let _ = fs::remove_dir_all(&self.directory);
        }
    }
}

/// Writes all files of a configuration to a directory that only its owner can read.
///
/// # Errors
/// If a file can't be written.
pub fn write(
    directory: &Path,
    rendered: &Rendered,
    pairs: &BTreeMap<ObjectKey, Arc<KeyPair>>,
) -> io::Result<()> {
    DirBuilder::new().mode(0o700).create(directory)?;
    let write = |name: &str, text: &str| {
        let mut file = atomic_file::private_file(&directory.join(name))?;
        file.write_all(text.as_bytes())
    };
    for secret in rendered.secrets() {
        write(&certificate_file(secret), pairs[secret].pem())?;
    }
    for (name, text) in rendered.lists() {
        write(&name, &text)?;
    }
    write(render::FILE, &rendered.text())
}

fn lock_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(path.join(LOCK))
}

/// Whether an edge uses this directory.
///
/// # Errors
/// If that can't be read.
pub fn is_in_use(path: &Path) -> io::Result<bool> {
    let lock = File::open(path.join(LOCK))?;
    Ok(flock(&lock, FlockOperation::NonBlockingLockShared).is_err())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    fn names(path: &Path) -> Vec<String> {
        let entries = fs::read_dir(path).expect("readable");
        let mut names: Vec<String> = entries
            .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    fn rendered(head: &str) -> Rendered {
        Rendered { head: head.to_owned(), proxies: BTreeMap::new() }
    }

    #[test]
    fn only_one_edge_uses_a_directory_that_others_cannot_read() {
        let at = tempfile::tempdir().expect("a directory");
        let path = at.path().join("run");
        let runtime = Runtime::open(&path).expect("created");
        assert_eq!(fs::metadata(&path).expect("it exists").mode() & 0o777, 0o700);
        assert!(is_in_use(&path).expect("readable"));
        assert!(Runtime::open(&path).expect_err("in use").to_string().contains("another tidegate-edge"));
        drop(runtime);
        assert!(!is_in_use(&path).expect("readable"));
        let link = at.path().join("link");
        symlink(&path, &link).expect("linked");
        let error = Runtime::open(&link).expect_err("a link").to_string();
        assert!(error.contains("not a directory of the user"), "{error}");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o750)).expect("ours");
        assert!(Runtime::open(&path).expect_err("readable").to_string().contains("750"));
    }

    #[test]
    fn the_current_configuration_is_replaced_and_restored_as_a_whole() {
        let at = tempfile::tempdir().expect("a directory");
        let path = at.path().join("run");
        let mut runtime = Runtime::open(&path).expect("created");
        let none = BTreeMap::new();
        let text = |runtime: &Runtime| fs::read_to_string(runtime.file()).expect("readable");
        let mut first = runtime.stage(&rendered("first\n"), &none).expect("written");
        assert_eq!(runtime.activate(&mut first).expect("linked"), None);
        drop(runtime.stage(&rendered("refused\n"), &none).expect("written"));
        assert_eq!(names(&path), ["configuration-1", "current", "lock"]);
        let mut second = runtime.stage(&rendered("second\n"), &none).expect("written");
        let before = runtime.activate(&mut second).expect("linked").expect("the first");
        assert_eq!(text(&runtime), "second\n");
        runtime.restore(&before).expect("linked");
        assert_eq!(text(&runtime), "first\n");
        assert_eq!(names(&path), ["configuration-1", "current", "lock"]);
        let mode = fs::metadata(runtime.file()).expect("it exists").mode() & 0o777;
        assert_eq!(mode, 0o600);
        drop(runtime);
        Runtime::open(&path).expect("opened again");
        assert_eq!(names(&path), ["current", "lock"], "old configurations are removed");
    }
}
