//! Reads manifests from a directory, once or with a watch.
//!
//! The manifests are all `*.yaml`, `*.yml` and `*.json` files below the directory, in the order of their paths. Hidden
//! files and directories are ignored ([`listing`]).
//!
//! Each file is decoded independently ([`files`]). Then the objects of all files are combined ([`assemble`]), which
//! detects duplicate objects and allocates node ports ([`node_ports`]). [`watch`] follows changes: a file that becomes
//! invalid keeps its last valid objects, and the other files are read as usual.
//!
//! Invariant: the objects do not depend on their distribution over files or on their order within them.

mod assemble;
mod files;
mod listing;
mod node_ports;
mod watch;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Duration;

use tidegate_model::config::{ENDPOINT_SLICES_MIB, GatewayApi};
use tidegate_model::diagnostic::Report;
use tidegate_model::objects::Objects;

use crate::{Kinds, slices};

pub use watch::{Changes, Reading, Watch};

/// A directory of manifests.
#[derive(Debug, Clone, Copy)]
pub struct DirectorySource;

impl DirectorySource {
    /// Reads the directory once and returns the valid objects and all faults. For `check`, `replay` and `explain`.
    ///
    /// An object with an error is left out. An unreadable directory is an error in the report.
    pub fn load(path: &Path) -> (Objects, Report) {
        Self::load_within(path, ENDPOINT_SLICES_MIB, GatewayApi::Auto)
    }

    /// Like [`load`](Self::load), with a limit on the memory for EndpointSlices, and with these kinds of objects.
    pub fn load_within(path: &Path, endpoint_slices_mib: u32, kinds: impl Into<Kinds>) -> (Objects, Report) {
        let mut files = files::Files::new(path, Duration::ZERO, kinds.into());
        files.refresh();
        let (mut objects, _, mut report) = files.assemble();
        slices::leave_out(&mut objects, endpoint_slices_mib, &mut report);
        (objects, report)
    }

    /// Reads the directory and follows its changes on a separate thread until the [`Watch`] is dropped.
    ///
    /// The first state is available on return. A change is published when no other change has followed for 10 ms, or
    /// after 1 s at the latest. With [`Changes::AtReload`], only [`Watch::reload`] reads the directory again. A file
    /// keeps its objects for `loss_grace` after it was emptied, became unreadable, was replaced by something else, or
    /// was unmounted. `endpoint_slices_mib` limits the memory for EndpointSlices.
    ///
    /// # Errors
    /// The thread can't be started. If the directory can't be read or watched, the report shows that fault instead, and
    /// the source retries.
    pub fn watch(
        path: &Path,
        changes: Changes,
        loss_grace: Duration,
        endpoint_slices_mib: u32,
        kinds: impl Into<Kinds>,
    ) -> std::io::Result<Watch> {
        watch::start(path, changes, loss_grace, endpoint_slices_mib, kinds.into())
    }
}
