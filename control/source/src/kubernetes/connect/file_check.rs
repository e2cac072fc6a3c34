//! Whether the files of the credentials have changed since they were read.
//!
//! Invariant: a file system that doesn't respond delays the connection by at most [`CHECK_MAX`], and occupies one thread.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;

use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The maximum wait for the metadata of the files.
pub(super) const CHECK_MAX: Duration = Duration::from_secs(1);

/// Checks whether files have changed, on threads that may block.
#[derive(Default)]
pub(super) struct FileCheck {
    /// A check that has timed out but not ended.
    in_progress: Option<JoinHandle<bool>>,
}

impl FileCheck {
    /// Whether the files have changed. If the file system doesn't respond in time, they count as unchanged, and no
    /// other check starts until this one has ended.
    pub(super) async fn differs(&mut self, check: impl FnOnce() -> bool + Send + 'static) -> bool {
        if self.in_progress.as_ref().is_some_and(|before| !before.is_finished()) {
            return false;
        }
        // Stored first, because the caller may stop waiting.
        let in_progress = self.in_progress.insert(tokio::task::spawn_blocking(check));
        match timeout(CHECK_MAX, in_progress).await {
            Ok(differs) => {
                self.in_progress = None;
                differs.unwrap_or(false)
            }
            Err(_) => {
                tracing::warn!(
                    "the file system of the kubeconfig does not respond; keeping the current API connection"
                );
                false
            }
        }
    }
}

/// Values that change with the file: device, inode, size, modification time. `None` if they can't be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Signature(Option<(u64, u64, u64, i64, i64)>);

impl Signature {
    pub(super) fn of(path: &Path) -> Self {
        let metadata = std::fs::metadata(path).ok();
        Self(metadata.map(|m| (m.dev(), m.ino(), m.size(), m.mtime(), m.mtime_nsec())))
    }
}
