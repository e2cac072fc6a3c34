//! The VRRP advertisements (RFC 9568) seen on the taps: those of other stations, and the host's own.
//!
//! The slow path records them. The control plane reads them to find a group without a master, or with two.
//!
//! Invariant: at most 256 virtual routers are remembered, one entry each.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidegate_spec::now::Now;
use tidegate_wire::{Headers, Parsed};

/// The protocol number of VRRP.
const VRRP: u8 = 112;
/// Version 2 or 3, type 1 (advertisement).
const ADVERTISEMENTS: [u8; 2] = [0x21, 0x31];
/// Two advertisements of a virtual router further apart than this are not simultaneous.
const TOGETHER: Duration = Duration::from_secs(5);

/// The advertisements of one virtual router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Advertised {
    /// Its number (VRID).
    pub router: u8,
    /// The time since the last advertisement of another station, and the address of that station.
    pub received: Option<(Duration, IpAddr)>,
    /// For how long both another station and the host have been sending them.
    pub contested: Option<Duration>,
}

/// The advertisements of all virtual routers.
#[derive(Debug, Default)]
pub struct Advertisements(Mutex<BTreeMap<u8, Router>>);

#[derive(Debug, Default)]
struct Router {
    received: Option<(Now, IpAddr)>,
    sent: Option<Now>,
    /// Since when both another station and the host have been sending.
    contested: Option<Now>,
}

impl Advertisements {
    /// Records a frame of another station.
    pub fn received(&self, now: Now, frame: &[u8]) {
        let Some((router, from)) = advertisement(frame) else { return };
        let mut routers = self.routers();
        let router = routers.entry(router).or_default();
        let is_recent = |at: Now| now < at.plus(TOGETHER);
        let both = router.sent.is_some_and(is_recent) && router.received.is_some_and(|(at, _)| is_recent(at));
        router.contested = both.then(|| router.contested.unwrap_or(now));
        router.received = Some((now, from));
    }

    /// Records a frame of the host.
    pub fn sent(&self, now: Now, frame: &[u8]) {
        if let Some((router, _)) = advertisement(frame) {
            self.routers().entry(router).or_default().sent = Some(now);
        }
    }

    /// The virtual routers with an advertisement.
    #[must_use]
    pub fn all(&self, now: Now) -> Vec<Advertised> {
        let since = |at: Now| Duration::from_nanos(now.0.saturating_sub(at.0));
        let recent = |at: Now| since(at) < TOGETHER;
        let of = |(&router, of): (&u8, &Router)| Advertised {
            router,
            received: of.received.map(|(at, from)| (since(at), from)),
            contested: of
                .contested
                .filter(|_| of.sent.is_some_and(recent) && of.received.is_some_and(|(at, _)| recent(at)))
                .map(since),
        };
        self.routers().iter().map(of).collect()
    }

    fn routers(&self) -> MutexGuard<'_, BTreeMap<u8, Router>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The virtual router of an advertisement, and its sender; `None` for other frames, and for the last advertisement of a
/// master that resigns (priority 0).
fn advertisement(frame: &[u8]) -> Option<(u8, IpAddr)> {
    let Ok(Parsed::Ip(Headers { proto: VRRP, ttl: 255, l4, src, .. })) = tidegate_wire::parse(frame) else {
        return None;
    };
    let &[kind, router, priority] = frame.get(usize::from(l4)..)?.first_chunk()?;
    (ADVERTISEMENTS.contains(&kind) && priority > 0).then(|| (router, src.ip()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(from: u8, router: u8, priority: u8) -> Vec<u8> {
        let vrrp = [0x31, router, priority, 1, 0, 20, 0, 0, 169, 254, 51, 1];
        let mut ip = vec![0x45, 0, 0, 32, 0, 0, 0, 0, 255, VRRP, 0, 0, 192, 0, 2, from, 224, 0, 0, 18];
        let sum: u32 = ip.chunks(2).map(|pair| u32::from(pair[0]) << 8 | u32::from(pair[1])).sum();
        let sum = !((sum & 0xffff) + (sum >> 16)) as u16;
        ip[10..12].copy_from_slice(&sum.to_be_bytes());
        [&[1, 0, 0x5e, 0, 0, 18, 0, 0, 0x5e, 0, 1, router, 8, 0][..], &ip, &vrrp].concat()
    }

    fn at(seconds: u64) -> Now {
        Now(seconds * 1_000_000_000)
    }

    #[test]
    fn a_router_is_contested_while_another_station_and_the_host_both_send() {
        let all = Advertisements::default();
        let other: IpAddr = "192.0.2.2".parse().expect("an address");
        for second in 1..=20 {
            all.sent(at(second), &frame(1, 51, 100));
            if second >= 8 {
                all.received(at(second), &frame(2, 51, 90));
            }
        }
        let of = |second| all.all(at(second)).into_iter().next().expect("one router");
        assert_eq!(of(20).contested, Some(Duration::from_secs(11)));
        assert_eq!(of(22).received, Some((Duration::from_secs(2), other)));
        assert_eq!(of(26).contested, None, "neither sends any more");
        // A master that hands over sends a last advertisement before the other station starts.
        all.received(at(40), &frame(2, 51, 90));
        all.sent(at(41), &frame(1, 51, 100));
        assert_eq!(of(41).contested, None);
    }

    #[test]
    fn other_packets_and_the_end_of_a_master_are_no_advertisements() {
        let all = Advertisements::default();
        all.received(at(1), &frame(2, 51, 0));
        let mut near = frame(2, 51, 100);
        near[22] = 254;
        all.received(at(1), &near);
        all.received(at(1), &frame(2, 51, 100)[..35]);
        all.received(at(1), &[]);
        assert_eq!(all.all(at(1)), []);
    }
}
