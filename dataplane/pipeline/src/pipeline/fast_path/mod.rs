//! The fast path: four passes over a burst before the stages. It sends plain packets of established flows, which are
//! nearly all packets, and first packets of simple flows. All other frames are deferred unchanged to the stages.
//!
//! A packet qualifies if it has all of these: usual headers ([`usual`]), no TCP flag that starts or ends a connection,
//! an untagged interface, a service without optional features, an entry (or a copy of one,
//! [`tidegate_conntrack::flow_copies`]) of an established flow with recent packets, a backend that accepts packets, a
//! resolved next hop, and a length that fits its path. Such a packet changes only the last-use time of its flow, or
//! nothing if it is sent by a copy. With `flowTracking: on-change`, any packet of a flow without an entry qualifies,
//! whatever its flags, while no flow of the service is in flux (`docs/selection.md`). It changes only the count of new
//! connections. If the hash alone determines the backend, a first datagram or SYN qualifies, too ([`choice`],
//! [`mod@bind`]). Which packets of a service may qualify is one value of its record ([`FastPath`]).
//!
//! Packets of one flow stay in order: after a packet is deferred, later packets of its flow are deferred, too. A frame
//! that may belong to any flow (a fragment, options, a tag) defers all later ones.
//!
//! Invariant: verdict, bytes, counters and flow are the same as if the stages had processed the packet
//! (`tests/fast_path.rs` compares them). So a change of one of these forms is also a change of the other:
//!
//! | step | fast path | stages |
//! |---|---|---|
//! | check the headers | `usual::check`, `usual::check_v6` | `usual::parse`, then `tidegate_wire::parse` |
//! | keys | [`match_packets`], [`match_replies`] | `Pipeline::request`, `Pipeline::reply` |
//! | the owner of a flow | `flow_locality.rs` | `owners.rs`, which both use |
//! | look-up | `find.rs` | `Pipeline::look_up`, `Pipeline::find_reply_flows`, `copies.rs` |
//! | whether a flow may begin, and where | `choice.rs` | `new_flows.rs`, `on_change.rs` |
//! | address and port of replies | `bind.rs` | `reply_ports.rs` |
//! | next hop, and whether the packet fits | `send.rs` | `next_hop.rs`, `deliver.rs`, `translated.rs` |
//! | rewrite | [`crate::forward::usual`] | the other modules of [`crate::forward`] |

mod bind;
mod choice;
mod family;
mod find;
mod flow_locality;
mod flow_order;
mod item;
mod send;
mod worker;

pub(super) use item::Items;

use bind::bind;
use choice::{choose, insert_flows, match_on_change, match_opening};
use family::{Families, Family};
use flow_locality::LocalWorker;
use flow_order::BurstFlows;
use item::{Action, Actions, Item};
use tidegate_conntrack::{Bucket, FlowHash, FlowTables, SteadyKey, SteadyTables};
use tidegate_snapshot::service::{Entries, FastPath};
use tidegate_snapshot::{Interface, Snapshot};
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::limits::BURST;
use tidegate_spec::now::Now;
use tidegate_wire::usual::{self, addr, station_bits};

use worker::Worker;

use super::output::BurstOutput;
use super::state::Pipeline;
use super::view::View;
use crate::frame::Frame;

/// How many frames ahead of the header check the first cache line of a frame is prefetched.
const AHEAD: usize = 4;

impl Pipeline {
    /// Processes the frames that qualify, and returns them: bit n stands for frame n.
    #[inline(always)]
    pub(super) fn fast_path<F: Frame>(
        &mut self,
        view: View<'_>,
        now: Now,
        interface: (InterfaceIndex, &Interface),
        frames: &mut [F],
        out: &mut BurstOutput,
    ) -> u32 {
        let Self { items: Items { v4, v6 }, flows, copies, snat_ports, cookies, passive, .. } = self;
        let (id, workers) = (self.worker, self.workers);
        let mut worker =
            Worker { id, workers, interface: interface.0, flows, copies, snat_ports, cookies, passive };
        let (count_v4, count_v6) = check(interface.1, frames, v4, v6);
        let mut sent = 0;
        if count_v4 > 0 {
            sent |= pass_on(&view, &mut worker, now, frames, &mut v4[..count_v4], out);
        }
        if count_v6 > 0 {
            sent |= pass_on(&view, &mut worker, now, frames, &mut v6[..count_v6], out);
        }
        sent
    }
}

/// Passes 2 to 4 for the packets of one family.
#[inline(always)]
fn pass_on<F: Frame, const A: usize>(
    view: &View<'_>,
    worker: &mut Worker<'_>,
    now: Now,
    frames: &mut [F],
    items: &mut [Item<A>],
    out: &mut BurstOutput,
) -> u32
where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let mut actions = match_packets(view.snapshot, worker.flows, &worker.locality(), items);
    find::find(view.snapshot, worker.flows, now, items, &mut actions);
    if actions.by_copies {
        find::find_copies(view.snapshot, worker.copies, now, items, &mut actions);
    }
    if actions.chosen {
        choose(view.snapshot, items, &mut actions);
    }
    let bound = if actions.binding { bind(view, worker, frames, items, now, out) } else { 0 };
    let sent = send::send(view, frames, items, &actions, out);
    if actions.chosen {
        insert_flows(view, worker.flows, items, sent, now);
    }
    bound | sent
}

/// Pass 1: checks the headers of each packet. Returns the numbers of IPv4 and IPv6 packets.
#[inline(never)]
fn check<F: Frame>(
    interface: &Interface,
    frames: &[F],
    v4: &mut [Item<1>; BURST],
    v6: &mut [Item<4>; BURST],
) -> (usize, usize) {
    let station = station_bits(&interface.mac);
    let (mut count, mut count_v6) = (0, 0);
    for frame in frames.iter().take(AHEAD) {
        frame.prefetch();
    }
    for (at, frame) in frames.iter().enumerate() {
        if let Some(next) = frames.get(at + AHEAD) {
            next.prefetch();
        }
        let Some(packet) = usual::check(frame.bytes(), station) else {
            if take_v6(frame.bytes(), station, at, v6, &mut count_v6) {
                continue;
            }
            // Any other frame may belong to any flow.
            break;
        };
        v4[count % BURST].reset(packet, at as u8);
        count += 1;
    }
    (count.min(BURST), count_v6.min(BURST))
}

/// Pass 1 for a frame that isn't a usual IPv4 frame. Returns false if it isn't a usual IPv6 frame either.
#[inline(never)]
fn take_v6(frame: &[u8], station: u64, at: usize, items: &mut [Item<4>; BURST], count: &mut usize) -> bool {
    let Some(packet) = usual::check_v6(frame, station) else { return false };
    items[*count % BURST].reset(packet, at as u8);
    *count += 1;
    true
}

/// Pass 2: finds the service or the endpoint of each packet, and prefetches its flow. Returns the actions that packets
/// need.
#[inline(never)]
fn match_packets<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    local_worker: &LocalWorker<'_>,
    items: &mut [Item<A>],
) -> Actions
where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    // A flow with a stream or a splice needs the stages. Once there was one, they process all NAT packets.
    let translates = !flows.nat.has_streams();
    let mut actions = Actions::default();
    let mut deferred = BurstFlows::default();
    for item in items.iter_mut() {
        let packet = &item.packet;
        let dst = addr(packet.dst);
        let hash = Snapshot::hash_service(&dst, packet.proto, packet.dst_port());
        let Some(service) = snapshot.service(hash, &dst, packet.proto, packet.dst_port()) else {
            if !deferred.admits(packet) {
                continue;
            }
            item.endpoint_hash = Snapshot::hash_endpoint(&addr(packet.src), packet.proto, packet.src_port());
            snapshot.prefetch_endpoint(item.endpoint_hash);
            item.action = Action::ToClient;
            actions.to_clients = true;
            continue;
        };
        if service.on_change() {
            item.service = service.id;
            match_on_change(snapshot, flows, service, &mut deferred, item, &mut actions);
            continue;
        }
        if packet.controls() {
            match_opening(flows, service, (local_worker, translates), &mut deferred, item, &mut actions);
            continue;
        }
        if service.fast_path == FastPath::Off || deferred.may_have(packet) {
            continue;
        }
        let key = SteadyKey::flow(service.id, packet.src, packet.src_port());
        item.service = service.id;
        item.flow_hash = flows.steady_hash(&key);
        if service.entries == Entries::EachFlow {
            flows.prefetch_dsr(item.flow_hash, Bucket::First);
            item.action = Action::Dsr;
            actions.dsr = true;
        } else if !translates {
            // The stages process it.
        } else if local_worker.owns_request(service, packet) {
            flows.prefetch_nat(item.flow_hash, Bucket::First);
            item.action = Action::ToBackend;
            actions.to_backends = true;
        } else {
            local_worker.copies.prefetch(FlowHash::from_bits(item.flow_hash));
            item.action = Action::ToBackendByCopy;
            actions.by_copies = true;
        }
    }
    if actions.to_clients {
        match_replies(snapshot, flows, local_worker, translates, items, &mut actions);
    }
    actions
}

/// Pass 2 for packets that may come from backends.
#[inline(never)]
fn match_replies<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    local_worker: &LocalWorker<'_>,
    translates: bool,
    items: &mut [Item<A>],
    actions: &mut Actions,
) where
    FlowTables: SteadyTables<A>,
{
    for item in items.iter_mut().filter(|item| item.action == Action::ToClient) {
        let packet = &item.packet;
        let src = addr(packet.src);
        match snapshot.endpoint(item.endpoint_hash, &src, packet.proto, packet.src_port()) {
            Some(endpoint) if translates => {
                let key = SteadyKey::reply(endpoint, packet.dst, packet.dst_port());
                item.flow_hash = flows.steady_hash(&key);
                item.endpoint = endpoint;
                if local_worker.owns_reply(snapshot, packet) {
                    flows.prefetch_nat(item.flow_hash, Bucket::First);
                } else {
                    local_worker.copies.prefetch(FlowHash::from_bits(item.flow_hash));
                    item.action = Action::ToClientByCopy;
                    actions.by_copies = true;
                }
            }
            _ => item.action = Action::Stages,
        }
    }
}
