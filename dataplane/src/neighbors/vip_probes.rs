//! Probes for our own VIPs: does another station answer for one of them?
//!
//! In the DSR modes each backend has the VIP too, and must not answer for it. One that does takes the clients of its
//! link away from the gateway, and nothing else shows that. So the gateway sends a request for each such VIP in turn
//! (RFC 5227 section 2.1.1), as a station does that looks for a conflict. An answer is a claim of our address like any
//! other.
//!
//! Invariant: one address at a time, and no more often than every [`PAUSE_MIN`], however many VIPs there are.

use std::net::IpAddr;
use std::ops::Bound;
use std::time::Duration;

use tidegate_spec::now::Now;

use super::action::Action;
use super::resolver_context::Surroundings;

/// How often each VIP is probed, if there are not too many.
pub(super) const EVERY: Duration = Duration::from_secs(15);
/// The shortest pause between two addresses.
const PAUSE_MIN: Duration = Duration::from_millis(10);

/// The probe that is due next.
#[derive(Debug, Default)]
pub(super) struct VipProbes {
    last: Option<IpAddr>,
    due: Now,
}

impl VipProbes {
    /// Sends the probe that is due, if one is.
    pub(super) fn send(&mut self, now: Now, around: &Surroundings, actions: &mut Vec<Action>) {
        if now < self.due || around.probed.is_empty() {
            return;
        }
        let count = u32::try_from(around.probed.len()).unwrap_or(u32::MAX);
        self.due = now.plus((EVERY / count).max(PAUSE_MIN));
        let after = self.last.map_or(Bound::Unbounded, Bound::Excluded);
        let next = around.probed.range((after, Bound::Unbounded)).next().or(around.probed.first());
        self.last = next.copied();
        // A VIP that another gateway owns now is that one's to probe.
        if let Some(address) = next.copied().filter(|address| around.owned.contains(address)) {
            for interface in around.announced_on(address) {
                if let Some(frame) = around.probe(interface, address) {
                    actions.push(Action::Send { interface, frame });
                }
            }
        }
    }

    /// When [`Self::send`] has the next one.
    pub(super) fn due(&self, around: &Surroundings) -> Option<Now> {
        (!around.probed.is_empty()).then_some(self.due)
    }
}
