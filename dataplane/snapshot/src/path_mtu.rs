//! `PathMtus`: the path MTUs of tunnels for which a router has reported less than the link's MTU.
//!
//! Outer IPv4 headers have DF set, so a router that cannot forward a packet to a backend drops it and sends an error to
//! the gateway (RFC 1191, RFC 8201). The error quotes too little of the client's packet to identify the client. So the
//! worker that receives it records the MTU here, and the next packet that is too big is answered with "packet too big"
//! (RFC 2003 section 5.1, RFC 2473 section 7.1). All workers share one table, because any of them may receive the error
//! and every one may send to the backend.
//!
//! An entry expires after [`LIFETIME`], so that a path whose MTU has grown is used in full again. Until then its MTU
//! can only decrease. A hash bucket has four entries; a new one replaces the entry of its hash bucket that expires
//! first. `pipeline::tunnel_errors` decides which errors are accepted; this table only stores the result.
//!
//! Orderings. Each entry is a sequence lock: its version is odd while it is being written, and a reader that sees an
//! odd or a changed version treats the entry as absent. Writers exclude each other by a flag without waiting: a writer
//! that finds the flag set does not write, and a later packet will cause another error.
//!
//! Invariant: readers and writers never wait, and a reader never sees the MTU of another address.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, fence};
use std::time::Duration;

use tidegate_spec::limits::PATH_MTUS_MAX;
use tidegate_spec::now::Now;
use tidegate_structures::hash::key_hash;
use tidegate_wire::{Addr, Family};

/// The lifetime of a path MTU (RFC 1191 section 6.3).
pub const LIFETIME: Duration = Duration::from_secs(600);

/// The smallest accepted path MTU of a tunnel: the size that every IPv4 host must be able to receive (RFC 791 section
/// 3.2), and the minimum MTU of IPv6 (RFC 8200 section 5).
#[inline]
#[must_use]
pub const fn minimum(outer: Family) -> u16 {
    match outer {
        Family::V4 => 576,
        Family::V6 => 1280,
    }
}

/// Entries per hash bucket.
const ENTRIES_PER_BUCKET: usize = 4;

const _: () = assert!(PATH_MTUS_MAX.is_power_of_two() && PATH_MTUS_MAX >= ENTRIES_PER_BUCKET);

#[derive(Debug, Default)]
#[repr(align(32))]
struct Entry {
    high: AtomicU64,
    low: AtomicU64,
    /// The time of expiry, in nanoseconds; 0 if the entry has never been used.
    ends: AtomicU64,
    version: AtomicU32,
    mtu: AtomicU16,
}

/// The content of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathMtu {
    /// The backend.
    pub backend: Addr,
    /// Bytes of the largest packet, outer header included, that reaches it.
    pub mtu: u16,
    /// The time of expiry.
    pub ends: Now,
}

/// The path MTUs of tunnels. All workers share one table.
#[derive(Debug)]
pub struct PathMtus {
    entries: Box<[Entry]>,
    /// The number of entries written since the start. While it is 0, look-ups are skipped.
    recorded: AtomicU64,
    writing: AtomicBool,
}

impl Default for PathMtus {
    /// An empty table for [`PATH_MTUS_MAX`] backends.
    fn default() -> Self {
        Self {
            entries: (0..PATH_MTUS_MAX).map(|_| Entry::default()).collect(),
            recorded: AtomicU64::new(0),
            writing: AtomicBool::new(false),
        }
    }
}

impl PathMtus {
    /// The path MTU of the tunnel to a backend, if one smaller than the link's is known.
    #[inline]
    #[must_use]
    pub fn get(&self, backend: &Addr, now: Now) -> Option<u16> {
        if self.recorded.load(Relaxed) == 0 {
            return None;
        }
        self.find(backend, now)
    }

    fn find(&self, backend: &Addr, now: Now) -> Option<u16> {
        let known = self.bucket(backend).iter().filter_map(Entry::read);
        let mut live = known.filter(|entry| entry.backend == *backend && now < entry.ends);
        live.next().map(|entry| entry.mtu)
    }

    /// Records a path MTU. Returns false if nothing has changed, because an MTU that is no larger is already known or
    /// another worker is writing.
    pub fn record(&self, backend: Addr, mtu: u16, now: Now) -> bool {
        if self.writing.compare_exchange(false, true, Acquire, Relaxed).is_err() {
            return false;
        }
        let changed = self.write(backend, mtu, now);
        self.writing.store(false, Release);
        changed
    }

    /// Writes an entry. Only the current writer may call it.
    fn write(&self, backend: Addr, mtu: u16, now: Now) -> bool {
        let bucket = self.bucket(&backend);
        let same = |entry: &&Entry| entry.read().is_some_and(|known| known.backend == backend);
        let known = bucket.iter().find(same);
        let live = |entry: PathMtu| now < entry.ends && entry.mtu <= mtu;
        if known.and_then(Entry::read).is_some_and(live) {
            return false;
        }
        let first_to_end = || bucket.iter().min_by_key(|entry| entry.ends.load(Relaxed));
        let entry = known.or_else(first_to_end).expect("a hash bucket has entries");
        entry.set(&PathMtu { backend, mtu, ends: now.plus(LIFETIME) });
        self.recorded.fetch_add(1, Relaxed);
        true
    }

    /// The number of path MTUs recorded since the start.
    #[must_use]
    pub fn recorded(&self) -> u64 {
        self.recorded.load(Relaxed)
    }

    /// All path MTUs that are currently known, for reports.
    pub fn known(&self, now: Now) -> impl Iterator<Item = PathMtu> {
        self.entries.iter().filter_map(Entry::read).filter(move |entry| now < entry.ends)
    }

    fn bucket(&self, backend: &Addr) -> &[Entry] {
        let buckets = self.entries.len() / ENTRIES_PER_BUCKET;
        let first = (key_hash(backend, 0, 0) as usize & (buckets - 1)) * ENTRIES_PER_BUCKET;
        &self.entries[first..first + ENTRIES_PER_BUCKET]
    }
}

impl Entry {
    /// The content; `None` if the entry is empty or is being written.
    fn read(&self) -> Option<PathMtu> {
        let before = self.version.load(Acquire);
        let (high, low) = (self.high.load(Relaxed), self.low.load(Relaxed));
        let (ends, mtu) = (self.ends.load(Relaxed), self.mtu.load(Relaxed));
        fence(Acquire);
        if before & 1 == 1 || self.version.load(Relaxed) != before || ends == 0 {
            return None;
        }
        let backend = Addr::v6((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
        Some(PathMtu { backend, mtu, ends: Now(ends) })
    }

    /// Writes the content. Only the current writer may call it.
    fn set(&self, to: &PathMtu) {
        let whole = u128::from_be_bytes(*to.backend.bytes());
        let version = self.version.load(Relaxed);
        self.version.store(version.wrapping_add(1), Relaxed);
        fence(Release);
        self.high.store((whole >> 64) as u64, Relaxed);
        self.low.store(whole as u64, Relaxed);
        self.ends.store(to.ends.0, Relaxed);
        self.mtu.store(to.mtu, Relaxed);
        self.version.store(version.wrapping_add(2), Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backend(n: u32) -> Addr {
        Addr::v4(n.to_be_bytes())
    }

    const NOW: Now = Now(5_000_000_000);

    #[test]
    fn a_path_mtu_is_remembered_for_ten_minutes() {
        let paths = PathMtus::default();
        assert_eq!(paths.get(&backend(1), NOW), None);
        assert!(paths.record(backend(1), 1400, NOW));
        assert_eq!((paths.get(&backend(1), NOW), paths.get(&backend(2), NOW)), (Some(1400), None));
        let last = Now(NOW.plus(LIFETIME).0 - 1);
        assert_eq!(paths.get(&backend(1), last), Some(1400));
        assert_eq!(paths.get(&backend(1), NOW.plus(LIFETIME)), None);
        let known: Vec<_> = paths.known(last).collect();
        assert_eq!(known, [PathMtu { backend: backend(1), mtu: 1400, ends: NOW.plus(LIFETIME) }]);
        assert_eq!((paths.known(NOW.plus(LIFETIME)).count(), paths.recorded()), (0, 1));
    }

    #[test]
    fn a_known_path_mtu_only_falls_and_no_error_prolongs_it() {
        let paths = PathMtus::default();
        paths.record(backend(1), 1400, NOW);
        let later = Now(NOW.0 + 1);
        assert!(!paths.record(backend(1), 1450, later) && !paths.record(backend(1), 1400, later));
        assert_eq!(paths.known(later).next().map(|known| known.ends), Some(NOW.plus(LIFETIME)));
        assert!(paths.record(backend(1), 1300, later));
        assert_eq!(paths.get(&backend(1), later), Some(1300));
        // The entry has expired, so the next MTU counts as new.
        let over = later.plus(LIFETIME);
        assert!(paths.record(backend(1), 1450, over));
        assert_eq!((paths.get(&backend(1), over), paths.known(over).count()), (Some(1450), 1));
    }

    #[test]
    fn a_full_bucket_evicts_the_entry_that_expires_first() {
        let paths = PathMtus::default();
        let bucket_of = |n: &u32| std::ptr::from_ref(&paths.bucket(&backend(*n))[0]);
        let first = bucket_of(&1);
        let together: Vec<u32> =
            (1..).filter(|n| bucket_of(n) == first).take(ENTRIES_PER_BUCKET + 1).collect();
        for (n, &host) in together.iter().enumerate() {
            assert!(paths.record(backend(host), 1400, Now(NOW.0 + n as u64)));
        }
        let known: Vec<bool> =
            together.iter().map(|&host| paths.get(&backend(host), Now(NOW.0 + 9)).is_some()).collect();
        assert_eq!(known, [false, true, true, true, true]);
    }

    #[test]
    fn readers_during_writes_see_no_mtu_of_another_backend() {
        let (paths, done) = (PathMtus::default(), AtomicBool::new(false));
        let mtu = |n: u32| 1000 + (n % 400) as u16;
        std::thread::scope(|scope| {
            for writer in 0..2_u32 {
                let (paths, done) = (&paths, &done);
                scope.spawn(move || {
                    for round in 0..20_u64 {
                        for n in 0..8_000 {
                            let n = n * 2 + writer;
                            paths.record(backend(n), mtu(n), Now(NOW.0 + round * 1_000_000_000_000));
                        }
                    }
                    done.store(true, Release);
                });
            }
            let mut seen = 0;
            loop {
                // The writers may finish before this thread starts.
                let is_last = done.load(Acquire);
                for n in 0..16_000 {
                    if let Some(found) = paths.get(&backend(n), NOW) {
                        assert_eq!(found, mtu(n));
                        seen += 1;
                    }
                }
                if is_last {
                    break;
                }
            }
            assert!(seen > 0);
        });
    }
}
