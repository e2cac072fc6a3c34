//! Tests of the beginning and the end of a term as leader, and of a name that two gateways have.

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
    until("it to say so", || candidate().cannot_lead.is_some()).await;
    let why = candidate().cannot_lead.unwrap_or_default();
    assert!(why.contains("the lease tidegate-system/tidegate cannot be acquired: 403"), "{why}");
    let can_lead = || {
        let conditions = cluster.status_of("edge-1")["conditions"].clone();
        let conditions = conditions.as_array().cloned().unwrap_or_default();
        conditions.into_iter().find(|one| one["type"] == "CanLead").unwrap_or_default()
    };
    until("the condition", || can_lead()["status"] == "False").await;
    assert!(can_lead()["message"].as_str().is_some_and(|message| message.contains("403")), "{}", can_lead());
    // The event must not come within half a minute, because another leader would have answered by then.
    let is_told = async {
        while !cluster.events("web").contains("WaitingForLeader") {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    };
    tokio::time::timeout(3 * PATIENCE, is_told).await.expect("the Service is told");
    cluster.server.faults().clear();
    until("a leader", || gateway.leads()).await;
    until("an address", || cluster.ingress("web").is_some()).await;
    until("all of it to be well", || candidate().cannot_lead.is_none() && can_lead()["status"] == "True")
        .await;
    let two = cluster.gateway("edge-2");
    let of_two = || two.writer.counts().candidate();
    until("it to know who leads", || of_two().leader.as_deref() == Some("edge-1")).await;
    assert_eq!(of_two().cannot_lead, None);
}

#[tokio::test]
async fn a_lease_that_cannot_be_reached_is_reported_with_the_cause() {
    let cluster = Cluster::new();
    let gateway = cluster.gateway("edge-1");
    until("a leader", || gateway.leads()).await;
    cluster.server.refuse_connections(true).expect("it can be told");
    let why = || gateway.writer.counts().candidate().cannot_lead.unwrap_or_default();
    until("it to say so", || why().contains("cannot be acquired")).await;
    assert!(why().contains("Connection refused"), "{}", why());
}

#[tokio::test]
async fn an_event_that_the_api_server_could_not_take_is_written_when_it_can() {
    let cluster = Cluster::new();
    let gateway = cluster.gateway("edge-1");
    until("a leader", || gateway.leads()).await;
    cluster.server.faults().on_next(2, "/events", Fault::TooManyRequests(1));
    cluster.server.faults().on_next(2, "/events", Fault::ServerError(503));
    // The event is the only report to the owner.
    cluster.service("web", &json!({"annotations": {"tidegate.dev/table-size": "many"}}));
    until("what is wrong to be told", || cluster.events("web").contains("InvalidValue")).await;
    let reasons = ["EnsuringLoadBalancer", "IPAllocated", "EnsuredLoadBalancer"];
    until("all the rest", || reasons.iter().all(|reason| cluster.events("web").contains(*reason))).await;
}

#[tokio::test]
async fn the_lease_is_given_back_after_the_last_write_has_ended() {
    let cluster = Cluster::new();
    let gateway = cluster.gateway("edge-1");
    until("a leader", || gateway.leads()).await;
    cluster.server.faults().on("/services/web", Fault::Slow(Duration::from_millis(600)));
    cluster.service("web", &json!({}));
    until("a write is about to be sent", || !gateway.vips().is_empty()).await;
    tokio::time::sleep(Duration::from_millis(300)).await;
    cluster.server.forget_requests();
    gateway.shut_down().await;
    let left = || cluster.server.requests();
    until("both have ended", || {
        left().iter().any(is_lease) && left().iter().any(|request| request.path.contains("/services/web"))
    })
    .await;
    let lease = left().iter().rposition(is_lease);
    let write = left().iter().rposition(|request| request.path.contains("/services/web"));
    assert!(write < lease, "{:?}", left());
}

#[tokio::test]
async fn of_two_gateways_of_one_name_the_second_refuses_to_lead_and_writes_no_status() {
    let cluster = Cluster::new();
    let at = |address: &str| {
        let mut settings = settings();
        settings.network.snat_addresses = vec![address.parse().expect("an address")];
        settings
    };
    let one = cluster.gateway_with("edge-1", at("192.0.2.3"));
    until("a leader", || one.leads()).await;
    until("it has told", || cluster.status_of("edge-1")["addresses"] == json!(["192.0.2.3"])).await;
    let two = cluster.gateway_with("edge-1", at("192.0.2.4"));
    let taken = two.writer.name_taken();
    until("it is found out", || taken.borrow().is_some()).await;
    assert!(taken.borrow().as_ref().is_some_and(|who| who.contains("192.0.2.3")), "{taken:?}");
    let unique = || {
        let conditions = cluster.status_of("edge-1")["conditions"].clone();
        let all = conditions.as_array().cloned().unwrap_or_default();
        all.into_iter().find(|c| c["type"] == "NameUnique").unwrap_or_default()
    };
    until("the first is told", || {
        unique()["status"] == "False" && unique()["message"].to_string().contains("192.0.2.4")
    })
    .await;
    assert_eq!(cluster.status_of("edge-1")["addresses"], json!(["192.0.2.3"]));
    assert!(one.leads() && !two.leads() && one.writer.name_taken().borrow().is_none());
}
