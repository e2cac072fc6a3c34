//! CiliumBGPPeeringPolicy, the BGP configuration of Cilium before version 1.16.

use tidegate_model::yaml::Fields;

use super::bgp::{family, multihop, port, settings, timers_of};
use super::reader::{Reader, attributes};
use crate::bgp;
use crate::draft::{PeerDraft, Routes, asn, router_address_of};
use crate::note::NoteKind;
use crate::object::Object;
use crate::selector;

impl Reader<'_> {
    pub(super) fn peering_policy(&mut self, object: &Object<'_>) {
        let spec = object.root.required("spec", "spec with virtualRouters").and_then(|f| f.fields());
        let Some(spec) = spec else { return };
        self.notes.key(NoteKind::Decide, &spec, "nodeSelector", bgp::PEER_NODES);
        for item in spec.items("virtualRouters") {
            let Some(router) = item.fields() else { continue };
            let own = router.required("localASN", "the AS number of Cilium").and_then(|f| asn(&f));
            if router.get("exportPodCIDR").and_then(|f| f.boolean()) == Some(true) {
                let what = "only the addresses of Services are announced; keep Cilium for these routes";
                self.notes.key(NoteKind::NoCounterpart, &router, "exportPodCIDR", what);
            }
            // Without a selector, Cilium announces no Service.
            if let Some(field) = router.get("serviceSelector") {
                self.report_selector(&field);
                for pool in &mut self.draft.pools {
                    pool.announce.get_or_insert_default().bgp = true;
                }
            }
            for neighbor in router.items("neighbors") {
                let Some(fields) = neighbor.fields() else { continue };
                let peer = self.neighbor(&fields);
                if let (Some(own), Some(peer)) = (own, peer) {
                    self.draft.bgp.add(self.notes, &neighbor, own, peer);
                }
                self.notes.rest(&fields);
            }
            self.notes.rest(&router);
        }
        self.notes.rest(&spec);
        object.finish(self.notes, false);
    }

    fn neighbor(&mut self, fields: &Fields<'_>) -> Option<PeerDraft> {
        let mut settings = settings(self.notes, fields);
        settings.port = port(fields, "peerPort");
        settings.multihop = multihop(fields, "eBGPMultihopTTL");
        settings.hold_time = timers_of(self.notes, fields);
        for item in fields.items("families") {
            let Some(of_family) = item.fields() else { continue };
            settings.families.extend(family(self.notes, &of_family));
            self.notes.rest(&of_family);
        }
        if settings.families.is_empty() {
            // Cilium's default.
            settings.families = vec!["ipv4", "ipv6"];
        }
        for item in fields.items("advertisedPathAttributes") {
            if let Some(found) = item.fields() {
                self.path_attributes(&found);
            }
        }
        let address = fields.required("peerAddress", "the address of a router with its prefix length");
        let number = fields.required("peerASN", "the AS number of the router").and_then(|f| asn(&f));
        Some(PeerDraft { address: router_address_of(&address?)?, asn: number?, settings })
    }

    /// Attributes of the routes to the addresses of some pools.
    fn path_attributes(&mut self, fields: &Fields<'_>) {
        let kind = fields.required("selectorType", "CiliumLoadBalancerIPPool").and_then(|f| f.string());
        let selector = fields.get("selector").map(|f| selector::read(self.notes, &f)).unwrap_or_default();
        let routes = Routes { attributes: attributes(self.notes, fields), ..Routes::default() };
        if kind == Some("CiliumLoadBalancerIPPool") {
            for pool in self.draft.pools.iter_mut().filter(|pool| selector.matches(&pool.labels)) {
                if *pool.routes.get_or_insert_with(|| routes.clone()) != routes {
                    let what = "has one set of route attributes for all peers, and others are used; choose";
                    self.notes.add(
                        NoteKind::Decide,
                        fields.itself(),
                        format_args!("pool {} {what}", pool.name),
                    );
                }
            }
        } else {
            let what = "only routes to the addresses of pools have attributes";
            self.notes.key(NoteKind::NoCounterpart, fields, "selectorType", what);
        }
        self.notes.rest(fields);
    }
}
