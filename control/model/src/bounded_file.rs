//! Reads a file that an operator names, up to a maximum size and without blocking.
//!
//! The configuration, the files that it names and the manifests of the directory source are read with this. A path
//! may lead to anything: opening a FIFO waits for a writer, a device may never end, and opening some devices has side
//! effects. So only regular files are opened, after links are followed. `/dev/null` counts as an empty file, because
//! people use it as one.
//!
//! Not covered: a file system that does not respond, such as a network file system whose server is down.

use std::fmt;
use std::fs::{self, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::diagnostic::{Diagnostic, Location};
use crate::yaml;

/// The largest configuration, list of `protection` or manifest that is read.
pub const FILE_BYTES_MAX: u64 = 64 << 20;

/// Why a file was not read.
#[derive(Debug)]
pub struct Unreadable {
    why: Why,
    bytes_max: u64,
}

#[derive(Debug)]
enum Why {
    Io(io::Error),
    NotRegular,
    TooLarge,
}

impl Unreadable {
    /// What would be accepted.
    pub fn accepted(&self) -> String {
        format!("a readable regular file of at most {}, or a link to such a file", Size(self.bytes_max))
    }
}

impl fmt::Display for Unreadable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.why {
            Why::Io(error) => error.fmt(f),
            Why::NotRegular => f.write_str("it is not a regular file"),
            Why::TooLarge => write!(f, "it is larger than {}", Size(self.bytes_max)),
        }
    }
}

/// A number of bytes for display.
struct Size(u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            bytes if bytes >= 1 << 20 => write!(f, "{} MiB", bytes >> 20),
            bytes => write!(f, "{} KiB", bytes >> 10),
        }
    }
}

/// The text of the file, or the fault of the file with its position.
///
/// # Errors
///
/// As [`read`], and if it isn't UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> Result<String, Diagnostic> {
    let shown = path.to_string_lossy();
    let bytes = read(path, bytes_max).map_err(|error| {
        let fault = Diagnostic::error(format!("cannot be read: {error}")).accepting(error.accepted());
        fault.at(Location::start_of(shown.as_ref()))
    })?;
    yaml::text_of(bytes, &shown)
}

/// The contents of the file.
///
/// # Errors
///
/// If the file can't be read, is neither a regular file nor a link to one, or has more than `bytes_max` bytes.
pub fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Unreadable> {
    contents(path, bytes_max).map_err(|why| Unreadable { why, bytes_max })
}

fn contents(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Why> {
    let fits = |metadata: fs::Metadata| match metadata.len() {
        _ if !metadata.is_file() => Err(Why::NotRegular),
        bytes if bytes > bytes_max => Err(Why::TooLarge),
        _ => Ok(()),
    };
    let metadata = fs::metadata(path).map_err(Why::Io)?;
    // Device numbers of `/dev/null` on every Linux.
    if metadata.file_type().is_char_device() && metadata.rdev() == rustix::fs::makedev(1, 3) {
        return Ok(Vec::new());
    }
    // Checked before the file is opened, because opening a device may have side effects.
    fits(metadata)?;
    // It may have become a FIFO since then. Opening a FIFO for reading would wait for a writer.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).expect("open flags are an int in C");
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).map_err(Why::Io)?;
    fits(file.metadata().map_err(Why::Io)?)?;
    let mut bytes = Vec::new();
    // A file may grow while it is read, and files in /proc have no length.
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(Why::Io)?;
    if bytes.len() as u64 > bytes_max { Err(Why::TooLarge) } else { Ok(bytes) }
}
