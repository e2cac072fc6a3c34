//! Announcements of our addresses: the time of the next one, and its link.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;

use super::action::Action;
use super::resolver_context::Surroundings;

/// Announcements of a new address of ours, and the pause between them (RFC 5227 section 1.1).
const COUNT: u8 = 3;
const INTERVAL: Duration = Duration::from_secs(2);

/// The announcements that are still to be sent.
#[derive(Debug, Default)]
pub(super) struct Announcements(BTreeMap<(Now, InterfaceIndex, IpAddr), u8>);

impl Announcements {
    /// Drops the announcements of addresses that are no longer ours, and adds those that `around` has and `before` has
    /// not.
    pub(super) fn of_new(&mut self, now: Now, before: &BTreeSet<IpAddr>, around: &Surroundings) {
        self.0.retain(|(_, _, address), _| around.owned.contains(address));
        for &address in around.owned.difference(before) {
            for interface in around.announced_on(address) {
                self.0.insert((now, interface, address), COUNT);
            }
        }
    }

    /// Announces an address of ours once more at this time, if it is still ours then.
    pub(super) fn later(&mut self, at: Now, interface: InterfaceIndex, address: IpAddr) {
        self.0.entry((at, interface, address)).or_insert(1);
    }

    /// Restarts all announcements on this link.
    pub(super) fn again(&mut self, now: Now, interface: InterfaceIndex, around: &Surroundings) {
        self.0.retain(|(_, on, _), _| *on != interface);
        for &address in &around.owned {
            if around.announced_on(address).contains(&interface) {
                self.0.insert((now, interface, address), COUNT);
            }
        }
    }

    /// Sends the announcements that are due, at most `frames` of them.
    pub(super) fn send(&mut self, now: Now, frames: usize, around: &Surroundings, actions: &mut Vec<Action>) {
        for _ in 0..frames {
            let Some((&(due, interface, address), &left)) = self.0.first_key_value() else { return };
            if due > now {
                return;
            }
            self.0.pop_first();
            if let Some(frame) = around.announcement(interface, address) {
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
