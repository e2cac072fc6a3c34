//! Pools of MetalLB.

use tidegate_model::objects::{AddressRange, Selector};
use tidegate_model::yaml::{Field, Fields};

use super::reader::Reader;
use crate::draft::{Announce, PoolDraft};
use crate::note::{NoteKind, Notes};
use crate::object::Object;
use crate::{addresses, selector};

impl<'a> Reader<'_, 'a> {
    pub(super) fn ip_address_pool(&mut self, object: &Object<'a>) {
        let mut pool =
            PoolDraft { labels: object.labels.clone(), ..PoolDraft::new(object.name, object.location()) };
        let spec = object.root.required("spec", "spec with addresses").and_then(|f| f.fields());
        if let Some(spec) = spec {
            self.addresses(&spec, &mut pool);
            if let Some(allocation) = spec.mapping("serviceAllocation") {
                self.allocation(&allocation, &mut pool);
            }
            self.notes.rest(&spec);
        }
        // Advertisements may select it later; without one, MetalLB announces nothing.
        pool.announce = Some(Announce::default());
        self.draft.pools.push(pool);
        object.finish(self.notes, true);
    }

    /// The AddressPool of versions 0.12 to 0.14.
    pub(super) fn old_address_pool(&mut self, object: &Object<'a>) {
        let pool =
            PoolDraft { labels: object.labels.clone(), ..PoolDraft::new(object.name, object.location()) };
        let spec = object.root.required("spec", "spec with protocol and addresses").and_then(|f| f.fields());
        if let Some(spec) = spec {
            self.old_pool(&spec, pool);
        }
        object.finish(self.notes, true);
    }

    /// A pool that contains its advertisements.
    pub(super) fn old_pool(&mut self, fields: &Fields<'a>, mut pool: PoolDraft) {
        self.addresses(fields, &mut pool);
        let protocol = fields
            .required("protocol", "layer2, bgp")
            .and_then(|f| f.one_of(&[("layer2", true), ("bgp", false)]));
        let is_l2 = protocol == Some(true);
        pool.announce = Some(Announce { l2: is_l2, bgp: protocol == Some(false) });
        if is_l2 {
            self.draft.layer2 = Some(true);
        }
        self.draft.pools.push(pool);
        let at = self.draft.pools.len() - 1;
        for item in fields.items("bgpAdvertisements") {
            if let Some(advertisement) = item.fields() {
                self.advertise(&item, &advertisement, &[at]);
            }
        }
        self.notes.rest(fields);
    }

    /// `addresses`, `autoAssign` and `avoidBuggyIPs`.
    fn addresses(&self, fields: &Fields<'a>, pool: &mut PoolDraft) {
        let list = fields.required("addresses", addresses::RANGE);
        let items = list.as_ref().map(Field::list).unwrap_or_default();
        let ranges: Vec<AddressRange> = items.iter().filter_map(addresses::range).collect();
        if let Some(list) = list.filter(|_| items.is_empty()) {
            list.error("the list is empty", addresses::RANGE);
        }
        pool.auto_assign = fields.get("autoAssign").and_then(|f| f.boolean()).unwrap_or(true);
        let avoids = fields.get("avoidBuggyIPs");
        if avoids.as_ref().and_then(Field::boolean) != Some(true) {
            pool.ranges = ranges;
            return;
        }
        let parts: Option<Vec<_>> = ranges.iter().map(|range| addresses::without_0_and_255(*range)).collect();
        if parts.is_none() {
            let why = "the pool is too large to leave out all addresses that end in .0 and .255";
            self.notes.key(NoteKind::Decide, fields, "avoidBuggyIPs", why);
        }
        pool.ranges = parts.map_or(ranges, |parts| parts.concat());
    }

    /// `serviceAllocation`: which Services may use the pool.
    fn allocation(&self, fields: &Fields<'a>, pool: &mut PoolDraft) {
        self.notes.key(
            NoteKind::NoCounterpart,
            fields,
            "priority",
            "AddressPools are used in the order of their names",
        );
        let names = fields.items("namespaces");
        let names: Vec<String> = names.iter().filter_map(|f| Some(f.string()?.to_owned())).collect();
        let mut namespaces: Vec<Selector> = read_all(self.notes, fields, "namespaceSelectors");
        if !names.is_empty() {
            namespaces.push(selector::namespaces(names));
        }
        let services = read_all(self.notes, fields, "serviceSelectors");
        for (selectors, selected) in [(namespaces, &mut pool.namespaces), (services, &mut pool.services)] {
            match selector::any_of(selectors) {
                Some(selector) => *selected = selector,
                None => {
                    let what = "selectors of different labels, of which one must match, cannot be combined: the pool \
                        is written with `disabled: true`; divide its addresses into a pool for each selector";
                    self.notes.add(NoteKind::Decide, fields.itself(), what);
                    pool.disabled = true;
                }
            }
        }
        self.notes.rest(fields);
    }
}

fn read_all(notes: &Notes, fields: &Fields<'_>, key: &'static str) -> Vec<Selector> {
    fields.items(key).iter().map(|item| selector::read(notes, item)).collect()
}
