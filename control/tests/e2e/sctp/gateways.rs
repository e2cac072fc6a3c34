//! Two gateways that share flows, with real associations in the modes that translate addresses: `multihomed.c` on both
//! sides, with one address each. One gateway is killed; the other one continues its associations and tracks their end.

use rustix::process::Signal;
use tidegate_netlab::addresses::{
    Family, SCTP_PORT, SCTP_TARGET_PORT, TCP_ECHO_PORT, client, server as server_address,
};
use tidegate_netlab::fleet::addresses::{FleetService, SERVICES};
use tidegate_netlab::fleet::{Fleet, FleetPlan, RouterKind};
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::wait_for;

use super::compile;
use super::paths::{answers, begin};
use crate::world::{APPLIED, alone, tidegate};

/// Servers, all of them backends.
const SERVERS: u8 = 2;
/// Associations with each Service.
const ASSOCIATIONS: u8 = 4;
/// More messages than the clients send before the test ends them.
const MESSAGES_MAX: &str = "1000000";
/// Messages of each association before the gateway is killed, and again afterwards.
const MESSAGES: usize = 20;

/// The Services whose VIPs also get an SCTP port.
fn translating() -> impl Iterator<Item = &'static FleetService> {
    SERVICES.iter().filter(|service| !service.forwarding.starts_with("dsr"))
}

fn manifest(service: &FleetService) -> Manifest {
    let port = PortSpec::sctp("sctp", SCTP_PORT).to(SCTP_TARGET_PORT);
    let name = format!("sctp-{}", service.name);
    let mut manifest = Manifest::new(&name, service.forwarding, &[service.vip().ip()], vec![port]);
    manifest.annotations = vec![
        service.shares_its_vip(),
        ("tidegate.dev/health-check-protocol", "tcp".to_owned()),
        ("tidegate.dev/health-check-port", TCP_ECHO_PORT.to_string()),
    ];
    manifest.with_endpoints((1..=SERVERS).map(|n| EndpointSpec::ready(server_address(Family::V4, n))))
}

/// The lines of `tidegate flows` about SCTP flows that have not ended.
fn open_flows(fleet: &mut Fleet, gateway: usize) -> Vec<String> {
    let flows =
        fleet.gateway_mut(gateway).query(&["flows", "--limit", "50000"]).expect("the gateway answers");
    let is_open =
        |line: &&str| line.contains(" SCTP ") && !line.contains(" closed ") && !line.contains(" closing ");
    flows.lines().filter(is_open).map(str::to_owned).collect()
}

/// Waits until each association has this many more answers than before.
fn more_answers(fleet: &Fleet, associations: &[LabProcess], more: usize) {
    let goals: Vec<usize> = associations.iter().map(|one| answers(one).len() + more).collect();
    for (association, goal) in associations.iter().zip(goals) {
        let reached = wait_for("answers", APPLIED, || (answers(association).len() >= goal).then_some(()));
        reached.unwrap_or_else(|error| {
            let all: Vec<String> = associations.iter().map(|one| one.log_tail(2)).collect();
            panic!("{error:#} {goal}: {all:#?}\n{}", fleet.condition())
        });
    }
}

#[test]
fn associations_survive_a_killed_gateway_and_the_other_tracks_their_end() {
    let _machine = alone();
    let sharing = Some(['a', 'a']);
    let plan = FleetPlan {
        gateways: 2,
        servers: SERVERS,
        tidegate: tidegate(),
        flow_entries: 4_096,
        flow_files: false,
        router: RouterKind::Lab,
        sharing,
    };
    let mut fleet = Fleet::start(plan, SERVERS).expect("the fleet is built (needs root and DPDK)");
    let directory = fleet.directory().to_owned();
    let program = compile(&directory, "multihomed");
    let ports = SCTP_TARGET_PORT.to_string();
    let servers: Vec<LabProcess> = (1..=SERVERS)
        .map(|n| {
            let (name, own) = (format!("s{n}"), server_address(Family::V4, n).to_string());
            let args = ["serve", &name, &ports, &own];
            let log = format!("sctp-{name}");
            LabProcess::start(fleet.server(n), &directory, &log, &program, &args).expect("the server starts")
        })
        .collect();
    for server in &servers {
        let ready = || server.log().contains("ready").then_some(());
        let waited = wait_for("the SCTP server", APPLIED, ready);
        waited.unwrap_or_else(|error| panic!("{error:#}: {}", server.log()));
    }
    for service in translating() {
        manifest(service).write(&directory.join("manifests")).expect("a manifest is written");
    }
    let backends = usize::from(SERVERS) * translating().count();
    for n in 1..=2 {
        let active = || {
            let text = fleet.gateway_mut(n).query(&["backends"]).ok()?;
            let is_active = |line: &&str| line.contains(" sctp-") && line.contains(" Active ");
            (text.lines().filter(is_active).count() == backends).then_some(())
        };
        let waited = wait_for("the backends with SCTP", APPLIED, active);
        waited.unwrap_or_else(|error| panic!("{error:#}: {}", fleet.condition()));
    }

    let all = translating().flat_map(|service| (0..ASSOCIATIONS).map(move |n| (service, n)));
    let mut associations: Vec<LabProcess> = (0..)
        .zip(all)
        .map(|(n, (service, number))| {
            let own = client(Family::V4, n).to_string();
            let (vip, port) = (service.vip().ip().to_string(), SCTP_PORT.to_string());
            let args = ["client", &own, &vip, &port, MESSAGES_MAX];
            let log = format!("sctp-{}-{number}", service.name);
            LabProcess::start(fleet.client(), &directory, &log, &program, &args).expect("the client starts")
        })
        .collect();
    begin(&mut associations);
    more_answers(&fleet, &associations, MESSAGES);
    let known = wait_for("both gateways to know all associations", APPLIED, || {
        let known = [1, 2].map(|n| open_flows(&mut fleet, n).len());
        (known == [associations.len(); 2]).then_some(())
    });
    known.unwrap_or_else(|error| panic!("{error:#}: {}", fleet.condition()));

    fleet.take_gateway(1).kill();
    fleet.router().wait_until_used(&[2]).expect("the router has seen it");
    more_answers(&fleet, &associations, MESSAGES);
    for association in &mut associations {
        association.signal(Signal::TERM);
    }
    for association in &mut associations {
        let status = association.wait(APPLIED);
        let status = status.unwrap_or_else(|error| panic!("{error:#}: {}", association.log_tail(3)));
        assert!(status.success() && association.log().contains("shut down"), "{}", association.log_tail(3));
        let mut names = answers(association);
        names.dedup();
        assert_eq!(names.len(), 1, "one server has answered: {names:?}");
    }
    let ended = wait_for("gateway 2 to see the end of each association", APPLIED, || {
        open_flows(&mut fleet, 2).is_empty().then_some(())
    });
    ended.unwrap_or_else(|error| panic!("{error:#}: {:?}", open_flows(&mut fleet, 2)));
}
