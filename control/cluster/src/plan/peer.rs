//! The reports of the other live gateways about a Service, combined with the result of this one.
//!
//! A gateway lists in its `GatewayStatus` the Services that it doesn't fully serve, and those with a port without a
//! backend. It serves all other Services, up to the version of the Services that it reports as applied.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tidegate_model::objects::{Labels, ObjectKey, Service};

/// The time in which a gateway confirms a change of a Service. The change reaches every watch within a second, and the
/// gateway reports it at most a second later.
pub(super) const CONFIRM_MAX: SignedDuration = SignedDuration::from_secs(5);

/// The shortest silence of a gateway that is reported. Longer ones are reported each time they have doubled, so that a
/// status is written only a few times until the gateway is no longer live.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// Another live gateway, according to its `GatewayStatus`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Peer {
    /// Its name.
    pub(crate) name: String,
    /// The version of the Services that all of its workers have applied; 0 if unknown.
    pub(crate) applied: u64,
    /// The time from its last heartbeat to the last poll, by our clock.
    pub(crate) silent: Duration,
    /// How long it had been live without interruption at the last poll.
    pub(crate) live: Duration,
    /// Whether it is ready, so that routers send it packets.
    pub(crate) is_ready: bool,
    /// Whether it is connected to the API server.
    pub(crate) is_connected: bool,
    /// Its labels.
    pub(crate) labels: Labels,
    /// Services with a port that it does not serve, as `namespace/name`.
    pub(crate) not_programmed: BTreeSet<String>,
    /// Services with a port for which it has no backend that accepts flows, as `namespace/name`.
    pub(crate) without_backends: BTreeSet<String>,
}

impl Peer {
    /// Whether it has not confirmed a Service that last changed in this version. 0 is an unknown version.
    pub(super) fn is_behind(&self, version: u64) -> bool {
        self.applied > 0 && self.applied < version
    }

    /// Its name, and how long it has been silent if that is long.
    fn unconfirmed(&self) -> String {
        let mut silent = SILENCE_MIN;
        while self.silent >= silent * 2 {
            silent *= 2;
        }
        let how = match self.silent >= silent {
            true => format!(" and has been silent for more than {} s", silent.as_secs()),
            false => String::new(),
        };
        format!("{}, which has not confirmed the last change of the Service{how}", self.name)
    }
}

/// The version in which the owner of a Service last changed its requests, and when this gateway first saw that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) version: u64,
    pub(super) since: Timestamp,
}

/// The state of one Service on the other gateways.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct PeerSummary {
    /// The number of live gateways, including this one.
    pub(super) gateways: usize,
    /// The gateways that are not ready and therefore receive no packets.
    pub(super) unready: Vec<String>,
    /// The ready gateways that don't serve it as requested, with the reason.
    pub(super) not_serving: Vec<String>,
    /// The ready gateways that have not confirmed its last change in time.
    pub(super) lagging: Vec<String>,
    /// Whether a ready gateway has not confirmed its last change, in time or not.
    pub(super) is_unconfirmed: bool,
    /// The ready gateways that have no backend for one of its ports.
    pub(super) without_backends: Vec<String>,
}

impl PeerSummary {
    /// Combines the reports of the `peers` about a Service. `is_member`: whether this gateway is in the Service's
    /// group, too. The poll of the reports started at `polled`.
    pub(super) fn new(
        peers: &[Peer],
        is_member: bool,
        polled: Timestamp,
        key: &ObjectKey,
        change: Change,
    ) -> Self {
        let is_due = polled.duration_since(change.since) >= CONFIRM_MAX;
        let name = key.to_string();
        let mut peer_summary = Self { gateways: usize::from(is_member) + peers.len(), ..Self::default() };
        for peer in peers {
            let is_behind = peer.is_behind(change.version);
            if !peer.is_ready {
                peer_summary.unready.push(peer.name.clone());
            } else if peer.not_programmed.contains(&name) {
                peer_summary.not_serving.push(format!("{}, which cannot serve every port", peer.name));
            } else if is_behind && !peer.is_connected {
                peer_summary
                    .not_serving
                    .push(format!("{}, which is disconnected from the API server", peer.name));
            } else if is_behind {
                peer_summary.is_unconfirmed = true;
                // A gateway that has only just become live gets the full time again.
                if is_due && peer.live >= CONFIRM_MAX.unsigned_abs() {
                    peer_summary.lagging.push(peer.unconfirmed());
                }
            }
            if peer.is_ready && peer.without_backends.contains(&name) {
                peer_summary.without_backends.push(peer.name.clone());
            }
        }
        peer_summary
    }

    /// Formats ` on 1 of 3 gateways; not on a, which is not ready; b, which ...`; empty if all serve it.
    pub(super) fn shown(&self) -> String {
        let not = self.unready.len() + self.not_serving.len() + self.lagging.len();
        if not == 0 {
            return String::new();
        }
        let (serving, gateways) = (self.gateways.saturating_sub(not), self.gateways);
        let unready = self.unready.iter().map(|name| format!("{name}, which is not ready"));
        let named: Vec<String> =
            unready.chain(self.not_serving.iter().chain(&self.lagging).cloned()).collect();
        format!(" on {serving} of {gateways} gateways; not on {}", named.join("; "))
    }
}

/// The names of the live gateways that have not applied `version`, with a note on disconnected ones.
pub(super) fn behind(peers: &[Peer], version: u64) -> String {
    let mut names = String::new();
    for peer in peers.iter().filter(|peer| peer.applied < version) {
        let comma = if names.is_empty() { "" } else { ", " };
        let silent = if peer.is_connected { "" } else { ", which is disconnected from the API server" };
        write!(names, "{comma}{}{silent}", peer.name).expect("writing to a String cannot fail");
    }
    names
}

/// A hash that changes when the other gateways' reports about a Service change. `version` is that of its last change.
pub(super) fn fingerprint(peers: &[Peer], key: &ObjectKey, version: u64) -> u64 {
    let name = if peers.is_empty() { String::new() } else { key.to_string() };
    let mut hasher = DefaultHasher::new();
    for peer in peers {
        let lists = (peer.not_programmed.contains(&name), peer.without_backends.contains(&name));
        (&peer.name, peer.is_ready, peer.is_connected, peer.is_behind(version), lists).hash(&mut hasher);
    }
    hasher.finish()
}

/// A hash of the requests of the owner of a Service: its spec, and the annotations and labels that configure gateways.
/// Services have no generation.
pub(super) fn requests(service: &Service) -> u64 {
    let Service { meta, ingress_ips: _, stored: _, .. } = service;
    let spec = Service {
        meta: tidegate_model::objects::Metadata::new(meta.key.clone()),
        ingress_ips: Vec::new(),
        ..service.clone()
    };
    let spec = Service { stored: tidegate_model::objects::Stored::default(), ..spec };
    let mut hasher = DefaultHasher::new();
    // The debug text has every field of the spec, including fields that later versions add.
    format!("{spec:?}").hash(&mut hasher);
    let configures = |key: &str| key.contains('/') && !key.starts_with("kubectl.kubernetes.io/");
    for (key, value) in meta.annotations.iter().filter(|(key, _)| configures(key)) {
        (key, value).hash(&mut hasher);
    }
    meta.labels.hash(&mut hasher);
    hasher.finish()
}
