//! Two gateways behind a router: all backends are replaced under live connections, a gateway is killed half way, and both
//! are upgraded. The scenario is that of `tidegate demo --fleet`.

use crate::floods::scene::long;
use crate::world::{alone, tidegate};
use tidegate::demo::fleet::{FleetOptions, print, run};
use tidegate::netlab::fleet::addresses::SERVICES;

/// In the short form 1,000 connections of each Service, in the long form 10,000.
#[test]
fn a_rolling_update_of_a_fleet_breaks_no_connection_that_its_gateway_knows() {
    let _turn = alone();
    let connections = if long() { 10_000 } else { 1_000 };
    let outcome = run(&FleetOptions { connections, bgp: true, sharing: false, tidegate: tidegate() })
        .expect("the fleet runs");
    print(&outcome);
    for (service, tally) in SERVICES.iter().zip(&outcome.tallies) {
        assert!(tally.opened >= connections, "{}: {tally:?}", service.name);
        // While both gateways run and know every change, the update itself breaks nothing in any mode.
        for step in ["backend 1 of", "backend 2 of", "a backend dies"] {
            assert_eq!(outcome.broken_in(step, service.name), 0, "{}: {step}", service.name);
        }
    }
    // Without history a gateway takes the other one's flows to backends that drain for flows of those that stay. What
    // the on-change tables mark is the exception.
    let killed = |service: &str| outcome.broken_in("gateway 1 is killed", service);
    assert!(killed("dsr-l2-on-change") < connections / 10, "{} broke", killed("dsr-l2-on-change"));
    for stop in &outcome.stops {
        assert!(
            *stop < std::time::Duration::from_secs(20),
            "a drain ends when nothing comes any more: {stop:?}"
        );
    }
}
