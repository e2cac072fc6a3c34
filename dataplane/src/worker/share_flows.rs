//! The part of a worker's loop that exports flows to peer gateways and imports theirs.

use std::sync::atomic::Ordering;

use tidegate_conntrack::flow_record::Walks;
use tidegate_spec::now::Now;

use super::Worker;
use super::sharing_queues::IMPORTS_PER_ITERATION;
use crate::drivers::PortQueue;

impl<Q: PortQueue> Worker<Q> {
    /// Exports some flows to peer gateways and imports some of theirs. Returns whether there was work.
    #[cold]
    pub(super) fn share_flows(&mut self, now: Now) -> bool {
        let parts = &mut self.parts;
        let Some(sharing) = parts.exchange.sharing.get() else { return false };
        let (worker, pipeline) = (usize::from(parts.worker), &mut parts.pipeline);
        let snapshot = &parts.forwarding.get().snapshot;
        if pipeline.shared_flows() != Some(sharing.flows()) {
            pipeline.set_shared_flows(Some(sharing.flows()), Walks::default());
        }
        let (queues, may_walk) = (sharing.queues(worker), sharing.may_walk(worker));
        let walks = pipeline.share(snapshot, sharing.walks(), may_walk, now, |update| {
            if queues.exports.push(update).is_err() {
                queues.lost.add(1);
            }
        });
        queues.walked.store(pipeline.walked(), Ordering::Release);
        let mut taken = 0;
        while taken < IMPORTS_PER_ITERATION
            && let Some(update) = queues.imports.pop()
        {
            let outcome = pipeline.adopt(snapshot, &update, now);
            queues.outcomes[outcome as usize].add(1);
            taken += 1;
        }
        walks && may_walk || taken > 0
    }
}
