//! `explain`: computes the decision for one packet step by step, as text and as data.
//!
//! The steps call the same functions of [`Snapshot`] and [`hash`](tidegate_structures::hash) as the pipeline, so an
//! explanation cannot differ from what is forwarded. Checks of the frame itself (headers, TTL, fragments) are not
//! included. `explain -c` uses a snapshot compiled from files, the daemon uses its current one.
//!
//! Invariant: pure. The same snapshot, views and packet give the same explanation.

mod rejected_share;
mod reply;
#[cfg(test)]
mod tests;
mod text;

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;

use tidegate_admin_api::explain::{
    BackendChoice, Egress, Explanation, KnownFlow, Packet, PacketVerdict, Step,
};
use tidegate_pipeline::forward::tunnel;
use tidegate_policy::pools::PoolUsage;
use tidegate_policy::reconcile::view::ServiceView;
use tidegate_select::selector::Selector;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::addresses::{AddressKind, SourceFault};
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::neighbors::{NeighborState, NeighborTable};
use tidegate_snapshot::service::{BackendInfo, Service, ServiceInfo};
use tidegate_spec::ids::BackendId;
use tidegate_spec::now::Now;
use tidegate_spec::verdict::{PuntReason, Refusal, TransmitReason};
use tidegate_spec::{BackendState, ForwardingMode, NoEndpoints, Protocol};
use tidegate_wire::{Addr, mss};

/// The state that is not in the snapshot.
#[derive(Debug, Clone, Copy)]
pub struct Circumstances<'a> {
    /// Link addresses, and path MTUs of tunnels.
    pub neighbors: &'a NeighborTable,
    /// The time on the workers' clock, which decides whether a path MTU is still valid.
    pub now: Now,
    /// Why (VIP, protocol, port) is not programmed although a Service requests it, or why it has no backend because of
    /// its traffic policy.
    pub refused: Option<&'a str>,
    /// The pool that contains the destination.
    pub pool: Option<&'a str>,
    /// Whether nothing resolves link addresses, so that unknown ones are assumed to be known.
    pub assumes_neighbors: bool,
    /// The entry in the flow tables; `None` if there are no flow tables or they have no entry.
    pub known_flow: Option<KnownFlow>,
    /// The backend that the client has by session affinity, on this service port.
    pub affinity: Option<SocketAddr>,
    /// The backends that a worker avoids because they refused or ignored new connections.
    pub set_aside: &'a [BackendId],
    /// The number of workers that did not answer the query for the flow in time.
    pub silent_workers: usize,
}

impl<'a> Circumstances<'a> {
    /// The circumstances without flow tables, and with unknown link addresses assumed to be known.
    #[must_use]
    pub fn of_files(neighbors: &'a NeighborTable, now: Now, refused: Option<&'a str>) -> Self {
        Self {
            neighbors,
            now,
            refused,
            pool: None,
            assumes_neighbors: true,
            known_flow: None,
            affinity: None,
            silent_workers: 0,
            set_aside: &[],
        }
    }
}

/// Computes the decision for the first packet of a flow.
#[must_use]
pub fn explain(snapshot: &Snapshot, about: Circumstances<'_>, packet: &Packet) -> Explanation {
    let mut draft = Draft::new(snapshot, packet);
    if let Err((verdict, reason)) = decide(snapshot, about, packet, &mut draft) {
        draft.end(verdict, reason);
    }
    draft.0
}

/// Why the destination port of the packet is not programmed, or has no backend because of its traffic policy, if a
/// Service requests it. For [`Circumstances::refused`].
#[must_use]
pub fn refusal(services: &[Arc<ServiceView>], packet: &Packet) -> Option<String> {
    let to = packet.destination;
    let ports = services.iter().flat_map(|s| s.ports.iter().map(move |p| (s, p)));
    let mut same =
        ports.filter(|(_, p)| p.vip == to.ip() && p.port == to.port() && p.protocol == packet.protocol.0);
    let of = |s: &ServiceView, why: &dyn fmt::Display| format!("{}/{}: {why}", s.namespace, s.name);
    match same.clone().find(|(_, p)| p.refused.is_none()) {
        // The Service that serves it comes first; others may have been refused.
        Some((s, p)) => p.note.as_ref().map(|why| of(s, why)),
        None => same.find_map(|(s, p)| p.refused.as_ref().map(|why| of(s, why))),
    }
}

/// The pool that contains the destination of the packet. For [`Circumstances::pool`].
#[must_use]
pub fn pool_of<'a>(pools: &'a [PoolUsage], packet: &Packet) -> Option<&'a str> {
    let to = packet.destination.ip();
    let found = pools.iter().find(|pool| pool.ranges.iter().any(|range| range.contains(to)));
    found.map(|pool| pool.pool.as_str())
}

/// Contains all branching; each result is recorded as a step. The error is the verdict on a packet that is not
/// forwarded.
fn decide(
    snapshot: &Snapshot,
    about: Circumstances<'_>,
    packet: &Packet,
    draft: &mut Draft,
) -> Result<(), (PacketVerdict, &'static str)> {
    let (src, dst) = (Addr::from(packet.source.ip()), Addr::from(packet.destination.ip()));
    let (proto, port) = (packet.protocol.0.number(), packet.destination.port());
    if src.is_v4() != dst.is_v4() {
        draft.step("source", "a packet has addresses of one family".to_owned());
        return Err((PacketVerdict::Drop, "bad_source"));
    }
    let kind = snapshot.address(&dst);
    draft.step("destination", text::address(packet.destination.ip(), kind, about.pool, snapshot));

    let hash = Snapshot::hash_service(&dst, proto, port);
    let Some(service) = snapshot.service(hash, &dst, proto, port) else {
        draft.step("service", text::no_service(packet, about.refused));
        return Err(unserved(snapshot, &src, packet, kind, draft));
    };
    let info = snapshot.service_info(service.id).expect("a service in the snapshot has its info");
    draft.0.service = Some(info.label());
    draft.0.mode = Some(service.mode.to_string());
    draft.step("service", text::service(service, info));

    if let Some(fault) = snapshot.source_fault(&src) {
        draft.step("source", text::source_fault(&src, fault));
        return Err((PacketVerdict::Drop, Refusal::BadSource.as_str()));
    }
    if src.is_link_local() {
        if !snapshot.answers_on_link(&src, service.mode) {
            draft.step("source", text::source_fault(&src, SourceFault::LinkLocal));
            return Err((PacketVerdict::Drop, Refusal::BadSource.as_str()));
        }
        draft.step("source", text::link_local(&src));
    }
    if let Some(lists) = snapshot.source_lists() {
        draft.step("source list", text::source_list(lists, &src));
        if lists.denies(&src) {
            return Err((PacketVerdict::Drop, Refusal::SourceDenied.as_str()));
        }
    }
    draft.step("source range", text::source_range(info, &src));
    if !snapshot.is_in_range(service, &src) {
        return Err((PacketVerdict::Drop, Refusal::SourceRange.as_str()));
    }
    if let Some((is_rejected, why)) =
        rejected_share::check(snapshot, service, packet, about.known_flow.is_some())
    {
        draft.step("rejected share", why);
        if is_rejected {
            return Err(no_endpoints(service));
        }
    }

    if let Some(rate) = snapshot.source_rate() {
        let list = snapshot.source_lists().and_then(|lists| lists.list_of(&src));
        draft.step("source rate", text::source_rate(&rate, &src, list));
    }
    if let Some(limited) = snapshot.limited_service(service) {
        let is_new = about.known_flow.is_none() && !service.selector().is_empty();
        let refused = limited.refuses_new(about.now).filter(|_| is_new);
        draft.step("limits", text::limits(limited, refused));
        if let Some(by) = refused {
            return Err((PacketVerdict::Drop, by.refusal().as_str()));
        }
    }

    let backend = choose(snapshot, about, packet, (service, info), draft)?;
    draft.0.backend = Some(SocketAddr::new(backend.address.ip(), backend.port));
    if let Some(rules) = &info.passive_health {
        let is_aside = about.set_aside.contains(&backend.id);
        draft.step("passive health", text::passive_health(rules, is_aside));
    }
    if service.mode == ForwardingMode::Nat && backend.address == src {
        hairpin(snapshot, backend, &src, draft)?;
    }
    deliver(snapshot, about, packet, (service, backend), draft)
}

/// The step of a packet whose backend is its own source.
fn hairpin(
    snapshot: &Snapshot,
    backend: &Backend,
    src: &Addr,
    draft: &mut Draft,
) -> Result<(), (PacketVerdict, &'static str)> {
    let snat = snapshot.snat_addresses(backend.family);
    draft.step("hairpin", text::hairpin(src, snat));
    match snat.is_empty() {
        true => Err((PacketVerdict::Drop, Refusal::Hairpin.as_str())),
        false => Ok(()),
    }
}

/// The verdict on a packet of a flow that gets no backend.
fn no_endpoints(service: &Service) -> (PacketVerdict, &'static str) {
    match service.no_endpoints {
        NoEndpoints::Reject => (PacketVerdict::Transmit, TransmitReason::NoEndpoints.as_str()),
        // Offline, no Service has been removed.
        NoEndpoints::Drop | NoEndpoints::Unserved => (PacketVerdict::Drop, Refusal::NoEndpoints.as_str()),
    }
}

/// The verdict on a packet that is not for a service port.
fn unserved(
    snapshot: &Snapshot,
    src: &Addr,
    packet: &Packet,
    kind: Option<AddressKind>,
    draft: &mut Draft,
) -> (PacketVerdict, &'static str) {
    let to_group = matches!(
        snapshot.source_fault(&packet.destination.ip().into()),
        Some(SourceFault::NotOneHost | SourceFault::NotOneHostOfNetwork)
    );
    let gateways_alone = matches!(kind, Some(AddressKind::Vip | AddressKind::Snat));
    match snapshot.source_fault(src) {
        None | Some(SourceFault::Router) => {}
        // Packets of hosts that have no address yet go to the kernel.
        Some(SourceFault::NotOneHost) if !gateways_alone => {}
        Some(fault) if !to_group => {
            draft.step("source", text::source_fault(src, fault));
            return (PacketVerdict::Drop, Refusal::BadSource.as_str());
        }
        Some(_) => {}
    }
    let proto = packet.protocol.0.number();
    let hash = Snapshot::hash_endpoint(src, proto, packet.source.port());
    if snapshot.endpoint(hash, src, proto, packet.source.port()).is_some() {
        let who = packet.source;
        draft.step(
            "flow",
            format!("{who} is a backend: if the packet is a reply in a known flow, it goes to the client"),
        );
    }
    match kind {
        Some(AddressKind::Own(_)) => (PacketVerdict::Punt, PuntReason::Local.as_str()),
        Some(AddressKind::Vip | AddressKind::Tunnel) if snapshot.policy().reject_unserved_ports => {
            (PacketVerdict::Transmit, TransmitReason::NoService.as_str())
        }
        Some(AddressKind::Vip | AddressKind::Tunnel) => (PacketVerdict::Drop, Refusal::NoService.as_str()),
        Some(AddressKind::Snat)
            if snapshot.policy().reset_unknown_flows && packet.protocol.0 == Protocol::Tcp =>
        {
            (PacketVerdict::Transmit, TransmitReason::NoFlow.as_str())
        }
        Some(AddressKind::Snat) => (PacketVerdict::Drop, Refusal::NoSnatFlow.as_str()),
        // The kernel handles groups and broadcasts.
        None if to_group => (PacketVerdict::Punt, PuntReason::Local.as_str()),
        None => not_ours(snapshot, src, packet, draft),
    }
}

/// The verdict on a packet between other hosts.
fn not_ours(
    snapshot: &Snapshot,
    src: &Addr,
    packet: &Packet,
    draft: &mut Draft,
) -> (PacketVerdict, &'static str) {
    let Some(transit) = snapshot.transit().filter(|transit| transit.sources.admits(src)) else {
        return (PacketVerdict::Punt, PuntReason::NotOurs.as_str());
    };
    draft.step("gateway", text::transit(src, transit));
    let dst = Addr::from(packet.destination.ip());
    let is_routed = transit.forward && snapshot.route(&dst).is_some();
    let why = match is_routed {
        false => TransmitReason::NotRouted,
        true if !transit.masquerades(src, &dst) => TransmitReason::Routed,
        true => {
            draft.step("masquerade", text::masquerade(packet.protocol.0));
            if packet.protocol.0 == Protocol::Sctp {
                TransmitReason::NotRouted
            } else if snapshot.snat_addresses(src.family()).is_empty() {
                return (PacketVerdict::Drop, Refusal::SnatPortsExhausted.as_str());
            } else {
                TransmitReason::Masqueraded
            }
        }
    };
    (PacketVerdict::Transmit, why.as_str())
}

/// Chooses the backend by flow, seat or slot.
fn choose<'s>(
    snapshot: &'s Snapshot,
    about: Circumstances<'_>,
    packet: &Packet,
    (service, info): (&Service, &ServiceInfo),
    draft: &mut Draft,
) -> Result<&'s Backend, (PacketVerdict, &'static str)> {
    let pinned = about.known_flow.and_then(|flow| find(snapshot, info, flow.backend));
    draft.step("flow", text::flow(about.known_flow, pinned.is_some(), about.silent_workers));

    let (src, dst) = (Addr::from(packet.source.ip()), Addr::from(packet.destination.ip()));
    let (from, to) = ((&src, packet.source.port()), (&dst, packet.destination.port()));
    let hash = snapshot.choice_hash(service, from, to, packet.protocol.0.number());
    if pinned.is_none()
        && service.affinity_ms != 0
        && let Some(at) = about.affinity
    {
        let backend = listed(info, at).filter(|listed| listed.state == BackendState::Active);
        let backend = backend.and_then(|listed| snapshot.backend(listed.id));
        draft.step("affinity", text::affinity(&src, at, backend.is_some()));
        if let Some(backend) = backend {
            draft.step("backend", text::pinned(backend));
            return Ok(backend);
        }
    }
    if service.selector().is_empty() && pinned.is_none() {
        draft.step("backend", text::no_backend(info, about.refused));
        return Err(no_endpoints(service));
    }
    if let Some(backend) = pinned {
        draft.step("backend", text::pinned(backend));
        return Ok(backend);
    }
    let selector = service.selector().selector_for(hash);
    if let Selector::WarmUp(both) = service.selector()
        && let Some(owner) = both.all().owner(hash)
        && let (Some(step), Some(owner)) = (both.step(owner), snapshot.backend(owner))
    {
        let takes = selector.owner(hash) == Some(owner.id);
        draft.step("slow start", text::slow_start(owner, step, takes));
    }
    match selector {
        Selector::Rendezvous(_) | Selector::InFlux(_) => {
            let seats = selector.seats().expect("both variants have seats");
            if let Some(former) = service.selector().former(hash) {
                let former = former.and_then(|id| snapshot.backend(id));
                draft.step("former owner", text::former(former));
            }
            if let Some(chosen) = seats.chosen_seat(hash) {
                let count = seats.seats().count();
                draft.0.choice = Some(BackendChoice::Seat {
                    seat: chosen.seat,
                    deck: chosen.seat_map,
                    rank: chosen.rank,
                    seats: u32::try_from(count).unwrap_or(u32::MAX),
                });
                draft.step("seat", text::seat(service, seats, &chosen, count, hash));
            }
        }
        Selector::Maglev(slots) => {
            let slot = slots.slot_of(hash);
            draft.0.choice = Some(BackendChoice::Slot { slot, slots: slots.len() });
            draft.step("slot", text::slot(service, slots, slot, hash));
        }
        Selector::RoundRobin(_) | Selector::Loads(_) | Selector::WarmUp(_) => {
            return one_of(snapshot, (service, info), draft);
        }
    }
    let Some(backend) = service.select(hash).and_then(|id| snapshot.backend(id)) else {
        draft.step("backend", "the chosen seat or slot has no backend".to_owned());
        return Err((PacketVerdict::Drop, Refusal::NoEndpoints.as_str()));
    };
    draft.step("backend", text::backend(snapshot, service, info, backend));
    Ok(backend)
}

/// The choice of a scheduler that depends on the worker, which is known only if a single backend accepts new flows.
fn one_of<'s>(
    snapshot: &'s Snapshot,
    (service, info): (&Service, &ServiceInfo),
    draft: &mut Draft,
) -> Result<&'s Backend, (PacketVerdict, &'static str)> {
    let shares = service.selector().shares();
    let scheduler = info.scheduler.as_str().to_owned();
    draft.0.choice = Some(BackendChoice::OfWorker { scheduler, candidates: shares.len() });
    draft.step("scheduler", text::of_worker(info, shares.len()));
    let mut owners = shares.keys();
    match (owners.next().and_then(|&id| snapshot.backend(id)), owners.next()) {
        (Some(backend), None) => {
            draft.step("backend", text::backend(snapshot, service, info, backend));
            Ok(backend)
        }
        _ => {
            draft.step("backend", text::candidates(snapshot, &shares));
            Err((PacketVerdict::Transmit, TransmitReason::Forward.as_str()))
        }
    }
}

/// The backend of a service by address and port, if its state keeps flows.
fn find<'s>(snapshot: &'s Snapshot, info: &ServiceInfo, at: SocketAddr) -> Option<&'s Backend> {
    let listed = listed(info, at)?;
    let keeps = listed.state != BackendState::Down || info.key.protocol != Protocol::Udp;
    snapshot.backend(listed.id).filter(|_| keeps)
}

/// The backend of a service by address and port.
fn listed(info: &ServiceInfo, at: SocketAddr) -> Option<&BackendInfo> {
    info.backends.iter().find(|backend| backend.address.ip() == at.ip() && backend.port == at.port())
}

/// The steps for mode, next hop and MTU.
fn deliver(
    snapshot: &Snapshot,
    about: Circumstances<'_>,
    packet: &Packet,
    (service, backend): (&Service, &Backend),
    draft: &mut Draft,
) -> Result<(), (PacketVerdict, &'static str)> {
    let neighbors = about.neighbors;
    draft.step("mode", text::mode(snapshot, service, backend, packet));
    if about.known_flow.is_none()
        && let Some(step) = text::syn_cookie(service.syn_cookies)
    {
        draft.step("syn cookie", step);
    }
    if let Some(version) = service.proxy_protocol {
        draft.step("proxy protocol", text::proxy_protocol(version, service.proxy_tlvs, packet));
    }
    let interface = snapshot.interface(backend.interface);
    let name = interface.map_or("?", |i| i.name.as_str());
    let hop = neighbors.key(backend.neighbor).map(|(_, addr)| addr.ip());
    let state = neighbors.state(backend.neighbor);
    draft.step("next hop", text::next_hop(name, hop, backend, state, about.assumes_neighbors));

    let link_mtu = interface.map_or(0, |i| i.mtu);
    let overhead = overhead(backend);
    let path = neighbors.path_mtus().get(&backend.address, about.now);
    let path = path.filter(|&path| service.mode.is_tunnel() && path < link_mtu);
    let mtu = path.unwrap_or(link_mtu).saturating_sub(overhead);
    draft.0.egress = Some(Egress { interface: name.to_owned(), next_hop: hop, mtu });
    let longer = text::longer(packet, snapshot.policy().fragment_ipv4, mtu, overhead);
    let mut found = format!("{}; {longer}", text::mtu(name, link_mtu, path, overhead));
    if let Some(version) = service.proxy_protocol {
        found = format!("{found}; {}", text::header_overhead(version, service.proxy_tlvs, packet));
    }
    draft.step("mtu", found);
    let is_limited = service.mss_limit > 0 && service.mode != ForwardingMode::DsrL2;
    if is_limited && service.protocol == Protocol::Tcp {
        let most = mss::most(service.vip.family(), usize::from(mtu), service.mss_limit);
        draft.step("segment size", text::segment_size(most, service.mode));
    }
    let assumes = about.assumes_neighbors;
    draft.0.reply = reply::walk(snapshot, (neighbors, assumes), packet, (service, backend));
    if state == NeighborState::Unresolved && !about.assumes_neighbors {
        return Err((PacketVerdict::Drop, Refusal::NeighborUnresolved.as_str()));
    }
    draft.end(PacketVerdict::Transmit, TransmitReason::Forward.as_str());
    Ok(())
}

/// Bytes that the mode adds to a packet: the outer headers of tunnels.
fn overhead(backend: &Backend) -> u16 {
    let tunnel = backend.encapsulation.map(|encapsulation| tunnel::overhead(encapsulation, backend.family));
    tunnel.unwrap_or(0) as u16
}

/// The explanation while it is built.
struct Draft(Explanation);

impl Draft {
    fn new(snapshot: &Snapshot, packet: &Packet) -> Self {
        Self(Explanation {
            packet: *packet,
            generation: snapshot.generation(),
            // Replaced once the verdict is known.
            verdict: PacketVerdict::Drop,
            reason: String::new(),
            service: None,
            mode: None,
            choice: None,
            backend: None,
            egress: None,
            steps: Vec::new(),
            reply: Vec::new(),
        })
    }

    fn step(&mut self, step: &str, found: String) {
        self.0.steps.push(Step { step: step.to_owned(), found });
    }

    fn end(&mut self, verdict: PacketVerdict, reason: &str) {
        self.0.verdict = verdict;
        reason.clone_into(&mut self.0.reason);
    }
}
