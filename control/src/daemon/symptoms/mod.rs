//! Detects misconfigurations of hosts and networks by their effect on traffic: nothing in the configuration shows them,
//! and the gateway itself works.
//!
//! Every [`EVERY`], the [`observer`](super::observer) passes the dataplane's counters, which are compared with the
//! previous ones, and the observations of the neighbour resolver. Symptoms of Services become findings, which `status`,
//! events, the log and metrics show like the findings of reconcile; symptoms of the gateway as a whole become lines of
//! `DEGRADED`.
//!
//! Invariant: texts contain no counts or times, so that a lasting symptom is one finding and one log line.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use tidegate_dataplane::gateway::{InterfaceStats, ServiceStats};
use tidegate_dataplane::neighbors::faults::NeighborFault;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::ObjectKey;
use tidegate_policy::reconcile::view::{BackendViewState, ServiceView};
use tidegate_policy::reconcile::{Finding, Reason};
use tidegate_spec::{ForwardingMode, Protocol, ServiceKey};
use tokio::time::Instant;

/// The time between two checks.
pub(super) const EVERY: Duration = Duration::from_secs(10);
/// This many requests without a reply, over at least two checks, are a symptom. A client sends a SYN four times in 8 s.
const UNANSWERED_MIN: u64 = 3;
/// After this time without requests, the history is dropped.
const FORGET: Duration = Duration::from_secs(300);
/// This many packets from a default router's own address, refused since the last pause of [`FORGET`], are a symptom. A
/// client sends a SYN four times in 8 s.
const FROM_ROUTER_MIN: u64 = 3;
/// This many packets with a partial checksum in a sample are a symptom, if they are more than chance: one valid packet
/// in 65,536 looks like one.
const PARTIAL_MIN: u64 = 3;
const PARTIAL_PER: u64 = 1_000;

/// The detected symptoms.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Symptoms {
    /// Findings about Services, sorted.
    pub(super) findings: Vec<Finding>,
    /// Symptoms of the gateway as a whole, as text for display, sorted.
    pub(super) of_gateway: Vec<String>,
}

/// The current state of the gateway.
pub(super) struct Seen<'a> {
    pub(super) services: &'a [ServiceStats],
    pub(super) interfaces: &'a [InterfaceStats],
    pub(super) names: &'a [&'a str],
    pub(super) faults: &'a [NeighborFault],
    pub(super) views: &'a [Arc<ServiceView>],
    pub(super) snat: [Vec<IpAddr>; 2],
    /// The next hops of default routes.
    pub(super) routers: Vec<IpAddr>,
    /// Whether replies of `nat` may go through another gateway that has the flows.
    pub(super) has_peers: bool,
}

/// The counters of the last check, and their growth.
#[derive(Default)]
pub(super) struct Memory {
    services: BTreeMap<ServiceKey, ServiceHistory>,
    interfaces: Vec<InterfaceHistory>,
}

/// The history of a service port.
#[derive(Default)]
struct ServiceHistory {
    /// Requests, replies, sampled packets with a partial checksum, and refused packets from a router.
    counted: [u64; 4],
    /// Requests since the last reply.
    unanswered: u64,
    /// The number of checks at which some of them were new.
    checks: u32,
    last_request: Option<Instant>,
    last_partial: Option<Instant>,
    /// Refused packets from a router.
    from_router: u64,
    last_from_router: Option<Instant>,
    set_aside: BTreeSet<String>,
}

/// The history of the sampled checksums of an interface.
#[derive(Default)]
struct InterfaceHistory {
    counted: [u64; 2],
    sampled: u64,
    partial: u64,
    last_partial: Option<Instant>,
}

impl Memory {
    /// The symptoms at this time.
    pub(super) fn look(&mut self, seen: &Seen<'_>, now: Instant) -> Symptoms {
        let mut found = Symptoms::default();
        let partial = self.checksums(seen, now, &mut found);
        let keys: BTreeSet<ServiceKey> = seen.services.iter().map(|one| one.key).collect();
        self.services.retain(|key, _| keys.contains(key));
        for stats in seen.services {
            let memory = self.services.entry(stats.key).or_default();
            memory.count(stats, now);
            if let Some(interfaces) = partial.as_deref().filter(|_| is_recent(memory.last_partial, now)) {
                found.findings.push(partial_checksums(stats, interfaces));
            }
            if memory.from_router >= FROM_ROUTER_MIN {
                found.findings.push(router_as_client(stats, &seen.routers));
            }
            if is_silent(stats, memory, seen) {
                found.findings.push(no_replies(stats, seen, partial.as_deref()));
            } else if let Some(finding) = set_aside(stats, memory, seen) {
                found.findings.push(finding);
            }
        }
        for fault in seen.faults {
            neighbor_fault(fault, seen, &mut found);
        }
        found.findings.sort_unstable();
        found.findings.dedup();
        found.of_gateway.sort_unstable();
        found.of_gateway.dedup();
        found
    }

    /// Finds interfaces whose senders offload checksums that nothing completes. Returns their names.
    fn checksums(&mut self, seen: &Seen<'_>, now: Instant, found: &mut Symptoms) -> Option<String> {
        self.interfaces.resize_with(seen.interfaces.len(), InterfaceHistory::default);
        let mut names = Vec::new();
        for (n, (memory, stats)) in self.interfaces.iter_mut().zip(seen.interfaces).enumerate() {
            let counted = [stats.checksums_sampled, stats.checksums_partial];
            let [sampled, partial] = [0, 1].map(|at| counted[at].saturating_sub(memory.counted[at]));
            memory.counted = counted;
            if !is_recent(memory.last_partial, now) {
                (memory.sampled, memory.partial) = (0, 0);
            }
            (memory.sampled, memory.partial) = (memory.sampled + sampled, memory.partial + partial);
            if partial > 0 {
                memory.last_partial = Some(now);
            }
            if memory.partial >= PARTIAL_MIN && memory.partial > memory.sampled / PARTIAL_PER {
                let name = seen.names.get(n).copied().unwrap_or("?");
                names.push(name.to_owned());
                found.of_gateway.push(format!(
            "packets with a partial checksum arrive on interface {name}: their senders leave TCP and UDP checksums to \
             their NIC, and nothing completes them, so receivers drop the packets; accepted: `ethtool -K DEVICE tx \
             off` on the sender (a veth pair or a virtual machine on the gateway's host)"
                ));
            }
        }
        (!names.is_empty()).then(|| names.join(", "))
    }
}

fn is_recent(at: Option<Instant>, now: Instant) -> bool {
    at.is_some_and(|at| now.duration_since(at) < FORGET)
}

impl ServiceHistory {
    fn count(&mut self, stats: &ServiceStats, now: Instant) {
        let [requests, replies] = stats.traffic.map(|one| one.packets);
        let counted = [requests, replies, stats.partial_checksums, stats.from_router];
        let grown: [u64; 4] = std::array::from_fn(|n| counted[n].saturating_sub(self.counted[n]));
        self.counted = counted;
        if grown[0] > 0 {
            self.last_request = Some(now);
        }
        if grown[2] > 0 {
            self.last_partial = Some(now);
        }
        if grown[3] > 0 {
            self.last_from_router = Some(now);
        }
        self.from_router =
            if is_recent(self.last_from_router, now) { self.from_router + grown[3] } else { 0 };
        if grown[1] > 0 || !is_recent(self.last_request, now) {
            (self.unanswered, self.checks) = (0, 0);
        } else if grown[0] > 0 || self.checks > 0 {
            self.unanswered += grown[0];
            self.checks += 1;
        }
    }
}

/// Whether requests of a service port get no replies although all of them pass through this gateway.
fn is_silent(stats: &ServiceStats, memory: &ServiceHistory, seen: &Seen<'_>) -> bool {
    // A datagram needs no reply.
    let expects = !stats.mode.is_dsr() && stats.key.protocol != Protocol::Udp;
    let by_peers = stats.mode == ForwardingMode::Nat && seen.has_peers;
    expects
        && !by_peers
        && memory.unanswered >= UNANSWERED_MIN
        && memory.checks >= 2
        && has_healthy_backend(stats, seen)
}

/// Whether a backend of the port passes its health check. If none does, another finding reports it.
fn has_healthy_backend(stats: &ServiceStats, seen: &Seen<'_>) -> bool {
    let mut ports = views_of(stats, seen).flat_map(|one| &one.ports);
    ports.any(|port| {
        let key = ServiceKey { vip: port.vip, protocol: port.protocol, port: port.port };
        key == stats.key
            && !port.fail_open
            && port.backends.iter().any(|one| one.state == BackendViewState::Active)
    })
}

fn views_of<'a>(stats: &ServiceStats, seen: &Seen<'a>) -> impl Iterator<Item = &'a Arc<ServiceView>> {
    let name = (stats.namespace.as_str(), stats.name.as_str());
    let at = seen.views.binary_search_by(|one| (one.namespace.as_str(), one.name.as_str()).cmp(&name));
    at.ok().into_iter().map(|at| &seen.views[at])
}

/// The object and the name of a port, for texts.
fn port_of(stats: &ServiceStats) -> (ObjectKey, String) {
    let key = ObjectKey::new(stats.namespace.as_str(), stats.name.as_str());
    (key, format!("port {} ({}) of {}", stats.key.port, stats.key.protocol, stats.key.vip))
}

/// Why there are no replies, and what to do.
fn likely_cause(stats: &ServiceStats, seen: &Seen<'_>) -> (String, String) {
    match stats.mode {
        ForwardingMode::FullNat => {
            let family = |one: &&IpAddr| {
                stats.backends.first().is_none_or(|backend| backend.address.is_v4() == one.is_ipv4())
            };
            let snat: Vec<String> =
                seen.snat.iter().flatten().filter(family).map(ToString::to_string).collect();
            let snat = snat.join(", ");
            (
                format!("the backends' network doesn't route {snat} (dataplane.snatAddresses) to this gateway"),
                format!("a route to {snat} through this gateway, or a SNAT address on the backends' link"),
            )
        }
        _ => (
            "the backends' route to the clients doesn't lead through this gateway".to_owned(),
            "this gateway as the backends' default route (or a rule for their replies), or forwarding fullnat"
                .to_owned(),
        ),
    }
}

fn no_replies(stats: &ServiceStats, seen: &Seen<'_>, partial: Option<&str>) -> Finding {
    let (service, port) = port_of(stats);
    let (cause, accepted) = likely_cause(stats, seen);
    let partial = partial
        .map(|names| format!(", or the partial checksums of packets from interface {names}"))
        .unwrap_or_default();
    let what = format!(
        "{port}: requests are forwarded to backends, but no replies arrive ({}); likely cause: {cause}{partial}",
        stats.mode
    );
    Finding::observed(service, Reason::NoReplies, Diagnostic::warning(what).accepting(accepted))
}

/// Backends that ignore or refuse new connections at two consecutive checks, while nothing else reports them as down.
fn set_aside(stats: &ServiceStats, memory: &mut ServiceHistory, seen: &Seen<'_>) -> Option<Finding> {
    let aside =
        stats.backends.iter().filter(|one| one.set_aside > 0 && is_active(stats, one.address.ip(), seen));
    let aside: BTreeSet<String> =
        aside.map(|one| std::net::SocketAddr::new(one.address.ip(), one.port).to_string()).collect();
    let before = std::mem::replace(&mut memory.set_aside, aside);
    let still: Vec<&str> = memory.set_aside.intersection(&before).map(String::as_str).collect();
    if still.is_empty() || stats.mode.is_dsr() {
        return None;
    }
    let (service, port) = port_of(stats);
    let (cause, accepted) = likely_cause(stats, seen);
    let what = format!(
        "{port}: new connections to {} are ignored or refused, although the health check passes; likely cause: {cause}",
        still.join(", ")
    );
    Some(Finding::observed(service, Reason::NoReplies, Diagnostic::warning(what).accepting(accepted)))
}

fn is_active(stats: &ServiceStats, address: IpAddr, seen: &Seen<'_>) -> bool {
    let mut backends = views_of(stats, seen).flat_map(|one| &one.ports).flat_map(|port| &port.backends);
    backends.any(|one| one.address == address && one.state == BackendViewState::Active)
}

fn partial_checksums(stats: &ServiceStats, interfaces: &str) -> Finding {
    let (service, port) = port_of(stats);
    let what = format!(
        "{port}: packets arrive on interface {interfaces} with a partial checksum (the sender left it to its NIC); \
         backends drop them, and connections time out"
    );
    let diagnostic = Diagnostic::warning(what).accepting("`ethtool -K DEVICE tx off` on the sender");
    Finding::observed(service, Reason::PartialChecksums, diagnostic)
}

/// Connections from a router itself, usually the first test of a new gateway.
fn router_as_client(stats: &ServiceStats, routers: &[IpAddr]) -> Finding {
    let (service, port) = port_of(stats);
    let of_family = routers.iter().filter(|router| router.is_ipv4() == stats.key.vip.is_ipv4());
    let routers: Vec<String> = of_family.map(ToString::to_string).collect();
    let what = format!(
        "{port}: new connections from {} are dropped (bad_source), because the address is the next hop of a default \
         route; likely cause: a test on the router itself, or a router that masquerades its clients",
        routers.join(", ")
    );
    let accepted = "a test on another machine, or dataplane.routersAsClients: true";
    Finding::observed(service, Reason::RouterAsClient, Diagnostic::warning(what).accepting(accepted))
}

fn neighbor_fault(fault: &NeighborFault, seen: &Seen<'_>, found: &mut Symptoms) {
    let name = |interface: u8| seen.names.get(usize::from(interface)).copied().unwrap_or("?");
    let (what, accepted, reason, concerned): (_, _, _, BTreeSet<ObjectKey>) = match *fault {
        NeighborFault::OtherMac { interface, address, configured, answered } => {
            let interface = name(interface);
            let uses = |one: &&ServiceStats| one.backends.iter().any(|one| one.address.ip() == address);
            (
                format!(
                    "neighbour {address} of interface {interface} has the MAC address {configured} in dataplane.neighbors \
                 but answers with {answered}: packets to the neighbour may be lost"
                ),
                format!("mac: \"{answered}\" in dataplane.neighbors, or no entry for {address}"),
                Reason::NeighborMacDiffers,
                seen.services.iter().filter(uses).map(|one| port_of(one).0).collect(),
            )
        }
        NeighborFault::Claimed { interface, address, mac, neighbor } => {
            let interface = name(interface);
            let mac = mac.map_or_else(|| "an unknown MAC address".to_owned(), |mac| mac.to_string());
            let has_vip = |one: &&ServiceStats| one.key.vip == address;
            let services: Vec<&ServiceStats> = seen.services.iter().filter(has_vip).collect();
            let is_backend = |ip: &IpAddr| {
                services.iter().flat_map(|one| &one.backends).any(|one| one.address.ip() == *ip)
            };
            let who = match neighbor {
                Some(ip) if is_backend(&ip) => format!("backend {ip} ({mac})"),
                Some(ip) => format!("{ip} ({mac})"),
                None => format!("the station {mac}"),
            };
            let what = if services.is_empty() { "the gateway's address" } else { "VIP" };
            (
                format!(
                "{who} answers ARP or neighbour discovery for {what} {address} on interface {interface}: clients on \
                 that link bypass the gateway"
                ),
                "a backend that has the VIP on a loopback or dummy device, with `net.ipv4.conf.all.arp_ignore=1` and \
                 `arp_announce=2`; or an address that no other host has"
                    .to_owned(),
                Reason::VipClaimed,
                services.iter().map(|one| port_of(one).0).collect(),
            )
        }
    };
    found.of_gateway.push(what.clone());
    let diagnostic = Diagnostic::warning(what).accepting(accepted);
    let findings = concerned.into_iter().map(|key| Finding::observed(key, reason, diagnostic.clone()));
    found.findings.extend(findings);
}

#[cfg(test)]
mod tests;
