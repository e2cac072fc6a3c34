//! The attributes of routes: communities, local preference, MED, prepended AS numbers.
//!
//! Peers, pools and annotations of Services use the same terms. Values only: `config` reads them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The maximum number of prepended AS numbers.
pub const PREPENDS_MAX: u8 = 10;

/// The maximum number of communities in one list.
pub const COMMUNITIES_MAX: usize = 32;

/// The maximum number of communities of a route to a VIP that Services share. The time that BIRD needs grows with the
/// square of the number.
const ROUTE_COMMUNITIES_MAX: usize = 128;

/// What is accepted as a community.
pub const COMMUNITY_ACCEPTED: &str = "a community such as 65000:100, a large one such as 65000:1:2, or one of \
     no-export, no-advertise, no-export-subconfed, graceful-shutdown";
/// What is accepted as a local preference.
pub const LOCAL_PREF_ACCEPTED: &str = "a whole number from 0 to 4294967295";
/// What is accepted as a MED.
pub const MED_ACCEPTED: &str = LOCAL_PREF_ACCEPTED;
/// What is accepted as a number of prepended AS numbers.
pub const PREPENDS_ACCEPTED: &str = "a whole number from 0 to 10";

/// A BGP community.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Community {
    /// RFC 1997.
    Standard(u16, u16),
    /// RFC 8092.
    Large(u32, u32, u32),
}

/// The well-known communities (RFC 1997, RFC 8326).
const WELL_KNOWN: [(&str, Community); 4] = [
    ("no-export", Community::Standard(0xffff, 0xff01)),
    ("no-advertise", Community::Standard(0xffff, 0xff02)),
    ("no-export-subconfed", Community::Standard(0xffff, 0xff03)),
    ("graceful-shutdown", Community::Standard(0xffff, 0)),
];

impl FromStr for Community {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if let Some((_, community)) = WELL_KNOWN.iter().find(|(name, _)| *name == text) {
            return Ok(*community);
        }
        // `parse` alone would accept a sign.
        let number = |part: &str| {
            let digits = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            digits.then(|| part.parse::<u32>().ok()).flatten().ok_or(COMMUNITY_ACCEPTED)
        };
        let short = |part: &str| u16::try_from(number(part)?).map_err(|_| COMMUNITY_ACCEPTED);
        match text.split(':').collect::<Vec<_>>()[..] {
            [a, b] => Ok(Self::Standard(short(a)?, short(b)?)),
            [a, b, c] => Ok(Self::Large(number(a)?, number(b)?, number(c)?)),
            _ => Err(COMMUNITY_ACCEPTED),
        }
    }
}

impl fmt::Display for Community {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Standard(a, b) => write!(f, "{a}:{b}"),
            Self::Large(a, b, c) => write!(f, "{a}:{b}:{c}"),
        }
    }
}

impl TryFrom<String> for Community {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<Community> for String {
    fn from(community: Community) -> Self {
        community.to_string()
    }
}

/// The attributes of a route. For an absent value, the peer's configuration or BGP's default applies.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RouteAttributes {
    /// `communities`, sorted and without duplicates.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub communities: Vec<Community>,
    /// `localPref`: LOCAL_PREF (RFC 4271 section 5.1.5), which only peers in the same AS receive.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub local_pref: Option<u32>,
    /// `med`: MULTI_EXIT_DISC (RFC 4271 section 5.1.4).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub med: Option<u32>,
    /// `prepends`: how many additional times the gateway's AS number appears in the path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prepends: Option<u8>,
}

impl RouteAttributes {
    /// Sorts the communities and removes duplicates.
    #[must_use]
    pub fn sorted(self) -> Self {
        Self { communities: union(&self.communities, &[]), ..self }
    }

    /// Whether nothing is set.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// These attributes, with the values of `wider` where this has none, and the communities of both.
    #[must_use]
    pub fn or(&self, wider: &Self) -> Self {
        Self {
            communities: union(&self.communities, &wider.communities),
            local_pref: self.local_pref.or(wider.local_pref),
            med: self.med.or(wider.med),
            prepends: self.prepends.or(wider.prepends),
        }
    }

    /// The attributes of a route that two requests share. For each attribute, the value that attracts less traffic is
    /// used, so that the result doesn't depend on the order. The communities of both are used, or only `self`'s if
    /// there are more than [`ROUTE_COMMUNITIES_MAX`].
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let least = |a: Option<u32>, b: Option<u32>| a.into_iter().chain(b).min();
        let communities = union(&self.communities, &other.communities);
        let fit = communities.len() <= ROUTE_COMMUNITIES_MAX;
        Self {
            communities: if fit { communities } else { self.communities.clone() },
            local_pref: least(self.local_pref, other.local_pref),
            med: self.med.max(other.med),
            prepends: self.prepends.max(other.prepends),
        }
    }
}

/// `bgp` of a pool.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PoolRoutes {
    /// The attributes of routes to the pool's VIPs.
    pub attributes: RouteAttributes,
    /// `aggregationLength`: IPv4 VIPs are announced as the prefixes of this length that contain them.
    pub aggregation_v4: Option<u8>,
    /// `aggregationLengthV6`: the length for IPv6 VIPs.
    pub aggregation_v6: Option<u8>,
}

fn union(a: &[Community], b: &[Community]) -> Vec<Community> {
    let mut all = [a, b].concat();
    all.sort_unstable();
    all.dedup();
    all
}

/// Reads a list of communities from an annotation, separated by commas or white space.
///
/// # Errors
/// The first part that is not a community or exceeds [`COMMUNITIES_MAX`].
pub fn communities(text: &str) -> Result<Vec<Community>, String> {
    let parts = text.split([',', ' ', '\t', '\n']).filter(|part| !part.is_empty());
    let mut read: Vec<Community> = Vec::new();
    for part in parts {
        let community: Community = part.parse().map_err(|_| part.to_owned())?;
        if !read.contains(&community) {
            if read.len() == COMMUNITIES_MAX {
                return Err(part.to_owned());
            }
            read.push(community);
        }
    }
    read.sort_unstable();
    Ok(read)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn communities_are_read_as_they_are_shown_and_nothing_else_is() {
        for (text, community) in [
            ("65000:100", Community::Standard(65_000, 100)),
            ("4200000000:1:2", Community::Large(4_200_000_000, 1, 2)),
            ("no-export", Community::Standard(65_535, 65_281)),
        ] {
            assert_eq!(text.parse(), Ok(community));
            assert_eq!(community.to_string().parse(), Ok(community));
        }
        for text in
            ["", "1", "65536:1", "1:65536", "1:2:3:4", "a:1", "+1:2", "1:-2", "1: 2", "4294967296:1:1"]
        {
            assert!(text.parse::<Community>().is_err(), "{text:?}");
        }
        assert_eq!(
            communities("2:2, 1:1  2:2"),
            Ok(vec![Community::Standard(1, 1), Community::Standard(2, 2)])
        );
        assert_eq!(communities("1:1,x"), Err("x".to_owned()));
    }

    #[test]
    fn a_list_and_a_shared_route_have_a_limited_number_of_communities() {
        let list = |first: usize, count: usize| {
            (first..first + count).map(|n| format!("1:{n}")).collect::<Vec<_>>().join(",")
        };
        let most = communities(&list(0, COMMUNITIES_MAX)).expect("as many as a list may have");
        assert_eq!(most.len(), COMMUNITIES_MAX);
        let twice = format!("{0},{0}", list(0, COMMUNITIES_MAX));
        assert_eq!(communities(&twice), Ok(most), "one that is repeated counts once");
        assert_eq!(communities(&list(0, COMMUNITIES_MAX + 1)), Err(format!("1:{COMMUNITIES_MAX}")));
        let of = |n: usize| RouteAttributes {
            communities: communities(&list(n * COMMUNITIES_MAX, COMMUNITIES_MAX)).expect("a list"),
            ..RouteAttributes::default()
        };
        let all = (1..1_000).fold(of(0), |route, n| route.with(&of(n)));
        assert_eq!(all.communities.len(), ROUTE_COMMUNITIES_MAX);
        assert!(of(0).communities.iter().all(|community| all.communities.contains(community)));
    }

    #[test]
    fn shared_routes_carry_what_attracts_less_whatever_the_order() {
        let one = RouteAttributes { local_pref: Some(200), med: Some(5), ..RouteAttributes::default() };
        let two = RouteAttributes { local_pref: Some(100), prepends: Some(2), ..RouteAttributes::default() };
        let both =
            RouteAttributes { local_pref: Some(100), med: Some(5), prepends: Some(2), communities: vec![] };
        assert_eq!((one.with(&two), two.with(&one)), (both.clone(), both));
        assert_eq!(one.or(&two).local_pref, Some(200), "the narrower one decides");
    }
}
