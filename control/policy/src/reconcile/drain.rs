//! The memory of removed backends: they keep their flows until the drain timeout.
//!
//! State in, state out: [`Drains::step`] receives the listed backends and returns the removed ones to keep. An
//! endpoint that moves between slices, and is briefly in neither, counts as removed for that time and loses no flow.
//!
//! Invariant: nothing here reads a clock. Times count from the start of the daemon.

use std::borrow::Cow;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::objects::ObjectKey;
use tidegate_model::shared_map::SharedMap;
use tidegate_select::rendezvous::WeightHistory;
use tidegate_spec::{
    BackendChange, EarlierPort, EarlierWeight, RemovedBackend, ServiceKey, Warming, WeightChange, owner_mark,
};

use super::warm_up::WarmUps;

/// The last known backends of each service port, passed from one call to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Drains {
    ports: SharedMap<ServiceKey, Arc<PortMemory>>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct PortMemory {
    owner: Owner,
    drain_timeout: Duration,
    backends: BTreeMap<SocketAddr, Presence>,
    /// If the Service follows seats, and for one drain timeout afterwards: which seats changed their backend.
    seats: Option<Seats>,
    /// After a restart: the seats that the earlier process followed, and how long before this process it ended.
    earlier_seats: (Vec<EarlierWeight>, Duration),
    /// With `slowStart`: which backends warm up, and when the next of them reaches its next step.
    warm_ups: Option<(WarmUps, Option<Duration>)>,
}

impl PortMemory {
    /// The followed seats, otherwise the seats of an earlier process, and the time for which changes matter. A change
    /// during the restart may be as old as the end of the earlier process.
    fn followed(&self, window: Duration, now: Duration) -> Option<(Cow<'_, Seats>, Duration)> {
        if let Some(seats) = &self.seats {
            return Some((Cow::Borrowed(seats), window));
        }
        let (seats, ended) = &self.earlier_seats;
        // This process began at 0.
        let history = || WeightHistory::of_earlier(seats, window, now);
        let since = window.saturating_sub(*ended + now);
        (!seats.is_empty()).then(|| (Cow::Owned(Seats { history: history(), until: None }), since))
    }

    /// Adds a change of a weight that another gateway has observed. Returns whether the seats are followed.
    fn import(&mut self, seat: &WeightChange, now: Duration) -> bool {
        let Some(seats) = &mut self.seats else { return false };
        seats.history.import(seat, self.drain_timeout, now);
        true
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Owner {
    Service(ObjectKey),
    /// From an earlier process or another gateway; only the [`owner_mark`] is known.
    Mark(u32),
}

impl Owner {
    fn is(&self, service: &ObjectKey) -> bool {
        match self {
            Self::Service(key) => key == service,
            Self::Mark(mark) => *mark == owner_mark(&service.namespace, &service.name),
        }
    }

    fn mark(&self) -> u32 {
        match self {
            Self::Service(key) => owner_mark(&key.namespace, &key.name),
            Self::Mark(mark) => *mark,
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Seats {
    history: WeightHistory,
    /// If the Service no longer follows seats: when all its flows have entries or have ended.
    until: Option<Duration>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Presence {
    Listed,
    /// Removed; forgotten at this time.
    RemovedUntil(Duration),
}

pub(super) struct PortNow<'a> {
    pub(super) key: ServiceKey,
    pub(super) owner: &'a ObjectKey,
    pub(super) listed: BTreeSet<SocketAddr>,
    pub(super) drain_timeout: Duration,
    /// The maximum number of removed backends that are kept.
    pub(super) kept_max: usize,
}

impl Drains {
    /// The memory of a process that takes over the flows and service `ports` of an earlier one. It is unknown when
    /// backends were removed, so their drain timeout begins now.
    #[must_use]
    pub fn of_earlier(ports: impl IntoIterator<Item = EarlierPort>) -> Self {
        let memory = |port: EarlierPort| {
            let backends = port.backends.into_iter().map(|backend| (backend, Presence::Listed)).collect();
            let (owner, drain_timeout) = (Owner::Mark(port.owner), Duration::ZERO);
            let earlier_seats = (port.seats, port.ended);
            let memory =
                PortMemory { owner, drain_timeout, backends, seats: None, earlier_seats, warm_ups: None };
            (port.key, Arc::new(memory))
        };
        Self { ports: ports.into_iter().map(memory).collect() }
    }

    /// Updates one service port. Returns the removed backends that are kept.
    ///
    /// A port that belonged to another Service has no memory, because its flows belong to that Service. Only the last
    /// `kept_max` removed backends are kept, so that a Service that constantly changes its endpoints does not fill
    /// the tables.
    pub(super) fn step(&mut self, previous: &Self, port: &PortNow<'_>, now: Duration) -> Vec<SocketAddr> {
        let PortNow { key, owner, listed, drain_timeout, kept_max } = port;
        let (key, drain_timeout, kept_max) = (*key, *drain_timeout, *kept_max);
        let mut kept: Vec<(Duration, SocketAddr)> = Vec::new();
        let before = previous.ports.get(&key).filter(|p| p.owner.is(owner));
        for (address, presence) in before.into_iter().flat_map(|p| &p.backends) {
            let until = match presence {
                Presence::Listed => now + drain_timeout,
                Presence::RemovedUntil(until) => *until,
            };
            if !listed.contains(address) && until > now {
                kept.push((until, *address));
            }
        }
        if kept.len() > kept_max {
            kept.sort_unstable_by(|a, b| b.cmp(a));
            kept.truncate(kept_max);
        }
        let mut backends: BTreeMap<SocketAddr, Presence> =
            listed.iter().map(|address| (*address, Presence::Listed)).collect();
        backends.extend(kept.iter().map(|(until, address)| (*address, Presence::RemovedUntil(*until))));
        if !backends.is_empty() {
            let owner = Owner::Service((*owner).clone());
            let memory = PortMemory {
                owner,
                drain_timeout,
                backends,
                seats: None,
                earlier_seats: Default::default(),
                warm_ups: None,
            };
            self.ports.insert(key, Arc::new(memory));
        }
        kept.into_iter().map(|(_, address)| address).collect()
    }

    /// Updates the seats of a service port that [`Self::step`] has just updated, given the weights of the backends
    /// that take new flows. Returns the former weight of each backend whose weight changed recently.
    ///
    /// If the Service no longer `follows` seats but did so until recently, they are followed for one more drain
    /// timeout: flows from the time with `on-change` have no entries yet.
    pub(super) fn step_seats(
        &mut self,
        previous: &Self,
        key: &ServiceKey,
        follows: bool,
        weights: BTreeMap<SocketAddr, u16>,
        now: Duration,
    ) -> Vec<(SocketAddr, u16)> {
        let Some(memory) = self.ports.get(key) else { return Vec::new() };
        let before = previous.ports.get(key).filter(|before| before.owner.mark() == memory.owner.mark());
        let before = before.and_then(|before| before.followed(memory.drain_timeout, now));
        let until = match (follows, &before) {
            (true, _) => None,
            (false, None) => return Vec::new(),
            (false, Some((before, _))) => Some(before.until.unwrap_or(now + memory.drain_timeout)),
        };
        if until.is_some_and(|until| until <= now) {
            return Vec::new();
        }
        let history = before.as_ref().map(|(before, _)| &before.history);
        let window = before.as_ref().map_or(memory.drain_timeout, |(_, window)| *window);
        let history = WeightHistory::next(history, weights, window, now);
        let former = history.former_weights().collect();
        let memory = PortMemory { seats: Some(Seats { history, until }), ..PortMemory::clone(memory) };
        self.ports.insert(*key, Arc::new(memory));
        former
    }

    /// The recent changes of the backends, for a gateway that has not observed them. Removed backends come first.
    pub fn changes(&self, now: Duration) -> impl Iterator<Item = (ServiceKey, BackendChange)> + '_ {
        let left = self.ports.iter().flat_map(move |(key, port)| {
            let left = port.backends.iter().filter_map(move |(backend, presence)| match presence {
                Presence::RemovedUntil(until) if *until > now => Some((*backend, *until - now)),
                Presence::RemovedUntil(_) | Presence::Listed => None,
            });
            left.map(|(backend, left)| {
                (
                    *key,
                    BackendChange::Removed(RemovedBackend {
                        owner: port.owner.mark(),
                        backend,
                        remaining: left,
                    }),
                )
            })
        });
        let followed = self.ports.iter().filter_map(|(key, port)| Some((*key, port.seats.as_ref()?)));
        let moved = followed.flat_map(move |(key, seats)| {
            seats.history.changes(now).map(move |seat| (key, BackendChange::WeightChanged(seat)))
        });
        left.chain(moved)
    }

    /// Adds changes of backends that another gateway has observed and this one has not. Changes of weights are
    /// ignored for service ports whose seats are not followed here, and so are backends of another Service.
    pub fn import(&mut self, changes: &[(ServiceKey, BackendChange)], now: Duration) {
        // The memory of a port, which may have thousands of backends, is copied once for all changes.
        let mut by_port: BTreeMap<ServiceKey, Vec<&BackendChange>> = BTreeMap::new();
        for (key, change) in changes {
            by_port.entry(*key).or_default().push(change);
        }
        for (key, changes) in by_port {
            let mut memory = self.ports.get(&key).map(|memory| PortMemory::clone(memory));
            let mut is_changed = false;
            for change in changes {
                is_changed |= match change {
                    BackendChange::Removed(left) => Self::add_removed(&mut memory, left, now),
                    BackendChange::WeightChanged(seat) => {
                        memory.as_mut().is_some_and(|memory| memory.import(seat, now))
                    }
                };
            }
            if let Some(memory) = memory.filter(|_| is_changed) {
                self.ports.insert(key, Arc::new(memory));
            }
        }
    }

    /// Adds a removed backend to the memory of its service port. Returns whether this changes anything. A port that
    /// has never had backends here has no memory yet.
    fn add_removed(memory: &mut Option<PortMemory>, left: &RemovedBackend, now: Duration) -> bool {
        let memory = memory.get_or_insert_with(|| PortMemory {
            owner: Owner::Mark(left.owner),
            drain_timeout: Duration::MAX,
            backends: BTreeMap::new(),
            seats: None,
            earlier_seats: Default::default(),
            warm_ups: None,
        });
        if memory.owner.mark() != left.owner {
            return false;
        }
        let until = now + left.remaining.min(memory.drain_timeout);
        match memory.backends.entry(left.backend) {
            Entry::Vacant(place) => {
                place.insert(Presence::RemovedUntil(until));
                true
            }
            // Already known here. If nothing changes, the next round has little to compute.
            Entry::Occupied(_) => false,
        }
    }

    /// Whether the seats of a service port are followed.
    pub(super) fn has_seats(&self, key: &ServiceKey) -> bool {
        self.ports.get(key).is_some_and(|memory| memory.seats.is_some() || !memory.earlier_seats.0.is_empty())
    }

    /// Updates the warm-ups of a service port that [`Self::step`] has just updated, given the backends that take new
    /// flows. Returns the backends that warm up.
    pub(super) fn step_warm_ups(
        &mut self,
        previous: &Self,
        key: &ServiceKey,
        active: BTreeSet<SocketAddr>,
        slow_start: Duration,
        now: Duration,
    ) -> Vec<Warming> {
        let Some(memory) = self.ports.get(key) else { return Vec::new() };
        let before = previous.ports.get(key).filter(|before| before.owner == memory.owner);
        let before = before.and_then(|before| before.warm_ups.as_ref()).map(|(warm_ups, _)| warm_ups);
        let warm_ups = WarmUps::next(before, active, slow_start, now);
        let (warming, deadline) = (warm_ups.warming(now).collect(), warm_ups.next_deadline(now));
        let memory = PortMemory { warm_ups: Some((warm_ups, deadline)), ..PortMemory::clone(memory) };
        self.ports.insert(*key, Arc::new(memory));
        warming
    }

    /// Replaces the old memory of one Service with its new memory.
    pub(super) fn replace(&mut self, old: &Self, new: &Self) {
        for (key, memory) in &old.ports {
            // Another Service may now have the port.
            if new.ports.get(key).is_none() && self.ports.get(key).is_some_and(|m| m.owner == memory.owner) {
                self.ports.remove(key);
            }
        }
        self.ports.extend(new.ports.iter().map(|(key, memory)| (*key, Arc::clone(memory))));
    }

    /// How long flows of a service port continue after its removal, or `None` if it had no backend.
    pub(super) fn timeout(&self, key: &ServiceKey) -> Option<Duration> {
        self.ports.get(key).map(|memory| memory.drain_timeout)
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = IpAddr> {
        self.ports.values().flat_map(|memory| memory.backends.keys().map(SocketAddr::ip))
    }

    /// The number of removed backends of each service port that has any, in ascending order.
    pub(super) fn least_removed(&self) -> Vec<(usize, ServiceKey)> {
        let left = |memory: &PortMemory| {
            memory.backends.values().filter(|presence| matches!(presence, Presence::RemovedUntil(_))).count()
        };
        let mut ports: Vec<_> = self.ports.iter().map(|(key, memory)| (left(memory), *key)).collect();
        ports.retain(|(left, _)| *left > 0);
        ports.sort_unstable();
        ports
    }

    /// Whether a backend of a service port has been removed.
    pub(super) fn is_removed(&self, key: &ServiceKey, backend: SocketAddr) -> bool {
        let presence = self.ports.get(key).and_then(|memory| memory.backends.get(&backend));
        matches!(presence, Some(Presence::RemovedUntil(_)))
    }

    /// Whether both are the same copy. Does not compare contents.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.ports.ptr_eq(&other.ports)
    }

    /// When the next backend is forgotten or reaches its next step.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Duration> {
        let presences = self.ports.values().flat_map(|p| p.backends.values());
        let left = presences.filter_map(|p| match p {
            Presence::Listed => None,
            Presence::RemovedUntil(until) => Some(*until),
        });
        let seats = self.ports.values().filter_map(|p| p.seats.as_ref());
        let seats = seats.flat_map(|seats| seats.history.next_deadline().into_iter().chain(seats.until));
        let warm_ups = self.ports.values().filter_map(|p| p.warm_ups.as_ref()?.1);
        left.chain(seats).chain(warm_ups).min()
    }
}

/// A target that an operator drained with `tidegate drain`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DrainTarget {
    /// An endpoint, at one port or at all of them.
    Backend(IpAddr, Option<u16>),
    /// Every endpoint on a node.
    Node(String),
}

impl DrainTarget {
    /// Whether an endpoint is covered.
    #[must_use]
    pub fn covers(&self, ip: IpAddr, port: u16, node: Option<&str>) -> bool {
        match self {
            Self::Backend(address, None) => *address == ip,
            Self::Backend(address, Some(only)) => *address == ip && *only == port,
            Self::Node(name) => node == Some(name),
        }
    }
}

impl std::str::FromStr for DrainTarget {
    type Err = String;

    /// Reads `10.0.0.1:80`, `[2001:db8::1]:80`, `10.0.0.1`, `2001:db8::1`, or a node's name. An IPv4-mapped IPv6
    /// address is read as the IPv4 address in it, because endpoints never have the mapped form.
    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(address) = text.parse::<SocketAddr>() {
            return Ok(Self::Backend(address.ip().to_canonical(), Some(address.port())));
        }
        if let Ok(ip) = text.trim_matches(['[', ']']).parse::<IpAddr>() {
            return Ok(Self::Backend(ip.to_canonical(), None));
        }
        if tidegate_model::yaml::text::is_rfc1123_subdomain(text) {
            return Ok(Self::Node(text.to_owned()));
        }
        Err(format!(
            "{text:?} is neither a backend nor a node; accepted: ADDRESS:PORT, ADDRESS, or the name of a node"
        ))
    }
}

impl std::fmt::Display for DrainTarget {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Backend(ip, Some(port)) => SocketAddr::new(*ip, *port).fmt(f),
            Self::Backend(ip, None) => ip.fmt(f),
            Self::Node(name) => f.write_str(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_spec::Protocol;

    use super::*;

    #[test]
    fn backends_of_an_earlier_process_are_kept_for_the_same_service_only() {
        let [stays, left] = ["10.0.0.1:80", "10.0.0.2:80"].map(|one| one.parse().expect("an address"));
        let key = ServiceKey { vip: IpAddr::from([203, 0, 113, 1]), protocol: Protocol::Tcp, port: 80 };
        let (owner, backends) = (owner_mark("shop", "web"), vec![stays, left]);
        let ended = Duration::ZERO;
        let earlier = Drains::of_earlier([EarlierPort { key, owner, backends, seats: Vec::new(), ended }]);
        let kept = |name: &str, previous: &Drains, at: u64| {
            let owner = ObjectKey::new("shop", name);
            let listed = [stays].into();
            let port =
                PortNow { key, owner: &owner, listed, drain_timeout: Duration::from_secs(300), kept_max: 8 };
            let mut drains = Drains::default();
            let kept = drains.step(previous, &port, Duration::from_secs(at));
            (kept, drains)
        };
        assert_eq!(kept("other", &earlier, 1).0, []);
        let (first, next) = kept("web", &earlier, 1);
        assert_eq!(first, [left]);
        assert_eq!(kept("web", &next, 300).0, [left]);
        assert_eq!(kept("web", &next, 301).0, [], "the drain timeout began with this process");
    }

    #[test]
    fn seats_that_changed_before_or_during_a_restart_are_followed() {
        let [left, leaves, stays] = [1, 2, 3].map(|n| SocketAddr::from(([10, 0, 0, n], 80)));
        let key = ServiceKey { vip: IpAddr::from([203, 0, 113, 1]), protocol: Protocol::Tcp, port: 80 };
        let seat = |backend, weight, former| EarlierWeight {
            backend,
            weight,
            former,
            ago: Duration::from_secs(100),
        };
        let seats = vec![seat(left, 0, 1), seat(leaves, 1, 1), seat(stays, 1, 1)];
        let (owner, backends) = (owner_mark("shop", "web"), vec![left, leaves, stays]);
        let port = EarlierPort { key, owner, backends, seats, ended: Duration::from_secs(60) };
        let long_ago = Drains::of_earlier([EarlierPort { ended: Duration::from_secs(299), ..port.clone() }]);
        let earlier = Drains::of_earlier([port]);
        let former = |previous: &Drains, follows: bool, at: u64| {
            let (owner, now) = (ObjectKey::new("shop", "web"), Duration::from_secs(at));
            let drain_timeout = Duration::from_secs(300);
            let port = PortNow { key, owner: &owner, listed: [stays].into(), drain_timeout, kept_max: 8 };
            let mut drains = Drains::default();
            drains.step(previous, &port, now);
            let former = drains.step_seats(previous, &key, follows, [(stays, 1)].into(), now);
            (former, drains)
        };
        assert!(earlier.has_seats(&key));
        let (first, next) = former(&earlier, true, 1);
        assert_eq!(first, [(left, 1), (leaves, 1)]);
        assert_eq!(former(&next, true, 200).0, [(leaves, 1)]);
        assert_eq!(former(&next, true, 240).0, []);
        assert_eq!(former(&long_ago, true, 1).0, [(left, 1)], "its peers may have seen the change 300 s ago");
        assert_eq!(
            former(&earlier, false, 1).0,
            [(left, 1), (leaves, 1)],
            "with always for a drain timeout more"
        );
    }
}
