//! Three gateways behind a router with equal-cost routes, which they announce by BGP, and each of them is interrupted in
//! another way while connections begin elsewhere and backends are replaced. With `flowSharing` no connection breaks.

use crate::floods::scene::long;
use crate::world::{APPLIED, alone, tidegate};
use anyhow::{Context, Result};
use std::time::Instant;
use tidegate::netlab::fleet::addresses::{GATEWAYS_MAX, SERVICES};
use tidegate::netlab::fleet::holders::Holders;
use tidegate::netlab::fleet::{Fleet, FleetPlan};
use tidegate::netlab::wait_for;

/// Servers that are ready at the same time. Each step that replaces one needs another.
const SERVING: u8 = 4;

/// A fleet with connections, and what has broken.
struct Interrupted {
    fleet: Fleet,
    connections: Holders,
    /// Connections to each Service that are opened in each step.
    count: usize,
    /// The next server that leaves.
    leaves: u8,
    broken: Vec<usize>,
    /// The steps in which connections broke.
    bad: Vec<String>,
}

/// In the short form 40 connections of each Service begin in each step, in the long form 400.
#[test]
fn no_connection_breaks_when_a_gateway_is_cut_off_paused_killed_or_new() {
    let _turn = alone();
    let plan = FleetPlan {
        gateways: GATEWAYS_MAX,
        servers: SERVING + 6,
        tidegate: tidegate(),
        flow_entries: 65_536,
        flow_files: true,
        bgp: true,
        sharing: Some(['a', 'a']),
    };
    let fleet = Fleet::start(plan, SERVING).expect("the fleet stands (needs root, DPDK, FRR and BIRD)");
    let connections = Holders::start(fleet.client(), &tidegate(), 1).expect("the clients start");
    let count = if long() { 400 } else { 40 };
    let broken = vec![0; SERVICES.len()];
    let mut run = Interrupted { fleet, connections, count, leaves: 1, broken, bad: Vec::new() };
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

        self.fleet.pause(2);
        let elsewhere = self.elsewhere(&[1, 3]);
        self.fleet.resume();
        elsewhere?;
        self.returns("gateway 2 was paused")?;

        self.fleet.take_gateway(3).kill();
        self.elsewhere(&[1, 2])?;
        self.end_step("gateway 3 is killed")?;
        // It has flows of gateway 3, which cannot send them again.
        self.fleet.take_gateway(1).kill();
        let begun = Instant::now();
        self.fleet.launch(1)?;
        self.fleet.gateway_mut(1).wait_until_ready()?;
        self.announces(1)?;
        println!(
            "the router has the routes of gateway 1 {:?} after its start (BFD: up to 5 s)",
            begun.elapsed()
        );
        self.used(&[1, 2])?;
        self.end_step("gateway 1, which has adopted flows, is killed and starts again")?;

        // The machine of gateway 3 is replaced. A backend has left its Services since, and serves its connections.
        self.fleet.forget_flows(3)?;
        self.fleet.unlist(self.leaves)?;
        self.leaves += 1;
        self.fleet.launch(3)?;
        self.returns("gateway 3 is new")?;
        // Connections that begin at it move when it goes.
        self.open()?;
        self.end_step("connections open at all gateways")?;
        let stopped = self.fleet.take_gateway(3).stop()?;
        assert!(stopped.success(), "{stopped}");
        self.used(&[1, 2])?;
        self.end_step("gateway 3 is drained and stopped")?;
        self.fleet.launch(3)?;
        self.returns("gateway 3 is back")
    }

    fn open(&mut self) -> Result<()> {
        self.connections.open(&SERVICES.map(|service| service.vip()), self.count)
    }

    /// The router uses only these gateways, connections begin at them, and a backend is replaced meanwhile.
    fn elsewhere(&mut self, gateways: &[usize]) -> Result<()> {
        self.used(gateways)?;
        self.open()?;
        // Every connection has sent packets to its new gateway: flows of `dsr-l2` that are not in flux are not shared.
        self.connections.settle()?;
        let comes = self.leaves + SERVING;
        self.fleet.replace(self.leaves, comes)?;
        self.leaves += 1;
        self.open()
    }

    /// The router uses all gateways again.
    fn returns(&mut self, step: &str) -> Result<()> {
        self.used(&[1, 2, 3])?;
        self.end_step(step)
    }

    fn announces(&mut self, n: usize) -> Result<()> {
        wait_for("the gateway to announce", APPLIED, || {
            let status = self.fleet.gateway_mut(n).ask(&["status", "-o", "json"]).ok()?;
            let status: serde_json::Value = serde_json::from_str(&status).ok()?;
            let announce = &status["announce"];
            (announce["announced"] == SERVICES.len() && announce["unsent"] == 0).then_some(())
        })
    }

    fn used(&self, gateways: &[usize]) -> Result<()> {
        self.fleet.router().wait_until_used(gateways)
    }

    /// Pings every connection, and prints how many broke since the last step.
    fn end_step(&mut self, step: &str) -> Result<()> {
        self.connections.settle().with_context(|| step.to_owned())?;
        let tallies = self.connections.tally(SERVICES.len())?;
        let now: Vec<usize> = tallies.iter().map(|tally| tally.broken).collect();
        let of_step: Vec<usize> = now.iter().zip(&self.broken).map(|(now, before)| now - before).collect();
        let names = SERVICES.iter().zip(&of_step);
        let names: Vec<String> =
            names.map(|(service, broken)| format!("{} {broken}", service.name)).collect();
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
