//! Which addresses the gateway currently answers for: addresses of the forwarding state that are always its own,
//! addresses whose key it owns, its SNAT addresses unless released, and addresses taken over from other gateways.
//!
//! The slow path checks this before each round of announcements, so a gateway whose ownership has expired stops
//! announcing. Pure, except that [`Ownership`] reads its clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use tidegate_spec::ownership::{OwnerKey, Ownership};

use super::resolver_context::ResolverContext;

/// The addresses that may be ours.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    always: BTreeSet<IpAddr>,
    shared: BTreeMap<IpAddr, OwnerKey>,
    /// The keys of `shared`, and whether the gateway owned them at the last check.
    keys: BTreeMap<OwnerKey, bool>,
    /// The gateway's SNAT addresses, which are included in `always`.
    snat: BTreeSet<IpAddr>,
    has_released_snat: bool,
    taken_over: Arc<BTreeSet<IpAddr>>,
}

impl Owned {
    /// Replaces all addresses. Returns those that are currently ours.
    pub(crate) fn replace(&mut self, context: &ResolverContext, ownership: &Ownership) -> BTreeSet<IpAddr> {
        self.always.clone_from(&context.owned);
        self.shared.clone_from(&context.shared);
        self.snat.clone_from(&context.snat);
        self.check_snat(ownership);
        let keys: BTreeSet<OwnerKey> = self.shared.values().copied().collect();
        let now = ownership.now();
        self.keys = keys.into_iter().map(|key| (key, ownership.owns_at(key, now))).collect();
        self.now()
    }

    /// The addresses that are currently ours, if that has changed since the last check.
    pub(crate) fn changed(&mut self, ownership: &Ownership) -> Option<BTreeSet<IpAddr>> {
        let (now, mut has_turned) = (ownership.now(), false);
        for (key, owns) in &mut self.keys {
            let is_owned = ownership.owns_at(*key, now);
            has_turned |= *owns != is_owned;
            *owns = is_owned;
        }
        has_turned |= self.check_snat(ownership);
        has_turned.then(|| self.now())
    }

    /// Returns whether the SNAT addresses that are ours have changed since the last check.
    fn check_snat(&mut self, ownership: &Ownership) -> bool {
        let (released, taken_over) = (!ownership.answers_for_snat(), ownership.taken_over());
        let is_same = released == self.has_released_snat
            && (Arc::ptr_eq(&taken_over, &self.taken_over) || taken_over == self.taken_over);
        (self.has_released_snat, self.taken_over) = (released, taken_over);
        !is_same
    }

    fn now(&self) -> BTreeSet<IpAddr> {
        let owns = |key: &OwnerKey| self.keys.get(key).is_some_and(|owns| *owns);
        let shared = self.shared.iter().filter(|(_, key)| owns(key)).map(|(address, _)| *address);
        let is_released = |address: &IpAddr| self.has_released_snat && self.snat.contains(address);
        let always = self.always.iter().copied().filter(|address| !is_released(address));
        always.chain(shared).chain(self.taken_over.iter().copied()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_spec::ownership::BootTime;

    #[test]
    fn an_address_is_ours_from_the_grant_of_its_key_until_the_grant_ends() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let ownership = Ownership::by(|| BootTime(10));
        let (mine, other) = (OwnerKey::new(1), OwnerKey::new(2));
        let context = ResolverContext {
            owned: BTreeSet::from([ip("10.0.0.1")]),
            shared: BTreeMap::from([(ip("10.0.0.2"), mine), (ip("10.0.0.3"), other)]),
            ..ResolverContext::default()
        };
        let mut owned = Owned::default();
        assert_eq!(Vec::from_iter(owned.replace(&context, &ownership)), [ip("10.0.0.1")]);
        assert_eq!(owned.changed(&ownership), None);
        assert!(ownership.grant(mine, BootTime(11)));
        let now = owned.changed(&ownership).expect("it has changed");
        assert_eq!(Vec::from_iter(now), [ip("10.0.0.1"), ip("10.0.0.2")]);
        assert_eq!(owned.changed(&ownership), None, "once");
        assert!(ownership.grant(mine, BootTime(10)));
        assert_eq!(owned.changed(&ownership).map(Vec::from_iter), Some(vec![ip("10.0.0.1")]));
    }

    #[test]
    fn snat_addresses_are_ours_unless_released_and_those_that_were_taken_over() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let ownership = Ownership::by(|| BootTime(10));
        let (vip, snat, other) = (ip("10.0.0.1"), ip("10.0.0.2"), ip("10.0.0.3"));
        let context =
            ResolverContext { owned: [vip, snat].into(), snat: [snat].into(), ..ResolverContext::default() };
        let mut owned = Owned::default();
        assert_eq!(Vec::from_iter(owned.replace(&context, &ownership)), [vip, snat]);
        ownership.release_snat(true);
        assert_eq!(owned.changed(&ownership).map(Vec::from_iter), Some(vec![vip]));
        assert_eq!(owned.changed(&ownership), None, "once");
        ownership.take_over(&Arc::new([other].into()), BootTime(11));
        assert_eq!(owned.changed(&ownership).map(Vec::from_iter), Some(vec![vip, other]));
        ownership.release_snat(false);
        ownership.take_over(&Arc::default(), BootTime(11));
        assert_eq!(owned.changed(&ownership).map(Vec::from_iter), Some(vec![vip, snat]));
    }
}
