//! Tracks what the other gateways have applied, and withholds released addresses that they may still serve.
//!
//! The daemon keeps a [`ReleaseTracker`] and passes it the Services before each round. Together with the
//! [`PeerReleases`] of the writer, it decides which gateway assigns addresses and which addresses are withheld. A
//! released address can be assigned again once every live gateway has applied the version of the Services in which it
//! was released. Each `GatewayStatus` reports this as one number, regardless of how many addresses there are.
//!
//! A follower remembers the last version in which any address was released. The leader remembers that version per
//! address, so that one address doesn't delay another. [`PeerReleases::leader_since`] covers releases from before a
//! gateway became the leader.
//!
//! Invariant: an address that no Service uses and that is not in `released` was released in version `last_release` or
//! earlier, or before this gateway became the leader.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_model::objects::{Labels, ObjectKey, Service};
use tidegate_model::shared_map::{SharedMap, differences};
use tidegate_policy::pools::{Allocations, Authority, ClaimKind, Holdings};

/// The state of all gateways at one API server.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PeerReleases {
    /// Whether this gateway leads, and therefore assigns addresses.
    pub leads: bool,
    /// The version of the Services that every live gateway has applied, including this one.
    pub withdrawn: u64,
    /// A version that was the newest one after this gateway became the leader: no other gateway has assigned addresses
    /// since.
    pub leader_since: u64,
    /// The addresses of the other gateways, with their names.
    pub addresses: Arc<BTreeMap<IpAddr, String>>,
    /// The other live gateways that are ready.
    pub live: Arc<BTreeMap<String, LiveGateway>>,
}

/// What determines which VIPs another gateway may own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LiveGateway {
    /// Its labels.
    pub labels: Labels,
    /// The Services that it doesn't fully serve, or that have a port without a backend there, as `namespace/name`.
    pub lacking: BTreeSet<String>,
    /// Whether there may be more of them than its status lists.
    pub lacks_more: bool,
}

/// Tracks released addresses.
#[derive(Debug, Default)]
pub struct ReleaseTracker {
    services: SharedMap<ObjectKey, Arc<Service>>,
    assigned: Arc<Allocations>,
    /// The version of the last Services; 0 if unknown.
    version: u64,
    /// The last version of the Services that was not 0.
    seen: u64,
    /// The number of Services that use each address.
    users: BTreeMap<IpAddr, u32>,
    /// Addresses that no Service uses anymore but that a gateway may still serve, each with the version of its release.
    released: BTreeMap<IpAddr, u64>,
    /// The newest version in which any other address was released.
    last_release: u64,
}

impl ReleaseTracker {
    /// Records the Services of the source, their version
    /// ([`SourceUpdate::version`](tidegate_source::SourceUpdate::version)), and the addresses assigned in the last
    /// round, which may not be in a status yet. If the version is 0, nothing is recorded, and the changes count as
    /// changes of the next version.
    pub fn observe(
        &mut self,
        services: &SharedMap<ObjectKey, Arc<Service>>,
        assigned: &Arc<Allocations>,
        version: u64,
        peers: &PeerReleases,
    ) {
        if version == 0 {
            self.version = 0;
            return;
        }
        // Count the assignments of the last round first: a Service may have released an address since.
        let known = self.services.clone();
        let mut lost = self.count(&known, assigned);
        lost.append(&mut self.count(services, assigned));
        // If the API server was restored from a backup, versions are lower. Earlier releases then count as releases of
        // its current version.
        self.released.values_mut().for_each(|since| *since = (*since).min(version));
        self.last_release = self.last_release.min(version);
        if self.seen < peers.leader_since {
            // An address may have been assigned by another gateway and released again between two updates.
            self.last_release = version;
        }
        self.released.extend(lost.into_iter().map(|ip| (ip, version)));
        self.released.retain(|ip, _| !self.users.contains_key(ip));
        let is_applied = |since: u64| !peers.leads || peers.withdrawn >= since;
        let applied = self.released.values().copied().filter(|since| is_applied(*since)).max();
        self.last_release = self.last_release.max(applied.unwrap_or(0));
        self.released.retain(|_, since| !is_applied(*since));
        (self.version, self.seen) = (version, version);
    }

    /// Counts the Services that use each address, and stores the Services. Returns the addresses that no Service uses
    /// anymore.
    fn count(
        &mut self,
        services: &SharedMap<ObjectKey, Arc<Service>>,
        assigned: &Arc<Allocations>,
    ) -> BTreeSet<IpAddr> {
        let mut changed: BTreeSet<ObjectKey> =
            differences(&self.services, services).map(|change| change.key.clone()).collect();
        if !Arc::ptr_eq(&self.assigned, assigned) {
            let changes = differences(&self.assigned.by_service, &assigned.by_service);
            changed.extend(changes.map(|change| change.key.clone()));
        }
        let mut lost = BTreeSet::new();
        for key in &changed {
            for ip in addresses_of(services.get(key), assigned.by_service.get(key)) {
                *self.users.entry(ip).or_default() += 1;
            }
            for ip in addresses_of(self.services.get(key), self.assigned.by_service.get(key)) {
                let count = self.users.get_mut(&ip).expect("every used address was counted");
                *count -= 1;
                if *count == 0 {
                    lost.insert(ip);
                }
            }
        }
        lost.retain(|ip| self.users.get(ip) == Some(&0));
        for ip in &lost {
            self.users.remove(ip);
        }
        self.services.clone_from(services);
        self.assigned = Arc::clone(assigned);
        lost
    }

    /// Which gateway assigns addresses in a round with the last known Services, and which addresses are withheld.
    #[must_use]
    pub fn authority(&self, peers: &PeerReleases) -> Authority {
        if !peers.leads {
            Authority::Follows
        } else if self.version == 0 || peers.withdrawn < self.newest_release(peers) {
            Authority::Waits
        } else {
            Authority::Decides { withheld: self.released.keys().copied().collect() }
        }
    }

    /// The version that every gateway must apply before all free addresses can be assigned; `None` if all have applied
    /// it.
    #[must_use]
    pub fn waits_for(&self, peers: &PeerReleases) -> Option<u64> {
        let newest = self.released.values().copied().max().unwrap_or(0);
        let newest = newest.max(self.newest_release(peers));
        (peers.leads && peers.withdrawn < newest).then_some(newest)
    }

    fn newest_release(&self, peers: &PeerReleases) -> u64 {
        self.last_release.max(peers.leader_since)
    }
}

/// All addresses at which a gateway may serve a Service: those in its status, those about to be written there, and
/// external IPs that it owns. External IPs that were only requested don't count; otherwise, anyone who may create a
/// Service could block any address with repeated requests. A deleted Service has none.
fn addresses_of(service: Option<&Arc<Service>>, assigned: Option<&Holdings>) -> BTreeSet<IpAddr> {
    let Some(service) = service.filter(|service| service.meta.deletion_time.is_none()) else {
        return BTreeSet::new();
    };
    let has = |ip: &IpAddr| {
        let mut owned = assigned.into_iter().flat_map(|assigned| &assigned.addresses);
        owned.any(|one| one.kind == ClaimKind::ExternalIp && one.address == *ip)
    };
    let external = service.external_ips.iter().copied().filter(has);
    let assigned = assigned.into_iter().flat_map(Holdings::load_balancer);
    service.ingress_ips.iter().copied().chain(external).chain(assigned).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use tidegate_model::objects::Metadata;
    use tidegate_policy::pools::OwnedAddress;

    fn ip(n: u8) -> IpAddr {
        IpAddr::from([203, 0, 113, n])
    }

    /// Services `sN` with these addresses.
    fn services(owners: &[(u32, u8)]) -> SharedMap<ObjectKey, Arc<Service>> {
        let service = |(name, address): &(u32, u8)| {
            let key = ObjectKey::new("shop", format!("s{name}"));
            let mut service = Service::new(Metadata::new(key.clone()));
            service.ingress_ips = vec![ip(*address)];
            (key, Arc::new(service))
        };
        owners.iter().map(service).collect()
    }

    fn leads(withdrawn: u64) -> PeerReleases {
        PeerReleases { leads: true, withdrawn, ..PeerReleases::default() }
    }

    fn withheld(tracker: &ReleaseTracker, peers: &PeerReleases) -> Option<Vec<IpAddr>> {
        match tracker.authority(peers) {
            Authority::Decides { withheld } => Some(withheld.into_iter().collect()),
            Authority::Waits | Authority::Unread | Authority::Follows => None,
        }
    }

    /// (owners of addresses, version, the known state of the other gateways)
    type State<'a> = (&'a [(u32, u8)], u64, &'a PeerReleases);

    fn seen(states: &[State<'_>]) -> ReleaseTracker {
        let mut tracker = ReleaseTracker::default();
        states.iter().for_each(|(owners, version, peers)| {
            tracker.observe(&services(owners), &Arc::default(), *version, peers);
        });
        tracker
    }

    #[test]
    fn a_released_address_is_withheld_until_every_gateway_has_applied_it() {
        let mut tracker = seen(&[(&[(1, 1), (2, 2)], 10, &leads(0)), (&[(2, 2)], 20, &leads(10))]);
        assert_eq!(withheld(&tracker, &leads(10)), Some(vec![ip(1)]));
        assert_eq!(tracker.waits_for(&leads(10)), Some(20));
        tracker.observe(&services(&[(2, 2)]), &Arc::default(), 25, &leads(20));
        assert_eq!((withheld(&tracker, &leads(20)), tracker.waits_for(&leads(20))), (Some(vec![]), None));
    }

    #[test]
    fn an_address_that_another_service_uses_is_not_released() {
        let tracker = seen(&[(&[(1, 1), (2, 1)], 10, &leads(10)), (&[(2, 1)], 20, &leads(10))]);
        assert_eq!(withheld(&tracker, &leads(10)), Some(vec![]));
    }

    #[test]
    fn a_deleted_service_releases_its_address_once_its_deletion_is_seen() {
        let mut tracker = seen(&[(&[(1, 1)], 10, &leads(10))]);
        let mut deleted = services(&[(1, 1)]);
        let key = ObjectKey::new("shop", "s1");
        let mut service = Service::clone(&deleted[&key]);
        service.meta.deletion_time = Some(jiff::Timestamp::UNIX_EPOCH);
        deleted.insert(key, Arc::new(service));
        tracker.observe(&deleted, &Arc::default(), 20, &leads(10));
        tracker.observe(&services(&[]), &Arc::default(), 30, &leads(20));
        assert_eq!(tracker.waits_for(&leads(20)), None, "all gateways have seen the deletion");
    }

    #[test]
    fn a_new_gateway_with_older_services_is_waited_for() {
        let tracker = seen(&[(&[(1, 1)], 10, &leads(10)), (&[], 20, &leads(20))]);
        assert_eq!(withheld(&tracker, &leads(20)), Some(vec![]));
        assert_eq!(
            tracker.authority(&leads(15)),
            Authority::Waits,
            "it may serve addresses that others no longer track"
        );
    }

    #[test]
    fn external_ips_are_withheld_only_if_a_gateway_may_serve_them() {
        let key = || ObjectKey::new("shop", "s1");
        let requesting = |requests: bool| {
            let mut service = Service::new(Metadata::new(key()));
            if requests {
                service.external_ips = vec![ip(1), ip(2)];
            }
            SharedMap::unit(key(), Arc::new(service))
        };
        // A pool authorizes the first one.
        let owned = OwnedAddress { kind: ClaimKind::ExternalIp, ..OwnedAddress::of_status(ip(1)) };
        let by_service = SharedMap::unit(key(), Holdings::new("", vec![owned]));
        let granted = Arc::new(Allocations { by_service, ..Allocations::default() });
        let mut tracker = ReleaseTracker::default();
        tracker.observe(&requesting(true), &Arc::default(), 10, &leads(10));
        tracker.observe(&requesting(false), &granted, 20, &leads(10));
        assert_eq!(withheld(&tracker, &leads(10)), Some(vec![ip(1)]));
        tracker.observe(&requesting(false), &Arc::default(), 25, &leads(20));
        assert_eq!(withheld(&tracker, &leads(20)), Some(vec![]));

        let mut tracker = ReleaseTracker::default();
        for version in 10..30 {
            tracker.observe(&requesting(version % 2 == 0), &Arc::default(), version, &leads(10));
            assert_eq!(withheld(&tracker, &leads(10)), Some(vec![]), "no gateway serves any of them");
        }
    }

    #[test]
    fn a_new_leader_waits_for_addresses_released_before() {
        let follows = PeerReleases::default();
        let tracker = seen(&[(&[(1, 1)], 10, &follows), (&[], 20, &follows)]);
        assert_eq!(tracker.authority(&follows), Authority::Follows);
        assert_eq!(tracker.authority(&leads(15)), Authority::Waits);
        assert_eq!(withheld(&tracker, &leads(20)), Some(vec![]));
        let since = PeerReleases { leader_since: 30, ..leads(20) };
        assert_eq!((tracker.authority(&since), tracker.waits_for(&since)), (Authority::Waits, Some(30)));
    }

    #[test]
    fn a_server_restored_from_a_backup_blocks_nothing_forever() {
        let mut tracker = seen(&[(&[(1, 1)], 900, &leads(900)), (&[], 1000, &leads(900))]);
        tracker.observe(&services(&[]), &Arc::default(), 100, &leads(100));
        assert_eq!((withheld(&tracker, &leads(100)), tracker.waits_for(&leads(100))), (Some(vec![]), None));
    }

    #[test]
    fn nothing_is_assigned_without_a_version_and_changes_count_as_the_next() {
        let mut tracker = seen(&[(&[(1, 1)], 10, &leads(10)), (&[], 0, &leads(10))]);
        assert_eq!(tracker.authority(&leads(10)), Authority::Waits);
        tracker.observe(&services(&[]), &Arc::default(), 30, &leads(10));
        assert_eq!(withheld(&tracker, &leads(10)), Some(vec![ip(1)]));
        assert_eq!(tracker.waits_for(&leads(10)), Some(30));
    }

    /// The leader's memory of assigned addresses. The Services exist, without a status.
    fn memory(assigned: &[(usize, u8, u32)]) -> Arc<Allocations> {
        let owned = |n: u8| Holdings::new("", vec![OwnedAddress::of_status(ip(n))]);
        let of = |(_, address, name): &(usize, u8, u32)| {
            (ObjectKey::new("shop", format!("s{}", name * 2 + u32::from(*address))), owned(*address))
        };
        Arc::new(Allocations { by_service: assigned.iter().map(of).collect(), ..Allocations::default() })
    }

    proptest! {
        /// Gateways apply versions late and independently, two of them alternate as the leader, and each releases and
        /// assigns addresses whenever it may. No gateway ever serves an address for one Service while another gateway
        /// serves it for another Service.
        #[test]
        fn no_two_gateways_serve_an_address_for_different_services(
            steps in proptest::collection::vec((0_u8..5, 0_u8..6, 0_u32..3), 1..150),
        ) {
            // For each version, from 1: the Service that owns each of two addresses.
            let mut history: Vec<[Option<u32>; 2]> = vec![[None; 2]; 2];
            let owners = |state: &[Option<u32>; 2]| {
                let all = (0..6_u32).map(|name| {
                    let (address, who) = ((name % 2) as u8, name / 2);
                    let mut service = Service::new(Metadata::new(ObjectKey::new("shop", format!("s{name}"))));
                    if state[usize::from(address)] == Some(who) {
                        service.ingress_ips = vec![ip(address)];
                    }
                    (service.meta.key.clone(), Arc::new(service))
                });
                all.collect::<SharedMap<ObjectKey, Arc<Service>>>()
            };
            let mut applied = [1_usize; 3];
            let mut trackers = [ReleaseTracker::default(), ReleaseTracker::default()];
            let (mut leader, mut since) = (0, 1_u64);
            // The addresses that the leader assigned and has not read back: version, address, Service.
            let mut assigned: Vec<(usize, u8, u32)> = vec![];
            for (what, which, service) in steps {
                let newest = history.len() - 1;
                let slowest = *applied.iter().min().expect("three") as u64;
                let peers = |gateway: usize| {
                    let leads = gateway == leader;
                    PeerReleases { leads, withdrawn: slowest, leader_since: if leads { since } else { 0 }, ..PeerReleases::default() }
                };
                // The leader reads only what it has applied, and decides on that.
                assigned.retain(|(version, ..)| applied[leader] < *version);
                for (gateway, tracker) in trackers.iter_mut().enumerate() {
                    let version = applied[gateway];
                    let assigned = if gateway == leader { memory(&assigned) } else { Arc::default() };
                    tracker.observe(&owners(&history[version]), &assigned, version as u64, &peers(gateway));
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
                    3 if history[applied[leader]][at].is_none() && assigned.iter().all(|(_, to, _)| *to != address) => {
                        let may = withheld(&trackers[leader], &peers(leader)).is_some_and(|w| !w.contains(&ip(address)));
                        if may {
                            prop_assert!(history[newest][at].is_none(), "it is assigned twice");
                            let mut next = history[newest];
                            next[at] = Some(service);
                            history.push(next);
                            assigned.push((newest + 1, address, service));
                        }
                    }
                    4 => {
                        (leader, since) = (usize::from(which) % 2, newest as u64);
                        assigned.clear();
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
