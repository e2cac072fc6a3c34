//! Writes files in a state directory atomically, with mode 0600.

use std::fs::{self, DirBuilder, File, OpenOptions, Permissions};
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// Readable and writable by their owner alone.
const MODE: u32 = 0o600;

/// Opens an empty file that nobody else can read.
///
/// # Errors
/// When it cannot be made, emptied, or given its mode.
pub(crate) fn private_file(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(true).mode(MODE).open(path)?;
    // One that was there already has the mode that it had.
    file.set_permissions(Permissions::from_mode(MODE))?;
    Ok(file)
}

/// Replaces a file by what `write` writes, by way of a file beside it: whatever happens meanwhile, one of both is
/// there, whole. On return it is on the disk.
///
/// # Errors
/// When the directory or the file cannot be written; the file from before stays.
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
        // Whatever is there is of no use, and its place may be what is lacking.
        let _ = fs::remove_file(&beside);
    }
    written
}

/// Writes one line.
///
/// # Errors
/// When the file cannot be written.
pub(crate) fn line(out: &mut impl Write, text: &str) -> io::Result<()> {
    out.write_all(text.as_bytes())?;
    out.write_all(b"\n")
}
