//! The last events, in memory.
//!
//! Invariant: at most `max` events. If there are more, the namespace with most of them loses its oldest one, so that no
//! namespace removes the events of others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use jiff::Timestamp;

use super::event::{Event, Object};

/// Which events are requested.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Selection {
    /// Only events with a higher number.
    pub after: u64,
    /// Only events of this Service, `namespace/name`.
    pub service: Option<String>,
    /// Only events about this object.
    pub object: Option<Object>,
    /// Only events at this time or later.
    pub since: Option<Timestamp>,
    /// Only this many of them, the latest.
    pub latest: Option<usize>,
}

impl Selection {
    fn has(&self, event: &Event) -> bool {
        self.service.as_ref().is_none_or(|service| event.service.as_ref() == Some(service))
            && self.object.as_ref().is_none_or(|object| event.object == *object)
            && self.since.is_none_or(|since| event.time >= since)
    }
}

/// The events by number.
#[derive(Debug)]
pub(crate) struct Kept {
    max: usize,
    events: BTreeMap<u64, Arc<Event>>,
    /// The numbers of the events of each namespace.
    namespaces: BTreeMap<Arc<str>, BTreeSet<u64>>,
    /// The namespaces by their number of events.
    by_size: BTreeSet<(usize, Arc<str>)>,
}

impl Kept {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, events: BTreeMap::new(), namespaces: BTreeMap::new(), by_size: BTreeSet::new() }
    }

    /// The highest number.
    pub(crate) fn last(&self) -> u64 {
        self.events.last_key_value().map_or(0, |(number, _)| *number)
    }

    /// Adds an event. An event with the same number is replaced.
    pub(crate) fn insert(&mut self, event: Arc<Event>) {
        let (number, namespace) = (event.number, Arc::from(event.namespace()));
        self.remove(number);
        self.events.insert(number, event);
        self.resize(namespace, |numbers| {
            numbers.insert(number);
        });
        while self.events.len() > self.max {
            let Some((_, largest)) = self.by_size.last() else { return };
            let Some(oldest) = self.namespaces.get(largest).and_then(|numbers| numbers.first()) else {
                return;
            };
            self.remove(*oldest);
        }
    }

    fn remove(&mut self, number: u64) {
        let Some(event) = self.events.remove(&number) else { return };
        self.resize(Arc::from(event.namespace()), |numbers| {
            numbers.remove(&number);
        });
    }

    /// Changes the numbers of a namespace.
    fn resize(&mut self, namespace: Arc<str>, change: impl FnOnce(&mut BTreeSet<u64>)) {
        let numbers = self.namespaces.entry(Arc::clone(&namespace)).or_default();
        let before = numbers.len();
        change(numbers);
        let after = numbers.len();
        self.by_size.remove(&(before, Arc::clone(&namespace)));
        if after == 0 {
            self.namespaces.remove(&namespace);
        } else {
            self.by_size.insert((after, namespace));
        }
    }

    /// The selected events, oldest first.
    pub(crate) fn select(&self, selection: &Selection) -> Vec<Arc<Event>> {
        let later = self.events.range(selection.after.saturating_add(1)..).map(|(_, event)| event);
        let latest =
            later.rev().filter(|event| selection.has(event)).take(selection.latest.unwrap_or(usize::MAX));
        let mut selected: Vec<_> = latest.cloned().collect();
        selected.reverse();
        selected
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::ObjectKind;
    use crate::reason::Reason;

    fn event(number: u64, namespace: &str) -> Arc<Event> {
        let event = Event::new(Reason::BackendDown, ObjectKind::Backend, "10.0.0.1:80", "down");
        let event = if namespace.is_empty() { event } else { event.of_service(namespace, "web") };
        Arc::new(Event { number, ..event })
    }

    fn count(kept: &Kept, namespace: &str) -> usize {
        kept.select(&Selection::default()).iter().filter(|event| event.namespace() == namespace).count()
    }

    #[test]
    fn a_namespace_with_many_events_loses_its_own_and_no_others() {
        let mut kept = Kept::new(100);
        (1..=30).for_each(|number| kept.insert(event(number, "quiet")));
        (31..=40).for_each(|number| kept.insert(event(number, "")));
        (41..=5_000).for_each(|number| kept.insert(event(number, "noisy")));
        assert_eq!([count(&kept, "quiet"), count(&kept, ""), count(&kept, "noisy")], [30, 10, 60]);
        let all = kept.select(&Selection::default());
        assert_eq!((all.len(), all[99].number, kept.last()), (100, 5_000, 5_000));
        // A second noisy one gets an equal share.
        (5_001..=9_000).for_each(|number| kept.insert(event(number, "noisy-too")));
        assert_eq!([count(&kept, "quiet"), count(&kept, "")], [30, 10]);
        assert_eq!(count(&kept, "noisy") + count(&kept, "noisy-too"), 60);
        assert!(count(&kept, "noisy").abs_diff(30) <= 1, "{}", count(&kept, "noisy"));
    }

    #[test]
    fn events_are_selected_by_number_service_and_time() {
        let mut kept = Kept::new(100);
        (1..=3).for_each(|number| kept.insert(event(number, "shop")));
        (4..=6).for_each(|number| kept.insert(event(number, "blog")));
        let numbers = |selection: &Selection| {
            kept.select(selection).iter().map(|event| event.number).collect::<Vec<_>>()
        };
        assert_eq!(numbers(&Selection { after: 4, ..Selection::default() }), [5, 6]);
        let of_shop = Selection { after: 1, service: Some("shop/web".to_owned()), ..Selection::default() };
        assert_eq!(numbers(&of_shop), [2, 3]);
        let later = Timestamp::now().as_second() + 60;
        let since = Timestamp::from_second(later).ok();
        assert!(numbers(&Selection { since, ..Selection::default() }).is_empty());
        assert!(numbers(&Selection { after: u64::MAX, ..Selection::default() }).is_empty());
        assert_eq!(numbers(&Selection { latest: Some(2), ..Selection::default() }), [5, 6]);
        let about = |kind, name: &str| Some(Object { kind, name: name.to_owned() });
        let object = about(ObjectKind::Backend, "10.0.0.1:80");
        assert_eq!(numbers(&Selection { object, latest: Some(1), ..Selection::default() }), [6]);
        for object in [about(ObjectKind::Backend, "10.0.0.1:8080"), about(ObjectKind::Vip, "10.0.0.1:80")] {
            assert!(numbers(&Selection { object, ..Selection::default() }).is_empty());
        }
    }
}
