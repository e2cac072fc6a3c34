//! A plan under construction, with functions shared by its parts: record times, wait for other gateways, report events.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tidegate_model::objects::{Condition, ObjectKey, Service};
use tidegate_model::time::whole_seconds;

use super::condition::NewCondition;
use super::gateway_api::object_exists;
use super::group::Groups;
use super::memory::{Leaving, Memory, RequestState};
use super::peer::{self, Change};
use super::situation::Situation;
use super::write::Plan;
use crate::event::{Event, Regarding, cut};
use crate::reasons::{condition_type, event_reason};

/// Shorter waits for other gateways cause no event.
const WAIT_REPORTED_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);

/// The maximum length of a message in bytes. The API accepts 32 KiB.
pub(super) const MESSAGE_BYTES_MAX: usize = 1024;

/// The plan under construction.
pub(super) struct Planner<'a> {
    pub(super) situation: &'a Situation<'a>,
    pub(super) memory: &'a mut Memory,
    pub(super) plan: Plan,
    pub(super) events: BTreeSet<Event>,
    /// The uids of Services that release their addresses.
    pub(super) leaving: BTreeSet<String>,
    /// The gateways that each pool selects.
    pub(super) groups: Groups,
}

impl<'a> Planner<'a> {
    pub(super) fn new(situation: &'a Situation<'a>, memory: &'a mut Memory) -> Self {
        let groups = Groups::new(situation);
        let (plan, events, leaving) = (Plan::default(), BTreeSet::new(), BTreeSet::new());
        Self { situation, memory, plan, events, leaving, groups }
    }
}

impl Planner<'_> {
    /// Records the current requests of a Service's owner, with the version in which they were first seen. A new leader
    /// doesn't know which of them are confirmed, but followers that are live have received them.
    pub(super) fn requests(&mut self, service: &Service) -> &mut RequestState {
        // Gateways report the version of the Services, which may stay older than a Gateway until the next bookmark.
        let is_gateway = service.meta.key.gateway_name().is_some();
        let version = if is_gateway { 0 } else { service.stored.version.0 };
        let change = Change { version, since: self.situation.now };
        let what = peer::requests(service);
        let uid = &service.meta.uid;
        if self.memory.requests.get(&service.meta.key).is_some_and(|requests| requests.uid != *uid) {
            self.memory.requests.remove(&service.meta.key);
        }
        let requests = self.memory.requests.entry(service.meta.key.clone()).or_insert_with(|| RequestState {
            uid: uid.clone(),
            what,
            change,
            is_unreported: false,
        });
        if requests.what != what {
            (requests.what, requests.change, requests.is_unreported) = (what, change, true);
        }
        requests
    }

    /// Reports that a Service waits for other gateways to apply `version`, with their names. After a long wait, an
    /// event reports it, too.
    pub(super) fn waits(&mut self, service: &Service, version: u64) -> Option<String> {
        let Situation { now, peers, .. } = self.situation;
        let names = peer::behind(peers, version);
        let key = &service.meta.key;
        let since = *self.memory.waiting.entry(key.clone()).or_insert(*now);
        if names.is_empty() {
            return None;
        }
        if now.duration_since(since) >= WAIT_REPORTED_AFTER {
            let note = format!("Waiting until these gateways have withdrawn the released address: {names}");
            let regarding = Regarding::service(key, service.meta.uid.as_str());
            self.event(Event::new(regarding, event_reason::WAITING, &note));
        } else {
            self.plan_again_at(since + WAIT_REPORTED_AFTER);
        }
        Some(names)
    }

    /// Records an event whose cause exists. It is written if it is new.
    pub(super) fn event(&mut self, event: Event) {
        self.events.insert(event);
    }

    /// Removes the times of an object's conditions. Later ones start anew.
    pub(super) fn remove_times(&mut self, key: &ObjectKey) {
        let of_object = self.memory.since.range((key.clone(), String::new())..);
        let of_object = of_object.map(|(id, _)| id).take_while(|(other, _)| other == key);
        let ids: Vec<_> = of_object.cloned().collect();
        ids.iter().for_each(|id| drop(self.memory.since.remove(id)));
    }

    /// A condition with the time at which its status last changed.
    pub(super) fn dated(
        &mut self,
        key: &ObjectKey,
        stored: &[Condition],
        condition: NewCondition,
        generation: i64,
    ) -> Condition {
        let NewCondition { kind, status, reason, message } = condition;
        let kind = kind.as_str();
        let condition = Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.as_str().to_owned(),
            // This message is for programs, and its length is already limited.
            message: if kind == condition_type::RECORD.as_str() {
                message
            } else {
                cut(&message, MESSAGE_BYTES_MAX)
            },
            observed_generation: generation,
            last_transition: None,
        };
        self.with_time(key, "", stored, condition)
    }

    /// Sets the time of a condition to that of the last change of its status. `part` is the part of the object that has
    /// it; empty for the object itself.
    pub(super) fn with_time(
        &mut self,
        key: &ObjectKey,
        part: &str,
        stored: &[Condition],
        condition: Condition,
    ) -> Condition {
        let Condition { kind, status, .. } = &condition;
        let before = stored.iter().find(|c| c.kind == *kind && c.status == *status);
        let since = before.and_then(|c| c.last_transition);
        let id = (key.clone(), format!("{part} {kind}"));
        let remembered = self.memory.since.get(&id).filter(|(was, _)| was == status).map(|(_, at)| *at);
        // The API stores whole seconds.
        let now = whole_seconds(self.situation.now);
        let since = since.or(remembered).unwrap_or(now);
        self.memory.since.insert(id, (status.clone(), since));
        Condition { last_transition: Some(since), ..condition }
    }

    /// Requests another plan at `at` or earlier.
    pub(super) fn plan_again_at(&mut self, at: Timestamp) {
        self.plan.plan_again_at = Some(self.plan.plan_again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The version that every live gateway must apply before a Service that releases its addresses is withdrawn
    /// everywhere; `None` if all have applied it.
    pub(super) fn serves_until(&mut self, service: &Service) -> Option<u64> {
        let Situation { observation, withdrawn, .. } = self.situation;
        // The Services may be older than the change of a Gateway.
        let version = match service.meta.key.gateway_name() {
            Some(_) => observation.version.max(service.stored.version.0),
            None => observation.version,
        };
        self.leaving.insert(service.meta.uid.clone());
        let key = || service.meta.key.clone();
        let leaving = self.memory.leaving.entry(service.meta.uid.clone());
        let leaving = leaving.or_insert_with(|| Leaving { key: key(), since: version });
        // The version decreases if the API server was restored from a backup.
        leaving.since = leaving.since.min(version);
        let is_withdrawn = observation.version > 0 && *withdrawn >= leaving.since;
        (!is_withdrawn).then_some(leaving.since)
    }

    /// Completes the plan, and removes objects that no longer exist from the memory.
    pub(super) fn finish(mut self) -> Plan {
        let before = std::mem::replace(&mut self.memory.reported_events, self.events);
        self.plan.events = self.memory.reported_events.difference(&before).cloned().collect();
        let objects = &self.situation.observation.objects;
        let known = |key: &ObjectKey| {
            objects.services.contains_key(key)
                || objects.address_pools.contains_key(&key.name)
                || object_exists(objects, key)
        };
        // A Service has four conditions, so additional entries belong to removed Services.
        if self.memory.since.len() > 8 * objects.services.len() + 64 {
            self.memory.since.retain(|(key, _), _| known(key));
        }
        self.memory.conflicts.retain(|key, _| known(key));
        self.memory.waiting.retain(|key, _| known(key));
        if self.memory.requests.len() > objects.services.len() {
            self.memory.requests.retain(|key, _| known(key));
        }
        // If a Service releases addresses a second time, other gateways must be waited for again.
        let (leads, leaving_uids) = (self.situation.leads, &self.leaving);
        self.memory.leaving.retain(|uid, leaving| {
            let exists = objects.services.get(&leaving.key).is_some_and(|service| service.meta.uid == *uid);
            exists && (!leads || leaving_uids.contains(uid))
        });
        if self.memory.up_to_date.len() > objects.services.len() {
            self.memory.up_to_date.retain(|key, _| known(key));
        }
        self.memory.up_to_date_statuses.forget(objects);
        self.memory.programming.retain(|key, _| objects.gateways.contains_key(key));
        self.plan
    }
}
