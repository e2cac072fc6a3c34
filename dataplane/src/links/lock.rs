//! Ensures that only one gateway uses a device, whatever its interfaces are called.
//!
//! The lock is an abstract socket, which the kernel keeps per network namespace. So gateways in different namespaces
//! may have devices with the same name, and a process never leaves a lock behind. The device's [`Record`] names the
//! process that owns the lock.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use super::device_state::{Record, RecordContents};

/// A lock on a device, released when dropped.
#[derive(Debug)]
pub struct DeviceLock {
    record: Record,
    _socket: UnixListener,
}

/// Why a device could not be locked.
#[derive(Debug, thiserror::Error)]
pub enum LockError {
    /// Another process owns the lock.
    #[error(
        "{device} is in use by {}; accepted: a device that no other interface and no other gateway in this network \
         namespace uses",
        owner(*pid)
    )]
    InUse {
        /// The kernel's name of the device.
        device: String,
        /// The process that owns it, if known.
        pid: Option<u32>,
    },
    /// The lock socket could not be created.
    #[error("{device}: cannot take the lock: {source}")]
    Socket {
        /// The device.
        device: String,
        /// The error of the kernel.
        source: io::Error,
    },
}

impl LockError {
    /// Whether another process uses the device.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        matches!(self, Self::InUse { .. })
    }
}

fn owner(pid: Option<u32>) -> String {
    match pid {
        Some(pid) if pid == std::process::id() => "another interface of this configuration".to_owned(),
        Some(pid) => format!("another gateway, process {pid}"),
        None => "another gateway".to_owned(),
    }
}

impl DeviceLock {
    /// Locks the device with this kernel name or PCI address.
    ///
    /// # Errors
    /// If another gateway, or another interface of this one, uses the device.
    pub fn take(device: &str) -> Result<Self, LockError> {
        let record = Record::of(device);
        let socket = SocketAddr::from_abstract_name(format!("tidegate/device/{device}"))
            .and_then(|address| UnixListener::bind_addr(&address));
        match socket {
            Ok(socket) => {
                // Original values that a crashed process recorded are kept, so that they can be restored.
                record.write(&RecordContents { pid: Some(std::process::id()), ..record.read() });
                Ok(Self { record, _socket: socket })
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                Err(LockError::InUse { device: device.to_owned(), pid: record.read().pid })
            }
            Err(source) => Err(LockError::Socket { device: device.to_owned(), source }),
        }
    }

    /// The record, which survives the process.
    #[must_use]
    pub fn record(&self) -> &Record {
        &self.record
    }
}

impl Drop for DeviceLock {
    fn drop(&mut self) {
        self.record.remove();
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_device_is_locked_once_and_free_after_its_lock_is_dropped() {
        let name = format!("test-{}", std::process::id());
        let lock = DeviceLock::take(&name).expect("it is free");
        let refused = DeviceLock::take(&name).expect_err("it is taken");
        assert!(
            refused.is_in_use() && refused.to_string().contains("another interface of this"),
            "{refused}"
        );
        drop(lock);
        // A process spawned by another test at this moment inherits the socket until it executes its program.
        let end = Instant::now() + Duration::from_secs(10);
        let mut again = DeviceLock::take(&name);
        while again.as_ref().is_err_and(LockError::is_in_use) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(10));
            again = DeviceLock::take(&name);
        }
        drop(again.expect("free again"));
    }
}
