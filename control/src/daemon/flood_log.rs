//! Records what overloads the gateway: which Services are under a SYN flood, and whether a flow table is full. Each is
//! an event when it starts, and when it has been over for a while.
//!
//! Workers answer a flood with SYN cookies, and count the flows that they refuse; they write no log. An episode that
//! pauses for less than [`QUIET`] is one episode, so that an attacker cannot fill the log.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use tidegate_dataplane::gateway::Dataplane;
use tidegate_events::{Event, Field, ObjectKind, Reason};
use tidegate_spec::ServiceKey;
use tidegate_spec::verdict::{DropReason, Refusal};
use tokio::task::AbortHandle;
use tokio::time::{Instant, interval};

const INTERVAL: Duration = Duration::from_secs(1);
/// After this time without a sign of it, an episode is over.
const QUIET: Duration = Duration::from_secs(30);
/// New flows that are dropped for these reasons did not fit into a flow table.
const FULL: [Refusal; 2] = [Refusal::FlowTableFull, Refusal::ServiceFlowShare];

/// A service port under a SYN flood: its namespace, name and key.
type Flooded = (String, String, ServiceKey);

/// The current episodes of one kind.
#[derive(Debug)]
struct Episodes<K>(BTreeMap<K, Episode>);

#[derive(Debug)]
struct Episode {
    began: Instant,
    last: Instant,
}

#[derive(Debug, PartialEq, Eq)]
enum Change<K> {
    Started(K),
    Ended(K, Duration),
}

/// Polls until the dataplane is gone.
pub(super) fn follow(dataplane: &Arc<Dataplane>) -> AbortHandle {
    let dataplane = Arc::downgrade(dataplane);
    let following = tokio::spawn(async move {
        let (mut floods, mut tables) = (Episodes::default(), Episodes::default());
        let (mut refused, mut ticks) = ([0; FULL.len()], interval(INTERVAL));
        loop {
            ticks.tick().await;
            let Some(dataplane) = Weak::upgrade(&dataplane) else { return };
            let flooded: Vec<Flooded> = dataplane.flooded_services();
            let drops = dataplane.stats().drops;
            drop(dataplane);
            let counts = FULL.map(|why| {
                drops.iter().filter(|(one, _)| *one == DropReason::Refused(why)).map(|(_, count)| count).sum()
            });
            let full = FULL.iter().zip(counts.iter().zip(refused)).filter(|(_, (now, before))| *now > before);
            let full: Vec<&str> = full.map(|(why, _)| why.as_str()).collect();
            refused = counts;
            let now = Instant::now();
            let floods = floods.update(flooded, now).into_iter().map(|change| of_flood(&change));
            let tables = tables.update(full, now).into_iter().map(|change| of_table(&change));
            floods.chain(tables).for_each(tidegate_events::record);
        }
    });
    following.abort_handle()
}

impl<K> Default for Episodes<K> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<K: Ord + Clone> Episodes<K> {
    /// Records what is seen now. Returns the episodes that started or ended.
    fn update(&mut self, seen: Vec<K>, now: Instant) -> Vec<Change<K>> {
        let mut changes = Vec::new();
        for key in seen.into_iter().collect::<BTreeSet<K>>() {
            let episode = self.0.entry(key.clone()).or_insert_with(|| {
                changes.push(Change::Started(key));
                Episode { began: now, last: now }
            });
            episode.last = now;
        }
        self.0.retain(|key, episode| {
            let is_ongoing = now - episode.last < QUIET;
            if !is_ongoing {
                changes.push(Change::Ended(key.clone(), episode.last - episode.began));
            }
            is_ongoing
        });
        changes
    }
}

fn of_flood(change: &Change<Flooded>) -> Event {
    let event = |reason, (namespace, name, key): &Flooded, message: &str| {
        let message = format!("{} port {}: {message}", key.vip, key.port);
        let event = Event::new(reason, ObjectKind::Service, &format!("{namespace}/{name}"), &message);
        let event = event.text(Field::Vips, key.vip.to_string());
        event.text(Field::Port, format!("{}/{}", key.port, key.protocol))
    };
    match change {
        Change::Started(flooded) => event(
            Reason::SynFloodBegun,
            flooded,
            "SYN flood: many handshakes are not completed, so new connections are answered with SYN cookies",
        ),
        Change::Ended(flooded, lasted) => event(Reason::SynFloodEnded, flooded, "the SYN flood is over")
            .number(Field::Seconds, lasted.as_secs()),
    }
}

fn of_table(change: &Change<&str>) -> Event {
    match change {
        Change::Started(why) => {
            let message =
                "new connections are dropped: a flow table is full, or a Service has used its share of it";
            Event::of_gateway(Reason::FlowTableFull, message).text(Field::Reason, why)
        }
        Change::Ended(why, lasted) => {
            let message = "new connections are no longer dropped because of full flow tables";
            let event = Event::of_gateway(Reason::FlowTableHasSpace, message).text(Field::Reason, why);
            event.number(Field::Seconds, lasted.as_secs())
        }
    }
}

#[cfg(test)]
mod tests {
    use tidegate_events::Value;
    use tidegate_spec::Protocol;

    use super::*;

    #[test]
    fn each_event_of_a_flood_names_the_vip_and_the_port() {
        let flooded = |vip: &str| {
            let key = ServiceKey { vip: vip.parse().expect("an address"), protocol: Protocol::Tcp, port: 80 };
            ("shop".to_owned(), "web".to_owned(), key)
        };
        for vip in ["203.0.113.1", "2001:db8::1"] {
            let begun = of_flood(&Change::Started(flooded(vip)));
            let ended = of_flood(&Change::Ended(flooded(vip), Duration::from_secs(40)));
            for event in [&begun, &ended] {
                assert_eq!(event.service.as_deref(), Some("shop/web"));
                assert_eq!(event.field(Field::Vips), Some(&Value::Text(vip.to_owned())));
                assert_eq!(event.field(Field::Port), Some(&Value::Text("80/TCP".to_owned())));
                assert!(event.message.starts_with(&format!("{vip} port 80: ")), "{}", event.message);
            }
        }
    }

    #[test]
    fn an_episode_is_reported_once_at_its_start_and_once_at_its_end() {
        let (mut episodes, begin) = (Episodes::default(), Instant::now());
        let at = |seconds| begin + Duration::from_secs(seconds);
        let seen = || vec!["flow_table_full"];
        assert_eq!(episodes.update(Vec::new(), at(0)), []);
        assert_eq!(episodes.update(seen(), at(1)), [Change::Started("flow_table_full")]);
        assert_eq!(episodes.update(seen(), at(2)), []);
        // A pause.
        assert_eq!(episodes.update(Vec::new(), at(20)), []);
        assert_eq!(episodes.update(seen(), at(25)), []);
        assert_eq!(episodes.update(Vec::new(), at(54)), []);
        let over = Change::Ended("flow_table_full", Duration::from_secs(24));
        assert_eq!(episodes.update(Vec::new(), at(55)), [over]);
        assert_eq!(episodes.update(Vec::new(), at(56)), []);
    }
}
