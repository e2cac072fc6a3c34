//! The conformance suite of the Gateway API, run against a gateway with clients and servers (`make conformance`).
//!
//! The suite runs on the client's host of the lab, so it reaches VIPs only through the gateway. The backends are Pods of
//! the [`crate::kubelet`], made by a real kube-controller-manager. `docs/conformance/README.md` describes what is run.

use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Gateway, GatewayOptions};

use crate::api::{Needs, needs};
use crate::kubelet;
use crate::needs;
use crate::world::{World, text};

/// The maximum duration of the suite. Its own limits for each condition are at most three minutes.
const SUITE: Duration = Duration::from_secs(3600);
/// The name of the GatewayClass.
const CLASS: &str = "tidegate";

/// Starts a gateway between the client and the Pods.
fn gateway(world: &World) -> Gateway {
    let lab = world.lab();
    world.api.kubeconfig_for(lab.directory(), &world.api.token()).expect("kubeconfig written");
    let kubeconfig = Some(lab.directory().join("kubeconfig"));
    Gateway::configure(lab, &GatewayOptions { kubeconfig, ..GatewayOptions::default() }).expect("written");
    let gateway = Gateway::launch(lab).unwrap_or_else(|error| panic!("{error:#}"));
    let is_ready = world.eventually(|| (gateway.probe("/readyz") == Some(200)).then_some(()));
    assert!(is_ready.is_some(), "the gateway is not ready:\n{}", gateway.log_tail(30));
    gateway
}

/// The directory of the programs.
fn programs() -> PathBuf {
    needs::programs().expect("a test without programs is skipped")
}

const WEB: &str = r#"
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
        - name: echo
          image: registry.k8s.io/gateway-api/echo-basic:v1
          env:
            - {name: POD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec:
  type: LoadBalancer
  loadBalancerClass: tidegate.dev/gateway
  allocateLoadBalancerNodePorts: false
  selector: {app: web}
  ports: [{port: 80, targetPort: 3000}]
"#;

/// The Pod that answers a new connection of the client; `None` if none does.
fn answering_pod(world: &World, vip: IpAddr) -> Option<String> {
    world.lab().client().enter(|| {
        let limit = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(vip, 80), limit).ok()?;
        stream.set_read_timeout(Some(limit)).ok()?;
        write!(stream, "GET / HTTP/1.1\r\nHost: web\r\nConnection: close\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let (_, body) = answer.split_once("\r\n\r\n")?;
        let body: serde_json::Value = serde_json::from_str(body).ok()?;
        Some(text(&body["pod"]))
    })
}

#[test]
fn pods_of_a_deployment_serve_through_a_load_balancer() {
    needs!(Needs::RealServer, Needs::Pods);
    let world = World::new();
    world.api.run_workload_controllers();
    let gateway = gateway(&world);
    kubelet::while_running(world.lab(), world.api.admin(), &programs(), || {
        world.apply(WEB);
        let vip = world.until("a VIP", || {
            let service = world.api.get("v1", "Service", "shop", "web")?;
            service["status"]["loadBalancer"]["ingress"][0]["ip"].as_str()?.parse::<IpAddr>().ok()
        });
        let mut pods: Vec<String> = Vec::new();
        world.until("answers of both Pods", || {
            let pod = answering_pod(&world, vip)?;
            if !pods.contains(&pod) {
                pods.push(pod);
            }
            (pods.len() == 2).then_some(())
        });
        let scale = |deployment: &mut serde_json::Value| deployment["spec"]["replicas"] = 1.into();
        world.api.edit("apps/v1", "Deployment", "shop", "web", scale).expect("legal");
        let left = world.until("one Pod", || {
            let pods = world.api.list("v1", "Pod", "shop");
            (pods.len() == 1).then(|| text(&pods[0]["metadata"]["name"]))
        });
        assert!(pods.contains(&left), "{left} is one of {pods:?}");
        world.until("ten answers of that Pod in a row", || {
            (0..10).all(|_| answering_pod(&world, vip).is_some_and(|pod| pod == left)).then_some(())
        });
        assert!(world.api.delete("apps/v1", "Deployment", "shop", "web"));
        world.until("no Pods", || world.api.list("v1", "Pod", "shop").is_empty().then_some(()));
        assert_eq!(answering_pod(&world, vip), None);
    });
    drop(gateway);
}

#[test]
fn gateway_api_suite() {
    needs!(Needs::RealServer, Needs::Pods);
    let output = std::env::var_os("TIDEGATE_CONFORMANCE_OUTPUT").map(PathBuf::from);
    let output = output.expect("TIDEGATE_CONFORMANCE_OUTPUT: make conformance sets it");
    let world = World::new();
    world.api.run_workload_controllers();
    install_definitions(&world, &programs().join("crds"));
    let gateway = gateway(&world);
    world.apply(&format!(
        "{{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {{name: {CLASS}}}, \
         spec: {{controllerName: tidegate.dev/gateway}}}}"
    ));
    world.until("the supported features", || {
        let class = world.api.get("gateway.networking.k8s.io/v1", "GatewayClass", "", CLASS)?;
        class["status"]["supportedFeatures"].as_array().filter(|features| !features.is_empty()).map(|_| ())
    });
    let client = world.lab().client();
    let _forwarder = world.api.reached_from(client);
    let kubeconfig = world.api.kubeconfig(&output).expect("kubeconfig written");
    let ended = kubelet::while_running(world.lab(), world.api.admin(), &programs(), || {
        let arguments = suite_arguments(&kubeconfig, &output);
        let suite = LabProcess::start(client, &output, "suite", "/usr/bin/env", &arguments);
        suite.expect("the suite starts").wait(SUITE)
    });
    std::fs::write(output.join("gateway.log"), gateway.log()).expect("written");
    let ended = ended.unwrap_or_else(|error| panic!("{error:#}"));
    assert!(ended.success(), "the suite failed: {}", output.join("suite.log").display());
}

/// Installs the definitions of the Gateway API.
fn install_definitions(world: &World, directory: &Path) {
    let entries = std::fs::read_dir(directory).unwrap_or_else(|e| panic!("{}: {e}", directory.display()));
    for entry in entries {
        world.apply(&std::fs::read_to_string(entry.expect("readable").path()).expect("readable"));
    }
}

/// The arguments of the suite; `TIDEGATE_CONFORMANCE_ARGS` adds some, such as `-run-test=UDPRoute`.
fn suite_arguments(kubeconfig: &Path, output: &Path) -> Vec<String> {
    let mut arguments = vec![
        format!("KUBECONFIG={}", kubeconfig.display()),
        programs().join("conformance.test").display().to_string(),
        "-test.run=^TestConformance$".into(),
        "-test.v".into(),
        format!("-test.timeout={}s", SUITE.as_secs()),
        format!("-gateway-class={CLASS}"),
        "-conformance-profiles=GATEWAY-TCP,GATEWAY-UDP".into(),
        // Tests share Gateways of a namespace, and machines that run this are small.
        "-disable-parallel-tests".into(),
        format!("-report-output={}", output.join("report.yaml").display()),
    ];
    let more = std::env::var("TIDEGATE_CONFORMANCE_ARGS").unwrap_or_default();
    arguments.extend(more.split_whitespace().map(str::to_owned));
    arguments
}
