//! The VIPs for which the gateway answers ARP and neighbour solicitations, if several gateways are on one link.
//!
//! A snapshot contains a [`Layer2`] for each VIP. If only one of several gateways may answer, it contains an
//! [`OwnerKey`], which stands for a group of VIPs. [`Ownership`] stores the time until which this gateway owns each
//! key. The control plane writes it, and the answering path reads it for each request. So a gateway stops answering
//! when its time is over, whatever its control plane does, even if the process was stopped meanwhile.
//!
//! SNAT addresses work similarly. A gateway answers for its own ones, unless it has released them to other gateways
//! that have its flows ([`Ownership::release_snat`]). It also answers for the SNAT addresses of gateways that are gone
//! ([`Ownership::take_over`]). Those are in no snapshot.
//!
//! Times are in [`BootTime`], a clock that includes suspension of the machine. The creator of the table passes the
//! function that reads it, so this crate reads no clock. Without a clock ([`Ownership::of_all`]) every key counts as
//! owned: `replay` and `explain` show what an owner does.
//!
//! Invariant: a key that was never granted, or whose time is over, is not owned. Workers take no lock. A key has an
//! entry from a grant until its time is set to 0; readers check the key before and after reading the time.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use tidegate_wire::Addr;

use crate::limits::OWNER_KEYS_MAX;

/// Nanoseconds of the system's clock that includes the time of suspension (`CLOCK_BOOTTIME`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct BootTime(pub u64);

impl BootTime {
    /// Later than any other time.
    #[cfg(test)]
    const NEVER_OVER: Self = Self(u64::MAX);

    /// The time `after` this one.
    #[must_use]
    pub fn plus(self, after: std::time::Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(after.as_nanos()).unwrap_or(u64::MAX)))
    }
}

/// A group of VIPs that one gateway at a time owns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerKey(NonZeroU64);

impl OwnerKey {
    /// The key with this number, such as a hash of the group's name. 0 counts as 1, and the largest number as the one
    /// before it.
    #[must_use]
    pub fn new(number: u64) -> Self {
        Self(NonZeroU64::new(number.min(RELEASED - 1)).unwrap_or(NonZeroU64::MIN))
    }

    /// The key of a SNAT address of another gateway, a hash like the keys of groups.
    fn of_snat(address: &Addr) -> Self {
        let bytes = address.bytes();
        let (high, low) = bytes.split_at(8);
        let word = |bytes: &[u8]| bytes.iter().fold(0, |word, &byte| word << 8 | u64::from(byte));
        Self::new(tidegate_structures::hash::mix(word(high) ^ tidegate_structures::hash::mix(word(low))))
    }
}

/// Whether the gateway answers requests for the link address of a VIP, and announces the VIP. If service ports of one
/// VIP differ, the smallest variant applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Layer2 {
    /// The gateway answers requests, and announces the VIP when it is new.
    Always,
    /// Like `Always`, while the gateway owns the key.
    Owned(OwnerKey),
    /// The gateway neither answers nor announces.
    Silent,
    /// The gateway answers requests but announces nothing, because routes lead to the VIP.
    Answered,
}

/// The keys that this gateway owns, and until when.
#[derive(Debug)]
pub struct Ownership {
    entries: Box<[Entry]>,
    /// `None`: every key is owned.
    clock: Option<fn() -> BootTime>,
    /// Other gateways answer for the gateway's SNAT addresses.
    has_released_snat: AtomicBool,
    /// The SNAT addresses of gateways that are gone, for announcements. Workers read the entries instead.
    taken_over: Mutex<Arc<BTreeSet<IpAddr>>>,
    /// Serializes changes of the entries.
    writer: Mutex<()>,
}

/// The key of an entry that was never used, which ends a search.
const FREE: u64 = 0;
/// The key of an entry that is free again, which a search skips.
const RELEASED: u64 = u64::MAX;

#[derive(Debug, Default)]
struct Entry {
    /// A key, [`FREE`] or [`RELEASED`].
    key: AtomicU64,
    /// The time until which the key is owned.
    until: AtomicU64,
}

impl Default for Ownership {
    fn default() -> Self {
        Self::of_all()
    }
}

impl Ownership {
    /// Every key is owned.
    #[must_use]
    pub fn of_all() -> Self {
        Self {
            entries: Box::default(),
            clock: None,
            has_released_snat: AtomicBool::new(false),
            taken_over: Mutex::default(),
            writer: Mutex::default(),
        }
    }

    /// No key is owned until it is granted. `clock` is read for each query.
    #[must_use]
    pub fn by(clock: fn() -> BootTime) -> Self {
        let entries = (0..OWNER_KEYS_MAX).map(|_| Entry::default()).collect();
        Self { entries, clock: Some(clock), ..Self::of_all() }
    }

    /// The time now; `None` without a clock.
    #[must_use]
    pub fn now(&self) -> Option<BootTime> {
        self.clock.map(|clock| clock())
    }

    /// Whether this gateway owns the key now.
    #[must_use]
    pub fn owns(&self, key: OwnerKey) -> bool {
        let Some(clock) = self.clock else { return true };
        // The deadline is read before the clock, so that the time isn't outdated when they are compared.
        let until = self.until(key);
        clock() < until
    }

    /// Like [`Self::owns`], at a time that the caller has read ([`Self::now`]).
    #[must_use]
    pub fn owns_at(&self, key: OwnerKey, now: Option<BootTime>) -> bool {
        now.is_none_or(|now| now < self.until(key))
    }

    /// Whether this gateway answers requests for an address of this kind.
    #[must_use]
    pub fn answers(&self, layer2: Layer2) -> bool {
        match layer2 {
            Layer2::Always | Layer2::Answered => true,
            Layer2::Silent => false,
            Layer2::Owned(key) => self.owns(key),
        }
    }

    /// Whether this gateway announces an address of this kind.
    #[must_use]
    pub fn announces(&self, layer2: Layer2) -> bool {
        layer2 != Layer2::Answered && self.answers(layer2)
    }

    /// The time until which the key is owned; time 0 if it is not.
    #[must_use]
    pub fn until(&self, key: OwnerKey) -> BootTime {
        for entry in self.probe(key).map(|at| &self.entries[at]) {
            match entry.key.load(Ordering::Acquire) {
                found if found == key.0.get() => {
                    let until = entry.until.load(Ordering::Acquire);
                    // If the key has changed, the time may belong to another key.
                    let is_of_key = entry.key.load(Ordering::Acquire) == found;
                    return if is_of_key { BootTime(until) } else { BootTime(0) };
                }
                FREE => break,
                _ => {}
            }
        }
        BootTime(0)
    }

    /// Grants the key until this time, or revokes it ([`BootTime`] 0). Returns false if the table is full. Only the
    /// control plane calls it.
    pub fn grant(&self, key: OwnerKey, until: BootTime) -> bool {
        let _writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let mut free = None;
        for at in self.probe(key) {
            let entry = &self.entries[at];
            let found = entry.key.load(Ordering::Relaxed);
            if found == key.0.get() {
                entry.until.store(until.0, Ordering::Release);
                if until == BootTime(0) {
                    self.release(at);
                }
                return true;
            }
            if [FREE, RELEASED].contains(&found) {
                free.get_or_insert(entry);
            }
            if found == FREE {
                break;
            }
        }
        if until == BootTime(0) {
            return true;
        }
        let Some(entry) = free else { return false };
        // The time stays 0 until the key is stored.
        entry.key.store(key.0.get(), Ordering::Release);
        entry.until.store(until.0, Ordering::Release);
        true
    }

    /// Frees an entry whose time is 0. If searches end at the next entry anyway, they can also end at this one and at
    /// released ones before it.
    fn release(&self, at: usize) {
        let len = self.entries.len();
        let key = |at: usize| &self.entries[at].key;
        key(at).store(RELEASED, Ordering::Release);
        if key((at + 1) % len).load(Ordering::Relaxed) != FREE {
            return;
        }
        let before = (0..len).map(|n| (at + len - n) % len);
        for at in before.take_while(|&at| key(at).load(Ordering::Relaxed) == RELEASED) {
            key(at).store(FREE, Ordering::Release);
        }
    }

    /// Sets whether other gateways answer for the SNAT addresses of this one.
    pub fn release_snat(&self, is_released: bool) {
        self.has_released_snat.store(is_released, Ordering::Relaxed);
    }

    /// Whether this gateway answers for its own SNAT addresses.
    #[must_use]
    pub fn answers_for_snat(&self) -> bool {
        !self.has_released_snat.load(Ordering::Relaxed)
    }

    /// Sets the SNAT addresses of other gateways that this one answers for until this time.
    pub fn take_over(&self, addresses: &Arc<BTreeSet<IpAddr>>, until: BootTime) {
        let mut taken = self.taken_over.lock().unwrap_or_else(PoisonError::into_inner);
        for &address in taken.difference(addresses) {
            self.grant(OwnerKey::of_snat(&address.into()), BootTime(0));
        }
        for &address in addresses.iter() {
            // If the table is full, no gateway answers, as before.
            self.grant(OwnerKey::of_snat(&address.into()), until);
        }
        *taken = Arc::clone(addresses);
    }

    /// Whether this gateway answers for a SNAT address of a gateway that is gone.
    #[must_use]
    pub fn has_taken_over(&self, address: &Addr) -> bool {
        self.clock.is_some() && self.owns(OwnerKey::of_snat(address))
    }

    /// The SNAT addresses of other gateways that this one answers for.
    #[must_use]
    pub fn taken_over(&self) -> Arc<BTreeSet<IpAddr>> {
        Arc::clone(&self.taken_over.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The indices of the entries that may contain the key, in the order of the search.
    fn probe(&self, key: OwnerKey) -> impl Iterator<Item = usize> {
        let len = self.entries.len();
        let first = tidegate_structures::hash::mix(key.0.get()) as usize;
        (0..len).map(move |n| (first.wrapping_add(n)) % len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static NOW: AtomicU64 = AtomicU64::new(0);

    fn clock() -> BootTime {
        BootTime(NOW.load(Ordering::Relaxed))
    }

    #[test]
    fn a_key_is_owned_until_its_time_is_over_and_no_longer() {
        let ownership = Ownership::by(clock);
        let (a, b) = (OwnerKey::new(1), OwnerKey::new(2));
        NOW.store(10, Ordering::Relaxed);
        assert!(!ownership.owns(a), "nothing was granted");
        assert!(ownership.grant(a, BootTime(20)));
        NOW.store(19, Ordering::Relaxed);
        assert!(ownership.owns(a) && !ownership.owns(b));
        assert!(ownership.answers(Layer2::Owned(a)) && ownership.announces(Layer2::Owned(a)));
        NOW.store(20, Ordering::Relaxed);
        assert!(!ownership.owns(a) && !ownership.answers(Layer2::Owned(a)));
        assert!(ownership.grant(a, BootTime::NEVER_OVER) && ownership.owns(a));
        assert!(ownership.grant(a, BootTime(0)) && !ownership.owns(a), "it is revoked");
    }

    #[test]
    fn a_full_table_refuses_further_keys_and_evicts_none() {
        let ownership = Ownership::by(clock);
        let keys = || (1..=OWNER_KEYS_MAX as u64).map(OwnerKey::new);
        assert!(keys().all(|key| ownership.grant(key, BootTime::NEVER_OVER)));
        let further = OwnerKey::new(u64::MAX);
        assert!(!ownership.grant(further, BootTime::NEVER_OVER) && !ownership.owns(further));
        assert!(keys().all(|key| ownership.owns(key)));
    }

    #[test]
    fn revoked_keys_free_their_entries_and_affect_no_other_key() {
        let ownership = Ownership::by(clock);
        let end = |number| assert!(ownership.grant(OwnerKey::new(number), BootTime(0)));
        let owned = |number| ownership.until(OwnerKey::new(number)) > BootTime(0);
        let mut granted = BTreeSet::new();
        // Many more keys than entries, of which at most half are granted at a time.
        for number in 1..=4 * OWNER_KEYS_MAX as u64 {
            assert!(ownership.grant(OwnerKey::new(number), BootTime::NEVER_OVER), "{number}");
            granted.insert(number);
            if granted.len() > OWNER_KEYS_MAX / 2 {
                // Neither the oldest nor the newest keys, so that searches pass released entries.
                let ended = *granted
                    .range(tidegate_structures::hash::mix(number) % number..)
                    .next()
                    .unwrap_or(&number);
                granted.remove(&ended);
                end(ended);
                assert!(!owned(ended));
            }
        }
        assert!(granted.iter().all(|&number| owned(number)));
        granted.iter().for_each(|&number| end(number));
        let is_free = |entry: &Entry| entry.key.load(Ordering::Relaxed) == FREE;
        assert!(ownership.entries.iter().all(is_free), "no search is longer than at the start");
    }

    #[test]
    fn only_silent_addresses_and_those_of_others_are_not_answered() {
        let offline = Ownership::of_all();
        let owned = Layer2::Owned(OwnerKey::new(7));
        let shown = [Layer2::Always, owned, Layer2::Silent, Layer2::Answered]
            .map(|layer2| (offline.answers(layer2), offline.announces(layer2)));
        assert_eq!(shown, [(true, true), (true, true), (false, false), (true, false)]);
    }
}
