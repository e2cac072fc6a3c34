//! The last step of the demo: a flood of SYNs with forged sources, and its effect on other clients.
//!
//! The attacked Services use SYN cookies, so they stay reachable too.

use super::report::print_table;
use crate::addresses::{TCP_ECHO_PORT, client};
use crate::client::{EchoConnection, Load};
use crate::flood::{Attacker, Kind, Limits, Target, prepare_server, set_priority};
use crate::modes::{ModePath, all_paths};
use crate::{Gateway, Lab, wait_for};
use anyhow::Result;
use std::net::SocketAddr;
use std::time::Duration;

/// SYNs a second. A machine whose two cores do everything loses none at this rate.
const RATE: u64 = 40_000;
const GATEWAY_PRIORITY: i32 = -10;
const TIME: Duration = Duration::from_secs(4);
/// Connections of each path that are open before the flood.
const OPEN: usize = 12;

/// A path during the flood.
struct Watched {
    path: ModePath,
    load: Load,
    open: Vec<EchoConnection>,
}

/// Floods the Services of the modes that translate addresses, while connections stay open and new ones are opened on
/// every path.
pub(super) fn flood(lab: &Lab, gateway: &Gateway, problems: &mut Vec<String>) -> Result<()> {
    for n in 1..=lab.plan().servers {
        prepare_server(lab.server(n).namespace())?;
    }
    // A real gateway has its own core.
    set_priority(gateway.pid(), GATEWAY_PRIORITY)?;
    let attacker = Attacker::join(lab)?;
    let is_attacked = |path: &ModePath| !path.forwarding.starts_with("dsr");
    let targets: Vec<Target> = all_paths()
        .iter()
        .filter(|path| is_attacked(path))
        .map(|path| Target { vip: path.vip, tcp: TCP_ECHO_PORT, udp: TCP_ECHO_PORT })
        .collect();
    let mut opened = Vec::new();
    for path in all_paths() {
        let any = SocketAddr::new(client(path.family, 4), 0);
        let open: Result<Vec<_>> =
            (0..OPEN).map(|_| EchoConnection::connect(lab.client(), any, path.tcp_echo())).collect();
        match open {
            Ok(open) => opened.push((path, open)),
            Err(error) => problems.push(format!("{} {}: {error:#}", path.label(), path.family)),
        }
    }
    let flood = attacker.flood(Kind::Syn, &targets, Limits::full_rate(TIME).at(RATE));
    flood.wait_until_begun()?;
    // A client that connects before the gateway uses cookies competes with the flood for a moment. On a busy machine
    // the flood may be too slow to trigger cookies, and then they are not needed.
    let under_flood = || gateway.metric("tidegate_services_under_syn_flood", &[]).ok();
    let _ = wait_for("SYN cookies", TIME / 4, || under_flood().filter(|services| *services > 0.0));
    let watched: Vec<Watched> = opened
        .into_iter()
        .map(|(path, open)| {
            let load = Load::start(lab.client(), client(path.family, 5), path.tcp_echo());
            Watched { path, load, open }
        })
        .collect();
    let sent = flood.finish()?;
    let rows: Vec<_> = watched.into_iter().map(|one| row(one, is_attacked, problems)).collect();
    let cookies = gateway.metric("tidegate_syn_cookies_total", &["result=\"sent\""])?;
    println!(
        "\n{:.0} forged SYNs a second for {:.0} s at nat and fullnat ({cookies:.0} SYN cookies):",
        sent.rate(),
        sent.time.as_secs_f64(),
    );
    print_table(&["mode", "family", "under flood", "new conns", "failed", "open conns survive"], &rows);
    Ok(())
}

/// The line of a path.
fn row(watched: Watched, is_attacked: impl Fn(&ModePath) -> bool, problems: &mut Vec<String>) -> Vec<String> {
    let Watched { path, load, mut open } = watched;
    let attempts = load.finish();
    let errors: Vec<_> = attempts.iter().filter_map(|one| one.outcome.as_ref().err()).collect();
    let name = format!("{} {}", path.label(), path.family);
    // With a cookie, also one of the server's kernel, the last segment of the handshake is not retransmitted. If it is
    // lost, a client that waits for the server's first line never gets it.
    if errors.len() > (attempts.len() / 20).max(1) {
        problems.push(format!(
            "{name}: {} of {} attempts failed: {}",
            errors.len(),
            attempts.len(),
            errors[0]
        ));
    }
    let all = open.len();
    open.retain_mut(|connection| {
        let answer = connection.ping();
        if let Err(error) = &answer {
            problems.push(format!("{name}: an open connection broke: {error:#}"));
        }
        answer.is_ok()
    });
    vec![
        path.label(),
        path.family.to_string(),
        if is_attacked(&path) { "yes" } else { "no" }.to_owned(),
        attempts.len().to_string(),
        errors.len().to_string(),
        format!("{} of {all}", open.len()),
    ]
}
