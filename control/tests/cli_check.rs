//! Runs `tidegate check` as a command: one report names every kind of fault with file, line and accepted values, and
//! the exit code shows whether anything is refused.

mod cli_support;

use cli_support::{GATEWAY, Site, service, slice};

fn web() -> String {
    service("web", "nat", "203.0.113.1")
}

fn web_slice() -> String {
    slice("web", "v4", "IPv4", &["10.0.0.1", "10.0.0.2"])
}

/// A fault: an edit of the text, and the expected report.
struct Fault {
    /// Replaced once by `to`.
    from: &'static str,
    to: &'static str,
    /// The text on the line that the report must name.
    on: &'static str,
    /// The expected parts of the message.
    expected: &'static [&'static str],
}

const fn fault(
    from: &'static str,
    to: &'static str,
    on: &'static str,
    expected: &'static [&'static str],
) -> Fault {
    Fault { from, to, on, expected }
}

fn line_of(text: &str, needle: &str) -> usize {
    1 + text.lines().position(|line| line.contains(needle)).unwrap_or_else(|| panic!("{needle} in\n{text}"))
}

/// Runs `check` with the fault in place of the original, and looks for its message.
fn is_reported(file: &str, original: &str, fault: &Fault, site: impl Fn(&str) -> Site) {
    assert!(original.contains(fault.from), "{} in {file}", fault.from);
    let text = original.replacen(fault.from, fault.to, 1);
    let ran = site(&text).check();
    assert_eq!(ran.code, 2, "{}: {}{}", fault.to, ran.out, ran.err);
    let place = format!("{file}:{}:", line_of(&text, fault.on));
    let message = ran.out.lines().find(|line| {
        line.starts_with(&place)
            && line.contains(": error: ")
            && line.contains("; accepted: ")
            && fault.expected.iter().all(|word| line.contains(word))
    });
    assert!(message.is_some(), "{place} ... {:?} in\n{}", fault.expected, ran.out);
}

#[test]
fn a_sound_site_is_accepted_in_silence() {
    let ran = Site::new(GATEWAY, &[("web.yaml", &web()), ("slice.yaml", &web_slice())]).check();
    assert_eq!((ran.code, ran.out.as_str()), (0, ""), "{}", ran.err);
    assert!(ran.err.contains("ok: 1 Services, 2 service ports"), "{}", ran.err);
}

#[test]
fn every_kind_of_configuration_fault_is_named_with_its_line() {
    for one in [
        fault("v1alpha1", "v2", "apiVersion", &["tidegate.dev/v1alpha1"]),
        fault("cores: [1]", "cores: [1, 1]", "cores", &["cores[0]", "once"]),
        fault("cores: [1]", "core: [1]", "core:", &["core", "cores"]),
        fault("192.0.2.2/24\"", "192.0.2.2/33\"", "192.0.2.2/33", &["192.0.2.2/33"]),
        fault("mac: \"02:00:00:00:00:02\"", "mac: \"02:00\"", "02:00\"", &["02:00:00:00:00:01"]),
        fault("via: \"192.0.2.1\"", "via: \"198.51.100.1\"", "198.51.100.1", &["198.51.100.1"]),
        fault("203.0.113.0/28", "203.0.113.0/99", "203.0.113.0/99", &["CIDR"]),
        fault("autoAssign: true", "autoAssign: maybe", "maybe", &["true", "false"]),
        fault("entriesPerCore: 4096", "entriesPerCore: -1", "entriesPerCore", &["1024"]),
    ] {
        let manifests = [("web.yaml", web()), ("slice.yaml", web_slice())];
        is_reported("gateway.yaml", GATEWAY, &one, |text| {
            Site::new(text, &manifests.each_ref().map(|(name, text)| (*name, text.as_str())))
        });
    }
}

#[test]
fn every_kind_of_manifest_fault_is_named_with_its_line() {
    for one in [
        fault("kind: Service", "kund: Service", "apiVersion", &["kind is missing", "Service"]),
        fault("name: web", "name: Web_1", "Web_1", &["a-z"]),
        fault("port: 80", "port: 0", "port: 0", &["1 to 65535"]),
        fault("port: 80", "port: eighty", "eighty", &["1 to 65535"]),
        fault("protocol: UDP", "protocol: ICMP", "ICMP", &["TCP", "UDP", "SCTP"]),
        fault("name: dns", "name: http", "name: http, port: 53", &["http"]),
        fault("type: LoadBalancer", "type: Loadbalancer", "Loadbalancer", &["LoadBalancer"]),
        fault(
            "forwarding: nat",
            "forwarding: dnat",
            "dnat",
            &["dsr-l2, dsr-ipip, dsr-gue, dsr-gre, dsr-geneve, dsr-dscp, nat, fullnat"],
        ),
        fault("forwarding: nat", "forwarding: dsr-dscp", "dsr-dscp", &["needs tidegate.dev/dscp"]),
        fault("forwarding: nat", "max-bandwidth: 1X", "max-bandwidth", &["1M to 100G"]),
        fault("forwarding: nat", "max-connections: some", "max-connections", &["1 to 1000000000"]),
        fault("\"203.0.113.1\"", "\"198.51.100.9\"", "198.51.100.9", &["198.51.100.9"]),
        fault("spec:\n", "spec:\n  loadBalancerSourceRanges: [10/8]\n", "[10/8]", &["10/8"]),
        fault("spec:\n", "spec:\n  externalIPs: [8.8.8.8]\n", "8.8.8.8", &["8.8.8.8"]),
        fault("spec:\n", "spec:\n  sessionAffinity: Client\n", "Client", &["ClientIP", "None"]),
        fault("ports:", "ports: [", "name: http", &["not YAML"]),
    ] {
        let slice = web_slice();
        is_reported("manifests/web.yaml", &web(), &one, |text| {
            Site::new(GATEWAY, &[("web.yaml", text), ("slice.yaml", &slice)])
        });
    }
}

#[test]
fn endpoint_faults_are_named_with_their_line() {
    for one in [
        fault("10.0.0.1", "10.0.0.256", "10.0.0.256", &["10.0.0.256"]),
        fault("IPv4", "IPv5", "IPv5", &["IPv4", "IPv6"]),
        fault("port: 80", "port: 70000", "70000", &["0 to 65535"]),
    ] {
        let web = web();
        is_reported("manifests/slice.yaml", &web_slice(), &one, |text| {
            Site::new(GATEWAY, &[("web.yaml", &web), ("slice.yaml", text)])
        });
    }
}

#[test]
fn configuration_and_manifest_faults_are_in_one_sorted_report() {
    let gateway = GATEWAY.replace("cores: [1]", "cores: []");
    let (web, slice) = (web().replace("port: 80", "port: 0"), web_slice().replace("IPv4", "IPv5"));
    let ran = Site::new(&gateway, &[("web.yaml", &web), ("slice.yaml", &slice)]).check();
    assert_eq!(ran.code, 2);
    let files: Vec<&str> = ran.out.lines().filter_map(|line| line.split(':').next()).collect();
    let mut sorted = files.clone();
    sorted.sort_unstable();
    assert_eq!(files, sorted);
    sorted.dedup();
    assert_eq!(sorted, ["gateway.yaml", "manifests/slice.yaml", "manifests/web.yaml"], "{}", ran.out);
}

#[test]
fn a_configuration_fault_neither_hides_nor_causes_manifest_faults() {
    let gateway = GATEWAY.replace("203.0.113.0/28", "203.0.113.0/99");
    let web = web().replace("forwarding: nat", "forwarding: dnat");
    let ran = Site::new(&gateway, &[("web.yaml", &web), ("slice.yaml", &web_slice())]).check();
    assert_eq!(ran.code, 2, "{}", ran.out);
    let errors: Vec<&str> = ran.out.lines().filter(|line| line.contains(": error: ")).collect();
    let [pool, mode] = errors[..] else { panic!("{}", ran.out) };
    assert!(pool.starts_with("gateway.yaml:") && pool.contains("203.0.113.0/99"), "{}", ran.out);
    assert!(mode.starts_with("manifests/web.yaml:") && mode.contains("dnat"), "{}", ran.out);
}

#[test]
fn explain_names_the_node_without_a_local_endpoint() {
    let gateway = GATEWAY.replace("pools:", "node: {name: n1}\npools:");
    let web = web().replace("spec:\n", "spec:\n  externalTrafficPolicy: Local\n");
    let slice =
        web_slice().replace("addresses: [\"10.0.0.1\"]", "addresses: [\"10.0.0.1\"]\n    nodeName: n2");
    let site = Site::new(&gateway, &[("web.yaml", &web), ("slice.yaml", &slice)]);
    let packet = ["--proto", "tcp", "--src", "198.51.100.7:40000", "--dst", "203.0.113.1:80"];
    let explained = site.run(&[&["explain", "-c", "gateway.yaml"], &packet[..]].concat());
    assert!(
        explained.out.contains("default/web: externalTrafficPolicy Local: node n1 has no endpoint"),
        "{}",
        explained.out
    );
}

#[test]
fn bytes_that_are_not_utf8_are_reported_with_line_and_column() {
    let site = Site::new(GATEWAY, &[("slice.yaml", &web_slice())]);
    let text = web().replace("name: web", "name: caf?");
    let mut bytes = text.clone().into_bytes();
    let at = text.find('?').expect("it was put there");
    bytes[at] = 0xe9;
    std::fs::write(site.path("manifests/web.yaml"), &bytes).expect("it can be written");
    let ran = site.check();
    let place = format!(
        "manifests/web.yaml:{}:12: error: cannot be read: the byte 0xe9 is not UTF-8; accepted: UTF-8 text",
        line_of(&text, "caf?")
    );
    assert!(ran.code == 2 && ran.out.lines().any(|line| line == place), "{}", ran.out);
    let mut gateway = GATEWAY.as_bytes().to_vec();
    gateway.extend_from_slice(b"# \xff\n");
    std::fs::write(site.path("gateway.yaml"), gateway).expect("it can be written");
    let ran = site.check();
    let line = GATEWAY.lines().count() + 1;
    assert_eq!(
        (ran.code, ran.out),
        (2, format!("gateway.yaml:{line}:3: error: the byte 0xff is not UTF-8; accepted: UTF-8 text\n"))
    );
}

#[test]
fn warnings_alone_do_not_refuse() {
    let gateway = GATEWAY.replace("\"203.0.113.0/28\"", "\"203.0.113.0/28\", \"203.0.113.8-203.0.113.9\"");
    let ran = Site::new(&gateway, &[("web.yaml", &web()), ("slice.yaml", &web_slice())]).check();
    assert_eq!(ran.code, 0, "{}", ran.out);
    assert!(ran.out.contains(": warning: ") && ran.err.contains("1 warning"), "{}{}", ran.out, ran.err);
}

#[test]
fn a_missing_file_and_a_wrong_command_line_are_refused() {
    let site = Site::new(GATEWAY, &[]);
    let missing = site.run(&["check", "-c", "nowhere.yaml"]);
    assert_eq!(missing.code, 2);
    assert!(missing.out.starts_with("nowhere.yaml:1:1: error: cannot be read"), "{}", missing.out);
    assert_eq!(site.run(&["check"]).code, 2);
    assert_eq!(site.run(&["no-such-command"]).code, 2);
    assert_eq!(site.run(&["--help"]).code, 0);
}

#[test]
fn the_report_is_also_data() {
    let gateway = GATEWAY.replace("snatAddresses", "snatAddress");
    let site = Site::new(&gateway, &[("web.yaml", &web()), ("slice.yaml", &web_slice())]);
    let ran = site.run(&["check", "-c", "gateway.yaml", "-o", "json"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    let report: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    let faults = report["faults"].as_array().expect("a list");
    let fault = faults.iter().find(|fault| fault["severity"] == "error").expect("the unknown key");
    assert_eq!((&report["refused"], &report["config"]), (&true.into(), &"gateway.yaml".into()));
    assert_eq!(fault["path"], "gateway.yaml");
    assert_eq!(fault["line"], line_of(&gateway, "snatAddress"));
    assert_eq!(fault["accepted"], "snatAddresses", "the key that is closest");
    let sound = Site::new(GATEWAY, &[("web.yaml", &web()), ("slice.yaml", &web_slice())]);
    let ran = sound.run(&["check", "-c", "gateway.yaml", "-o", "yaml"]);
    assert!(ran.code == 0 && ran.out.contains("servicePorts: 2\n"), "{}{}", ran.out, ran.err);
}

#[test]
fn the_program_describes_itself() {
    let site = Site::new(GATEWAY, &[]);
    let ran = site.run(&["version", "-o", "json"]);
    let version: serde_json::Value = serde_json::from_str(&ran.out).expect("JSON");
    assert_eq!(version["version"], env!("CARGO_PKG_VERSION"));
    assert!(version["dpdk"].as_str().is_some_and(|dpdk| dpdk.starts_with("DPDK ")), "{version}");
    assert!(version["commit"].is_string(), "{version}");
    for (shell, part) in
        [("bash", "complete -F _tidegate"), ("zsh", "#compdef tidegate"), ("fish", "complete -c tidegate")]
    {
        let ran = site.run(&["completion", shell]);
        assert!(
            ran.code == 0 && ran.out.contains(part) && ran.out.contains("neighbors"),
            "{shell}: {}",
            ran.out
        );
    }
    assert_eq!(site.run(&["man", "--dir", "man"]).code, 0);
    let page = std::fs::read_to_string(site.path("man/tidegate-drain.1")).expect("a page for each command");
    assert!(page.contains("tidegate drain node"), "{page}");
    let ran = site.run(&["servces"]);
    assert!(ran.code == 2 && ran.err.contains("'services'"), "a similar command is named: {}", ran.err);
    let ran = site.run(&["check"]);
    assert!(ran.out.contains("/etc/tidegate/gateway.yaml"), "the default: {}{}", ran.out, ran.err);
}

#[test]
fn shares_of_a_route_that_are_rejected_are_reported_with_their_line() {
    let objects = "apiVersion: gateway.networking.k8s.io/v1
kind: GatewayClass
metadata: {name: tidegate}
spec: {controllerName: tidegate.dev/gateway}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: edge, namespace: shop}
spec: {gatewayClassName: tidegate, listeners: [{name: tcp, port: 80, protocol: TCP}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: TCPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{name: edge}]
  rules:
    - backendRefs:
        - {name: empty, port: 80, weight: 9}
        - {name: web, port: 80}
---
apiVersion: v1
kind: Service
metadata: {name: empty, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{port: 80}]
endpoints: [{addresses: [192.0.2.11]}]
";
    let checked = Site::new(GATEWAY, &[("a.yaml", objects)]).check();
    let warning = "manifests/a.yaml:18:11: warning: TCPRoute shop/web: Service shop/empty has no endpoint, so its share \
                   of new flows (90 %) is rejected";
    assert!(checked.out.contains(warning), "{}", checked.out);
    let zero = objects.replace(", weight: 9", "").replace("port: 80}\n---", "port: 80, weight: 0}\n---");
    let zero = zero.replace("{name: empty, port: 80}", "{name: empty, port: 80, weight: 0}");
    let checked = Site::new(GATEWAY, &[("a.yaml", &zero)]).check();
    let warning = "TCPRoute shop/web: all weights are 0, so every new flow is rejected";
    assert!(checked.out.contains(warning), "{}", checked.out);
}
