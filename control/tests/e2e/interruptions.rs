//! Three gateways behind a router with equal-cost routes, which they announce by BGP to FRR or to GoBGP. Gateways are
//! interrupted in every way while connections open elsewhere and backends are replaced. With `flowSharing` no
//! connection breaks.
//!
//! Gateway 1 serves `nat` whenever it can (docs/fleet.md), so it is the one that is interrupted.

use std::time::Instant;

use anyhow::{Context, Result};
use tidegate_netlab::fleet::addresses::{FleetService, GATEWAYS_MAX, SERVICES};
use tidegate_netlab::fleet::client_processes::ClientProcesses;
use tidegate_netlab::fleet::{Fleet, FleetPlan, RouterKind};
use tidegate_netlab::wait_for;

use crate::floods::setup::long;
use crate::world::{APPLIED, alone, tidegate};

/// The number of servers that are ready at a time. Each step that replaces one needs another.
const SERVING: u8 = 4;

/// A fleet with connections, and the steps that broke some.
struct Interrupted {
    fleet: Fleet,
    connections: ClientProcesses,
    /// Connections to each Service that are opened at a time.
    count: usize,
    /// The next server to be replaced.
    oldest: u8,
    broken: Vec<usize>,
    /// The steps in which connections broke.
    bad: Vec<String>,
}

#[test]
fn behind_frr_no_interruption_of_a_gateway_breaks_a_connection() {
    interrupt(RouterKind::Frr);
}

#[test]
fn behind_gobgp_no_interruption_of_a_gateway_breaks_a_connection() {
    interrupt(RouterKind::GoBgp);
}

/// The short form opens 40 connections of each Service at a time, the long form 400.
fn interrupt(router: RouterKind) {
    let _machine = alone();
    let plan = FleetPlan {
        gateways: GATEWAYS_MAX,
        servers: SERVING + 7,
        tidegate: tidegate(),
        flow_entries: 65_536,
        flow_files: true,
        router,
        sharing: Some(['a', 'a']),
    };
    let fleet = Fleet::start(plan, SERVING)
        .expect("the fleet is built (needs root, DPDK, BIRD, keepalived, and FRR or GoBGP)");
    let connections = ClientProcesses::start(fleet.client(), &tidegate(), 1).expect("the clients start");
    let count = if long() { 400 } else { 40 };
    let broken = vec![0; SERVICES.len()];
    let mut run = Interrupted { fleet, connections, count, oldest: 1, broken, bad: Vec::new() };
    let steps = run.steps();
    steps.unwrap_or_else(|error| panic!("{error:#}\n{}", run.fleet.condition()));
    assert!(run.bad.is_empty(), "connections broke: {:?}\n{}", run.bad, run.fleet.condition());
}

impl Interrupted {
    fn steps(&mut self) -> Result<()> {
        self.open()?;
        self.end_step("connections open")?;

        self.fleet.set_link(1, false)?;
        self.elsewhere(&[2, 3])?;
        self.fleet.set_link(1, true)?;
        self.returns("gateway 1 was cut off")?;

        self.fleet.pause(1);
        let elsewhere = self.elsewhere(&[2, 3]);
        self.fleet.resume();
        elsewhere?;
        self.returns("gateway 1 was paused")?;

        self.fleet.take_gateway(1).kill();
        self.elsewhere(&[2, 3])?;
        self.end_step("gateway 1 is killed")?;
        // It has flows of gateway 1, which is dead and cannot send them again.
        self.fleet.take_gateway(2).kill();
        let begun = Instant::now();
        self.fleet.launch(2)?;
        self.replace()?;
        self.announces(2)?;
        println!("gateway 2 announces its VIPs {:?} after its start", begun.elapsed());
        self.used(&[2, 3])?;
        self.end_step("gateway 2, which has adopted flows, is killed and starts again")?;

        // The machine of gateway 1 is replaced. A backend has been removed from its Services since, and still serves
        // its connections.
        self.fleet.forget_flows(1)?;
        self.fleet.unlist(self.oldest)?;
        self.oldest += 1;
        self.fleet.launch(1)?;
        self.replace()?;
        self.returns("gateway 1 is new")?;
        // Connections that start at gateway 1 move when it stops.
        self.open()?;
        self.end_step("connections open at all gateways")?;
        let stopped = self.fleet.take_gateway(1).stop()?;
        assert!(stopped.success(), "{stopped}");
        self.elsewhere(&[2, 3])?;
        self.end_step("gateway 1 is drained and stopped")?;
        self.fleet.launch(1)?;
        self.returns("gateway 1 is back")
    }

    fn open(&mut self) -> Result<()> {
        self.connections.open(&SERVICES.map(|service| service.vip()), self.count)
    }

    /// Limits the router to these gateways, opens connections there, and replaces a backend meanwhile.
    fn elsewhere(&mut self, gateways: &[usize]) -> Result<()> {
        self.used(gateways)?;
        self.open()?;
        self.replace()?;
        self.open()
    }

    /// Replaces a backend, which still serves its connections.
    fn replace(&mut self) -> Result<()> {
        self.fleet.replace(self.oldest, self.oldest + SERVING)?;
        self.oldest += 1;
        Ok(())
    }

    /// Lets the router use all gateways again.
    fn returns(&mut self, step: &str) -> Result<()> {
        self.used(&[1, 2, 3])?;
        self.end_step(step)
    }

    fn announces(&mut self, n: usize) -> Result<()> {
        wait_for("the gateway to announce", APPLIED, || {
            let status = self.fleet.gateway_mut(n).query(&["status", "-o", "json"]).ok()?;
            let status: serde_json::Value = serde_json::from_str(&status).ok()?;
            let announce = &status["announce"];
            let by_bgp = SERVICES.iter().filter(|service| !service.is_nat()).count();
            (announce["announced"] == by_bgp && announce["unsent"] == 0).then_some(())
        })
    }

    fn used(&self, gateways: &[usize]) -> Result<()> {
        self.fleet.wait_until_used(gateways)
    }

    /// Pings every connection, and prints how many broke since the last step.
    fn end_step(&mut self, step: &str) -> Result<()> {
        self.connections.ping_round().with_context(|| step.to_owned())?;
        let tallies = self.connections.tally(SERVICES.len())?;
        let now: Vec<usize> = tallies.iter().map(|tally| tally.broken).collect();
        let of_step: Vec<usize> = now.iter().zip(&self.broken).map(|(now, before)| now - before).collect();
        let name = |(service, broken): (&FleetService, &usize)| format!("{} {broken}", service.name);
        let names: Vec<String> = SERVICES.iter().zip(&of_step).map(name).collect();
        let all: usize = tallies.iter().map(|tally| tally.opened).sum();
        println!("{step}: of {all} connections broke: {}", names.join(", "));
        if of_step.iter().any(|&broken| broken > 0) {
            eprintln!("{tallies:?}\n{}", self.fleet.condition());
            self.bad.push(step.to_owned());
        }
        self.broken = now;
        Ok(())
    }
}
