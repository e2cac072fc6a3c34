//! Tests with several gateways and one address: a Service gets the address only after no gateway can serve it for
//! another Service.

use super::*;

/// Starts two gateways that serve the same Services. The first one leads.
async fn two(cluster: &Cluster, settings: &Settings) -> (Gateway, Gateway) {
    let one = cluster.gateway_with("edge-1", settings.clone());
    until("a leader", || one.leads()).await;
    let two = cluster.gateway_with("edge-2", settings.clone());
    until("both to have reported their status", || {
        ["edge-1", "edge-2"].iter().all(|name| cluster.status_of(name)["lastHeartbeat"].is_string())
    })
    .await;
    (one, two)
}

/// Waits until the first gateway has polled the others `times` more times.
async fn polls(cluster: &Cluster, times: usize) {
    cluster.server.forget_requests();
    until("it polls the others", || {
        let requests = cluster.server.requests();
        let polls = requests.iter().filter(|r| r.method == "GET" && r.path.ends_with("/gatewaystatuses"));
        polls.count() >= times
    })
    .await;
}

#[tokio::test]
async fn an_address_moves_between_services_on_two_gateways() {
    let cluster = Cluster::new();
    let (one, two) = two(&cluster, &settings()).await;
    let x = "203.0.113.5";
    cluster.service("old", &json!({"annotations": {"tidegate.dev/load-balancer-ips": x}}));
    until("both serve it", || one.vips() == [x] && two.vips() == [x]).await;
    two.set_stuck(true);
    cluster.request_address("old", "203.0.113.6");
    until("the status shows it", || cluster.ingress("old").as_deref() == Some("203.0.113.6")).await;
    cluster.service("new", &json!({"annotations": {"tidegate.dev/load-balancer-ips": x}}));
    let why = || cluster.condition("new", "Allocated")["message"].as_str().unwrap_or_default().to_owned();
    until("the new one reports why it waits", || why().contains("not every gateway has withdrawn it yet"))
        .await;
    // The others were polled again, and one of them still serves it.
    polls(&cluster, 3).await;
    assert_eq!((cluster.ingress("new"), two.vips()), (None, vec![x.to_owned()]));
    two.set_stuck(false);
    until("it is reassigned", || cluster.ingress("new").as_deref() == Some(x)).await;
    until("both serve both", || one.vips().len() == 2 && two.vips() == one.vips()).await;
    assert!(!cluster.events("new").contains("AllocationFailed"), "the Service is not at fault");
}

#[tokio::test]
async fn a_service_that_changes_its_type_back_keeps_its_address() {
    let cluster = Cluster::new();
    let (one, two) = two(&cluster, &settings()).await;
    cluster.service("web", &json!({}));
    until("both serve it", || one.vips().len() == 1 && two.vips() == one.vips()).await;
    let had = cluster.ingress("web");
    for _ in 0..3 {
        let change_type = |service: &mut Value| {
            // An API server clears the status in this case.
            service["status"]["loadBalancer"] = json!({});
            service["spec"]["type"] = json!("ClusterIP");
            service["spec"].as_object_mut().expect("a spec").remove("loadBalancerClass");
        };
        cluster.server.edit("v1", "Service", "shop", "web", change_type).expect("a valid change");
        until("it is released", || {
            cluster.get("web")["metadata"]["finalizers"].as_array().is_none_or(Vec::is_empty)
        })
        .await;
        let change_back = |service: &mut Value| {
            service["spec"]["type"] = json!("LoadBalancer");
            service["spec"]["loadBalancerClass"] = json!("tidegate.dev/gateway");
        };
        cluster.server.edit("v1", "Service", "shop", "web", change_back).expect("a valid change");
        until("an address", || cluster.ingress("web").is_some()).await;
        assert_eq!(cluster.ingress("web"), had);
        until("both serve it", || one.vips().len() == 1 && two.vips() == one.vips()).await;
    }
}

#[tokio::test]
async fn an_address_of_a_removed_service_is_withdrawn_first() {
    let cluster = Cluster::new();
    let settings = settings_of("203.0.113.5/32");
    let (one, two) = two(&cluster, &settings).await;
    cluster.service("old", &json!({}));
    until("both serve it", || one.vips().len() == 1 && two.vips() == one.vips()).await;
    two.set_stuck(true);
    let remove_finalizer = |service: &mut Value| service["metadata"]["finalizers"] = json!([]);
    cluster.server.edit("v1", "Service", "shop", "old", remove_finalizer).expect("a valid change");
    assert!(cluster.server.delete("v1", "Service", "shop", "old"));
    cluster.service("new", &json!({}));
    until("the first no longer serves it", || one.vips().is_empty()).await;
    polls(&cluster, 3).await;
    assert_eq!((cluster.ingress("new"), two.vips().len()), (None, 1));
    two.set_stuck(false);
    until("it is reassigned", || cluster.ingress("new").is_some()).await;
}

#[tokio::test]
async fn the_leader_changes_while_an_address_is_withdrawn() {
    let cluster = Cluster::new();
    let settings = settings_of("203.0.113.5/32");
    let (one, two) = two(&cluster, &settings).await;
    let three = cluster.gateway_with("edge-3", settings);
    cluster.service("old", &json!({}));
    until("all serve it", || [&one, &two, &three].iter().all(|gateway| gateway.vips().len() == 1)).await;
    until("the third has reported it", || cluster.status_of("edge-3")["vipCount"] == 1).await;
    three.set_stuck(true);
    let remove_finalizer = |service: &mut Value| service["metadata"]["finalizers"] = json!([]);
    cluster.server.edit("v1", "Service", "shop", "old", remove_finalizer).expect("a valid change");
    assert!(cluster.server.delete("v1", "Service", "shop", "old"));
    until("two of three no longer serve it", || one.vips().is_empty() && two.vips().is_empty()).await;
    one.shut_down().await;
    until("the second leads", || two.leads()).await;
    cluster.service("new", &json!({}));
    let why = || cluster.condition("new", "Allocated")["message"].as_str().unwrap_or_default().to_owned();
    until("the new one reports that it waits", || why().contains("waits for")).await;
    polls(&cluster, 3).await;
    assert_eq!(
        (cluster.ingress("new"), three.vips().len()),
        (None, 1),
        "the second doesn't know the history of the first"
    );
    three.set_stuck(false);
    until("it is reassigned", || cluster.ingress("new").is_some()).await;
}

#[tokio::test]
async fn more_than_1024_vips_can_be_released() {
    const SERVICES: usize = 1030;
    let cluster = Cluster::new();
    let settings = settings_of("198.18.0.0/20");
    let name = |n: usize| format!("s{n:04}");
    let objects = (0..SERVICES).map(|n| {
        let address = format!("198.18.{}.{}", 1 + n / 200, 1 + n % 200);
        json!({
            "apiVersion": "v1", "kind": "Service",
            "metadata": {
                "name": name(n), "namespace": "shop", "finalizers": ["tidegate.dev/cleanup"],
                "managedFields": [{
                    "manager": "tidegate", "operation": "Apply", "apiVersion": "v1", "subresource": "status",
                    "time": "2026-01-01T00:00:00Z", "fieldsType": "FieldsV1",
                    "fieldsV1": {"f:status": {"f:loadBalancer": {"f:ingress": {}}}},
                }],
            },
            "spec": {
                "type": "LoadBalancer", "loadBalancerClass": "tidegate.dev/gateway",
                "ports": [{"name": "http", "port": 80, "targetPort": 8080}]
            },
            "status": {"loadBalancer": {"ingress": [{"ip": address}]}},
        })
    });
    cluster.server.load(objects.collect()).expect("legal Services");
    let (one, two) = two(&cluster, &settings).await;
    until("both serve all of it", || one.vips().len() == SERVICES && two.vips().len() == SERVICES).await;
    until("the second has reported it", || cluster.status_of("edge-2")["vipCount"] == SERVICES).await;
    let (last, x) = (name(SERVICES - 1), "198.18.6.30");
    assert_eq!(cluster.ingress(&last).as_deref(), Some(x));
    let listed = cluster.status_of("edge-2")["vips"].as_array().cloned().unwrap_or_default();
    assert!(!listed.contains(&json!(x)), "the list is truncated before it");
    two.set_stuck(true);
    let remove_finalizer = |service: &mut Value| service["metadata"]["finalizers"] = json!([]);
    cluster.server.edit("v1", "Service", "shop", &last, remove_finalizer).expect("a valid change");
    assert!(cluster.server.delete("v1", "Service", "shop", &last));
    until("the first no longer serves it", || !one.vips().contains(&x.to_owned())).await;
    cluster.service("new", &json!({"annotations": {"tidegate.dev/load-balancer-ips": x}}));
    until("the first has seen the new one", || {
        one.last.borrow().as_ref().is_some_and(|outcome| outcome.services.iter().any(|s| s.name == "new"))
    })
    .await;
    polls(&cluster, 2).await;
    assert!(!one.vips().contains(&x.to_owned()));
    assert!(two.vips().contains(&x.to_owned()));
    two.set_stuck(false);
    // The write may wait for a thousand others.
    until("it is reassigned", || one.vips().contains(&x.to_owned())).await;
}

#[tokio::test]
async fn an_address_of_another_gateway_is_neither_assigned_nor_honored() {
    let cluster = Cluster::new();
    let at = |address: &str| {
        let mut settings = settings_of("203.0.113.4/30");
        settings.network.snat_addresses = vec![address.parse().expect("an address")];
        settings
    };
    let one = cluster.gateway_with("edge-1", at("192.0.2.3"));
    until("a leader", || one.leads()).await;
    let _two = cluster.gateway_with("edge-2", at("203.0.113.6"));
    until("it has reported its address", || {
        cluster.status_of("edge-2")["addresses"] == json!(["203.0.113.6"])
    })
    .await;
    polls(&cluster, 2).await;
    cluster.service("requests", &json!({"annotations": {"tidegate.dev/load-balancer-ips": "203.0.113.6"}}));
    let note = || {
        let events = cluster.server.list("events.k8s.io/v1", "Event", "");
        let counts =
            events.iter().filter(|e| e["regarding"]["name"] == "requests").map(|e| e["note"].to_string());
        counts.collect::<String>()
    };
    until("it is refused by name", || note().contains("an address of gateway edge-2")).await;
    let mut external = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "external", "namespace": "shop"},
        "spec": {"externalIPs": ["203.0.113.6", "203.0.113.7"], "ports": [{"port": 80}]}
    });
    cluster.server.put(external.take()).expect("a valid Service");
    until("the other one is honored", || one.vips() == ["203.0.113.7"]).await;
    until("it is denied", || cluster.events("external").contains("ExternalIPDenied")).await;
}

#[tokio::test]
async fn only_the_leader_removes_a_gateway_that_is_gone_for_good() {
    let cluster = Cluster::new();
    let status = |name: &str, beat: &str| {
        json!({
            "apiVersion": "tidegate.dev/v1alpha1", "kind": "GatewayStatus", "metadata": {"name": name},
            "spec": {"gateway": name}, "status": {"lastHeartbeat": beat, "stopped": true},
        })
    };
    let yesterday = jiff::Timestamp::now() - Duration::from_secs(23 * 3600);
    let before = jiff::Timestamp::now() - Duration::from_secs(25 * 3600);
    cluster.server.put(status("gone", &before.to_string())).expect("legal");
    cluster.server.put(status("stopped", &yesterday.to_string())).expect("legal");
    let one = cluster.gateway("edge-1");
    until("its object is deleted", || cluster.status_of("gone").is_null()).await;
    assert!(one.leads());
    assert!(cluster.status_of("stopped").is_object(), "not within a day");
    until("its own object stays", || cluster.status_of("edge-1").is_object()).await;
}

#[tokio::test]
async fn a_restarted_gateway_continues_the_counts_of_its_earlier_events() {
    let cluster = Cluster::new();
    cluster.service("web", &json!({"annotations": {"tidegate.dev/table-size": "many"}}));
    let counts = |cluster: &Cluster| {
        let events = cluster.server.list("events.k8s.io/v1", "Event", "");
        let counts = events.into_iter().filter(|e| e["reason"] == "InvalidValue");
        counts.map(|e| e["series"]["count"].as_i64().unwrap_or(1)).collect::<Vec<_>>()
    };
    for count in 1..=3 {
        let gateway = cluster.gateway("edge-1");
        until("it is counted", || counts(&cluster) == [count]).await;
        gateway.shut_down().await;
    }
}
