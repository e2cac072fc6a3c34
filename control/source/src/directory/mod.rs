//! Reads manifests from a directory, once or with a watch.
//!
//! The manifests are all `*.yaml`, `*.yml` and `*.json` below the directory, in the order of their paths. Hidden
//! files and directories are ignored ([`listing`]).
//!
//! Each file is decoded by itself ([`files`]). Then the objects of all files are combined ([`assemble`]), which finds
//! the same object in two places and allocates node ports ([`node_ports`]). [`watch`] follows changes: a file that
//! becomes invalid keeps its last valid objects, and the other files are read as usual.
//!
//! Invariant: the objects do not depend on how they are spread over files or on the order within them.

mod assemble;
mod files;
mod listing;
mod node_ports;
mod watch;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use tidegate_model::config::ENDPOINT_SLICES_MIB;
use tidegate_model::diagnostic::Report;
use tidegate_model::objects::Objects;

use crate::slices;

pub use watch::{Changes, Reading, Watch};

/// A directory of manifests.
#[derive(Debug, Clone, Copy)]
pub struct DirectorySource;

impl DirectorySource {
    /// Reads the directory once: the valid objects, and all faults. For `check`, `replay` and `explain`.
    ///
    /// An object with an error is left out. An unreadable directory is an error in the report.
    pub fn load(path: &Path) -> (Objects, Report) {
        Self::load_within(path, ENDPOINT_SLICES_MIB)
    }

    /// Like [`load`](Self::load), with this limit on the memory for EndpointSlices.
    pub fn load_within(path: &Path, endpoint_slices_mib: u32) -> (Objects, Report) {
        let mut files = files::Files::new(path, Duration::ZERO);
        files.refresh();
        let (mut objects, _, mut report) = files.assemble();
        slices::leave_out(&mut objects, endpoint_slices_mib, &mut report);
        (objects, report)
    }

    /// Reads the directory and follows its changes on a separate thread until the [`Watch`] is dropped.
    ///
    /// The first state is available on return. A change is published when no other change followed for 10 ms, or after
    /// 1 s at the latest. With [`Changes::AtReload`] only [`Watch::reload`] reads the directory again. `loss_grace` is
    /// how long a file keeps its objects after it was emptied, cannot be read, is no longer a file, or was unmounted.
    /// `endpoint_slices_mib` limits the memory for EndpointSlices.
    ///
    /// # Errors
    /// When the thread cannot be started. A directory that cannot be read or watched is not an error: it is a fault in
    /// the report, and is tried again.
    pub fn watch(
        path: &Path,
        changes: Changes,
        loss_grace: Duration,
        endpoint_slices_mib: u32,
    ) -> std::io::Result<Watch> {
        watch::start(path, changes, loss_grace, endpoint_slices_mib)
    }
}
