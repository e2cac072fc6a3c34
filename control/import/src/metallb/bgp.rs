//! BGP of MetalLB: peers, BFD profiles, communities and advertisements.

use std::time::Duration;

use tidegate_model::objects::{COMMUNITY_ACCEPTED, Community, RouteAttributes};
use tidegate_model::yaml::{Field, Fields};

use super::reader::{NODES, Profile, Reader};
use crate::bgp;
use crate::draft::{PeerDraft, Routes, Settings, asn, router_address};
use crate::note::NoteKind;
use crate::object::Object;

impl<'a> Reader<'_, 'a> {
    pub(super) fn community(&mut self, object: &Object<'a>) {
        let Some(spec) = object.spec() else { return object.finish(self.notes, false) };
        for item in spec.items("communities") {
            let Some(fields) = item.fields() else { continue };
            let name = fields.required("name", "a name").and_then(|f| f.string());
            let value = fields.required("value", COMMUNITY_ACCEPTED).and_then(|f| f.string());
            if let (Some(name), Some(value)) = (name, value) {
                self.communities.insert(name.to_owned(), value.to_owned());
            }
            self.notes.rest(&fields);
        }
        self.notes.rest(&spec);
        object.finish(self.notes, false);
    }

    pub(super) fn bfd_profile(&mut self, object: &Object<'a>) {
        match object.spec() {
            Some(spec) => self.add_profile(object.name, object.itself(), &spec),
            None => self.profiles.push(Profile {
                name: object.name.to_owned(),
                at: object.itself().clone(),
                interval: bgp::BFD_INTERVAL,
                multiplier: bgp::BFD_MULTIPLIER,
                is_used: false,
            }),
        }
        object.finish(self.notes, false);
    }

    pub(super) fn add_profile(&mut self, name: &str, at: &Field<'a>, fields: &Fields<'a>) {
        let interval = |key| {
            let field = fields.get(key)?;
            let ms = field.integer(10..=60_000)?;
            u64::try_from(ms).ok().map(Duration::from_millis)
        };
        let [receive, transmit] =
            ["receiveInterval", "transmitInterval"].map(|key| interval(key).unwrap_or(bgp::BFD_INTERVAL));
        if receive != transmit {
            let what = "a gateway has one interval for both directions; the longer one is used";
            self.notes.key(NoteKind::Decide, fields, "receiveInterval", what);
            self.notes.key(NoteKind::Decide, fields, "transmitInterval", what);
        }
        let multiplier = fields.get("detectMultiplier").and_then(|f| f.integer(1..=255));
        self.notes.without_counterpart(
            fields,
            &[
                ("echoInterval", "BIRD sends no echo packets"),
                ("echoMode", "BIRD sends no echo packets"),
                ("passiveMode", "the gateway always begins sessions"),
                ("minimumTtl", "not configurable"),
            ],
        );
        fields.allow(&["name"]);
        self.notes.rest(fields);
        self.profiles.push(Profile {
            name: name.to_owned(),
            at: at.clone(),
            interval: receive.max(transmit),
            multiplier: multiplier.and_then(|n| u32::try_from(n).ok()).unwrap_or(bgp::BFD_MULTIPLIER),
            is_used: false,
        });
    }

    pub(super) fn bgp_peer(&mut self, object: &Object<'a>) {
        let spec = object.root.required("spec", "spec with myASN and peerAddress").and_then(|f| f.fields());
        if let Some(spec) = spec {
            self.peer(&spec);
        }
    }

    pub(super) fn peer(&mut self, fields: &Fields<'a>) {
        let own = fields.required("myASN", "the AS number of the speaker").and_then(|f| asn(&f));
        // 0 stands for an absent number.
        let number = fields.get("peerASN").filter(|f| f.node.text() != Some("0")).map(|f| asn(&f));
        let dynamic = fields.get("dynamicASN");
        let is_internal =
            dynamic.as_ref().and_then(|f| f.one_of(&[("internal", true), ("external", false)])) == Some(true);
        let peer_asn = number.unwrap_or(own.filter(|_| is_internal));
        let address = fields.get("peerAddress").map(|f| router_address(&f));
        let settings = self.settings(fields);
        let left_out = |what| self.notes.add(NoteKind::Decide, fields.itself(), what);
        match (own, address, peer_asn) {
            (Some(own), Some(Some(address)), Some(asn)) => {
                self.draft.bgp.add(self.notes, fields.itself(), own, PeerDraft { address, asn, settings });
            }
            (_, None, _) => left_out("the peer is left out: a peer needs an address"),
            (Some(_), _, None) if number.is_none() => {
                left_out("the peer is left out: it needs the AS number of the router");
            }
            // The errors are already reported.
            _ => {}
        }
        self.notes.rest(fields);
    }

    /// The settings of a peer that have defaults.
    fn settings(&mut self, fields: &Fields<'a>) -> Settings {
        let flag = |key| fields.get(key).and_then(|f: Field<'_>| f.boolean()).unwrap_or(false);
        let has_password =
            fields.get("password").and_then(|f| f.secret("the password")).is_some_and(|p| !p.is_empty())
                || fields.mapping("passwordSecret").is_some_and(|secret| {
                    secret.allow(&["namespace"]);
                    let has_name = secret.get("name").is_some();
                    self.notes.rest(&secret);
                    has_name
                });
        let hold_time = fields.get("holdTime").and_then(|f| bgp::hold_time(self.notes, &f));
        let keepalive = fields.get("keepaliveTime").and_then(|f| f.duration(Duration::ZERO..=Duration::MAX));
        if keepalive.is_some_and(|time| bgp::differs(hold_time, time)) {
            self.notes.key(NoteKind::NoCounterpart, fields, "keepaliveTime", bgp::KEEPALIVE);
        }
        let families = if flag("dualStackAddressFamily") { vec!["ipv4", "ipv6"] } else { Vec::new() };
        self.notes.key(NoteKind::Decide, fields, "nodeSelectors", bgp::PEER_NODES);
        self.notes.key(NoteKind::Decide, fields, "routerID", bgp::ROUTER_ID);
        self.notes.without_counterpart(
            fields,
            &[
                ("interface", "BGP unnumbered is not supported"),
                ("sourceAddress", bgp::SOURCE_ADDRESS),
                ("connectTime", bgp::CONNECT_TIME),
                ("vrf", "the gateway reaches its peers through dataplane.interfaces"),
            ],
        );
        if flag("disableMP") {
            self.notes.key(NoteKind::NoCounterpart, fields, "disableMP", "`families` of the peer decides");
        }
        let bfd = fields.get("bfdProfile").and_then(|f| Some((f.string()?, f)));
        let bfd = bfd.filter(|(name, _)| !name.is_empty());
        if let Some((name, field)) = &bfd {
            self.use_profile(name, field);
        }
        Settings {
            port: fields
                .get("peerPort")
                .and_then(|f| f.integer(1..=65_535))
                .filter(|port| *port != bgp::PORT),
            bfd: bfd.is_some(),
            has_password,
            // FRR's `ebgp-multihop` without a number.
            multihop: flag("ebgpMultiHop").then_some(255),
            graceful_restart: flag("enableGracefulRestart"),
            hold_time,
            families,
        }
    }

    /// Takes the timers of a profile. All peers of a gateway have the same.
    fn use_profile(&mut self, name: &str, field: &Field<'a>) {
        let Some(profile) = self.profiles.iter_mut().find(|profile| profile.name == name) else {
            let what =
                format!("the input has no BFDProfile {name}; the peer uses BFD with the default timers");
            return self.notes.add(NoteKind::Decide, field, what);
        };
        profile.is_used = true;
        let timers = (profile.interval, profile.multiplier);
        if *self.draft.bgp.bfd.get_or_insert(timers) != timers {
            let what = "all peers of a gateway have the same BFD timers; those of the first profile are used";
            self.notes.add(NoteKind::Decide, field, what);
        }
    }

    pub(super) fn bgp_advertisement(&mut self, object: &Object<'a>) {
        let spec = object.spec();
        let selected = self.selected(spec.as_ref());
        match &spec {
            Some(spec) => {
                self.advertise(object.itself(), spec, &selected);
                self.notes.rest(spec);
            }
            None => selected.into_iter().for_each(|pool| self.announce(pool).bgp = true),
        }
    }

    /// Announces the pools with the attributes of an advertisement.
    pub(super) fn advertise(&mut self, of: &Field<'a>, fields: &Fields<'a>, pools: &[usize]) {
        let length = |key, longest| fields.get(key).and_then(|f: Field<'_>| f.integer(1..=longest));
        let lengths = [("aggregationLength", 32, 8), ("aggregationLengthV6", 128, 16)].map(
            |(key, longest, shortest)| {
                let length = length(key, longest).filter(|length| *length != longest);
                if length.is_some_and(|length| length < shortest) {
                    self.notes.key(NoteKind::Decide, fields, key, bgp::short_aggregate(shortest));
                }
                length.filter(|length| *length >= shortest)
            },
        );
        let local_pref = fields.get("localPref").and_then(|f| f.integer(0..=i64::from(u32::MAX)));
        let communities = fields.items("communities").iter().filter_map(|f| self.community_of(f)).collect();
        self.notes.key(NoteKind::Decide, fields, "nodeSelectors", NODES);
        let what = "every peer gets the routes to all pools; to announce pools to different routers, use gateway \
            groups (docs/layer2.md)";
        self.notes.key(NoteKind::Decide, fields, "peers", what);
        let local_pref = local_pref.and_then(|n| u32::try_from(n).ok());
        let attributes = RouteAttributes { communities, local_pref, ..RouteAttributes::default() }.sorted();
        let [aggregation_length, aggregation_length_v6] = lengths;
        let routes = Routes { attributes, aggregation_length, aggregation_length_v6 };
        for pool in pools {
            self.announce(*pool).bgp = true;
            let pool = &mut self.draft.pools[*pool];
            if *pool.routes.get_or_insert_with(|| routes.clone()) != routes {
                let what =
                    "has one set of route attributes, and those of another advertisement are used; choose";
                self.notes.add(NoteKind::Decide, of, format_args!("pool {} {what}", pool.name));
            }
        }
        self.notes.rest(fields);
    }

    /// A community, or the value of a name.
    fn community_of(&self, field: &Field<'a>) -> Option<Community> {
        let written = field.string()?;
        let value = self.communities.get(written).map_or(written, String::as_str);
        let read = value.strip_prefix("large:").unwrap_or(value).parse();
        if read.is_err() {
            field.error(
                format_args!("{written:?} is neither a community nor a name of a Community in the input"),
                COMMUNITY_ACCEPTED,
            );
        }
        read.ok()
    }
}
