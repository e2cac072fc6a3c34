//! The file of JSON lines.
//!
//! It is opened again when another file is at its path, or none, so that `logrotate` needs no signal. When it reaches
//! its limit, it is renamed to `NAME.1`, which replaces the one before, and a new file begins: both together have at
//! most twice the limit.
//!
//! Invariant: a line is written whole, or the next one begins on a new line.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// The open file.
#[derive(Debug)]
struct Open {
    file: File,
    device: u64,
    inode: u64,
    /// Its length; `None` if it is no regular file and so has no limit.
    len: Option<u64>,
}

/// See [the module](self).
#[derive(Debug)]
pub(crate) struct LogFile {
    path: PathBuf,
    bytes_max: u64,
    open: Option<Open>,
    /// Whether the last write may have ended within a line.
    is_torn: bool,
}

impl LogFile {
    pub(crate) fn new(path: PathBuf, bytes_max: u64) -> Self {
        Self { path, bytes_max, open: None, is_torn: false }
    }

    /// Appends whole lines.
    pub(crate) fn append(&mut self, lines: &[u8]) -> io::Result<()> {
        let written = self.try_append(lines);
        if written.is_err() {
            self.open = None;
        }
        written
    }

    fn try_append(&mut self, lines: &[u8]) -> io::Result<()> {
        let is_current = |open: &Open| {
            fs::metadata(&self.path).is_ok_and(|at| (at.dev(), at.ino()) == (open.device, open.inode))
        };
        if !self.open.as_ref().is_some_and(is_current) {
            self.open = Some(self.open()?);
        }
        let is_full = |len: u64| len > 0 && len + lines.len() as u64 > self.bytes_max;
        if self.open.as_ref().and_then(|open| open.len).is_some_and(is_full) {
            let mut older = self.path.clone().into_os_string();
            older.push(".1");
            fs::rename(&self.path, older)?;
            self.open = Some(self.open()?);
            self.is_torn = false;
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if self.is_torn {
            open.file.write_all(b"\n")?;
        }
        self.is_torn = true;
        open.file.write_all(lines)?;
        self.is_torn = false;
        open.len = open.len.map(|len| len + lines.len() as u64);
        Ok(())
    }

    fn open(&self) -> io::Result<Open> {
        // Addresses of clients are personal data.
        let file = OpenOptions::new().append(true).create(true).mode(0o640).open(&self.path)?;
        let at = file.metadata()?;
        let len = at.is_file().then_some(at.len());
        Ok(Open { file, device: at.dev(), inode: at.ino(), len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_renamed_or_removed_file_is_opened_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("flows.json");
        let mut file = LogFile::new(path.clone(), 1 << 20);
        file.append(b"1\n").expect("it is created");
        fs::rename(&path, directory.path().join("rotated")).expect("as logrotate does");
        file.append(b"2\n").expect("a new file");
        fs::remove_file(&path).expect("it exists");
        file.append(b"3\n").expect("a new file");
        assert_eq!(fs::read(&path).expect("it exists"), b"3\n");
        assert_eq!(fs::read(directory.path().join("rotated")).expect("it exists"), b"1\n");
    }

    #[test]
    fn the_file_is_limited_and_no_line_is_cut() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("flows.json");
        let mut file = LogFile::new(path.clone(), 100);
        for n in 0..1_000 {
            file.append(format!("line {n:04}\n").as_bytes()).expect("it is written");
        }
        let [older, newer] = ["flows.json.1", "flows.json"]
            .map(|name| fs::read_to_string(directory.path().join(name)).expect("it exists"));
        assert!(older.len() <= 100 && newer.len() <= 100);
        let both = older + &newer;
        assert!(both.ends_with("line 0999\n") && both.lines().all(|line| line.len() == 9), "{both}");
        assert_eq!(fs::read_dir(directory.path()).expect("it exists").count(), 2);
    }

    #[test]
    fn an_error_is_reported_and_the_next_attempt_may_succeed() {
        let directory = tempfile::tempdir().expect("a directory");
        let missing = directory.path().join("later");
        let mut file = LogFile::new(missing.join("flows.json"), 100);
        assert_eq!(file.append(b"1\n").expect_err("no directory").kind(), io::ErrorKind::NotFound);
        fs::create_dir(&missing).expect("it can be created");
        file.append(b"2\n").expect("now it can");
        assert_eq!(fs::read(missing.join("flows.json")).expect("it exists"), b"2\n");
    }
}
