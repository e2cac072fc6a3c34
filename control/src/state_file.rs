//! Writes files in a state directory atomically, with mode 0600.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Readable and writable only by the owner.
const MODE: u32 = 0o600;

/// Opens an empty file that other users cannot read.
///
/// # Errors
/// If it cannot be created, truncated, or given its mode.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)?;
    // An existing file keeps its old mode until here.
    file.set_permissions(Permissions::from_mode(MODE))?;
    Ok(file)
}

/// Replaces a file by the output of `write`, through a temporary file. At any moment, either the old or the new file is
/// complete. On return, the new file is on the disk.
///
/// # Errors
/// If the directory or the file cannot be written; the previous file then stays.
pub(crate) fn replace(
    path: &Path,
    write: impl FnOnce(&mut BufWriter<File>) -> io::Result<()>,
) -> io::Result<()> {
    let directory = path.parent().unwrap_or(Path::new("."));
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let beside = path.with_extension("new");
    let written = (|| {
        let mut out = BufWriter::new(private_file(&beside)?);
        write(&mut out)?;
        let file = out.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(&beside, path)?;
        File::open(directory)?.sync_all()
    })();
    if written.is_err() {
        // The incomplete file is useless, and lack of space may be the cause of the error.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Writes one line.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn line(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")
}
