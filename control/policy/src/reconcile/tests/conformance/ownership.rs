//! Sections 6 and 7: the owner of an (address, port, protocol) keeps it, and a change of a pool does not remove any
//! address.

use super::*;
use crate::pools::{Authority, ClaimKind, HOLDS, Held, record};

const EARLY: &str = "2026-01-01T00:00:00Z";
const LATE: &str = "2026-01-02T00:00:00Z";
const HTTP: &str = "{name: http, port: 80}";
const HTTPS: &str = "{name: https, port: 443}";

/// `default/NAME` with this creation time, these external IPs and ports.
fn external(name: &str, created: &str, ips: &str, ports: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, creationTimestamp: '{created}'}}\nspec: {{externalIPs: \
         [{ips}], ports: [{ports}]}}\n---\n"
    )
}

/// `default/NAME` of type LoadBalancer with this creation time, sharing key and ports.
fn sharing(name: &str, created: &str, key: &str, ports: &str) -> String {
    let metadata = format!(
        "name: {name}, creationTimestamp: '{created}', annotations: {{tidegate.dev/allow-shared-ip: '{key}'}}"
    );
    service_with(&metadata, "")
        .replace("ports: [{name: http, port: 80, targetPort: 8080}]", &format!("ports: [{ports}]"))
}

/// `PROTOCOL VIP:PORT NAME` of each service port.
fn owned(outcome: &Outcome) -> Vec<String> {
    outcome.spec.services.iter().map(|s| format!("{} {}", s.key, s.name)).collect()
}

fn conflict(outcome: &Outcome) -> String {
    let conflict = outcome.findings.iter().find(|finding| finding.reason == Reason::Conflict);
    conflict.unwrap_or_else(|| panic!("a conflict: {:?}", messages(outcome))).diagnostic.what.clone()
}

/// Changes a pool of the configuration.
fn edit_pool(both: &mut Both, name: &str, edit: impl Fn(&mut Pool)) {
    both.both(|world| {
        edit(world.settings.pools.iter_mut().find(|pool| pool.name == name).expect("there is one"));
    });
}

#[test]
fn an_older_service_does_not_take_an_external_ip_by_an_edit_from_the_one_that_has_it() {
    let live = external("live", LATE, "198.51.100.1", HTTP);
    let mut both = Both::new(&(external("old", EARLY, "198.51.100.2", HTTP) + &live));
    both.step();
    both.now_is(&(external("old", EARLY, "198.51.100.2, 198.51.100.1", &format!("{HTTP}, {HTTPS}")) + &live));
    for _ in 0..2 {
        let outcome = both.step();
        let expected = ["TCP 198.51.100.1:80 live", "TCP 198.51.100.1:443 old", "TCP 198.51.100.2:80 old"];
        assert_eq!(owned(&outcome)[..3], expected);
        let expected = "TCP port 80 on external IP 198.51.100.1 of Service default/old is not programmed: TCP port 80 \
                        belongs to Service default/live";
        assert_eq!(conflict(&outcome), expected);
    }
    // A frontend that its owner no longer requests goes to the Service that requests it.
    both.now_is(
        &(external("old", EARLY, "198.51.100.1", HTTP) + &external("live", LATE, "198.51.100.1", HTTPS)),
    );
    assert_eq!(owned(&both.step()), ["TCP 198.51.100.1:80 old", "TCP 198.51.100.1:443 live"]);
}

#[test]
fn an_older_service_that_adds_a_port_to_a_shared_address_takes_neither_the_port_nor_the_address() {
    let live = sharing("live", LATE, "k", HTTPS);
    let mut both = Both::new(&(sharing("old", EARLY, "k", HTTP) + &live));
    let before = both.step();
    assert_eq!(before.services[0].vips, before.services[1].vips);
    both.now_is(&(sharing("old", EARLY, "k", &format!("{HTTP}, {HTTPS}")) + &live));
    for _ in 0..2 {
        let outcome = both.step();
        assert_eq!(owned(&outcome), owned(&before), "each keeps what it has");
        assert!(conflict(&outcome).ends_with("TCP port 443 belongs to Service default/live"));
        let refused = outcome.services.iter().flat_map(|s| &s.ports).filter(|port| port.refused.is_some());
        assert_eq!(refused.map(|port| port.port).collect::<Vec<_>>(), [443]);
    }
    // It now requests only the port of the other Service, so it loses its place on the shared address and gets another
    // address.
    both.now_is(&(sharing("old", EARLY, "k", HTTPS) + &live));
    let outcome = both.step();
    let address =
        |name: &str| outcome.services.iter().find(|s| s.name == name).expect("shown").vips[0].address;
    assert_eq!(address("live"), before.services[0].vips[0].address);
    assert_ne!(address("old"), address("live"));
}

#[test]
fn of_services_on_one_address_the_one_that_changes_its_sharing_key_leaves_and_the_others_stay() {
    let live = sharing("live", LATE, "k", HTTPS);
    for key in ["other", ""] {
        let mut both = Both::new(&(sharing("old", EARLY, "k", HTTP) + &live));
        let before = both.step();
        let shared = before.services[0].vips[0].address;
        let changed =
            if key.is_empty() { service_with("name: old", "") } else { sharing("old", EARLY, key, HTTP) };
        both.now_is(&(changed + &live));
        for _ in 0..2 {
            let outcome = both.step();
            let address =
                |name: &str| outcome.services.iter().find(|s| s.name == name).expect("shown").vips[0].address;
            assert_eq!(address("live"), shared, "{key:?}");
            assert_ne!(address("old"), shared, "{key:?}");
        }
    }
}

#[test]
fn an_older_service_gets_neither_as_load_balancer_nor_as_external_ip_what_another_has() {
    let mut both = Both::new(&external("live", LATE, "198.51.100.1", HTTP)).with(|world| {
        for pool in &mut world.settings.pools {
            (pool.auto_assign, pool.external_ips) = (true, true);
        }
    });
    both.step();
    let balancer =
        service_with(&format!("name: old, creationTimestamp: '{EARLY}'"), "  loadBalancerIP: 198.51.100.1\n");
    both.now_is(&(balancer + &external("live", LATE, "198.51.100.1", HTTP)));
    assert_eq!(owned(&both.step()), ["TCP 198.51.100.1:80 live"]);

    let live =
        service_with(&format!("name: live, creationTimestamp: '{LATE}'"), "  loadBalancerIP: 203.0.113.5\n");
    let mut both = Both::new(&live).with(|world| world.settings.pools[0].external_ips = true);
    both.step();
    both.now_is(&(external("old", EARLY, "203.0.113.5", &format!("{HTTP}, {HTTPS}")) + &live));
    assert_eq!(owned(&both.step()), ["TCP 203.0.113.5:80 live"]);
}

#[test]
fn external_ips_count_in_the_quota_of_their_namespace_and_each_address_once() {
    let two = external("a", EARLY, "198.51.100.1, 198.51.100.2", HTTP);
    let same = external("b", LATE, "198.51.100.1", HTTPS);
    let third = external("c", LATE, "198.51.100.3", HTTP);
    let mut both = Both::new(&(two.clone() + &same));
    edit_pool(&mut both, "edge", |pool| pool.quota_per_namespace = Some(2));
    let expected = ["TCP 198.51.100.1:80 a", "TCP 198.51.100.1:443 b", "TCP 198.51.100.2:80 a"];
    assert_eq!(owned(&both.step()), expected);
    both.now_is(&(third.clone() + &two + &same));
    let outcome = both.step();
    assert_eq!(owned(&outcome), expected);
    let (reason, what, _) = finding(&outcome);
    assert_eq!(reason, Reason::ExternalIpDenied);
    assert!(what.ends_with("namespace default holds its quota of 2 in pool edge"), "{what}");
    // LoadBalancer addresses count too.
    let balancer = service_with("name: lb, annotations: {tidegate.dev/address-pool: edge}", "");
    both.now_is(&(two.clone() + &balancer));
    assert!(pending(&both.step(), "lb").is_some_and(|why| why.contains("holds its quota of 2")));
    let requests = service_with("name: lb, annotations: {tidegate.dev/load-balancer-ips: 198.51.100.9}", "");
    both.now_is(&(two.clone() + &requests));
    let outcome = both.step();
    let (reason, _, accepted) = finding(&outcome);
    assert_eq!(reason, Reason::AllocationFailed);
    assert!(accepted.contains("quotaPerNamespace"), "{accepted}");
    both.now_is(&third);
    assert_eq!(owned(&both.step()), ["TCP 198.51.100.3:80 c"], "what is given back counts no more");
}

#[test]
fn a_disabled_pool_authorises_nothing_new_and_leaves_what_it_authorised() {
    let live = external("live", EARLY, "198.51.100.1", HTTP);
    let mut both = Both::new(&live);
    both.step();
    edit_pool(&mut both, "edge", |pool| pool.disabled = true);
    both.now_is(
        &(external("live", EARLY, "198.51.100.1", &format!("{HTTP}, {HTTPS}"))
            + &external("new", LATE, "198.51.100.2", HTTP)),
    );
    let outcome = both.step();
    assert_eq!(owned(&outcome), ["TCP 198.51.100.1:80 live"]);
    let said: Vec<String> = messages(&outcome);
    assert!(said.iter().all(|what| what.contains("pool edge is disabled")), "{said:?}");
    assert_eq!(said.len(), 2, "{said:?}");
}

/// `default/NAME` as in [`external`], with a status that records its frontends.
fn recorded(name: &str, created: &str, ip_address: &str, ports: &str, held: &[u16]) -> String {
    let held = Held {
        kind: ClaimKind::ExternalIp,
        pool: "edge".into(),
        ports: Some(held.iter().map(|port| (Protocol::Tcp, *port)).collect()),
        ..Held::of_status(ip(ip_address))
    };
    let message = record(&[held]);
    external(name, created, ip_address, ports).replace(
        "---\n",
        &format!("status: {{conditions: [{{type: {HOLDS}, status: 'True', reason: Recorded, message: '{message}'}}]}}\n---\n"),
    )
}

#[test]
fn after_a_restart_and_in_every_other_gateway_each_port_is_whose_it_is_by_the_statuses() {
    // An edit made the older Service request port 80 while no gateway was running.
    let both_ports = format!("{HTTP}, {HTTPS}");
    let services = recorded("old", EARLY, "198.51.100.1", &both_ports, &[443])
        + &recorded("live", LATE, "198.51.100.1", HTTP, &[80]);
    for authority in [Authority::default(), Authority::Follows, Authority::Waits] {
        let both = Both::new(&services).with(|world| world.settings.authority = authority.clone());
        let expected = ["TCP 198.51.100.1:80 live", "TCP 198.51.100.1:443 old"];
        assert_eq!(owned(&both.look()), expected, "{authority:?}");
    }
    // A follower that saw the Services in another order follows the record of the leader.
    let mut follower = Both::new(&external("old", EARLY, "198.51.100.1", &both_ports));
    follower.both(|world| world.settings.authority = Authority::Follows);
    follower.step();
    follower.now_is(&services);
    assert_eq!(owned(&follower.step()), ["TCP 198.51.100.1:80 live", "TCP 198.51.100.1:443 old"]);
}

#[test]
fn a_service_made_anew_under_the_same_name_in_one_step_keeps_what_the_one_before_had() {
    let of = |name: &str, uid: &str, created: &str| {
        external(name, created, "198.51.100.1", HTTP)
            .replace(&format!("{{name: {name},"), &format!("{{name: {name}, uid: {uid},"))
    };
    let mut both = Both::new(&of("web", "1a", LATE));
    both.step();
    // In one step the Service is deleted and created again, and an older Service requests the address.
    both.now_is(&(of("web", "2b", LATE) + &of("old", "3c", EARLY)));
    assert_eq!(owned(&both.step()), ["TCP 198.51.100.1:80 web"]);
}

#[test]
fn an_address_that_another_gateway_names_its_own_stays_with_the_service_that_has_it() {
    let services = service_with("name: web", "") + &external("live", LATE, "198.51.100.1", HTTP);
    let mut both = Both::new(&services);
    let before = (vips(&both.step()), owned(&both.step()));
    let claimed = [before.0[0], ip("198.51.100.1")];
    both.both(|world| {
        world.settings.other_gateways = Arc::new(claimed.map(|ip| (ip, "edge-2".to_owned())).into());
    });
    for _ in 0..2 {
        let outcome = both.step();
        assert_eq!((vips(&outcome), owned(&outcome)), before);
        for ip in claimed {
            let says = format!("gateway edge-2 says that address {ip} is its own");
            assert!(outcome.findings.iter().any(|f| f.diagnostic.what.starts_with(&says)), "{says}");
        }
    }
    // A new request for the address is refused.
    both.now_is(&(services + &service_with("name: asks", &format!("  loadBalancerIP: {}\n", claimed[0]))));
    assert_eq!(vips(&both.step()), before.0);
}

#[test]
fn an_edit_that_is_not_understood_takes_no_address_away_and_gives_none() {
    let annotated = |value: &str| {
        service_with(&format!("name: web, annotations: {{tidegate.dev/load-balancer-ips: '{value}'}}"), "")
    };
    let nonsense = annotated("203.0.113.x");
    let mut both = Both::new(&nonsense);
    assert!(vips(&both.step()).is_empty());
    both.now_is(&annotated("203.0.113.9"));
    let had = vips(&both.step());
    assert_eq!(had, [ip("203.0.113.9")]);
    both.now_is(&nonsense);
    for _ in 0..2 {
        let outcome = both.step();
        assert_eq!((vips(&outcome), outcome.services[0].pending.as_deref()), (had.clone(), None));
        let says = "annotation tidegate.dev/load-balancer-ips: \"203.0.113.x\" is invalid: no new address is assigned";
        assert!(
            outcome.findings.iter().any(|f| f.diagnostic.what.contains(says)),
            "{:?}",
            messages(&outcome)
        );
    }
    both.now_is(&annotated("203.0.113.10"));
    assert_eq!(vips(&both.step()), [ip("203.0.113.10")]);
}

/// The VIPs of `default/web` after each edit of the pool `public`.
fn vips(outcome: &Outcome) -> Vec<IpAddr> {
    outcome.services.iter().flat_map(|service| &service.vips).map(|vip| vip.address).collect()
}

#[test]
fn no_edit_of_a_pool_takes_an_address_from_a_live_service_and_the_pool_says_who_holds_it() {
    type Edit = fn(&mut Vec<Pool>);
    let edits: [(&str, Edit); 7] = [
        ("range removed", |pools| pools[0].ranges = pool("x", &["192.0.2.0/28"]).ranges),
        ("quota lowered", |pools| pools[0].quota_per_namespace = Some(1)),
        ("disabled", |pools| pools[0].disabled = true),
        ("namespace selector", |pools| {
            pools[0].namespace_selector.match_labels.insert("a".into(), "b".into());
        }),
        ("service selector", |pools| {
            pools[0].service_selector.match_labels.insert("a".into(), "b".into());
        }),
        ("removed", |pools| drop(pools.remove(0))),
        ("renamed", |pools| pools[0].name = "other".into()),
    ];
    let named = "name: named, annotations: {tidegate.dev/address-pool: public}";
    let services =
        service_with("name: web", "  ipFamilyPolicy: RequireDualStack\n  ipFamilies: [IPv4, IPv6]\n")
            + &service_with("name: asks", "  loadBalancerIP: 203.0.113.9\n")
            + &service_with(named, "");
    for (what, edit) in edits {
        let mut both = Both::new(&services);
        let before = vips(&both.step());
        assert_eq!(before.len(), 4, "{before:?}");
        both.both(|world| edit(&mut world.settings.pools));
        for _ in 0..2 {
            let outcome = both.step();
            assert_eq!(vips(&outcome), before, "{what}");
            if what == "removed" || what == "range removed" {
                let usage = outcome.pools.iter().find(|usage| usage.pool == "public").expect("it is shown");
                let used_by = "default/asks, default/named, default/web";
                assert_eq!((usage.outside, usage.used_by().as_str()), (4, used_by), "{what}");
                assert_eq!(usage.removed, what == "removed");
            }
        }
    }
}

#[test]
fn an_external_ip_stays_when_its_pool_does_not_authorise_it_any_more_and_the_operator_takes_it_by_force() {
    let mut both = Both::new(&external("live", EARLY, "198.51.100.1", HTTP));
    let before = owned(&both.step());
    for (force, expected) in [(false, &before[..]), (true, &[])] {
        edit_pool(&mut both, "edge", |pool| (pool.external_ips, pool.force_release) = (false, force));
        for _ in 0..2 {
            assert_eq!(owned(&both.step()), expected, "{force}");
        }
    }
}

#[test]
fn force_release_takes_back_what_the_pool_would_not_give_now_and_no_more() {
    let services = service_with("name: a, creationTimestamp: '2026-01-01T00:00:00Z'", "")
        + &service_with("name: b, creationTimestamp: '2026-01-02T00:00:00Z'", "");
    let start = || {
        let mut both = Both::new(&services);
        let before = vips(&both.step());
        (both, before)
    };
    let (mut both, before) = start();
    edit_pool(&mut both, "public", |pool| pool.force_release = true);
    assert_eq!(vips(&both.step()), before, "by itself it takes nothing");
    edit_pool(&mut both, "public", |pool| pool.quota_per_namespace = Some(1));
    let outcome = both.step();
    assert_eq!(vips(&outcome), before[..1], "beyond the quota the younger one");
    assert!(pending(&outcome, "b").is_some_and(|why| why.contains("holds its quota of 1")));
    let (mut both, _) = start();
    edit_pool(&mut both, "public", |pool| (pool.force_release, pool.disabled) = (true, true));
    assert_eq!(vips(&both.step()), [] as [IpAddr; 0], "an emptied pool");
    let (mut both, _) = start();
    edit_pool(&mut both, "public", |pool| {
        (pool.force_release, pool.ranges) = (true, self::pool("x", &["192.0.2.0/28"]).ranges);
    });
    let outcome = both.step();
    assert!(vips(&outcome).iter().all(|ip| ip.to_string().starts_with("192.0.2.")), "{:?}", vips(&outcome));
}

#[test]
fn a_service_that_names_another_pool_or_address_gives_its_address_back() {
    for (more, spec) in
        [("tidegate.dev/address-pool: edge", ""), ("a: b", "  loadBalancerIP: 198.51.100.3\n")]
    {
        let mut both = Both::new(&service_with("name: web", ""));
        both.step();
        both.now_is(&service_with(&format!("name: web, annotations: {{{more}}}"), spec));
        let now = vips(&both.step());
        assert!(now.iter().all(|ip| ip.to_string().starts_with("198.51.100.")) && now.len() == 1, "{now:?}");
    }
}

#[test]
fn two_gateways_with_the_same_services_choose_alike_whatever_the_order_and_a_pool_that_grows_moves_few() {
    let one = |i: usize| service_with(&format!("name: s{i}"), "");
    let of = |outcome: &Outcome| {
        let vip = |s: &Arc<view::ServiceView>| (s.name.clone(), s.vips[0].address);
        outcome.services.iter().map(vip).collect::<BTreeMap<String, IpAddr>>()
    };
    let pools = |both: &mut Both, range: &str| {
        let ranges = pool("public", &[range]).ranges;
        edit_pool(both, "public", |pool| pool.ranges.clone_from(&ranges));
    };
    let count = 12;
    let mut forwards = Both::new("");
    let mut backwards = Both::new("");
    pools(&mut forwards, "203.0.112.0/22");
    pools(&mut backwards, "203.0.112.0/22");
    let mut both_ways = [String::new(), String::new()];
    for i in 0..count {
        both_ways[0] += &one(i);
        both_ways[1] += &one(count - 1 - i);
        forwards.now_is(&both_ways[0]);
        backwards.now_is(&both_ways[1]);
        forwards.step();
        backwards.step();
    }
    let chosen = of(&forwards.step());
    assert_eq!(chosen, of(&backwards.step()));
    // A gateway that starts with a larger pool chooses the same addresses for most Services.
    let mut grown = Both::new(&both_ways[0]);
    pools(&mut grown, "203.0.112.0/21");
    let moved = of(&grown.step()).iter().filter(|(name, ip)| chosen[*name] != **ip).count();
    assert!(moved < count, "{moved} of {count}");
}

#[test]
fn a_service_that_returns_has_the_address_again_that_it_had_unless_another_one_has_it() {
    let web = service_with("name: web", "  loadBalancerIP: 203.0.113.9\n");
    let mut both = Both::new(&web);
    both.step();
    both.now_is("");
    both.step();
    // It no longer requests an address by value.
    both.now_is(&service_with("name: web", ""));
    assert_eq!(vips(&both.step()), [ip("203.0.113.9")]);
    both.now_is("");
    both.step();
    let other = service_with("name: other", "  loadBalancerIP: 203.0.113.9\n");
    both.now_is(&(other + &service_with("name: web", "")));
    let outcome = both.step();
    assert!(owners(&outcome).contains(&"203.0.113.9 other".to_owned()), "{:?}", owners(&outcome));
    assert_eq!(vips(&outcome).len(), 2);
}
