//! The BGP control plane of Cilium: cluster configurations, peer configurations and advertisements.

use std::collections::BTreeMap;

use tidegate_model::objects::{RouteAttributes, Selector};
use tidegate_model::yaml::{Field, Fields};

use super::reader::{EXTERNAL_IPS, Reader, attributes};
use crate::bgp;
use crate::draft::{PeerDraft, Routes, Settings, asn, router_address};
use crate::note::{NoteKind, Notes};
use crate::object::Object;
use crate::selector;

/// A CiliumBGPPeerConfig.
pub(super) struct PeerConfig {
    settings: Settings,
    /// The selectors of its advertisements.
    advertisements: Vec<Selector>,
}

/// Reads the peer configurations, by name.
pub(super) fn peer_configs<'a>(notes: &Notes, objects: &[&Object<'a>]) -> BTreeMap<&'a str, PeerConfig> {
    let mut configs = BTreeMap::new();
    for object in objects {
        let mut config = PeerConfig { settings: Settings::default(), advertisements: Vec::new() };
        if let Some(spec) = object.spec() {
            config.settings = settings(notes, &spec);
            if let Some(transport) = spec.mapping("transport") {
                config.settings.port = port(&transport, "peerPort");
                notes.rest(&transport);
            }
            if let Some(timers) = spec.mapping("timers") {
                config.settings.hold_time = timers_of(notes, &timers);
                notes.rest(&timers);
            }
            config.settings.multihop = multihop(&spec, "ebgpMultihop");
            families(notes, &spec, &mut config);
            notes.rest(&spec);
        }
        object.finish(notes, false);
        configs.insert(object.name, config);
    }
    configs
}

/// `authSecretRef` and `gracefulRestart`.
pub(super) fn settings(notes: &Notes, fields: &Fields<'_>) -> Settings {
    let secret = fields.get("authSecretRef").and_then(|f| f.string());
    let mut settings =
        Settings { has_password: secret.is_some_and(|name| !name.is_empty()), ..Settings::default() };
    if let Some(restart) = fields.mapping("gracefulRestart") {
        settings.graceful_restart = restart.get("enabled").and_then(|f| f.boolean()).unwrap_or(false);
        notes.without_counterpart(
            &restart,
            &[("restartTimeSeconds", "routers keep the routes for up to 120 s")],
        );
        notes.rest(&restart);
    }
    settings
}

/// A port, unless it is the default.
pub(super) fn port(fields: &Fields<'_>, key: &'static str) -> Option<i64> {
    fields.get(key).and_then(|f| f.integer(1..=65_535)).filter(|port| *port != bgp::PORT)
}

/// The number of hops, unless it is 1, which disables multihop.
pub(super) fn multihop(fields: &Fields<'_>, key: &'static str) -> Option<i64> {
    fields.get(key).and_then(|f| f.integer(1..=255)).filter(|hops| *hops > 1)
}

/// The hold time of `holdTimeSeconds` and the other timers.
pub(super) fn timers_of(notes: &Notes, fields: &Fields<'_>) -> Option<std::time::Duration> {
    let hold_time = fields.get("holdTimeSeconds").and_then(|f| bgp::seconds(&f, 3));
    let keepalive = fields.get("keepAliveTimeSeconds").and_then(|f| bgp::seconds(&f, 1));
    if keepalive.is_some_and(|time| bgp::differs(hold_time, time)) {
        notes.key(NoteKind::NoCounterpart, fields, "keepAliveTimeSeconds", bgp::KEEPALIVE);
    }
    notes.without_counterpart(fields, &[("connectRetryTimeSeconds", bgp::CONNECT_TIME)]);
    hold_time
}

/// The family of an item with `afi` and `safi`.
pub(super) fn family(notes: &Notes, fields: &Fields<'_>) -> Option<&'static str> {
    let afi = fields.required("afi", "ipv4, ipv6").and_then(|f| f.string());
    let safi = fields.required("safi", "unicast").and_then(|f| f.string());
    let found = ["ipv4", "ipv6"].into_iter().find(|family| afi == Some(family) && safi == Some("unicast"));
    if found.is_none() && afi.is_some() && safi.is_some() {
        notes.add(NoteKind::NoCounterpart, fields.itself(), "only ipv4 and ipv6 unicast are announced");
    }
    found
}

fn families(notes: &Notes, spec: &Fields<'_>, config: &mut PeerConfig) {
    let items = spec.items("families");
    for item in &items {
        let Some(fields) = item.fields() else { continue };
        let family = family(notes, &fields);
        config.settings.families.extend(family);
        let advertisements = fields.get("advertisements").map(|field| selector::read(notes, &field));
        config.advertisements.extend(advertisements.filter(|_| family.is_some()));
        notes.rest(&fields);
    }
    if items.is_empty() {
        // Cilium's default.
        config.settings.families = vec!["ipv4", "ipv6"];
    }
}

impl Reader<'_> {
    pub(super) fn cluster_config(&mut self, object: &Object<'_>, configs: &BTreeMap<&str, PeerConfig>) {
        let spec = object.root.required("spec", "spec with bgpInstances").and_then(|f| f.fields());
        let Some(spec) = spec else { return };
        self.notes.key(NoteKind::Decide, &spec, "nodeSelector", bgp::PEER_NODES);
        for item in spec.items("bgpInstances") {
            let Some(instance) = item.fields() else { continue };
            instance.allow(&["name"]);
            let own = instance.get("localASN").map(|f| asn(&f));
            if own.is_none() {
                self.notes.add(NoteKind::Decide, &item, "localASN is missing: its peers are left out");
            }
            self.notes.without_counterpart(
                &instance,
                &[("localPort", "the gateway listens on no other port than 179")],
            );
            for peer in instance.items("peers") {
                let Some(fields) = peer.fields() else { continue };
                let read = self.peer(&fields, configs);
                if let (Some(Some(own)), Some(read)) = (own, read) {
                    self.draft.bgp.add(self.notes, &peer, own, read);
                }
                self.notes.rest(&fields);
            }
            self.notes.rest(&instance);
        }
        self.notes.rest(&spec);
        object.finish(self.notes, false);
    }

    /// A peer; `None` if it is left out.
    fn peer(&self, fields: &Fields<'_>, configs: &BTreeMap<&str, PeerConfig>) -> Option<PeerDraft> {
        fields.allow(&["name"]);
        let left_out = |what| self.notes.add(NoteKind::Decide, fields.itself(), what);
        let reference = fields.mapping("peerConfigRef");
        let settings = match reference {
            None => Settings { families: vec!["ipv4", "ipv6"], ..Settings::default() },
            Some(reference) => {
                reference.allow(&["group", "kind"]);
                let name = reference.required("name", "the name of a CiliumBGPPeerConfig")?;
                self.notes.rest(&reference);
                let known = name.string().and_then(|name| configs.get(name));
                if known.is_none() {
                    self.notes.add(
                        NoteKind::Decide,
                        &name,
                        "the input has no CiliumBGPPeerConfig of this name",
                    );
                }
                known.map(|config| config.settings.clone()).unwrap_or_default()
            }
        };
        self.notes.without_counterpart(fields, &[("autoDiscovery", "a peer needs an address")]);
        // 0 stands for any number.
        let number = fields.get("peerASN").filter(|f| f.node.text() != Some("0"));
        let Some(address) = fields.get("peerAddress") else {
            left_out("the peer is left out: it has no address");
            return None;
        };
        let Some(number) = number else {
            left_out("the peer is left out: it needs the AS number of the router");
            return None;
        };
        Some(PeerDraft { address: router_address(&address)?, asn: asn(&number)?, settings })
    }

    pub(super) fn advertisements(&mut self, object: &Object<'_>, configs: &BTreeMap<&str, PeerConfig>) {
        let selected = |config: &PeerConfig| config.advertisements.iter().any(|s| s.matches(&object.labels));
        if !configs.values().any(selected) {
            let what = "no CiliumBGPPeerConfig in the input selects it, so it is not converted";
            let what = format!("{} {}: {what}", object.kind, object.name);
            return self.notes.add(NoteKind::Decide, object.itself(), what);
        }
        if !configs.values().all(selected) {
            let what = "every peer gets the routes, although only some peer configurations select this advertisement";
            self.notes.add(NoteKind::Decide, object.itself(), what);
        }
        let spec = object.root.required("spec", "spec with advertisements").and_then(|f| f.fields());
        if let Some(spec) = spec {
            for item in spec.items("advertisements") {
                if let Some(fields) = item.fields() {
                    self.advertisement(&item, &fields);
                }
            }
            self.notes.rest(&spec);
        }
        object.finish(self.notes, true);
    }

    fn advertisement(&mut self, item: &Field<'_>, fields: &Fields<'_>) {
        let of_type = fields.required("advertisementType", "Service").and_then(|f| f.string());
        let routes = Routes {
            attributes: fields.mapping("attributes").map_or_else(RouteAttributes::default, |found| {
                let read = attributes(self.notes, &found);
                self.notes.rest(&found);
                read
            }),
            ..Routes::default()
        };
        if of_type != Some("Service") {
            let what = "only the addresses of Services are announced; keep Cilium for these routes";
            self.notes.key(NoteKind::NoCounterpart, fields, "advertisementType", what);
            fields.allow(&["selector"]);
            return self.notes.rest(fields);
        }
        let (has_addresses, routes) =
            match fields.required("service", "service with addresses").and_then(|f| f.fields()) {
                Some(service) => (self.service_addresses(&service), self.aggregation(&service, routes)),
                None => (false, routes),
            };
        match fields.get("selector") {
            Some(field) => self.report_selector(&field),
            None => {
                self.notes.add(
                    NoteKind::Decide,
                    item,
                    "it has no selector, and so announces no Service in Cilium",
                );
                return self.notes.rest(fields);
            }
        }
        if has_addresses {
            self.advertise(item, &routes);
        }
        self.notes.rest(fields);
    }

    /// Whether the addresses of LoadBalancers are announced.
    fn service_addresses(&self, service: &Fields<'_>) -> bool {
        let mut found = false;
        for kind in service.items("addresses") {
            match kind.one_of(&[("LoadBalancerIP", 0), ("ExternalIP", 1), ("ClusterIP", 2)]) {
                Some(0) => found = true,
                Some(1) => self.notes.add(NoteKind::Decide, &kind, EXTERNAL_IPS),
                Some(_) => {
                    let what =
                        "cluster IPs are not announced; services.ownClusterIPs serves them if you route them";
                    self.notes.add(NoteKind::NoCounterpart, &kind, what);
                }
                None => {}
            }
        }
        found
    }

    /// The routes with the lengths of aggregates.
    fn aggregation(&self, service: &Fields<'_>, routes: Routes) -> Routes {
        let length = |key, shortest, longest| {
            let length = service.get(key).and_then(|f: Field<'_>| f.integer(0..=longest));
            if length.is_some_and(|length| length < shortest) {
                self.notes.key(NoteKind::Decide, service, key, bgp::short_aggregate(shortest));
            }
            length.filter(|length| *length >= shortest)
        };
        let aggregation_length = length("aggregationLengthIPv4", 8, 32);
        let aggregation_length_v6 = length("aggregationLengthIPv6", 16, 128);
        self.notes.rest(service);
        Routes { aggregation_length, aggregation_length_v6, ..routes }
    }
}
