//! The families of announcements show the state of each peer.

use tidegate_announce::bird::replies::{Session, SessionState};
use tidegate_announce::status::{BgpStatus, KernelStatus, PeerStatus, Status};

use super::*;

/// A state with a peer that is up and one that is down.
pub(super) fn status() -> Status {
    let mut up = PeerStatus::new("192.0.2.1".parse().unwrap(), 64_513);
    let session = Session { state: SessionState::Established, sent: [3, 2], ..Session::default() };
    (up.session, up.established, up.bfd) = (session, 4, Some("Up".to_owned()));
    let down = PeerStatus::new("192.0.2.9".parse().unwrap(), 64_513);
    Status {
        is_configured: true,
        prefixes: 5,
        announced: 6,
        unsent: 0,
        withheld: BTreeMap::new(),
        outside: BTreeSet::new(),
        bgp: Some(BgpStatus { is_running: true, restarts: 1, last_error: None, peers: vec![up, down] }),
        kernel: Some(KernelStatus { table: 179, protocol: 179, routes: 5, last_error: None }),
        at: None,
    }
}

#[test]
fn sessions_of_bgp_are_those_of_the_sample() {
    let (status, world) = (status(), world());
    let withheld = [(Withheld::NoEndpoints, 2), (Withheld::Flapping, 0)];
    let announce = Some(AnnounceSample { status: &status, withheld: &withheld });
    let page = Page::parse(&render(&Sample { announce, ..world.sample() }));
    let check = |name: &str, labels: &[(&str, &str)], expected: f64| {
        assert_eq!(page.value(&format!("tidegate_{name}"), labels), expected, "{name} {labels:?}");
    };
    let [up, down] = ["192.0.2.1", "192.0.2.9"].map(|peer| ("peer", peer));
    check("bgp_session_up", &[up], 1.0);
    check("bgp_session_up", &[down], 0.0);
    check("bgp_session_uptime_seconds", &[down], 0.0);
    check("bgp_sessions_established_total", &[up], 4.0);
    check("bgp_prefixes_sent", &[up, ("family", "ipv4")], 3.0);
    check("bgp_prefixes_sent", &[up, ("family", "ipv6")], 2.0);
    check("bgp_bfd_up", &[up], 1.0);
    check("announced_vips", &[], 6.0);
    check("announced_prefixes", &[], 5.0);
    check("withheld_vips", &[("reason", "no-endpoints")], 2.0);
    check("kernel_routes", &[], 5.0);
    check("bird_up", &[], 1.0);
    check("bird_restarts_total", &[], 1.0);
}
