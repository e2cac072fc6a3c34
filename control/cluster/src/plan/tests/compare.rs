//! Tests the comparison of plans: it detects a wrongly skipped Service, and the plan is then recomputed from scratch.
//!
//! Every plan in the other tests is compared, too, so they check that the comparison finds no other difference.

use super::*;

#[test]
fn a_wrongly_skipped_service_is_detected_and_written() {
    let mut cluster = Cluster::new([service("web")]);
    cluster.endpoint("web", "10.0.1.1");
    cluster.run_until_stable();
    assert_eq!(cluster.plan().writes, []);
    // The conditions are removed, but the plan still considers the Service up to date.
    cluster.edit("web", |service| service.stored.conditions.clear());
    let observation = cluster.observe();
    let (web, view) =
        (Arc::clone(&cluster.objects.services[&key("web")]), Arc::clone(&observation.outcome.services[0]));
    let peer_summary = peer::fingerprint(&cluster.peers, &key("web"), 0);
    let up_to_date = UpToDate { service: web, view: Some(view), claimed: true, peer_summary, gateway: None };
    cluster.memory.up_to_date.insert(key("web"), up_to_date);

    let (identity, mut memory) = (cluster.identity(), cluster.memory.clone());
    let situation = cluster.situation(&observation, &identity);
    assert_eq!(plan(&situation, &mut memory.clone()).writes, [], "the plan misses the write");
    let (planned, found) = plan_compared(&situation, &mut memory);
    let parts: Vec<&str> = found.iter().map(|difference| difference.part.as_str()).collect();
    assert!(parts.contains(&"writes[0]"), "{parts:?}");
    assert!(found[0].from_scratch.contains("ServiceStatus"), "{found:?}");
    assert!(matches!(&planned.writes[..], [Write::ServiceStatus { .. }]), "{planned:?}");
    let (again, found) = plan_compared(&situation, &mut memory);
    assert_eq!(
        (again.writes, found),
        (planned.writes, vec![]),
        "the next plan is correct without the comparison"
    );
}

#[test]
fn memory_that_a_plan_would_lose_is_detected_early() {
    let mut cluster = Cluster::new([service("web")]);
    cluster.endpoint("web", "10.0.1.1");
    cluster.run_until_stable();
    let observation = cluster.observe();
    let (identity, mut memory) = (cluster.identity(), cluster.memory.clone());
    let situation = cluster.situation(&observation, &identity);
    // The Service is skipped and its last requests are lost, so a change of them would not be noticed.
    assert!(memory.requests.remove(&key("web")).is_some() && memory.up_to_date.contains_key(&key("web")));
    let (planned, found) = plan_compared(&situation, &mut memory);
    let parts: Vec<&str> = found.iter().map(|difference| difference.part.as_str()).collect();
    assert_eq!((&planned.writes[..], &parts[..]), (&[][..], &["memory.requests[0]"][..]));
    assert!(memory.requests.contains_key(&key("web")), "the plan from scratch has examined it");
    assert_eq!(plan_compared(&situation, &mut memory).1, []);
}
