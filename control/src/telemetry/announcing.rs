//! The families of announcements: VIPs, BGP sessions, kernel routes.

use super::exposition::Exposition;
use super::sample::AnnounceSample;

/// Announced and withheld VIPs, and the sessions.
pub(super) fn announcements(page: &mut Exposition, sample: &AnnounceSample<'_>) {
    let status = sample.status;
    let help = "Announced VIPs: sent to a BGP peer, or present as kernel routes.";
    page.gauge("tidegate_announced_vips", help, []).sample([], status.announced);
    let help = "Announced prefixes; an aggregate counts once.";
    page.gauge("tidegate_announced_prefixes", help, []).sample([], status.prefixes);
    let help = "VIPs that the gateway does not announce, by reason.";
    let mut withheld = page.gauge("tidegate_withheld_vips", help, ["reason"]);
    for (reason, count) in sample.withheld {
        withheld.sample([reason.as_str()], *count);
    }
    if let Some(kernel) = &status.kernel {
        let help = "Routes to VIPs in the kernel's routing table `announce.kernelRoutes.table`.";
        page.gauge("tidegate_kernel_routes", help, []).sample([], kernel.routes);
    }
    let Some(bgp) = &status.bgp else { return };
    let help = "1 while BIRD runs and answers, else 0.";
    page.gauge("tidegate_bird_up", help, []).sample([], bgp.is_running);
    let help = "Times that the gateway restarted BIRD after BIRD had exited.";
    page.counter("tidegate_bird_restarts_total", help, []).sample([], bgp.restarts);
    let peers: Vec<_> = bgp.peers.iter().map(|peer| (peer.address.to_string(), peer)).collect();
    let help = "1 while the BGP session with the peer is established, else 0.";
    let mut up = page.gauge("tidegate_bgp_session_up", help, ["peer"]);
    for (name, peer) in &peers {
        up.sample([name], peer.is_up());
    }
    let help = "Seconds since the BGP session with the peer was established; 0 while it is not.";
    let mut uptime = page.gauge("tidegate_bgp_session_uptime_seconds", help, ["peer"]);
    for (name, peer) in &peers {
        uptime.sample([name], if peer.is_up() { peer.since_instant.elapsed().as_secs() } else { 0 });
    }
    let help = "How often the BGP session with the peer was established.";
    let mut established = page.counter("tidegate_bgp_sessions_established_total", help, ["peer"]);
    for (name, peer) in &peers {
        established.sample([name], peer.established);
    }
    let help = "Prefixes sent to the peer, by family.";
    let mut sent = page.gauge("tidegate_bgp_prefixes_sent", help, ["peer", "family"]);
    for (name, peer) in &peers {
        sent.sample([name, "ipv4"], peer.session.sent[0]).sample([name, "ipv6"], peer.session.sent[1]);
    }
    let help = "1 while BFD reports that the peer is reachable, else 0; only for peers with `bfd`.";
    let mut bfd = page.gauge("tidegate_bgp_bfd_up", help, ["peer"]);
    for (name, peer) in &peers {
        if let Some(state) = &peer.bfd {
            bfd.sample([name], state == "Up");
        }
    }
}
