//! Which endpoints take new flows, by policy, hints and the states of the endpoints.

use super::*;
use TrafficPolicy::{Cluster, Local};

/// The hints of one kind in `a` (a zone), `@n1` (a node), `a@n1` (both) or `-` (none).
fn hints(kind: char, text: &str) -> Vec<String> {
    let (zone, node) = text.split_once('@').unwrap_or((text, ""));
    let hint = if kind == 'n' { node } else { zone.trim_matches('-') };
    if hint.is_empty() { vec![] } else { vec![hint.into()] }
}

/// (name of the case, endpoints as "node hints state", policy, node, zone, chosen indexes or outcome)
type ChoiceCase<'a> = (&'a str, &'a [&'a str], TrafficPolicy, Option<&'a str>, Option<&'a str>, &'a str);

fn assert_choices(cases: &[ChoiceCase<'_>]) {
    for (claim, endpoints, policy, node, zone, expected) in cases {
        let endpoints: Vec<ResolvedEndpoint> = endpoints
            .iter()
            .enumerate()
            .map(|(i, text)| {
                let parts: Vec<&str> = text.split(' ').collect();
                ResolvedEndpoint {
                    ip: IpAddr::from([10, 0, 0, u8::try_from(i).expect("few")]),
                    port: port(80),
                    ready: parts[2].contains('r'),
                    serving: parts[2].contains('s'),
                    terminating: parts[2].contains('t'),
                    node: Some(parts[0].into()),
                    zone: None,
                    hint_zones: hints('z', parts[1]),
                    hint_nodes: hints('n', parts[1]),
                    pod: None,
                }
            })
            .collect();
        let choice = choose(&endpoints, *policy, Viewpoint { node: *node, zone: *zone });
        let mut got = match &choice {
            Choice::Ready(_) => "ready",
            Choice::Terminating(_) => "terminating",
            Choice::OnlyElsewhere => "elsewhere",
            Choice::Nobody => "nobody",
        }
        .to_owned();
        for chosen in choice.endpoints() {
            let at = endpoints.iter().position(|e| e == *chosen).expect("chosen from the list");
            got.push_str(&format!(" {at}"));
        }
        assert_eq!(got, *expected, "{claim}");
    }
}

#[test]
fn terminating_endpoints_are_chosen_only_if_none_is_ready() {
    assert_choices(&[
        ("all ready ones", &["n1 - rs-", "n2 - -s-", "n3 - rs-"], Cluster, None, None, "ready 0 2"),
        (
            "none ready, terminating ones that serve",
            &["n1 - -st", "n2 - --t", "n3 - -s-"],
            Cluster,
            None,
            None,
            "terminating 0",
        ),
        (
            "one ready endpoint is enough to ignore terminating ones",
            &["n1 - -st", "n2 - rs-"],
            Cluster,
            None,
            None,
            "ready 1",
        ),
        ("nobody", &["n1 - ---"], Cluster, None, None, "nobody"),
        ("no endpoint", &[], Local, Some("n1"), None, "nobody"),
        ("local ones", &["n1 - rs-", "n2 - rs-"], Local, Some("n2"), None, "ready 1"),
        (
            "local terminating before remote ready",
            &["n1 - rs-", "n2 - -st"],
            Local,
            Some("n2"),
            None,
            "terminating 1",
        ),
        ("local with endpoints elsewhere", &["n1 - rs-", "n2 - ---"], Local, Some("n2"), None, "elsewhere"),
        ("an appliance counts all as local", &["n1 - rs-", "n2 - rs-"], Local, None, None, "ready 0 1"),
    ]);
}

#[test]
fn zone_hints_apply_if_all_ready_endpoints_have_them_and_one_is_our_zone() {
    assert_choices(&[
        (
            "all have hints, and one names our zone",
            &["n1 a rs-", "n2 b rs-"],
            Cluster,
            None,
            Some("b"),
            "ready 1",
        ),
        (
            "one endpoint without a hint disables hints",
            &["n1 a rs-", "n2 - rs-"],
            Cluster,
            None,
            Some("a"),
            "ready 0 1",
        ),
        (
            "hints that do not name our zone have no effect",
            &["n1 a rs-", "n2 b rs-"],
            Cluster,
            None,
            Some("c"),
            "ready 0 1",
        ),
        (
            "an unready one without hint does not matter",
            &["n1 a rs-", "n2 b rs-", "n3 - -s-"],
            Cluster,
            None,
            Some("a"),
            "ready 0",
        ),
        (
            "hints do not count for local",
            &["n1 a rs-", "n1 b rs-"],
            Local,
            Some("n1"),
            Some("a"),
            "ready 0 1",
        ),
        ("no zone, no hints", &["n1 a rs-", "n2 b rs-"], Cluster, None, None, "ready 0 1"),
    ]);
}

#[test]
fn node_hints_come_before_zone_hints() {
    assert_choices(&[
        (
            "node hints that all have, with our node, come before zone hints",
            &["n1 a@n1 rs-", "n2 b@n2 rs-", "n2 b@n2 rs-"],
            Cluster,
            Some("n2"),
            Some("a"),
            "ready 1 2",
        ),
        (
            "if no hint names our node, zone hints apply",
            &["n1 a@n1 rs-", "n2 b@n2 rs-"],
            Cluster,
            Some("n3"),
            Some("a"),
            "ready 0",
        ),
        (
            "if one has no node hint, zone hints apply",
            &["n1 a@n1 rs-", "n2 b rs-"],
            Cluster,
            Some("n1"),
            Some("b"),
            "ready 1",
        ),
        (
            "hints that name neither our node nor our zone have no effect",
            &["n1 a@n1 rs-", "n2 b@n2 rs-"],
            Cluster,
            Some("n3"),
            Some("c"),
            "ready 0 1",
        ),
        ("an appliance has no node to name", &["n1 @n1 rs-", "n2 @n2 rs-"], Cluster, None, None, "ready 0 1"),
    ]);
}
