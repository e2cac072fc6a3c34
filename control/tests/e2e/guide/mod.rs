//! Follows pages of `docs/guide` as a reader does: on machines with the addresses of the page, in its order, with its
//! commands and files. [`crate::guide_support`] says how a page states what belongs where.

mod host;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use host::Host;
use tidegate_netlab::{Lab, LabPlan, Namespace, wait_for};

use crate::guide_support::{Action, Expected, Step, edited, missing_line, steps_of};
use crate::world::{APPLIED, alone, beside_others, tidegate};

/// A NIC of a machine: its name and the link that it is on.
type Nic = (&'static str, &'static str);

/// A machine as the reader has it before the page: `ip` commands for its addresses and routes, and shell commands for
/// what else it has.
struct Machine {
    name: &'static str,
    nics: &'static [Nic],
    addresses: &'static str,
    prepared: &'static str,
}

/// A machine with one NIC on the link of the gateways.
const fn on_link(name: &'static str, addresses: &'static str, prepared: &'static str) -> Machine {
    Machine { name, nics: &[("eth0", "lan")], addresses, prepared }
}

/// The machine of a gateway: a NIC to log in, and one for the gateway.
const fn gateway(name: &'static str) -> Machine {
    Machine {
        name,
        nics: &[("eth0", "office"), ("eth1", "lan")],
        addresses: "link set eth0 up",
        prepared: "",
    }
}

const CLIENT: Machine = on_link("client", "link set eth0 up\naddr add 192.0.2.10/24 dev eth0", "");
const SERVER: Machine = on_link("server", "link set eth0 up\naddr add 192.0.2.50/24 dev eth0", "web");
const ROUTER: Machine = on_link("router", "link set eth0 up\naddr add 192.0.2.1/24 dev eth0", "");

/// The machines of a page.
struct Site {
    // Declared first, so that processes end before their namespaces are removed.
    hosts: BTreeMap<&'static str, Host>,
    /// Keeps the namespaces.
    _lab: Lab,
}

/// The kernel's settings on a new Debian machine, whatever they are on this one.
const SYSCTLS: [(&str, &str); 8] = [
    ("ipv4/conf/all/rp_filter", "0"),
    ("ipv4/conf/default/rp_filter", "2"),
    ("ipv4/conf/all/arp_ignore", "0"),
    ("ipv4/conf/default/arp_ignore", "0"),
    ("ipv4/conf/all/arp_announce", "0"),
    ("ipv4/conf/default/arp_announce", "0"),
    ("ipv4/ip_forward", "0"),
    // Not a setting of Debian: without it, IPv6 addresses are usable only after a second.
    ("ipv6/conf/default/dad_transmits", "0"),
];

impl Site {
    fn build(machines: &[Machine]) -> Self {
        let plan = LabPlan { servers: 0, vips: Vec::new(), tidegate: tidegate() };
        let lab = Lab::build(&plan).expect("the lab is built (needs root)");
        let mut links = BTreeMap::new();
        let mut hosts = BTreeMap::new();
        for machine in machines {
            let namespace =
                Namespace::create(&format!("{}-h{}", lab.id(), hosts.len())).expect("a namespace");
            namespace.sysctls(&SYSCTLS).expect("sysctls");
            for (nic, link) in machine.nics {
                let number = links.len();
                let bridge = links.entry(*link).or_insert_with(|| format!("link{number}")).clone();
                connect(&lab, &namespace, nic, &bridge, hosts.len());
            }
            namespace.ip_batch(machine.addresses).expect("addresses");
            let host = Host::start(&lab, machine.name, &namespace);
            let (is_prepared, printed) = host.run(machine.prepared);
            assert!(is_prepared, "{}: {printed}", machine.name);
            hosts.insert(machine.name, host);
        }
        Self { hosts, _lab: lab }
    }

    fn host(&self, name: &str) -> &Host {
        self.hosts.get(name).unwrap_or_else(|| panic!("there is no host {name:?}"))
    }

    /// Follows a page of the guide.
    fn follow(&self, page: &str) {
        let mut output = String::new();
        for step in steps_of(page) {
            if let Err(error) = self.take(&step, &mut output) {
                let mut logs = String::new();
                for (name, host) in &self.hosts {
                    let _ = writeln!(logs, "{name}: end of the gateway's log:\n{}", host.gateway_log());
                }
                panic!("docs/guide/{page}.md:{}: {error}\n{}\n{output}\n{logs}", step.line, step.text);
            }
        }
    }

    /// Takes a step. The output of its commands replaces that of the previous ones.
    fn take(&self, step: &Step, output: &mut String) -> Result<(), String> {
        match &step.action {
            Action::Run { hosts, instead, expected } => {
                output.clear();
                let commands = instead.as_ref().unwrap_or(&step.text);
                for host in hosts {
                    let (result, printed) = end_as(expected, || self.host(host).run(commands));
                    output.push_str(&printed);
                    result.map_err(|error| format!("on {host}: {error}"))?;
                }
            }
            Action::File { hosts, path } => {
                let directory = Path::new(path).parent().expect("an absolute path").to_string_lossy();
                for host in hosts.iter().map(|host| self.host(host)) {
                    if !host.path(&directory).is_dir() {
                        return Err(format!("no directory {directory}: the reader can't write the file"));
                    }
                    host.write(path, &step.text);
                }
            }
            Action::Edit { hosts, path } => {
                for host in hosts.iter().map(|host| self.host(host)) {
                    let old = std::fs::read_to_string(host.path(path)).map_err(|error| error.to_string())?;
                    host.write(path, &edited(&old, &step.text)?);
                }
            }
            Action::Output => {
                if let Some(line) = missing_line(&step.text, output) {
                    return Err(format!("the output lacks the line {line:?}"));
                }
            }
            Action::NotRun { .. } => {}
        }
        Ok(())
    }
}

/// Runs commands until they end as expected. Returns what they printed, too.
fn end_as(expected: &Expected, mut run: impl FnMut() -> (bool, String)) -> (Result<(), String>, String) {
    let (is_success, mut printed) = run();
    let result = match expected {
        Expected::Any => Ok(()),
        Expected::Success if is_success => Ok(()),
        Expected::Success => Err("a command fails".to_owned()),
        Expected::Failure(_) if is_success => Err("the commands succeed".to_owned()),
        Expected::Failure(text) if printed.contains(text) => Ok(()),
        Expected::Failure(text) => Err(format!("it fails without {text:?}")),
        Expected::Until(text) if is_success && printed.contains(text) => Ok(()),
        Expected::Until(text) => wait_for(text, APPLIED, || {
            let (is_success, now) = run();
            printed = now;
            (is_success && printed.contains(text)).then_some(())
        })
        .map_err(|error| error.to_string()),
    };
    (result, printed)
}

/// Connects a machine to a link with a new NIC.
fn connect(lab: &Lab, namespace: &Namespace, nic: &str, bridge: &str, number: usize) {
    let (switch, port) = (lab.switch(), format!("p{number}-{nic}"));
    // The link exists if it has a port already.
    let _ = switch.ip_batch(&format!("link add {bridge} type bridge mcast_snooping 0 forward_delay 0"));
    let peer = format!("link add {port} type veth peer name {nic} netns {}", namespace.name());
    let lines = format!("{peer}\nlink set {port} master {bridge} up\nlink set {bridge} up");
    switch.ip_batch(&lines).expect("a NIC");
    switch.turn_off_offloads(&port).expect("ethtool runs");
    namespace.turn_off_offloads(nic).expect("ethtool runs");
}

#[test]
fn a_new_user_follows_the_first_page() {
    let _machine = beside_others();
    let site = Site::build(&[gateway("gateway"), CLIENT, SERVER, ROUTER]);
    site.follow("1-first-gateway");
}

#[test]
fn a_user_builds_a_fleet_with_bgp() {
    // BFD and keepalived have short timers.
    let _machine = alone();
    let site = Site::build(&[
        gateway("edge-1"),
        gateway("edge-2"),
        gateway("edge-3"),
        Machine {
            name: "router",
            nics: &[("eth0", "clients"), ("eth1", "lan"), ("eth2", "servers")],
            addresses: "link set eth0 up\nlink set eth1 up\nlink set eth2 up\naddr add 198.51.100.1/24 dev eth0\n\
                        addr add 192.0.2.1/24 dev eth1\naddr add 10.0.0.1/24 dev eth2",
            prepared: "",
        },
        Machine {
            name: "client",
            nics: &[("eth0", "clients")],
            addresses: "link set eth0 up\naddr add 198.51.100.10/24 dev eth0\nroute add default via 198.51.100.1",
            prepared: "",
        },
        Machine {
            name: "server",
            nics: &[("eth0", "servers")],
            addresses: "link set eth0 up\naddr add 10.0.0.50/24 dev eth0\nroute add default via 10.0.0.1",
            prepared: "web",
        },
    ]);
    site.follow("3-several-gateways");
}

#[test]
fn a_user_builds_two_gateways_on_one_link() {
    let _machine = alone();
    let site = Site::build(&[gateway("edge-1"), gateway("edge-2"), CLIENT, SERVER, ROUTER]);
    site.follow("4-layer-2");
}

#[test]
fn a_user_prepares_a_backend_for_direct_server_return() {
    let _machine = beside_others();
    let site = Site::build(&[gateway("gateway"), CLIENT, SERVER, ROUTER]);
    let gateway = site.host("gateway");
    let (is_ready, printed) = gateway.run(FIRST_PAGE);
    assert!(is_ready, "{printed}");
    site.follow("8-dsr-backends");
}

#[test]
fn a_user_converts_the_resources_of_other_load_balancers() {
    let _machine = beside_others();
    let site = Site::build(&[on_link("workstation", "link set eth0 up", "")]);
    let workstation = site.host("workstation");
    let case = include_str!("../../../import/tests/cases/kube-vip/arp.yaml");
    let mut parts = case.split("\n---\n");
    for file in ["kube-vip-ds.yaml", "kubevip.yaml", "services.yaml"] {
        let part = parts.next().expect("the DaemonSet, the ConfigMap and a Service");
        workstation.write(&format!("/root/{file}"), part);
    }
    site.follow("11-migrating");
}

/// The files of a gateway of the version before this one: `gateway.yaml` and `web.yaml` of its configuration, and what
/// it wrote to `/var/lib/tidegate`. Its Service has an address that a gateway without these files wouldn't choose. When
/// a format changes, keep these files, and add those of the new version beside them.
const PREVIOUS: [(&str, &str); 4] = [
    ("/etc/tidegate/gateway.yaml", include_str!("previous/gateway.yaml")),
    ("/etc/tidegate/manifests/web.yaml", include_str!("previous/web.yaml")),
    (
        "/var/lib/tidegate/edge-1-066fabd3523ca5d3.addresses",
        include_str!("previous/edge-1-066fabd3523ca5d3.addresses"),
    ),
    ("/var/lib/tidegate/edge-1.events", include_str!("previous/edge-1.events")),
];

#[test]
fn a_user_upgrades_a_gateway_with_files_of_the_previous_version() {
    let _machine = beside_others();
    let site = Site::build(&[gateway("gateway"), CLIENT, SERVER, ROUTER]);
    let gateway = site.host("gateway");
    PREVIOUS.iter().for_each(|(path, text)| gateway.write(path, text));
    let (is_ready, printed) = gateway.run("ip link set eth1 up; systemctl start tidegate");
    assert!(is_ready, "{printed}");
    let (_, services) = gateway.run("tidegate services");
    assert!(services.contains("192.0.2.250"), "the address of the previous version: {services}");
    let (_, events) = gateway.run("tidegate events");
    assert!(events.contains("GatewayStopping"), "the events of the previous version: {events}");
    site.follow("10-upgrade");
}

#[test]
fn the_examples_for_routers_are_accepted() {
    let _machine = beside_others();
    Site::build(&[ROUTER]).follow("7-routers");
}

#[test]
fn the_commands_of_the_runbooks_exist() {
    let _machine = beside_others();
    let site = Site::build(&[gateway("gateway"), CLIENT, SERVER, ROUTER]);
    start_first_gateway(site.host("gateway"));
    site.follow("12-runbooks");
}

#[test]
fn a_user_builds_gateways_for_four_protocols() {
    let _machine = beside_others();
    let site = Site::build(&[gateway("gateway"), CLIENT, SERVER, ROUTER]);
    start_first_gateway(site.host("gateway"));
    site.follow("13-gateways");
}

#[test]
fn an_operator_follows_the_tour_of_the_commands() {
    let _machine = beside_others();
    let site = Site::build(&[gateway("gateway"), CLIENT, SERVER, ROUTER]);
    site.follow("9-sizing");
    site.follow("../commands");
}

/// Starts a gateway as at the end of the first page, without a Service.
fn start_first_gateway(gateway: &Host) {
    let (is_ready, printed) = gateway.run(&format!("{FIRST_PAGE}systemctl start tidegate"));
    assert!(is_ready, "{printed}");
}

/// The configuration of the gateway at the end of the first page.
const FIRST_PAGE: &str = r#"
ip link set eth1 up
tidegate init --nic eth1 --pool 192.0.2.240/28 -o /etc/tidegate/gateway.yaml
sed -i 's|addresses: \[\]|addresses: ["192.0.2.2/24"]|; s|# routes:.*|routes: [{to: "0.0.0.0/0", via: "192.0.2.1"}]|' \
  /etc/tidegate/gateway.yaml
sed -i 's|# snatAddresses:.*|snatAddresses: ["192.0.2.3"]|' /etc/tidegate/gateway.yaml
"#;
