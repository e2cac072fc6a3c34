//! Section 3, `sessionAffinity`: which backend a client has, for how long, and that every gateway chooses the same one.

use tidegate_pipeline::pipeline::FlowNote;
use tidegate_pipeline::testing::builder::Builder;
use tidegate_pipeline::testing::lab::FrameResult;
use tidegate_wire::tcp::flags;

use super::packets::Gateways;
use super::*;

const SIXTY_SECONDS: &str = "  loadBalancerIP: 203.0.113.5\n  sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {timeoutSeconds: \
     60}}\n";

#[test]
fn session_affinity_lasts_1_to_86400_seconds_and_10800_by_default() {
    let affinity = |spec: &str| only(&Both::new(&web(spec)).look()).affinity.map(|t| t.as_secs());
    let config = |seconds: &str| {
        format!(
            "  sessionAffinity: ClientIP\n  sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}\n"
        )
    };
    assert_eq!(affinity(""), None);
    assert_eq!(affinity("  sessionAffinity: None\n"), None);
    assert_eq!(affinity("  sessionAffinity: ClientIP\n"), Some(10_800));
    assert_eq!(
        affinity("  sessionAffinity: ClientIP\n  sessionAffinityConfig: {clientIP: {}}\n"),
        Some(10_800)
    );
    assert_eq!(affinity(&config("1")), Some(1));
    assert_eq!(affinity(&config("86400")), Some(86_400));
    for seconds in ["0", "-1", "86401"] {
        let reported = refused(&web(&config(seconds)));
        assert!(
            reported[0].contains("timeoutSeconds") && reported[0].ends_with("a whole number from 1 to 86400"),
            "{reported:?}"
        );
    }
}

/// `web` with backends 10.1.0.1 to 10.1.0.`n`, in slices of one, written in this order.
fn sticky(order: &[u8]) -> String {
    let slices =
        order.iter().map(|n| slice_of_web(&format!("s{n}"), "IPv4", &[&format!("addresses: [10.1.0.{n}]")]));
    web(SIXTY_SECONDS) + &slices.collect::<String>()
}

fn syn(gateways: &mut Gateways, client: &str, port: u16) -> FrameResult {
    gateways.send(Builder::tcp(format!("{client}:{port}").as_str(), "203.0.113.5:80").flags(flags::SYN))
}

fn choice(gateways: &mut Gateways, client: &str, port: u16) -> IpAddr {
    let result = syn(gateways, client, port);
    gateways.backend_of(&result)
}

#[test]
fn with_affinity_every_gateway_chooses_by_the_client_address_alone() {
    let mut one = Gateways::new(Both::new(&sticky(&[1, 2, 3, 4, 5])));
    let mut other = Gateways::with_seed(Both::new(&sticky(&[4, 1, 5, 3, 2])), 99);
    let mut chosen = BTreeSet::new();
    for n in 1..=60 {
        let client = format!("198.51.100.{n}");
        let had = choice(&mut one, &client, 40_000);
        // Other ports, at another gateway that has seen no earlier packet.
        for port in [40_000, 50_000, 1024] {
            assert_eq!(choice(&mut other, &client, port), had, "{client}:{port}");
        }
        chosen.insert(had);
    }
    assert_eq!(chosen.len(), 5, "clients are still spread");
}

#[test]
fn a_client_keeps_its_backend_over_backend_changes_until_the_timeout() {
    let clients: Vec<String> = (1..=60).map(|n| format!("198.51.100.{n}")).collect();
    let mut gateways = Gateways::new(Both::new(&sticky(&[1, 2, 3])));
    let choices = |gateways: &mut Gateways, port: u16| -> Vec<IpAddr> {
        clients.iter().map(|client| choice(gateways, client, port)).collect()
    };
    let had = choices(&mut gateways, 40_000);
    gateways.set(&sticky(&[1, 2, 3, 4, 5, 6]));
    gateways.wait(Duration::from_secs(59));
    assert_eq!(
        choices(&mut gateways, 40_001),
        had,
        "within the timeout, which begins anew with each connection"
    );
    gateways.wait(Duration::from_secs(59));
    assert_eq!(choices(&mut gateways, 40_002), had);
    gateways.wait(Duration::from_secs(61));
    let fresh = choices(&mut gateways, 40_003);
    assert_ne!(fresh, had, "after it the hash decides");
    assert_eq!(fresh, choices(&mut Gateways::new(Both::new(&sticky(&[1, 2, 3, 4, 5, 6]))), 40_003));
}

#[test]
fn a_client_whose_backend_is_gone_goes_to_another_and_stays_there() {
    let mut gateways = Gateways::new(Both::new(&sticky(&[1, 2, 3])));
    let had = choice(&mut gateways, "198.51.100.7", 40_000);
    let left: Vec<u8> = (1..=3).filter(|n| ip(&format!("10.1.0.{n}")) != had).collect();
    gateways.set(&sticky(&left));
    let result = syn(&mut gateways, "198.51.100.7", 40_001);
    assert_eq!(result.note.flow, FlowNote::New);
    let next = gateways.backend_of(&result);
    assert_ne!(next, had);
    gateways.set(&sticky(&[1, 2, 3]));
    assert_eq!(choice(&mut gateways, "198.51.100.7", 40_002), next, "until its own timeout");
}
