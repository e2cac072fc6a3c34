//! SYN cookies under a SYN flood at the full rate of the generator: the flooded Services themselves stay reachable.
//!
//! The clients are real TCP stacks, which offer timestamps, window scale and selective acknowledgements.

use std::thread;

use tidegate_netlab::GatewayOptions;
use tidegate_netlab::addresses::CLIENT_ADDRESSES;
use tidegate_netlab::flood::{Kind, Limits, Target};
use tidegate_netlab::modes::{ModePath, all_paths};

use super::setup::{Attempts, Others, Setup, attacked_paths, long, seconds, target};
use crate::world::{APPLIED, alone};

const FLOODED: &str = "tidegate_services_under_syn_flood";

#[test]
fn flooded_services_with_syn_cookies_serve_clients_and_keep_connections() {
    let _machine = alone();
    let (wanted, least) = if long() { (10_000, 95) } else { (480, 90) };
    let mut setup = Setup::start_with(GatewayOptions {
        flow_entries: 262_144,
        syn_cookies: "auto",
        ..GatewayOptions::default()
    });
    let attacked: Vec<ModePath> =
        attacked_paths().into_iter().filter(|path| !path.forwarding.starts_with("dsr")).collect();
    let targets: Vec<Target> = attacked.iter().copied().map(target).collect();
    open(&mut setup, &attacked, wanted);

    let before = setup.counters();
    // It is stopped below. On a busy machine the generator is slow, and memory pressure takes longer to build up.
    let flood = setup.attacker.flood(Kind::Syn, &targets, Limits::full_rate(APPLIED * 3));
    flood.wait_until_begun().expect("the flood begins");
    setup.world.wait_until("cookies for the flooded Services", || {
        (setup.counters().sum(FLOODED, "") >= targets.len() as f64).then_some(())
    });
    let services = setup.world.gateway().query(&["services", "-A", "-o", "wide"]).expect("an answer");
    assert!(services.contains("SYN flood, answered by SYN cookies"), "{services}");
    setup.world.wait_until("a line of the log", || {
        setup.world.gateway().log().contains("SYN flood: many handshakes are not completed").then_some(())
    });
    let others = setup.others();
    let own = Others::start(&setup.world, attacked.iter().copied());
    // These connections outlive the flood, and the cookies.
    let spliced: Vec<_> =
        attacked.iter().flat_map(|path| (0..4).map(|n| (*path, setup.world.connect(*path, n)))).collect();
    thread::sleep(seconds(6, 30));
    let sent = flood.stop().expect("the flood is sent");
    let (others, own) = (others.finish(), own.finish());
    let during = setup.counters();
    let served = |what: &str, attempts: &Attempts| {
        let (served, all) = (attempts.succeeded(), attempts.count());
        println!("new connections {what}: {served} of {all} succeeded{}", attempts.failures());
        assert!(all > 0 && served * 100 >= all * least, "{what}: {served} of {all}{}", attempts.failures());
    };
    let cookies = |result: &str| during.grown(&before, "tidegate_syn_cookies_total", result);
    println!(
        "{:.0} SYNs a second for {:.0} s; cookies: {} sent, {} returned, {} segments without one",
        sent.rate(),
        sent.time.as_secs_f64(),
        cookies("sent"),
        cookies("accepted"),
        cookies("refused"),
    );
    served("of others", &others);
    served("to the flooded Services", &own);
    assert!(cookies("sent") > 0.0 && cookies("accepted") > 0.0, "cookies were used");

    let mut alive = 0;
    for (path, connection) in spliced {
        // An attempt may have failed to connect; such failures are counted above.
        if let Ok(mut connection) = connection {
            connection
                .ping_late(tidegate_netlab::client::TIMEOUT)
                .unwrap_or_else(|error| panic!("{} {}: {error:#}", path.label(), path.family));
            setup.established.push((path, connection));
            alive += 1;
        }
    }
    assert!(alive > 0, "connections that began with a cookie");
    if long() {
        // Unanswered handshakes from before the cookies count as pressure until they time out.
        setup.world.wait_until("the end of the flood to be noticed", || {
            (setup.counters().sum(FLOODED, "") == 0.0).then_some(())
        });
    }
    let broken = setup.ping_late(|_| true);
    println!("{} established connections live, {} broke", setup.established.len(), broken.len());
    assert!(broken.is_empty(), "established connections broke: {broken:?}");
}

/// Opens connections over all paths, until there are `wanted` ones.
fn open(setup: &mut Setup, attacked: &[ModePath], wanted: usize) {
    let paths: Vec<ModePath> = all_paths().into_iter().chain(attacked.iter().copied()).collect();
    for n in setup.established.len()..wanted {
        let path = paths[n % paths.len()];
        let number = u8::try_from(n / paths.len() % usize::from(CLIENT_ADDRESSES)).expect("below 16");
        let connection = setup.world.connect(path, number);
        let connection =
            connection.unwrap_or_else(|error| panic!("{} {}: {error:#}", path.label(), path.family));
        setup.established.push((path, connection));
    }
}
