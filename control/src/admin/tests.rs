//! Tests of the admin socket with real sockets, the real client, and a backend with state.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use hyper::Method;
use tidegate_admin_api::*;
use tidegate_model::objects::ServiceType;
use tidegate_spec::ForwardingMode;

use super::*;
use crate::views_testing;

/// Stores the drained targets, and knows one backend.
#[derive(Default)]
pub(super) struct Daemon {
    drained: Mutex<Vec<String>>,
}

fn backend_view() -> BackendView {
    let backend = views_testing::backend("10.0.0.1:8080", BackendViewState::Active);
    BackendView { pod: Some("default/web-0".into()), ..backend }
}

fn service_view() -> ServiceView {
    let vip = "203.0.113.1";
    let port = views_testing::port(vip, ForwardingMode::Nat, vec![backend_view()]);
    ServiceView {
        namespace: "default".into(),
        service_type: Some(ServiceType::LoadBalancer),
        vips: vec![VipView {
            address: vip.parse().expect("an address"),
            kind: VipKind::LoadBalancer,
            pool: "public".into(),
            edge: Default::default(),
        }],
        ..views_testing::service("web", vec![port])
    }
}

/// A Gateway with one listener.
fn gateway_view() -> ServiceView {
    let port = PortView {
        route: Some("TCPRoute default/web".into()),
        ..views_testing::port("203.0.113.2", ForwardingMode::Nat, vec![])
    };
    ServiceView { namespace: "default".into(), ..views_testing::service("gateway/edge", vec![port]) }
}

/// A finding about the object with this name.
fn finding(object: &str) -> FindingView {
    FindingView {
        object: object.into(),
        reason: "NotAllowed".into(),
        severity: "error".into(),
        location: None,
        message: "refused".into(),
        accepted: None,
    }
}

impl AdminBackend for Daemon {
    fn status(&self) -> Status {
        let drained = self.drained.lock().expect("no panic").clone();
        let objects =
            ["default/web", "default/tcproute/web", "default/gateway/edge", "default/gateway/refused"];
        let findings = objects.map(finding).to_vec();
        Status { name: "edge-1".into(), generation_desired: 7, drained, findings, ..Status::default() }
    }

    fn services(&self) -> ServicesAnswer {
        ServicesAnswer { services: vec![service_view(), gateway_view()], findings: vec![] }
    }

    fn backends(&self) -> BackendsAnswer {
        BackendsAnswer {
            backends: BackendRow::of_services(&[service_view()], |_, _| BackendForwarding {
                connections: Some(5),
                active: Some(2),
                packets: Some(40),
                bytes: Some(4_000),
                path_mtu: Some(1480),
                set_aside_workers: None,
            }),
        }
    }

    async fn flows(&self, query: FlowsQuery) -> Result<FlowsAnswer, AdminError> {
        if let Some(service) = query.service.filter(|service| service.name != "web") {
            return Err(AdminError::NotFound(format!("Service {service} is not served")));
        }
        Ok(FlowsAnswer {
            workers: vec![WorkerFlows { worker: 0, flows: 3, capacity: 9 }],
            more: query.limit < 3,
            ..FlowsAnswer::default()
        })
    }

    fn drops(&self) -> DropsAnswer {
        let drops = vec![ReasonView { reason: "no_route".into(), count: 2, ..ReasonView::default() }];
        DropsAnswer { drops, punts: vec![] }
    }

    async fn delete_flows(&self, query: FlowsQuery) -> Result<DeletedFlowsAnswer, AdminError> {
        Ok(DeletedFlowsAnswer { deleted: u64::from(query.client.is_some()), silent_workers: 0 })
    }

    fn neighbors(&self) -> NeighborsAnswer {
        NeighborsAnswer::default()
    }

    fn routes(&self) -> RoutesAnswer {
        RoutesAnswer::default()
    }

    fn pools(&self) -> PoolsAnswer {
        let usage = tidegate_policy::pools::PoolUsage {
            pool: "wide".into(),
            total: u128::MAX,
            assigned: 1,
            ..tidegate_policy::pools::PoolUsage::default()
        };
        PoolsAnswer { pools: vec![PoolView::from(&usage)] }
    }

    fn traffic(&self) -> TrafficAnswer {
        TrafficAnswer {
            services: vec![ServiceTraffic {
                namespace: "default".into(),
                service: "web".into(),
                port_name: "http".into(),
                vip: "203.0.113.1:80".parse().expect("an address"),
                protocol: "TCP".into(),
                packets: 12,
                bytes: 720,
                connections: 3,
            }],
        }
    }

    fn watch(&self, query: WatchQuery) -> Result<WatchAnswer, AdminError> {
        match query.interface {
            None => Ok(WatchAnswer { id: 7, interfaces: vec!["uplink".into()] }),
            Some(name) => Err(AdminError::NotFound(format!("interface {name} is not known"))),
        }
    }

    async fn watched(&self, id: u64) -> Result<WatchedAnswer, AdminError> {
        let row = WatchedRow { verdict: "drop".into(), reason: "no_flow".into(), ..WatchedRow::default() };
        match id {
            7 => Ok(WatchedAnswer { packets: vec![row], lost: 2 }),
            _ => Err(AdminError::NotFound(format!("there is no watch {id}"))),
        }
    }

    fn unwatch(&self, _: u64) -> Result<UnwatchAnswer, AdminError> {
        Ok(UnwatchAnswer { lost: 2 })
    }

    fn metrics(&self) -> String {
        "tidegate_up 1\n".into()
    }

    fn explain(&self, packet: &Packet) -> Result<Explanation, AdminError> {
        Err(AdminError::Unavailable(format!(
            "no snapshot yet for {} to {}",
            packet.protocol, packet.destination
        )))
    }

    async fn drain(&self, target: DrainTarget) -> Result<DrainAnswer, AdminError> {
        let mut drained = self.drained.lock().expect("no panic");
        drained.push(target.to_string());
        Ok(DrainAnswer { target: target.to_string(), backends: 1, drained: drained.clone(), not_kept: None })
    }

    async fn undrain(&self, target: DrainTarget) -> Result<DrainAnswer, AdminError> {
        let mut drained = self.drained.lock().expect("no panic");
        let at = drained.iter().position(|d| *d == target.to_string());
        let at = at.ok_or_else(|| AdminError::NotFound(format!("{target} is not drained")))?;
        drained.remove(at);
        Ok(DrainAnswer { target: target.to_string(), backends: 1, drained: drained.clone(), not_kept: None })
    }

    async fn drain_gateway(&self) -> Result<GatewayDrainAnswer, AdminError> {
        let drain = GatewayDrainStatus {
            state: GatewayDrainState::Draining,
            by: vec![DrainRequester::Command, DrainRequester::Annotation],
            packets_per_second: 1.5,
            ..GatewayDrainStatus::default()
        };
        Ok(GatewayDrainAnswer { gateway: "edge-1".into(), drain, not_kept: Some("no disk".into()) })
    }

    async fn undrain_gateway(&self) -> Result<GatewayDrainAnswer, AdminError> {
        Err(AdminError::Conflict("the annotation drains it".into()))
    }

    async fn diff(&self, config: Option<PathBuf>) -> Result<DiffAnswer, AdminError> {
        let report = config.iter().map(|path| path.display().to_string()).collect();
        Ok(DiffAnswer { accepted: true, report, ..DiffAnswer::default() })
    }

    async fn reload(&self) -> Result<ReloadAnswer, AdminError> {
        Ok(ReloadAnswer { accepted: false, report: vec!["a.yaml:1:1: error: bad".into()] })
    }
}

struct Lab {
    directory: tempfile::TempDir,
    server: Server,
}

impl Lab {
    fn new() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let server = Server::start(&Self::socket(&directory), Arc::new(Daemon::default())).expect("it binds");
        Self { directory, server }
    }

    fn socket(directory: &tempfile::TempDir) -> PathBuf {
        directory.path().join("run/deep/tidegate.sock")
    }

    fn client(&self) -> Client {
        Client::new(Self::socket(&self.directory))
    }
}

#[tokio::test]
async fn every_answer_reaches_the_client_unchanged() {
    let (lab, daemon) = (Lab::new(), Daemon::default());
    let client = lab.client();
    assert_eq!(client.status().await.expect("it answers"), daemon.status());
    assert_eq!(client.services().await.expect("it answers"), daemon.services());
    assert_eq!(client.backends().await.expect("it answers"), daemon.backends());
    let query = FlowsQuery { limit: 2, ..FlowsQuery::default() };
    let flows = client.flows(&query).await.expect("it answers");
    assert!(flows.more);
    assert_eq!(flows, daemon.flows(query).await.expect("it answers"));
    let other = FlowsQuery { service: Some("default/api".parse().expect("a name")), ..FlowsQuery::default() };
    let refused = client.flows(&other).await.expect_err("no such Service").to_string();
    assert_eq!(refused, "Service default/api is not served");
    assert_eq!(client.drops().await.expect("it answers"), daemon.drops());
    assert_eq!(client.traffic().await.expect("it answers"), daemon.traffic());
    let begun = client.watch(&WatchQuery::default()).await.expect("it begins");
    assert_eq!(begun.interfaces, ["uplink"]);
    let watched = client.watched(begun.id).await.expect("it answers");
    assert_eq!(watched, daemon.watched(begun.id).await.expect("it answers"));
    assert_eq!(client.unwatch(begun.id).await.expect("it ends").lost, 2);
    let other = client.watched(8).await.expect_err("no such watch").to_string();
    assert_eq!(other, "there is no watch 8");
    assert_eq!(client.metrics().await.expect("it answers"), daemon.metrics());
    assert_eq!(client.reload().await.expect("it answers"), daemon.reload().await.expect("it reports"));
    assert_eq!(client.neighbors().await.expect("it answers"), daemon.neighbors());
    assert_eq!(client.routes().await.expect("it answers"), daemon.routes());
    let some = FlowsQuery { client: "192.0.2.9".parse().ok(), ..FlowsQuery::default() };
    assert_eq!(client.delete_flows(&some).await.expect("it deletes").deleted, 1);
    let all = client.delete_flows(&FlowsQuery::default()).await.expect_err("no flows are selected");
    assert!(matches!(all, ClientError::Refused { status: 400, .. }), "{all}");
    let pools = client.pools().await.expect("it answers").pools;
    assert_eq!(
        (pools[0].total, pools[0].assigned),
        (u64::MAX, 1),
        "capped to what JSON readers can represent"
    );
}

#[tokio::test]
async fn backends_and_nodes_are_drained_and_undrained() {
    let lab = Lab::new();
    let client = lab.client();
    for text in ["10.0.0.1:8080", "[2001:db8::1]:80", "node-a"] {
        let target: DrainTarget = text.parse().expect("a target");
        assert_eq!(client.drain(&target).await.expect("it drains").drained, [text]);
        assert_eq!(client.status().await.expect("it answers").drained, [text]);
        assert_eq!(client.undrain(&target).await.expect("it is put back").drained, [] as [&str; 0]);
        let error = client.undrain(&target).await.expect_err("it is not drained any more");
        assert!(matches!(error, ClientError::Refused { status: 404, .. }), "{error}");
    }
}

#[tokio::test]
async fn a_change_whose_sender_gave_up_is_refused_and_not_made() {
    let lab = Lab::new();
    let client = lab.client();
    let error =
        client.request(Method::POST, "/v1/drain?target=node-a&before=1").await.expect_err("it is late");
    assert!(matches!(error, ClientError::Refused { status: 503, .. }), "{error}");
    assert!(error.to_string().contains("it was not made"), "{error}");
    assert_eq!(client.status().await.expect("it answers").drained, [] as [&str; 0]);
    let later = format!("/v1/drain?target=node-a&before={}", u64::MAX);
    client.request(Method::POST, &later).await.expect("it is in time");
    assert_eq!(client.status().await.expect("it answers").drained, ["node-a"]);
}

#[tokio::test(start_paused = true)]
async fn a_change_that_times_out_is_reported_as_possibly_made() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tidegate.sock");
    // It accepts no connection, like a stopped process.
    let stopped = std::os::unix::net::UnixListener::bind(&path).expect("it binds");
    let client = Client::new(&path);
    let target: DrainTarget = "node-a".parse().expect("a target");
    let error = client.drain(&target).await.expect_err("nobody answers").to_string();
    assert!(
        error.contains("did not answer within 30 s")
            && error.contains("the change has already started, or it will not happen"),
        "{error}"
    );
    let error = client.status().await.expect_err("nobody answers").to_string();
    assert!(error.ends_with("did not answer within 30 s"), "{error}");

    let (mut connection, _) = stopped.accept().expect("the first request waits");
    let mut request = String::new();
    std::io::Read::read_to_string(&mut connection, &mut request).expect("the client has closed it");
    assert!(request.starts_with("POST /v1/drain?target=node-a&before="), "{request}");
}

#[test]
fn addresses_of_a_removed_pool_count_as_assigned_while_services_own_them() {
    let usage = tidegate_policy::pools::PoolUsage {
        pool: "old".into(),
        outside: 2,
        users: 1,
        removed: true,
        ..tidegate_policy::pools::PoolUsage::default()
    };
    let view = PoolView::from(&usage);
    assert_eq!((view.total, view.assigned, view.outside, view.free), (0, 2, 2, 0));
}

#[tokio::test]
async fn the_gateway_itself_is_drained_and_its_refusal_is_a_conflict() {
    let lab = Lab::new();
    let client = lab.client();
    let answer = client.drain_gateway().await.expect("it drains");
    assert_eq!(answer, Daemon::default().drain_gateway().await.expect("it drains"));
    let error = client.undrain_gateway().await.expect_err("it is annotated");
    assert!(matches!(error, ClientError::Refused { status: 409, .. }), "{error}");
}

#[tokio::test]
async fn errors_of_a_request_say_what_is_accepted() {
    let lab = Lab::new();
    let client = lab.client();
    for (method, uri, status, accepted) in [
        ("GET", "/v1/nothing", 404, "accepted: GET /v1/status"),
        ("GET", "/", 404, "accepted: GET /v1/status"),
        ("POST", "/v1/status", 405, "accepted: GET /v1/status"),
        ("GET", "/v1/drain", 405, "accepted: POST /v1/drain"),
        ("POST", "/v1/drain", 400, "accepted: target=ADDRESS:PORT"),
        ("POST", "/v1/drain?target=a%20b", 400, "accepted: ADDRESS:PORT"),
        ("POST", "/v1/drain?gateway=yes", 400, "accepted: gateway=true"),
        ("POST", "/v1/drain?target=node-a&before=soon", 400, "accepted: NANOSECONDS"),
        ("POST", "/v1/undrain?gateway=true&target=node-a", 400, "accepted: one of them"),
        ("GET", "/v1/explain?src=1.2.3.4:5&dst=1.2.3.4:5", 400, "accepted: proto=tcp"),
        ("GET", "/v1/explain?proto=icmp&src=1.2.3.4:5&dst=1.2.3.4:5", 400, "accepted: tcp, udp, sctp"),
        ("GET", "/v1/explain?proto=tcp&src=1.2.3.4&dst=1.2.3.4:5", 400, "accepted: 192.0.2.1:80"),
    ] {
        let error = client.request(method.parse().expect("a method"), uri).await.expect_err("it is refused");
        let ClientError::Refused { status: received, message } = error else { panic!("{error}") };
        assert_eq!(received, status, "{method} {uri}");
        assert!(message.contains(accepted), "{message}");
    }
}

#[tokio::test]
async fn explain_carries_the_packet_of_either_family() {
    let lab = Lab::new();
    let packet = Packet {
        protocol: "udp".parse().expect("a protocol"),
        source: "[2001:db8::9]:1000".parse().expect("an address"),
        destination: "[2001:db8::1]:53".parse().expect("an address"),
    };
    let error = lab.client().explain(&packet).await.expect_err("no snapshot").to_string();
    assert_eq!(error, "no snapshot yet for UDP to [2001:db8::1]:53");
    let mapped = Packet { destination: "[::ffff:203.0.113.1]:53".parse().expect("an address"), ..packet };
    let error = lab.client().explain(&mapped).await.expect_err("no snapshot").to_string();
    assert_eq!(error, "no snapshot yet for UDP to 203.0.113.1:53");
}

#[tokio::test]
async fn only_the_owner_can_open_the_socket_and_the_server_removes_it() {
    let lab = Lab::new();
    let path = Lab::socket(&lab.directory);
    let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let beside = std::fs::read_dir(path.parent().expect("a directory")).expect("it is there").count();
    assert_eq!(beside, 1, "nothing is left beside it");
    drop(lab.server);
    assert!(!path.exists());
    let error = Client::new(&path).status().await.expect_err("nobody answers");
    assert!(error.to_string().starts_with(&format!("no gateway answers at {}", path.display())), "{error}");
}

#[tokio::test]
async fn a_removed_socket_is_bound_again_and_the_server_removes_it() {
    let lab = Lab::new();
    let path = Lab::socket(&lab.directory);
    std::fs::remove_file(&path).expect("it is there");
    let answers = async {
        while Client::new(&path).status().await.is_err() {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), answers).await.expect("the gateway answers again");
    let mode = std::fs::metadata(&path).expect("it is there").permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    drop(lab.server);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_stale_socket_is_replaced_and_a_live_one_is_not() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("tidegate.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("it binds")); // The file stays, as after a killed daemon.
    let first = Server::start(&path, Arc::new(Daemon::default())).expect("a stale one is replaced");
    let error = Server::start(&path, Arc::new(Daemon::default())).expect_err("a living one is not");
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse);
    assert!(Client::new(&path).status().await.is_ok(), "the first one still answers");
    drop(first);

    std::fs::write(&path, "precious").expect("it is written");
    let error = Server::start(&path, Arc::new(Daemon::default())).expect_err("no socket, not touched");
    assert_eq!(error.kind(), std::io::ErrorKind::AlreadyExists);
    assert_eq!(std::fs::read_to_string(&path).expect("it is there"), "precious");
}
