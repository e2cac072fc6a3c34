//! Cilium: pools of LB IPAM, L2 announcement policies, and the BGP control plane.
//!
//! Cilium announces the addresses of selected Services, and Tidegate those of pools. So a policy or an advertisement
//! applies to all pools; if it selects some of the Services only, the report says so.

mod bgp;
mod peering_policy;
mod reader;

use tidegate_model::objects::{AddressRange, Operator};
use tidegate_model::yaml::{Field, Fields};

use crate::draft::{Announce, Draft, PoolDraft};
use crate::note::{NoteKind, Notes};
use crate::object::Object;
use crate::services::Annotations;
use crate::{addresses, selector};
use reader::{EXTERNAL_IPS, Reader};

/// The resources at an API server.
pub(crate) const PATHS: &[&[&str]] = &[
    &["/apis/cilium.io/v2/ciliumloadbalancerippools", "/apis/cilium.io/v2alpha1/ciliumloadbalancerippools"],
    &["/apis/cilium.io/v2alpha1/ciliuml2announcementpolicies"],
    &["/apis/cilium.io/v2/ciliumbgpclusterconfigs", "/apis/cilium.io/v2alpha1/ciliumbgpclusterconfigs"],
    &["/apis/cilium.io/v2/ciliumbgppeerconfigs", "/apis/cilium.io/v2alpha1/ciliumbgppeerconfigs"],
    &["/apis/cilium.io/v2/ciliumbgpadvertisements", "/apis/cilium.io/v2alpha1/ciliumbgpadvertisements"],
    &[
        "/apis/cilium.io/v2/ciliumbgpnodeconfigoverrides",
        "/apis/cilium.io/v2alpha1/ciliumbgpnodeconfigoverrides",
    ],
    &["/apis/cilium.io/v2alpha1/ciliumbgppeeringpolicies"],
    &["/api/v1/services"],
];

/// The annotations of Services.
pub(crate) const ANNOTATIONS: Annotations = Annotations {
    prefixes: &["lbipam.cilium.io/", "io.cilium/lb-ipam-", "service.cilium.io/"],
    understood: &[
        "lbipam.cilium.io/ips",
        "lbipam.cilium.io/sharing-key",
        "io.cilium/lb-ipam-ips",
        "io.cilium/lb-ipam-sharing-key",
        "service.cilium.io/src-ranges-policy",
    ],
    sharing_keys: &["lbipam.cilium.io/sharing-key", "io.cilium/lb-ipam-sharing-key"],
};

/// The labels of Services by which Cilium selects a namespace and a name.
const NAMESPACE: &str = "io.kubernetes.service.namespace";
const NAME: &str = "io.kubernetes.service.name";

/// Converts the objects of Cilium.
pub(crate) fn convert(objects: &[Object<'_>], notes: &Notes) -> Draft {
    let mut reader = Reader { notes, draft: Draft::default(), has_routes: false };
    for object in objects.iter().filter(|object| object.kind == "CiliumLoadBalancerIPPool") {
        reader.pool(object);
    }
    let of_kind = |kind: &str| objects.iter().filter(|object| object.kind == kind).collect::<Vec<_>>();
    let configs = bgp::peer_configs(notes, &of_kind("CiliumBGPPeerConfig"));
    for object in objects {
        match (object.group, object.kind) {
            ("cilium.io", "CiliumL2AnnouncementPolicy") => reader.layer2_policy(object),
            ("cilium.io", "CiliumBGPClusterConfig") => reader.cluster_config(object, &configs),
            ("cilium.io", "CiliumBGPAdvertisement") => reader.advertisements(object, &configs),
            ("cilium.io", "CiliumBGPPeeringPolicy") => reader.peering_policy(object),
            ("cilium.io", "CiliumBGPNodeConfigOverride") => {
                notes.add(
                    NoteKind::Decide,
                    object.itself(),
                    format_args!(
                        "CiliumBGPNodeConfigOverride {}: each gateway has its own configuration",
                        object.name
                    ),
                );
            }
            ("cilium.io", "CiliumLoadBalancerIPPool" | "CiliumBGPPeerConfig") | ("", "Service") => {}
            _ => object.skip(notes, "not a resource of Cilium that is converted"),
        }
    }
    reader.draft
}

impl Reader<'_> {
    fn pool(&mut self, object: &Object<'_>) {
        let at = object.location();
        let mut pool = PoolDraft { labels: object.labels.clone(), ..PoolDraft::new(object.name, at) };
        // Nothing announces it unless a policy or an advertisement does.
        pool.announce = Some(Announce::default());
        let spec = object.root.required("spec", "spec with blocks").and_then(|f| f.fields());
        if let Some(spec) = spec {
            self.blocks(object, &spec, &mut pool);
            pool.disabled = spec.get("disabled").and_then(|f| f.boolean()).unwrap_or(false);
            if let Some(field) = spec.get("serviceSelector") {
                self.service_selector(&field, &mut pool);
            }
            self.notes.rest(&spec);
        }
        self.draft.pools.push(pool);
        object.finish(self.notes, true);
    }

    /// `blocks`, before version 1.15 `cidrs`, and `allowFirstLastIPs`.
    fn blocks(&self, object: &Object<'_>, spec: &Fields<'_>, pool: &mut PoolDraft) {
        let choice = spec.get("allowFirstLastIPs").and_then(|f| f.one_of(&[("Yes", true), ("No", false)]));
        let (mut has_ends, mut count) = (false, 0);
        for key in ["blocks", "cidrs"] {
            for item in spec.items(key) {
                count += 1;
                let Some(fields) = item.fields() else { continue };
                if let Some(cidr) = fields.get("cidr") {
                    let net = cidr.parsed(
                        |text| addresses::parse(text).filter(|_| text.contains('/')),
                        addresses::CIDR,
                    );
                    has_ends |= net.is_some_and(|net| net.size() > 2);
                    pool.ranges.extend(net.map(|net| match choice {
                        Some(false) => addresses::without_ends(net),
                        _ => net,
                    }));
                } else {
                    pool.ranges.extend(block(&fields));
                }
                self.notes.rest(&fields);
            }
        }
        if count == 0 {
            let at = spec.get("blocks").unwrap_or_else(|| spec.itself().clone());
            at.error("the pool has no addresses", "blocks with cidr, or with start and stop");
        }
        if choice.is_none() && has_ends && object.version == "v2alpha1" {
            let what = "before version 1.16, Cilium did not use the first and the last address of a CIDR; the pool \
                uses them";
            self.notes.add(NoteKind::Decide, spec.itself(), what);
        }
    }

    /// The selector of Services, which may also select by namespace and name.
    fn service_selector(&self, field: &Field<'_>, pool: &mut PoolDraft) {
        let mut read = selector::read(self.notes, field);
        let namespace = read.match_labels.remove(NAMESPACE).map(|name| Operator::In(vec![name]));
        let (of_namespace, others): (Vec<_>, Vec<_>) =
            read.match_expressions.into_iter().partition(|expression| expression.key == NAMESPACE);
        for operator in namespace.into_iter().chain(of_namespace.into_iter().map(|e| e.operator)) {
            let by_name = selector::of_namespace(operator);
            pool.namespaces.match_expressions.extend(by_name.match_expressions);
        }
        read.match_expressions = others;
        let by_name = read.match_labels.remove(NAME).is_some();
        let before = read.match_expressions.len();
        read.match_expressions.retain(|expression| expression.key != NAME);
        if by_name || read.match_expressions.len() < before {
            let what = "a pool cannot select a Service by its name: the pool is written with `disabled: true`; give \
                the Service a label, and select it by that";
            self.notes.add(NoteKind::Decide, field, what);
            pool.disabled = true;
        }
        pool.services = read;
    }

    fn layer2_policy(&mut self, object: &Object<'_>) {
        let Some(spec) = object.spec() else { return object.finish(self.notes, false) };
        let flag = |key| spec.get(key).and_then(|f| f.boolean()).unwrap_or(false);
        if flag("loadBalancerIPs") {
            self.draft.layer2 = Some(true);
            for pool in &mut self.draft.pools {
                pool.announce.get_or_insert_default().l2 = true;
            }
        }
        if flag("externalIPs") {
            self.notes.key(NoteKind::Decide, &spec, "externalIPs", EXTERNAL_IPS);
        }
        if let Some(field) = spec.get("serviceSelector") {
            self.report_selector(&field);
        }
        self.notes.key(NoteKind::Decide, &spec, "nodeSelector", NODES);
        let interfaces = "the gateway answers on all of its dataplane.interfaces";
        self.notes.without_counterpart(&spec, &[("interfaces", interfaces)]);
        self.notes.rest(&spec);
        object.finish(self.notes, false);
    }
}

/// Why selectors of nodes are not converted.
const NODES: &str = "every gateway announces the pools; to choose gateways, set gatewaySelector of the pool and \
    metadata.labels of each gateway";

/// A block with `start` and perhaps `stop`.
fn block(fields: &Fields<'_>) -> Option<AddressRange> {
    let first = fields.required("start", "an address; or cidr").and_then(|f| f.ip());
    let stop = fields.get("stop");
    let last = stop.as_ref().map_or(first, Field::ip);
    let range = AddressRange::new(first?, last?);
    if let (None, Some(stop)) = (range, stop) {
        stop.error("it is before start, or of the other family", "an address that is not before start");
    }
    range
}
