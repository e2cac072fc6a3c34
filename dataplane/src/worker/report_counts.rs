//! Copies the pipeline's counts to the counters that other threads read.

use tidegate_spec::now::Now;

use super::Worker;
use super::exchange::Forwarding;
use crate::drivers::PortQueue;

impl<Q: PortQueue> Worker<Q> {
    pub(super) fn report_counts(&mut self, now: Now) {
        let Forwarding { snapshot, tallies } = self.parts.forwarding.get();
        self.parts.pipeline.report_limits(snapshot);
        self.parts.persistence.keep_time(now);
        let tallies = &tallies[usize::from(self.parts.worker)];
        self.parts.pipeline.report_set_aside(snapshot, tallies);
        let under_flood = self.parts.pipeline.report_floods(snapshot, tallies, now);
        let cookies = self.parts.pipeline.cookie_counts();
        if let Some(log) =
            self.parts.exchange.flow_logs.get().and_then(|logs| logs.get(usize::from(self.parts.worker)))
        {
            self.parts.pipeline.log_flows_to(log);
            self.parts.pipeline.end_closed_flows(now);
        }
        let (flows, iterations) = (self.parts.pipeline.flows(), &self.parts.shared.loop_counters);
        iterations.flows.set(flows.live() as u64);
        let counters = flows.counters();
        iterations.flows_refused.set(counters.refused);
        let aside = self.parts.pipeline.set_aside_counts();
        iterations.backends_set_aside.set(aside.set_aside);
        iterations.backends_returned.set(aside.returned);
        iterations.services_under_flood.set(under_flood as u64);
        for (level, count) in
            iterations.syn_cookies.iter().zip([cookies.sent, cookies.accepted, cookies.refused])
        {
            level.set(count);
        }
        for (level, &count) in iterations.evictions.iter().zip(&counters.evictions) {
            level.set(count);
        }
        for (level, &count) in
            iterations.answers_suppressed.iter().zip(self.parts.pipeline.suppressed_answers())
        {
            level.set(count);
        }
    }
}
