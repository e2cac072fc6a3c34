//! Two gateways behind a router: all backends are replaced under live connections, one gateway is killed halfway, and
//! both are upgraded. The scenario is that of `tidegate-demo --fleet`.

use tidegate_netlab::demo::fleet::{FleetOptions, print, run};
use tidegate_netlab::fleet::addresses::SERVICES;

use crate::floods::setup::long;
use crate::world::{alone, tidegate};

/// The short form has 1,000 connections of each Service, the long form 10,000.
#[test]
fn a_rolling_update_of_a_fleet_that_shares_flows_breaks_no_connection() {
    let _machine = alone();
    let connections = if long() { 10_000 } else { 1_000 };
    let outcome = run(&FleetOptions { connections, bgp: true, sharing: true, tidegate: tidegate() })
        .expect("the fleet runs");
    print(&outcome);
    for (place, (service, tally)) in SERVICES.iter().zip(&outcome.tallies).enumerate() {
        assert!(tally.opened >= connections, "{}: {tally:?}", service.name);
        for step in &outcome.steps {
            assert_eq!(step.broken[place], 0, "{}: {}: {tally:?}", service.name, step.name);
        }
    }
    // With 10,000 connections of each Service, two cores may be too busy to answer BFD within 5 s.
    if !long() {
        let (changes, needed) = outcome.route_changes;
        // If the machine stalls for the 5 s of BFD, one gateway may leave and return once more.
        assert!(changes <= needed + 2, "a router keeps its routes while the gateway runs: {changes}");
    }
    for stop in &outcome.stops {
        assert!(
            *stop < std::time::Duration::from_secs(20),
            "a drain ends when no packet arrives any more: {stop:?}"
        );
    }
}
