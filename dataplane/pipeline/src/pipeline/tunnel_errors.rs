//! ICMP errors about packets in tunnels: they are sent to the outer source, which is ours, and quote our outer header.
//!
//! "Fragmentation needed" and "packet too big" lower the path MTU of the tunnel ([`tidegate_snapshot::path_mtu`]);
//! the next packet that is too big is answered to its client. All other errors are counted and dropped: they quote
//! too little to be forwarded to a client, and health checks detect unreachable backends.
//!
//! An error is accepted only if it quotes a packet that this gateway sends: a tunnel packet from a tunnel source to the
//! address of a backend that answers clients itself. The packet must be unfragmented, have DF set, fit the link and be
//! longer than the MTU that the error reports. If the quote is long enough, it must also contain a packet to a service
//! whose mode is this tunnel, with this backend. The host may send UDP from the same address, so an error about UDP is
//! treated as one about a tunnel only if the quote has such an inner packet or, if the quote is too short for that, a
//! well-known tunnel port. An off-path host that knows VIP and backend can still forge such an error. It makes packets
//! to that backend smaller for ten minutes, but never below the minimum of the outer family.

use tidegate_snapshot::Snapshot;
use tidegate_snapshot::backend::EndpointKey;
use tidegate_snapshot::path_mtu;
use tidegate_spec::Protocol;
use tidegate_spec::limits::PATH_MTU_UPDATES;
use tidegate_spec::verdict::Refusal;
use tidegate_wire::encapsulation::{GENEVE_PORT, GUE_PORT};
use tidegate_wire::icmp;
use tidegate_wire::quote::{self, Quote, Tunnelled};
use tidegate_wire::{Fragment, Headers, proto};

use super::burst::Burst;
use super::state::Pipeline;
use crate::frame::Frame;

/// Common MTUs of links, for routers that do not report theirs (RFC 1191 section 7.1), down to the smallest that is
/// used.
const PLATEAUS: [u16; 8] = [32_000, 17_914, 8_166, 4_352, 2_002, 1_492, 1_006, 576];

impl Pipeline {
    /// Processes an ICMP error about a packet in one of our tunnels. Returns false if it is about something else.
    #[cold]
    pub(super) fn about_tunnel<F: Frame>(
        &mut self,
        burst: &mut Burst<'_, '_, F>,
        at: usize,
        h: &Headers,
        quoted: &Quote,
    ) -> bool {
        let snapshot = burst.view.snapshot;
        let of_a_tunnel = matches!(quoted.proto, proto::IPIP | proto::IPV6 | proto::GRE | proto::UDP)
            && h.dst == quoted.src
            && snapshot.is_tunnel_source(&quoted.src)
            && snapshot.has_direct_backend(&quoted.dst);
        if !of_a_tunnel {
            return false;
        }
        let bytes = burst.frames[at].bytes();
        let packet = quote::tunnelled(bytes, h, quoted);
        if quoted.proto == proto::UDP
            && !packet.as_ref().is_some_and(|packet| is_udp_of_ours(snapshot, quoted, packet))
        {
            return false;
        }
        let mtu = icmp::reported_mtu(bytes, h)
            .filter(|_| icmp::checksum_ok(bytes, h))
            .and_then(|reported| valid_path_mtu(snapshot, quoted, &packet?, reported));
        if let Some(mtu) = mtu
            && PATH_MTU_UPDATES.take(&mut self.path_mtu_updates, burst.now)
        {
            burst.view.neighbors.path_mtus().record(quoted.dst, mtu, burst.now);
        }
        burst.set(at, Refusal::TunnelError);
        true
    }
}

/// Whether a UDP packet belongs to a tunnel, and not to the host.
fn is_udp_of_ours(snapshot: &Snapshot, outer: &Quote, packet: &Tunnelled) -> bool {
    match &packet.inner {
        Some(inner) => is_ours(snapshot, outer, packet, inner),
        None => matches!(packet.between.port, Some(GUE_PORT | GENEVE_PORT)),
    }
}

/// The path MTU that a valid error about this packet reports.
fn valid_path_mtu(snapshot: &Snapshot, outer: &Quote, packet: &Tunnelled, reported: u16) -> Option<u16> {
    let interface = snapshot.interface(snapshot.route(&outer.dst)?.interface)?;
    if packet.ip_len > interface.mtu
        || !packet.inner.is_none_or(|inner| is_ours(snapshot, outer, packet, &inner))
    {
        return None;
    }
    let minimum = path_mtu::minimum(outer.family);
    let mtu = match reported {
        // An IPv4 router older than RFC 1191 reports 0. Use the next common MTU below the size of the packet.
        0 if outer.src.is_v4() => PLATEAUS.into_iter().find(|&plateau| plateau < packet.ip_len)?,
        // RFC 8201 section 4 requires discarding such a report.
        _ if reported < minimum && !outer.src.is_v4() => return None,
        _ => reported.max(minimum),
    };
    (mtu < packet.ip_len).then_some(mtu)
}

/// Whether the gateway would send the inner packet into the tunnel to this backend.
fn is_ours(snapshot: &Snapshot, outer: &Quote, packet: &Tunnelled, inner: &Quote) -> bool {
    let Some(protocol) = Protocol::from_number(inner.proto) else {
        // An ICMP error was forwarded to the backend.
        return snapshot.address(&inner.dst).is_some();
    };
    if matches!(inner.fragment, Fragment::Later { .. }) {
        return snapshot.address(&inner.dst).is_some();
    }
    let (vip, port) = (&inner.dst, inner.dst_port);
    let service = snapshot.service(Snapshot::hash_service(vip, inner.proto, port), vip, inner.proto, port);
    // All backends of a service have the same tunnel and, in a DSR mode, the service's port.
    let backends = service.and_then(|service| snapshot.service_info(service.id)).map(|info| &info.backends);
    let backend = backends.and_then(|backends| snapshot.backend(backends.first()?.id));
    let encapsulation = backend.and_then(|backend| backend.encapsulation);
    encapsulation.is_some()
        && packet.between.encapsulation == encapsulation
        && snapshot.is_direct_backend(&EndpointKey { address: outer.dst, port, protocol })
}
