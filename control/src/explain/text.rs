//! The texts of an explanation. Each function formats one step of `explain`; nothing is decided here.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use tidegate_admin_api::explain::{KnownFlow, Packet};
use tidegate_model::yaml::text::{show_bit_rate, show_duration};
use tidegate_select::rendezvous::{ChosenSeat, Rendezvous, SEATS_PER_MAP};
use tidegate_select::selector::{Selector, Slots};
use tidegate_snapshot::addresses::{AddressKind, SourceFault};
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::neighbors::NeighborState;
use tidegate_snapshot::path_mtu;
use tidegate_snapshot::service::{ChoiceBasis, Service, ServiceInfo};
use tidegate_snapshot::service_limits::{LimitDrop, LimitedService};
use tidegate_snapshot::{Snapshot, Transit};
use tidegate_spec::ids::BackendId;
use tidegate_spec::source_lists::{Listed, SourceList, SourceLists};
use tidegate_spec::verdict::TransmitReason;
use tidegate_spec::{
    BackendState, ForwardingMode, PassiveHealth, Protocol, Scheduler, SourceRate, SynCookies, TunnelPrefix,
    WARM_UP_STEPS,
};
use tidegate_structures::hash::{outer_hash, selection_hash};
use tidegate_wire::encapsulation::{Encapsulation, source_port};
use tidegate_wire::proxy_header::{ProxyHeader, ProxyVersion, proxy_header};
use tidegate_wire::proxy_tlvs::ProxyTlvs;
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::tcp_options::kind;
use tidegate_wire::{Addr, Family};

pub(super) fn address(
    ip: IpAddr,
    kind: Option<AddressKind>,
    pool: Option<&str>,
    snapshot: &Snapshot,
) -> String {
    match kind {
        Some(AddressKind::Vip) => format!("{ip} is a VIP"),
        Some(AddressKind::Snat) => format!("{ip} is one of dataplane.snatAddresses"),
        Some(AddressKind::Tunnel) => format!("{ip} is an address of dataplane.tunnelSource"),
        Some(AddressKind::Own(at)) => {
            let name = snapshot.interface(at).map_or("?", |i| i.name.as_str());
            format!("{ip} is the gateway's own address on interface {name}")
        }
        None => match pool {
            Some(pool) => format!("{ip} is in pool {pool}, assigned to no Service"),
            None => format!("{ip} is not an address of the gateway"),
        },
    }
}

pub(super) fn no_service(packet: &Packet, refused: Option<&str>) -> String {
    let Packet { protocol, destination, .. } = packet;
    match refused {
        Some(why) => {
            format!("a Service requests {protocol} {destination}, but the gateway does not serve it: {why}")
        }
        None => format!("no Service has {protocol} {destination}"),
    }
}

pub(super) fn service(service: &Service, info: &ServiceInfo) -> String {
    let affinity = match service.affinity_ms {
        0 => String::new(),
        ms => format!(", sessionAffinity ClientIP for {} s", ms / 1000),
    };
    let (label, key, count) = (info.label(), info.key, info.backends.len());
    format!("{label} has {key}: forwarding {}, {count} backends{affinity}", info.mode)
}

pub(super) fn source_fault(src: &Addr, fault: SourceFault) -> String {
    match fault {
        SourceFault::NotOneHost => format!("{src} cannot be answered: it is not a unicast address of a host"),
        SourceFault::Ours => {
            format!("{src} is an address of the gateway: a packet with this source is forged")
        }
        SourceFault::NotOneHostOfNetwork => {
            format!(
                "{src} cannot be answered: it is the network address or the broadcast address of a connected network"
            )
        }
        SourceFault::Router => format!(
            "{src} is the next hop of a default route, not a client (dataplane.routersAsClients: true serves it)"
        ),
        SourceFault::LinkLocal => {
            format!("{src} is link-local, but in no connected network: routers do not forward answers to it")
        }
    }
}

pub(super) fn hairpin(client: &Addr, snat: &[Addr]) -> String {
    match snat.first() {
        Some(first) => {
            format!(
                "{client} is both the client and the backend: the packet is sent to it from {first} or another SNAT \
                 address"
            )
        }
        None => format!(
            "{client} is both the client and the backend: its reply would not reach the gateway without a SNAT address \
             (dataplane.snatAddresses)"
        ),
    }
}

pub(super) fn link_local(src: &Addr) -> String {
    format!(
        "{src} is link-local: the packet is served if it arrives directly from that host, and refused as bad_source if \
         a default router forwarded it"
    )
}

pub(super) fn source_range(info: &ServiceInfo, client: &Addr) -> String {
    let Some(ranges) = &info.source_ranges else {
        return "all clients are allowed: the Service has no source ranges for this VIP".to_owned();
    };
    let of_family = ranges.nets().iter().filter(|net| net.addr().is_ipv4() == client.is_v4()).count();
    match (ranges.longest(client), of_family) {
        (Some(range), _) => format!("{client} is allowed: {range} is the longest matching source range"),
        (None, 0) => format!("{client} is refused: the Service has no source range of its family"),
        (None, 1) => format!("{client} is refused: the only source range of its family does not match"),
        (None, n) => format!("{client} is refused: none of the {n} source ranges of its family matches"),
    }
}

/// Which list of the gateway contains a source.
pub(super) fn source_list(lists: &SourceLists, client: &Addr) -> String {
    match lists.find(client) {
        None => format!("{client} is neither in protection.deny nor in protection.allow"),
        Some(Listed { list: SourceList::Deny, prefix }) => {
            format!("{client} is refused: {prefix} of protection.deny is the longest matching prefix")
        }
        Some(Listed { list: SourceList::Allow, prefix }) => {
            format!("{client} is allowed: {prefix} of protection.allow is the longest matching prefix")
        }
    }
}

/// How many flows the prefix of a source may create.
pub(super) fn source_rate(rate: &SourceRate, client: &Addr, list: Option<SourceList>) -> String {
    if list == Some(SourceList::Allow) {
        return format!("{client} has no limit: it is in protection.allow");
    }
    let len = if client.is_v4() { rate.v4_len } else { rate.v6_len };
    let (per_second, burst) = (rate.per_second, rate.burst);
    format!("the /{len} network of {client} may start {per_second} flows a second, and {burst} at once")
}

/// The limits of a Service, and whether one of them refuses a new flow now.
pub(super) fn limits(limited: &LimitedService, refused: Option<LimitDrop>) -> String {
    let limits = limited.limits();
    let connections =
        limits.connections.map(|max| format!("at most {max} connections, {} now", limited.connections()));
    let rate = limits.connection_rate.map(|rate| format!("{rate} new connections a second"));
    let bandwidth =
        limits.bandwidth.map(|bits| format!("bandwidth {} in each direction", show_bit_rate(bits.get())));
    let all: Vec<String> = [connections, rate, bandwidth].into_iter().flatten().collect();
    let name = format!("{}/{}", limited.namespace(), limited.name());
    let all = format!("{name}, on all ports and addresses together: {}", all.join(", "));
    match refused {
        None => all,
        Some(LimitDrop::Connections) => format!("{all}: a new connection is refused until one ends"),
        Some(_) => format!("{all}: a new connection is refused for now"),
    }
}

pub(super) fn flow(known: Option<KnownFlow>, still_there: bool, silent_workers: usize) -> String {
    match known {
        None if silent_workers > 0 => format!(
            "not known to the workers that answered, so treated as the first packet of a flow; {silent_workers} did \
             not answer in time: query again to be sure"
        ),
        None => "not known: treated as the first packet of a flow (TCP: the SYN)".to_owned(),
        Some(flow) if still_there => format!("known: it stays at backend {}", flow.backend),
        Some(flow) => {
            format!(
                "known, but its backend {} was removed or, with UDP, is down: a new backend is chosen",
                flow.backend
            )
        }
    }
}

pub(super) fn affinity(client: &Addr, at: SocketAddr, takes_new_flows: bool) -> String {
    let client = client.ip();
    match takes_new_flows {
        true => format!("{client} has been sent to {at} before, and stays there"),
        false => format!(
            "{client} has been sent to {at} before, which accepts no new flows: a new backend is chosen"
        ),
    }
}

pub(super) fn no_backend(info: &ServiceInfo, why: Option<&str>) -> String {
    let found = match info.backends.len() {
        0 => "the Service has no backend".to_owned(),
        n => format!("none of the {n} backends accepts new flows ({})", states(info)),
    };
    why.map_or_else(|| found.clone(), |why| format!("{found}: {why}"))
}

fn states(info: &ServiceInfo) -> String {
    let count = |state| info.backends.iter().filter(|b| b.state == state).count();
    let weightless =
        info.backends.iter().filter(|b| b.state == BackendState::Active && b.weight == 0).count();
    let counts = [
        (count(BackendState::Active) - weightless, "active"),
        (weightless, "of weight 0"),
        (count(BackendState::Draining), "draining"),
        (count(BackendState::Down), "down"),
    ];
    let words: Vec<String> =
        counts.iter().filter(|(n, _)| *n > 0).map(|(n, state)| format!("{n} {state}")).collect();
    words.join(", ")
}

pub(super) fn pinned(backend: &Backend) -> String {
    format!("{}, from the flow's entry", SocketAddr::new(backend.address.ip(), backend.port))
}

pub(super) fn seat(
    service: &Service,
    seats: &Rendezvous,
    chosen: &ChosenSeat,
    count: usize,
    hash: u64,
) -> String {
    let of = hashed(service);
    let map = match seats.seat_maps() {
        1 => String::new(),
        maps => format!(" of seat map {} (of {maps})", chosen.seat_map),
    };
    format!(
        "{}{map}: this seat comes first among the {count} occupied seats in the flow's order, at rank {} of \
         {SEATS_PER_MAP}; hash {hash:#018x} of {of}",
        chosen.seat, chosen.rank
    )
}

pub(super) fn former(backend: Option<&Backend>) -> String {
    let rest = "the flow's backend is changing: a SYN goes to the new backend and creates a flow entry";
    match backend {
        Some(backend) => {
            let former = SocketAddr::new(backend.address.ip(), backend.port);
            format!("{former}; {rest}, and any other TCP packet goes to {former}")
        }
        None => format!("none; {rest}"),
    }
}

pub(super) fn slot(service: &Service, slots: &Slots, slot: u32, hash: u64) -> String {
    format!("{slot} of {}: hash {hash:#018x} of {}", slots.len(), hashed(service))
}

/// Why the backend does not follow from the packet alone.
pub(super) fn of_worker(info: &ServiceInfo, candidates: usize) -> String {
    let how = match info.scheduler {
        Scheduler::Loads(_) => "compares the loads of the backends at that moment",
        _ => "assigns its new flows to the backends in turn",
    };
    let name = info.scheduler.as_str();
    match candidates {
        1 => format!("{name}: only one backend accepts new flows"),
        n => format!(
            "{name}: the worker that receives the packet {how}, so the packet alone does not determine which of \
             the {n} backends is chosen"
        ),
    }
}

/// The backends that a scheduler may choose, with their weights.
pub(super) fn candidates(snapshot: &Snapshot, shares: &BTreeMap<BackendId, u32>) -> String {
    const SHOWN: usize = 8;
    let sum = shares.values().map(|&share| f64::from(share)).sum::<f64>().max(1.0);
    let mut listed: Vec<String> = shares
        .iter()
        .filter_map(|(&id, &share)| {
            let backend = snapshot.backend(id)?;
            let address = SocketAddr::new(backend.address.ip(), backend.port);
            Some(format!("{address} ({:.1} %)", 100.0 * f64::from(share) / sum))
        })
        .take(SHOWN)
        .collect();
    if shares.len() > SHOWN {
        listed.push(format!("{} others", shares.len() - SHOWN));
    }
    format!("one of {} (share by weight)", listed.join(", "))
}

/// The inputs of the hash of a flow.
fn hashed(service: &Service) -> &'static str {
    match service.basis {
        ChoiceBasis::Flow => "source, destination, ports and protocol",
        ChoiceBasis::Client => "the client's address alone",
        ChoiceBasis::Vip => "the VIP alone",
    }
}

/// The choice among all backends of a service, including those that are warming up.
fn all(service: &Service) -> &Selector {
    match service.selector() {
        Selector::WarmUp(both) => both.all(),
        selector => selector,
    }
}

pub(super) fn slow_start(owner: &Backend, step: u8, takes: bool) -> String {
    let address = SocketAddr::new(owner.address.ip(), owner.port);
    let part = format!("{address} is warming up and gets {step}/{WARM_UP_STEPS} of its share of flows");
    match takes {
        true => format!("{part}, including this flow"),
        false => format!("{part}; this flow goes to a backend that is not warming up"),
    }
}

pub(super) fn backend(
    snapshot: &Snapshot,
    service: &Service,
    info: &ServiceInfo,
    backend: &Backend,
) -> String {
    let address = SocketAddr::new(backend.address.ip(), backend.port);
    let shares = snapshot.shares(service);
    let position = info.backends.iter().position(|b| b.id == backend.id);
    let share = position.and_then(|at| shares.get(at).copied()).unwrap_or(0);
    let percent = 100.0 * f64::from(share) / f64::from(shares.iter().sum::<u32>().max(1));
    let weight = position.map_or(0, |at| info.backends[at].weight);
    let (unit, plural) = match all(service) {
        Selector::Rendezvous(_) | Selector::InFlux(_) => ("seat", if share == 1 { "seat" } else { "seats" }),
        Selector::Maglev(_) => ("slot", if share == 1 { "slot" } else { "slots" }),
        Selector::RoundRobin(_) | Selector::Loads(_) | Selector::WarmUp(_) => {
            return format!(
                "{address}, weight {weight}, is the only backend that accepts new flows ({})",
                states(info)
            );
        }
    };
    format!(
        "{address} owns the {unit}: weight {weight}, {share} {plural} ({percent:.1} %), {} ({})",
        match info.backends.len() {
            1 => "the only backend".to_owned(),
            n => format!("one of {n} backends"),
        },
        states(info)
    )
}

pub(super) fn mode(snapshot: &Snapshot, service: &Service, backend: &Backend, packet: &Packet) -> String {
    let address = SocketAddr::new(backend.address.ip(), backend.port);
    match service.mode {
        ForwardingMode::DsrL2 => {
            "dsr-l2: only the link addresses change; the backend answers the client itself".to_owned()
        }
        ForwardingMode::DsrIpip
        | ForwardingMode::DsrGue
        | ForwardingMode::DsrGre
        | ForwardingMode::DsrGeneve => {
            let outer = match backend.family {
                Family::V4 => "IPv4",
                Family::V6 => "IPv6",
            };
            let flow = outer_flow_hash(packet);
            let source = snapshot.tunnel_source(backend.family);
            let source = source.map_or_else(|| "?".to_owned(), |source| outer_source(source, flow));
            let behind = backend.encapsulation.map_or_else(String::new, |between| behind(between, flow));
            format!(
                "{}: an outer {outer} header {source} -> {}{behind}; the backend answers the client itself",
                service.mode, backend.address
            )
        }
        ForwardingMode::DsrDscp => format!(
            "dsr-dscp: the destination becomes {}, and DSCP {} identifies the VIP; the backend answers the client itself",
            backend.address, service.dscp
        ),
        ForwardingMode::Nat => {
            format!("nat: the destination becomes {address}; replies come back through the gateway")
        }
        ForwardingMode::FullNat => {
            let sources: Vec<String> =
                snapshot.snat_addresses(backend.family).iter().map(ToString::to_string).collect();
            format!(
                "fullnat: the destination becomes {address}, the source a free port of {}",
                sources.join(" or ")
            )
        }
    }
}

/// Whether the gateway answers the SYN of a new connection itself; `None` without SYN cookies.
pub(super) fn syn_cookie(cookies: SynCookies) -> Option<String> {
    let when = match cookies {
        SynCookies::Off => return None,
        SynCookies::Auto => "during a flood of SYNs to the service, ",
        SynCookies::Always => "",
    };
    let reason = TransmitReason::SynCookie;
    Some(format!(
        "{}: {when}the gateway answers the SYN ({reason}), and the next segment starts the flow",
        cookies.as_str()
    ))
}

/// The header that the backend receives before the client's data, or the option that replaces it.
pub(super) fn proxy_protocol(version: ProxyVersion, tlvs: ProxyTlvs, packet: &Packet) -> String {
    let header = header_of(version, packet);
    if version == ProxyVersion::Toa {
        return format!(
            "{version}, TCP option {} of {} bytes in each segment of the client until the backend has acknowledged data: {}",
            kind::TOA,
            header.len(),
            packet.source
        );
    }
    let wherein = match packet.protocol.0 {
        Protocol::Udp => "each datagram",
        Protocol::Tcp | Protocol::Sctp => "the client's data",
    };
    let shown = match version {
        ProxyVersion::V1 => String::from_utf8_lossy(header.trim_ascii_end()).into_owned(),
        ProxyVersion::V2 | ProxyVersion::Toa => format!("{} -> {}", packet.source, packet.destination),
    };
    let names: Vec<&str> = tlvs.names().collect();
    let more = if names.is_empty() { String::new() } else { format!("; TLVs {}", names.join(", ")) };
    format!("{version}, {} bytes in front of {wherein}: {shown}{more}", header.len() + tlvs.len())
}

/// What happens if the backend refuses or does not answer.
pub(super) fn passive_health(rules: &PassiveHealth, is_aside: bool) -> String {
    let aside = if is_aside {
        "a worker has set this backend aside and assigns new flows to other backends; ".to_owned()
    } else {
        String::new()
    };
    let retries = match rules.retries {
        0 => "if the backend refuses the connection, the client gets the refusal".to_owned(),
        1 => "if the backend refuses the connection, another one is tried".to_owned(),
        n => format!("if the backend refuses the connection, up to {n} others are tried"),
    };
    let failures = match rules.failures {
        0 => String::new(),
        n => format!(
            "; after {n} failures in a row it is set aside for {} (at most {} % of all backends at once)",
            show_duration(rules.set_aside),
            rules.share_max
        ),
    };
    format!("{aside}{retries}{failures}")
}

fn header_of(version: ProxyVersion, packet: &Packet) -> ProxyHeader {
    let end = |at: SocketAddr| Endpoint { addr: at.ip().into(), port: at.port() };
    proxy_header(version, packet.protocol.0.number(), end(packet.source), end(packet.destination))
}

/// The hash that chooses the outer source and the UDP source port.
fn outer_flow_hash(packet: &Packet) -> u64 {
    let (from, to) = (packet.source, packet.destination);
    let (src, dst) = (from.ip().into(), to.ip().into());
    outer_hash(selection_hash(&src, from.port(), &dst, to.port(), packet.protocol.0.number()))
}

/// The outer source of a flow, and the prefix from which it was chosen.
fn outer_source(source: &TunnelPrefix, flow: u64) -> String {
    let picked = source.pick(flow);
    if source.is_many() {
        format!("{picked} (chosen from {source} by the flow's hash)")
    } else {
        picked.to_string()
    }
}

/// The headers after the outer IP header.
fn behind(between: Encapsulation, flow: u64) -> String {
    match between {
        Encapsulation::Ip => String::new(),
        Encapsulation::Gue { variant, port } => format!(
            ", UDP port {} (by the flow's hash) -> {port}, GUE variant {}",
            source_port(flow as u32),
            variant.number()
        ),
        Encapsulation::Gre { key: Some(key) } => format!(", GRE with key {key}"),
        Encapsulation::Gre { key: None } => ", GRE without a key".to_owned(),
        Encapsulation::Geneve { port, vni, service } => format!(
            ", UDP port {} (by the flow's hash) -> {port}, Geneve with VNI {} and Service {service}",
            source_port(flow as u32),
            vni.number()
        ),
    }
}

pub(super) fn next_hop(
    interface: &str,
    address: Option<IpAddr>,
    backend: &Backend,
    state: NeighborState,
    is_assumed: bool,
) -> String {
    hop(interface, address, address == Some(backend.address.ip()), state, is_assumed)
}

/// A next hop, which may be the destination itself.
pub(super) fn hop(
    interface: &str,
    hop: Option<IpAddr>,
    is_itself: bool,
    state: NeighborState,
    is_assumed: bool,
) -> String {
    let who = match hop {
        Some(hop) if is_itself => format!("{hop} itself, on the link of {interface}"),
        Some(hop) => format!("router {hop} on {interface}"),
        None => format!("on {interface}"),
    };
    let mac = match state {
        NeighborState::Static(mac) => format!("{mac} (dataplane.neighbors)"),
        NeighborState::Resolved(mac) => format!("{mac} (resolved)"),
        NeighborState::Stale(mac) => format!("{mac} (stale, in use)"),
        NeighborState::Unresolved if is_assumed => {
            "its link address is not configured; a running gateway resolves it".to_owned()
        }
        NeighborState::Unresolved => "its link address is not known".to_owned(),
    };
    format!("{who}, {mac}")
}

pub(super) fn mtu(interface: &str, link: u16, path: Option<u16>, overhead: u16) -> String {
    let fits = path.unwrap_or(link).saturating_sub(overhead);
    let of = match path {
        Some(path) => format!("{path}, as reported by a router on the path to the backend,"),
        None => format!("{link} of {interface}"),
    };
    match overhead {
        0 => format!("{fits} bytes, the MTU of {interface}"),
        _ => format!("{fits} bytes: {of} minus {overhead} for the outer header"),
    }
}

/// What happens to packets that are longer than `fits`, with a tunnel of this `overhead`.
pub(super) fn longer(packet: &Packet, fragments_ipv4: bool, fits: u16, overhead: u16) -> &'static str {
    match (packet.source.is_ipv4(), fragments_ipv4) {
        (true, true) => "longer packets are fragmented or, with DF, answered with \"fragmentation needed\"",
        (true, false) => {
            "longer packets are answered with \"fragmentation needed\", even without DF (dataplane.oversized: answer)"
        }
        (false, _) if overhead > 0 && fits < path_mtu::minimum(Family::V6) => {
            "packets of more than 1280 bytes are answered with \"packet too big\"; shorter ones that do not fit are \
             sent in fragments of the outer packet"
        }
        (false, _) => "longer packets are answered with \"packet too big\"",
    }
}

/// Which packets also need space for the header of the PROXY protocol.
pub(super) fn header_overhead(version: ProxyVersion, tlvs: ProxyTlvs, packet: &Packet) -> String {
    let which = match packet.protocol.0 {
        Protocol::Udp => "each datagram",
        Protocol::Tcp | Protocol::Sctp => "the first segment",
    };
    let len = header_of(version, packet).len() + tlvs.len();
    if version == ProxyVersion::Toa {
        return format!(
            "until the backend has acknowledged data, each segment needs {len} more bytes for the TOA option"
        );
    }
    format!("{which} needs {len} more bytes for the PROXY protocol header")
}

pub(super) fn transit(src: &Addr, transit: &Transit) -> String {
    match transit.forward {
        true => format!(
            "{src} is in dataplane.gateway.prefixes: the packet is forwarded by the routes if it arrives on the \
             interface that leads to {src}"
        ),
        false => format!(
            "{src} is in dataplane.gateway.prefixes, and dataplane.gateway.forward: refuse forbids forwarding it"
        ),
    }
}

/// For a packet whose source is in `dataplane.gateway.masquerade`.
pub(super) fn masquerade(protocol: Protocol) -> String {
    let of_others = "the source is in dataplane.gateway.masquerade, and the destination is not in \
                     dataplane.gateway.prefixes";
    match protocol {
        Protocol::Tcp => format!(
            "{of_others}: the source becomes one of dataplane.snatAddresses if the segment is a SYN or its flow is known"
        ),
        Protocol::Udp => format!("{of_others}: the source becomes one of dataplane.snatAddresses"),
        Protocol::Sctp => format!("{of_others}: SCTP is refused because it cannot be masqueraded"),
    }
}

pub(super) fn segment_size(most: u16, mode: ForwardingMode) -> String {
    let whose = if mode.is_dsr() { "in the client's SYN" } else { "in the SYN and in the backend's SYN ACK" };
    format!("at most {most} bytes {whose}, or less if the packet arrives on a link with a smaller MTU")
}
