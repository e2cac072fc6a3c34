//! `doctor`, `init`, `diff` and `support-bundle`, before the first start of a gateway and beside a running one.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Output;

use serde_json::Value;
use tidegate_netlab::addresses::{self as plan, Family, TCP_ECHO_PORT, client};
use tidegate_netlab::client::EchoConnection;
use tidegate_netlab::gateway::config_of;
use tidegate_netlab::{Gateway, GatewayOptions, Lab};

use crate::world::{World, beside_others, lab, tidegate};

/// A lab whose gateway namespace is a machine with a NIC `eth0`, an address of each family, and the client as its
/// router.
fn machine() -> Lab {
    let lab = lab(0);
    let (addresses, router) = (plan::GATEWAY_FOR_CLIENTS, client(Family::V4, 0));
    let [v4, v6] = addresses;
    let lines = format!(
        "link set eth0 arp on\naddr add {v4}/24 dev eth0\naddr add {v6}/64 dev eth0 nodad\nroute add default via {router} dev eth0\n"
    );
    lab.gateway().sysctls(&[("ipv6/conf/eth0/disable_ipv6", "0")]).expect("a sysctl");
    lab.gateway().ip_batch(&lines).expect("addresses and a route");
    lab
}

/// Runs the binary on the machine, in this directory.
fn run_in(lab: &Lab, directory: &Path, args: &[&str]) -> Output {
    let mut command = lab.gateway().command(tidegate());
    command.args(args).current_dir(directory).output().expect("the binary runs")
}

fn text(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// The findings of `doctor -o json`: (check, level, what).
fn findings(json: &str) -> Vec<(String, String, String)> {
    let report: Value = serde_json::from_str(json).unwrap_or_else(|error| panic!("{error}: {json}"));
    let word = |one: &Value, key: &str| one[key].as_str().unwrap_or_default().to_owned();
    let all = report["findings"].as_array().expect("findings").iter();
    all.map(|one| (word(one, "check"), word(one, "level"), word(one, "what"))).collect()
}

fn has(findings: &[(String, String, String)], check: &str, level: &str, words: &str) -> bool {
    findings.iter().any(|(name, found, what)| name == check && found == level && what.contains(words))
}

#[test]
fn init_writes_a_configuration_that_check_accepts_and_never_overwrites_it() {
    let _machine = beside_others();
    let lab = machine();
    let ([v4, v6], router) = (plan::GATEWAY_FOR_CLIENTS, client(Family::V4, 0));
    let directory = tempfile::tempdir().expect("a directory");
    let run = |args: &[&str]| run_in(&lab, directory.path(), args);
    let wrong = run(&["init", "--nic", "eth9"]);
    assert!(
        !wrong.status.success() && text(&wrong).contains("interface eth9 does not exist"),
        "{}",
        text(&wrong)
    );
    assert!(text(&wrong).contains("eth0") && !directory.path().join("gateway.yaml").exists());

    let written = run(&["init", "--pool", "203.0.113.0/28", "--pool", "2001:db8:1::/124"]);
    assert!(written.status.success(), "{}", text(&written));
    let path = directory.path().join("gateway.yaml");
    let yaml = fs::read_to_string(&path).expect("it is written");
    for line in [
        "device: \"net_af_packet,iface=eth0\"".to_owned(),
        format!("addresses: [\"{v4}/24\", \"{v6}/64\"]"),
        format!("routes: [{{to: \"0.0.0.0/0\", via: \"{router}\"}}]"),
        "pools: [{name: public, addresses: [\"203.0.113.0/28\", \"2001:db8:1::/124\"]}]".to_owned(),
    ] {
        assert!(yaml.contains(&line), "{line} in\n{yaml}");
    }
    let checked = run(&["check", "-c", "gateway.yaml"]);
    assert!(checked.status.success() && text(&checked).contains("ok:"), "{}", text(&checked));

    let again = run(&["init"]);
    assert!(!again.status.success() && text(&again).contains("never overwrites"), "{}", text(&again));
    assert_eq!(fs::read_to_string(&path).expect("it is kept"), yaml);

    // For a cluster, `check` needs the API server, so the text alone is checked.
    let of_cluster =
        run(&["init", "--nic", "eth0", "--kubeconfig", "kubeconfig", "-o", "cluster/gateway.yaml"]);
    assert!(of_cluster.status.success(), "{}", text(&of_cluster));
    let yaml = fs::read_to_string(directory.path().join("cluster/gateway.yaml")).expect("it is written");
    assert!(
        yaml.contains(&format!("kubeconfig: \"{}\"", directory.path().join("kubeconfig").display())),
        "{yaml}"
    );
}

#[test]
fn doctor_examines_a_machine_before_the_first_start() {
    let _machine = beside_others();
    let lab = machine();
    let ([v4, v6], router) = (plan::GATEWAY_FOR_CLIENTS, client(Family::V4, 0));
    let directory = tempfile::tempdir().expect("a directory");
    let run = |args: &[&str]| run_in(&lab, directory.path(), args);
    let written = run(&["init"]);
    assert!(written.status.success(), "{}", text(&written));
    let doctor = || {
        let ran = run(&["doctor", "-c", "gateway.yaml", "--socket", "none", "-o", "json"]);
        let found = findings(&String::from_utf8_lossy(&ran.stdout));
        let has_fault = found.iter().any(|(_, level, _)| level == "fault");
        assert_eq!(ran.status.code(), Some(i32::from(has_fault)), "{}", text(&ran));
        found
    };
    let found = doctor();
    assert!(has(&found, "device", "ok", "eth0 is up: driver veth"), "{found:?}");
    assert!(has(&found, "mtu", "ok", "eth0 has 1500"), "{found:?}");
    assert!(has(&found, "addresses", "warning", &format!("{v4}/24 and {v6}/64 on eth0")), "{found:?}");
    assert!(
        has(&found, "routers", "ok", &format!("{router} answers with {}", plan::CLIENT_MAC)),
        "{found:?}"
    );
    assert!(has(&found, "ports", "ok", "admin.listen 127.0.0.1:9469 is free"), "{found:?}");
    assert!(has(&found, "gateway", "ok", "no gateway runs"), "{found:?}");

    // Another process has a port, the router is gone, and an offload is on.
    let _listener =
        lab.gateway().enter(|| std::net::TcpListener::bind("127.0.0.1:9469")).expect("it is free");
    lab.client().ip_batch(&format!("addr del {router}/24 dev eth0\n")).expect("it has it");
    lab.gateway().ip_batch("link set eth0 mtu 1400\nneigh flush dev eth0\n").expect("it is ours");
    let gro = lab.gateway().command("ethtool").args(["-K", "eth0", "gro", "on"]).status();
    assert!(gro.expect("ethtool runs").success());
    let found = doctor();
    assert!(has(&found, "ports", "fault", &format!("(pid {})", std::process::id())), "{found:?}");
    assert!(has(&found, "routers", "warning", &format!("{router} doesn't answer ARP")), "{found:?}");
    assert!(has(&found, "mtu", "fault", "eth0 only 1400"), "{found:?}");
    assert!(has(&found, "offloads", "warning", "generic-receive-offload"), "{found:?}");
    let ran = run(&["doctor", "-c", "gateway.yaml"]);
    let shown = text(&ran);
    assert!(shown.contains("why:") && shown.contains("ip link set eth0 mtu 1500"), "{shown}");
}

/// A Service without an annotation for its forwarding mode.
fn echo(vip: &str) -> String {
    let server = plan::server(Family::V4, 1);
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: echo, namespace: lab, annotations: {{tidegate.dev/load-balancer-ips: \"{vip}\"}}}}\n\
         spec: {{type: LoadBalancer, ports: [{{name: echo, port: {TCP_ECHO_PORT}}}]}}\n---\n\
         apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: echo, namespace: lab, labels: {{kubernetes.io/service-name: echo}}}}\n\
         addressType: IPv4\nports: [{{name: echo, port: {TCP_ECHO_PORT}}}]\nendpoints: [{{addresses: [\"{server}\"]}}]\n"
    )
}

#[test]
fn doctor_diff_and_support_bundle_work_beside_a_running_gateway() {
    let _machine = beside_others();
    let vip = plan::routed_vip(Family::V4, 3);
    let world = World::over(lab(1), GatewayOptions::default(), &[], &echo(&vip.to_string()));
    let to = SocketAddr::new(vip, TCP_ECHO_PORT);
    let connect = || {
        let from = SocketAddr::new(client(Family::V4, 0), 0);
        EchoConnection::connect(world.lab.client(), from, to).ok()
    };
    let mut connection = world.wait_until("a connection", connect);
    let (config, directory) = (config_of(&world.lab), world.lab.directory());
    let run = |args: &[&str]| {
        let mut command = world.lab.gateway().command(tidegate());
        command.args(args).output().expect("the binary runs")
    };
    let own = fs::read_to_string(&config).expect("the configuration");
    let path = config.to_str().expect("UTF-8");
    let socket = directory.join("tidegate.sock");
    let socket = socket.to_str().expect("UTF-8");

    let ran = run(&["doctor", "-c", path, "-o", "json"]);
    let found = findings(&String::from_utf8_lossy(&ran.stdout));
    let pid = format!("pid {}, and is ready", world.gateway().pid());
    assert!(has(&found, "gateway", "ok", &pid), "{found:?}");
    assert!(has(&found, "ports", "ok", "9469 is used by the running gateway"), "{found:?}");
    assert!(has(&found, "queues", "ok", "interface uplink: driver net_af_packet, queues 1"), "{found:?}");
    let faults: Vec<_> = found.iter().filter(|(_, level, _)| level == "fault").collect();
    assert!(faults.is_empty() && ran.status.success(), "{faults:?}");

    // Nothing differs.
    let same = run(&["diff", "--socket", socket]);
    assert!(same.status.success() && text(&same).contains("No Service changes."), "{}", text(&same));
    // Another mode breaks the connection, and another core needs a restart.
    let mode = own.replace("defaults: {drainTimeout", "defaults: {forwarding: nat, drainTimeout");
    let other = directory.join("other.yaml");
    fs::write(&other, &mode).expect("written");
    let other = other.to_str().expect("UTF-8");
    let changed = run(&["diff", "-c", other, "--socket", socket]);
    let shown = text(&changed);
    assert!(changed.status.success() && shown.contains("Changed: services"), "{shown}");
    let row = shown.lines().find(|line| line.starts_with("lab/echo")).unwrap_or_else(|| panic!("{shown}"));
    assert!(row.contains("fullnat -> nat") && row.ends_with("1 break"), "{shown}");
    fs::write(other, mode.replace("cores: [1]", "cores: [0]").replace("idle: adaptive", "idle: poll"))
        .expect("written");
    let restart = run(&["diff", "-c", other, "--socket", socket]);
    assert_eq!(restart.status.code(), Some(2), "{}", text(&restart));
    let keys = "these keys need a restart: dataplane.cores, dataplane.idle";
    assert!(text(&restart).contains(keys) && text(&restart).contains("fullnat -> nat"), "{}", text(&restart));
    fs::write(other, own.replace("pools:", "pool:")).expect("written");
    let refused = run(&["diff", "-c", other, "--socket", socket]);
    assert_eq!(refused.status.code(), Some(2), "{}", text(&refused));
    assert!(text(&refused).contains("other.yaml:") && text(&refused).contains("keeps its configuration"));
    connection.ping().expect("diff changes nothing");
    assert!(!world.gateway().log().contains("configuration reloaded"));
}

#[test]
fn a_support_bundle_has_everything_but_the_secrets() {
    let _machine = beside_others();
    let (password, key) = ("a-bgp-password-of-this-test", "00ff".repeat(16));
    let lab = lab(0);
    fs::write(lab.directory().join("bgp-password"), format!("{password}\n")).expect("written");
    Gateway::configure(&lab, &GatewayOptions::default()).expect("configured");
    let config = config_of(&lab);
    let own = fs::read_to_string(&config).expect("the configuration");
    let secrets = format!(
        "announce: {{bgp: {{asn: 64512, program: no-such-bird, peers: [{{address: 198.51.100.10, asn: 64513, passwordFile: bgp-password}}]}}}}\n\
         flowSharing: {{mode: nat, peers: [\"198.51.100.11:10358\"], key: {{value: \"{key}\"}}}}\n"
    );
    fs::write(&config, format!("{own}{secrets}")).expect("written");
    let gateway = Gateway::start(&lab).expect("the gateway is ready (needs DPDK)");
    let bundle = lab.directory().join("bundle.tar");
    let mut command = lab.gateway().command(tidegate());
    command.args(["support-bundle", "-c"]).arg(&config).arg("-o").arg(&bundle);
    let ran = command.output().expect("the binary runs");
    assert!(ran.status.success(), "{}", text(&ran));
    let bytes = fs::read(&bundle).expect("it is written");
    let listed = std::process::Command::new("tar").arg("tf").arg(&bundle).output().expect("tar runs");
    let names = String::from_utf8_lossy(&listed.stdout).into_owned();
    for name in [
        "index.txt",
        "status.json",
        "services.json",
        "drops.json",
        "metrics-1.txt",
        "metrics-2.txt",
        "log.txt",
        "doctor.txt",
        "configuration.yaml",
        "machine/proc-interrupts.txt",
        "machine/ethtool-eth0-offloads.txt",
    ] {
        assert!(names.lines().any(|line| line.ends_with(&format!("/{name}"))), "{name} in\n{names}");
    }
    let contains = |needle: &str| bytes.windows(needle.len()).any(|window| window == needle.as_bytes());
    for secret in [password, &key, &key.to_uppercase()] {
        assert!(!contains(secret), "{secret} is in the bundle");
    }
    for part in ["no-such-bird", "passwordFile: bgp-password", "tidegate_build_info", "port up", "<removed>"]
    {
        assert!(contains(part), "{part} is in the bundle");
    }
    // A second one doesn't replace the first.
    let again = command.output().expect("the binary runs");
    assert!(!again.status.success(), "{}", text(&again));
    assert_eq!(fs::read(&bundle).expect("it is kept"), bytes);
    drop(gateway);
}
