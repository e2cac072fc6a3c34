//! A plan under construction, with the functions that its parts share: record times, wait for other gateways, report
//! events.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tidegate_model::objects::{Condition, ObjectKey, Service};
use tidegate_model::time::whole_seconds;

use super::condition::NewCondition;
use super::group::Groups;
use super::memory::{Leaving, Memory, RequestState};
use super::peer::{self, Change};
use super::situation::Situation;
use super::write::Plan;
use crate::event::{Event, EventType, Regarding, cut};
use crate::reasons::{condition_type, event_reason};

/// A wait for other gateways that is shorter than this causes no event.
const WAIT_TOLD_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);

/// The maximum length of a message in bytes. The API accepts 32 KiB.
const MESSAGE_BYTES_MAX: usize = 1024;

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
    /// does not know which of them are confirmed: the others have them anyway if they follow.
    pub(super) fn asked(&mut self, service: &Service) -> &mut RequestState {
        let change = Change { version: service.stored.version.0, since: self.situation.now };
        let what = peer::asked(service);
        let uid = &service.meta.uid;
        if self.memory.asked.get(&service.meta.key).is_some_and(|asked| asked.uid != *uid) {
            self.memory.asked.remove(&service.meta.key);
        }
        let asked = self.memory.asked.entry(service.meta.key.clone()).or_insert_with(|| RequestState {
            uid: uid.clone(),
            what,
            change,
            is_news: false,
        });
        if asked.what != what {
            (asked.what, asked.change, asked.is_news) = (what, change, true);
        }
        asked
    }

    /// Reports that a Service waits for other gateways to apply `version`, with their names; after a long time, in an
    /// event too.
    pub(super) fn waits(&mut self, service: &Service, version: u64) -> Option<String> {
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

    /// Records an event whose cause exists now. It is written if it is new.
    pub(super) fn event(&mut self, event: Event) {
        self.events.insert(event);
    }

    /// Forgets the times of an object's conditions. Later ones begin anew.
    pub(super) fn forget_times(&mut self, key: &ObjectKey) {
        let of_object = self.memory.since.range((key.clone(), String::new())..);
        let of_object = of_object.map(|(slot, _)| slot).take_while(|(other, _)| other == key);
        let slots: Vec<_> = of_object.cloned().collect();
        slots.iter().for_each(|slot| drop(self.memory.since.remove(slot)));
    }

    /// A condition with the time since when it has its status.
    pub(super) fn dated(
        &mut self,
        key: &ObjectKey,
        stored: &[Condition],
        condition: NewCondition,
        generation: i64,
    ) -> Condition {
        let NewCondition { kind, status, reason, message } = condition;
        let kind = kind.as_str();
        let before = stored.iter().find(|c| c.kind == kind && c.status == status);
        let since = before.and_then(|c| c.last_transition);
        let slot = (key.clone(), kind.to_owned());
        let remembered = self.memory.since.get(&slot).filter(|(was, _)| was == status).map(|(_, at)| *at);
        // The API stores whole seconds.
        let now = whole_seconds(self.situation.now);
        let since = since.or(remembered).unwrap_or(now);
        self.memory.since.insert(slot, (status.to_owned(), since));
        Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.as_str().to_owned(),
            // This message is for programs, and its length is already limited.
            message: if kind == condition_type::HOLDS.as_str() {
                message
            } else {
                cut(&message, MESSAGE_BYTES_MAX)
            },
            observed_generation: generation,
            last_transition: Some(since),
        }
    }

    /// Requests another plan at `at` or earlier.
    pub(super) fn again_at(&mut self, at: Timestamp) {
        self.plan.again_at = Some(self.plan.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The version that every live gateway must apply before a Service that releases its addresses is withdrawn
    /// everywhere; `None` if they have.
    pub(super) fn serves_until(&mut self, service: &Service) -> Option<u64> {
        let Situation { observation, withdrawn, .. } = self.situation;
        let version = observation.version;
        self.leaving.insert(service.meta.uid.clone());
        let key = || service.meta.key.clone();
        let leaving = self.memory.leaving.entry(service.meta.uid.clone());
        let leaving = leaving.or_insert_with(|| Leaving { key: key(), since: version });
        // The version decreases if the API server was restored.
        leaving.since = leaving.since.min(version);
        let is_withdrawn = version > 0 && *withdrawn >= leaving.since;
        (!is_withdrawn).then_some(leaving.since)
    }

    /// Completes the plan, and forgets objects that no longer exist.
    pub(super) fn finish(mut self) -> Plan {
        let before = std::mem::replace(&mut self.memory.reported_events, self.events);
        self.plan.events = self.memory.reported_events.difference(&before).cloned().collect();
        let objects = &self.situation.observation.objects;
        let known = |key: &ObjectKey| {
            objects.services.contains_key(key) || objects.address_pools.contains_key(&key.name)
        };
        // There are four conditions per Service, so more entries belong to removed Services.
        if self.memory.since.len() > 8 * objects.services.len() + 64 {
            self.memory.since.retain(|(key, _), _| known(key));
        }
        self.memory.conflicts.retain(|key, _| known(key));
        self.memory.waiting.retain(|key, _| known(key));
        if self.memory.asked.len() > objects.services.len() {
            self.memory.asked.retain(|key, _| known(key));
        }
        // A Service that releases addresses a second time must be waited for again.
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
