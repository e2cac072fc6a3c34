//! Formats the announcements for `status`.

use std::collections::BTreeMap;

use tidegate_admin_api::{AnnounceStatus, BgpPeerStatus};

use super::output::{Table, age};

/// How many withheld VIPs are listed for each reason. The data formats list all.
const NAMED: usize = 5;

/// The lines of `status`: name and value.
pub(super) fn facts(announce: &AnnounceStatus) -> Vec<(&'static str, String)> {
    let AnnounceStatus { announced, prefixes, .. } = announce;
    let unsent = match announce.unsent {
        0 => String::new(),
        unsent => format!("; {unsent} VIPs not sent to any peer"),
    };
    let mut facts = vec![("Announced", format!("{announced} VIPs as {prefixes} prefixes{unsent}"))];
    let mut by_reason: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for one in &announce.withheld {
        by_reason.entry(&one.reason).or_default().push(one.vip.to_string());
    }
    for (reason, vips) in by_reason {
        let more = match vips.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        let named = vips[..vips.len().min(NAMED)].join(", ");
        facts.push(("Withheld", format!("{reason}: {named}{more}")));
    }
    if let Some(kernel) = &announce.kernel_routes {
        let (table, routes, protocol) = (kernel.table, kernel.routes, kernel.protocol);
        facts.push(("Kernel", format!("{routes} routes in table {table} with protocol {protocol}")));
    }
    if let Some(bgp) = &announce.bgp {
        let state = if bgp.running { "runs" } else { "does not run" };
        facts.push(("BIRD", format!("{state}, {} restarts", bgp.restarts)));
    }
    facts
}

/// The table of the peers.
#[must_use]
pub fn peers(all: &[BgpPeerStatus]) -> Table {
    let mut table = Table::new(&[
        "PEER",
        "ASN",
        "STATE",
        "SINCE",
        "SENT-V4",
        "SENT-V6",
        "BFD",
        "+ESTABLISHED",
        "+HOLD",
        "LAST-ERROR",
    ]);
    for peer in all {
        table.row([
            peer.address.to_string(),
            peer.asn.to_string(),
            peer.state.clone(),
            age(peer.since_seconds),
            peer.sent_ipv4.to_string(),
            peer.sent_ipv6.to_string(),
            peer.bfd.clone().unwrap_or_else(|| "<none>".to_owned()),
            peer.established.to_string(),
            peer.hold_seconds.map_or_else(|| "<none>".to_owned(), |seconds| format!("{seconds}s")),
            peer.last_error.clone().unwrap_or_default(),
        ]);
    }
    table
}
