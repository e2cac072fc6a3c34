//! Plans the writes to the API server. Planning is a pure function, and plans no writes if nothing differs.
//!
//! [`plan`] compares the last round of the controller with the Services and AddressPools of the API server. It returns
//! the writes that remove the differences, the events that report them, and the memory for the next call. It never
//! writes and never reads a clock; `writer` does both and calls it again after every change.
//!
//! - [`service`]: finalizer, status and conditions of one Service, from its first address to its last;
//! - [`condition`]: the conditions, and their times;
//! - [`status_conflict`]: another controller writes the same status;
//! - [`peer`]: the reports of the other gateways about a Service;
//! - [`owner`]: which gateway answers for a Service's addresses on layer 2;
//! - [`pool`], [`gateway`]: the status of our own kinds;
//! - [`gateway_api`]: the status of Gateways, which are planned as Services, and of other objects of the Gateway API.
//!
//! They add to a [`Planner`]; only `service` calls the others. The inputs of a plan are in `situation` and `memory`,
//! its output is in `write`.
//!
//! Invariant: a write is not planned again once it was sent and its result was seen (a tested property). An AddressPool
//! has our finalizer while Services use its addresses. An address is in a status only while the Service has our
//! finalizer, and the finalizer is removed only when every live gateway has withdrawn the address.

mod compare;
mod condition;
mod gateway;
mod gateway_api;
mod group;
mod memory;
mod owner;
mod peer;
mod planner;
mod pool;
mod service;
mod situation;
mod status_conflict;
mod stored_condition;
mod write;

#[cfg(test)]
mod tests;

pub(crate) use compare::plan_compared;
pub(crate) use gateway::{SERVICES_MAX, gateway_status};
pub(crate) use memory::Memory;
pub(crate) use peer::Peer;
pub use situation::{DrainPhase, Forwarding, LeaseHolders, Observation};
pub(crate) use situation::{Identity, Situation};
pub(crate) use write::{Plan, Write, WrittenStatus};

use std::collections::BTreeMap;
use std::sync::Arc;

use tidegate_model::objects::{ObjectKey, Service};
use tidegate_policy::reconcile::view::ServiceView;
use tidegate_policy::reconcile::{Finding, ObjectKind};

use super::event::{Event, Regarding};
use super::reasons::event_reason;
use memory::UpToDate;
use planner::Planner;
use situation::{OfGateway, OfService};

/// Computes a plan. Only the leader's plan has writes, and events about objects other than the gateway itself.
pub(crate) fn plan(situation: &Situation<'_>, memory: &mut Memory) -> Plan {
    memory.tick(situation.now, situation.observation.version);
    let mut planner = Planner::new(situation, memory);
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
            planner.service_unless_up_to_date(service, view, of(ObjectKind::Service, key), claimed);
        }
        planner.gateway_api();
        for pool in observation.objects.address_pools.values() {
            planner.pool(pool, of(ObjectKind::AddressPool, &pool.meta.key));
        }
        for ((kind, key), findings) in &findings {
            planner.of_others(*kind, key, findings);
        }
        planner.plan.writes.sort_by_key(Write::urgency);
    } else {
        planner.memory.conflicts.clear();
        planner.leaderless();
    }
    for finding in &observation.own_findings {
        let uid = observation.objects.services.get(&finding.object).map(|s| s.meta.uid.clone());
        let regarding = Regarding::service(&finding.object, uid.unwrap_or_default());
        planner.event(Event::of_finding(regarding, finding));
    }
    planner.finish()
}

/// The time in which a leader assigns an address to a Service, or reports why it has none.
const LEADER_MAX: jiff::SignedDuration = jiff::SignedDuration::from_secs(30);

impl Planner<'_> {
    /// Plans for one Service, if any of its inputs changed since it last needed no write.
    fn service_unless_up_to_date(
        &mut self,
        service: &Arc<Service>,
        view: Option<&Arc<ServiceView>>,
        findings: &[&Finding],
        claimed: bool,
    ) {
        let key = &service.meta.key;
        let Situation { observation, peers, .. } = self.situation;
        let gateway = key.gateway_name().and_then(|name| {
            let key = ObjectKey::new(key.namespace.as_str(), name);
            let object = observation.objects.gateways.get(&key)?;
            Some(OfGateway { object, state: observation.gateway_states.gateways.get(&key) })
        });
        let unapplied = observation.forwarding.unapplied.contains(key);
        let changed_in =
            |memory: &Memory| memory.requests.get(key).map_or(0, |requests| requests.change.version);
        let version = changed_in(self.memory);
        let seen = view.map(AsRef::as_ref);
        let owners = owner::fingerprint(&observation.lease_holders, seen).rotate_left(1);
        let peer_summary = peer::fingerprint(peers, key, version) ^ self.groups.fingerprint(seen) ^ owners;
        let up_to_date = self.memory.up_to_date.get(key);
        if findings.is_empty()
            && !unapplied
            && up_to_date.is_some_and(|up_to_date| {
                up_to_date.is_unchanged(service, view, claimed, peer_summary, gateway)
            })
        {
            return;
        }
        let before = (self.plan.writes.len(), self.events.len());
        let view_of = view.map(|view| &**view);
        self.service(&OfService { service, view: view_of, findings, claimed, unapplied, gateway });
        // A Service that depends on the time or on other gateways is not up to date either.
        let version = changed_in(self.memory);
        let is_up_to_date = (self.plan.writes.len(), self.events.len()) == before
            && findings.is_empty()
            && !unapplied
            && !peers.iter().any(|peer| peer.is_behind(version))
            && !self.memory.waiting.contains_key(key)
            && !self.memory.conflicts.contains_key(key)
            && !self.leaving.contains(&service.meta.uid)
            && service.meta.deletion_time.is_none()
            && (claimed || !service.stored.is_finalized_by_us());
        if is_up_to_date {
            let gateway = gateway.map(|of| (Arc::clone(of.object), of.state.cloned()));
            let (service, view) = (Arc::clone(service), view.cloned());
            let up_to_date = UpToDate { service, view, claimed, peer_summary, gateway };
            self.memory.up_to_date.insert(key.clone(), up_to_date);
        } else {
            self.memory.up_to_date.remove(key);
        }
    }

    /// If no gateway can lead, the gateways report the reason in an event on each Service that has waited for a long
    /// time.
    fn leaderless(&mut self) {
        let Situation { observation, cannot_lead, now, .. } = self.situation;
        let services = &observation.objects.services;
        let has_condition = |service: &Service| match service.meta.key.gateway_name() {
            // A new Gateway has it with status Unknown.
            Some(_) => service.stored.condition("Programmed").is_some_and(|c| c.status != "Unknown"),
            None => service.stored.condition(condition::ALLOCATED).is_some(),
        };
        let mut waiting = BTreeMap::new();
        for view in observation.outcome.services.iter().filter(|view| view.pending.is_some()) {
            let Some(cannot_lead) = cannot_lead else { break };
            let key = ObjectKey::new(view.namespace.as_str(), view.name.as_str());
            let is_ours = observation.outcome.claimed.contains_key(&key);
            let service = services.get(&key).filter(|service| is_ours && !has_condition(service));
            let Some(service) = service else { continue };
            let since = self.memory.waiting.get(&key).copied().unwrap_or(*now);
            if now.duration_since(since) >= LEADER_MAX {
                let note = format!(
                    "No gateway leads, so none can assign an address to the Service. A gateway that cannot lead reports: \
                     {cannot_lead}"
                );
                let regarding = Regarding::service(&key, service.meta.uid.as_str());
                self.event(Event::new(regarding, event_reason::NO_LEADER, &note));
            } else {
                self.plan_again_at(since + LEADER_MAX);
            }
            waiting.insert(key, since);
        }
        self.memory.waiting = waiting;
    }

    /// Records events for denied requests of Pods, Nodes and EndpointSlices. Nothing else is written to these objects.
    fn of_others(&mut self, kind: ObjectKind, key: &ObjectKey, findings: &[&Finding]) {
        let objects = &self.situation.observation.objects;
        let meta = match kind {
            ObjectKind::Pod => objects.pods.get(key).map(|pod| &pod.meta),
            ObjectKind::Node => objects.nodes.get(&key.name).map(|node| &node.meta),
            ObjectKind::EndpointSlice => objects.endpoint_slices.get(key).map(|slice| &slice.meta),
            // Their status has the reasons.
            ObjectKind::Gateway | ObjectKind::ListenerSet | ObjectKind::TcpRoute | ObjectKind::UdpRoute => {
                None
            }
            ObjectKind::Service | ObjectKind::AddressPool => None,
        };
        let Some(meta) = meta else { return };
        for finding in findings {
            let regarding = Regarding::object(kind, key, meta.uid.as_str());
            self.event(Event::of_finding(regarding, finding));
        }
    }
}
