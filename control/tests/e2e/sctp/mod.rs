//! SCTP with real endpoints: usrsctp (Debian's `libusrsctp-dev`) as client and as server.
//!
//! `peer.c` is compiled when a test needs it. It greets, returns and compares messages, and checks that associations
//! end by a shutdown; this file runs it and checks the output of both sides. [`paths`] has multihomed associations, and
//! [`gateways`] two gateways.

mod gateways;
mod paths;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tidegate_netlab::addresses::{Family, SCTP_PORT, SCTP_TARGET_PORT, client};
use tidegate_netlab::client::{BackendAnswer, spread};
use tidegate_netlab::modes::{ModePath, demo_paths, manifests_of, vips_on_servers, with_sctp};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::wire::{Faults, Wire};
use tidegate_netlab::{GatewayOptions, Lab, wait_for};

use crate::world::{APPLIED, World, beside_others, lab_with};

/// The program, and the servers that run it.
pub(crate) struct Peers {
    program: PathBuf,
    servers: Vec<LabProcess>,
}

/// The requests of a client on one path.
#[derive(Clone, Copy)]
pub(crate) struct Requests {
    /// The client's address.
    pub(crate) client: u8,
    /// Associations, one after the other.
    pub(crate) associations: usize,
    /// Messages of up to 20,000 bytes on each association. Each is returned before the next is sent.
    pub(crate) messages: usize,
    /// How long the client stays after the last message, in case its last packet gets lost.
    pub(crate) linger: Duration,
}

impl Peers {
    /// Compiles the program and starts it on the first `servers` servers, at their own addresses and the VIPs.
    pub(crate) fn start(lab: &Lab, servers: u8) -> Self {
        let program = compile(lab.directory(), "peer");
        let vips = lab.plan().vips.iter().map(ToString::to_string);
        let vips: Vec<String> = vips.collect();
        let start = |n: u8| {
            let server = lab.server(n);
            let own = Family::BOTH.map(|family| server.address(family).to_string());
            let (name, ports) = (server.name(), format!("{SCTP_PORT},{SCTP_TARGET_PORT}"));
            let mut args = vec!["serve", &name, &ports];
            args.extend(own.iter().chain(&vips).map(String::as_str));
            server.run("sctp-peer", &program, &args).expect("the SCTP server starts")
        };
        let servers: Vec<LabProcess> = (1..=servers).map(start).collect();
        for server in &servers {
            let ready = || server.log().contains("ready").then_some(());
            let waited = wait_for("the SCTP server", Duration::from_secs(20), ready);
            waited.unwrap_or_else(|error| panic!("{error:#}: {}", server.log()));
        }
        Self { program, servers }
    }

    /// Sends requests over `path`. Returns which backend answered on each association, and the client address that it
    /// saw. All bytes came back, and all associations were shut down.
    pub(crate) fn exchange(
        &self,
        lab: &Lab,
        path: ModePath,
        requests: Requests,
    ) -> Result<Vec<BackendAnswer>> {
        let Requests { client: n, associations, messages, linger } = requests;
        let numbers = [usize::from(SCTP_PORT), associations, messages];
        let args = numbers.map(|number| number.to_string());
        let linger = linger.as_millis().to_string();
        let mut command = lab.client().command(&self.program);
        command
            .args(["client", &client(path.family, n).to_string(), &path.vip.to_string()])
            .args(args)
            .arg(linger);
        let output = command.output().context("the SCTP client")?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        let stderr = String::from_utf8_lossy(&output.stderr);
        // A process without a line was ended by its alarm.
        ensure!(
            output.status.success(),
            "{}: {stderr}; after {} answers",
            output.status,
            stdout.lines().count()
        );
        let answers: Vec<_> = stdout.lines().filter_map(BackendAnswer::parse).collect();
        ensure!(answers.len() == associations, "{} of {associations} associations: {stdout}", answers.len());
        Ok(answers)
    }

    /// The servers' lines about ended associations: those that were shut down, and the others.
    pub(crate) fn ended(&self) -> (usize, Vec<String>) {
        let text: String = self.servers.iter().map(LabProcess::log).collect();
        let (shut_down, lost): (Vec<&str>, Vec<&str>) = text
            .lines()
            .filter(|line| line.contains("messages="))
            .partition(|line| line.ends_with("shut down"));
        (shut_down.len(), lost.into_iter().map(str::to_owned).collect())
    }
}

/// Compiles a program of this directory into the directory of the lab.
fn compile(directory: &Path, name: &str) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/e2e/sctp/{name}.c"));
    let program = directory.join(format!("sctp-{name}"));
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&program).arg(source);
    let output = cc.args(["-lusrsctp", "-lpthread"]).output().expect("a C compiler (make setup)");
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.success(),
        "{name}.c does not compile (is libusrsctp-dev installed? make setup): {errors}"
    );
    program
}

fn flows(world: &World) -> String {
    world.gateway().query(&["flows"]).expect("the gateway answers")
}

#[test]
fn sctp_associations_begin_carry_data_and_end_over_a_bad_wire() {
    const ASSOCIATIONS: usize = 24;
    let _machine = beside_others();
    let is_tested = |path: &ModePath| path.family == path.backends && path.proxy_version().is_none();
    let paths: Vec<ModePath> = demo_paths().into_iter().filter(is_tested).collect();
    let lab = lab_with(2, vips_on_servers());
    let peers = Peers::start(&lab, 2);
    let options = GatewayOptions {
        // A check survives the loss of its INIT.
        health_interval: Duration::from_secs(4),
        unhealthy_threshold: 5,
        ..GatewayOptions::default()
    };
    let world = World::over(lab, options, &with_sctp(manifests_of(&paths, &[1, 2])), "");
    for path in &paths {
        world.wait_until_active(*path, &[1, 2]);
    }
    let faults = Faults { lost_permille: 10, delayed_permille: 20, delay: Duration::from_millis(2), seed: 1 };
    let wire = Wire::install(&world.lab, faults).expect("the wire is there");
    thread::scope(|scope| {
        for (n, path) in (0..).zip(&paths) {
            let (peers, lab) = (&peers, &world.lab);
            scope.spawn(move || {
                let name = format!("{} {}", path.label(), path.family);
                let requests = Requests {
                    client: n,
                    associations: ASSOCIATIONS,
                    messages: 6,
                    linger: Duration::from_secs(2),
                };
                let answers = peers.exchange(lab, *path, requests);
                let answers = answers.unwrap_or_else(|error| panic!("{name}: {error:#}"));
                assert_eq!(spread(&answers).len(), 2, "{name}: {:?}", spread(&answers));
                let seen = path.seen_client(client(path.family, n));
                assert!(answers.iter().all(|answer| answer.client.ip() == seen), "{name}: {answers:?}");
            });
        }
    });
    let (lost, delayed) = wire.lost_and_delayed();
    println!("{} frames, {lost} lost, {delayed} delayed", wire.frames());
    assert!(lost > 0 && delayed > 0, "the wire was bad: {lost} lost, {delayed} delayed");
    drop(wire);
    let expected = paths.len() * ASSOCIATIONS;
    let waited = wait_for("the end of every association at its server", APPLIED, || {
        let (shut_down, lost) = peers.ended();
        (shut_down + lost.len() >= expected).then_some(())
    });
    waited.unwrap_or_else(|error| panic!("{error:#}: {:?} of {expected}\n{}", peers.ended(), flows(&world)));
    assert_eq!(peers.ended(), (expected, Vec::new()), "every association was shut down once");
    // Associations that ended 10 s ago are gone; one may still be closing if all its last packets were lost.
    let flows = flows(&world);
    let is_open =
        |line: &&str| line.contains(" SCTP ") && !line.contains(" closed ") && !line.contains(" closing ");
    assert_eq!(flows.lines().find(is_open), None, "the gateway has seen the end of each");
}
