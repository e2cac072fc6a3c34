//! Tests of the start and the end of a term as leader, and of a name that two gateways share.

use super::*;

fn is_lease(request: &test_apiserver::Logged) -> bool {
    request.path.ends_with("/leases/tidegate") && request.method == "PUT"
}

#[tokio::test]
async fn a_new_leader_lists_the_services_once_and_waits_for_no_bookmark() {
    let cluster =
        Cluster::with(Options { bookmark_interval: Duration::from_secs(3600), ..Options::default() });
    let one = cluster.gateway("edge-1");
    until("a leader", || one.leads()).await;
    one.shut_down().await;
    cluster.service("web", &json!({}));
    let two = cluster.gateway("edge-2");
    until("it leads", || two.leads()).await;
    until("an address", || cluster.ingress("web").is_some()).await;
    let lists = cluster
        .server
        .requests()
        .into_iter()
        .filter(|request| request.path == "/api/v1/services" && request.query.contains("limit=500"));
    assert!(lists.count() <= 4, "one each at the start, and one each at the start of a term");
}

#[tokio::test]
async fn a_gateway_that_cannot_lead_reports_why_everywhere_until_it_can() {
    let cluster = Cluster::new();
    cluster.server.faults().on("/leases/", Fault::ServerError(403));
    cluster.service("web", &json!({}));
    let gateway = cluster.gateway("edge-1");
    let candidate = || gateway.writer.counts().candidate();
    until("the report", || candidate().cannot_lead.is_some()).await;
    let why = candidate().cannot_lead.unwrap_or_default();
    assert!(why.contains("cannot acquire the Lease tidegate-system/tidegate: 403"), "{why}");
    let can_lead = || {
        let conditions = cluster.status_of("edge-1")["conditions"].clone();
        let conditions = conditions.as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == "CanLead").unwrap_or_default()
    };
    until("the condition", || can_lead()["status"] == "False").await;
    assert!(can_lead()["message"].as_str().is_some_and(|message| message.contains("403")), "{}", can_lead());
    // The event is not sent within half a minute, because another leader might take over.
    let has_event = async {
        while !cluster.events("web").contains("WaitingForLeader") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(3 * PATIENCE, has_event).await.expect("the Service gets the event");
    cluster.server.faults().clear();
    until("a leader", || gateway.leads()).await;
    until("an address", || cluster.ingress("web").is_some()).await;
    until("the reports to end", || candidate().cannot_lead.is_none() && can_lead()["status"] == "True").await;
    let two = cluster.gateway("edge-2");
    let of_two = || two.writer.counts().candidate();
    until("it to know the leader", || of_two().leader.as_deref() == Some("edge-1")).await;
    assert_eq!(of_two().cannot_lead, None);
}

#[tokio::test]
async fn a_lease_that_cannot_be_reached_is_reported_with_the_cause() {
    let cluster = Cluster::new();
    let gateway = cluster.gateway("edge-1");
    until("a leader", || gateway.leads()).await;
    cluster.server.refuse_connections(true).expect("the test server accepts it");
    let why = || gateway.writer.counts().candidate().cannot_lead.unwrap_or_default();
    until("the report", || why().contains("cannot acquire the Lease")).await;
    assert!(why().contains("Connection refused"), "{}", why());
}

#[tokio::test]
async fn an_event_that_the_api_server_rejected_is_retried() {
    let cluster = Cluster::new();
    let gateway = cluster.gateway("edge-1");
    until("a leader", || gateway.leads()).await;
    cluster.server.faults().on_next(2, "/events", Fault::TooManyRequests(1));
    cluster.server.faults().on_next(2, "/events", Fault::ServerError(503));
    // The event is the only report to the owner.
    cluster.service("web", &json!({"annotations": {"tidegate.dev/table-size": "many"}}));
    until("the report of the error", || cluster.events("web").contains("InvalidValue")).await;
    let reasons = ["EnsuringLoadBalancer", "IPAllocated", "EnsuredLoadBalancer"];
    until("the other events", || reasons.iter().all(|reason| cluster.events("web").contains(*reason))).await;
}

#[tokio::test]
async fn the_lease_is_released_after_the_last_write_has_ended() {
    let cluster = Cluster::new();
    let gateway = cluster.gateway("edge-1");
    until("a leader", || gateway.leads()).await;
    cluster.server.faults().on("/services/web", Fault::Slow(Duration::from_millis(600)));
    cluster.service("web", &json!({}));
    until("a write is being processed", || cluster.server.faults().met() > 0).await;
    cluster.server.forget_requests();
    gateway.shut_down().await;
    let requests = || cluster.server.requests();
    until("both have ended", || {
        requests().iter().any(is_lease)
            && requests().iter().any(|request| request.path.contains("/services/web"))
    })
    .await;
    let lease = requests().iter().rposition(is_lease);
    let write = requests().iter().rposition(|request| request.path.contains("/services/web"));
    assert!(write < lease, "{:?}", requests());
}

#[tokio::test]
async fn the_second_gateway_with_a_name_does_not_lead_or_write_a_status() {
    let cluster = Cluster::new();
    let at = |address: &str| {
        let mut settings = settings();
        settings.network.snat_addresses = vec![address.parse().expect("an address")];
        settings
    };
    let one = cluster.gateway_with("edge-1", at("192.0.2.3"));
    until("a leader", || one.leads()).await;
    until("it has reported its address", || cluster.status_of("edge-1")["addresses"] == json!(["192.0.2.3"]))
        .await;
    let two = cluster.gateway_with("edge-1", at("192.0.2.4"));
    let taken = two.writer.name_taken();
    until("the conflict is detected", || taken.borrow().is_some()).await;
    assert!(taken.borrow().as_ref().is_some_and(|who| who.contains("192.0.2.3")), "{taken:?}");
    let unique = || {
        let conditions = cluster.status_of("edge-1")["conditions"].clone();
        let all = conditions.as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == "NameUnique").unwrap_or_default()
    };
    until("the first is informed", || {
        unique()["status"] == "False" && unique()["message"].to_string().contains("192.0.2.4")
    })
    .await;
    assert_eq!(cluster.status_of("edge-1")["addresses"], json!(["192.0.2.3"]));
    assert!(one.leads() && !two.leads() && one.writer.name_taken().borrow().is_none());
}
