//! Requests that change the desired state, from the operator and from other gateways.
//!
//! Invariant: each request gets one answer, and a request that an operator saw fail is not carried out.

use std::path::PathBuf;

use tidegate_admin_api::{DiffAnswer, ReloadAnswer};
use tidegate_policy::reconcile::DrainTarget;
use tokio::sync::oneshot;

use super::recent_changes::BackendChanges;

/// A request that changes the desired state, from the operator or another thread. The answer is sent when the request
/// is decided.
#[derive(Debug)]
pub(super) enum Command {
    /// Drain a backend, or all backends of a node. The answer is the list of everything that is drained.
    Drain(DrainTarget, oneshot::Sender<Drained>),
    /// Undrain. The answer is the list of everything that is still drained, or `None` if the target was not drained.
    Undrain(DrainTarget, oneshot::Sender<Option<Drained>>),
    /// Drain the gateway itself. The answer is why a restart would lose the drain.
    DrainGateway(oneshot::Sender<Option<String>>),
    /// Undrain the gateway itself. The answer is why a restart would lose this change, or `None` if the command had not
    /// drained the gateway.
    UndrainGateway(oneshot::Sender<Option<Option<String>>>),
    /// Reload the configuration.
    Reload(oneshot::Sender<ReloadAnswer>),
    /// Compute what a reload of this file would change; `None` means the file of the gateway. The answer is `None` if
    /// another such request is in progress.
    Diff(Option<PathBuf>, oneshot::Sender<Option<DiffAnswer>>),
    /// Import changes of backends from other gateways. The answer is sent when the workers have applied them.
    ImportChanges(BackendChanges, oneshot::Sender<()>),
}

impl Command {
    /// Whether nobody waits for the answer any more: the operator saw the request fail.
    pub(super) fn is_abandoned(&self) -> bool {
        match self {
            Self::Drain(_, answer) => answer.is_closed(),
            Self::Undrain(_, answer) => answer.is_closed(),
            Self::DrainGateway(answer) => answer.is_closed(),
            Self::UndrainGateway(answer) => answer.is_closed(),
            Self::Reload(answer) => answer.is_closed(),
            Self::Diff(_, answer) => answer.is_closed(),
            Self::ImportChanges(..) => false,
        }
    }
}

/// The result of a drain or undrain.
#[derive(Debug)]
pub(super) struct Drained {
    /// The drained targets.
    pub(super) targets: Vec<String>,
    /// Why a restart would lose the drain.
    pub(super) not_kept: Option<String>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_whose_sender_no_longer_waits_is_not_made() {
        let (answer, waits) = oneshot::channel();
        let command = Command::DrainGateway(answer);
        assert!(!command.is_abandoned());
        drop(waits);
        assert!(command.is_abandoned());
        let (answer, waits) = oneshot::channel();
        drop(waits);
        assert!(Command::Drain("node-a".parse().expect("a node"), answer).is_abandoned());
    }
}
