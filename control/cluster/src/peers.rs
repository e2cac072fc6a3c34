//! The other gateways: which are live, from their `GatewayStatus` and the time since its heartbeat last changed.
//!
//! Pure: time is an argument. A gateway is live until two polls that are 40 s apart have seen the same heartbeat, or
//! until it shuts down normally. While polls fail, no gateway becomes dead. If a `GatewayStatus` has not changed for
//! a day, its gateway is gone for good.
//!
//! Invariant: only our own clock decides which gateways are live and waited for. Clocks of others count only for the
//! difference of a day, and only together with ours.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

use super::crd::{GatewayStatus, GatewayStatusStatus};
use super::drain_annotation::DrainAnnotation;
use super::own_status::heartbeat_time;
use super::plan::Peer;
use super::reasons::{condition_reason, condition_type};
use super::sharing_peers::SharingPeers;

/// A gateway whose heartbeat has not changed for this time does not count as live.
pub(super) const LIVE: Duration = Duration::from_secs(40);
/// After this time without a heartbeat the `GatewayStatus` of a gateway is deleted.
pub(super) const GONE: SignedDuration = SignedDuration::from_hours(24);

/// The other gateways.
#[derive(Debug)]
pub(super) struct Peers {
    own_name: String,
    heard: BTreeMap<String, Heard>,
    list: Vec<GatewayStatus>,
    /// When the last poll that succeeded began.
    looked: Instant,
    /// The version that this gateway had applied when the poll began.
    own_applied: u64,
}

/// The last heartbeat of a gateway.
#[derive(Debug)]
struct Heard {
    beat: Option<String>,
    /// When it was first seen.
    since: Instant,
    /// Since when heartbeats have followed each other in time.
    live_since: Instant,
}

/// The object of a gateway without a heartbeat, with the status to write.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Silent {
    pub(super) name: String,
    pub(super) resource_version: Option<String>,
    pub(super) status: GatewayStatusStatus,
}

/// The object of a gateway that no longer exists, as it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Gone {
    pub(super) name: String,
    pub(super) uid: Option<String>,
    pub(super) resource_version: Option<String>,
}

impl Peers {
    pub(super) fn new(own_name: &str, now: Instant) -> Self {
        let own_name = own_name.to_owned();
        Self { own_name, heard: BTreeMap::new(), list: Vec::new(), looked: now, own_applied: 0 }
    }

    /// Records the list of the API server, which was requested at `now`. `own_applied` is the version of the Services that
    /// this gateway had applied then.
    pub(super) fn listed(&mut self, list: Vec<GatewayStatus>, own_applied: u64, now: Instant) {
        let mut heard = BTreeMap::new();
        for one in &list {
            let Some(name) = one.metadata.name.clone() else { continue };
            let beat = one.status.as_ref().and_then(|status| status.last_heartbeat.clone());
            let before = self.heard.get(&name);
            let since = before.filter(|last| last.beat == beat).map_or(now, |last| last.since);
            let in_time = before.filter(|last| now.duration_since(last.since) < LIVE);
            let live_since = in_time.map_or(now, |last| last.live_since);
            heard.insert(name, Heard { beat, since, live_since });
        }
        (self.heard, self.list, self.looked, self.own_applied) = (heard, list, now, own_applied);
    }

    /// When the last poll that succeeded began.
    pub(super) fn looked(&self) -> Instant {
        self.looked
    }

    /// The version of the Services that every live gateway has applied according to the last poll. Gateways that
    /// started after it have listed newer ones.
    pub(super) fn withdrawn(&self) -> u64 {
        let live = self.others().filter(|(name, one)| self.is_live(name, one));
        let applied = live.map(|(_, one)| {
            let said = one.status.as_ref().map(|status| status.applied_resource_version.as_str());
            // A gateway that reports no version may have applied any.
            said.and_then(|version| version.parse().ok()).unwrap_or(0)
        });
        applied.chain([self.own_applied]).min().unwrap_or(0)
    }

    /// The other live gateways, with their reports.
    pub(super) fn live(&self) -> Vec<Peer> {
        // A gateway without a state gets no packets.
        let has_begun = |status: &GatewayStatusStatus| status.generation_applied > 0;
        let live = self.others().filter(|(name, one)| self.is_live(name, one));
        let said = live.filter_map(|(name, one)| Some((name, one.status.as_ref().filter(|s| has_begun(s))?)));
        let time_since = |at: Option<Instant>| at.map_or(Duration::ZERO, |at| self.looked.duration_since(at));
        said.map(|(name, status)| Peer {
            name: name.to_owned(),
            silent: time_since(self.heard.get(name).map(|heard| heard.since)),
            live: time_since(self.heard.get(name).map(|heard| heard.live_since)),
            applied: status.applied_resource_version.parse().unwrap_or(0),
            is_ready: status
                .conditions
                .iter()
                .any(|c| c.kind == condition_type::READY.as_str() && c.status == "True"),
            is_connected: status.source_connected,
            labels: status.labels.clone(),
            not_programmed: status.not_programmed.iter().cloned().collect(),
            without_backends: status.without_backends.iter().cloned().collect(),
        })
        .collect()
    }

    /// The object with this gateway's name, as last read.
    pub(super) fn own(&self) -> Option<&GatewayStatus> {
        self.list.iter().find(|one| one.metadata.name.as_deref() == Some(self.own_name.as_str()))
    }

    /// Objects of gateways whose heartbeat has stopped, and which still report that they are healthy.
    pub(super) fn silent(&self) -> Vec<Silent> {
        let says_something = |status: &GatewayStatusStatus| {
            !status.stopped && (status.leader || status.conditions.iter().any(|c| c.status != "Unknown"))
        };
        let silent = self.others().filter(|(name, one)| {
            // The heartbeat must have been seen unchanged. One that was read only once may have changed just before.
            let stands_still =
                self.heard.get(*name).is_some_and(|heard| self.looked.duration_since(heard.since) >= LIVE);
            stands_still && one.status.as_ref().is_some_and(says_something)
        });
        silent
            .map(|(name, one)| {
                let mut status = one.status.clone().unwrap_or_default();
                let heard = status.last_heartbeat.clone().unwrap_or_else(|| "its start".to_owned());
                (status.leader, status.source_connected) = (false, false);
                for condition in status.conditions.iter_mut().filter(|c| c.status != "Unknown") {
                    condition.status = "Unknown".to_owned();
                    condition.reason = condition_reason::NO_HEARTBEAT.as_str().to_owned();
                    condition.message = format!("no heartbeat from the gateway since {heard}");
                    condition.observed_generation = one.metadata.generation.unwrap_or_default();
                    condition.last_transition_time = heartbeat_time();
                }
                let version = one.metadata.resource_version.clone();
                Silent { name: name.to_owned(), resource_version: version, status }
            })
            .collect()
    }

    /// The addresses of all other gateways, live or not: their hosts may still be connected to the network.
    pub(super) fn addresses(&self) -> BTreeMap<IpAddr, String> {
        let of = |(name, one): (&str, &GatewayStatus)| {
            let said = one.status.iter().flat_map(|status| &status.addresses);
            said.filter_map(|ip| Some((ip.parse().ok()?, name.to_owned()))).collect::<Vec<_>>()
        };
        self.others().flat_map(of).collect()
    }

    /// The sockets at which the other gateways exchange flows.
    pub(super) fn sharing(&self) -> SharingPeers {
        fn said(one: &GatewayStatus) -> &str {
            one.status.as_ref().map_or("", |status| &status.flow_sharing_address)
        }
        let others = self.others().map(|(name, one)| (name, said(one), self.is_live(name, one)));
        SharingPeers::of(self.own().map_or("", said), others)
    }

    /// Objects of gateways that no longer exist.
    pub(super) fn gone(&self, wall: Timestamp) -> Vec<Gone> {
        let is_gone = |(name, one): &(&str, &GatewayStatus)| {
            let beat = one.status.as_ref().and_then(|status| status.last_heartbeat.as_deref());
            // The request of a person to drain it must outlive the gateway's absence.
            let is_annotated = DrainAnnotation::of(one) == DrainAnnotation::Drain;
            // Without a heartbeat, the age of the object counts.
            let heard = match beat {
                Some(beat) => beat.parse().ok(),
                None => one.metadata.creation_timestamp.as_ref().map(|created| created.0),
            };
            !is_annotated
                && !self.is_live(name, one)
                && heard.is_some_and(|heard| wall.duration_since(heard) >= GONE)
        };
        let gone = |(name, one): (&str, &GatewayStatus)| Gone {
            name: name.to_owned(),
            uid: one.metadata.uid.clone(),
            resource_version: one.metadata.resource_version.clone(),
        };
        self.others().filter(is_gone).map(gone).collect()
    }

    fn others(&self) -> impl Iterator<Item = (&str, &GatewayStatus)> {
        let named = self.list.iter().filter_map(|one| Some((one.metadata.name.as_deref()?, one)));
        named.filter(|(name, _)| *name != self.own_name)
    }

    fn is_live(&self, name: &str, one: &GatewayStatus) -> bool {
        let says_goodbye = one.status.as_ref().is_none_or(|status| status.stopped);
        let moves = |heard: &Heard| heard.beat.is_some() && self.looked.duration_since(heard.since) < LIVE;
        !says_goodbye && self.heard.get(name).is_some_and(moves)
    }
}

#[cfg(test)]
mod tests {
    use super::super::crd::GatewayStatusSpec;
    use super::*;

    fn status(name: &str, beat: Option<&str>, applied: &str) -> GatewayStatus {
        let mut status = GatewayStatus::new(name, GatewayStatusSpec { gateway: name.into() });
        status.metadata.uid = Some(format!("uid-{name}"));
        status.metadata.resource_version = Some("7".into());
        status.status = Some(GatewayStatusStatus {
            last_heartbeat: beat.map(str::to_owned),
            applied_resource_version: applied.into(),
            ..GatewayStatusStatus::default()
        });
        status
    }

    fn stopped(name: &str, beat: &str) -> GatewayStatus {
        let mut status = status(name, Some(beat), "1");
        status.status.get_or_insert_default().stopped = true;
        status
    }

    fn peers(now: Instant) -> Peers {
        Peers::new("edge-1", now)
    }

    #[test]
    fn a_gateway_is_waited_for_while_its_heartbeat_moves_whatever_its_clock_says() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut peers = peers(start);
        let mut look = |seconds, beat: &str| {
            peers.listed(
                vec![status("a", Some(beat), "5"), stopped("b", "2026-01-01T00:00:00Z")],
                9,
                at(seconds),
            );
            peers.withdrawn()
        };
        assert_eq!(look(0, "1999-01-01T00:00:00Z"), 5, "b said goodbye");
        assert_eq!(look(39, "1999-01-01T00:00:00Z"), 5);
        assert_eq!(look(40, "1999-01-01T00:00:00Z"), 9);
        assert_eq!(look(50, "1999-01-01T00:00:10Z"), 5);
        assert_eq!(look(89, "1999-01-01T00:00:10Z"), 5);
    }

    #[test]
    fn how_long_a_gateway_is_silent_and_live_is_measured_by_our_own_clock() {
        let start = Instant::now();
        let mut peers = peers(start);
        let mut look = |seconds, beat: &str| {
            let mut one = status("a", Some(beat), "5");
            one.status.get_or_insert_default().generation_applied = 1;
            peers.listed(vec![one], 9, start + Duration::from_secs(seconds));
            peers.live().first().map(|peer| (peer.silent.as_secs(), peer.live.as_secs()))
        };
        assert_eq!(look(0, "2030-01-01T00:00:00Z"), Some((0, 0)));
        assert_eq!(look(7, "2030-01-01T00:00:00Z"), Some((7, 7)));
        assert_eq!(look(10, "1999-01-01T00:00:00Z"), Some((0, 10)));
        assert_eq!(look(50, "1999-01-01T00:00:00Z"), None);
        assert_eq!(look(60, "1999-01-01T00:00:01Z"), Some((0, 0)), "it is back");
    }

    #[test]
    fn no_gateway_counts_as_dead_while_polls_fail() {
        let start = Instant::now();
        let mut peers = peers(start);
        peers.listed(vec![status("a", Some("2026-01-01T00:00:00Z"), "5")], 9, start);
        // The first poll after an hour of errors sees that the heartbeat has continued.
        assert_eq!(peers.withdrawn(), 5);
        peers.listed(
            vec![status("a", Some("2026-01-01T01:00:00Z"), "6")],
            9,
            start + Duration::from_secs(3600),
        );
        assert_eq!(peers.withdrawn(), 6);
    }

    #[test]
    fn the_slowest_gateway_counts_and_one_without_an_applied_version_is_the_slowest() {
        let start = Instant::now();
        let mut peers = peers(start);
        let beat = Some("2026-01-01T00:00:00Z");
        peers.listed(
            vec![status("a", beat, "12"), status("b", beat, "15"), status("edge-1", beat, "1")],
            20,
            start,
        );
        assert_eq!(peers.withdrawn(), 12, "our own object may be behind of us");
        peers.listed(vec![status("a", beat, "12"), status("b", beat, "")], 20, start);
        assert_eq!(peers.withdrawn(), 0);
        peers.listed(vec![], 20, start);
        assert_eq!(peers.withdrawn(), 20);
    }

    #[test]
    fn a_gateway_without_a_heartbeat_for_40_s_is_to_be_marked_unknown_once() {
        let start = Instant::now();
        let mut peers = peers(start);
        let ready = |mut one: GatewayStatus| {
            let status = one.status.get_or_insert_default();
            (status.leader, status.generation_applied) = (true, 3);
            status.conditions = vec![crate::crd::Condition {
                kind: "Ready".into(),
                status: "True".into(),
                reason: "Forwarding".into(),
                message: String::new(),
                observed_generation: 0,
                last_transition_time: "2026-01-01T00:00:00Z".into(),
            }];
            one
        };
        let beat = "2026-01-01T00:00:00Z";
        let list = || vec![ready(status("a", Some(beat), "1")), ready(stopped("b", beat))];
        peers.listed(list(), 0, start);
        assert!(peers.live().iter().any(|peer| peer.name == "a" && peer.is_ready));
        peers.listed(list(), 0, start + LIVE - Duration::from_secs(1));
        assert!(peers.silent().is_empty());
        peers.listed(list(), 0, start + LIVE);
        let silent = peers.silent();
        let [one] = &silent[..] else { panic!("{silent:?}") };
        assert_eq!((one.name.as_str(), one.status.leader), ("a", false));
        let condition = &one.status.conditions[0];
        assert_eq!((condition.status.as_str(), condition.reason.as_str()), ("Unknown", "NoHeartbeat"));
        assert!(condition.message.contains(beat) && peers.live().is_empty());
        let mut marked = status("a", Some(beat), "1");
        marked.status = Some(one.status.clone());
        peers.listed(vec![marked], 0, start + LIVE);
        assert!(peers.silent().is_empty(), "it is marked already");
    }

    #[test]
    fn addresses_of_other_gateways_are_known_whether_they_are_live_or_not() {
        let start = Instant::now();
        let mut peers = peers(start);
        let with = |mut one: GatewayStatus, ip: &str| {
            one.status.get_or_insert_default().addresses = vec![ip.to_owned(), "nonsense".to_owned()];
            one
        };
        let beat = "2026-01-01T00:00:00Z";
        let list = vec![
            with(status("a", Some(beat), "1"), "192.0.2.2"),
            with(stopped("b", beat), "192.0.2.3"),
            with(status("edge-1", Some(beat), "1"), "192.0.2.1"),
        ];
        peers.listed(list, 0, start);
        let shown: Vec<_> = peers.addresses().into_iter().map(|(ip, name)| format!("{ip} {name}")).collect();
        assert_eq!(shown, ["192.0.2.2 a", "192.0.2.3 b"]);
    }

    #[test]
    fn a_gateway_is_gone_for_good_a_day_after_its_last_heartbeat_and_never_while_that_moves() {
        let start = Instant::now();
        let beat = "2026-01-01T00:00:00Z";
        let wall = |text: &str| text.parse::<Timestamp>().expect("a time");
        let mut peers = peers(start);
        let gone = |peers: &Peers, wall| peers.gone(wall).into_iter().map(|g| g.name).collect::<Vec<_>>();
        let mut bare = status("c", None, "");
        bare.metadata.creation_timestamp =
            Some(k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(wall("2026-01-01T12:00:00Z")));
        let list = || {
            vec![
                status("a", Some(beat), "1"),
                stopped("b", beat),
                bare.clone(),
                status("edge-1", Some(beat), "1"),
            ]
        };
        peers.listed(list(), 0, start);
        assert_eq!(gone(&peers, wall("2026-01-01T23:59:59Z")), [] as [&str; 0]);
        assert_eq!(
            gone(&peers, wall("2026-01-02T00:00:00Z")),
            ["b"],
            "a may be live, with a clock that is wrong"
        );
        peers.listed(list(), 0, start + LIVE);
        assert_eq!(gone(&peers, wall("2026-01-02T00:00:00Z")), ["a", "b"]);
        assert_eq!(gone(&peers, wall("2026-01-02T12:00:00Z")), ["a", "b", "c"]);
        let first = peers.gone(wall("2026-01-02T12:00:00Z")).remove(0);
        assert_eq!((first.uid.as_deref(), first.resource_version.as_deref()), (Some("uid-a"), Some("7")));
    }
}
