//! The reports of the other live gateways about a Service, combined with the result of this one.
//!
//! A gateway lists in its `GatewayStatus` the Services of which it does not serve every port, and those without a
//! backend there. It serves all other Services, up to the version of the Services that it reports as applied.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use tidegate_model::objects::{Labels, ObjectKey, Service};

/// The time in which a gateway confirms a change of a Service. The change reaches every watch within a second, and the
/// gateway reports it a second later at most.
pub(super) const CONFIRM_MAX: SignedDuration = SignedDuration::from_secs(5);

/// The shortest silence of a gateway that is reported. Longer ones are reported when they have doubled, so that a status
/// is written a few times until the gateway no longer counts as live.
const SILENCE_MIN: Duration = Duration::from_secs(5);

/// Another live gateway, according to its `GatewayStatus`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// The version of the Services that all of its workers have applied; 0 if it does not say.
    pub applied: u64,
    /// The time from its last heartbeat to the last poll, by our clock.
    pub silent: Duration,
    /// The time from which it has been live without a pause to the last poll.
    pub live: Duration,
    /// Whether it is ready, so that routers send it packets.
    pub is_ready: bool,
    /// Whether it is connected to the API server.
    pub is_connected: bool,
    /// Its labels.
    pub labels: Labels,
    /// Services with a port that it does not serve, as `namespace/name`.
    pub not_programmed: BTreeSet<String>,
    /// Services with a port for which it has no backend that takes flows, as `namespace/name`.
    pub without_backends: BTreeSet<String>,
}

impl Peer {
    /// Whether it has not confirmed a Service that last changed in this version. 0 is an unknown version.
    pub(super) fn is_behind(&self, version: u64) -> bool {
        self.applied > 0 && self.applied < version
    }

    /// Its name, with the time for which nothing has come from it if that is long.
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
pub(super) struct Around {
    /// The number of live gateways, including this one.
    pub(super) gateways: usize,
    /// The gateways that are not ready, and so get no packets.
    pub(super) unready: Vec<String>,
    /// The gateways that are ready and do not serve it as requested, with the reason.
    pub(super) not_serving: Vec<String>,
    /// The gateways that are ready and have not confirmed the last change of it in time.
    pub(super) lagging: Vec<String>,
    /// Whether a gateway that is ready has not confirmed the last change of it, in time or not.
    pub(super) is_unconfirmed: bool,
    /// The gateways that are ready and have no backend for one of its ports.
    pub(super) without_backends: Vec<String>,
}

impl Around {
    /// The reports of the `peers` about a Service, of whose group this gateway `is_member` too or not. They are from a
    /// poll that began at `polled`.
    pub(super) fn new(
        peers: &[Peer],
        is_member: bool,
        polled: Timestamp,
        key: &ObjectKey,
        change: Change,
    ) -> Self {
        let is_due = polled.duration_since(change.since) >= CONFIRM_MAX;
        let name = key.to_string();
        let mut around = Self { gateways: usize::from(is_member) + peers.len(), ..Self::default() };
        for peer in peers {
            let is_behind = peer.is_behind(change.version);
            if !peer.is_ready {
                around.unready.push(peer.name.clone());
            } else if peer.not_programmed.contains(&name) {
                around.not_serving.push(format!("{}, which cannot serve every port", peer.name));
            } else if is_behind && !peer.is_connected {
                around.not_serving.push(format!("{}, which is disconnected from the API server", peer.name));
            } else if is_behind {
                around.is_unconfirmed = true;
                // One that was away has this time again.
                if is_due && peer.live >= CONFIRM_MAX.unsigned_abs() {
                    around.lagging.push(peer.unconfirmed());
                }
            }
            if peer.is_ready && peer.without_backends.contains(&name) {
                around.without_backends.push(peer.name.clone());
            }
        }
        around
    }

    /// Formats ` on 1 of 3 gateways; not on a, which is not ready, b, which ...`; empty if all serve it.
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

/// The names of the live gateways that have not applied `version`, each with the version that it has.
pub(super) fn behind(peers: &[Peer], version: u64) -> String {
    let mut names = String::new();
    for peer in peers.iter().filter(|peer| peer.applied < version) {
        let comma = if names.is_empty() { "" } else { ", " };
        let silent = if peer.is_connected { "" } else { ", which is disconnected from the API server" };
        write!(names, "{comma}{}{silent}", peer.name).expect("writing to a String cannot fail");
    }
    names
}

/// A number that changes when the other gateways' reports about a Service change, which last changed in this version.
pub(super) fn fingerprint(peers: &[Peer], key: &ObjectKey, version: u64) -> u64 {
    let name = if peers.is_empty() { String::new() } else { key.to_string() };
    let mut hasher = DefaultHasher::new();
    for peer in peers {
        let lists = (peer.not_programmed.contains(&name), peer.without_backends.contains(&name));
        (&peer.name, peer.is_ready, peer.is_connected, peer.is_behind(version), lists).hash(&mut hasher);
    }
    hasher.finish()
}

/// A hash of the requests of the owner of a Service: its spec, and the annotations and labels that configure
/// gateways. Services of an API server have no generation.
pub(super) fn asked(service: &Service) -> u64 {
    let Service { meta, ingress_ips: _, stored: _, .. } = service;
    let spec = Service {
        meta: tidegate_model::objects::Metadata::new(meta.key.clone()),
        ingress_ips: Vec::new(),
        ..service.clone()
    };
    let spec = Service { stored: tidegate_model::objects::Stored::default(), ..spec };
    let mut hasher = DefaultHasher::new();
    // The text has every field of the spec, including those of later versions.
    format!("{spec:?}").hash(&mut hasher);
    let configures = |key: &str| key.contains('/') && !key.starts_with("kubectl.kubernetes.io/");
    for (key, value) in meta.annotations.iter().filter(|(key, _)| configures(key)) {
        (key, value).hash(&mut hasher);
    }
    meta.labels.hash(&mut hasher);
    hasher.finish()
}
