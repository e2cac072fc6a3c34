//! The state of a conversion of MetalLB's objects: the draft, and what objects refer to by name.

use std::collections::BTreeMap;
use std::time::Duration;

use tidegate_model::yaml::{Field, Fields};

use crate::draft::{Announce, Draft};
use crate::note::{NoteKind, Notes};
use crate::selector;

/// Why selectors of nodes are not converted.
pub(super) const NODES: &str = "every gateway announces the pools; to choose gateways, set gatewaySelector of the pool \
    and metadata.labels of each gateway";

/// Reads the objects into a draft.
pub(super) struct Reader<'n, 'a> {
    pub(super) notes: &'n Notes,
    pub(super) draft: Draft,
    /// The values of the names of communities.
    pub(super) communities: BTreeMap<String, String>,
    pub(super) profiles: Vec<Profile<'a>>,
}

/// A BFD profile.
pub(super) struct Profile<'a> {
    pub(super) name: String,
    /// Where it is in the input.
    pub(super) at: Field<'a>,
    pub(super) interval: Duration,
    pub(super) multiplier: u32,
    /// Whether a peer uses it.
    pub(super) is_used: bool,
}

impl<'n, 'a> Reader<'n, 'a> {
    /// A reader that has read nothing yet.
    pub(super) fn new(notes: &'n Notes) -> Self {
        Self { notes, draft: Draft::default(), communities: BTreeMap::new(), profiles: Vec::new() }
    }

    /// The pools that an advertisement selects: by name, by their labels, or all.
    pub(super) fn selected(&self, spec: Option<&Fields<'a>>) -> Vec<usize> {
        let Some(spec) = spec else { return (0..self.draft.pools.len()).collect() };
        let names = spec.items("ipAddressPools");
        let selectors = spec.items("ipAddressPoolSelectors");
        if names.is_empty() && selectors.is_empty() {
            return (0..self.draft.pools.len()).collect();
        }
        let mut selected = Vec::new();
        for name in &names {
            let Some(text) = name.string() else { continue };
            match self.draft.pools.iter().position(|pool| pool.name == text) {
                Some(at) => selected.push(at),
                None => self.notes.add(
                    NoteKind::Decide,
                    name,
                    format_args!("the input has no IPAddressPool {text}"),
                ),
            }
        }
        for field in &selectors {
            let selector = selector::read(self.notes, field);
            let matches = |at: &usize| selector.matches(&self.draft.pools[*at].labels);
            selected.extend((0..self.draft.pools.len()).filter(matches));
        }
        selected.sort_unstable();
        selected.dedup();
        selected
    }

    pub(super) fn announce(&mut self, pool: usize) -> &mut Announce {
        self.draft.pools[pool].announce.get_or_insert_default()
    }

    pub(super) fn finish(self) -> Draft {
        for profile in self.profiles.iter().filter(|profile| !profile.is_used) {
            let what = format!("no peer uses the BFD profile {}", profile.name);
            self.notes.add(NoteKind::NoCounterpart, &profile.at, what);
        }
        self.draft
    }
}
