//! Announcements of our addresses: when the next one is due, and on which link.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;

use super::action::Action;
use super::resolver_context::ResolverContext;

/// The number of announcements of a new address, and the interval between them (RFC 5227 section 1.1).
const COUNT: u8 = 3;
const INTERVAL: Duration = Duration::from_secs(2);

/// Pending announcements.
#[derive(Debug, Default)]
pub(super) struct Announcements(BTreeMap<(Now, InterfaceIndex, IpAddr), u8>);

impl Announcements {
    /// Drops announcements of addresses that are no longer ours, and adds announcements of addresses that are in
    /// `context` but not in `before`.
    pub(super) fn of_new(&mut self, now: Now, before: &BTreeSet<IpAddr>, context: &ResolverContext) {
        self.0.retain(|(_, _, address), _| context.owned.contains(address));
        for &address in context.owned.difference(before) {
            for interface in context.announced_on(address) {
                self.0.insert((now, interface, address), COUNT);
            }
        }
    }

    /// Announces an address once more at this time, if it is still ours then.
    pub(super) fn later(&mut self, at: Now, interface: InterfaceIndex, address: IpAddr) {
        self.0.entry((at, interface, address)).or_insert(1);
    }

    /// Restarts all announcements on this link.
    pub(super) fn again(&mut self, now: Now, interface: InterfaceIndex, context: &ResolverContext) {
        self.0.retain(|(_, on, _), _| *on != interface);
        for &address in &context.owned {
            if context.announced_on(address).contains(&interface) {
                self.0.insert((now, interface, address), COUNT);
            }
        }
    }

    /// Sends announcements that are due, up to `frames`.
    pub(super) fn send(
        &mut self,
        now: Now,
        frames: usize,
        context: &ResolverContext,
        actions: &mut Vec<Action>,
    ) {
        for _ in 0..frames {
            let Some((&(due, interface, address), &left)) = self.0.first_key_value() else { return };
            if due > now {
                return;
            }
            self.0.pop_first();
            if let Some(frame) = context.announcement(interface, address) {
                actions.push(Action::Send { interface, frame });
                if left > 1 {
                    self.0.insert((now.plus(INTERVAL), interface, address), left - 1);
                }
            }
        }
    }

    /// The time of the next announcement.
    pub(super) fn due(&self) -> Option<Now> {
        self.0.first_key_value().map(|(&(due, ..), _)| due)
    }
}
