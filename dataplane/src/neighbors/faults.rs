//! Contradictions between the configuration and the link: other stations that use our addresses, and configured
//! neighbours with another link address.
//!
//! A fault is reported while it is observed, and for [`REPORTED_FOR`] afterwards. Forwarding doesn't change: the
//! operator decides which side is right.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_wire::MacAddr;

use super::key::Key;

/// How long a fault is reported after it was last observed. Probes and checks are sent every 15 s, and any of them may
/// be lost.
const REPORTED_FOR: Duration = Duration::from_secs(50);
/// Maximum number of faults. Only our own addresses and configured neighbours can have one.
const FAULTS_MAX: usize = 4_096;

/// A contradiction between the configuration and a station on the link.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum NeighborFault {
    /// A neighbour with a configured link address answers with another one.
    OtherMac {
        /// Its interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
        /// The configured link address, which packets use.
        configured: MacAddr,
        /// The link address that it answered with.
        answered: MacAddr,
    },
    /// Another station claims one of our addresses.
    Claimed {
        /// The interface.
        interface: InterfaceIndex,
        /// Our address.
        address: IpAddr,
        /// The claimant, if known.
        mac: Option<MacAddr>,
        /// A neighbour that is known to have the claimant's link address.
        neighbor: Option<IpAddr>,
    },
}

/// Recently observed faults.
#[derive(Debug, Default)]
pub(super) struct Faults {
    other_macs: BTreeMap<Key, (MacAddr, Now)>,
    claims: BTreeMap<Key, (Option<MacAddr>, Now)>,
}

impl Faults {
    /// Records the answer of a neighbour whose link address is configured.
    pub(super) fn answered(&mut self, now: Now, key: Key, configured: Option<MacAddr>, mac: Option<MacAddr>) {
        match mac {
            Some(mac)
                if configured != Some(mac)
                    && (self.other_macs.len() < FAULTS_MAX || self.other_macs.contains_key(&key)) =>
            {
                self.other_macs.insert(key, (mac, now));
            }
            Some(_) => drop(self.other_macs.remove(&key)),
            None => {}
        }
    }

    /// Records that another station claims an address of ours.
    pub(super) fn claimed(&mut self, now: Now, key: Key, mac: Option<MacAddr>) {
        if self.claims.len() < FAULTS_MAX || self.claims.contains_key(&key) {
            self.claims.insert(key, (mac, now));
        }
    }

    /// The current faults. `configured` is the link address that the configuration assigns to a neighbour, and `known`
    /// lists neighbours with their link addresses.
    pub(super) fn current(
        &mut self,
        now: Now,
        configured: impl Fn(&Key) -> Option<MacAddr>,
        known: impl Iterator<Item = (IpAddr, MacAddr)>,
    ) -> Vec<NeighborFault> {
        self.other_macs.retain(|key, (mac, seen)| {
            now < seen.plus(REPORTED_FOR) && configured(key).is_some_and(|configured| configured != *mac)
        });
        self.claims.retain(|_, (_, seen)| now < seen.plus(REPORTED_FOR));
        let claimants = self.claims.values().filter_map(|(mac, _)| *mac);
        let mut names: BTreeMap<MacAddr, Option<IpAddr>> = claimants.map(|mac| (mac, None)).collect();
        if !names.is_empty() {
            for (address, mac) in known {
                if let Some(name) = names.get_mut(&mac) {
                    name.get_or_insert(address);
                }
            }
        }
        let other_macs = self.other_macs.iter().filter_map(|(key, &(answered, _))| {
            let (interface, address) = *key;
            let configured = configured(key)?;
            Some(NeighborFault::OtherMac { interface, address, configured, answered })
        });
        let claims = self.claims.iter().map(|(&(interface, address), &(mac, _))| {
            let neighbor = mac.and_then(|mac| *names.get(&mac)?);
            NeighborFault::Claimed { interface, address, mac, neighbor }
        });
        other_macs.chain(claims).collect()
    }
}
