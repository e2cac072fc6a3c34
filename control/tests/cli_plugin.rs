//! `kubectl tidegate ...`: kubectl finds a link named `kubectl-tidegate` to the binary in PATH.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use serde_json::json;
use test_apiserver::{Options, TestApiServer};

#[test]
fn a_link_named_kubectl_tidegate_is_a_plugin_that_calls_itself_so() {
    let directory = tempfile::tempdir().expect("a directory");
    let plugin = directory.path().join("kubectl-tidegate");
    symlink(env!("CARGO_BIN_EXE_tidegate"), &plugin).expect("a link");
    let help = Command::new(&plugin).args(["services", "--help"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success() && text.contains("Usage: kubectl tidegate services"), "{text}");
    // Queries work as usual; this daemon does not exist.
    let socket = directory.path().join("none.sock");
    let asked = Command::new(&plugin).args(["pools", "--socket"]).arg(socket).output().expect("it runs");
    let text = String::from_utf8_lossy(&asked.stderr);
    assert_eq!(asked.status.code(), Some(1));
    assert!(text.starts_with("Error from gateway: "), "{text}");
    let plain = Command::new(env!("CARGO_BIN_EXE_tidegate")).arg("--help").output().expect("it runs");
    assert!(String::from_utf8_lossy(&plain.stdout).contains("Usage: tidegate "));
}

#[test]
fn from_a_workstation_the_plugin_asks_the_api_server() {
    let server = TestApiServer::start(Options::default()).expect("a free port");
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/kubernetes/crds");
    for file in ["tidegate.dev_addresspools.yaml", "tidegate.dev_gatewaystatuses.yaml"] {
        server.apply(&std::fs::read_to_string(crds.join(file)).expect("readable")).expect("legal");
    }
    let condition = |kind: &str, status: &str, message: &str| {
        json!({
            "type": kind, "status": status, "reason": "Some", "message": message,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        })
    };
    let objects = [
        json!({
            "apiVersion": "tidegate.dev/v1alpha1", "kind": "GatewayStatus", "metadata": {"name": "edge-1"},
            "spec": {"gateway": "edge-1"},
            "status": {
                "leader": true, "services": 3, "version": "9.9", "lastHeartbeat": "2026-01-01T00:00:00Z",
                "conditions": [condition("Ready", "Unknown", "no heartbeat from the gateway")],
            },
        }),
        json!({
            "apiVersion": "tidegate.dev/v1alpha1", "kind": "AddressPool", "metadata": {"name": "public"},
            "spec": {"addresses": ["203.0.113.0/28"]},
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
            "spec": {"type": "LoadBalancer", "loadBalancerClass": "tidegate.dev/gateway", "ports": [{"port": 80}]},
            "status": {
                "loadBalancer": {"ingress": [{"ip": "203.0.113.5"}]},
                "conditions": [condition("tidegate.dev/Programmed", "False", "not on edge-2")],
            },
        }),
        json!({
            "apiVersion": "v1", "kind": "Service", "metadata": {"name": "another", "namespace": "shop"},
            "spec": {"ports": [{"port": 80}]},
        }),
    ];
    server.load(objects.into()).expect("legal objects");
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = server.kubeconfig(directory.path()).expect("a file");
    let ask = |words: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        let ran = command.args(words).arg("--kubeconfig").arg(&kubeconfig).output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
    };
    let has = |text: &str, words: &[&str]| words.iter().all(|word| text.contains(word));
    let (code, out, err) = ask(&["status", "-o", "wide"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(has(&out, &["edge-1", "Unknown", "yes", "9.9", "Ready: Unknown no heartbeat"]), "{out}");
    let (code, out, err) = ask(&["services", "-o", "wide"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(has(&out, &["shop", "web", "203.0.113.5", "80/TCP", "False", "not on edge-2"]), "{out}");
    assert!(!out.contains("another"), "{out}");
    let (code, out, _) = ask(&["pools"]);
    assert!(code == Some(0) && has(&out, &["public", "203.0.113.0/28"]), "{out}");
    // The definition is deleted while a pool is in use.
    let hold =
        |pool: &mut serde_json::Value| pool["metadata"]["finalizers"] = json!(["tidegate.dev/cleanup"]);
    server.edit("tidegate.dev/v1alpha1", "AddressPool", "", "public", hold).expect("legal");
    server.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "addresspools.tidegate.dev");
    for command in ["pools", "status"] {
        let (code, _, err) = ask(&[command]);
        assert_eq!(code, Some(0));
        assert!(err.contains("the definition of AddressPool is being deleted"), "{command}: {err}");
    }
    let (code, _, err) = ask(&["flows"]);
    assert!(code == Some(1) && err.contains("only a gateway has flows"), "{err}");
}
