//! MetalLB: its resources (`metallb.io`), and its ConfigMap of versions before 0.13.
//!
//! MetalLB announces a pool once for each advertisement that selects it. A pool of Tidegate has one set of route
//! attributes, so the first BGPAdvertisement is converted and the others are reported.

mod bgp;
mod config_map;
mod pool;
mod reader;

use tidegate_model::yaml::Fields;

use crate::draft::{Draft, PoolDraft};
use crate::note::{NoteKind, Notes};
use crate::object::Object;
use crate::services::Annotations;

pub(crate) use config_map::unfold_config;

use reader::{NODES, Reader};

/// The resources at an API server.
pub(crate) const PATHS: &[&[&str]] = &[
    &["/apis/metallb.io/v1beta1/ipaddresspools"],
    &["/apis/metallb.io/v1beta1/addresspools"],
    &["/apis/metallb.io/v1beta1/l2advertisements"],
    &["/apis/metallb.io/v1beta1/bgpadvertisements"],
    &["/apis/metallb.io/v1beta2/bgppeers", "/apis/metallb.io/v1beta1/bgppeers"],
    &["/apis/metallb.io/v1beta1/bfdprofiles"],
    &["/apis/metallb.io/v1beta1/communities"],
    &["/api/v1/namespaces/metallb-system/configmaps/config"],
    &["/api/v1/services"],
];

/// The annotations of Services.
pub(crate) const ANNOTATIONS: Annotations = Annotations {
    prefixes: &["metallb.io/", "metallb.universe.tf/"],
    understood: &[
        "metallb.io/loadBalancerIPs",
        "metallb.io/address-pool",
        "metallb.io/allow-shared-ip",
        "metallb.universe.tf/loadBalancerIPs",
        "metallb.universe.tf/address-pool",
        "metallb.universe.tf/allow-shared-ip",
    ],
    sharing_keys: &["metallb.io/allow-shared-ip", "metallb.universe.tf/allow-shared-ip"],
};

/// Converts the objects of MetalLB.
pub(crate) fn convert(objects: &[Object<'_>], notes: &Notes) -> Draft {
    let mut reader = Reader::new(notes);
    let configs: Vec<(&Object<'_>, Fields<'_>)> =
        objects.iter().filter(|object| object.kind == "ConfigMap").filter_map(config).collect();
    // What others refer to comes first.
    for object in objects {
        match (object.group, object.kind) {
            ("metallb.io", "Community") => reader.community(object),
            ("metallb.io", "BFDProfile") => reader.bfd_profile(object),
            _ => {}
        }
    }
    configs.iter().for_each(|(_, config)| reader.definitions_of_config(config));
    for object in objects {
        match (object.group, object.kind) {
            ("metallb.io", "IPAddressPool") => reader.ip_address_pool(object),
            ("metallb.io", "AddressPool") => reader.old_address_pool(object),
            _ => {}
        }
    }
    configs.iter().for_each(|(_, config)| reader.pools_of_config(config));
    for object in objects {
        match (object.group, object.kind) {
            ("metallb.io", "L2Advertisement") => reader.l2_advertisement(object),
            ("metallb.io", "BGPAdvertisement") => reader.bgp_advertisement(object),
            ("metallb.io", "BGPPeer") => reader.bgp_peer(object),
            ("metallb.io", "Community" | "BFDProfile" | "IPAddressPool" | "AddressPool") => continue,
            ("", "ConfigMap") if configs.iter().any(|(config, _)| std::ptr::eq(*config, object)) => {}
            ("", "Service") => continue,
            _ => {
                object.skip(notes, "not a resource of MetalLB that is converted");
                continue;
            }
        }
        object.finish(notes, false);
    }
    configs.iter().for_each(|(object, config)| reader.peers_of_config(object, config));
    reader.finish()
}

/// The configuration in a ConfigMap of MetalLB.
fn config<'o, 'a>(object: &'o Object<'a>) -> Option<(&'o Object<'a>, Fields<'a>)> {
    let data = object.itself().node.entry("data")?;
    data.node.entry("config").filter(|config| config.node.entry("addressPools").is_some())?;
    Some((object, object.root.mapping("data")?.mapping("config")?))
}

impl<'a> Reader<'_, 'a> {
    fn definitions_of_config(&mut self, config: &Fields<'a>) {
        if let Some(communities) = config.get("bgpCommunities") {
            self.communities.extend(communities.labels());
        }
        for profile in config.items("bfdProfiles") {
            let Some(fields) = profile.fields() else { continue };
            if let Some(name) = fields.required("name", "the name of the profile").and_then(|f| f.string()) {
                self.add_profile(name, &profile, &fields);
            }
        }
    }

    fn pools_of_config(&mut self, config: &Fields<'a>) {
        for pool in config.items("addressPools") {
            let Some(fields) = pool.fields() else { continue };
            let name = fields.required("name", "the name of the pool").and_then(|f| f.string());
            let at = pool.sheet.location(pool.at());
            self.old_pool(&fields, PoolDraft::new(name.unwrap_or_default(), at));
        }
    }

    fn peers_of_config(&mut self, object: &Object<'a>, config: &Fields<'a>) {
        for peer in config.items("peers") {
            if let Some(fields) = peer.fields() {
                self.peer(&fields);
            }
        }
        self.notes.rest(config);
        if let Some(data) = object.root.mapping("data") {
            data.allow(&["config"]);
            self.notes.rest(&data);
        }
    }

    fn l2_advertisement(&mut self, object: &Object<'a>) {
        let spec = object.spec();
        let selected = self.selected(spec.as_ref());
        self.draft.layer2 = Some(true);
        for pool in selected {
            self.announce(pool).l2 = true;
        }
        if let Some(spec) = spec {
            self.notes.key(NoteKind::Decide, &spec, "nodeSelectors", NODES);
            self.notes.without_counterpart(
                &spec,
                &[("interfaces", "the gateway answers on all of its dataplane.interfaces")],
            );
            self.notes.rest(&spec);
        }
    }
}
