//! Which of our addresses are ours at this moment: those of a forwarding state that are always ours, and those whose key
//! the gateway owns now.
//!
//! The slow path asks before each round of announcements, so a gateway whose time as an owner is over announces nothing
//! more. Pure, except that [`Ownership`] reads its clock.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use tidegate_core::ownership::{OwnerKey, Ownership};

use super::surroundings::Surroundings;

/// The addresses that may be ours.
#[derive(Debug, Default)]
pub(crate) struct Owned {
    always: BTreeSet<IpAddr>,
    shared: BTreeMap<IpAddr, OwnerKey>,
    /// The keys of `shared`, with whether the gateway owned them at the last look.
    keys: BTreeMap<OwnerKey, bool>,
}

impl Owned {
    /// Replaces all of them. Returns those that are ours now.
    pub(crate) fn replace(&mut self, around: &Surroundings, ownership: &Ownership) -> BTreeSet<IpAddr> {
        self.always.clone_from(&around.owned);
        self.shared.clone_from(&around.shared);
        let keys: BTreeSet<OwnerKey> = self.shared.values().copied().collect();
        let now = ownership.now();
        self.keys = keys.into_iter().map(|key| (key, ownership.owns_at(key, now))).collect();
        self.now()
    }

    /// Those that are ours now, if that has changed since the last look.
    pub(crate) fn turned(&mut self, ownership: &Ownership) -> Option<BTreeSet<IpAddr>> {
        let (now, mut has_turned) = (ownership.now(), false);
        for (key, owns) in &mut self.keys {
            let is_owned = ownership.owns_at(*key, now);
            has_turned |= *owns != is_owned;
            *owns = is_owned;
        }
        has_turned.then(|| self.now())
    }

    fn now(&self) -> BTreeSet<IpAddr> {
        let owns = |key: &OwnerKey| self.keys.get(key).is_some_and(|owns| *owns);
        let shared = self.shared.iter().filter(|(_, key)| owns(key)).map(|(address, _)| *address);
        self.always.iter().copied().chain(shared).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_core::ownership::BootTime;

    #[test]
    fn an_address_is_ours_from_the_grant_of_its_key_until_the_grant_ends() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let ownership = Ownership::by(|| BootTime(10));
        let (mine, other) = (OwnerKey::new(1), OwnerKey::new(2));
        let around = Surroundings {
            owned: BTreeSet::from([ip("10.0.0.1")]),
            shared: BTreeMap::from([(ip("10.0.0.2"), mine), (ip("10.0.0.3"), other)]),
            ..Surroundings::default()
        };
        let mut owned = Owned::default();
        assert_eq!(Vec::from_iter(owned.replace(&around, &ownership)), [ip("10.0.0.1")]);
        assert_eq!(owned.turned(&ownership), None);
        assert!(ownership.grant(mine, BootTime(11)));
        let now = owned.turned(&ownership).expect("it has changed");
        assert_eq!(Vec::from_iter(now), [ip("10.0.0.1"), ip("10.0.0.2")]);
        assert_eq!(owned.turned(&ownership), None, "once");
        assert!(ownership.grant(mine, BootTime(10)));
        assert_eq!(owned.turned(&ownership).map(Vec::from_iter), Some(vec![ip("10.0.0.1")]));
    }
}
