//! The reports of the other live gateways about a Service, combined with the result of this one.
//!
//! A gateway lists in its `GatewayStatus` the Services of which it does not serve every port, and those without a
//! backend there. It serves all other Services, up to the version of the Services that it reports as applied.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};

use jiff::{SignedDuration, Timestamp};
use tidegate_model::objects::{Labels, ObjectKey, Service};

/// A gateway without changes gets the newest version with the next bookmark of its watch, which API servers send once a
/// minute. One that is behind for longer does not follow.
const BEHIND_MAX: SignedDuration = SignedDuration::from_secs(75);

/// Another live gateway, according to its `GatewayStatus`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Peer {
    /// Its name.
    pub name: String,
    /// The version of the Services that all of its workers have applied.
    pub applied: u64,
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

/// The state of one Service on the other gateways.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Around {
    /// The number of live gateways, including this one.
    pub(super) gateways: usize,
    /// The gateways that are not ready, and so get no packets.
    pub(super) unready: Vec<String>,
    /// The gateways that are ready and do not serve it as requested, with the reason.
    pub(super) not_serving: Vec<String>,
    /// The gateways that are ready and have no backend for one of its ports.
    pub(super) without_backends: Vec<String>,
}

impl Around {
    /// The reports of the `peers` about a Service, of which this gateway `is_member` too or not. The Service's current spec exists since `version`, first seen at `since`.
    pub(super) fn new(
        peers: &[Peer],
        is_member: bool,
        now: Timestamp,
        key: &ObjectKey,
        version: u64,
        since: Timestamp,
    ) -> Self {
        let name = key.to_string();
        let mut around = Self { gateways: usize::from(is_member) + peers.len(), ..Self::default() };
        for peer in peers {
            let is_behind = peer.applied < version;
            if !peer.is_ready {
                around.unready.push(peer.name.clone());
            } else if peer.not_programmed.contains(&name) {
                around.not_serving.push(format!("{}, which cannot serve every port", peer.name));
            } else if is_behind && !peer.is_connected {
                around.not_serving.push(format!("{}, which is disconnected from the API server", peer.name));
            } else if is_behind && now.duration_since(since) >= BEHIND_MAX {
                around.not_serving.push(format!("{}, which has not applied the Service", peer.name));
            }
            if peer.is_ready && peer.without_backends.contains(&name) {
                around.without_backends.push(peer.name.clone());
            }
        }
        around
    }

    /// Formats ` on 1 of 3 gateways; not on a, which is not ready, b, which ...`; empty if all serve it.
    pub(super) fn shown(&self) -> String {
        let not = self.unready.len() + self.not_serving.len();
        if not == 0 {
            return String::new();
        }
        let (serving, gateways) = (self.gateways.saturating_sub(not), self.gateways);
        let unready = self.unready.iter().map(|name| format!("{name}, which is not ready"));
        let named: Vec<String> = unready.chain(self.not_serving.iter().cloned()).collect();
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

/// A number that changes when the other gateways' reports about a Service change.
pub(super) fn fingerprint(peers: &[Peer], key: &ObjectKey) -> u64 {
    let name = if peers.is_empty() { String::new() } else { key.to_string() };
    let mut hasher = DefaultHasher::new();
    for peer in peers {
        let lists = (peer.not_programmed.contains(&name), peer.without_backends.contains(&name));
        (&peer.name, peer.is_ready, peer.is_connected, lists).hash(&mut hasher);
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
