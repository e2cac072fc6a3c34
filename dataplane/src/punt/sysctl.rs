//! Writes the sysctls of network interfaces.
//!
//! `/proc/sys` is read-only in a container that isn't privileged. A Pod may mount the host's `/proc/sys/net` below
//! [`HOST`]; the kernel shows every process the sysctls of its own network namespace there.
//!
//! Callers: [`super::sysctl_guard`] and [`super::tap`]. They keep the paths below `/proc`, so that a gateway outside the
//! container restores the values that one inside has changed.

use std::path::{Path, PathBuf};
use std::{fs, io};

/// The directory below which the DaemonSet mounts `/proc/sys/net`.
const HOST: &str = "/mnt/host";

/// The file of a sysctl of an interface; `family` is `ipv4` or `ipv6`.
pub(super) fn path(interface: &str, family: &str, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/sys/net/{family}/conf/{interface}/{name}"))
}

/// Writes a value to the file of a sysctl, or if that fails to the same file of the host's mount.
///
/// # Errors
/// The error of the file itself, if the mount is missing: no rights, or a read-only `/proc`.
pub(super) fn write(path: &Path, value: &str) -> io::Result<()> {
    let mounted = Path::new(HOST).join(path.strip_prefix("/").unwrap_or(path));
    match fs::write(path, value) {
        Err(_) if mounted.exists() => fs::write(mounted, value),
        written => written,
    }
}
