//! Pass 3 of the fast path for first packets of flows with translation: finds the address and port to which the backend
//! replies, creates the flow, and sends the packet.
//!
//! A flow qualifies if its first choice is free: with `nat` the client's own port, with `fullnat` the next port of the
//! first SNAT address. The stages look further (`reply_ports.rs`), and evict other flows.
//!
//! Invariant: flows get the ports that the stages would give them. So after a packet is deferred that may take a port
//! or set a backend aside, all later flows that depend on that are deferred, too.

use arrayvec::ArrayVec;
use tidegate_conntrack::{Bucket, FlowHash, FlowKey, FlowTables, SteadyKey, SteadyTables};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::Backend;
use tidegate_snapshot::service::Service;
use tidegate_spec::ids::BackendId;
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_spec::{BackendState, ForwardingMode, SynCookies};
use tidegate_wire::proto;
use tidegate_wire::tcp::flags;
use tidegate_wire::usual::{Usual, words};

use super::family::family_of;
use super::item::{Action, Item};
use super::send::{Hop, reachable, send_to_backend};
use super::worker::Worker;
use crate::forward::snat_ports::RingPosition;
use crate::frame::Frame;
use crate::pipeline::output::BurstOutput;
use crate::pipeline::passive::ReceivedSyn;
use crate::pipeline::reply_ports::first_address;
use crate::pipeline::view::View;

/// A packet that is about to create its flow.
struct Bound<'s> {
    /// The index of its item.
    at: usize,
    backend: &'s Backend,
    hop: Hop<'s>,
    service: &'s Service,
    /// Where the rotation of ports was before this flow, with `fullnat`.
    before: Option<RingPosition>,
}

/// Creates the flows, and sends their packets. Defers packets whose first choice is not free. Returns the frames that
/// are sent.
#[inline(never)]
pub(super) fn bind<F: Frame, const A: usize>(
    view: &View<'_>,
    worker: &mut Worker<'_>,
    frames: &mut [F],
    items: &mut [Item<A>],
    now: Now,
    out: &mut BurstOutput,
) -> u32
where
    FlowTables: SteadyTables<A>,
{
    let bound = choose_ports(view, worker, items, now);
    let mut sent = 0;
    for (n, one) in bound.iter().enumerate() {
        let item = &mut items[one.at];
        let Some(frame) = frames.get_mut(usize::from(item.at)) else { continue };
        if !worker.flows.create_nat(&item.new_flow(now), &reply_key(one.backend, item), item.reply_hash) {
            defer(worker, items, &bound[n..]);
            break;
        }
        if one.service.passive {
            store_syn(worker, frame.bytes(), item, one.backend.id);
        }
        view.tallies.connected(one.backend.id);
        item.action = Action::Bound;
        sent |= send_to_backend(view, frame, item, (one.backend, &one.hop), out);
    }
    sent
}

#[inline(never)]
fn store_syn<const A: usize>(worker: &mut Worker<'_>, frame: &[u8], item: &Item<A>, backend: BackendId) {
    let headers = item.packet.headers(frame);
    let flow = FlowKey::flow(item.service, headers.src, headers.src_port);
    let hash = FlowHash::from_bits(item.flow_hash);
    let syn = ReceivedSyn { frame, headers: &headers, interface: worker.interface, flow: &flow, hash };
    worker.passive.store_syn(&syn, false, backend);
}

/// The reply key of a flow whose other side is known.
#[inline(always)]
fn reply_key<const A: usize>(backend: &Backend, item: &Item<A>) -> SteadyKey<A> {
    SteadyKey::reply(backend.endpoint, item.other, item.other_port)
}

/// Finds the first choice of each flow, and prefetches its reply key.
#[inline(always)]
fn choose_ports<'s, const A: usize>(
    view: &View<'s>,
    worker: &mut Worker<'_>,
    items: &mut [Item<A>],
    now: Now,
) -> ArrayVec<Bound<'s>, BURST>
where
    FlowTables: SteadyTables<A>,
{
    let mut bound = ArrayVec::<Bound<'_>, BURST>::new();
    let is_any = view.snapshot.transit().is_some() || worker.cookies.may_return(now);
    let mut may_differ = false;
    for (at, item) in items.iter_mut().enumerate() {
        match item.action {
            Action::Binding => {}
            Action::Stages => {
                may_differ |= is_any || affects_others(&item.packet);
                continue;
            }
            Action::ToBackend if item.packet.proto == proto::UDP => {
                // The stages move its flow.
                may_differ |= is_down(view.snapshot, item);
                continue;
            }
            _ => continue,
        }
        let Some(first) = first_choice(view, worker, item, at, may_differ) else {
            item.action = Action::Stages;
            may_differ = true;
            continue;
        };
        item.reply_hash = worker.flows.steady_hash(&reply_key(first.backend, item));
        // A free key is in neither hash bucket, so both are searched.
        worker.flows.prefetch_nat(item.reply_hash, Bucket::First);
        worker.flows.prefetch_nat(item.reply_hash, Bucket::Second);
        bound.push(first);
    }
    bound
}

/// Whether a packet that is deferred may take a port or set a backend aside, unless clients may return SYN cookies.
#[inline(always)]
fn affects_others<const A: usize>(packet: &Usual<A>) -> bool {
    packet.proto == proto::UDP || packet.flags & (flags::SYN | flags::RST) != 0
}

fn is_down<const A: usize>(snapshot: &Snapshot, item: &Item<A>) -> bool {
    snapshot.backend(item.backend).is_none_or(|backend| backend.state == BackendState::Down)
}

/// Stores the first choice of a packet in its item, whose index is `at`. `None` if the stages must decide. `may_differ`
/// is whether an earlier packet is deferred that may take a port or set a backend aside.
#[inline(always)]
fn first_choice<'s, const A: usize>(
    view: &View<'s>,
    worker: &mut Worker<'_>,
    item: &mut Item<A>,
    at: usize,
    may_differ: bool,
) -> Option<Bound<'s>> {
    let (backend, hop) = reachable(view, item)?;
    let service = view.snapshot.service_by_id(item.service)?;
    let may_need_cookie = service.syn_cookies == SynCookies::Auto && worker.is_near_flood::<A>(service.id);
    if may_need_cookie || service.passive && (may_differ || !worker.passive.is_idle()) {
        return None;
    }
    let packet = &item.packet;
    if service.mode == ForwardingMode::Nat {
        (item.other, item.other_port) = (packet.src, packet.src_port());
        // A backend that is its own client needs another source.
        let is_own_client = words::<A>(&backend.address) == packet.src;
        return (!is_own_client).then_some(Bound { at, backend, hop, service, before: None });
    }
    if may_differ || !worker.flows.masquerades.is_empty() {
        return None;
    }
    let addresses = view.snapshot.snat_addresses(family_of::<A>());
    let local = addresses.get(first_address(addresses, FlowHash::from_bits(item.flow_hash)))?;
    let pair = worker.snat_ports.pair(*local, (backend.address, backend.port), packet.proto);
    let before = worker.snat_ports.position(&pair);
    let Some((port, _)) = worker.snat_ports.next(&pair) else {
        worker.snat_ports.resume_at(before);
        return None;
    };
    (item.other, item.other_port) = (words(local), port);
    Some(Bound { at, backend, hop, service, before: Some(before) })
}

/// Defers the packet whose first choice is not free, and all later ones, which the stages may treat differently.
#[cold]
#[inline(never)]
fn defer<const A: usize>(worker: &mut Worker<'_>, items: &mut [Item<A>], bound: &[Bound<'_>]) {
    for one in bound.iter().rev() {
        items[one.at].action = Action::Stages;
        if let Some(before) = one.before {
            worker.snat_ports.resume_at(before);
        }
    }
}
