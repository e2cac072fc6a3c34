//! The file of the admin socket: only its owner can open it. It replaces a stale file, and is removed at shutdown.
//!
//! The socket is bound under another name and renamed after its mode is set, so no other user can open it at any
//! moment.

use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use tokio::net::UnixListener;

/// The file of a bound socket. Removed on drop, unless another file has replaced it.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    /// (device, inode)
    identity: (u64, u64),
}

/// Binds a listener at `path`, with the directories above it.
///
/// # Errors
/// `AddrInUse` if a daemon answers there; otherwise the error of the file system, for example if the file is not a
/// socket.
pub(super) fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(parent) = path.parent().filter(|p| !p.as_os_str().is_empty()) {
        fs::create_dir_all(parent)?;
    }
    refuse_living(path)?;
    let mut new = path.as_os_str().to_owned();
    new.push(format!(".{}", std::process::id()));
    let new = PathBuf::from(new);
    remove_if_there(&new)?;
    let listener = UnixListener::bind(&new)?;
    let placed =
        fs::set_permissions(&new, Permissions::from_mode(0o600)).and_then(|()| fs::rename(&new, path));
    if let Err(e) = placed {
        remove_if_there(&new)?;
        return Err(e);
    }
    let identity = identity(path)?;
    Ok((listener, SocketFile { path: path.to_owned(), identity }))
}

/// What distinguishes the file at a path from one that replaces it: its device and inode.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    fs::symlink_metadata(path).map(|metadata| (metadata.dev(), metadata.ino()))
}

/// Fails if the file at `path` must not be replaced.
fn refuse_living(path: &Path) -> io::Result<()> {
    let metadata = match fs::symlink_metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(e) => return Err(e),
    };
    if !metadata.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "the path is a file that is not a socket"));
    }
    match UnixStream::connect(path) {
        Ok(_) => Err(io::Error::new(io::ErrorKind::AddrInUse, "another process answers on this socket")),
        Err(_) => Ok(()),
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    }
}

impl SocketFile {
    /// Whether the file is at its path. Assumes so if that cannot be determined.
    pub(super) fn is_there(&self) -> bool {
        match identity(&self.path) {
            Ok(found) => found == self.identity,
            Err(error) => error.kind() != io::ErrorKind::NotFound,
        }
    }

    /// Its path.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = identity(&self.path).is_ok_and(|found| found == self.identity);
        if ours {
            // Errors cannot be reported during shutdown.
            let _ = fs::remove_file(&self.path);
        }
    }
}
