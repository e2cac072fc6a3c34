//! Copies what the pipeline has counted to the counters that other threads read.

use tidegate_spec::now::Now;

use super::Worker;
use super::exchange::Forwarding;
use crate::drivers::PortQueue;

impl<Q: PortQueue> Worker<Q> {
    pub(super) fn report_counts(&mut self, now: Now) {
        let Forwarding { snapshot, tallies } = self.parts.forwarding.get();
        self.parts.pipeline.report_limits(snapshot);
        self.parts.outliving.keep_time(now);
        let tallies = &tallies[usize::from(self.parts.worker)];
        self.parts.pipeline.report_set_aside(snapshot, tallies);
        let under_flood = self.parts.pipeline.report_floods(snapshot, tallies, now);
        let cookies = self.parts.pipeline.cookie_counts();
        let (flows, turns) = (self.parts.pipeline.flows(), &self.parts.shared.turns);
        turns.flows.set(flows.live() as u64);
        let counters = flows.counters();
        turns.flows_refused.set(counters.refused);
        let aside = self.parts.pipeline.set_aside_counts();
        turns.backends_set_aside.set(aside.set_aside);
        turns.backends_returned.set(aside.returned);
        turns.services_under_flood.set(under_flood as u64);
        for (level, count) in turns.syn_cookies.iter().zip([cookies.sent, cookies.accepted, cookies.refused])
        {
            level.set(count);
        }
        for (level, &count) in turns.evictions.iter().zip(&counters.evictions) {
            level.set(count);
        }
        for (level, &count) in turns.answers_suppressed.iter().zip(self.parts.pipeline.suppressed_answers()) {
            level.set(count);
        }
    }
}
