//! The neighbour state machine: which link addresses are asked for, refreshed, believed and given up.
//!
//! Pure: `now` is an argument, frames to send and changes of the table come back as [`Action`]s. The thread that
//! drives it is in [`super`]. The states are those of RFC 4861 section 7.3, for ARP too; what changes them are the rules
//! of its section 7.2.5: only an answer to a request of ours makes an entry reachable, and an advertisement without the
//! override flag replaces nothing.
//!
//! Next hops of routes and backends are pinned: they are asked for before any packet needs them, and nothing evicts
//! them. What only packets want has shares of its own ([`shelves`](super::shelves)). Each kind has its own budget of
//! frames, so that none delays another.
//!
//! Invariant: what strangers say about addresses that nobody wants changes nothing, unless they ask for us.
//! Invariant: entries and frames are bounded; an event costs the logarithm of the entries.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;
use tidegate_core::ids::InterfaceIndex;
use tidegate_core::now::Now;
use tidegate_core::pipeline::Sighting;
use tidegate_core::wire::{MacAddr, SmallFrame, VlanId, arp, ndp};

use super::conflicts::Conflicts;
use super::shelves::{IN_USE, Shelf, Shelves, share_of};
use crate::rate::Bucket;

/// How long an answer is believed before it is asked for again (RFC 4861 REACHABLE_TIME).
pub const REACHABLE: Duration = Duration::from_secs(30);
/// How long a link address that nobody confirmed is used before it is asked for (RFC 4861 DELAY_FIRST_PROBE_TIME).
pub const DELAY: Duration = Duration::from_secs(5);
/// How long a neighbour that no packet is sent to is remembered, as far as there is room.
pub const IDLE_MAX: Duration = Duration::from_secs(600);
/// Pause between two changes of a link address by packets that we did not ask for.
pub const LOCKED: Duration = Duration::from_secs(1);
/// First pause between requests for an address that has not answered; it doubles up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_millis(250);
/// Longest pause between requests.
pub const RETRY_MAX: Duration = Duration::from_secs(30);
/// Pause between the probes of an entry in use (RFC 4861 RETRANS_TIMER).
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// Unicast probes, then as many broadcast ones, before an entry that no packet uses is given up (RFC 4861
/// MAX_UNICAST_SOLICIT). One in use is kept, and probed ever less often up to [`RETRY_MAX`].
pub const PROBES: u8 = 3;
/// Requests after which an address that no packet wants any more is forgotten. Wanted ones are asked for on, ever less
/// often.
const TRIES_FOR_TRAFFIC: u8 = 5;
/// Frames that one tick sends at most of each kind, so that a large change does not fill the inject queue.
pub const FRAMES_PER_TICK: usize = 64;
/// Timers of one kind that one tick looks at.
const TIMERS_PER_TICK: usize = 512;
/// Entries looked at to find one that makes room.
const EVICTION_TRIES: usize = 8;
/// Announcements of a new address of ours, and the pause between them (RFC 5227 section 1.1).
const ANNOUNCEMENTS: u8 = 3;
const ANNOUNCE_INTERVAL: Duration = Duration::from_secs(2);

/// Frames a second, and at once, for next hops of routes and backends.
const PINNED_RATE: (u32, u32) = (20_000, 256);
/// For neighbours that packets are sent to.
const KEPT_RATE: (u32, u32) = (5_000, 256);
/// For addresses that have not answered, of one interface and family.
const ASKED_RATE: (u32, u32) = (1_000, 128);

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
    /// A neighbour is wanted: workers pass on what is told about it.
    Hold {
        /// On this interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
    },
    /// Workers may use this link address.
    Learn {
        /// On this interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
        /// Where it is.
        mac: MacAddr,
        /// How that is known.
        how: Known,
    },
    /// Nobody wants this neighbour any more.
    Release {
        /// On this interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
        /// Configuration gave its link address.
        fixed: bool,
    },
    /// Another station claims an address of ours: to be logged.
    Conflict {
        /// On this interface.
        interface: InterfaceIndex,
        /// Our address.
        address: IpAddr,
        /// The claimant.
        mac: Option<MacAddr>,
        /// It has been answered by an announcement.
        defended: bool,
    },
}

/// How a link address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Configuration gives it: no answer changes it.
    Fixed,
    /// By an answer to a request of ours.
    Confirmed,
    /// By what was told unasked.
    Unconfirmed,
}

/// A neighbour: the interface and its address.
pub type Key = (InterfaceIndex, IpAddr);

/// Whether packets were sent to a neighbour since the last call.
pub type Uses<'a> = &'a dyn Fn(InterfaceIndex, IpAddr) -> bool;

/// Neighbours wanted, and what is known of them.
#[derive(Debug)]
pub struct Resolver {
    around: Surroundings,
    entries: BTreeMap<Key, Entry>,
    shelves: Shelves,
    /// Timers by what they are for: pinned next hops, neighbours in use, then one for each share of asked ones.
    lanes: Vec<Lane>,
    announcements: BTreeMap<(Now, InterfaceIndex, IpAddr), u8>,
    conflicts: Conflicts,
    ticks: usize,
    refused: u64,
    evicted: u64,
}

/// Timers that share a budget of frames.
#[derive(Debug)]
struct Lane {
    timers: BTreeSet<(Now, Key)>,
    budget: Bucket,
}

const PINNED: usize = 0;
const KEPT: usize = 1;
const ASKED: usize = 2;

#[derive(Debug, Clone, Copy)]
struct Entry {
    state: State,
    /// Known by now, and in the workers' table.
    mac: Option<MacAddr>,
    /// The table says that an answer gave it.
    confirmed: bool,
    /// Its shelf and its time there; none for a next hop of a route or backend, which is never given up.
    shelf: Option<(Shelf, Now)>,
    wanted_at: Now,
    asked_at: Now,
    /// When the link address last became another.
    changed_at: Option<Now>,
    /// None for a fixed one.
    due: Option<Now>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Fixed,
    /// Never answered yet, or no more.
    Incomplete {
        tries: u8,
    },
    Reachable,
    /// Known, and not confirmed of late.
    Stale,
    Probing {
        tries: u8,
    },
}

impl Entry {
    fn new(now: Now, state: State) -> Self {
        let (mac, confirmed, shelf, changed_at, due) = (None, false, None, None, None);
        Self { state, mac, confirmed, shelf, wanted_at: now, asked_at: now, changed_at, due }
    }

    fn is_pinned(&self) -> bool {
        self.shelf.is_none()
    }

    fn lane(&self, key: &Key) -> usize {
        match self.shelf {
            None => PINNED,
            Some((Shelf::Heard | Shelf::Kept, _)) => KEPT,
            Some((Shelf::Asked, _)) => ASKED + share_of(key),
        }
    }
}

impl Default for Resolver {
    fn default() -> Self {
        let lane = |(rate, burst)| Lane { timers: BTreeSet::new(), budget: Bucket::new(rate, burst) };
        Self {
            around: Surroundings::default(),
            entries: BTreeMap::new(),
            shelves: Shelves::default(),
            lanes: vec![lane(PINNED_RATE), lane(KEPT_RATE)],
            announcements: BTreeMap::new(),
            conflicts: Conflicts::default(),
            ticks: 0,
            refused: 0,
            evicted: 0,
        }
    }
}

impl Resolver {
    /// Takes over a new configuration: fixed neighbours are told at once, next hops are asked for, those no longer
    /// wanted are released, new addresses of ours are announced.
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
        let interfaces = self.around.interfaces.len();
        let gone = |key: &Key, entry: &Entry| {
            let was_fixed = entry.state == State::Fixed && !fixed.contains_key(key);
            let unpinned = entry.is_pinned() && entry.state != State::Fixed && !pinned.contains(key);
            usize::from(key.0) >= interfaces || was_fixed || unpinned
        };
        let gone: Vec<Key> =
            self.entries.iter().filter(|(key, entry)| gone(key, entry)).map(|(&key, _)| key).collect();
        for key in gone {
            self.release(key, &mut actions);
        }
        self.shelves.resize(interfaces);
        self.lanes.resize_with(ASKED + interfaces * 2, || Lane {
            timers: BTreeSet::new(),
            budget: Bucket::new(ASKED_RATE.0, ASKED_RATE.1),
        });
        for (&key, &mac) in &fixed {
            let known = self.entries.get(&key);
            if known.is_none_or(|entry| entry.state != State::Fixed || entry.mac != Some(mac)) {
                self.put(key, Entry { mac: Some(mac), ..Entry::new(now, State::Fixed) });
                actions.push(Action::Learn { interface: key.0, address: key.1, mac, how: Known::Fixed });
            }
        }
        for key in pinned.into_iter().filter(|key| !fixed.contains_key(key)) {
            self.pin(now, key, &mut actions);
        }
        actions
    }

    /// A packet waits for this neighbour, or was dropped and will be sent again.
    pub fn wanted(&mut self, now: Now, interface: InterfaceIndex, address: IpAddr) -> Vec<Action> {
        let (mut actions, key) = (Vec::new(), (interface, address));
        if usize::from(interface) >= self.around.interfaces.len() || !is_host(address) {
            return actions;
        }
        if let Some(entry) = self.entries.get_mut(&key) {
            // Asked for already; its own timer paces the requests.
            entry.wanted_at = now;
            return actions;
        }
        if self.make_room(now, &key, Shelf::Asked, &|_, _| false, &mut actions) {
            let entry = Entry::new(now, State::Incomplete { tries: 0 });
            self.put(key, Entry { shelf: Some((Shelf::Asked, now)), due: Some(now), ..entry });
            actions.push(Action::Hold { interface, address });
        }
        actions
    }

    /// A neighbour told where it is. `mac`: none in a solicited advertisement that leaves it out.
    pub fn seen(
        &mut self,
        now: Now,
        (interface, address): Key,
        mac: Option<MacAddr>,
        how: Sighting,
        uses: Uses<'_>,
    ) -> Vec<Action> {
        let (mut actions, key) = (Vec::new(), (interface, address));
        let ours = |mac: MacAddr| self.around.interfaces.iter().any(|link| link.mac == mac);
        if !is_host(address) || mac.is_some_and(|mac| !mac.is_unicast() || ours(mac)) {
            return actions;
        }
        match (self.entries.get(&key).copied(), mac) {
            (Some(entry), _) => self.told(now, key, entry, mac, how, uses, &mut actions),
            (None, Some(mac)) if how == Sighting::Request => self.hear(now, key, mac, uses, &mut actions),
            (None, _) => {}
        }
        actions
    }

    /// Another station claims an address of ours.
    pub fn claimed(&mut self, now: Now, (interface, address): Key, mac: Option<MacAddr>) -> Vec<Action> {
        if !self.conflicts.is_first(now, (interface, address)) {
            return Vec::new();
        }
        let announced = self.around.owned.contains(&address);
        let defence = announced.then(|| self.announcement(interface, address)).flatten();
        let defended = defence.is_some();
        let send = defence.map(|frame| Action::Send { interface, frame });
        send.into_iter().chain([Action::Conflict { interface, address, mac, defended }]).collect()
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
            self.put(key, Entry { state, due: Some(now), ..entry });
        }
    }

    /// Sends what is due.
    pub fn tick(&mut self, now: Now, uses: Uses<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.announce(now, &mut actions);
        self.ticks = self.ticks.wrapping_add(1);
        let shares = self.lanes.len().saturating_sub(ASKED);
        self.run_lane(now, PINNED, FRAMES_PER_TICK, uses, &mut actions);
        self.run_lane(now, KEPT, FRAMES_PER_TICK, uses, &mut actions);
        for n in 0..shares {
            // Each share is the first one in turn; together they send no more than one of the others.
            let lane = ASKED + (self.ticks + n) % shares;
            self.run_lane(now, lane, (FRAMES_PER_TICK / shares).max(1), uses, &mut actions);
        }
        actions
    }

    /// When [`Self::tick`] has something to do next.
    #[must_use]
    pub fn due(&self) -> Option<Now> {
        let lanes = self.lanes.iter();
        let timers = lanes.filter_map(|lane| Some(lane.timers.first()?.0.max(lane.budget.ready_at())));
        let announcement = self.announcements.first_key_value().map(|(&(due, ..), _)| due);
        timers.chain(announcement).min()
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

    /// Neighbours not taken in because all of the share are in use, and those that made room, since the start.
    #[must_use]
    pub fn crowding(&self) -> (u64, u64) {
        (self.refused, self.evicted)
    }

    /// A next hop of a route or backend.
    fn pin(&mut self, now: Now, key: Key, actions: &mut Vec<Action>) {
        match self.entries.get(&key).copied() {
            Some(entry) if entry.is_pinned() => {}
            Some(entry) => self.put(key, Entry { shelf: None, ..entry }),
            None => {
                let entry = Entry::new(now, State::Incomplete { tries: 0 });
                self.put(key, Entry { due: Some(now), ..entry });
                actions.push(Action::Hold { interface: key.0, address: key.1 });
            }
        }
    }

    /// A station that nobody wanted asks for us: its link address is ready for the packets that it is about to send
    /// (RFC 826, RFC 4861 7.2.3).
    fn hear(&mut self, now: Now, key: Key, mac: MacAddr, uses: Uses<'_>, actions: &mut Vec<Action>) {
        let here = self.around.interface_of(key.1).is_none_or(|interface| interface == key.0);
        if !here || !self.make_room(now, &key, Shelf::Heard, uses, actions) {
            return;
        }
        let entry = Entry { mac: Some(mac), ..Entry::new(now, State::Stale) };
        self.put(key, Entry { shelf: Some((Shelf::Heard, now)), due: Some(now.plus(DELAY)), ..entry });
        let (interface, address) = key;
        actions.push(Action::Learn { interface, address, mac, how: Known::Unconfirmed });
    }

    /// RFC 4861 7.2.5, and 7.2.3 for requests.
    #[allow(clippy::too_many_arguments, reason = "what was told, of whom, and what follows")]
    fn told(
        &mut self,
        now: Now,
        key: Key,
        entry: Entry,
        mac: Option<MacAddr>,
        how: Sighting,
        uses: Uses<'_>,
        actions: &mut Vec<Action>,
    ) {
        // What claims to be an answer is one if a request is out; else anybody could confirm anything.
        let asked = matches!(entry.state, State::Incomplete { tries: 1.. } | State::Probing { .. });
        let (answers, overrides) = match how {
            Sighting::Answer { overrides } => (asked, overrides),
            Sighting::Announcement { overrides } => (false, overrides),
            Sighting::Request => (false, true),
        };
        let another = mac.filter(|&mac| entry.mac.is_some_and(|known| known != mac));
        let locked = entry.changed_at.is_some_and(|changed| now < changed.plus(LOCKED));
        let believed = match (entry.state, entry.mac, mac, another) {
            (State::Fixed, ..) | (_, None, None, _) => return,
            (_, None, Some(mac), _) => mac,
            (_, Some(known), _, None) if answers => known,
            (_, Some(_), _, None) => return,
            (_, Some(_), _, Some(_)) if !overrides => {
                if entry.state == State::Reachable {
                    self.put(key, Entry { state: State::Stale, due: Some(now.plus(DELAY)), ..entry });
                }
                return;
            }
            // A flood of announcements is not to move it to and fro; an answer settles it.
            (_, Some(_), _, Some(_)) if locked && !answers => return,
            (_, Some(_), _, Some(mac)) => mac,
        };
        let Some(shelf) = self.shelf_when_known(now, &key, entry, uses, actions) else {
            self.refused += 1;
            return self.release(key, actions);
        };
        let (state, due, known) = if answers {
            (State::Reachable, now.plus(reachable_time(key.1)), Known::Confirmed)
        } else {
            (State::Stale, now.plus(DELAY), Known::Unconfirmed)
        };
        let changed_at = if another.is_some() { Some(now) } else { entry.changed_at };
        let (mac, due) = (Some(believed), Some(due));
        self.put(key, Entry { state, mac, confirmed: answers, shelf, changed_at, due, ..entry });
        if entry.mac != mac || entry.confirmed != answers {
            let (interface, address) = key;
            actions.push(Action::Learn { interface, address, mac: believed, how: known });
        }
    }

    /// Where an entry with a link address stands; `None` if there is no room there.
    fn shelf_when_known(
        &mut self,
        now: Now,
        key: &Key,
        entry: Entry,
        uses: Uses<'_>,
        actions: &mut Vec<Action>,
    ) -> Option<Option<(Shelf, Now)>> {
        match entry.shelf {
            Some((Shelf::Asked, _)) => {
                self.make_room(now, key, Shelf::Kept, uses, actions).then_some(Some((Shelf::Kept, now)))
            }
            stays => Some(stays),
        }
    }

    /// Whether the shelf takes one more, having evicted what may be.
    fn make_room(
        &mut self,
        now: Now,
        key: &Key,
        shelf: Shelf,
        uses: Uses<'_>,
        actions: &mut Vec<Action>,
    ) -> bool {
        for _ in 0..EVICTION_TRIES {
            if self.shelves.has_room(key, shelf) {
                return true;
            }
            let Some((since, oldest)) = self.shelves.oldest(key, shelf) else { return false };
            let used = shelf != Shelf::Asked && uses(oldest.0, oldest.1);
            match shelf {
                Shelf::Kept if used => self.note_use(now, oldest, actions, uses),
                Shelf::Kept if since.plus(IN_USE) > now => return false,
                Shelf::Heard if used => self.note_use(now, oldest, actions, uses),
                Shelf::Asked | Shelf::Heard | Shelf::Kept => {
                    self.evicted += 1;
                    self.release(oldest, actions);
                }
            }
        }
        self.shelves.has_room(key, shelf)
    }

    /// Packets were sent to this neighbour since the last look.
    fn note_use(&mut self, now: Now, key: Key, actions: &mut Vec<Action>, uses: Uses<'_>) {
        let Some(entry) = self.entries.get(&key).copied() else { return };
        let shelf = match entry.shelf {
            None => return,
            Some((Shelf::Kept, _)) => Shelf::Kept,
            Some(_) if self.make_room(now, &key, Shelf::Kept, uses, actions) => Shelf::Kept,
            Some((shelf, _)) => shelf,
        };
        self.put(key, Entry { shelf: Some((shelf, now)), ..entry });
    }

    /// Lets timers of one lane run out, as far as its budget goes.
    fn run_lane(&mut self, now: Now, at: usize, frames: usize, uses: Uses<'_>, actions: &mut Vec<Action>) {
        let mut sent = 0;
        for _ in 0..TIMERS_PER_TICK {
            let Some(lane) = self.lanes.get_mut(at) else { return };
            let Some(&(due, key)) = lane.timers.first() else { return };
            if due > now || sent >= frames || lane.budget.ready_at() > now {
                return;
            }
            if self.expire(now, key, uses, actions) {
                sent += 1;
                self.lanes[at].budget.take(now);
            }
        }
    }

    /// An entry's timer has run out. Returns whether that sent a frame.
    fn expire(&mut self, now: Now, key: Key, uses: Uses<'_>, actions: &mut Vec<Action>) -> bool {
        let Some(entry) = self.entries.get(&key).copied() else { return false };
        match entry.state {
            State::Fixed => false,
            State::Incomplete { tries } => {
                let unwanted = tries >= TRIES_FOR_TRAFFIC && entry.wanted_at <= entry.asked_at;
                if unwanted && !entry.is_pinned() {
                    self.release(key, actions);
                    return false;
                }
                self.ask(key, None, actions);
                let pause = RETRY_FIRST.saturating_mul(1 << tries.min(10)).min(RETRY_MAX);
                let state = State::Incomplete { tries: tries.saturating_add(1) };
                self.put(key, Entry { state, asked_at: now, due: Some(now.plus(pause)), ..entry });
                true
            }
            State::Reachable | State::Stale => self.look_at_use(now, key, entry, uses, actions),
            // A flood loses answers. A link address that was good stays in use while packets go there: whether a
            // backend lives is for its checks to say, and one that moved answers a broadcast probe.
            State::Probing { tries } if tries < 2 * PROBES || entry.is_pinned() || uses(key.0, key.1) => {
                self.probe(now, key, entry, tries, actions)
            }
            State::Probing { .. } => {
                self.release(key, actions);
                false
            }
        }
    }

    /// A known neighbour is probed if it is in use, and after long idleness released.
    fn look_at_use(
        &mut self,
        now: Now,
        key: Key,
        entry: Entry,
        uses: Uses<'_>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some((_, since)) = entry.shelf else { return self.probe(now, key, entry, 0, actions) };
        if uses(key.0, key.1) {
            self.note_use(now, key, actions, uses);
            let Some(entry) = self.entries.get(&key).copied() else { return false };
            return self.probe(now, key, entry, 0, actions);
        }
        if since.plus(IDLE_MAX) <= now {
            self.release(key, actions);
            return false;
        }
        if let (true, Some(mac)) = (entry.confirmed, entry.mac) {
            let (interface, address) = key;
            actions.push(Action::Learn { interface, address, mac, how: Known::Unconfirmed });
        }
        self.put(key, Entry { state: State::Stale, confirmed: false, due: Some(now.plus(DELAY)), ..entry });
        false
    }

    fn probe(&mut self, now: Now, key: Key, entry: Entry, tries: u8, actions: &mut Vec<Action>) -> bool {
        let to = if tries < PROBES { entry.mac } else { None };
        self.ask(key, to, actions);
        let state = State::Probing { tries: tries.saturating_add(1) };
        let pause =
            PROBE_INTERVAL.saturating_mul(1 << tries.saturating_sub(2 * PROBES).min(10)).min(RETRY_MAX);
        self.put(key, Entry { state, asked_at: now, due: Some(now.plus(pause)), ..entry });
        true
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

    fn announce(&mut self, now: Now, actions: &mut Vec<Action>) {
        for _ in 0..FRAMES_PER_TICK {
            let Some((&(due, interface, address), &left)) = self.announcements.first_key_value() else {
                return;
            };
            if due > now {
                return;
            }
            self.announcements.pop_first();
            if let Some(frame) = self.announcement(interface, address) {
                actions.push(Action::Send { interface, frame });
                if left > 1 {
                    self.announcements.insert((now.plus(ANNOUNCE_INTERVAL), interface, address), left - 1);
                }
            }
        }
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

    /// The only place where an entry changes with its timer and its shelf.
    fn put(&mut self, key: Key, entry: Entry) {
        self.take(key);
        if let Some((shelf, since)) = entry.shelf {
            self.shelves.put(key, shelf, since);
        }
        if let (Some(due), Some(lane)) = (entry.due, self.lanes.get_mut(entry.lane(&key))) {
            lane.timers.insert((due, key));
        }
        self.entries.insert(key, entry);
    }

    fn take(&mut self, key: Key) -> Option<Entry> {
        let entry = self.entries.remove(&key)?;
        if let Some((shelf, since)) = entry.shelf {
            self.shelves.take(key, shelf, since);
        }
        if let (Some(due), Some(lane)) = (entry.due, self.lanes.get_mut(entry.lane(&key))) {
            lane.timers.remove(&(due, key));
        }
        Some(entry)
    }

    fn release(&mut self, key: Key, actions: &mut Vec<Action>) {
        if let Some(entry) = self.take(key) {
            let fixed = entry.state == State::Fixed;
            actions.push(Action::Release { interface: key.0, address: key.1, fixed });
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
