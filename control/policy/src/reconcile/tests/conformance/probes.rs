//! Section 4, the probes: `/healthz`, `/livez` and `/readyz` of both gateways over loopback, depending on the objects
//! of their node.

use tidegate_health::health_check_node_port::Clients;
use tidegate_health::health_check_node_port::ProxyHealth;
use tidegate_health::health_check_node_port::probes::Probes;

use super::health_check_node_ports::{LOOPBACK, TIMEOUT, until};
use super::*;
use jiff::Timestamp;

/// The probes of both gateways, after their information about the node has changed.
async fn probed(both: &Both, health: &Arc<ProxyHealth>, path: &str, now: Duration) -> String {
    probed_where(both, health, path, now, true).await
}

/// Like [`probed`], with a choice whether the source has all Nodes or does not need them.
async fn probed_where(
    both: &Both,
    health: &Arc<ProxyHealth>,
    path: &str,
    now: Duration,
    lists_nodes: bool,
) -> String {
    let mut answers = Vec::new();
    for world in [&both.directory, &both.api] {
        health.set_node_eligible(world.objects.is_eligible(world.settings.node.as_deref(), lists_nodes));
        let reported = Arc::clone(health);
        let report = move || reported.report(now, Timestamp::UNIX_EPOCH);
        let probes = Probes::start(SocketAddr::new(ip(LOOPBACK[0]), 0), Clients::default(), report)
            .await
            .expect("it binds");
        let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
        answers.push(until(probes.local_addr(), &request, "\r\n\r\n").await);
    }
    assert_eq!(answers[0], answers[1]);
    answers.remove(0)
}

#[tokio::test]
async fn healthz_depends_on_updates_and_the_node_and_livez_on_updates_only() {
    let health = Arc::new(ProxyHealth::new(TIMEOUT, Timestamp::UNIX_EPOCH));
    let at = |yaml: &str| Both::new(yaml).with(|world| world.settings.node = Some("a".into()));
    let fine = at(&node_yaml("a", &["10.0.1.1"], ""));
    let start = Duration::ZERO;
    assert!(
        probed(&fine, &health, "/readyz", start).await.starts_with("HTTP/1.1 503 "),
        "nothing is applied yet"
    );
    health.applied(Timestamp::UNIX_EPOCH);
    assert!(probed(&fine, &health, "/readyz", start).await.starts_with("HTTP/1.1 200 "));
    let answer = probed(&fine, &health, "/healthz", start).await;
    assert!(answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"), "{answer}");
    let times = "{\"lastUpdated\":\"1970-01-01T00:00:00Z\",\"currentTime\":\"1970-01-01T00:00:00Z\"";
    let family = "{\"lastUpdated\":\"1970-01-01T00:00:00Z\",\"healthy\":true}";
    let healthy = format!("\"healthy\":true,\"status\":{{\"IPv4\":{family},\"IPv6\":{family}}}}}");
    assert!(answer.ends_with(&format!("\r\n\r\n{times},\"nodeEligible\":true,{healthy}")), "{answer}");
    let answer = probed(&fine, &health, "/livez", start).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.ends_with(&format!("\r\n\r\n{times},{healthy}")),
        "{answer}"
    );

    let tainted = node_yaml("a", &["10.0.1.1"], "").replace(
        "\nstatus:",
        "\nspec: {taints: [{key: ToBeDeletedByClusterAutoscaler, effect: NoSchedule}]}\nstatus:",
    );
    let deleted = node_yaml("a", &["10.0.1.1"], ", deletionTimestamp: '2026-01-01T00:00:00Z'");
    for marked in [tainted, deleted] {
        let answer = probed(&at(&marked), &health, "/healthz", start).await;
        assert!(
            answer.starts_with("HTTP/1.1 503 ")
                && answer.ends_with(&format!("\"nodeEligible\":false,{healthy}")),
            "{answer}"
        );
        assert!(probed(&at(&marked), &health, "/livez", start).await.starts_with("HTTP/1.1 200 "));
        let elsewhere = Both::new(&marked).with(|world| world.settings.node = Some("b".into()));
        assert!(
            probed(&elsewhere, &health, "/healthz", start).await.starts_with("HTTP/1.1 503 "),
            "the API server does not know the node"
        );
        assert!(probed(&elsewhere, &health, "/livez", start).await.starts_with("HTTP/1.1 200 "));
        let answer = probed_where(&elsewhere, &health, "/healthz", start, false).await;
        assert!(answer.starts_with("HTTP/1.1 503 "), "a directory with Nodes, but not this one: {answer}");
        assert!(probed(&Both::new(&marked), &health, "/healthz", start).await.starts_with("HTTP/1.1 200 "));
    }
    let without = Both::new("").with(|world| world.settings.node = Some("b".into()));
    let answer = probed_where(&without, &health, "/healthz", start, false).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "a directory need not have Nodes: {answer}");
    let cordoned =
        "\nspec: {unschedulable: true, taints: [{key: node.kubernetes.io/unschedulable}]}\nstatus:";
    let cordoned = node_yaml("a", &["10.0.1.1"], "").replace("\nstatus:", cordoned);
    assert!(probed(&at(&cordoned), &health, "/healthz", start).await.starts_with("HTTP/1.1 200 "));

    health.update_queued(start);
    let late = TIMEOUT + Duration::from_secs(1);
    assert!(probed(&fine, &health, "/healthz", TIMEOUT).await.starts_with("HTTP/1.1 200 "));
    assert!(probed(&fine, &health, "/healthz", late).await.starts_with("HTTP/1.1 503 "));
    let answer = probed(&fine, &health, "/livez", late).await;
    assert!(
        answer.starts_with("HTTP/1.1 503 ") && answer.contains("\"healthy\":false,\"status\""),
        "{answer}"
    );
}
