//! `drain` and `undrain`: of a backend, of a node, and of the gateway itself.

use std::collections::BTreeSet;
use std::io::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use tidegate_admin_api::{
    BackendName, Client, ClientError, FlowRow, FlowRowKind, FlowState, FlowsQuery, GatewayDrainState,
    LIMIT_DEFAULT,
};
use tidegate_policy::reconcile::DrainTarget;

use super::args::Common;
use super::failure::Failure;
use super::output::Style;
use super::query::print_change;
use super::{status_tables, tables};

/// How often the state is queried.
const POLL_INTERVAL: Duration = Duration::from_millis(250);
/// How often the remaining traffic is reported.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Arguments of `drain` and `undrain`.
#[derive(Debug, Args)]
pub struct Target {
    /// ADDRESS:PORT, ADDRESS for all its ports, or the name of a node
    #[arg(required_unless_present = "gateway")]
    target: Option<DrainTarget>,
    /// The gateway itself. While it is drained, it withdraws its announcements and forwards packets that still arrive
    #[arg(long, conflicts_with = "target")]
    gateway: bool,
    #[command(flatten)]
    common: Common,
}

/// Arguments of `drain`.
#[derive(Debug, Args)]
#[command(group = ArgGroup::new("waits").args(["gateway", "wait"]).multiple(true))]
pub struct Drain {
    #[command(flatten)]
    target: Target,
    /// Wait until the target has no connections left, apart from closed ones; --gateway always waits
    #[arg(long, conflicts_with = "gateway")]
    wait: bool,
    /// How long to wait (1h, 5m, 300s). The drain continues after the timeout, and the exit code is 3
    #[arg(long, value_name = "DURATION", default_value = "300s", value_parser = duration, requires = "waits")]
    timeout: Duration,
}

/// Parses a duration.
pub(super) fn duration(text: &str) -> Result<Duration, String> {
    tidegate_model::yaml::text::duration(text)
        .ok_or_else(|| format!("accepted: {}", tidegate_model::yaml::text::DURATION))
}

impl Drain {
    pub(super) async fn run(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Target { target, common, .. } = &self.target;
        let (client, style) = (common.socket.gateway("drains")?, common.output.style());
        let Some(target) = target else {
            return drain_gateway(&client, self.timeout, style, out).await;
        };
        let answer = client.drain(target).await?;
        print_change(style, out, &answer, &tables::drained(target, "drained", answer.backends))?;
        warn_not_kept(answer.not_kept.as_deref());
        out.flush()?;
        if self.wait { wait_for_flows(&client, target, self.timeout).await } else { Ok(()) }
    }
}

/// Waits until the drained backends have no more flows, and reports the remaining ones on standard error.
async fn wait_for_flows(client: &Client, target: &DrainTarget, timeout: Duration) -> Result<(), Failure> {
    let started = Instant::now();
    let mut report_at = Duration::ZERO;
    loop {
        let left = flows_left(client, target).await?;
        if left == 0 {
            return Ok(());
        }
        let is_over = started.elapsed() >= timeout;
        if is_over || started.elapsed() >= report_at {
            eprintln!(
                "{target} {}: {left} connections left",
                if is_over { "still draining" } else { "draining" }
            );
            report_at = started.elapsed() + REPORT_INTERVAL;
        }
        if is_over {
            return Err(Failure::NotDrained);
        }
        tokio::time::sleep(POLL_INTERVAL.min(timeout.saturating_sub(started.elapsed()))).await;
    }
}

/// The flows of the target that are not closed, counting at most the limit of an answer for each of its backends.
async fn flows_left(client: &Client, target: &DrainTarget) -> Result<usize, Failure> {
    let rows = client.backends().await?.backends;
    let covered = rows.iter().map(|row| &row.backend);
    let covered = covered.filter(|one| target.covers(one.address, one.port, one.node.as_deref()));
    let covered: BTreeSet<SocketAddr> = covered.map(|one| SocketAddr::new(one.address, one.port)).collect();
    let mut left = 0;
    for backend in covered {
        let backend = Some(BackendName { address: backend.ip(), port: Some(backend.port()) });
        let query = FlowsQuery { backend, limit: LIMIT_DEFAULT, ..FlowsQuery::default() };
        let answer = match client.flows(&query).await {
            Ok(answer) => answer,
            // The backend was removed meanwhile.
            Err(ClientError::Refused { status: 404, .. }) => continue,
            Err(error) => return Err(error.into()),
        };
        // A session affinity entry is no connection.
        let is_open =
            |flow: &&FlowRow| flow.kind != FlowRowKind::Affinity && flow.state != FlowState::Closed.as_str();
        left += answer.flows.iter().filter(is_open).count() + answer.silent_workers;
    }
    Ok(left)
}

impl Target {
    pub(super) async fn undrain(&self, out: &mut impl Write) -> Result<(), Failure> {
        let Self { target, common, .. } = self;
        let (client, style) = (common.socket.gateway("drains")?, common.output.style());
        let not_kept = match target {
            Some(target) => {
                let answer = client.undrain(target).await?;
                print_change(style, out, &answer, &tables::drained(target, "undrained", answer.backends))?;
                answer.not_kept
            }
            None => {
                let answer = client.undrain_gateway().await?;
                print_change(style, out, &answer, &format!("gateway/{} undrained", answer.gateway))?;
                answer.not_kept
            }
        };
        warn_not_kept(not_kept.as_deref());
        Ok(())
    }
}

/// Warns if a drain was not saved and would be lost in a restart.
fn warn_not_kept(not_kept: Option<&str>) {
    if let Some(why) = not_kept {
        eprintln!("Warning: {why}");
    }
}

/// Drains the gateway itself, and reports the remaining traffic on standard error until it is drained.
async fn drain_gateway(
    client: &Client,
    timeout: Duration,
    style: Style,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let started = Instant::now();
    let mut answer = client.drain_gateway().await?;
    warn_not_kept(answer.not_kept.as_deref());
    let mut report_at = Duration::ZERO;
    let is_drained = loop {
        match answer.drain.state {
            GatewayDrainState::Drained => break true,
            GatewayDrainState::Draining if started.elapsed() >= timeout => break false,
            GatewayDrainState::Draining => {}
            GatewayDrainState::Serving => {
                let why =
                    "the drain was cancelled by `tidegate undrain --gateway`, and the gateway serves again";
                return Err(Failure::Cancelled(why));
            }
        }
        if started.elapsed() >= report_at {
            eprintln!(
                "gateway/{} draining: {}",
                answer.gateway,
                status_tables::drain_progress(&answer.drain)
            );
            report_at = started.elapsed() + REPORT_INTERVAL;
        }
        tokio::time::sleep(POLL_INTERVAL.min(timeout.saturating_sub(started.elapsed()))).await;
        answer.drain = client.status().await?.drain;
    };
    let done = match is_drained {
        true => format!("gateway/{} drained", answer.gateway),
        false => {
            format!(
                "gateway/{} still draining: {}",
                answer.gateway,
                status_tables::drain_progress(&answer.drain)
            )
        }
    };
    print_change(style, out, &answer, &done)?;
    if is_drained { Ok(()) } else { Err(Failure::NotDrained) }
}
