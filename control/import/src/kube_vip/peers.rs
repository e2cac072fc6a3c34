//! The BGP peers of kube-vip: `bgp_peeraddress` and its companions, and the list `bgp_peers`.
//!
//! Invariant: messages never repeat the list, because it contains passwords.

use std::net::IpAddr;
use std::time::Duration;

use super::environment::{Environment, Variable, boolean};
use crate::bgp;
use crate::draft::{BgpDraft, PeerDraft, Settings};
use crate::note::{NoteKind, Notes};

const ASN: std::ops::RangeInclusive<i64> = 1..=4_294_967_294;

/// What is accepted as an item of `bgp_peers`.
const PEER: &str = "ADDRESS:AS:PASSWORD:MULTIHOP:PORT:MPBGP:BFD, such as 192.0.2.1:65000::false, with IPv6 addresses in brackets; \
    all after AS is optional";

/// Reads the peers.
pub(super) fn read(environment: &Environment<'_>, notes: &Notes, draft: &mut BgpDraft) {
    let own = environment.number("bgp_as", ASN).and_then(|n| u32::try_from(n).ok());
    let hold_time = hold_time(environment, notes);
    for (name, why) in [("bgp_routerid", bgp::ROUTER_ID), ("bgp_routerinterface", bgp::ROUTER_ID)] {
        if let Some(variable) = environment.get(name) {
            notes.add(NoteKind::Decide, &variable.field, format_args!("{name}: {why}"));
        }
    }
    let single = single(environment, hold_time);
    let mut peers: Vec<_> = single.into_iter().collect();
    if let Some(list) = environment.get("bgp_peers") {
        for (n, item) in list.value.split(',').map(str::trim).filter(|item| !item.is_empty()).enumerate() {
            match item_of_list(item) {
                Ok((address, asn, settings, bfd)) => {
                    if bfd.is_some_and(|timers| *draft.bfd.get_or_insert(timers) != timers) {
                        let what =
                            "bgp_peers: all peers of a gateway have the same BFD timers; the first are used";
                        notes.add(NoteKind::Decide, &list.field, what);
                    }
                    let settings = Settings { hold_time, ..settings };
                    peers.push((list, PeerDraft { address, asn, settings }));
                }
                Err(why) if why == UNNUMBERED => {
                    notes.add(
                        NoteKind::Decide,
                        &list.field,
                        format_args!("bgp_peers: peer {}: {why}", n + 1),
                    );
                }
                Err(why) => list.field.error(format_args!("bgp_peers: peer {}: {why}", n + 1), PEER),
            }
        }
    }
    match own {
        Some(own) => peers.into_iter().for_each(|(of, peer)| draft.add(notes, &of.field, own, peer)),
        None if environment.get("bgp_as").is_none() => {
            if let Some(enable) = environment.get("bgp_enable") {
                enable.field.error("bgp_as is missing", "the AS number of kube-vip");
            }
        }
        None => {}
    }
}

/// The hold time of all sessions.
fn hold_time(environment: &Environment<'_>, notes: &Notes) -> Option<Duration> {
    let seconds = |name, range| {
        let seconds = environment.number(name, range)?;
        u64::try_from(seconds).ok().map(Duration::from_secs)
    };
    let session = seconds("bgp_hold_time", 3..=65_535);
    let keepalive = seconds("bgp_keepalive_interval", 1..=65_535);
    if let (Some(time), Some(variable)) = (keepalive, environment.get("bgp_keepalive_interval"))
        && bgp::differs(session, time)
    {
        notes.add(
            NoteKind::NoCounterpart,
            &variable.field,
            format_args!("bgp_keepalive_interval: {}", bgp::KEEPALIVE),
        );
    }
    session
}

/// The peer `bgp_peeraddress`.
fn single<'e, 'a>(
    environment: &'e Environment<'a>,
    hold_time: Option<Duration>,
) -> Option<(&'e Variable<'a>, PeerDraft)> {
    let has_password = environment.has("bgp_peerpass");
    let multihop = (environment.flag("bgp_multihop") == Some(true)).then_some(255);
    let asn = environment.number("bgp_peeras", ASN);
    let variable = environment.get("bgp_peeraddress")?;
    let address = variable.value.trim_matches(['[', ']']).parse().ok();
    if address.is_none() {
        let what = format!("bgp_peeraddress: {:?} is not an address", variable.value);
        variable.field.error(what, "the address of a router");
    } else if asn.is_none() && environment.get("bgp_peeras").is_none() {
        variable.field.error("bgp_peeras is missing", "the AS number of the router");
    }
    let asn = u32::try_from(asn?).ok()?;
    let settings = Settings { has_password, multihop, hold_time, ..Settings::default() };
    Some((variable, PeerDraft { address: address?, asn, settings }))
}

const UNNUMBERED: &str = "the peer is left out: BGP unnumbered is not supported";

type Item = (IpAddr, u32, Settings, Option<(Duration, u32)>);

/// One item of `bgp_peers`.
fn item_of_list(item: &str) -> Result<Item, &'static str> {
    if item.starts_with("unnumbered:") {
        return Err(UNNUMBERED);
    }
    let (address, rest) = match item.strip_prefix('[') {
        Some(item) => item.split_once(']').ok_or("the bracket is not closed")?,
        None => item.split_at(item.find(':').ok_or("the AS number is missing")?),
    };
    let address: IpAddr = address.parse().map_err(|_| "the address is invalid")?;
    let parts: Vec<&str> = rest.split(':').collect();
    let part = |n: usize| parts.get(n).copied().filter(|part| !part.is_empty());
    let asn = part(1).ok_or("the AS number is missing")?;
    let asn: u32 = asn.parse().map_err(|_| "the AS number is invalid")?;
    let multihop = part(3).map_or(Some(false), boolean).ok_or("the fourth part is not a boolean")?;
    let port = part(4).map(|port| port.parse::<u16>().map_err(|_| "the port is invalid")).transpose()?;
    let bfd = part(6).map(bfd).transpose()?.flatten();
    let settings = Settings {
        port: port.map(i64::from).filter(|port| *port != bgp::PORT && *port != 0),
        has_password: part(2).is_some(),
        multihop: multihop.then_some(255),
        bfd: bfd.is_some(),
        // Multiprotocol BGP.
        families: if part(5).is_some() { vec!["ipv4", "ipv6"] } else { Vec::new() },
        ..Settings::default()
    };
    if parts.len() > 7 {
        return Err("it has more than seven parts");
    }
    Ok((address, asn, settings, bfd))
}

/// `ENABLED;RECEIVE;TRANSMIT;MULTIPLIER`: the longer interval, and the multiplier; `None` if it is off.
fn bfd(part: &str) -> Result<Option<(Duration, u32)>, &'static str> {
    const WRONG: &str = "BFD is not ENABLED;RECEIVE;TRANSMIT;MULTIPLIER, such as true;300;300;3";
    let [enabled, receive, transmit, multiplier] = part.split(';').collect::<Vec<_>>()[..] else {
        return Err(WRONG);
    };
    let ms = |text: &str| match text {
        "" => Some(bgp::BFD_INTERVAL),
        text => text.parse().ok().filter(|ms| (10..=60_000).contains(ms)).map(Duration::from_millis),
    };
    let multiplier = match multiplier {
        "" => Some(bgp::BFD_MULTIPLIER),
        text => text.parse().ok().filter(|n| (1..=255).contains(n)),
    };
    let (Some(is_on), Some(receive), Some(transmit), Some(multiplier)) =
        (boolean(enabled), ms(receive), ms(transmit), multiplier)
    else {
        return Err(WRONG);
    };
    Ok(is_on.then_some((receive.max(transmit), multiplier)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_of_the_list_have_up_to_seven_parts() {
        let (address, asn, settings, bfd) =
            item_of_list("[2001:db8::1]:65001:secret:true:1179:mpbgp_nexthop=fixed:true;100;200;5")
                .expect("an item");
        assert_eq!((address.to_string().as_str(), asn), ("2001:db8::1", 65001));
        assert_eq!((settings.port, settings.multihop, settings.has_password), (Some(1179), Some(255), true));
        assert_eq!((settings.families, settings.bfd), (vec!["ipv4", "ipv6"], true));
        assert_eq!(bfd, Some((Duration::from_millis(200), 5)));
        let (_, _, settings, bfd) = item_of_list("192.0.2.1:65001::::").expect("an item");
        assert_eq!((settings.port, settings.multihop, settings.has_password, bfd), (None, None, false, None));
    }

    #[test]
    fn errors_do_not_repeat_the_password() {
        for wrong in [
            "192.0.2.1",
            "[2001:db8::1:65001",
            "192.0.2.1:",
            "192.0.2.1:AS1:secret",
            "192.0.2.1:65001:secret:maybe",
            "192.0.2.1:65001:secret:true:70000",
            "192.0.2.1:65001:secret:true:179::true",
            "192.0.2.1:65001:secret:true:179::::",
            "unnumbered:eth0",
        ] {
            let error = item_of_list(wrong).expect_err(wrong);
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
