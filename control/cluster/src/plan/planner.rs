//! A plan being made, with what its parts do alike: note times, wait for other gateways, tell events.

use std::collections::BTreeSet;

use jiff::Timestamp;
use tidegate_model::objects::{Condition, ObjectKey, Service};
use tidegate_model::time::whole_seconds;

use super::condition::{NewCondition, PROGRAMMED};
use super::memory::{Asked, Leaving, Memory};
use super::peer;
use super::situation::Situation;
use super::write::Plan;
use crate::event::{Event, EventType, Regarding, cut};
use crate::words::{condition_type, event_reason};

/// A wait for other gateways that is shorter than this is no event.
const WAIT_TOLD_AFTER: jiff::SignedDuration = jiff::SignedDuration::from_secs(5);

/// Longest message, in bytes; the API takes 32 KiB.
const MESSAGE_BYTES_MAX: usize = 1024;

/// See the module.
pub(super) struct Planner<'a> {
    pub(super) situation: &'a Situation<'a>,
    pub(super) memory: &'a mut Memory,
    pub(super) plan: Plan,
    pub(super) events: BTreeSet<Event>,
    /// Uids of the Services that give their addresses back.
    pub(super) leaving: BTreeSet<String>,
}

impl<'a> Planner<'a> {
    pub(super) fn new(situation: &'a Situation<'a>, memory: &'a mut Memory) -> Self {
        Self { situation, memory, plan: Plan::default(), events: BTreeSet::new(), leaving: BTreeSet::new() }
    }
}

impl Planner<'_> {
    /// What its owner asks of a Service, noted with the version in which it was first seen.
    pub(super) fn asked(&mut self, service: &Service) -> &mut Asked {
        let Situation { observation, now, .. } = self.situation;
        let what = peer::asked(service);
        // Written by us before: it was served, by whoever decided then.
        let is_served = service.stored.condition(PROGRAMMED).is_some_and(|c| c.status == "True");
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

    /// Something that is true now; it is told when it is news.
    pub(super) fn event(&mut self, event: Event) {
        self.events.insert(event);
    }

    /// The conditions of an object go: those that it gets later begin then.
    pub(super) fn forget_times(&mut self, key: &ObjectKey) {
        let of_object = self.memory.since.range((key.clone(), String::new())..);
        let of_object = of_object.map(|(slot, _)| slot).take_while(|(other, _)| other == key);
        let slots: Vec<_> = of_object.cloned().collect();
        slots.iter().for_each(|slot| drop(self.memory.since.remove(slot)));
    }

    /// A condition as it is to be written: with the time since when it is as it is.
    pub(super) fn dated(
        &mut self,
        key: &ObjectKey,
        stored: &[Condition],
        said: NewCondition,
        generation: i64,
    ) -> Condition {
        let NewCondition { kind, status, reason, message } = said;
        let kind = kind.as_str();
        let before = stored.iter().find(|c| c.kind == kind && c.status == status);
        let since = before.and_then(|c| c.last_transition);
        let slot = (key.clone(), kind.to_owned());
        let remembered = self.memory.since.get(&slot).filter(|(was, _)| was == status).map(|(_, at)| *at);
        // Whole seconds: that is what the API keeps.
        let now = whole_seconds(self.situation.now);
        let since = since.or(remembered).unwrap_or(now);
        self.memory.since.insert(slot, (status.to_owned(), since));
        Condition {
            kind: kind.to_owned(),
            status: status.to_owned(),
            reason: reason.as_str().to_owned(),
            // What is held is for programs, and is bounded where it is made.
            message: if kind == condition_type::HOLDS.as_str() {
                message
            } else {
                cut(&message, MESSAGE_BYTES_MAX)
            },
            observed_generation: generation,
            last_transition: Some(since),
        }
    }

    /// Plans again at `at` at the latest.
    pub(super) fn again_at(&mut self, at: Timestamp) {
        self.plan.again_at = Some(self.plan.again_at.map_or(at, |earlier| earlier.min(at)));
    }

    /// The version that every live gateway has to apply before a Service that gives its addresses back is withdrawn
    /// everywhere; `None` when they have.
    pub(super) fn serves_until(&mut self, service: &Service) -> Option<u64> {
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

    /// The plan. Forgets what is of objects that are gone.
    pub(super) fn finish(mut self) -> Plan {
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
