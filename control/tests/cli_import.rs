//! `tidegate import`, with the built binary: a gateway accepts what it writes.

mod cli_support;

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cli_support::{GATEWAY, Site};
use serde_json::{Value, json};
use test_apiserver::{Options, TestApiServer};

/// The sections that an operator adds to `gateway.yaml`.
const MACHINE: &str = r#"
metadata: {name: edge-1}
dataplane:
  cores: [1]
  interfaces: [{name: uplink, device: "0000:03:00.0", addresses: ["192.0.2.2/24", "2001:db8::2/64"]}]
  routes: [{to: "0.0.0.0/0", via: "192.0.2.254"}, {to: "::/0", via: "2001:db8::254"}]
  snatAddresses: ["192.0.2.3", "2001:db8::3"]
"#;

/// The manifests of all cases, with their load balancers.
fn cases() -> Vec<(&'static str, PathBuf)> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("import/tests/cases");
    let mut cases = Vec::new();
    for vendor in ["metallb", "kube-vip", "cilium"] {
        let files = fs::read_dir(directory.join(vendor)).expect("a directory for each load balancer");
        let paths = files.map(|file| file.expect("a file").path());
        cases.extend(
            paths.filter(|path| path.extension().is_some_and(|e| e == "yaml")).map(|path| (vendor, path)),
        );
    }
    assert!(cases.len() >= 10, "{cases:?}");
    cases
}

/// Creates the files with passwords that the configuration names.
fn write_passwords(config: &str, directory: &Path) {
    let config: Value = serde_saphyr::from_str(config).expect("YAML");
    let peers = config.pointer("/announce/bgp/peers").and_then(Value::as_array);
    for name in peers.into_iter().flatten().filter_map(|peer| peer["passwordFile"].as_str()) {
        let file = fs::File::options().write(true).create_new(true).mode(0o600).open(directory.join(name));
        file.and_then(|mut file| file.write_all(b"a-long-secret\n")).expect("it is written");
    }
}

#[test]
fn a_gateway_accepts_every_converted_case() {
    for (vendor, case) in cases() {
        let site = Site::new("", &[]);
        let ran = site.run(&["import", vendor, case.to_str().expect("text"), "-o", "out"]);
        assert_eq!(ran.code, 0, "{}", ran.err);
        let out = site.path("out");
        let written = fs::read_to_string(out.join("gateway.yaml")).expect("it is written") + MACHINE;
        write_passwords(&written, &out);
        fs::write(out.join("gateway.yaml"), &written).expect("it is writable");
        let loaded = tidegate_model::config::load(&out.join("gateway.yaml"));
        assert!(!loaded.report.has_errors(), "{}:\n{}{written}", case.display(), loaded.report);
        // Without an API server: the pools and the Services of the case in a directory, and no Leases.
        let offline = written
            .replace("kubernetes: {}", "directory: {path: manifests}")
            .replace("mode: lease", "mode: always");
        fs::write(out.join("gateway.yaml"), &offline).expect("it is writable");
        fs::create_dir(out.join("manifests")).expect("it is new");
        let text = fs::read_to_string(&case).expect("it is readable");
        let objects: Vec<Value> = serde_saphyr::from_multiple(&text).expect("YAML");
        for (n, service) in objects.iter().filter(|object| object["kind"] == "Service").enumerate() {
            fs::write(out.join(format!("manifests/{n}.yaml")), service.to_string()).expect("it is writable");
        }
        if out.join("pools.yaml").exists() {
            fs::copy(out.join("pools.yaml"), out.join("manifests/pools.yaml")).expect("it is writable");
        }
        let checked = site.run(&["check", "-c", "out/gateway.yaml"]);
        assert_eq!(checked.code, 0, "{}:\n{}{offline}", case.display(), checked.out);
    }
}

const SERVICE: &str = "apiVersion: v1
kind: Service
metadata: {name: dns, namespace: shop, annotations: {tidegate.dev/load-balancer-ips: 203.0.113.9}}
spec:
  type: LoadBalancer
  loadBalancerSourceRanges: [198.51.100.0/24]
  ports: [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 53}]
---
";
const SLICE: &str = "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: dns-1, namespace: shop, labels: {kubernetes.io/service-name: dns}}
addressType: IPv4
ports: [{name: udp, port: 53, protocol: UDP}, {name: tcp, port: 53}]
endpoints: [{addresses: [192.0.2.11]}]
";

#[test]
fn a_service_converted_to_a_gateway_is_served_for_the_same_clients() {
    let site = Site::new(GATEWAY, &[("dns.yaml", &(SERVICE.to_owned() + SLICE))]);
    let ran = site.run(&["import", "services", "manifests/dns.yaml", "-o", "out"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.err.ends_with("converted: Gateways 1, routes 2; fields without a counterpart 1, decisions 2\n")
    );
    // The Service becomes the backend of the routes.
    let inner = SERVICE.replace("  type: LoadBalancer\n  loadBalancerSourceRanges: [198.51.100.0/24]\n", "");
    fs::write(site.path("manifests/dns.yaml"), inner + SLICE).expect("it is writable");
    fs::copy(site.path("out/gateways.yaml"), site.path("manifests/gateways.yaml")).expect("it is writable");
    let checked = site.check();
    assert_eq!(checked.code, 0, "{}", checked.out);
    for (client, expected) in [("198.51.100.7", "192.0.2.11"), ("192.0.2.99", "drop (source_range)")] {
        let src = format!("{client}:40000");
        let flow = ["--proto", "udp", "--src", &src, "--dst", "203.0.113.9:53"];
        let ran = site.run(&[&["explain", "-c", "gateway.yaml"][..], &flow].concat());
        assert!(ran.out.contains(expected), "{client}: {}{}", ran.out, ran.err);
    }
}

const POOL: &str = "apiVersion: metallb.io/v1beta1\nkind: IPAddressPool\nmetadata: {name: a, namespace: metallb-system}\n\
                    spec: {addresses: [198.51.100.0/28], avoidBuggyIPs: false}\n";

#[test]
fn existing_files_are_never_overwritten() {
    let site = Site::new("", &[("a.yaml", POOL)]);
    let import = || site.run(&["import", "metallb", "manifests/a.yaml", "-o", "out"]);
    let first = import();
    let files = ["gateway.yaml", "pools.yaml", "report.txt"];
    assert_eq!(
        (first.code, first.out),
        (0, files.map(|file| format!("wrote out/{file}\n")).concat()),
        "{}",
        first.err
    );
    for left in files {
        // Only one of the files is left.
        for file in files.into_iter().filter(|file| *file != left) {
            fs::remove_file(site.path("out").join(file)).expect("it was written");
        }
        fs::write(site.path("out").join(left), "mine").expect("it is writable");
        let again = import();
        assert_eq!((again.code, again.out.as_str()), (1, ""));
        assert!(
            again.err.contains(&format!("out/{left} exists, and nothing is overwritten")),
            "{}",
            again.err
        );
        assert_eq!(fs::read_dir(site.path("out")).expect("readable").count(), 1);
        assert_eq!(fs::read_to_string(site.path("out").join(left)).expect("readable"), "mine");
        fs::remove_file(site.path("out").join(left)).expect("it is there");
        assert_eq!(import().code, 0);
    }
}

#[test]
fn standard_input_is_read_and_the_result_printed() {
    let site = Site::new("", &[("a.yaml", POOL)]);
    let file = site.run(&["import", "metallb", "manifests/a.yaml"]);
    assert!(
        file.out.starts_with("# Converted by") && file.out.contains("\n---\napiVersion: "),
        "{}",
        file.out
    );
    let input = fs::File::open(site.path("manifests/a.yaml")).expect("it was written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
    let ran = command.args(["import", "metallb", "-"]).stdin(input).output().expect("the binary runs");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), file.out);
    let report = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(report.replace("<stdin>", "manifests/a.yaml"), file.err);
}

#[test]
fn refused_input_writes_nothing_and_exits_with_2() {
    let site = Site::new("", &[("a.yaml", &POOL.replace("/28", "/99"))]);
    let ran = site.run(&["import", "metallb", "manifests/a.yaml", "missing.yaml", "-o", "out"]);
    assert_eq!((ran.code, ran.out.as_str()), (2, ""));
    let starts =
        ["manifests/a.yaml:4:20: error: spec.addresses[0]: ", "missing.yaml:1:1: error: cannot be read: "];
    for (line, start) in ran.err.lines().zip(starts) {
        assert!(line.starts_with(start), "{}", ran.err);
    }
    assert!(
        ran.err.ends_with("nothing was converted: 2 errors\n") && !site.path("out").exists(),
        "{}",
        ran.err
    );
}

#[test]
fn resources_are_read_from_an_api_server() {
    let server = TestApiServer::start(Options::default()).expect("a free port");
    server.apply("{apiVersion: v1, kind: Namespace, metadata: {name: metallb-system}}").expect("legal");
    let definition = json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "ipaddresspools.metallb.io"},
        "spec": {
            "group": "metallb.io", "scope": "Namespaced",
            "names": {"kind": "IPAddressPool", "plural": "ipaddresspools", "singular": "ipaddresspool"},
            "versions": [{
                "name": "v1beta1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}},
            }],
        },
    });
    server.apply(&definition.to_string()).expect("legal");
    server.apply(&POOL.replace("false", "true")).expect("legal");
    let site = Site::new("", &[]);
    let kubeconfig = server.kubeconfig(&site.path("")).expect("it is written");
    let ran = site.run(&["import", "metallb", "--kubeconfig", kubeconfig.to_str().expect("text")]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(ran.out.contains("  addresses:\n  - 198.51.100.1-198.51.100.15\n"), "{}", ran.out);
}
