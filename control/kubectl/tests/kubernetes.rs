//! The plugin with the test API server.
//!
//! `--test kubernetes` of the workspace selects these tests beside those of the gateway, and so builds the plugin for
//! both.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use test_apiserver::{Options, TestApiServer};

const PLUGIN: &str = env!("CARGO_BIN_EXE_kubectl-tidegate");

#[test]
fn the_plugin_calls_itself_as_kubectl_does() {
    let directory = tempfile::tempdir().expect("a directory");
    let help = Command::new(PLUGIN).args(["services", "--help"]).output().expect("it runs");
    let text = String::from_utf8_lossy(&help.stdout);
    assert!(help.status.success() && text.contains("Usage: kubectl tidegate services"), "{text}");
    assert!(text.contains("\n  kubectl tidegate services shop/web"), "so do its examples: {text}");
    // Queries work as usual; this daemon does not exist.
    let socket = directory.path().join("none.sock");
    let output = Command::new(PLUGIN).args(["pools", "--socket"]).arg(socket).output().expect("it runs");
    let text = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert!(text.starts_with("Error from gateway: "), "{text}");
}

/// An API server with our definitions.
fn server() -> TestApiServer {
    let server = TestApiServer::start(Options::default()).expect("a free port");
    let crds = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes/crds");
    for file in ["tidegate.dev_addresspools.yaml", "tidegate.dev_gatewaystatuses.yaml"] {
        server.apply(&std::fs::read_to_string(crds.join(file)).expect("readable")).expect("legal");
    }
    // The namespace of the Lease.
    server.apply("{apiVersion: v1, kind: Namespace, metadata: {name: tidegate-system}}").expect("legal");
    server
}

/// Exit code, output and errors of a command with this kubeconfig.
fn run(kubeconfig: &Path, words: &[&str]) -> (Option<i32>, String, String) {
    let mut command = Command::new(PLUGIN);
    command.args(words).arg("--kubeconfig").arg(kubeconfig).stdin(Stdio::null());
    let ran = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    (ran.status.code(), text(&ran.stdout), text(&ran.stderr))
}

/// An AddressPool with the label `team`.
fn pool(name: &str, team: &str) -> serde_json::Value {
    json!({
        "apiVersion": "tidegate.dev/v1alpha1", "kind": "AddressPool",
        "metadata": {"name": name, "labels": {"team": team}, "finalizers": ["tidegate.dev/cleanup"]},
        "spec": {"addresses": ["203.0.113.0/28"]},
    })
}

#[test]
fn the_plugin_queries_the_api_server_from_a_workstation() {
    let server = server();
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
    let run = |words: &[&str]| run(&kubeconfig, words);
    let has = |text: &str, words: &[&str]| words.iter().all(|word| text.contains(word));
    let (code, out, err) = run(&["status", "-o", "wide"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(has(&out, &["edge-1", "Unknown", "yes", "9.9", "Ready: Unknown no heartbeat"]), "{out}");
    let (code, out, err) = run(&["services", "-o", "wide"]);
    assert_eq!((code, err.as_str()), (Some(0), ""));
    assert!(has(&out, &["shop", "web", "203.0.113.5", "80/TCP", "False", "not on edge-2"]), "{out}");
    assert!(!out.contains("another"), "{out}");
    let (code, out, _) = run(&["pools"]);
    assert!(code == Some(0) && has(&out, &["public", "203.0.113.0/28"]), "{out}");
    // The definition is deleted while a pool is in use.
    let add_finalizer =
        |pool: &mut serde_json::Value| pool["metadata"]["finalizers"] = json!(["tidegate.dev/cleanup"]);
    server.edit("tidegate.dev/v1alpha1", "AddressPool", "", "public", add_finalizer).expect("legal");
    server.delete("apiextensions.k8s.io/v1", "CustomResourceDefinition", "", "addresspools.tidegate.dev");
    for command in ["pools", "status"] {
        let (code, _, err) = run(&[command]);
        assert_eq!(code, Some(0));
        assert!(err.contains("the definition of AddressPool is being deleted"), "{command}: {err}");
    }
    let (code, _, err) = run(&["flows"]);
    assert!(code == Some(2) && err.contains("unexpected argument '--kubeconfig'"), "{err}");
    // "" is the default kubeconfig, here that of the variable.
    let default = Command::new(PLUGIN)
        .args(["services", "shop/web", "--kubeconfig", ""])
        .env("KUBECONFIG", &kubeconfig)
        .env_remove("TIDEGATE_SOCKET")
        .output()
        .expect("it runs");
    assert!(default.status.success(), "{}", String::from_utf8_lossy(&default.stderr));
    assert!(String::from_utf8_lossy(&default.stdout).contains("203.0.113.5"));
    let (code, _, err) = run(&["services", "other/web"]);
    assert!(code == Some(1) && err.contains("services \"other/web\" not found"), "{err}");
}

#[test]
fn the_plugin_selects_by_names_labels_and_context() {
    let server = server();
    server.load(vec![pool("one", "a"), pool("two", "b")]).expect("legal objects");
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = server.kubeconfig(directory.path()).expect("a file");
    let shown = |words: &[&str]| {
        let (code, out, err) = run(&kubeconfig, words);
        let names = out.lines().skip(1).filter_map(|line| line.split(' ').next()).map(str::to_owned);
        (code, names.collect::<Vec<_>>(), err)
    };
    let names = |names: &[&str]| {
        (Some(0), names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>(), String::new())
    };
    assert_eq!(shown(&["pools"]), names(&["one", "two"]));
    assert_eq!(shown(&["pools", "two"]), names(&["two"]));
    assert_eq!(shown(&["pools", "-l", "team=a"]), names(&["one"]));
    assert_eq!(shown(&["pools", "--selector", "team in (a, b)"]), names(&["one", "two"]));
    let (code, found, err) = shown(&["pools", "one", "three"]);
    assert_eq!((code, found), (Some(1), vec!["one".to_owned()]));
    assert!(err.contains("addresspools \"three\" not found"), "{err}");
    let (code, _, err) = shown(&["status", "edge-9"]);
    assert!(code == Some(1) && err.contains("gatewaystatuses \"edge-9\" not found"), "{err}");
    // A context other than the current one.
    let text = std::fs::read_to_string(&kubeconfig).expect("readable");
    let mut config: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let context = std::mem::replace(&mut config["current-context"], json!("gone"));
    let context = context.as_str().expect("a name");
    std::fs::write(&kubeconfig, config.to_string()).expect("ours");
    let (code, _, err) = shown(&["pools"]);
    assert!(code == Some(1) && err.contains("gone"), "{err}");
    assert_eq!(shown(&["pools", "--context", context]), names(&["one", "two"]));
    let (code, _, err) = shown(&["pools", "--context", "none-such"]);
    assert!(code == Some(1) && err.contains("none-such"), "{err}");
}

#[test]
fn the_plugin_prints_changes_with_watch() {
    let server = server();
    server.load(vec![pool("one", "a"), pool("two", "b")]).expect("legal objects");
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = server.kubeconfig(directory.path()).expect("a file");
    let mut command = Command::new(PLUGIN);
    command.args(["pools", "-w", "-o", "wide", "-l", "team=a", "--kubeconfig"]).arg(&kubeconfig);
    let mut child = command.stdout(Stdio::piped()).spawn().expect("it runs");
    let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines().map_while(Result::ok);
    assert!(lines.next().expect("headers").starts_with("NAME "));
    assert!(lines.next().expect("a row").starts_with("one "));
    let edit = |name: &str, addresses: &str| {
        let edit = |pool: &mut serde_json::Value| pool["spec"]["addresses"] = json!([addresses]);
        server.edit("tidegate.dev/v1alpha1", "AddressPool", "", name, edit).expect("legal");
    };
    edit("two", "192.0.2.0/28");
    edit("one", "198.51.100.0/28");
    let row = lines.next().expect("a change");
    assert!(row.starts_with("one ") && row.contains("198.51.100.0/28"), "{row}");
    assert!(server.delete("tidegate.dev/v1alpha1", "AddressPool", "", "one"));
    let row = lines.next().expect("a change");
    assert!(row.contains("being deleted"), "{row}");
    child.kill().expect("it runs");
    child.wait().expect("it ends");
}

#[test]
fn uninstall_without_a_terminal_needs_yes() {
    let server = server();
    server.load(vec![pool("one", "a")]).expect("legal objects");
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = server.kubeconfig(directory.path()).expect("a file");
    let has_finalizer = || {
        let pool = server.get("tidegate.dev/v1alpha1", "AddressPool", "", "one").expect("it still exists");
        pool["metadata"]["finalizers"].as_array().is_some_and(|list| !list.is_empty())
    };
    let (code, _, err) = run(&kubeconfig, &["uninstall"]);
    assert!(code == Some(1) && err.contains("not a terminal; accepted: --yes"), "{err}");
    assert_eq!(run(&kubeconfig, &["uninstall", "--dry-run"]).0, Some(0));
    assert!(has_finalizer());
    let (code, _, err) = run(&kubeconfig, &["uninstall", "--yes"]);
    assert!(code == Some(0) && !has_finalizer(), "{err}");
}

/// The block of `docs/commands.md` below a comment.
fn block_below(comment: &str) -> String {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/commands.md");
    let text = std::fs::read_to_string(page).expect("the page exists");
    let (_, below) = text.split_once(&format!("<!-- {comment} -->\n```")).expect("the page has the comment");
    let (_, block) = below.split_once('\n').expect("a language");
    block.split_once("```").expect("the block ends").0.to_owned()
}

#[test]
fn the_tour_of_the_commands_works_from_a_workstation() {
    let server = server();
    let pool = pool("public", "infra");
    let service = json!({
        "apiVersion": "v1", "kind": "Service", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"type": "LoadBalancer", "loadBalancerClass": "tidegate.dev/gateway", "ports": [{"port": 80}]},
        "status": {
            "loadBalancer": {"ingress": [{"ip": "203.0.113.5"}]},
            "conditions": [{
                "type": "tidegate.dev/Programmed", "status": "True", "reason": "Some", "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }],
        },
    });
    server.load(vec![pool, service]).expect("legal objects");
    let directory = tempfile::tempdir().expect("a directory");
    let kubeconfig = server.kubeconfig(directory.path()).expect("a file");
    let manifest = block_below("file: gateway /root/metallb.yaml");
    std::fs::write(directory.path().join("metallb.yaml"), manifest).expect("it is written");
    // kubectl runs the plugin by its name.
    let commands = block_below("not run: the tests of the plugin run it with an API server");
    let script = format!("kubectl() {{ shift; \"$PLUGIN\" \"$@\"; }}\n{commands}");
    let mut bash = Command::new("bash");
    bash.args(["-euo", "pipefail", "-c", &script]).current_dir(directory.path()).stdin(Stdio::null());
    let ran = bash.env("KUBECONFIG", kubeconfig).env("PLUGIN", PLUGIN).output().expect("bash runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&ran.stdout), text(&ran.stderr));
    assert!(ran.status.success(), "{out}\n{err}");
    for shown in ["203.0.113.5", "203.0.113.0/28", "converted: pools 1"] {
        assert!(out.contains(shown) || err.contains(shown), "{shown} in\n{out}\n{err}");
    }
    for written in ["_kubectl-tidegate", "crds/tidegate.dev_addresspools.yaml", "man"] {
        assert!(directory.path().join(written).exists(), "{written}");
    }
}
