//! The neighbour state machine: which link addresses are requested, refreshed, accepted and removed.
//!
//! Pure: `now` is an argument; frames to send and table changes are returned as [`Action`]s. The thread that drives it
//! is in [`super`]. The states follow RFC 4861 section 7.3, also for ARP, and the transitions section 7.2.5: only an
//! answer to our own request makes an entry reachable, and an advertisement without the override flag replaces nothing.
//!
//! Next hops of routes and backends are pinned: they are requested before any packet needs them, and never evicted.
//! Next hops that only packets need have their own shares ([`lru_lists`](super::lru_lists)). Each kind has its own
//! frame budget, so none delays another.
//!
//! Invariant: information about unneeded addresses from unknown stations changes nothing, unless the station requests
//! one of our addresses. Entries and frames are bounded; an event costs logarithmic time.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::Duration;

use tidegate_pipeline::pipeline::Sighting;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::now::Now;
use tidegate_wire::MacAddr;

use super::announcements::Announcements;
use super::conflicts::{Conflicts, DEFEND_INTERVAL, Logged};
use super::entries::{Entries, Entry, PINNED, REQUESTED, State, USED};
use super::faults::{Faults, NeighborFault};
use super::lru_lists::{IN_USE, LruList};
use super::vip_probes::{self, VipProbes};

pub use super::action::{Action, Known};
pub use super::key::Key;
pub use super::resolver_context::{Link, ResolverContext};

/// How long an answer is valid before it is refreshed (RFC 4861 REACHABLE_TIME).
pub const REACHABLE: Duration = Duration::from_secs(30);
/// How long an unconfirmed link address is used before it is probed (RFC 4861 DELAY_FIRST_PROBE_TIME).
pub const DELAY: Duration = Duration::from_secs(5);
/// How long an unused neighbour is remembered, unless it is evicted.
pub const IDLE_MAX: Duration = Duration::from_secs(600);
/// Minimum interval between two changes of a link address by unsolicited packets.
pub const LOCKED: Duration = Duration::from_secs(1);
/// First interval between requests for an address that doesn't answer. It doubles up to [`RETRY_MAX`].
pub const RETRY_FIRST: Duration = Duration::from_millis(250);
/// Longest interval between requests.
pub const RETRY_MAX: Duration = Duration::from_secs(30);
/// Interval between probes of an entry in use (RFC 4861 RETRANS_TIMER).
pub const PROBE_INTERVAL: Duration = Duration::from_secs(1);
/// The number of unicast probes, followed by as many broadcast probes, after which an unused entry is removed (RFC 4861
/// MAX_UNICAST_SOLICIT). An entry in use stays, and is probed less and less often, down to once in [`RETRY_MAX`].
pub const PROBES: u8 = 3;
/// The number of requests after which an address that packets no longer need is removed. An address that packets need
/// is requested less and less often, but never removed.
const TRIES_FOR_TRAFFIC: u8 = 5;
/// Maximum number of frames of each kind per tick, so that a large change doesn't fill the inject queue.
pub const FRAMES_PER_TICK: usize = 64;
/// Maximum number of timers of one kind examined per tick.
const TIMERS_PER_TICK: usize = 512;
/// Maximum number of entries examined to find one to evict.
const EVICTION_TRIES: usize = 8;

/// Whether packets were sent to a neighbour since the previous call.
pub type Uses<'a> = &'a dyn Fn(InterfaceIndex, IpAddr) -> bool;

/// The needed neighbours and their states.
#[derive(Debug, Default)]
pub struct Resolver {
    context: ResolverContext,
    entries: Entries,
    announcements: Announcements,
    conflicts: Conflicts,
    vip_probes: VipProbes,
    faults: Faults,
    ticks: usize,
    refused: u64,
    evicted: u64,
}

impl Resolver {
    /// Applies a new configuration: reports fixed neighbours, requests next hops, releases neighbours that are no
    /// longer needed, and announces our new addresses.
    pub fn configure(&mut self, now: Now, context: ResolverContext) -> Vec<Action> {
        let mut actions = Vec::new();
        self.announcements.of_new(now, &self.context.owned, &context);
        self.context = context;
        let fixed = self.fixed();
        let pinned: BTreeSet<Key> = self
            .context
            .next_hops
            .iter()
            .filter_map(|&address| Some((self.context.interface_of(address)?, address)))
            .collect();
        let interfaces = self.context.interfaces.len();
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
        self.entries.resize(interfaces);
        for (&key, &mac) in &fixed {
            let known = self.entries.get(&key);
            if known.is_none_or(|entry| entry.state != State::Fixed || entry.mac != Some(mac)) {
                let entry = Entry::new(now, State::Fixed);
                self.put(key, Entry { mac: Some(mac), due: Some(now), ..entry });
                actions.push(Action::Update { interface: key.0, address: key.1, mac, how: Known::Fixed });
            }
        }
        for key in pinned.into_iter().filter(|key| !fixed.contains_key(key)) {
            self.pin(now, key, &mut actions);
        }
        actions
    }

    /// Applies a change of the addresses that are ours: starts announcing the new ones and stops announcing the removed
    /// ones.
    pub fn own(&mut self, now: Now, owned: BTreeSet<IpAddr>) {
        let before = std::mem::replace(&mut self.context.owned, owned);
        self.announcements.of_new(now, &before, &self.context);
    }

    /// Handles a packet that waits for this neighbour, or was dropped and will be retransmitted.
    pub fn wanted(&mut self, now: Now, interface: InterfaceIndex, address: IpAddr) -> Vec<Action> {
        let (mut actions, key) = (Vec::new(), (interface, address));
        if usize::from(interface) >= self.context.interfaces.len() || !is_host(address) {
            return actions;
        }
        // A request was already sent, and the timer of the entry paces further ones. The worker didn't find the
        // neighbour in the table, which may have been full before.
        if let Some(entry) = self.entries.note_needed(&key, now) {
            actions.push(match (entry.state, entry.mac) {
                (_, None) => Action::Allocate { interface, address },
                (State::Fixed, Some(mac)) => Action::Update { interface, address, mac, how: Known::Fixed },
                (_, Some(mac)) => {
                    let how = if entry.confirmed { Known::Confirmed } else { Known::Unconfirmed };
                    Action::Update { interface, address, mac, how }
                }
            });
            return actions;
        }
        if self.evict_if_full(now, &key, LruList::Pending, &|_, _| false, &mut actions) {
            let entry = Entry::new(now, State::Incomplete { tries: 0 });
            self.put(key, Entry { lru: Some((LruList::Pending, now)), due: Some(now), ..entry });
            actions.push(Action::Allocate { interface, address });
        }
        actions
    }

    /// Handles a packet with the link address of a neighbour. `mac` is `None` in a solicited advertisement without one.
    pub fn seen(
        &mut self,
        now: Now,
        (interface, address): Key,
        mac: Option<MacAddr>,
        how: Sighting,
        uses: Uses<'_>,
    ) -> Vec<Action> {
        let (mut actions, key) = (Vec::new(), (interface, address));
        let ours = |mac: MacAddr| self.context.interfaces.iter().any(|link| link.mac == mac);
        if !is_host(address) || mac.is_some_and(|mac| !mac.is_unicast() || ours(mac)) {
            return actions;
        }
        match (self.entries.get(&key), mac) {
            (Some(entry), _) => self.update(now, key, entry, mac, how, uses, &mut actions),
            (None, Some(mac)) if how == Sighting::Request => {
                self.add_unused(now, key, mac, uses, &mut actions);
            }
            (None, _) => {}
        }
        actions
    }

    /// Handles a claim of another station on one of our addresses.
    pub fn claimed(&mut self, now: Now, (interface, address): Key, mac: Option<MacAddr>) -> Vec<Action> {
        self.faults.claimed(now, (interface, address), mac);
        let Some(logged) = self.conflicts.first(now, (interface, address), mac) else { return Vec::new() };
        let announced = self.context.owned.contains(&address);
        // A gateway that took over a SNAT address by mistake has stopped claiming it by then, and doesn't announce that
        // it stops.
        if announced && self.context.snat.contains(&address) {
            self.announcements.later(now.plus(DEFEND_INTERVAL), interface, address);
        }
        let defence = announced.then(|| self.context.announcement(interface, address)).flatten();
        let defended = defence.is_some();
        let send = defence.map(|frame| Action::Send { interface, frame });
        let is_last = logged == Logged::Last;
        let said = Action::Conflict { interface, address, mac, defended, is_last };
        send.into_iter().chain((logged != Logged::No).then_some(said)).collect()
    }

    /// Handles an interface that is up again, possibly on a different link: announces our addresses and requests all
    /// its neighbours again. Known link addresses stay in use meanwhile.
    pub fn link_up(&mut self, now: Now, interface: InterfaceIndex) {
        self.announcements.again(now, interface, &self.context);
        let entries: Vec<(Key, Entry)> = self
            .entries
            .iter()
            .filter(|(key, _)| key.0 == interface)
            .map(|(&key, &entry)| (key, entry))
            .collect();
        for (key, entry) in entries {
            let state = match entry.state {
                State::Fixed => continue,
                State::Incomplete { .. } => State::Incomplete { tries: 0 },
                state => state,
            };
            self.put(key, Entry { state, due: Some(now), ..entry });
        }
    }

    /// Sends all frames that are due.
    pub fn tick(&mut self, now: Now, uses: Uses<'_>) -> Vec<Action> {
        let mut actions = Vec::new();
        self.announcements.send(now, FRAMES_PER_TICK, &self.context, &mut actions);
        self.vip_probes.send(now, &self.context, &mut actions);
        self.ticks = self.ticks.wrapping_add(1);
        let shares = self.entries.timer_queues.len().saturating_sub(REQUESTED);
        self.run_timer_queue(now, PINNED, FRAMES_PER_TICK, uses, &mut actions);
        self.run_timer_queue(now, USED, FRAMES_PER_TICK, uses, &mut actions);
        for n in 0..shares {
            // Shares are served round-robin. Together they send no more frames than one of the other queues.
            let queue = REQUESTED + (self.ticks + n) % shares;
            self.run_timer_queue(now, queue, (FRAMES_PER_TICK / shares).max(1), uses, &mut actions);
        }
        actions
    }

    /// When [`Self::tick`] must be called next.
    #[must_use]
    pub fn due(&self) -> Option<Now> {
        let timer_queues = self.entries.timer_queues.iter();
        let timers =
            timer_queues.filter_map(|queue| Some(queue.timers.first()?.0.max(queue.budget.ready_at())));
        timers.chain(self.announcements.due()).chain(self.vip_probes.due(&self.context)).min()
    }

    /// Neighbours with a known link address, for `status`.
    pub fn known(&self) -> impl Iterator<Item = (InterfaceIndex, IpAddr, MacAddr)> + '_ {
        self.entries
            .iter()
            .filter_map(|(&(interface, address), entry)| Some((interface, address, entry.mac?)))
    }

    /// Contradictions between the configuration and stations on the links.
    pub fn faults(&mut self, now: Now) -> Vec<NeighborFault> {
        let entries = &self.entries;
        let configured = |key: &Key| entries.get(key).filter(|one| one.state == State::Fixed)?.mac;
        let known = entries.iter().filter_map(|(&(_, address), entry)| Some((address, entry.mac?)));
        self.faults.current(now, configured, known)
    }

    /// Needed neighbours whose link address is not known.
    pub fn unresolved(&self) -> impl Iterator<Item = (InterfaceIndex, IpAddr)> + '_ {
        self.entries.iter().filter(|(_, entry)| entry.mac.is_none()).map(|(&key, _)| key)
    }

    /// The number of neighbours refused because all entries of their share are in use, and the number of evicted ones,
    /// since the start.
    #[must_use]
    pub fn refused_and_evicted(&self) -> (u64, u64) {
        (self.refused, self.evicted)
    }

    /// Counts a neighbour for which the table had no free entry. The next packet to it tries again.
    pub fn count_refused(&mut self, neighbors: u64) {
        self.refused += neighbors;
    }

    /// Adds a next hop of a route or backend.
    fn pin(&mut self, now: Now, key: Key, actions: &mut Vec<Action>) {
        match self.entries.get(&key) {
            Some(entry) if entry.is_pinned() => {}
            Some(entry) => self.put(key, Entry { lru: None, ..entry }),
            None => {
                let entry = Entry::new(now, State::Incomplete { tries: 0 });
                self.put(key, Entry { due: Some(now), ..entry });
                actions.push(Action::Allocate { interface: key.0, address: key.1 });
            }
        }
    }

    /// Handles a station that isn't needed yet and requests one of our addresses: its link address will be ready for
    /// the packets that follow (RFC 826, RFC 4861 7.2.3).
    fn add_unused(&mut self, now: Now, key: Key, mac: MacAddr, uses: Uses<'_>, actions: &mut Vec<Action>) {
        let on_link = self.context.interface_of(key.1).is_none_or(|interface| interface == key.0);
        if !on_link || !self.evict_if_full(now, &key, LruList::Unused, uses, actions) {
            return;
        }
        let entry = Entry { mac: Some(mac), ..Entry::new(now, State::Stale) };
        self.put(key, Entry { lru: Some((LruList::Unused, now)), due: Some(now.plus(DELAY)), ..entry });
        let (interface, address) = key;
        actions.push(Action::Update { interface, address, mac, how: Known::Unconfirmed });
    }

    /// Applies a received link address to an entry (RFC 4861 7.2.5, and 7.2.3 for requests).
    #[allow(clippy::too_many_arguments, reason = "a packet, its neighbour, and the resulting actions")]
    fn update(
        &mut self,
        now: Now,
        key: Key,
        entry: Entry,
        mac: Option<MacAddr>,
        how: Sighting,
        uses: Uses<'_>,
        actions: &mut Vec<Action>,
    ) {
        // A packet that claims to be an answer counts as one only if a request is pending. Otherwise any station could
        // confirm any address.
        let requested = matches!(entry.state, State::Incomplete { tries: 1.. } | State::Probing { .. });
        let (answers, overrides) = match how {
            Sighting::Answer { overrides } => (requested, overrides),
            Sighting::Announcement { overrides } => (false, overrides),
            Sighting::Request => (false, true),
        };
        let another = mac.filter(|&mac| entry.mac.is_some_and(|known| known != mac));
        let locked = entry.changed_at.is_some_and(|changed| now < changed.plus(LOCKED));
        let believed = match (entry.state, entry.mac, mac, another) {
            (State::Fixed, configured, ..) => return self.faults.answered(now, key, configured, mac),
            (_, None, None, _) => return,
            (_, None, Some(mac), _) => mac,
            (_, Some(known), _, None) if answers => known,
            (_, Some(_), _, None) => return,
            (_, Some(_), _, Some(_)) if !overrides => {
                if entry.state == State::Reachable {
                    self.put(key, Entry { state: State::Stale, due: Some(now.plus(DELAY)), ..entry });
                }
                return;
            }
            // A flood of announcements must not flip the address back and forth. An answer may change it.
            (_, Some(_), _, Some(_)) if locked && !answers => return,
            (_, Some(_), _, Some(mac)) => mac,
        };
        let Some(lru) = self.list_when_known(now, &key, entry, uses, actions) else {
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
        self.put(key, Entry { state, mac, confirmed: answers, lru, changed_at, due, ..entry });
        if entry.mac != mac || entry.confirmed != answers {
            let (interface, address) = key;
            actions.push(Action::Update { interface, address, mac: believed, how: known });
        }
    }

    /// The LRU list of an entry with a known link address; `None` if that list is full.
    fn list_when_known(
        &mut self,
        now: Now,
        key: &Key,
        entry: Entry,
        uses: Uses<'_>,
        actions: &mut Vec<Action>,
    ) -> Option<Option<(LruList, Now)>> {
        match entry.lru {
            Some((LruList::Pending | LruList::Requested, _)) => self
                .evict_if_full(now, key, LruList::Used, uses, actions)
                .then_some(Some((LruList::Used, now))),
            stays => Some(stays),
        }
    }

    /// The LRU list of an entry whose link address is being requested. `None` if this address was requested before and
    /// too many others wait for their first request.
    fn list_when_requested(
        &mut self,
        now: Now,
        key: &Key,
        entry: Entry,
        actions: &mut Vec<Action>,
    ) -> Option<Option<(LruList, Now)>> {
        match entry.lru {
            Some((LruList::Pending, _)) => {
                let has_capacity = self.evict_if_full(now, key, LruList::Requested, &|_, _| false, actions);
                has_capacity.then_some(Some((LruList::Requested, now)))
            }
            Some((LruList::Requested, _)) => {
                (!self.entries.lru_lists.is_crowded(key, LruList::Pending)).then_some(entry.lru)
            }
            stays => Some(stays),
        }
    }

    /// Evicts an entry of a full list if possible. Returns whether the list has space for another entry.
    fn evict_if_full(
        &mut self,
        now: Now,
        key: &Key,
        list: LruList,
        uses: Uses<'_>,
        actions: &mut Vec<Action>,
    ) -> bool {
        for _ in 0..EVICTION_TRIES {
            if self.entries.lru_lists.has_capacity(key, list) {
                return true;
            }
            let Some((since, oldest)) = self.entries.lru_lists.oldest(key, list) else { return false };
            let used = matches!(list, LruList::Unused | LruList::Used) && uses(oldest.0, oldest.1);
            match list {
                LruList::Used if used => self.note_use(now, oldest, actions, uses),
                LruList::Used if since.plus(IN_USE) > now => return false,
                LruList::Unused if used => self.note_use(now, oldest, actions, uses),
                LruList::Pending | LruList::Requested | LruList::Unused | LruList::Used => {
                    self.evicted += 1;
                    self.release(oldest, actions);
                }
            }
        }
        self.entries.lru_lists.has_capacity(key, list)
    }

    /// Handles packets sent to this neighbour since the last check.
    fn note_use(&mut self, now: Now, key: Key, actions: &mut Vec<Action>, uses: Uses<'_>) {
        let Some(entry) = self.entries.get(&key) else { return };
        let list = match entry.lru {
            None => return,
            Some((LruList::Used, _)) => LruList::Used,
            Some(_) if self.evict_if_full(now, &key, LruList::Used, uses, actions) => LruList::Used,
            Some((list, _)) => list,
        };
        self.put(key, Entry { lru: Some((list, now)), ..entry });
    }

    /// Handles expired timers of one queue, as far as its budget allows.
    fn run_timer_queue(
        &mut self,
        now: Now,
        at: usize,
        frames: usize,
        uses: Uses<'_>,
        actions: &mut Vec<Action>,
    ) {
        let mut sent = 0;
        for _ in 0..TIMERS_PER_TICK {
            let Some(queue) = self.entries.timer_queues.get_mut(at) else { return };
            let Some(&(due, key)) = queue.timers.first() else { return };
            if due > now || sent >= frames || queue.budget.ready_at() > now {
                return;
            }
            if self.expire(now, key, uses, actions) {
                sent += 1;
                self.entries.timer_queues[at].budget.take(now);
            }
        }
    }

    /// Handles the expired timer of an entry. Returns whether that sent a frame.
    fn expire(&mut self, now: Now, key: Key, uses: Uses<'_>, actions: &mut Vec<Action>) -> bool {
        let Some(entry) = self.entries.get(&key) else { return false };
        match entry.state {
            // The configured link address stays, but the operator should know if the neighbour uses another one.
            State::Fixed => {
                self.send_request(key, None, actions);
                self.put(
                    key,
                    Entry { requested_at: now, due: Some(now.plus(vip_probes::PROBE_EVERY)), ..entry },
                );
                true
            }
            State::Incomplete { tries } => {
                let unwanted = tries >= TRIES_FOR_TRAFFIC && entry.needed_at <= entry.requested_at;
                if unwanted && !entry.is_pinned() {
                    self.release(key, actions);
                    return false;
                }
                let Some(lru) = self.list_when_requested(now, &key, entry, actions) else {
                    self.evicted += 1;
                    self.release(key, actions);
                    return false;
                };
                self.send_request(key, None, actions);
                let pause = RETRY_FIRST.saturating_mul(1 << tries.min(10)).min(RETRY_MAX);
                let state = State::Incomplete { tries: tries.saturating_add(1) };
                self.put(key, Entry { state, lru, requested_at: now, due: Some(now.plus(pause)), ..entry });
                true
            }
            State::Reachable | State::Stale => self.check_use(now, key, entry, uses, actions),
            // A flood causes answers to be lost, so a good link address stays in use while packets are sent there.
            // Health checks decide whether a backend is alive, and a backend that has moved answers a broadcast probe.
            State::Probing { tries } if tries < 2 * PROBES || entry.is_pinned() || uses(key.0, key.1) => {
                self.probe(now, key, entry, tries, actions)
            }
            State::Probing { .. } => {
                self.release(key, actions);
                false
            }
        }
    }

    /// Probes a known neighbour in use, and removes it after a long idle time.
    fn check_use(
        &mut self,
        now: Now,
        key: Key,
        entry: Entry,
        uses: Uses<'_>,
        actions: &mut Vec<Action>,
    ) -> bool {
        let Some((_, since)) = entry.lru else { return self.probe(now, key, entry, 0, actions) };
        if uses(key.0, key.1) {
            self.note_use(now, key, actions, uses);
            let Some(entry) = self.entries.get(&key) else { return false };
            return self.probe(now, key, entry, 0, actions);
        }
        if since.plus(IDLE_MAX) <= now {
            self.release(key, actions);
            return false;
        }
        if let (true, Some(mac)) = (entry.confirmed, entry.mac) {
            let (interface, address) = key;
            actions.push(Action::Update { interface, address, mac, how: Known::Unconfirmed });
        }
        self.put(key, Entry { state: State::Stale, confirmed: false, due: Some(now.plus(DELAY)), ..entry });
        false
    }

    fn probe(&mut self, now: Now, key: Key, entry: Entry, tries: u8, actions: &mut Vec<Action>) -> bool {
        let to = if tries < PROBES { entry.mac } else { None };
        self.send_request(key, to, actions);
        let state = State::Probing { tries: tries.saturating_add(1) };
        let pause =
            PROBE_INTERVAL.saturating_mul(1 << tries.saturating_sub(2 * PROBES).min(10)).min(RETRY_MAX);
        self.put(key, Entry { state, requested_at: now, due: Some(now.plus(pause)), ..entry });
        true
    }

    fn send_request(&self, key: Key, known: Option<MacAddr>, actions: &mut Vec<Action>) {
        if let Some(frame) = self.context.request(key, known) {
            actions.push(Action::Send { interface: key.0, frame });
        }
    }

    fn fixed(&self) -> BTreeMap<Key, MacAddr> {
        self.context
            .fixed
            .iter()
            .filter_map(|&(address, mac)| Some(((self.context.interface_of(address)?, address), mac)))
            .collect()
    }

    fn put(&mut self, key: Key, entry: Entry) {
        self.entries.put(key, entry);
    }

    fn release(&mut self, key: Key, actions: &mut Vec<Action>) {
        if let Some(entry) = self.entries.take(key) {
            let fixed = entry.state == State::Fixed;
            actions.push(Action::Release { interface: key.0, address: key.1, fixed });
        }
    }
}

fn is_host(address: IpAddr) -> bool {
    !address.is_unspecified() && !address.is_multicast() && !address.is_loopback()
}

/// 30 s, plus up to 8 s depending on the address, so that a thousand neighbours aren't all requested in the same
/// second.
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
