//! Tracks what the other gateways have applied, and withholds released addresses that they may still serve.
//!
//! The daemon keeps a [`ReleaseTracker`] and passes it the Services before each round. Together with the
//! [`PeerReleases`] of the writer, it decides which gateway assigns addresses, and which addresses are withheld. A
//! released address is assigned again when every live gateway has applied the version of the Services in which it was
//! released. Their `GatewayStatus` has one number for this, however many addresses there are.
//!
//! A follower remembers the last version in which any address was released. The leader remembers that version for
//! each address, so that one address does not delay another. [`PeerReleases::decides_since`] stands for releases from
//! before a gateway became the leader.
//!
//! Invariant: an address that no Service names and that is not remembered was released in `settled_since` or before,
//! or before this gateway became the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::objects::{Labels, ObjectKey, Service};
use tidegate_model::shared_map::SharedMap;
use tidegate_policy::pools::{Allocations, Authority, ClaimKind, Holdings};

/// The state of all gateways at one API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerReleases {
    /// Whether this gateway leads, and so decides on addresses.
    pub leads: bool,
    /// The version of the Services that every live gateway has applied, including this one.
    pub withdrawn: u64,
    /// A version that was the newest one after this gateway became the leader: no other gateway has decided after it.
    pub decides_since: u64,
    /// The addresses of the other gateways, with their names.
    pub addresses: Arc<BTreeMap<IpAddr, String>>,
    /// The other live gateways that are ready.
    pub live: Arc<BTreeMap<String, LiveGateway>>,
}

/// What decides which VIPs another gateway may own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveGateway {
    /// Its labels.
    pub labels: Labels,
    /// The Services of which it doesn't serve every port, or has no backend for one, as `namespace/name`.
    pub lacking: BTreeSet<String>,
    /// Whether there may be more of them than its status lists.
    pub lacks_more: bool,
}

/// Tracks released addresses.
#[derive(Debug, Default)]
pub struct ReleaseTracker {
    services: SharedMap<ObjectKey, Arc<Service>>,
    given: Arc<Allocations>,
    /// The version of the last known Services; 0 if it is not known.
    version: u64,
    /// The version of the last Services.
    seen: u64,
    /// The number of Services that name each address.
    named: BTreeMap<IpAddr, u32>,
    /// Addresses that no Service names any more and that a gateway may still serve, each with the version of the
    /// release.
    given_back: BTreeMap<IpAddr, u64>,
    /// The newest version in which any other address was released.
    settled_since: u64,
}

impl ReleaseTracker {
    /// Records that the source has these Services, at this version
    /// ([`SourceUpdate::version`](tidegate_source::SourceUpdate::version)). The last round assigned these addresses,
    /// which may not be in a status yet. Without a version nothing is recorded: changes until then count as changes of
    /// the next version.
    pub fn see(
        &mut self,
        services: &SharedMap<ObjectKey, Arc<Service>>,
        given: &Arc<Allocations>,
        version: u64,
        peers: &PeerReleases,
    ) {
        if version == 0 {
            self.version = 0;
            return;
        }
        // First what the last round has granted: a Service may have given it back since.
        let known = self.services.clone();
        let mut lost = self.count(&known, given);
        lost.append(&mut self.count(services, given));
        // After a restore of the API server the versions are lower: earlier releases then count as releases of its
        // current version.
        self.given_back.values_mut().for_each(|since| *since = (*since).min(version));
        self.settled_since = self.settled_since.min(version);
        if self.seen < peers.decides_since {
            // An address that another gateway assigned and that was released again may have been missed between two
            // updates.
            self.settled_since = version;
        }
        self.given_back.extend(lost.into_iter().map(|ip| (ip, version)));
        self.given_back.retain(|ip, _| !self.named.contains_key(ip));
        let is_settled = |since: u64| !peers.leads || peers.withdrawn >= since;
        let settled = self.given_back.values().copied().filter(|since| is_settled(*since)).max();
        self.settled_since = self.settled_since.max(settled.unwrap_or(0));
        self.given_back.retain(|_, since| !is_settled(*since));
        (self.version, self.seen) = (version, version);
    }

    /// Counts the Services that name each address, and remembers the Services. Returns the addresses that no Service names
    /// anymore.
    fn count(
        &mut self,
        services: &SharedMap<ObjectKey, Arc<Service>>,
        given: &Arc<Allocations>,
    ) -> BTreeSet<IpAddr> {
        let mut changed: BTreeSet<ObjectKey> =
            self.services.diff(services).map(|change| change.key.clone()).collect();
        if !Arc::ptr_eq(&self.given, given) {
            let changes = self.given.by_service.diff(&given.by_service);
            changed.extend(changes.map(|change| change.key.clone()));
        }
        let mut lost = BTreeSet::new();
        for key in &changed {
            for ip in names(services.get(key), given.by_service.get(key)) {
                *self.named.entry(ip).or_default() += 1;
            }
            for ip in names(self.services.get(key), self.given.by_service.get(key)) {
                let count = self.named.get_mut(&ip).expect("it was counted when it was seen");
                *count -= 1;
                if *count == 0 {
                    lost.insert(ip);
                }
            }
        }
        lost.retain(|ip| self.named.get(ip) == Some(&0));
        for ip in &lost {
            self.named.remove(ip);
        }
        self.services.clone_from(services);
        self.given = Arc::clone(given);
        lost
    }

    /// Which gateway decides in a round on the last known Services, and which addresses are withheld.
    #[must_use]
    pub fn authority(&self, peers: &PeerReleases) -> Authority {
        if !peers.leads {
            Authority::Follows
        } else if self.version == 0 || peers.withdrawn < self.everything_since(peers) {
            Authority::Waits
        } else {
            Authority::Decides { withheld: self.given_back.keys().copied().collect() }
        }
    }

    /// The version that every gateway must apply before no address is withheld; `None` if they have.
    #[must_use]
    pub fn waits_for(&self, peers: &PeerReleases) -> Option<u64> {
        let newest = self.given_back.values().copied().max().unwrap_or(0);
        let newest = newest.max(self.everything_since(peers));
        (peers.leads && peers.withdrawn < newest).then_some(newest)
    }

    fn everything_since(&self, peers: &PeerReleases) -> u64 {
        self.settled_since.max(peers.decides_since)
    }
}

/// All addresses on which a gateway may serve a Service: those in its status, those that will be there, and external IPs
/// that it has. External IPs that it only asks for do not count: whoever may create a Service could otherwise hold back
/// any address by asking for it again and again. A deleted Service has none.
fn names(service: Option<&Arc<Service>>, given: Option<&Holdings>) -> BTreeSet<IpAddr> {
    let Some(service) = service.filter(|service| service.meta.deletion_time.is_none()) else {
        return BTreeSet::new();
    };
    let has = |ip: &IpAddr| {
        let mut held = given.into_iter().flat_map(|given| &given.held);
        held.any(|held| held.kind == ClaimKind::ExternalIp && held.address == *ip)
    };
    let external = service.external_ips.iter().copied().filter(has);
    let given = given.into_iter().flat_map(Holdings::load_balancer);
    service.ingress_ips.iter().copied().chain(external).chain(given).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tidegate_model::objects::Metadata;
    use tidegate_policy::pools::Held;

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([203, 0, 113, n])
    }

    /// Services `sN` with these addresses.
    fn services(having: &[(u32, u8)]) -> SharedMap<ObjectKey, Arc<Service>> {
        let service = |(name, address): &(u32, u8)| {
            let key = ObjectKey::new("shop", format!("s{name}"));
            let mut service = Service::new(Metadata::new(key.clone()));
            service.ingress_ips = vec![ip(*address)];
            (key, Arc::new(service))
        };
        having.iter().map(service).collect()
    }

    fn leads(withdrawn: u64) -> PeerReleases {
        PeerReleases { leads: true, withdrawn, ..PeerReleases::default() }
    }

    fn withheld(tracker: &ReleaseTracker, peers: &PeerReleases) -> Option<Vec<IpAddr>> {
        match tracker.authority(peers) {
            Authority::Decides { withheld } => Some(withheld.into_iter().collect()),
            Authority::Waits | Authority::Follows => None,
        }
    }

    /// (holders of addresses, version, the known state of the other gateways)
    type State<'a> = (&'a [(u32, u8)], u64, &'a PeerReleases);

    fn seen(states: &[State<'_>]) -> ReleaseTracker {
        let mut tracker = ReleaseTracker::default();
        states.iter().for_each(|(having, version, peers)| {
            tracker.see(&services(having), &Arc::default(), *version, peers);
        });
        tracker
    }

    #[test]
    fn an_address_given_back_is_withheld_until_every_gateway_has_applied_that_version() {
        let mut tracker = seen(&[(&[(1, 1), (2, 2)], 10, &leads(0)), (&[(2, 2)], 20, &leads(10))]);
        assert_eq!(withheld(&tracker, &leads(10)), Some(vec![ip(1)]));
        assert_eq!(tracker.waits_for(&leads(10)), Some(20));
        tracker.see(&services(&[(2, 2)]), &Arc::default(), 25, &leads(20));
        assert_eq!((withheld(&tracker, &leads(20)), tracker.waits_for(&leads(20))), (Some(vec![]), None));
    }

    #[test]
    fn an_address_that_another_service_names_too_is_not_given_back() {
        let tracker = seen(&[(&[(1, 1), (2, 1)], 10, &leads(10)), (&[(2, 1)], 20, &leads(10))]);
        assert_eq!(withheld(&tracker, &leads(10)), Some(vec![]));
    }

    #[test]
    fn a_deleted_service_has_given_its_address_back_when_its_deletion_is_seen() {
        let mut tracker = seen(&[(&[(1, 1)], 10, &leads(10))]);
        let mut deleted = services(&[(1, 1)]);
        let key = ObjectKey::new("shop", "s1");
        let mut service = Service::clone(&deleted[&key]);
        service.meta.deletion_time = Some(jiff::Timestamp::UNIX_EPOCH);
        deleted.insert(key, Arc::new(service));
        tracker.see(&deleted, &Arc::default(), 20, &leads(10));
        tracker.see(&services(&[]), &Arc::default(), 30, &leads(20));
        assert_eq!(tracker.waits_for(&leads(20)), None, "everybody had seen the deletion");
    }

    #[test]
    fn a_gateway_that_turns_up_with_older_services_is_waited_for() {
        let tracker = seen(&[(&[(1, 1)], 10, &leads(10)), (&[], 20, &leads(20))]);
        assert_eq!(withheld(&tracker, &leads(20)), Some(vec![]));
        assert_eq!(
            tracker.authority(&leads(15)),
            Authority::Waits,
            "it may serve what the others have forgotten"
        );
    }

    #[test]
    fn external_ips_are_withheld_if_a_gateway_may_serve_them_and_not_if_a_service_only_asks_for_them() {
        let key = || ObjectKey::new("shop", "s1");
        let asking = |asks: bool| {
            let mut service = Service::new(Metadata::new(key()));
            if asks {
                service.external_ips = vec![ip(1), ip(2)];
            }
            SharedMap::from([(key(), Arc::new(service))])
        };
        // A pool authorises the first one.
        let held = Held { kind: ClaimKind::ExternalIp, ..Held::of_status(ip(1)) };
        let by_service = SharedMap::from([(key(), Holdings::new("", vec![held]))]);
        let granted = Arc::new(Allocations { by_service, ..Allocations::default() });
        let mut tracker = ReleaseTracker::default();
        tracker.see(&asking(true), &Arc::default(), 10, &leads(10));
        tracker.see(&asking(false), &granted, 20, &leads(10));
        assert_eq!(withheld(&tracker, &leads(10)), Some(vec![ip(1)]));
        tracker.see(&asking(false), &Arc::default(), 25, &leads(20));
        assert_eq!(withheld(&tracker, &leads(20)), Some(vec![]));

        let mut tracker = ReleaseTracker::default();
        for version in 10..30 {
            tracker.see(&asking(version % 2 == 0), &Arc::default(), version, &leads(10));
            assert_eq!(withheld(&tracker, &leads(10)), Some(vec![]), "no gateway serves any");
        }
    }

    #[test]
    fn a_new_leader_waits_for_addresses_released_before() {
        let follows = PeerReleases::default();
        let tracker = seen(&[(&[(1, 1)], 10, &follows), (&[], 20, &follows)]);
        assert_eq!(tracker.authority(&follows), Authority::Follows);
        assert_eq!(tracker.authority(&leads(15)), Authority::Waits);
        assert_eq!(withheld(&tracker, &leads(20)), Some(vec![]));
        let since = PeerReleases { decides_since: 30, ..leads(20) };
        assert_eq!((tracker.authority(&since), tracker.waits_for(&since)), (Authority::Waits, Some(30)));
    }

    #[test]
    fn a_server_that_went_back_does_not_block_anything_forever() {
        let mut tracker = seen(&[(&[(1, 1)], 900, &leads(900)), (&[], 1000, &leads(900))]);
        tracker.see(&services(&[]), &Arc::default(), 100, &leads(100));
        assert_eq!((withheld(&tracker, &leads(100)), tracker.waits_for(&leads(100))), (Some(vec![]), None));
    }

    #[test]
    fn nothing_is_given_out_while_the_version_is_not_known_and_what_changed_counts_as_of_the_next() {
        let mut tracker = seen(&[(&[(1, 1)], 10, &leads(10)), (&[], 0, &leads(10))]);
        assert_eq!(tracker.authority(&leads(10)), Authority::Waits);
        tracker.see(&services(&[]), &Arc::default(), 30, &leads(10));
        assert_eq!(withheld(&tracker, &leads(10)), Some(vec![ip(1)]));
        assert_eq!(tracker.waits_for(&leads(10)), Some(30));
    }

    /// The leader's memory of assigned addresses. The Services exist, without a status.
    fn memory(given: &[(usize, u8, u32)]) -> Arc<Allocations> {
        let held = |n: u8| Holdings::new("", vec![Held::of_status(ip(n))]);
        let of = |(_, address, name): &(usize, u8, u32)| {
            (ObjectKey::new("shop", format!("s{}", name * 2 + u32::from(*address))), held(*address))
        };
        Arc::new(Allocations { by_service: given.iter().map(of).collect(), ..Allocations::default() })
    }

    proptest! {
        /// Gateways apply versions late and independently, two of them take turns as the leader, and each releases and
        /// assigns addresses whenever it may. No gateway ever serves an address for one Service while another gateway
        /// serves it for another Service.
        #[test]
        fn no_two_gateways_serve_an_address_for_different_services(
            steps in proptest::collection::vec((0_u8..5, 0_u8..6, 0_u32..3), 1..150),
        ) {
            // For each version, from 1: the Service that has each of two addresses.
            let mut history: Vec<[Option<u32>; 2]> = vec![[None; 2]; 2];
            let having = |state: &[Option<u32>; 2]| {
                let all = (0..6_u32).map(|name| {
                    let (address, who) = ((name % 2) as u8, name / 2);
                    let mut service = Service::new(Metadata::new(ObjectKey::new("shop", format!("s{name}"))));
                    if state[usize::from(address)] == Some(who) {
                        service.ingress_ips = vec![ip(address)];
                    }
                    (service.meta.key.clone(), Arc::new(service))
                });
                all.collect::<SharedMap<_, _>>()
            };
            let mut applied = [1_usize; 3];
            let mut trackers = [ReleaseTracker::default(), ReleaseTracker::default()];
            let (mut leader, mut since) = (0, 1_u64);
            // The addresses that the leader assigned and has not read back: version, address, Service.
            let mut given: Vec<(usize, u8, u32)> = vec![];
            for (what, which, service) in steps {
                let newest = history.len() - 1;
                let slowest = *applied.iter().min().expect("three") as u64;
                let peers = |gateway: usize| {
                    let leads = gateway == leader;
                    PeerReleases { leads, withdrawn: slowest, decides_since: if leads { since } else { 0 }, ..PeerReleases::default() }
                };
                // The leader reads only what it has applied, and decides on that.
                given.retain(|(version, ..)| applied[leader] < *version);
                for (gateway, tracker) in trackers.iter_mut().enumerate() {
                    let version = applied[gateway];
                    let given = if gateway == leader { memory(&given) } else { Arc::default() };
                    tracker.see(&having(&history[version]), &given, version as u64, &peers(gateway));
                }
                let address = which % 2;
                let at = usize::from(address);
                match what {
                    0 | 1 => {
                        let gateway = usize::from(which) % 3;
                        applied[gateway] = (applied[gateway] + 1 + service as usize).min(newest);
                    }
                    2 if history[newest][at].is_some() => {
                        let mut next = history[newest];
                        next[at] = None;
                        history.push(next);
                    }
                    // A write of the leader, based on what it has read and assigned. No other gateway assigns
                    // addresses.
                    3 if history[applied[leader]][at].is_none() && given.iter().all(|(_, to, _)| *to != address) => {
                        let may = withheld(&trackers[leader], &peers(leader)).is_some_and(|w| !w.contains(&ip(address)));
                        if may {
                            prop_assert!(history[newest][at].is_none(), "it is given twice");
                            let mut next = history[newest];
                            next[at] = Some(service);
                            history.push(next);
                            given.push((newest + 1, address, service));
                        }
                    }
                    4 => {
                        (leader, since) = (usize::from(which) % 2, newest as u64);
                        given.clear();
                    }
                    _ => {}
                }
                for at in [0, 1] {
                    let served: BTreeSet<u32> = applied.iter().filter_map(|version| history[*version][at]).collect();
                    prop_assert!(served.len() <= 1, "address {at}: {served:?} at once");
                }
            }
        }
    }
}
