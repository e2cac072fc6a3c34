//! What is to be written, as a pure function of what is known: nothing where nothing differs.
//!
//! [`plan`] compares the last round of the controller with what the API server has of Services and AddressPools, and
//! gives the writes that bring them together, the events that tell about it, and what to remember. It never writes
//! and never reads a clock; the executor does both and calls again with every change.
//!
//! - [`service`]: finalizer, status and conditions of one Service, from its first address to its last;
//! - [`condition`]: what the conditions say, and since when;
//! - [`contest`]: somebody else writes the same status;
//! - [`pool`], [`gateway`]: the status of the kinds of our own.
//!
//! Invariant: writes that are done and seen are not planned again (a tested property).
//! Invariant: an address is in a status only while the Service carries our finalizer, and the finalizer goes only when
//! every live gateway has withdrawn.

mod condition;
mod contest;
mod gateway;
mod pool;
mod service;

#[cfg(test)]
mod tests;

pub use contest::Contest;
pub use gateway::{ADDRESSES_MAX, VIPS_MAX, gateway_status};

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use jiff::Timestamp;

use super::crd;
use super::event::{Event, Regarding};
use crate::model::{Condition, Ingress, ObjectKey, Objects, Service};
use crate::reconcile::view::ServiceView;
use crate::reconcile::{Asker, Finding, Outcome};

/// What one round of the controller came to.
#[derive(Debug, Clone)]
pub struct Observation {
    /// What the source has.
    pub objects: Arc<Objects>,
    /// The version of its Services: [`SourceUpdate::version`](crate::source::SourceUpdate::version).
    pub version: u64,
    /// That of the newest Services that all workers forward by.
    pub version_applied: u64,
    /// They forward by Services beside these, which the API server lost.
    pub keeps_services: bool,
    /// What was made of it.
    pub outcome: Arc<Outcome>,
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
    /// Now.
    pub now: Timestamp,
}

/// What one plan leaves to the next.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// Since when conditions are as they are, for what is written and not seen yet.
    pub(super) since: BTreeMap<(ObjectKey, String), (String, Timestamp)>,
    /// Statuses that somebody else writes.
    pub(super) contests: BTreeMap<ObjectKey, Contest>,
    /// Events that were told and are still true.
    told: BTreeSet<Event>,
    /// Services that give their addresses back, by uid: the version in which they were first seen to.
    leaving: BTreeMap<String, Leaving>,
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
}

impl Settled {
    fn is_still(&self, service: &Arc<Service>, view: Option<&Arc<ServiceView>>, claimed: bool) -> bool {
        let same_view = match (&self.view, view) {
            (Some(was), Some(is)) => Arc::ptr_eq(was, is),
            (None, None) => true,
            _ => false,
        };
        same_view && self.claimed == claimed && Arc::ptr_eq(&self.service, service)
    }
}

/// A Service that gives its addresses back.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Leaving {
    key: ObjectKey,
    since: u64,
}

impl Memory {
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
        let mut findings: BTreeMap<(Asker, &ObjectKey), Vec<&Finding>> = BTreeMap::new();
        for finding in observation.outcome.findings.iter() {
            findings.entry((finding.kind, &finding.object)).or_default().push(finding);
        }
        let of = |kind, key| findings.get(&(kind, key)).map_or(&[][..], Vec::as_slice);
        for (key, service) in &observation.objects.services {
            let view = views.get(&(key.namespace.as_str(), key.name.as_str())).copied();
            let claimed = observation.outcome.claimed.contains_key(key);
            planner.service_unless_settled(service, view, of(Asker::Service, key), claimed);
        }
        for pool in observation.objects.address_pools.values() {
            planner.pool(pool, of(Asker::AddressPool, &pool.meta.key));
        }
        for ((kind, key), findings) in &findings {
            planner.of_pods_and_nodes(*kind, key, findings);
        }
        planner.plan.writes.sort_by_key(urgency);
    } else {
        planner.memory.contests.clear();
    }
    for finding in &observation.own_findings {
        let uid = observation.objects.services.get(&finding.object).map(|s| s.meta.uid.clone());
        let regarding = Regarding::service(&finding.object, uid.unwrap_or_default());
        planner.event(Event::of_finding(regarding, finding));
    }
    planner.finish()
}

/// Least first.
fn urgency(write: &Write) -> u8 {
    match write {
        Write::Finalizer { present: false, .. } => 0,
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
        let settled = self.memory.settled.get(key);
        if findings.is_empty() && settled.is_some_and(|settled| settled.is_still(service, view, claimed)) {
            return;
        }
        let before = (self.plan.writes.len(), self.events.len());
        let view_of = view.map(|view| &**view);
        self.service(&service::OfService { service, view: view_of, findings, claimed });
        // What hangs on the time or on other gateways is not settled either.
        let is_settled = (self.plan.writes.len(), self.events.len()) == before
            && findings.is_empty()
            && !self.memory.contests.contains_key(key)
            && !self.leaving.contains(&service.meta.uid)
            && service.meta.deletion_time.is_none()
            && (claimed || !service.stored.is_finalized_by_us());
        if is_settled {
            let settled = Settled { service: Arc::clone(service), view: view.cloned(), claimed };
            self.memory.settled.insert(key.clone(), settled);
        } else {
            self.memory.settled.remove(key);
        }
    }

    fn event(&mut self, event: Event) {
        self.events.insert(event);
    }

    /// Nothing is written on Pods and Nodes; what they asked for and did not get is told there all the same.
    fn of_pods_and_nodes(&mut self, kind: Asker, key: &ObjectKey, findings: &[&Finding]) {
        let objects = &self.situation.observation.objects;
        let meta = match kind {
            Asker::Pod => objects.pods.get(key).map(|pod| &pod.meta),
            Asker::Node => objects.nodes.get(&key.name).map(|node| &node.meta),
            Asker::Service | Asker::AddressPool => None,
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

    /// Whether all live gateways have withdrawn a Service that gives its addresses back: they have applied a version
    /// in which it does.
    fn is_withdrawn(&mut self, service: &Service) -> bool {
        let Situation { observation, withdrawn, .. } = self.situation;
        let version = observation.version;
        self.leaving.insert(service.meta.uid.clone());
        let key = || service.meta.key.clone();
        let leaving = self.memory.leaving.entry(service.meta.uid.clone());
        let leaving = leaving.or_insert_with(|| Leaving { key: key(), since: version });
        // Smaller where the API server went back.
        leaving.since = leaving.since.min(version);
        version > 0 && *withdrawn >= leaving.since
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
