//! The neighbour state machine: which link addresses are asked for, refreshed, believed and given up.
//!
//! Pure: `now` is an argument, frames to send and changes of the table come back as [`Action`]s. The thread that
//! drives it is in [`super`]. The states are those of RFC 4861 section 7.3, for ARP too: incomplete, reachable,
//! probing (unicast, then broadcast; still used), failed (not used, tried again with back-off).
//!
//! Invariant: only addresses that we want have an entry; what strangers say about others changes nothing.
//! Invariant: entries, and frames sent per tick, are bounded.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use tidegate_core::ids::InterfaceIndex;
use tidegate_core::now::Now;
use tidegate_core::wire::{MacAddr, SmallFrame, VlanId, arp, ndp};

/// How long an answer is believed before it is asked for again (RFC 4861 REACHABLE_TIME).
pub const REACHABLE: Duration = Duration::from_secs(30);
/// First pause between requests for an address that has not answered; it doubles up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_millis(250);
/// Longest pause between requests.
pub const RETRY_MAX: Duration = Duration::from_secs(30);
/// Pause between the probes of an entry in use (RFC 4861 RETRANS_TIMER).
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Unicast probes, then as many broadcast ones, before an entry is given up (RFC 4861 MAX_UNICAST_SOLICIT).
pub const PROBES: u8 = 3;
/// Requests after which an address that only traffic wanted is forgotten; the next packet asks anew.
const TRIES_FOR_TRAFFIC: u8 = 5;
/// Addresses wanted by traffic that are known at once; the next one takes the place of the one wanted longest ago.
pub const WANTED_MAX: usize = 4096;
/// Frames that one tick sends at most, so that a large change does not flood the link or the inject queue.
pub const FRAMES_PER_TICK: usize = 128;
/// Announcements of a new address of ours, and the pause between them (RFC 5227 section 1.1).
const ANNOUNCEMENTS: u8 = 3;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// What the gateway is, as far as neighbours care.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Surroundings {
    /// The interfaces, by index.
    pub interfaces: Vec<Link>,
    /// Neighbours that are given and never asked for.
    pub fixed: Vec<(IpAddr, MacAddr)>,
    /// Next hops of routes, and backends: those on-link are resolved before the first packet needs them.
    pub next_hops: BTreeSet<IpAddr>,
    /// VIPs and SNAT addresses: announced when new.
    pub owned: BTreeSet<IpAddr>,
}

/// One interface, as far as neighbours care.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Link {
    /// Our address on it.
    pub mac: MacAddr,
    /// The tag of frames sent.
    pub vlan: Option<VlanId>,
    /// Own addresses with their on-link prefixes.
    pub addresses: Vec<IpNet>,
}

/// What the driver of the machine has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this frame.
    Send {
        /// Out of this interface.
        interface: InterfaceIndex,
        /// All of it.
        frame: SmallFrame,
    },
    /// Workers may use this link address.
    Learn {
        /// On this interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
        /// Where it is.
        mac: MacAddr,
        /// Given by configuration, so that no answer changes it.
        fixed: bool,
    },
    /// Workers may no longer use the link address of this neighbour.
    Forget {
        /// On this interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
    },
}

type Key = (InterfaceIndex, IpAddr);

/// Neighbours wanted, and what is known of them.
#[derive(Debug, Default)]
pub struct Resolver {
    around: Surroundings,
    entries: BTreeMap<Key, Entry>,
    timers: BTreeSet<(Now, Key)>,
    announcements: BTreeMap<(Now, InterfaceIndex, IpAddr), u8>,
}

#[derive(Debug, Clone, Copy)]
struct Entry {
    state: State,
    /// Known by now, and in the workers' table.
    mac: Option<MacAddr>,
    /// Wanted by configuration rather than by a packet: never given up for good.
    pinned: bool,
    wanted_at: Now,
    due: Now,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Fixed,
    /// Never answered yet, or no more.
    Incomplete {
        tries: u8,
    },
    Reachable,
    Probing {
        tries: u8,
    },
}

impl Resolver {
    /// Takes over a new configuration: fixed neighbours are told at once, next hops are asked for, those no longer
    /// wanted are forgotten, new addresses of ours are announced.
    pub fn configure(&mut self, now: Now, around: Surroundings) -> Vec<Action> {
        let mut actions = Vec::new();
        self.announce_new(now, &around);
        self.around = around;
        let fixed = self.fixed();
        let pinned: BTreeSet<Key> = self
            .around
            .next_hops
            .iter()
            .filter_map(|&address| Some((self.around.interface_of(address)?, address)))
            .collect();
        let known: Vec<Key> = self.entries.keys().copied().collect();
        for key in known {
            let entry = self.entries[&key];
            let interface_gone = usize::from(key.0) >= self.around.interfaces.len();
            let was_fixed = entry.state == State::Fixed && !fixed.contains_key(&key);
            let unpinned = entry.pinned && !pinned.contains(&key) && entry.state != State::Fixed;
            if interface_gone || was_fixed || unpinned {
                self.forget(key, &mut actions);
            }
        }
        for (&key, &mac) in &fixed {
            if self
                .entries
                .get(&key)
                .is_none_or(|entry| entry.state != State::Fixed || entry.mac != Some(mac))
            {
                self.unschedule(key);
                let entry =
                    Entry { state: State::Fixed, mac: Some(mac), pinned: true, wanted_at: now, due: now };
                self.entries.insert(key, entry);
                actions.push(Action::Learn { interface: key.0, address: key.1, mac, fixed: true });
            }
        }
        for key in pinned {
            if !fixed.contains_key(&key) {
                self.want(now, key, true, &mut actions);
            }
        }
        actions
    }

    /// A packet waits for this neighbour, or was dropped and will be sent again.
    pub fn wanted(&mut self, now: Now, interface: InterfaceIndex, address: IpAddr) -> Vec<Action> {
        let mut actions = Vec::new();
        if usize::from(interface) < self.around.interfaces.len() && is_host(address) {
            self.want(now, (interface, address), false, &mut actions);
        }
        actions
    }

    /// A neighbour told where it is: a reply, an advertisement, a request of its own, or an announcement.
    /// Believed only about addresses that are wanted and not fixed.
    pub fn seen(
        &mut self,
        now: Now,
        interface: InterfaceIndex,
        address: IpAddr,
        mac: MacAddr,
    ) -> Vec<Action> {
        let key = (interface, address);
        let Some(entry) = self.entries.get(&key).copied() else { return Vec::new() };
        let ours = self.around.interfaces.get(usize::from(interface)).is_some_and(|link| link.mac == mac);
        if entry.state == State::Fixed || !mac.is_unicast() || ours {
            return Vec::new();
        }
        self.set(
            key,
            Entry { state: State::Reachable, mac: Some(mac), ..entry },
            now.plus(reachable_time(address)),
        );
        if entry.mac == Some(mac) {
            return Vec::new();
        }
        vec![Action::Learn { interface, address, mac, fixed: false }]
    }

    /// The link of this interface is up again, perhaps another one than before: our addresses are announced there, and
    /// every neighbour on it is asked for again at once. Those that are known stay in use meanwhile.
    pub fn link_up(&mut self, now: Now, interface: InterfaceIndex) {
        let owned: Vec<IpAddr> = self.around.owned.iter().copied().collect();
        self.announcements.retain(|(_, on, _), _| *on != interface);
        for address in owned {
            if self.around.announced_on(address).contains(&interface) {
                self.announcements.insert((now, interface, address), ANNOUNCEMENTS);
            }
        }
        let on_link = |key: &Key| key.0 == interface;
        let keys: Vec<Key> = self.entries.keys().copied().filter(on_link).collect();
        for key in keys {
            let entry = self.entries[&key];
            let state = match entry.state {
                State::Fixed => continue,
                State::Incomplete { .. } => State::Incomplete { tries: 0 },
                state => state,
            };
            self.set(key, Entry { state, ..entry }, now);
        }
    }

    /// Sends what is due.
    pub fn tick(&mut self, now: Now) -> Vec<Action> {
        let mut actions = Vec::new();
        while actions.len() < FRAMES_PER_TICK {
            let Some((&(due, interface, address), &left)) = self.announcements.first_key_value() else {
                break;
            };
            if due > now {
                break;
            }
            self.announcements.pop_first();
            if let Some(frame) = self.announcement(interface, address) {
                actions.push(Action::Send { interface, frame });
                if left > 1 {
                    self.announcements.insert((now.plus(ANNOUNCE_INTERVAL), interface, address), left - 1);
                }
            }
        }
        while actions.len() < FRAMES_PER_TICK {
            let Some(&(due, key)) = self.timers.first() else { break };
            if due > now {
                break;
            }
            self.timers.pop_first();
            self.expire(now, key, &mut actions);
        }
        actions
    }

    /// When [`Self::tick`] has something to do next.
    #[must_use]
    pub fn due(&self) -> Option<Now> {
        let timer = self.timers.first().map(|&(due, _)| due);
        let announcement = self.announcements.first_key_value().map(|(&(due, ..), _)| due);
        timer.into_iter().chain(announcement).min()
    }

    /// Neighbours with a known link address: for `status`.
    pub fn known(&self) -> impl Iterator<Item = (InterfaceIndex, IpAddr, MacAddr)> + '_ {
        self.entries
            .iter()
            .filter_map(|(&(interface, address), entry)| Some((interface, address, entry.mac?)))
    }

    /// Wanted neighbours whose link address is not known.
    pub fn unresolved(&self) -> impl Iterator<Item = (InterfaceIndex, IpAddr)> + '_ {
        self.entries.iter().filter(|(_, entry)| entry.mac.is_none()).map(|(&key, _)| key)
    }

    fn want(&mut self, now: Now, key: Key, pinned: bool, actions: &mut Vec<Action>) {
        if let Some(entry) = self.entries.get_mut(&key) {
            // Asked for already; its own timer paces the requests.
            entry.wanted_at = now;
            entry.pinned |= pinned;
            return;
        }
        if !pinned {
            self.make_room(actions);
        }
        let entry =
            Entry { state: State::Incomplete { tries: 0 }, mac: None, pinned, wanted_at: now, due: now };
        self.entries.insert(key, entry);
        self.timers.insert((now, key));
    }

    /// Evicts the entry that traffic wanted longest ago when there are too many of them.
    fn make_room(&mut self, actions: &mut Vec<Action>) {
        let for_traffic = || self.entries.iter().filter(|(_, entry)| !entry.pinned);
        if for_traffic().count() >= WANTED_MAX {
            let oldest = for_traffic().min_by_key(|(_, entry)| entry.wanted_at).map(|(&key, _)| key);
            if let Some(key) = oldest {
                self.forget(key, actions);
            }
        }
    }

    /// An entry's timer has run out.
    fn expire(&mut self, now: Now, key: Key, actions: &mut Vec<Action>) {
        let Some(entry) = self.entries.get(&key).copied() else { return };
        match entry.state {
            State::Fixed => {}
            State::Incomplete { tries } if !entry.pinned && tries >= TRIES_FOR_TRAFFIC => {
                self.forget(key, actions);
            }
            State::Incomplete { tries } => {
                self.ask(key, None, actions);
                let pause = RETRY_FIRST.saturating_mul(1 << tries.min(10)).min(RETRY_MAX);
                self.set(
                    key,
                    Entry { state: State::Incomplete { tries: tries.saturating_add(1) }, ..entry },
                    now.plus(pause),
                );
            }
            State::Reachable => self.probe(now, key, entry, 0, actions),
            State::Probing { tries } if tries < 2 * PROBES => self.probe(now, key, entry, tries, actions),
            State::Probing { .. } => {
                if entry.mac.is_some() {
                    actions.push(Action::Forget { interface: key.0, address: key.1 });
                }
                self.set(
                    key,
                    Entry { state: State::Incomplete { tries: 0 }, mac: None, ..entry },
                    now.plus(PROBE_INTERVAL),
                );
            }
        }
    }

    fn probe(&mut self, now: Now, key: Key, entry: Entry, tries: u8, actions: &mut Vec<Action>) {
        let to = if tries < PROBES { entry.mac } else { None };
        self.ask(key, to, actions);
        self.set(
            key,
            Entry { state: State::Probing { tries: tries + 1 }, ..entry },
            now.plus(PROBE_INTERVAL),
        );
    }

    fn ask(&self, (interface, address): Key, known: Option<MacAddr>, actions: &mut Vec<Action>) {
        let Some(link) = self.around.interfaces.get(usize::from(interface)) else { return };
        let frame = match address {
            IpAddr::V4(target) => arp::request(link.mac, link.source_v4(target), target, link.vlan, known),
            IpAddr::V6(target) => {
                ndp::solicitation(link.mac, link.source_v6(target), target, link.vlan, known)
            }
        };
        actions.push(Action::Send { interface, frame });
    }

    fn announce_new(&mut self, now: Now, around: &Surroundings) {
        self.announcements.retain(|(_, _, address), _| around.owned.contains(address));
        for &address in around.owned.difference(&self.around.owned) {
            for interface in around.announced_on(address) {
                self.announcements.insert((now, interface, address), ANNOUNCEMENTS);
            }
        }
    }

    fn announcement(&self, interface: InterfaceIndex, address: IpAddr) -> Option<SmallFrame> {
        let link = self.around.interfaces.get(usize::from(interface))?;
        Some(match address {
            IpAddr::V4(address) => arp::announcement(link.mac, address, link.vlan),
            IpAddr::V6(address) => ndp::announcement(link.mac, address, link.vlan),
        })
    }

    fn fixed(&self) -> BTreeMap<Key, MacAddr> {
        self.around
            .fixed
            .iter()
            .filter_map(|&(address, mac)| Some(((self.around.interface_of(address)?, address), mac)))
            .collect()
    }

    fn set(&mut self, key: Key, entry: Entry, due: Now) {
        self.unschedule(key);
        self.entries.insert(key, Entry { due, ..entry });
        self.timers.insert((due, key));
    }

    fn unschedule(&mut self, key: Key) {
        if let Some(entry) = self.entries.get(&key) {
            self.timers.remove(&(entry.due, key));
        }
    }

    fn forget(&mut self, key: Key, actions: &mut Vec<Action>) {
        self.unschedule(key);
        if self.entries.remove(&key).is_some_and(|entry| entry.mac.is_some()) {
            actions.push(Action::Forget { interface: key.0, address: key.1 });
        }
    }
}

impl Surroundings {
    /// The interface on whose link an address is: the one with the longest prefix that has it.
    pub(super) fn interface_of(&self, address: IpAddr) -> Option<InterfaceIndex> {
        let on_link = self.interfaces.iter().enumerate().flat_map(|(n, link)| {
            link.addresses
                .iter()
                .filter(move |net| net.contains(&address))
                .map(move |net| (net.prefix_len(), n))
        });
        let (_, n) = on_link.max_by_key(|&(len, n)| (len, std::cmp::Reverse(n)))?;
        InterfaceIndex::try_from(n).ok()
    }

    /// Where an address of ours is announced: on its own link, or, when it is on none (it is routed here), on all:
    /// whoever had it in a cache learns that it moved.
    fn announced_on(&self, address: IpAddr) -> Vec<InterfaceIndex> {
        match self.interface_of(address) {
            Some(interface) => vec![interface],
            None => (0..self.interfaces.len()).filter_map(|n| InterfaceIndex::try_from(n).ok()).collect(),
        }
    }
}

impl Link {
    /// Our address in the target's prefix, or any of ours here; with none at all an ARP probe (RFC 5227 2.1.1).
    fn source_v4(&self, target: Ipv4Addr) -> Ipv4Addr {
        self.source(IpAddr::V4(target))
            .and_then(|source| if let IpAddr::V4(source) = source { Some(source) } else { None })
            .unwrap_or(Ipv4Addr::UNSPECIFIED)
    }

    /// As [`Self::source_v4`]; the link-local address that the MAC makes (RFC 4291 appendix A) for link-local targets
    /// and where there is no other: the kernel's side of the tap has the same one.
    fn source_v6(&self, target: Ipv6Addr) -> Ipv6Addr {
        let link_local = || link_local(self.mac);
        if target.is_unicast_link_local() {
            return link_local();
        }
        self.source(IpAddr::V6(target))
            .and_then(|source| if let IpAddr::V6(source) = source { Some(source) } else { None })
            .unwrap_or_else(link_local)
    }

    fn source(&self, target: IpAddr) -> Option<IpAddr> {
        let same_family = || self.addresses.iter().filter(|net| net.addr().is_ipv4() == target.is_ipv4());
        same_family().find(|net| net.contains(&target)).or_else(|| same_family().next()).map(IpNet::addr)
    }
}

fn link_local(mac: MacAddr) -> Ipv6Addr {
    let [a, b, c, d, e, f] = mac.0;
    Ipv6Addr::from([0xfe, 0x80, 0, 0, 0, 0, 0, 0, a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

fn is_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}

/// 30 s and up to 8 s more by the address, so that a thousand neighbours are not all asked in one second.
fn reachable_time(address: IpAddr) -> Duration {
    let last = match address {
        IpAddr::V4(address) => address.octets()[3],
        IpAddr::V6(address) => address.octets()[15],
    };
    REACHABLE + Duration::from_millis(u64::from(last) * 32)
}

#[cfg(test)]
#[path = "resolver_tests.rs"]
mod tests;
