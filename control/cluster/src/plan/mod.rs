//! Plans the writes to the API server, as a pure function: there is no write if nothing differs.
//!
//! [`plan`] compares the last round of the controller with what the API server has of Services and AddressPools, and
//! gives the writes that bring them together, the events that tell about it, and what to remember. It never writes
//! and never reads a clock; the executor does both and calls again with every change.
//!
//! - [`service`]: finalizer, status and conditions of one Service, from its first address to its last;
//! - [`condition`]: what the conditions say, and since when;
//! - [`contest`]: somebody else writes the same status;
//! - [`peer`]: what the other gateways say of a Service;
//! - [`pool`], [`gateway`]: the status of the kinds of our own.
//!
//! Invariant: writes that are done and seen are not planned again (a tested property).
//! Invariant: an AddressPool carries our finalizer while Services hold addresses of it.
//! Invariant: an address is in a status only while the Service carries our finalizer, and the finalizer goes only when
//! every live gateway has withdrawn.

mod condition;
mod gateway;
mod peer;
mod pool;
mod service;
mod status_conflict;

#[cfg(test)]
mod tests;

pub use gateway::{ADDRESSES_MAX, SERVICES_MAX, VIPS_MAX, gateway_status};
pub use peer::Peer;
pub use status_conflict::StatusConflict;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_model::objects::{Condition, Ingress, ObjectKey, Objects, Service};
use tidegate_policy::reconcile::view::ServiceView;
use tidegate_policy::reconcile::{Finding, ObjectKind, Outcome};

use super::crd;
use super::event::{Event, EventType, Regarding};
use super::words::event_reason;

/// What one round of the controller came to.
#[derive(Debug, Clone)]
pub struct Observation {
    /// What the source has.
    pub objects: Arc<Objects>,
    /// The version of its Services: [`SourceUpdate::version`](tidegate_source::SourceUpdate::version).
    pub version: u64,
    /// That of the newest Services that all workers forward by.
    pub version_applied: u64,
    /// They forward by Services beside these, which the API server lost.
    pub keeps_services: bool,
    /// What was made of it.
    pub outcome: Arc<Outcome>,
    /// Services by whose part of it the workers do not forward yet.
    pub unapplied: Arc<BTreeSet<ObjectKey>>,
    /// Why the workers cannot have it: the last good state keeps forwarding.
    pub publish_failure: Option<String>,
    /// Whether it was made by a gateway that decides on addresses.
    pub decides: bool,
    /// The version that every gateway has to apply before all free addresses can be given out; `None` when they can.
    pub waits_for: Option<u64>,
    /// The gateway's own addresses.
    pub own_addresses: BTreeSet<IpAddr>,
    /// Generation of the newest desired state.
    pub generation_desired: u64,
    /// Generation that all workers forward by.
    pub generation_applied: u64,
    /// Whether the gateway is ready to take flows.
    pub ready: bool,
    /// Interfaces that cannot carry packets.
    pub links_lost: Vec<String>,
    /// Whether the source hears the API server.
    pub source_connected: bool,
    /// What this gateway could not do, whatever the others do: health-check node ports that it cannot bind.
    pub own_findings: Vec<Finding>,
}

/// Who a gateway is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// `metadata.name` of its configuration.
    pub name: String,
    /// This run of it.
    pub instance: String,
    /// Its node, if it runs on one.
    pub node: Option<String>,
}

/// All that a plan follows from.
#[derive(Debug, Clone, Copy)]
pub struct Situation<'a> {
    /// The last round.
    pub observation: &'a Observation,
    /// Who we are.
    pub identity: &'a Identity,
    /// Whether we lead.
    pub leads: bool,
    /// The version of Services that every live gateway has applied, this one too.
    pub withdrawn: u64,
    /// The other live gateways.
    pub peers: &'a [Peer],
    /// Another process has this gateway's name: which, for people.
    pub namesake: Option<&'a str>,
    /// Why this gateway does not lead whatever the others do, for people.
    pub hindrance: Option<&'a str>,
    /// Now.
    pub now: Timestamp,
}

/// What one plan leaves to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Since when conditions are as they are, for what is written and not seen yet.
    pub(super) since: BTreeMap<(ObjectKey, String), (String, Timestamp)>,
    /// Statuses that somebody else writes.
    pub(super) contests: BTreeMap<ObjectKey, StatusConflict>,
    /// Events that were told and are still true.
    told: BTreeSet<Event>,
    /// Services that give their addresses back, by uid: the version in which they were first seen to.
    leaving: BTreeMap<String, Leaving>,
    /// What the owners of Services ask for.
    asked: BTreeMap<ObjectKey, Asked>,
    /// Services that wait for other gateways: since when.
    waiting: BTreeMap<ObjectKey, Timestamp>,
    /// When the last plan was made.
    planned: Timestamp,
    /// The API server is from before Kubernetes 1.29 and refuses a status with `ipMode`.
    without_ip_mode: bool,
    /// Services about which there was nothing to do, with all that this followed from: while that is the same, they are
    /// passed over.
    settled: BTreeMap<ObjectKey, Settled>,
}

/// See [`Memory::settled`]. Of Services that nobody was told anything about: findings have to be told again and again.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Settled {
    service: Arc<Service>,
    view: Option<Arc<ServiceView>>,
    claimed: bool,
    /// Of what the other gateways say.
    around: u64,
}

impl Settled {
    fn is_still(
        &self,
        service: &Arc<Service>,
        view: Option<&Arc<ServiceView>>,
        claimed: bool,
        around: u64,
    ) -> bool {
        let same_view = match (&self.view, view) {
            (Some(was), Some(is)) => Arc::ptr_eq(was, is),
            (None, None) => true,
            _ => false,
        };
        same_view && (self.claimed, self.around) == (claimed, around) && Arc::ptr_eq(&self.service, service)
    }
}

/// A Service that gives its addresses back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leaving {
    key: ObjectKey,
    since: u64,
}

/// What the owner of a Service asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Asked {
    uid: String,
    /// A number for it.
    what: u64,
    /// The version of the Services in which it was first seen, and when; 0 where it was served before.
    version: u64,
    since: Timestamp,
    /// It is another than before, and its owner was not told yet that it is served.
    is_news: bool,
}

impl Memory {
    /// It is this time. Where the clock was set back, what began later than now begins now: nothing waits for longer than
    /// it would have waited.
    fn tick(&mut self, now: Timestamp) {
        if now < self.planned {
            self.waiting.values_mut().for_each(|since| *since = (*since).min(now));
            self.asked.values_mut().for_each(|asked| asked.since = asked.since.min(now));
            self.contests.values_mut().for_each(|contest| contest.set_back(now));
        }
        self.planned = now;
    }

    /// From now on no `ipMode` is written. Whether that is news.
    pub fn leave_out_ip_mode(&mut self) -> bool {
        self.settled.clear();
        !std::mem::replace(&mut self.without_ip_mode, true)
    }
}

/// Something to write.
#[derive(Debug, Clone, PartialEq)]
pub enum Write {
    /// Our finalizer on a Service.
    Finalizer {
        /// Whose.
        service: ObjectKey,
        /// Its uid: another object of the name is not meant.
        uid: String,
        /// On it, or off.
        present: bool,
    },
    /// Our part of a Service's status.
    ServiceStatus {
        /// Whose.
        service: ObjectKey,
        /// Its uid.
        uid: String,
        /// `loadBalancer.ingress`; `None` leaves it to others.
        ingress: Option<Vec<Ingress>>,
        /// Our conditions.
        conditions: Vec<Condition>,
    },
    /// Our finalizer on an AddressPool.
    PoolFinalizer {
        /// Its name.
        pool: String,
        /// Its uid: another object of the name is not meant.
        uid: String,
        /// On it, or off.
        present: bool,
    },
    /// The status of an AddressPool.
    PoolStatus {
        /// Its name.
        pool: String,
        /// The whole of it.
        status: crd::AddressPoolStatus,
    },
}

/// What is to be done.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Plan {
    /// Writes, the most urgent first: what is given back, then what changed, then what is new.
    pub writes: Vec<Write>,
    /// Events that are new.
    pub events: Vec<Event>,
    /// When to plan again though nothing changes.
    pub again_at: Option<Timestamp>,
    /// Whether something waits for other gateways to withdraw.
    pub waits_for_peers: bool,
}

/// Plans. Only the leader has writes, and events about more than itself.
#[must_use]
pub fn plan(situation: &Situation<'_>, memory: &mut Memory) -> Plan {
    memory.tick(situation.now);
    let mut planner = Planner {
        situation,
        memory,
        plan: Plan::default(),
        events: BTreeSet::new(),
        leaving: BTreeSet::new(),
    };
    let observation = situation.observation;
    if situation.leads {
        let views = observation.outcome.services.iter();
        let views: BTreeMap<(&str, &str), &Arc<ServiceView>> =
            views.map(|view| ((view.namespace.as_str(), view.name.as_str()), view)).collect();
        let mut findings: BTreeMap<(ObjectKind, &ObjectKey), Vec<&Finding>> = BTreeMap::new();
        for finding in observation.outcome.findings.iter() {
            findings.entry((finding.kind, &finding.object)).or_default().push(finding);
        }
        let of = |kind, key| findings.get(&(kind, key)).map_or(&[][..], Vec::as_slice);
        for (key, service) in &observation.objects.services {
            let view = views.get(&(key.namespace.as_str(), key.name.as_str())).copied();
            let claimed = observation.outcome.claimed.contains_key(key);
            planner.service_unless_settled(service, view, of(ObjectKind::Service, key), claimed);
        }
        for pool in observation.objects.address_pools.values() {
            planner.pool(pool, of(ObjectKind::AddressPool, &pool.meta.key));
        }
        for ((kind, key), findings) in &findings {
            planner.of_others(*kind, key, findings);
        }
        planner.plan.writes.sort_by_key(urgency);
    } else {
        planner.memory.contests.clear();
        planner.leaderless();
    }
    for finding in &observation.own_findings {
        let uid = observation.objects.services.get(&finding.object).map(|s| s.meta.uid.clone());
        let regarding = Regarding::service(&finding.object, uid.unwrap_or_default());
        planner.event(Event::of_finding(regarding, finding));
    }
    planner.finish()
}

/// Who leads needs less than this to give a Service an address, or to say why it has none.
const LEADER_MAX: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);
/// A wait for other gateways that is shorter than this is no event.
const WAIT_TOLD_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);

/// Least first.
fn urgency(write: &Write) -> u8 {
    match write {
        Write::Finalizer { present: false, .. } | Write::PoolFinalizer { .. } => 0,
        Write::ServiceStatus { ingress: None, .. } => 1,
        Write::ServiceStatus { .. } | Write::PoolStatus { .. } => 2,
        Write::Finalizer { present: true, .. } => 3,
    }
}

/// A plan being made.
struct Planner<'a> {
    situation: &'a Situation<'a>,
    memory: &'a mut Memory,
    plan: Plan,
    events: BTreeSet<Event>,
    /// Uids of the Services that give their addresses back.
    leaving: BTreeSet<String>,
}

impl Planner<'_> {
    /// Plans for one Service, if something about it is another since there was nothing to do.
    fn service_unless_settled(
        &mut self,
        service: &Arc<Service>,
        view: Option<&Arc<ServiceView>>,
        findings: &[&Finding],
        claimed: bool,
    ) {
        let key = &service.meta.key;
        let Situation { observation, peers, .. } = self.situation;
        let unapplied = observation.unapplied.contains(key);
        let around = peer::fingerprint(peers, key);
        let settled = self.memory.settled.get(key);
        if findings.is_empty()
            && !unapplied
            && settled.is_some_and(|settled| settled.is_still(service, view, claimed, around))
        {
            return;
        }
        let before = (self.plan.writes.len(), self.events.len());
        let view_of = view.map(|view| &**view);
        self.service(&service::OfService { service, view: view_of, findings, claimed, unapplied });
        // What hangs on the time or on other gateways is not settled either.
        let asked_in = self.memory.asked.get(key).map_or(0, |asked| asked.version);
        let is_settled = (self.plan.writes.len(), self.events.len()) == before
            && findings.is_empty()
            && !unapplied
            && peers.iter().all(|peer| peer.applied >= asked_in)
            && !self.memory.waiting.contains_key(key)
            && !self.memory.contests.contains_key(key)
            && !self.leaving.contains(&service.meta.uid)
            && service.meta.deletion_time.is_none()
            && (claimed || !service.stored.is_finalized_by_us());
        if is_settled {
            let settled = Settled { service: Arc::clone(service), view: view.cloned(), claimed, around };
            self.memory.settled.insert(key.clone(), settled);
        } else {
            self.memory.settled.remove(key);
        }
    }

    /// What its owner asks of a Service, noted with the version in which it was first seen.
    fn asked(&mut self, service: &Service) -> &mut Asked {
        let Situation { observation, now, .. } = self.situation;
        let what = peer::asked(service);
        // Written by us before: it was served, by whoever decided then.
        let is_served = service.stored.condition(condition::PROGRAMMED).is_some_and(|c| c.status == "True");
        let uid = &service.meta.uid;
        if self.memory.asked.get(&service.meta.key).is_some_and(|asked| asked.uid != *uid) {
            self.memory.asked.remove(&service.meta.key);
        }
        let asked = self.memory.asked.entry(service.meta.key.clone()).or_insert_with(|| Asked {
            uid: uid.clone(),
            what,
            version: if is_served { 0 } else { observation.version },
            since: *now,
            is_news: false,
        });
        if asked.what != what {
            (asked.what, asked.is_news) = (what, true);
            (asked.version, asked.since) = (observation.version, *now);
        }
        asked
    }

    /// A Service waits for other gateways to apply `version`: whoever it is that keeps it waiting is named, and where it
    /// takes long, in an event too.
    fn waits(&mut self, service: &Service, version: u64) -> Option<String> {
        let Situation { now, peers, .. } = self.situation;
        let names = peer::behind(peers, version);
        let key = &service.meta.key;
        let since = *self.memory.waiting.entry(key.clone()).or_insert(*now);
        if names.is_empty() {
            return None;
        }
        if now.duration_since(since) >= WAIT_TOLD_AFTER {
            let note = format!("Waiting until every gateway has withdrawn the released address: {names}");
            let regarding = Regarding::service(key, service.meta.uid.as_str());
            self.event(Event::new(EventType::Normal, regarding, event_reason::WAITING, &note));
        } else {
            self.again_at(since + WAIT_TOLD_AFTER);
        }
        Some(names)
    }

    /// Nobody else may lead either: a Service that has waited for long, and has no word from anybody who leads, is told why
    /// by those that cannot.
    fn leaderless(&mut self) {
        let Situation { observation, hindrance, now, .. } = self.situation;
        let services = &observation.objects.services;
        let is_told = |service: &Service| service.stored.condition(condition::ALLOCATED).is_some();
        let mut waiting = BTreeMap::new();
        for view in observation.outcome.services.iter().filter(|view| view.pending.is_some()) {
            let Some(hindrance) = hindrance else { break };
            let key = ObjectKey::new(view.namespace.as_str(), view.name.as_str());
            let is_ours = observation.outcome.claimed.contains_key(&key);
            let service = services.get(&key).filter(|service| is_ours && !is_told(service));
            let Some(service) = service else { continue };
            let since = self.memory.waiting.get(&key).copied().unwrap_or(*now);
            if now.duration_since(since) >= LEADER_MAX {
                let note = format!(
                    "No gateway leads, so none can assign an address to the Service. A gateway that cannot lead reports: \
                     {hindrance}"
                );
                let regarding = Regarding::service(&key, service.meta.uid.as_str());
                self.event(Event::new(EventType::Warning, regarding, event_reason::NO_LEADER, &note));
            } else {
                self.again_at(since + LEADER_MAX);
            }
            waiting.insert(key, since);
        }
        self.memory.waiting = waiting;
    }

    fn event(&mut self, event: Event) {
        self.events.insert(event);
    }

    /// Nothing is written on Pods, Nodes and EndpointSlices; what they asked for and did not get is told there all the
    /// same.
    fn of_others(&mut self, kind: ObjectKind, key: &ObjectKey, findings: &[&Finding]) {
        let objects = &self.situation.observation.objects;
        let meta = match kind {
            ObjectKind::Pod => objects.pods.get(key).map(|pod| &pod.meta),
            ObjectKind::Node => objects.nodes.get(&key.name).map(|node| &node.meta),
            ObjectKind::EndpointSlice => objects.endpoint_slices.get(key).map(|slice| &slice.meta),
            ObjectKind::Service | ObjectKind::AddressPool => None,
        };
        let Some(meta) = meta else { return };
        for finding in findings {
            let regarding = Regarding::asker(kind, key, meta.uid.as_str());
            self.event(Event::of_finding(regarding, finding));
        }
    }

    /// Plans again at `at` at the latest.
    fn again_at(&mut self, at: Timestamp) {
        self.plan.again_at = Some(self.plan.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The version that every live gateway has to apply before a Service that gives its addresses back is withdrawn
    /// everywhere; `None` when they have.
    fn serves_until(&mut self, service: &Service) -> Option<u64> {
        let Situation { observation, withdrawn, .. } = self.situation;
        let version = observation.version;
        self.leaving.insert(service.meta.uid.clone());
        let key = || service.meta.key.clone();
        let leaving = self.memory.leaving.entry(service.meta.uid.clone());
        let leaving = leaving.or_insert_with(|| Leaving { key: key(), since: version });
        // Smaller where the API server went back.
        leaving.since = leaving.since.min(version);
        let is_withdrawn = version > 0 && *withdrawn >= leaving.since;
        (!is_withdrawn).then_some(leaving.since)
    }

    fn finish(mut self) -> Plan {
        let told = std::mem::replace(&mut self.memory.told, self.events);
        self.plan.events = self.memory.told.difference(&told).cloned().collect();
        let objects = &self.situation.observation.objects;
        let known = |key: &ObjectKey| {
            objects.services.contains_key(key) || objects.address_pools.contains_key(&key.name)
        };
        // Four conditions a Service: more than that is of Services that are gone.
        if self.memory.since.len() > 8 * objects.services.len() + 64 {
            self.memory.since.retain(|(key, _), _| known(key));
        }
        self.memory.contests.retain(|key, _| known(key));
        self.memory.waiting.retain(|key, _| known(key));
        if self.memory.asked.len() > objects.services.len() {
            self.memory.asked.retain(|key, _| known(key));
        }
        // A Service that leaves a second time is waited for a second time.
        let (leads, leave) = (self.situation.leads, &self.leaving);
        self.memory.leaving.retain(|uid, leaving| {
            let is_there = objects.services.get(&leaving.key).is_some_and(|service| service.meta.uid == *uid);
            is_there && (!leads || leave.contains(uid))
        });
        if self.memory.settled.len() > objects.services.len() {
            self.memory.settled.retain(|key, _| known(key));
        }
        self.plan
    }
}
