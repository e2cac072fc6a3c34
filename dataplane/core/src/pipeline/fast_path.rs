//! The fast path: plain packets of established flows, which are nearly all packets, in four passes over the burst
//! before the stages. It leaves every other frame of the burst as it is, and the stages process these.
//!
//! It takes a packet if all of this holds: usual headers ([`usual`]), no TCP flag that begins or ends a connection, an
//! untagged interface, a service that does nothing but forward, an entry of an established flow in use, a backend that takes
//! packets, a next hop that is known, and room on its path. Such a packet changes nothing but the time of its flow. With
//! `flowTracking: on-change`, a packet without an entry whose backend is settled takes it too, whatever its flags. Then nothing
//! changes at all, except for the count of new connections.
//!
//! Packets of one flow stay in order: behind a packet that is left to the stages, packets of the same flow are left, too.
//! A frame that may belong to any flow (a fragment, options, a tag) leaves all that follow.
//!
//! Invariant: verdict, bytes, counters and flow are those that the stages would produce for the same packet
//! (`tests/fast_path.rs` compares them).

mod family;
mod item;
mod send;

pub(super) use item::Items;

use super::output::BurstOutput;
use super::state::Pipeline;
use super::view::View;
use crate::conntrack::{Bucket, FlowTables, Packet, SteadyHit, SteadyKey, SteadyTables};
use crate::frame::Frame;
use crate::ids::{BackendId, ServiceId};
use crate::limits::BURST;
use crate::now::Now;
use crate::selector::Selector;
use crate::service::{Entries, Service};
use crate::snapshot::{Interface, Snapshot};
use crate::wire::usual::{self, Usual, addr, station_bits};
use crate::wire::{proto, tcp};
use family::{Families, Family};
use item::{Item, Way};

/// How many frames ahead of the header check the first line is prefetched.
const AHEAD: usize = 4;

/// The flows of which an earlier packet of the burst is left to the stages, as a filter of 64 bits.
#[derive(Default)]
struct Left(u64);

impl Left {
    #[inline(always)]
    fn bit<const A: usize>(packet: &Usual<A>) -> u64 {
        let src = packet.src.iter().fold(0, |all, word| all ^ word);
        1 << ((src ^ packet.ports.rotate_left(7)).wrapping_mul(0x9e37_79b1) >> 26)
    }

    #[inline(always)]
    fn add<const A: usize>(&mut self, packet: &Usual<A>) {
        self.0 |= Self::bit(packet);
    }

    #[inline(always)]
    fn may_have<const A: usize>(&self, packet: &Usual<A>) -> bool {
        self.0 != 0 && self.0 & Self::bit(packet) != 0
    }

    /// Whether a packet may take the fast path. If not, no later packet of its flow may.
    #[inline(always)]
    fn admits<const A: usize>(&mut self, packet: &Usual<A>) -> bool {
        if packet.controls() {
            self.add(packet);
            return false;
        }
        !self.may_have(packet)
    }
}

impl Pipeline {
    /// Processes the frames that it can, and returns them: bit n stands for frame n.
    #[inline(always)]
    pub(super) fn fast_path<F: Frame>(
        &mut self,
        view: View<'_>,
        now: Now,
        interface: &Interface,
        frames: &mut [F],
        out: &mut BurstOutput,
    ) -> u32 {
        let Self { items: Items { v4, v6 }, flows, .. } = self;
        let (count_v4, count_v6) = check(interface, frames, v4, v6);
        let mut sent = 0;
        if count_v4 > 0 {
            sent |= pass_on(&view, flows, now, frames, &mut v4[..count_v4], out);
        }
        if count_v6 > 0 {
            sent |= pass_on(&view, flows, now, frames, &mut v6[..count_v6], out);
        }
        sent
    }
}

/// Passes 2 to 4 for the packets of one family.
#[inline(always)]
fn pass_on<F: Frame, const A: usize>(
    view: &View<'_>,
    flows: &mut FlowTables,
    now: Now,
    frames: &mut [F],
    items: &mut [Item<A>],
    out: &mut BurstOutput,
) -> u32
where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let any_on_change = seek(view.snapshot, flows, items);
    find(view.snapshot, flows, now, items);
    if any_on_change {
        choose(view.snapshot, items);
    }
    let sent = send::send(view, frames, items, out);
    if any_on_change {
        count_openings(view, items, sent);
    }
    sent
}

/// Pass 1: checks the headers, and hashes the destination of each packet. Returns the numbers of packets of IPv4 and IPv6.
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
            // Nothing is known of the flow of any other frame.
            break;
        };
        let hash = Snapshot::hash_service(&addr(packet.dst), packet.proto, packet.dst_port());
        v4[count % BURST].begin(packet, hash, at as u8);
        count += 1;
    }
    (count.min(BURST), count_v6.min(BURST))
}

/// Pass 1 for a frame that is not a usual one of IPv4. Returns false if it is not one of IPv6 either.
#[inline(never)]
fn take_v6(frame: &[u8], station: u64, at: usize, items: &mut [Item<4>; BURST], count: &mut usize) -> bool {
    let Some(packet) = usual::check_v6(frame, station) else { return false };
    let hash = Snapshot::hash_service(&addr(packet.dst), packet.proto, packet.dst_port());
    items[*count % BURST].begin(packet, hash, at as u8);
    *count += 1;
    true
}

/// Pass 2: finds the service or the endpoint of each packet, and prefetches its flow. Returns whether any service tracks on
/// change.
#[inline(never)]
fn seek<const A: usize>(snapshot: &Snapshot, flows: &FlowTables, items: &mut [Item<A>]) -> bool
where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    // Flows whose bytes are counted have more to do for each packet.
    let translates = !flows.nat.has_streams();
    let (mut any_from_backends, mut any_on_change) = (false, false);
    let mut left = Left::default();
    for item in items.iter_mut() {
        let packet = &item.packet;
        let Some(service) = snapshot.service(item.hash, &addr(packet.dst), packet.proto, packet.dst_port())
        else {
            if !left.admits(packet) {
                continue;
            }
            item.hash = Snapshot::hash_endpoint(&addr(packet.src), packet.proto, packet.src_port());
            snapshot.prefetch_endpoint(item.hash);
            item.way = Way::ToClient;
            any_from_backends = true;
            continue;
        };
        if service.on_change() {
            any_on_change = true;
            item.id = service.id.raw();
            seek_on_change(snapshot, flows, service, &mut left, item);
            continue;
        }
        if !left.admits(packet) {
            continue;
        }
        let key = SteadyKey::flow(service.id, packet.src, packet.src_port());
        match service.entries {
            Entries::EachFlow if !service.limited.of_bandwidth() => {
                item.hash = flows.steady_hash(&key);
                flows.prefetch_dsr(item.hash, Bucket::First);
                item.way = Way::Dsr;
            }
            Entries::Pairs if service.is_plain & translates => {
                item.hash = flows.steady_hash(&key);
                flows.prefetch_nat(item.hash, Bucket::First);
                item.way = Way::ToBackend;
            }
            _ => continue,
        }
        item.id = service.id.raw();
    }
    if any_from_backends {
        seek_replies(snapshot, flows, translates, items);
    }
    any_on_change
}

/// Pass 2 for a packet to a service that tracks on change: if it has any entry, this packet may have one. If not, even a packet
/// that begins or ends a connection changes nothing.
#[inline(never)]
fn seek_on_change<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    service: &Service,
    left: &mut Left,
    item: &mut Item<A>,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let packet = &item.packet;
    let key = SteadyKey::flow(service.id, packet.src, packet.src_port());
    let is_left = left.may_have(packet) || service.limited.of_bandwidth();
    if flows.has_dsr_flows_of(&key) {
        if left.admits(packet) && !is_left {
            item.hash = flows.steady_hash(&key);
            flows.prefetch_dsr(item.hash, Bucket::First);
            item.way = Way::Dsr;
        }
        return;
    }
    // A SYN may be counted against a limit, and the segment size in it may have to be lowered.
    let is_checked = packet.flags & tcp::flags::SYN != 0
        && (service.mss_limit != 0 || service.limited.of_new_flows() || snapshot.limits_sources());
    if !(is_left || is_checked) {
        prepare_choice(snapshot, service, item);
    }
    if item.way == Way::Stages && item.packet.controls() {
        left.add(&item.packet);
    }
}

/// Prefetches what the choice of a backend reads for a packet without an entry, if its hash decides and its source is a
/// client's.
#[inline(always)]
fn prepare_choice<const A: usize>(snapshot: &Snapshot, service: &Service, item: &mut Item<A>)
where
    Families: Family<A>,
{
    let packet = &item.packet;
    // With any other selector, something is in flux or warms up.
    let Selector::Rendezvous(seats) = service.selector() else { return };
    let (src, dst) = (addr(packet.src), addr(packet.dst));
    if snapshot.admits(service, &src) && Families::is_client_of_any(snapshot, packet.src) {
        let (from, to) = ((&src, packet.src_port()), (&dst, packet.dst_port()));
        item.hash = snapshot.choice_hash(service, from, to, packet.proto);
        seats.prefetch();
        item.way = Way::Settled;
    }
}

/// Pass 3 for packets without an entry: stores the backend that the hash selects.
#[inline(never)]
fn choose<const A: usize>(snapshot: &Snapshot, items: &mut [Item<A>]) {
    for item in items.iter_mut().filter(|item| item.way == Way::Settled) {
        let service = snapshot.service_by_id(ServiceId::from_raw(item.id));
        let backend = match service.map(Service::selector) {
            Some(Selector::Rendezvous(seats)) => seats.owner(item.hash),
            _ => None,
        };
        item.way = Way::Stages;
        if let Some(backend) = backend {
            snapshot.prefetch_backend(backend);
            let opens = item.packet.proto == proto::TCP && Packet::Tcp(item.packet.flags).is_opening();
            item.service = if opens { Item::<A>::OPENS } else { Item::<A>::WITHOUT_ENTRY };
            (item.id, item.way) = (backend.raw(), Way::Dsr);
        }
    }
}

/// Counts the connections that packets without an entry have opened.
#[inline(never)]
fn count_openings<const A: usize>(view: &View<'_>, items: &[Item<A>], sent: u32) {
    for item in items.iter().filter(|item| item.way == Way::Dsr && item.service == Item::<A>::OPENS) {
        if sent >> (u32::from(item.at) % u32::BITS) & 1 == 1 {
            view.tallies.connected(BackendId::from_raw(item.id));
        }
    }
}

/// Pass 2 for packets that may come from backends.
#[inline(never)]
fn seek_replies<const A: usize>(
    snapshot: &Snapshot,
    flows: &FlowTables,
    translates: bool,
    items: &mut [Item<A>],
) where
    FlowTables: SteadyTables<A>,
{
    for item in items.iter_mut().filter(|item| item.way == Way::ToClient) {
        let packet = &item.packet;
        let src = addr(packet.src);
        match snapshot.endpoint(item.hash, &src, packet.proto, packet.src_port()) {
            Some(endpoint) if translates => {
                let key = SteadyKey::reply(endpoint, packet.dst, packet.dst_port());
                item.hash = flows.steady_hash(&key);
                flows.prefetch_nat(item.hash, Bucket::First);
                item.id = endpoint.raw();
            }
            _ => item.way = Way::Stages,
        }
    }
}

/// Pass 3: finds the flow of each packet, records the packet in it, and prefetches the backend.
#[inline(never)]
fn find<const A: usize>(snapshot: &Snapshot, flows: &mut FlowTables, now: Now, items: &mut [Item<A>])
where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let mut elsewhere = 0_u32;
    for (n, item) in items.iter_mut().enumerate() {
        let is_tcp = item.packet.proto == proto::TCP;
        let found = match item.way {
            Way::Stages | Way::Settled => continue,
            Way::Dsr => match flows.steady_dsr(&item.key(), item.hash, Bucket::First, is_tcp, now) {
                Some(backend) => {
                    snapshot.prefetch_backend(backend);
                    item.id = backend.raw();
                    continue;
                }
                None => None,
            },
            Way::ToBackend | Way::ToClient => {
                flows.steady_nat(&item.key(), item.hash, Bucket::First, is_tcp, now)
            }
        };
        match found {
            Some(hit) => settle(snapshot, item, &hit),
            None => {
                if item.way == Way::Dsr {
                    flows.prefetch_dsr(item.hash, Bucket::Second);
                } else {
                    flows.prefetch_nat(item.hash, Bucket::Second);
                }
                elsewhere |= 1 << (n % BURST);
            }
        }
    }
    if elsewhere != 0 {
        find_elsewhere(snapshot, flows, now, items, elsewhere);
    }
}

/// The same in the second bucket, for flows that are not in the first: bit n stands for item n.
#[cold]
#[inline(never)]
fn find_elsewhere<const A: usize>(
    snapshot: &Snapshot,
    flows: &mut FlowTables,
    now: Now,
    items: &mut [Item<A>],
    mut elsewhere: u32,
) where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    while let Some(item) = items.get_mut(elsewhere.trailing_zeros() as usize) {
        elsewhere &= elsewhere - 1;
        let is_tcp = item.packet.proto == proto::TCP;
        if item.way == Way::Dsr {
            match flows.steady_dsr(&item.key(), item.hash, Bucket::Second, is_tcp, now) {
                Some(backend) => {
                    snapshot.prefetch_backend(backend);
                    item.id = backend.raw();
                }
                None => prepare_without_entry(snapshot, flows, item),
            }
        } else {
            match flows.steady_nat(&item.key(), item.hash, Bucket::Second, is_tcp, now) {
                Some(hit) => settle(snapshot, item, &hit),
                None => item.way = Way::Stages,
            }
        }
    }
}

/// Prepares the choice for a packet whose flow was not found, if its service has entries for flows in flux only, and none for
/// this one.
fn prepare_without_entry<const A: usize>(snapshot: &Snapshot, flows: &FlowTables, item: &mut Item<A>)
where
    FlowTables: SteadyTables<A>,
    Families: Family<A>,
{
    let service = snapshot.service_by_id(ServiceId::from_raw(item.id));
    let has_entry = flows.has_dsr_entry(&item.key(), item.hash);
    item.way = Way::Stages;
    if let Some(service) = service.filter(|service| service.on_change() && !has_entry) {
        prepare_choice(snapshot, service, item);
    }
}

/// Stores what the entry of a NAT flow says.
#[inline(always)]
fn settle<const A: usize>(snapshot: &Snapshot, item: &mut Item<A>, hit: &SteadyHit<A>) {
    (item.other, item.other_port) = (hit.addr, hit.port);
    item.id = hit.backend.raw();
    if item.way == Way::ToClient {
        item.service = hit.owner;
    } else {
        snapshot.prefetch_backend(hit.backend);
    }
}
