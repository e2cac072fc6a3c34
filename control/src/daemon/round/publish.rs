//! The third phase of a round: publishes the desired state to the workers.
//!
//! Its result is the outcome, including which parts no worker has. Only the compiler of the snapshot knows these parts.

use std::collections::BTreeSet;
use std::sync::Arc;

use tidegate_model::objects::ObjectKey;
use tidegate_policy::reconcile::Outcome;
use tidegate_spec::Problem;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::decide::Decided;
use super::gather::Gathered;
use crate::daemon::publisher::Publisher;
use crate::daemon::self_check::Subject;
use crate::daemon::state::State;
use crate::daemon::unprogrammed_backends::Completion;

/// The publication of desired states.
pub(in crate::daemon) struct Publication {
    publisher: Publisher,
    completion: Completion,
    /// Requests to answer when the workers have applied the imported backend changes.
    imported: Vec<oneshot::Sender<()>>,
    state: Arc<State>,
}

/// The result of publishing a desired state.
#[must_use = "what the workers have is reported"]
pub(in crate::daemon) struct Published<'a> {
    pub(super) gathered: Gathered<'a>,
    /// The desired state, including which backends were ignored.
    pub(super) outcome: Arc<Outcome>,
    /// Parts that the dataplane ignores.
    pub(super) problems: Vec<Problem>,
    /// Services whose latest state the workers have not applied yet.
    pub(super) unapplied: Arc<BTreeSet<ObjectKey>>,
    /// The subject of a comparison, if one is due.
    pub(super) subject: Option<Subject>,
    /// The number of comparisons that were due so far.
    pub(super) comparisons: u64,
    version_applied: u64,
}

impl Publication {
    /// Nothing is published yet.
    pub(in crate::daemon) fn new(publisher: Publisher, state: Arc<State>) -> Self {
        Self { publisher, completion: Completion::default(), imported: Vec::new(), state }
    }

    /// The generation of the next state.
    pub(in crate::daemon) fn next_generation(&self) -> u64 {
        self.publisher.next_generation()
    }

    /// When [`Self::publish`] must be called although nothing has changed.
    pub(in crate::daemon) fn due(&self) -> Option<Instant> {
        self.publisher.due()
    }

    /// Sends the answer when the workers have applied the next round.
    pub(in crate::daemon) fn answer_after_next(&mut self, answer: oneshot::Sender<()>) {
        self.imported.push(answer);
    }

    /// Publishes the desired state if it differs from the last one, and waits for the workers to apply it, up to a
    /// limit.
    pub(in crate::daemon) async fn publish<'a>(&mut self, decided: Decided<'a>) -> Published<'a> {
        if decided.recompiles() {
            self.publisher.recompile();
        }
        let Decided { gathered, outcome, mut subject, comparisons, .. } = decided;
        let problems = self.publisher.publish(&outcome).await.unwrap_or_else(|| self.state.problems());
        for answer in self.imported.drain(..) {
            // Nobody waits if flow sharing has ended.
            let _ = answer.send(());
        }
        let manifests = gathered.manifests;
        let unapplied = Arc::new(self.publisher.check_applied(&outcome, manifests.version));
        let outcome = self.completion.complete(
            outcome,
            &problems,
            gathered.inputs.gateway_api.findings(),
            &manifests.objects,
        );
        if let Some(subject) = &mut subject {
            subject.snapshot = self.publisher.in_use();
        }
        let version_applied = self.publisher.version_applied();
        Published { gathered, outcome, problems, unapplied, subject, comparisons, version_applied }
    }
}

impl Published<'_> {
    /// The version of the latest Services that all workers have applied.
    pub(super) fn version_applied(&self) -> u64 {
        self.version_applied
    }
}
