//! The share of new flows that a service port rejects.

use tidegate_admin_api::explain::Packet;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::service::Service;
use tidegate_wire::Addr;

/// Whether the flow of a packet belongs to the share, with the text for display; `None` if the service rejects none.
pub(super) fn check(
    snapshot: &Snapshot,
    service: &Service,
    packet: &Packet,
    is_known: bool,
) -> Option<(bool, String)> {
    if !service.limited.rejects_new_flows() {
        return None;
    }
    let (src, dst) = (Addr::from(packet.source.ip()), Addr::from(packet.destination.ip()));
    let (from, to) = ((&src, packet.source.port()), (&dst, packet.destination.port()));
    let is_rejected = !is_known && snapshot.rejects(service, from, to, packet.protocol.0.number());
    let this = match (is_known, is_rejected) {
        (true, _) => "this flow is known and is served",
        (false, true) => "by its addresses and ports, this flow is one of them",
        (false, false) => "by its addresses and ports, this flow is not one of them",
    };
    let percent = f64::from(snapshot.service_info(service.id)?.rejected_ppm) / 10_000.0;
    let why = format!("{percent} % of new flows are rejected, as if no backend took new flows: {this}");
    Some((is_rejected, why))
}
