//! A file of fixed-length records with checksums: one process appends to it, the next one reads it.
//!
//! Invariant: reading stops at an incomplete or changed record.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tidegate_host::atomic_file;

/// The file is rewritten when it has more than twice the records that it needs, plus this many.
const SLACK: usize = 65_536;
/// The length of the checksum at the end of each record.
const SUM: usize = 4;

/// A file of records of `RECORD` bytes.
#[derive(Debug)]
pub(super) struct RecordLog<const RECORD: usize> {
    path: PathBuf,
    file: File,
    records: usize,
}

impl<const RECORD: usize> RecordLog<RECORD> {
    /// Creates an empty file.
    pub(super) fn create(path: PathBuf) -> io::Result<Self> {
        let file = atomic_file::private_file(&path)?;
        Ok(Self { path, file, records: 0 })
    }

    /// Whether to rewrite the file instead of appending this many bytes. `needed` counts the records of the rewritten
    /// file.
    pub(super) fn is_too_long(&self, more: usize, needed: impl FnOnce() -> usize) -> bool {
        let records = self.records + more / RECORD;
        records > SLACK && records > 2 * needed() + SLACK
    }

    /// Appends records.
    pub(super) fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all(bytes)?;
        self.records += bytes.len() / RECORD;
        Ok(())
    }

    /// Rewrites the file with these records only.
    pub(super) fn replace(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file = atomic_file::replace(&self.path, |out| out.write_all(bytes))?;
        self.records = bytes.len() / RECORD;
        Ok(())
    }

    /// Makes all further writes fail, as on a full file system.
    #[cfg(test)]
    pub(super) fn break_off(&mut self) {
        self.file = File::open(&self.path).expect("the file exists");
    }
}

/// Appends the checksum to a record that starts at `start`.
pub(super) fn seal(to: &mut Vec<u8>, start: usize) {
    let sum = crc32c::crc32c(&to[start..]);
    to.extend(sum.to_le_bytes());
}

/// The contents of a record without its checksum; `None` if the checksum is wrong.
pub(super) fn unseal<const RECORD: usize>(record: &[u8; RECORD]) -> Option<&[u8]> {
    let (content, sum) = record.split_at(RECORD - SUM);
    (crc32c::crc32c(content).to_le_bytes() == sum).then_some(content)
}

/// The records of a file, and whether the file is undamaged.
pub(super) fn read<T, const RECORD: usize>(
    path: &Path,
    parse: impl Fn(&[u8; RECORD]) -> Option<T>,
) -> io::Result<(Vec<T>, bool)> {
    let bytes = std::fs::read(path)?;
    let (chunks, rest) = bytes.as_chunks::<RECORD>();
    let records: Vec<T> = chunks.iter().map_while(parse).collect();
    let is_whole = !records.is_empty() && records.len() == chunks.len() && rest.is_empty();
    Ok((records, is_whole))
}
