//! Decides which other gateways are live, from their `GatewayStatus` and the time since its heartbeat last changed.
//!
//! Pure: time is an argument. A gateway is live until two polls 40 s apart have seen the same heartbeat, or until it
//! shuts down cleanly. A leader whose Lease expired is not waited for until its next heartbeat, because everything waits
//! for the new leader. While polls fail, no gateway becomes dead. If a `GatewayStatus` has not changed for a day, its
//! gateway is gone for good.
//!
//! Invariant: only our own clock decides which gateways are live and waited for. The clocks of others matter only for
//! the limit of a day, and only together with ours.

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

/// A gateway whose heartbeat has not changed for this time is not live.
pub(super) const LIVE: Duration = Duration::from_secs(40);
/// After this time without a heartbeat, the `GatewayStatus` of a gateway is deleted.
pub(super) const GONE: SignedDuration = SignedDuration::from_hours(24);

/// The other gateways.
#[derive(Debug)]
pub(super) struct Peers {
    own_name: String,
    heartbeats: BTreeMap<String, Heartbeat>,
    list: Vec<GatewayStatus>,
    /// When the last successful poll started.
    polled: Instant,
    /// The version of the Services that this gateway had applied when the poll started.
    own_applied: u64,
    /// The last leader, if this gateway leads because that one did not renew the Lease.
    lapsed: Option<Lapsed>,
}

/// A leader that did not renew the Lease.
#[derive(Debug)]
struct Lapsed {
    name: String,
    /// Its heartbeat at the first poll since; `None` before that.
    beat: Option<Option<String>>,
}

/// The last heartbeat of a gateway.
#[derive(Debug)]
struct Heartbeat {
    beat: Option<String>,
    /// When this heartbeat was first seen.
    since: Instant,
    /// Since when each heartbeat has been followed by another within [`LIVE`].
    live_since: Instant,
}

/// The object of a gateway without a heartbeat, and the status to write to it.
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
        Self {
            own_name,
            heartbeats: BTreeMap::new(),
            list: Vec::new(),
            polled: now,
            own_applied: 0,
            lapsed: None,
        }
    }

    /// Sets the last leader, if this gateway leads because that one did not renew the Lease.
    pub(super) fn set_lapsed(&mut self, name: Option<&str>) {
        if self.lapsed.as_ref().map(|lapsed| lapsed.name.as_str()) != name {
            self.lapsed = name.map(|name| Lapsed { name: name.to_owned(), beat: None });
        }
    }

    /// Records the API server's list, which was requested at `now`. `own_applied` is the version of the Services that
    /// this gateway had applied at that time.
    pub(super) fn listed(&mut self, list: Vec<GatewayStatus>, own_applied: u64, now: Instant) {
        let mut heartbeats = BTreeMap::new();
        for one in &list {
            let Some(name) = one.metadata.name.clone() else { continue };
            let beat = one.status.as_ref().and_then(|status| status.last_heartbeat.clone());
            let before = self.heartbeats.get(&name);
            let since = before.filter(|last| last.beat == beat).map_or(now, |last| last.since);
            let in_time = before.filter(|last| now.duration_since(last.since) < LIVE);
            let live_since = in_time.map_or(now, |last| last.live_since);
            heartbeats.insert(name, Heartbeat { beat, since, live_since });
        }
        if let Some(lapsed) = &mut self.lapsed {
            lapsed
                .beat
                .get_or_insert_with(|| heartbeats.get(&lapsed.name).and_then(|last| last.beat.clone()));
        }
        (self.heartbeats, self.list, self.polled, self.own_applied) = (heartbeats, list, now, own_applied);
    }

    /// When the last successful poll started.
    pub(super) fn polled(&self) -> Instant {
        self.polled
    }

    /// The version of the Services that every live gateway has applied according to the last poll. Gateways that
    /// started later have listed a newer version.
    pub(super) fn withdrawn(&self) -> u64 {
        let live = self.others().filter(|(name, one)| self.is_awaited(name, one));
        let applied = live.map(|(_, one)| {
            let version = one.status.as_ref().map(|status| status.applied_resource_version.as_str());
            // A gateway that reports no version may have applied any version.
            version.and_then(|version| version.parse().ok()).unwrap_or(0)
        });
        applied.chain([self.own_applied]).min().unwrap_or(0)
    }

    /// The other live gateways, with their reports.
    pub(super) fn live(&self) -> Vec<Peer> {
        // A gateway that has not applied a state receives no packets.
        let has_applied = |status: &GatewayStatusStatus| status.generation_applied > 0;
        let live = self.others().filter(|(name, one)| self.is_awaited(name, one));
        let reports =
            live.filter_map(|(name, one)| Some((name, one.status.as_ref().filter(|s| has_applied(s))?)));
        let time_since = |at: Option<Instant>| at.map_or(Duration::ZERO, |at| self.polled.duration_since(at));
        reports
            .map(|(name, status)| Peer {
                name: name.to_owned(),
                silent: time_since(self.heartbeats.get(name).map(|heartbeats| heartbeats.since)),
                live: time_since(self.heartbeats.get(name).map(|heartbeats| heartbeats.live_since)),
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

    /// Objects of gateways whose heartbeat has stopped, but whose conditions don't show it yet.
    pub(super) fn silent(&self) -> Vec<Silent> {
        let claims_a_state = |status: &GatewayStatusStatus| {
            !status.stopped && (status.leader || status.conditions.iter().any(|c| c.status != "Unknown"))
        };
        let silent = self.others().filter(|(name, one)| {
            // The heartbeat must have been seen unchanged. If it was read only once, it may have changed just before.
            let is_unchanged = self
                .heartbeats
                .get(*name)
                .is_some_and(|heartbeats| self.polled.duration_since(heartbeats.since) >= LIVE);
            is_unchanged && one.status.as_ref().is_some_and(claims_a_state)
        });
        silent
            .map(|(name, one)| {
                let mut status = one.status.clone().unwrap_or_default();
                let last = status.last_heartbeat.clone().unwrap_or_else(|| "its start".to_owned());
                (status.leader, status.source_connected) = (false, false);
                for condition in status.conditions.iter_mut().filter(|c| c.status != "Unknown") {
                    condition.status = "Unknown".to_owned();
                    condition.reason = condition_reason::NO_HEARTBEAT.as_str().to_owned();
                    condition.message = format!("no heartbeat from the gateway since {last}");
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
            let addresses = one.status.iter().flat_map(|status| &status.addresses);
            addresses.filter_map(|ip| Some((ip.parse().ok()?, name.to_owned()))).collect::<Vec<_>>()
        };
        self.others().flat_map(of).collect()
    }

    /// The sockets at which the other gateways share flows.
    pub(super) fn sharing(&self) -> SharingPeers {
        fn socket(one: &GatewayStatus) -> &str {
            one.status.as_ref().map_or("", |status| &status.flow_sharing_address)
        }
        let others = self.others().map(|(name, one)| (name, socket(one), self.is_live(name, one)));
        SharingPeers::of(self.own().map_or("", socket), others)
    }

    /// Objects of gateways that no longer exist.
    pub(super) fn gone(&self, wall: Timestamp) -> Vec<Gone> {
        let is_gone = |(name, one): &(&str, &GatewayStatus)| {
            let beat = one.status.as_ref().and_then(|status| status.last_heartbeat.as_deref());
            // A user's request to drain the gateway must outlive the gateway's absence.
            let is_annotated = DrainAnnotation::of(one) == DrainAnnotation::Drain;
            // Without a heartbeat, the age of the object counts.
            let last = match beat {
                Some(beat) => beat.parse().ok(),
                None => one.metadata.creation_timestamp.as_ref().map(|created| created.0),
            };
            !is_annotated
                && !self.is_live(name, one)
                && last.is_some_and(|last| wall.duration_since(last) >= GONE)
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
        let has_stopped = one.status.as_ref().is_none_or(|status| status.stopped);
        let changes = |last: &Heartbeat| last.beat.is_some() && self.polled.duration_since(last.since) < LIVE;
        !has_stopped && self.heartbeats.get(name).is_some_and(changes)
    }

    /// Whether the leader waits for it.
    fn is_awaited(&self, name: &str, one: &GatewayStatus) -> bool {
        let beat = self.heartbeats.get(name).map(|last| &last.beat);
        let has_lapsed =
            self.lapsed.as_ref().is_some_and(|last| last.name == name && last.beat.as_ref() == beat);
        !has_lapsed && self.is_live(name, one)
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
    fn a_gateway_is_live_while_its_heartbeat_changes_whatever_its_clock() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut peers = peers(start);
        let mut poll = |seconds, beat: &str| {
            peers.listed(
                vec![status("a", Some(beat), "5"), stopped("b", "2026-01-01T00:00:00Z")],
                9,
                at(seconds),
            );
            peers.withdrawn()
        };
        assert_eq!(poll(0, "1999-01-01T00:00:00Z"), 5, "b has stopped");
        assert_eq!(poll(39, "1999-01-01T00:00:00Z"), 5);
        assert_eq!(poll(40, "1999-01-01T00:00:00Z"), 9);
        assert_eq!(poll(50, "1999-01-01T00:00:10Z"), 5);
        assert_eq!(poll(89, "1999-01-01T00:00:10Z"), 5);
    }

    #[test]
    fn a_leader_without_its_lease_is_awaited_only_after_a_new_heartbeat() {
        let start = Instant::now();
        let mut peers = peers(start);
        let poll = |peers: &mut Peers, seconds, beat: &str| {
            let list = vec![status("a", Some(beat), "5"), status("b", Some("2026-01-01T00:00:00Z"), "7")];
            peers.listed(list, 9, start + Duration::from_secs(seconds));
            peers.withdrawn()
        };
        assert_eq!(poll(&mut peers, 0, "2026-01-01T00:00:00Z"), 5);
        peers.set_lapsed(Some("a"));
        assert_eq!(peers.withdrawn(), 5, "its last heartbeat may not have been read yet");
        assert_eq!(poll(&mut peers, 1, "2026-01-01T00:00:08Z"), 7, "b is waited for as before");
        assert_eq!(poll(&mut peers, 9, "2026-01-01T00:00:08Z"), 7);
        assert_eq!(poll(&mut peers, 11, "2026-01-01T00:00:18Z"), 5, "only its Lease was lost");
        peers.set_lapsed(Some("a"));
        assert_eq!(poll(&mut peers, 12, "2026-01-01T00:00:18Z"), 5, "the same term");
        assert_eq!(poll(&mut peers, 51, "2026-01-01T00:00:18Z"), 9);
    }

    #[test]
    fn our_own_clock_measures_how_long_a_gateway_is_silent_and_live() {
        let start = Instant::now();
        let mut peers = peers(start);
        let mut poll = |seconds, beat: &str| {
            let mut one = status("a", Some(beat), "5");
            one.status.get_or_insert_default().generation_applied = 1;
            peers.listed(vec![one], 9, start + Duration::from_secs(seconds));
            peers.live().first().map(|peer| (peer.silent.as_secs(), peer.live.as_secs()))
        };
        assert_eq!(poll(0, "2030-01-01T00:00:00Z"), Some((0, 0)));
        assert_eq!(poll(7, "2030-01-01T00:00:00Z"), Some((7, 7)));
        assert_eq!(poll(10, "1999-01-01T00:00:00Z"), Some((0, 10)));
        assert_eq!(poll(50, "1999-01-01T00:00:00Z"), None);
        assert_eq!(poll(60, "1999-01-01T00:00:01Z"), Some((0, 0)), "it is back");
    }

    #[test]
    fn no_gateway_becomes_dead_while_polls_fail() {
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
    fn a_gateway_without_an_applied_version_counts_as_the_slowest() {
        let start = Instant::now();
        let mut peers = peers(start);
        let beat = Some("2026-01-01T00:00:00Z");
        peers.listed(
            vec![status("a", beat, "12"), status("b", beat, "15"), status("edge-1", beat, "1")],
            20,
            start,
        );
        assert_eq!(peers.withdrawn(), 12, "our own object may be outdated");
        peers.listed(vec![status("a", beat, "12"), status("b", beat, "")], 20, start);
        assert_eq!(peers.withdrawn(), 0);
        peers.listed(vec![], 20, start);
        assert_eq!(peers.withdrawn(), 20);
    }

    #[test]
    fn a_gateway_without_a_heartbeat_for_40_s_is_marked_unknown_once() {
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
        assert!(peers.silent().is_empty(), "it is already marked");
    }

    #[test]
    fn addresses_of_other_gateways_are_known_even_if_they_are_not_live() {
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
    fn a_gateway_is_gone_a_day_after_its_last_heartbeat() {
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
        assert_eq!(gone(&peers, wall("2026-01-02T00:00:00Z")), ["b"], "a may be live with a wrong clock");
        peers.listed(list(), 0, start + LIVE);
        assert_eq!(gone(&peers, wall("2026-01-02T00:00:00Z")), ["a", "b"]);
        assert_eq!(gone(&peers, wall("2026-01-02T12:00:00Z")), ["a", "b", "c"]);
        let first = peers.gone(wall("2026-01-02T12:00:00Z")).remove(0);
        assert_eq!((first.uid.as_deref(), first.resource_version.as_deref()), (Some("uid-a"), Some("7")));
    }
}
