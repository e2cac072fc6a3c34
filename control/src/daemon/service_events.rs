//! Records what changes from round to round: Services, their VIPs and backends. Remembers since when each is in its
//! state.
//!
//! Only Services whose view has changed are compared. The first round records nothing but the start: a restart is not
//! a change of every Service.
//!
//! Invariant: a Service that appears or goes is one event, whatever it contains.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_events::{Event, Field, ObjectKind, Reason};
use tidegate_model::objects::ObjectKey;
use tidegate_policy::reconcile::view::{BackendView, BackendWhy, PortView, ServiceView};

/// What was known after the last round.
#[derive(Debug, Default)]
pub(super) struct ServiceEvents {
    services: BTreeMap<ObjectKey, Known>,
    has_begun: bool,
}

/// A Service of the last round.
#[derive(Debug)]
struct Known {
    view: Arc<ServiceView>,
    /// When this process saw it first.
    seen: Timestamp,
    /// Since when it has been in its state.
    since: Timestamp,
    backends: BTreeMap<SocketAddr, Backend>,
}

/// A backend, over all ports and VIPs of its Service that use it.
#[derive(Debug, Clone, Copy)]
struct Backend {
    condition: Condition,
    since: Timestamp,
}

/// What matters about the state of a backend. If its ports differ, the first in this order counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Condition {
    /// It accepts new flows.
    Up,
    /// It fails its checks, is not ready, or cannot be reached.
    Down,
    /// It keeps its flows and gets no new ones.
    Draining,
    /// It could serve, but topology hints select others.
    Unused,
    /// It is no longer listed.
    Removed,
}

impl Condition {
    fn of(why: BackendWhy) -> Self {
        match why {
            BackendWhy::Ready | BackendWhy::TerminatingChosen => Self::Up,
            BackendWhy::NotReady | BackendWhy::Unhealthy | BackendWhy::FailOpen | BackendWhy::NoNextHop => {
                Self::Down
            }
            BackendWhy::Terminating | BackendWhy::Drained | BackendWhy::WeightZero => Self::Draining,
            BackendWhy::OtherZone | BackendWhy::OtherNode => Self::Unused,
            BackendWhy::Removed => Self::Removed,
        }
    }
}

/// Since when a Service is in its state, for display.
#[derive(Debug, Clone, Default)]
pub(super) struct Since {
    /// When this process saw it first.
    pub(super) seen: Option<Timestamp>,
    /// Since when it has been in its state.
    pub(super) state: Option<Timestamp>,
    backends: BTreeMap<SocketAddr, Timestamp>,
}

impl Since {
    /// Since when a backend of the Service has been in its state.
    pub(super) fn backend(&self, backend: &BackendView) -> Option<Timestamp> {
        self.backends.get(&SocketAddr::new(backend.address, backend.port)).copied()
    }
}

impl ServiceEvents {
    /// Compares with the last round, and returns what changed. `is_deleted`: whether the object of a Service that is no
    /// longer served is gone.
    #[must_use]
    pub(super) fn update(
        &mut self,
        services: &[Arc<ServiceView>],
        is_deleted: impl Fn(&ObjectKey) -> bool,
        now: Timestamp,
    ) -> Vec<Event> {
        let (mut events, mut before) = (Vec::new(), std::mem::take(&mut self.services));
        for view in services {
            let key = ObjectKey::new(view.namespace.as_str(), view.name.as_str());
            let known = match before.remove(&key) {
                Some(known) if Arc::ptr_eq(&known.view, view) => known,
                Some(known) => known.changed(view, now, &mut events),
                None => {
                    if self.has_begun {
                        events.push(added(view));
                    }
                    Known { view: Arc::clone(view), seen: now, since: now, backends: backends(view, now) }
                }
            };
            self.services.insert(key, known);
        }
        for (key, known) in before {
            events.push(withdrawn(&known.view, is_deleted(&key)));
        }
        if !std::mem::replace(&mut self.has_begun, true) {
            events.push(Event::of_gateway(Reason::GatewayStarted, "forwarding"));
        }
        events
    }

    /// Since when a Service and its backends are in their states.
    pub(super) fn since(&self, key: &ObjectKey) -> Since {
        let Some(known) = self.services.get(key) else { return Since::default() };
        Since {
            seen: Some(known.seen),
            state: Some(known.since),
            backends: known.backends.iter().map(|(&address, backend)| (address, backend.since)).collect(),
        }
    }
}

impl Known {
    fn changed(self, view: &Arc<ServiceView>, now: Timestamp, events: &mut Vec<Event>) -> Self {
        let (vips, vips_before) = (addresses(view), addresses(&self.view));
        for vip in vips.difference(&vips_before) {
            events.push(of_vip(Reason::VipAdded, *vip, view, "the Service has a new VIP"));
        }
        for vip in vips_before.difference(&vips) {
            events.push(of_vip(Reason::VipRemoved, *vip, view, "the Service no longer has the VIP"));
        }
        let changed = difference(&self.view, view);
        if !changed.is_empty() {
            let message = format!("the Service changed: {}", changed.join(", "));
            let event = Event::new(Reason::ServiceChanged, ObjectKind::Service, &label(view), &message);
            let why = view.refused.as_ref().or(view.pending.as_ref());
            let why = why.map_or("", String::as_str);
            events.push(event.text(Field::Changed, changed.join(",")).text(Field::Reason, why));
        }
        fail_open(&self.view, view, events);
        let mut backends = backends(view, now);
        compare_backends(&self.backends, &mut backends, view, events);
        let is_same_state = changed.is_empty() && vips == vips_before;
        let since = if is_same_state { self.since } else { now };
        Self { view: Arc::clone(view), seen: self.seen, since, backends }
    }
}

/// `namespace/name`.
fn label(view: &ServiceView) -> String {
    format!("{}/{}", view.namespace, view.name)
}

fn addresses(view: &ServiceView) -> BTreeSet<IpAddr> {
    view.vips.iter().map(|vip| vip.address).collect()
}

fn added(view: &ServiceView) -> Event {
    let event = Event::new(Reason::ServiceAdded, ObjectKind::Service, &label(view), "the Service was added");
    let count = backends(view, Timestamp::UNIX_EPOCH).len() as u64;
    let why = view.refused.as_ref().or(view.pending.as_ref()).map_or("", String::as_str);
    event.text(Field::Vips, vips(view)).number(Field::Backends, count).text(Field::Reason, why)
}

fn withdrawn(view: &ServiceView, is_deleted: bool) -> Event {
    let why = if is_deleted { "it was deleted" } else { "it no longer requests an address of this gateway" };
    let message = format!("the Service was withdrawn: {why}");
    let event = Event::new(Reason::ServiceWithdrawn, ObjectKind::Service, &label(view), &message);
    event.text(Field::Vips, vips(view)).text(Field::Reason, why)
}

fn vips(view: &ServiceView) -> String {
    let vips: Vec<String> = addresses(view).iter().map(ToString::to_string).collect();
    vips.join(",")
}

fn of_vip(reason: Reason, vip: IpAddr, view: &ServiceView, message: &str) -> Event {
    let pool = view.vips.iter().find(|one| one.address == vip).map_or("", |vip| vip.pool.as_str());
    let event = Event::new(reason, ObjectKind::Vip, &vip.to_string(), message);
    event.of_service(&view.namespace, &view.name).text(Field::Pool, pool)
}

/// What differs between two views of a Service, apart from VIPs and backends.
fn difference(before: &ServiceView, now: &ServiceView) -> Vec<&'static str> {
    let ports = |view: &ServiceView| -> BTreeSet<(u16, &str, String)> {
        view.ports.iter().map(|port| (port.port, port.protocol.as_str(), port.name.clone())).collect()
    };
    let refused = |view: &ServiceView| -> BTreeSet<(u16, &str, String)> {
        let refused = view.ports.iter().filter_map(|port| Some((port, port.refused.as_ref()?)));
        refused.map(|(port, why)| (port.port, port.protocol.as_str(), why.message.clone())).collect()
    };
    let parts = [
        ("type", before.service_type != now.service_type),
        ("ports", ports(before) != ports(now)),
        ("mode", before.mode != now.mode),
        ("pending", before.pending != now.pending),
        ("refused", before.refused != now.refused || refused(before) != refused(now)),
        ("warnings", before.warnings != now.warnings),
        ("bgp", before.bgp != now.bgp),
    ];
    parts.into_iter().filter_map(|(part, differs)| differs.then_some(part)).collect()
}

/// Records ports whose backends all fail their checks, and ports where this has ended.
fn fail_open(before: &ServiceView, now: &ServiceView, events: &mut Vec<Event>) {
    let open = |view: &ServiceView| -> BTreeSet<(u16, &str)> {
        let open = view.ports.iter().filter(|port| port.fail_open);
        open.map(|port: &PortView| (port.port, port.protocol.as_str())).collect()
    };
    let (before, open_now) = (open(before), open(now));
    let event = |reason, (port, protocol): &(u16, &str), message| {
        let event = Event::new(reason, ObjectKind::Service, &label(now), message);
        event.text(Field::Port, format!("{port}/{protocol}"))
    };
    for port in open_now.difference(&before) {
        let message = "all backends of the port fail their checks: the gateway keeps using all of them";
        events.push(event(Reason::FailOpenBegun, port, message));
    }
    for port in before.difference(&open_now) {
        events.push(event(
            Reason::FailOpenEnded,
            port,
            "the port no longer uses backends that fail their checks",
        ));
    }
}

/// The distinct backends of a Service.
fn backends(view: &ServiceView, now: Timestamp) -> BTreeMap<SocketAddr, Backend> {
    let mut backends: BTreeMap<SocketAddr, Backend> = BTreeMap::new();
    for one in view.ports.iter().flat_map(|port| &port.backends) {
        let condition = Condition::of(one.why);
        let backend = backends.entry(SocketAddr::new(one.address, one.port));
        let backend = backend.or_insert(Backend { condition, since: now });
        backend.condition = backend.condition.min(condition);
    }
    backends
}

/// Records changed backends, and keeps the time of the others.
fn compare_backends(
    before: &BTreeMap<SocketAddr, Backend>,
    now: &mut BTreeMap<SocketAddr, Backend>,
    view: &ServiceView,
    events: &mut Vec<Event>,
) {
    let left = now.values().filter(|backend| backend.condition == Condition::Up).count();
    let listed = now.values().filter(|backend| backend.condition != Condition::Removed).count();
    let mut push = |reason, address: SocketAddr, what: &str, why: &str| {
        let colon = if why.is_empty() { "" } else { ": " };
        let message = format!("{what}{colon}{why}; {left} of {listed} left");
        let event = Event::new(reason, ObjectKind::Backend, &address.to_string(), &message);
        let event = event.of_service(&view.namespace, &view.name).text(Field::Reason, why);
        events.push(event.number(Field::Left, left as u64).number(Field::Backends, listed as u64));
    };
    for (&address, backend) in now.iter_mut() {
        let was = before.get(&address);
        if let Some(was) = was.filter(|was| was.condition == backend.condition) {
            backend.since = was.since;
            continue;
        }
        let was = was.map_or(Condition::Removed, |was| was.condition);
        match (was, backend.condition) {
            (Condition::Removed, Condition::Removed) | (_, Condition::Unused) => {}
            (Condition::Unused, Condition::Up) => {}
            (_, Condition::Removed) => push(Reason::BackendRemoved, address, "backend removed", ""),
            (Condition::Removed, Condition::Up | Condition::Draining) => {
                push(Reason::BackendAdded, address, "backend added", "");
            }
            (_, Condition::Up) => push(Reason::BackendUp, address, "backend up", ""),
            (_, Condition::Down) => push(Reason::BackendDown, address, "backend down", &why(view, address)),
            (_, Condition::Draining) => {
                push(Reason::BackendDraining, address, "backend draining", &why(view, address));
            }
        }
    }
    for (&address, _) in before
        .iter()
        .filter(|(address, was)| was.condition != Condition::Removed && !now.contains_key(*address))
    {
        push(Reason::BackendRemoved, address, "backend removed", "");
    }
}

/// Why a backend gets no new flows, or not by its own merit.
fn why(view: &ServiceView, address: SocketAddr) -> String {
    let mut all = view.ports.iter().flat_map(|port| &port.backends);
    let one = all.find(|one| SocketAddr::new(one.address, one.port) == address);
    let Some(one) = one else { return String::new() };
    let text = match one.why {
        BackendWhy::Unhealthy | BackendWhy::FailOpen => {
            let failure = one.health.failure.as_deref().unwrap_or("failed");
            return format!("health check: {failure}");
        }
        BackendWhy::NotReady => "not ready",
        BackendWhy::NoNextHop => "the gateway has no capacity for its next hop",
        BackendWhy::Terminating => "terminating",
        BackendWhy::Drained => "drained by the operator",
        BackendWhy::WeightZero => "weight 0",
        _ => "",
    };
    text.to_owned()
}

#[cfg(test)]
mod tests {
    use tidegate_policy::reconcile::view::{BackendViewState, HealthState, HealthView, VipKind, VipView};
    use tidegate_spec::ForwardingMode;

    use super::*;
    use crate::views_testing;

    const VIP: &str = "203.0.113.1";

    fn backend(address: &str, why: BackendWhy) -> BackendView {
        let state = match Condition::of(why) {
            Condition::Up => BackendViewState::Active,
            _ => BackendViewState::Down,
        };
        let failure = (why == BackendWhy::Unhealthy).then(|| "connection refused".to_owned());
        let health = HealthView { state: HealthState::Failing, failure, damping: 0 };
        BackendView { why, health, ..views_testing::backend(address, state) }
    }

    fn service(backends: Vec<BackendView>) -> ServiceView {
        let port = views_testing::port(VIP, ForwardingMode::Nat, backends);
        let vip = VipView {
            address: VIP.parse().expect("an address"),
            kind: VipKind::LoadBalancer,
            pool: "public".to_owned(),
            edge: Default::default(),
        };
        ServiceView { vips: vec![vip], ..views_testing::service("web", vec![port]) }
    }

    fn three(why: BackendWhy) -> Vec<BackendView> {
        let others = ["10.0.0.2:8080", "10.0.0.3:8080"].map(|address| backend(address, BackendWhy::Ready));
        [backend("10.0.0.1:8080", why)].into_iter().chain(others).collect()
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("in range")
    }

    /// The reasons and objects of the events of one round.
    fn round(events: &mut ServiceEvents, services: Vec<ServiceView>, second: i64) -> Vec<(Reason, String)> {
        let services: Vec<_> = services.into_iter().map(Arc::new).collect();
        let found = events.update(&services, |_| true, at(second));
        found.into_iter().map(|event| (event.reason, event.object.name)).collect()
    }

    #[test]
    fn a_failed_backend_is_one_event_with_its_reason_and_what_is_left() {
        let mut events = ServiceEvents::default();
        let started = round(&mut events, vec![service(three(BackendWhy::Ready))], 1);
        assert_eq!(started, [(Reason::GatewayStarted, String::new())]);
        let failed = [Arc::new(service(three(BackendWhy::Unhealthy)))];
        let down = events.update(&failed, |_| true, at(2));
        let [down] = &down[..] else { panic!("{down:?}") };
        assert_eq!(down.reason, Reason::BackendDown);
        assert_eq!(down.message, "backend down: health check: connection refused; 2 of 3 left");
        assert!(events.update(&failed, |_| true, at(3)).is_empty(), "nothing changed");
        let key = ObjectKey::new("shop", "web");
        assert_eq!(events.since(&key).backend(&failed[0].ports[0].backends[0]), Some(at(2)));
        assert_eq!(events.since(&key).backend(&failed[0].ports[0].backends[1]), Some(at(1)));
        let up = round(&mut events, vec![service(three(BackendWhy::Ready))], 4);
        assert_eq!(up, [(Reason::BackendUp, "10.0.0.1:8080".to_owned())]);
    }

    #[test]
    fn a_service_that_appears_or_goes_is_one_event() {
        let mut events = ServiceEvents::default();
        round(&mut events, Vec::new(), 1);
        let added = round(&mut events, vec![service(three(BackendWhy::Ready))], 2);
        assert_eq!(added, [(Reason::ServiceAdded, "shop/web".to_owned())]);
        let key = ObjectKey::new("shop", "web");
        assert_eq!((events.since(&key).seen, events.since(&key).state), (Some(at(2)), Some(at(2))));
        let withdrawn = round(&mut events, Vec::new(), 3);
        assert_eq!(withdrawn, [(Reason::ServiceWithdrawn, "shop/web".to_owned())]);
        assert_eq!(events.since(&key).seen, None);
    }

    #[test]
    fn changed_vips_ports_and_backends_are_named() {
        let mut events = ServiceEvents::default();
        round(&mut events, vec![service(three(BackendWhy::Ready))], 1);
        let mut other = service(three(BackendWhy::Ready));
        other.vips[0].address = "203.0.113.2".parse().expect("an address");
        other.ports[0].port += 1;
        other.ports[0].fail_open = true;
        other.ports[0].backends.remove(0);
        let changes = round(&mut events, vec![other], 2);
        let named = |reason, name: &str| (reason, name.to_owned());
        assert_eq!(
            changes,
            [
                named(Reason::VipAdded, "203.0.113.2"),
                named(Reason::VipRemoved, VIP),
                named(Reason::ServiceChanged, "shop/web"),
                named(Reason::FailOpenBegun, "shop/web"),
                named(Reason::BackendRemoved, "10.0.0.1:8080"),
            ]
        );
        // A removed backend that is kept until its flows have ended is removed once.
        let kept = vec![service(three(BackendWhy::Removed))];
        round(&mut events, kept, 3);
        let gone = round(&mut events, vec![service(three(BackendWhy::Ready)[1..].to_vec())], 4);
        assert_eq!(gone, []);
    }
}
