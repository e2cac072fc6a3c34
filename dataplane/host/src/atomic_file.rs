//! Replaces files atomically, with mode 0600: at any moment, either the old or the new file is complete.
//!
//! Written by hand, without `tempfile`: the name of the temporary file is fixed, so that a process that was killed
//! leaves at most one behind, and the next call overwrites it.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, IntoInnerError};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Readable and writable only by the owner.
const MODE: u32 = 0o600;

/// Opens an empty file that other users cannot read.
///
/// # Errors
/// If it cannot be created, truncated, or given its mode.
pub fn private_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)?;
    // An existing file keeps its old mode until here.
    file.set_permissions(Permissions::from_mode(MODE))?;
    Ok(file)
}

/// Replaces a file by the output of `write`, through a temporary file beside it. Creates the directory if it is
/// missing. Returns the new file, open for writing.
///
/// # Errors
/// If the directory or the file cannot be written; the previous file then stays.
pub fn replace(path: &Path, write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>) -> io::Result<File> {
    replace_with(path, write, |_| Ok(()))
}

/// Like [`replace`]. On return, the new file is on the disk.
///
/// # Errors
/// As for [`replace`].
pub fn replace_durably(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    replace_with(path, write, File::sync_all)?;
    File::open(directory(path))?.sync_all()
}

fn replace_with(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
    finish: impl FnOnce(&File) -> io::Result<()>,
) -> io::Result<File> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory(path))?;
    // The suffix is appended: names may differ only in what follows their last dot.
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = (|| {
        let mut out = BufWriter::new(private_file(beside.as_ref())?);
        write(&mut out)?;
        let file = out.into_inner().map_err(IntoInnerError::into_error)?;
        finish(&file)?;
        fs::rename(&beside, path)?;
        Ok(file)
    })();
    if written.is_err() {
        // The incomplete file is useless, and lack of space may be the cause of the error.
        let _ = fs::remove_file(&beside);
    }
    written
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_replaced_file_is_private_whatever_was_there_before() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("below/name.of.it");
        for (text, leftover) in [("one", false), ("two", true)] {
            let beside = directory.path().join("below/name.of.it.new");
            if leftover {
                fs::write(&beside, "a longer text of a process that was killed").expect("writable");
                fs::set_permissions(&beside, Permissions::from_mode(0o644)).expect("ours");
            }
            replace_durably(&path, |out| out.write_all(text.as_bytes())).expect("written");
            assert_eq!(fs::read_to_string(&path).expect("readable"), text);
            assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
            assert!(!beside.exists());
        }
        assert_eq!(
            fs::metadata(directory.path().join("below")).expect("there").permissions().mode() & 0o777,
            0o700
        );
    }

    #[test]
    fn a_failed_write_keeps_the_previous_file_and_leaves_no_other() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("state");
        let mut file = replace(&path, |out| out.write_all(b"one")).expect("written");
        file.write_all(b" more").expect("it is open");
        let failed = replace(&path, |out| out.write_all(b"two").and(Err(io::Error::other("no space"))));
        assert_eq!(failed.expect_err("it fails").to_string(), "no space");
        assert_eq!(fs::read_to_string(&path).expect("readable"), "one more");
        assert_eq!(fs::read_dir(directory.path()).expect("readable").count(), 1);
    }
}
