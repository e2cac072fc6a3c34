//! Starts the announcer with its inputs from the daemon, and converts its state for display.
//!
//! `tidegate-announce` decides what is announced.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use tidegate_admin_api::{self as api, GatewayDrainState};
use tidegate_announce::Announcer;
use tidegate_announce::announcer::{Condition, Round, Setup, directory_beside};
use tidegate_announce::status::{BgpStatus, KernelStatus, PeerStatus, Status};
use tidegate_model::config::GatewayConfig;

use super::last_round;
use super::state::State;

/// The longest wait for the withdrawal at shutdown. BIRD needs about 20 ms for 10,000 routes.
const WITHDRAW_MAX: Duration = Duration::from_millis(800);
/// If the announcer's state is older than this, its thread hangs or has failed. A BIRD that does not answer delays it
/// by some seconds.
const AGE_MAX: Duration = Duration::from_secs(15);

/// Starts the announcer of this gateway.
pub(super) fn start(config: &GatewayConfig, state: &Arc<State>) -> anyhow::Result<Arc<Announcer>> {
    let of_thread = Arc::clone(state);
    let directory = absolute(&directory_beside(&config.admin.socket));
    let announcer = Announcer::start(directory, move || {
        let forwarding = of_thread.can_forward();
        if !forwarding {
            of_thread.interrupt();
        }
        let draining = of_thread.drain.phase() != GatewayDrainState::Serving;
        Condition { forwarding, draining, catching_up: of_thread.catches_up() }
    })
    .context("cannot start the announcer thread")?;
    let announcer = Arc::new(announcer);
    announcer.configure(setup(config));
    state.announce_with(Arc::clone(&announcer));
    Ok(announcer)
}

/// The part of a configuration that the announcer uses.
pub(super) fn setup(config: &GatewayConfig) -> Setup {
    let interfaces = &config.dataplane.network.interfaces;
    let own = interfaces.iter().map(|interface| interface.addresses.clone()).collect();
    Setup { config: config.announce.clone(), own }
}

/// The part of a round that the announcer uses.
pub(super) fn round(round: &last_round::Round) -> Round {
    // Pools determine which gateways announce their addresses, and how.
    let vips = round.outcome.services.iter().flat_map(|service| &service.vips);
    let withheld: BTreeSet<IpAddr> =
        vips.filter(|vip| vip.is_of_pool() && !vip.edge.bgp).map(|vip| vip.address).collect();
    let serves = Arc::new(move |vip: IpAddr| !withheld.contains(&vip));
    Round { outcome: Arc::clone(&round.outcome), unapplied: Arc::clone(&round.unapplied), serves }
}

/// Withdraws everything, before the gateway stops forwarding.
pub(super) async fn withdraw(announcer: Arc<Announcer>) {
    let withdrawn = tokio::task::spawn_blocking(move || announcer.withdraw(WITHDRAW_MAX)).await;
    if !matches!(withdrawn, Ok(true)) {
        tracing::warn!("timed out withdrawing announcements; they end when BIRD exits");
    }
}

/// Closes the sessions and removes the kernel routes.
pub(super) async fn stop(announcer: Arc<Announcer>) {
    // An error of the thread has been logged.
    let _ = tokio::task::spawn_blocking(move || announcer.stop()).await;
}

/// BIRD gets the path of its files as an argument, so that a later gateway can recognise it.
fn absolute(path: &Path) -> std::path::PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// The state for `status`; `None` if no announcements are configured.
pub(super) fn shown(status: &Status) -> Option<api::AnnounceStatus> {
    status.is_configured.then(|| api::AnnounceStatus {
        announced: status.announced,
        prefixes: status.prefixes,
        unsent: status.unsent,
        withheld: status
            .withheld
            .iter()
            .map(|(&vip, why)| api::WithheldVip { vip, reason: why.to_string() })
            .collect(),
        bgp: status.bgp.as_ref().map(shown_bgp),
        kernel_routes: status.kernel.as_ref().map(|kernel| api::KernelRoutesStatus {
            table: kernel.table,
            protocol: kernel.protocol,
            routes: kernel.routes,
            last_error: kernel.last_error.clone(),
        }),
    })
}

fn shown_bgp(bgp: &BgpStatus) -> api::BgpStatus {
    let peer = |peer: &PeerStatus| api::BgpPeerStatus {
        address: peer.address,
        asn: peer.asn,
        up: peer.is_up(),
        state: peer.session.state.as_str().to_owned(),
        since: peer.since.to_string(),
        since_seconds: peer.since_instant.elapsed().as_secs(),
        established: peer.established,
        sent_ipv4: peer.session.sent[0],
        sent_ipv6: peer.session.sent[1],
        hold_seconds: peer.session.hold_seconds,
        bfd: peer.bfd.clone(),
        last_error: peer.session.last_error.clone(),
    };
    api::BgpStatus {
        running: bgp.is_running,
        restarts: bgp.restarts,
        last_error: bgp.last_error.clone(),
        peers: bgp.peers.iter().map(peer).collect(),
    }
}

/// What does not work, as text for display.
pub(super) fn degraded(status: &Status) -> Vec<String> {
    let mut found = Vec::new();
    if let Some(age) = status.at.map(|at| at.elapsed()).filter(|age| *age > AGE_MAX) {
        let age = age.as_secs();
        found.push(format!("the announcer thread hangs or has failed: no update for {age} s"));
    }
    if let Some(bgp) = &status.bgp {
        if let Some(why) = &bgp.last_error {
            found.push(format!("BGP: {why}"));
        }
        for peer in bgp.peers.iter().filter(|peer| bgp.is_running && !peer.is_up()) {
            let state = peer.session.state.as_str();
            let why = peer.why_down(Instant::now()).map(|why| format!(": {why}")).unwrap_or_default();
            found.push(format!("BGP session with {}: {state} since {}{why}", peer.address, peer.since));
        }
    }
    found.extend(status.outside.iter().map(|aggregate| {
        format!("announce.bgp.aggregates: {aggregate} is not announced: it contains no address of any pool")
    }));
    let kernel = status.kernel.as_ref().and_then(|KernelStatus { last_error, .. }| last_error.clone());
    found.extend(kernel);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bird_without_the_latest_configuration_is_reported() {
        let last_error = Some("BIRD is slow".to_owned());
        let bgp = BgpStatus { is_running: true, last_error, ..BgpStatus::default() };
        let status = Status { bgp: Some(bgp), ..Status::default() };
        assert_eq!(degraded(&status), ["BGP: BIRD is slow"]);
    }

    #[test]
    fn an_aggregate_that_is_not_announced_is_reported() {
        let outside = ["203.0.113.0/24".parse().unwrap()];
        let status = Status { outside: outside.into(), ..Status::default() };
        assert_eq!(
            degraded(&status),
            ["announce.bgp.aggregates: 203.0.113.0/24 is not announced: it contains no address of any pool"]
        );
    }

    #[test]
    fn a_state_that_is_too_old_is_reported() {
        let status = |age: Duration| Status { at: Instant::now().checked_sub(age), ..Status::default() };
        assert_eq!(degraded(&status(AGE_MAX / 2)), Vec::<String>::new());
        let reported = degraded(&status(AGE_MAX * 2));
        assert!(
            reported.len() == 1 && reported[0].ends_with("has failed: no update for 30 s"),
            "{reported:?}"
        );
    }
}
