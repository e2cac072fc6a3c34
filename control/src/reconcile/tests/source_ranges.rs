//! kubernetes.md section 3, source ranges: who may come in by which address.

use super::*;

fn net(text: &str) -> ipnet::IpNet {
    text.parse().expect("a network")
}

/// A dual-stack Service with these ranges, an external IP and an IPv4 and an IPv6 LoadBalancer VIP.
fn world(ranges: &[&str]) -> World {
    let mut web = service("web");
    web.ip_family_policy = IpFamilyPolicy::RequireDualStack;
    web.source_ranges = ranges.iter().map(|range| net(range)).collect();
    web.external_ips = vec![ip("198.51.100.1")];
    World::new(vec![web], vec![])
}

/// The ranges of the port on the VIP of a family from a pool: `None` for everyone.
fn ranges_on(outcome: &Outcome, pool: &str, is_v4: bool) -> Option<Vec<ipnet::IpNet>> {
    let vips = &outcome.services[0].vips;
    let vip = vips.iter().find(|vip| vip.pool == pool && vip.address.is_ipv4() == is_v4).expect("a VIP");
    let spec = outcome.spec.services.iter().find(|spec| spec.key.vip == vip.address).expect("it is served");
    spec.source_ranges.as_ref().map(|ranges| ranges.to_vec())
}

#[test]
fn load_balancer_source_ranges_filters_the_load_balancer_vips_only_not_external_ips() {
    let outcome = world(&["198.51.100.0/24", "10.0.0.7/8", "2001:db8::/32"]).look();
    let all = vec![net("10.0.0.0/8"), net("198.51.100.0/24"), net("2001:db8::/32")];
    assert_eq!(ranges_on(&outcome, "public", true), Some(all.clone()));
    assert_eq!(ranges_on(&outcome, "public", false), Some(all));
    assert_eq!(ranges_on(&outcome, "edge", true), None);
    assert!(outcome.findings.is_empty(), "{:?}", messages(&outcome));
}

#[test]
fn a_zero_prefix_means_everyone_of_that_family() {
    let outcome = world(&["10.0.0.0/8", "0.0.0.0/0", "2001:db8::/32"]).look();
    assert_eq!(ranges_on(&outcome, "public", true), None);
    assert!(ranges_on(&outcome, "public", false).is_some());
    let outcome = world(&["0.0.0.0/0", "::/0"]).look();
    assert_eq!((ranges_on(&outcome, "public", true), ranges_on(&outcome, "public", false)), (None, None));
    assert_eq!(ranges_on(&world(&[]).look(), "public", true), None, "no ranges: everyone");
}

#[test]
fn ranges_of_one_family_only_on_a_dual_stack_vip_deny_the_other_family_with_a_warning() {
    for (ranges, is_v4, everyone) in [("10.0.0.0/8", true, "::/0"), ("::/0", false, "0.0.0.0/0")] {
        let mut world = world(&[ranges]);
        let outcome = world.look();
        let kept = ranges_on(&outcome, "public", !is_v4).expect("ranges that hold nobody of the family");
        assert!(kept.iter().all(|range| range.addr().is_ipv4() == is_v4));
        let [finding] = &outcome.findings[..] else { panic!("{:?}", messages(&outcome)) };
        assert_eq!(finding.reason, Reason::SourceRangesOtherFamily);
        let message = finding.diagnostic.to_string();
        assert!(message.contains("warning: ") && message.contains(everyone), "{message}");

        world.settings.source_ranges_allow_other_family = true;
        let outcome = world.look();
        assert_eq!(ranges_on(&outcome, "public", !is_v4), None, "sourceRangesOtherFamily: allow");
        assert!(outcome.findings.is_empty());
    }
}

#[test]
fn an_address_that_is_a_load_balancer_vip_and_an_external_ip_is_filtered() {
    let mut world = world(&["10.0.0.0/8"]);
    world.settings.pools[0].external_ips = true;
    let vip = world.step().services[0].vips.iter().find(|v| v.pool == "public").expect("a VIP").address;
    let mut web = Service::clone(&world.objects.services[&ObjectKey::new("default", "web")]);
    web.external_ips = vec![vip];
    world.put(web);
    let outcome = world.look();
    let spec = outcome.spec.services.iter().find(|spec| spec.key.vip == vip).expect("it is served");
    assert!(spec.source_ranges.is_some());
}
