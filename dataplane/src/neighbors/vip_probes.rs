//! Probes for our own VIPs: does another station answer for one of them?
//!
//! In the DSR modes each backend also has the VIP, but must not answer for it. A backend that answers hijacks the
//! clients of its link, and nothing else reveals that. So the gateway sends a request for each such VIP, one after
//! another, like a station that checks for a conflict (RFC 5227 section 2.1.1). An answer counts as a claim on our
//! address.
//!
//! Invariant: one address at a time, at most every [`PAUSE_MIN`], however many VIPs there are.

use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use tidegate_spec::now::Now;

use super::action::Action;
use super::resolver_context::ResolverContext;

/// How often each VIP is probed, unless there are too many.
pub(super) const PROBE_EVERY: Duration = Duration::from_secs(15);
/// The shortest interval between two addresses.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The next probe.
#[derive(Debug, Default)]
pub(super) struct VipProbes {
    last: Option<IpAddr>,
    due: Now,
}

impl VipProbes {
    /// Sends the probe that is due, if any.
    pub(super) fn send(&mut self, now: Now, context: &ResolverContext, actions: &mut Vec<Action>) {
        if now < self.due || context.probed.is_empty() {
            return;
        }
        let count = u32::try_from(context.probed.len()).unwrap_or(u32::MAX);
        self.due = now.plus((PROBE_EVERY / count).max(PAUSE_MIN));
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = context.probed.range((after, Bound::Unbounded)).next().or(context.probed.first());
        self.last = next.copied();
        // A VIP that another gateway owns is probed by that gateway.
        if let Some(address) = next.copied().filter(|address| context.owned.contains(address)) {
            for interface in context.announced_on(address) {
                if let Some(frame) = context.probe(interface, address) {
                    actions.push(Action::Send { interface, frame });
                }
            }
        }
    }

    /// When the next probe is due.
    pub(super) fn due(&self, context: &ResolverContext) -> Option<Now> {
        (!context.probed.is_empty()).then_some(self.due)
    }
}
