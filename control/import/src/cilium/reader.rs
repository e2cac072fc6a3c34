//! The state of a conversion of Cilium's objects, and what several of them have in common.

use tidegate_model::objects::{Community, RouteAttributes};
use tidegate_model::yaml::{Field, Fields};

use crate::draft::{Draft, Routes};
use crate::note::{NoteKind, Notes};
use crate::selector;

/// What to do about external IPs.
pub(super) const EXTERNAL_IPS: &str =
    "a gateway announces spec.externalIPs that are in a pool with `externalIPs: true`; add one";

/// Reads the objects into a draft.
pub(super) struct Reader<'n> {
    pub(super) notes: &'n Notes,
    pub(super) draft: Draft,
    /// Whether an advertisement has set the attributes of all pools.
    pub(super) has_routes: bool,
}

impl Reader<'_> {
    /// Reports a selector of Services that does not select all of them.
    pub(super) fn report_selector(&self, field: &Field<'_>) {
        if !selector::selects_all(&selector::read(self.notes, field)) {
            let what = "the addresses of all Services are announced; to announce some only, give them a pool of their \
                own and set its `announce`";
            self.notes.add(NoteKind::Decide, field, what);
        }
    }

    /// Announces all pools by BGP. The attributes of the first advertisement apply.
    pub(super) fn advertise(&mut self, of: &Field<'_>, routes: &Routes) {
        for pool in &mut self.draft.pools {
            pool.announce.get_or_insert_default().bgp = true;
            if !self.has_routes {
                pool.routes = Some(routes.clone());
            } else if pool.routes.as_ref() != Some(routes) {
                let what =
                    "has one set of route attributes, and those of another advertisement are used; choose";
                self.notes.add(NoteKind::Decide, of, format_args!("pool {} {what}", pool.name));
            }
        }
        self.has_routes = true;
    }
}

/// `communities` and `localPreference`.
pub(super) fn attributes(notes: &Notes, fields: &Fields<'_>) -> RouteAttributes {
    let mut read = RouteAttributes::default();
    if let Some(communities) = fields.mapping("communities") {
        for key in ["standard", "large", "wellKnown"] {
            read.communities
                .extend(communities.items(key).iter().filter_map(|item| item.parsed(community, COMMUNITY)));
        }
        notes.rest(&communities);
    }
    let preference = fields.get("localPreference").and_then(|f| f.integer(0..=i64::from(u32::MAX)));
    read.local_pref = preference.and_then(|n| u32::try_from(n).ok());
    read.sorted()
}

const COMMUNITY: &str =
    "a community such as 65000:100 or \"4259840100\", a large one such as 65000:1:2, or a well-known one";

/// A community as Cilium writes it: also as one number, or as a name.
fn community(text: &str) -> Option<Community> {
    const WELL_KNOWN: [(&str, u16); 10] = [
        ("planned-shut", 0),
        ("accept-own", 1),
        ("route-filter-translated-v4", 2),
        ("route-filter-v4", 3),
        ("route-filter-translated-v6", 4),
        ("route-filter-v6", 5),
        ("llgr-stale", 6),
        ("no-llgr", 7),
        ("blackhole", 666),
        ("no-peer", 65_284),
    ];
    if let Ok(number) = text.parse::<u32>() {
        let [a, b] = [number >> 16, number & 0xffff].map(|half| u16::try_from(half).unwrap_or_default());
        return Some(Community::Standard(a, b));
    }
    match WELL_KNOWN.iter().find(|(name, _)| *name == text) {
        Some((_, low)) => Some(Community::Standard(0xffff, *low)),
        None if text == "internet" => Some(Community::Standard(0, 0)),
        None => text.parse().ok(),
    }
}
