//! Sections 6 and 7: the owner of an (address, port, protocol) keeps it, and a change of a pool does not remove any
//! address.

use super::*;
use crate::pools::{Authority, ClaimKind, OwnedAddress, RECORD_CONDITION, record};

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
fn an_edit_of_an_older_service_does_not_take_over_an_external_ip() {
    let live = external("live", LATE, "198.51.100.1", HTTP);
    let mut both = Both::new(&(external("old", EARLY, "198.51.100.2", HTTP) + &live));
    both.step();
    both.set(&(external("old", EARLY, "198.51.100.2, 198.51.100.1", &format!("{HTTP}, {HTTPS}")) + &live));
    for _ in 0..2 {
        let outcome = both.step();
        let expected = ["TCP 198.51.100.1:80 live", "TCP 198.51.100.1:443 old", "TCP 198.51.100.2:80 old"];
        assert_eq!(owned(&outcome)[..3], expected);
        let expected = "TCP port 80 on external IP 198.51.100.1 of Service default/old is not programmed: TCP port 80 \
                        belongs to Service default/live";
        assert_eq!(conflict(&outcome), expected);
    }
    // A frontend that its owner no longer requests goes to the Service that requests it.
    both.set(
        &(external("old", EARLY, "198.51.100.1", HTTP) + &external("live", LATE, "198.51.100.1", HTTPS)),
    );
    assert_eq!(owned(&both.step()), ["TCP 198.51.100.1:80 old", "TCP 198.51.100.1:443 live"]);
}

#[test]
fn an_older_service_that_adds_a_port_takes_nothing_from_a_shared_address() {
    let live = sharing("live", LATE, "k", HTTPS);
    let mut both = Both::new(&(sharing("old", EARLY, "k", HTTP) + &live));
    let before = both.step();
    assert_eq!(before.services[0].vips, before.services[1].vips);
    both.set(&(sharing("old", EARLY, "k", &format!("{HTTP}, {HTTPS}")) + &live));
    for _ in 0..2 {
        let outcome = both.step();
        assert_eq!(owned(&outcome), owned(&before), "each keeps what it has");
        assert!(conflict(&outcome).ends_with("TCP port 443 belongs to Service default/live"));
        let refused = outcome.services.iter().flat_map(|s| &s.ports).filter(|port| port.refused.is_some());
        assert_eq!(refused.map(|port| port.port).collect::<Vec<_>>(), [443]);
    }
    // It now requests only the port of the other Service, so it leaves the shared address and gets another
    // address.
    both.set(&(sharing("old", EARLY, "k", HTTPS) + &live));
    let outcome = both.step();
    let address =
        |name: &str| outcome.services.iter().find(|s| s.name == name).expect("shown").vips[0].address;
    assert_eq!(address("live"), before.services[0].vips[0].address);
    assert_ne!(address("old"), address("live"));
}

#[test]
fn a_service_that_changes_its_sharing_key_leaves_the_shared_address() {
    let live = sharing("live", LATE, "k", HTTPS);
    for key in ["other", ""] {
        let mut both = Both::new(&(sharing("old", EARLY, "k", HTTP) + &live));
        let before = both.step();
        let shared = before.services[0].vips[0].address;
        let changed =
            if key.is_empty() { service_with("name: old", "") } else { sharing("old", EARLY, key, HTTP) };
        both.set(&(changed + &live));
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
fn an_older_service_cannot_take_an_address_in_another_capacity() {
    let mut both = Both::new(&external("live", LATE, "198.51.100.1", HTTP)).with(|world| {
        for pool in &mut world.settings.pools {
            (pool.auto_assign, pool.external_ips) = (true, true);
        }
    });
    both.step();
    let balancer =
        service_with(&format!("name: old, creationTimestamp: '{EARLY}'"), "  loadBalancerIP: 198.51.100.1\n");
    both.set(&(balancer + &external("live", LATE, "198.51.100.1", HTTP)));
    assert_eq!(owned(&both.step()), ["TCP 198.51.100.1:80 live"]);

    let live =
        service_with(&format!("name: live, creationTimestamp: '{LATE}'"), "  loadBalancerIP: 203.0.113.5\n");
    let mut both = Both::new(&live).with(|world| world.settings.pools[0].external_ips = true);
    both.step();
    both.set(&(external("old", EARLY, "203.0.113.5", &format!("{HTTP}, {HTTPS}")) + &live));
    assert_eq!(owned(&both.step()), ["TCP 203.0.113.5:80 live"]);
}

#[test]
fn external_ips_count_towards_the_quota_and_each_address_once() {
    let two = external("a", EARLY, "198.51.100.1, 198.51.100.2", HTTP);
    let same = external("b", LATE, "198.51.100.1", HTTPS);
    let third = external("c", LATE, "198.51.100.3", HTTP);
    let mut both = Both::new(&(two.clone() + &same));
    edit_pool(&mut both, "edge", |pool| pool.quota_per_namespace = Some(2));
    let expected = ["TCP 198.51.100.1:80 a", "TCP 198.51.100.1:443 b", "TCP 198.51.100.2:80 a"];
    assert_eq!(owned(&both.step()), expected);
    both.set(&(third.clone() + &two + &same));
    let outcome = both.step();
    assert_eq!(owned(&outcome), expected);
    let (reason, what, _) = finding(&outcome);
    assert_eq!(reason, Reason::ExternalIpDenied);
    assert!(what.ends_with("namespace default has reached its quota of 2 in pool edge"), "{what}");
    // LoadBalancer addresses count too.
    let balancer = service_with("name: lb, annotations: {tidegate.dev/address-pool: edge}", "");
    both.set(&(two.clone() + &balancer));
    assert!(pending(&both.step(), "lb").is_some_and(|why| why.contains("has reached its quota of 2")));
    let requests = service_with("name: lb, annotations: {tidegate.dev/load-balancer-ips: 198.51.100.9}", "");
    both.set(&(two.clone() + &requests));
    let outcome = both.step();
    let (reason, _, accepted) = finding(&outcome);
    assert_eq!(reason, Reason::AllocationFailed);
    assert!(accepted.contains("quotaPerNamespace"), "{accepted}");
    both.set(&third);
    assert_eq!(owned(&both.step()), ["TCP 198.51.100.3:80 c"], "released addresses no longer count");
}

#[test]
fn a_disabled_pool_authorises_nothing_new_and_revokes_nothing() {
    let live = external("live", EARLY, "198.51.100.1", HTTP);
    let mut both = Both::new(&live);
    both.step();
    edit_pool(&mut both, "edge", |pool| pool.disabled = true);
    both.set(
        &(external("live", EARLY, "198.51.100.1", &format!("{HTTP}, {HTTPS}"))
            + &external("new", LATE, "198.51.100.2", HTTP)),
    );
    let outcome = both.step();
    assert_eq!(owned(&outcome), ["TCP 198.51.100.1:80 live"]);
    let reported: Vec<String> = messages(&outcome);
    assert!(reported.iter().all(|what| what.contains("pool edge is disabled")), "{reported:?}");
    assert_eq!(reported.len(), 2, "{reported:?}");
}

/// `default/NAME` as in [`external`], with a status that records its frontends.
fn recorded(name: &str, created: &str, ip_address: &str, ports: &str, owned: &[u16]) -> String {
    let owned = OwnedAddress {
        kind: ClaimKind::ExternalIp,
        pool: "edge".into(),
        ports: Some(owned.iter().map(|port| (Protocol::Tcp, *port)).collect()),
        ..OwnedAddress::of_status(ip(ip_address))
    };
    let message = record(&[owned]);
    external(name, created, ip_address, ports).replace(
        "---\n",
        &format!("status: {{conditions: [{{type: {RECORD_CONDITION}, status: 'True', reason: Recorded, message: '{message}'}}]}}\n---\n"),
    )
}

#[test]
fn port_owners_in_statuses_apply_after_a_restart_and_at_other_gateways() {
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
    follower.set(&services);
    assert_eq!(owned(&follower.step()), ["TCP 198.51.100.1:80 live", "TCP 198.51.100.1:443 old"]);
}

#[test]
fn a_service_recreated_in_one_step_keeps_its_addresses() {
    let of = |name: &str, uid: &str, created: &str| {
        external(name, created, "198.51.100.1", HTTP)
            .replace(&format!("{{name: {name},"), &format!("{{name: {name}, uid: {uid},"))
    };
    let mut both = Both::new(&of("web", "1a", LATE));
    both.step();
    // In one step the Service is deleted and created again, and an older Service requests the address.
    both.set(&(of("web", "2b", LATE) + &of("old", "3c", EARLY)));
    assert_eq!(owned(&both.step()), ["TCP 198.51.100.1:80 web"]);
}

#[test]
fn an_address_that_another_gateway_claims_stays_with_its_service() {
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
            let says = format!("gateway edge-2 reports {ip} as its own address");
            assert!(outcome.findings.iter().any(|f| f.diagnostic.what.starts_with(&says)), "{says}");
        }
    }
    // A new request for the address is refused.
    both.set(&(services + &service_with("name: requests", &format!("  loadBalancerIP: {}\n", claimed[0]))));
    assert_eq!(vips(&both.step()), before.0);
}

#[test]
fn an_invalid_edit_neither_removes_nor_assigns_an_address() {
    let annotated = |value: &str| {
        service_with(&format!("name: web, annotations: {{tidegate.dev/load-balancer-ips: '{value}'}}"), "")
    };
    let nonsense = annotated("203.0.113.x");
    let mut both = Both::new(&nonsense);
    assert!(vips(&both.step()).is_empty());
    both.set(&annotated("203.0.113.9"));
    let had = vips(&both.step());
    assert_eq!(had, [ip("203.0.113.9")]);
    both.set(&nonsense);
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
    both.set(&annotated("203.0.113.10"));
    assert_eq!(vips(&both.step()), [ip("203.0.113.10")]);
}

/// The VIPs of `default/web` after each edit of the pool `public`.
fn vips(outcome: &Outcome) -> Vec<IpAddr> {
    outcome.services.iter().flat_map(|service| &service.vips).map(|vip| vip.address).collect()
}

#[test]
fn no_pool_edit_takes_an_address_and_the_pool_lists_its_users() {
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
            + &service_with("name: requests", "  loadBalancerIP: 203.0.113.9\n")
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
                let used_by = "default/named, default/requests, default/web";
                assert_eq!((usage.outside, usage.used_by().as_str()), (4, used_by), "{what}");
                assert_eq!(usage.removed, what == "removed");
            }
        }
    }
}

#[test]
fn an_external_ip_stays_unless_the_operator_forces_its_release() {
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
fn force_release_takes_back_only_what_the_pool_would_not_assign_now() {
    let services = service_with("name: a, creationTimestamp: '2026-01-01T00:00:00Z'", "")
        + &service_with("name: b, creationTimestamp: '2026-01-02T00:00:00Z'", "");
    let start = || {
        let mut both = Both::new(&services);
        let before = vips(&both.step());
        (both, before)
    };
    let (mut both, before) = start();
    edit_pool(&mut both, "public", |pool| pool.force_release = true);
    assert_eq!(vips(&both.step()), before, "on its own it takes nothing");
    edit_pool(&mut both, "public", |pool| pool.quota_per_namespace = Some(1));
    let outcome = both.step();
    assert_eq!(vips(&outcome), before[..1], "the newer one exceeds the quota");
    assert!(pending(&outcome, "b").is_some_and(|why| why.contains("has reached its quota of 1")));
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
fn a_service_that_requests_another_pool_or_address_releases_its_address() {
    for (more, spec) in
        [("tidegate.dev/address-pool: edge", ""), ("a: b", "  loadBalancerIP: 198.51.100.3\n")]
    {
        let mut both = Both::new(&service_with("name: web", ""));
        both.step();
        both.set(&service_with(&format!("name: web, annotations: {{{more}}}"), spec));
        let now = vips(&both.step());
        assert!(now.iter().all(|ip| ip.to_string().starts_with("198.51.100.")) && now.len() == 1, "{now:?}");
    }
}

#[test]
fn gateways_with_the_same_services_choose_the_same_addresses() {
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
    let mut orders = [String::new(), String::new()];
    for i in 0..count {
        orders[0] += &one(i);
        orders[1] += &one(count - 1 - i);
        forwards.set(&orders[0]);
        backwards.set(&orders[1]);
        forwards.step();
        backwards.step();
    }
    let chosen = of(&forwards.step());
    assert_eq!(chosen, of(&backwards.step()));
    // A gateway that starts with a larger pool chooses the same addresses for most Services.
    let mut grown = Both::new(&orders[0]);
    pools(&mut grown, "203.0.112.0/21");
    let moved = of(&grown.step()).iter().filter(|(name, ip)| chosen[*name] != **ip).count();
    assert!(moved < count, "{moved} of {count}");
}

#[test]
fn a_returning_service_gets_its_address_unless_another_one_has_it() {
    let web = service_with("name: web", "  loadBalancerIP: 203.0.113.9\n");
    let mut both = Both::new(&web);
    both.step();
    both.set("");
    both.step();
    // It no longer requests a specific address.
    both.set(&service_with("name: web", ""));
    assert_eq!(vips(&both.step()), [ip("203.0.113.9")]);
    both.set("");
    both.step();
    let other = service_with("name: other", "  loadBalancerIP: 203.0.113.9\n");
    both.set(&(other + &service_with("name: web", "")));
    let outcome = both.step();
    assert!(owners(&outcome).contains(&"203.0.113.9 other".to_owned()), "{:?}", owners(&outcome));
    assert_eq!(vips(&outcome).len(), 2);
}
