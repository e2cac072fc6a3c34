//! Restarts of a gateway in different ways, while the generator streams packets of established connections.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, wait_for};

use super::testbed::{Setup, Testbed, log_end, testbed};
use super::tidegate::{Metrics, launch, start, wait_until_ready};
use crate::generator::{Stream, Window};
use crate::scenario::Scenario;

/// How the gateway is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Action {
    /// Nothing: shows what this machine loses in any case.
    Nothing,
    /// SIGHUP, with a changed configuration.
    Reload,
    /// SIGKILL, and the next process immediately.
    Kill,
    /// SIGTERM, and the next process after the first has exited, as `systemctl restart` does.
    Restart,
    /// SIGTERM, and the next process is another build.
    Upgrade,
}

impl Action {
    pub(crate) const ALL: [Self; 5] = [Self::Nothing, Self::Reload, Self::Kill, Self::Restart, Self::Upgrade];

    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Nothing => "nothing is changed",
            Self::Reload => "SIGHUP",
            Self::Kill => "`kill -9`, start",
            Self::Restart => "SIGTERM, start",
            Self::Upgrade => "SIGTERM, start of another build",
        }
    }
}

/// The effect of one action.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Restarted {
    pub(crate) window: Window,
    /// From the signal until the gateway was ready again; 0 if it kept running.
    pub(crate) ready_ms: f64,
    /// Flows that the next process restored, and the time that it took.
    pub(crate) restored: Option<(u64, f64)>,
}

/// The stream runs for this long before and after each action.
const AROUND: Duration = Duration::from_millis(500);
const ENDS: Duration = Duration::from_secs(20);
/// The maximum time until a configuration is read and applied.
const RELOADED: Duration = Duration::from_secs(10);

/// The generator's input and output, line by line.
struct Conversation {
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Conversation {
    fn send(&mut self, word: &str) -> Result<()> {
        writeln!(self.to, "{word}")?;
        Ok(self.to.flush()?)
    }

    fn receive(&mut self) -> Result<String> {
        self.from.next().context("the generator has ended")?.context("the generator")
    }
}

/// Performs each action on a gateway, `rounds` times, and calls `report` after each. `next` is the binary of another
/// build.
///
/// # Errors
/// The lab or a program does not start, or the gateway is not ready again in time.
pub(crate) fn restarts(
    scenario: &Scenario,
    setup: &Setup,
    next: &Path,
    stream: Stream,
    rounds: u32,
    mut report: impl FnMut(Action, Restarted),
) -> Result<()> {
    // A tmpfs on every Linux, like /run in operation.
    let flows = tempfile::Builder::new().prefix("tidegate-bench").tempdir_in("/dev/shm")?;
    let Testbed { lab, mut generator, forwarder_devices } = testbed(scenario, setup, None, Some(stream))?;
    let mut gateway = start(&lab, scenario, setup, &forwarder_devices, Some(flows.path()))?;
    let (to, from) = (generator.stdin.take(), generator.stdout.take());
    let (to, from) = to.zip(from).context("the generator's input and output")?;
    let mut conversation = Conversation { to, from: BufReader::new(from).lines() };
    let line = conversation.receive().with_context(|| log_end(&mut gateway))?;
    ensure!(line == "ready", "the generator sent {line:?}");
    let mut is_next = false;
    for _ in 0..rounds {
        for action in Action::ALL {
            conversation.send("begin")?;
            std::thread::sleep(AROUND);
            let begun = Instant::now();
            is_next ^= action == Action::Upgrade;
            let binary = if is_next { next } else { &setup.tidegate };
            let ready_ms = match action {
                Action::Nothing => 0.0,
                Action::Reload => {
                    reload(&lab, &mut gateway)?;
                    0.0
                }
                Action::Kill | Action::Restart | Action::Upgrade => {
                    if action == Action::Kill {
                        gateway.kill();
                    } else {
                        gateway.signal(Signal::TERM);
                        ensure!(gateway.wait(ENDS)?.success(), "the gateway failed{}", log_end(&mut gateway));
                    }
                    gateway = launch(&lab, binary)?;
                    wait_until_ready(&lab, &mut gateway)?;
                    begun.elapsed().as_secs_f64() * 1e3
                }
            };
            std::thread::sleep(AROUND);
            conversation.send("end")?;
            let window = serde_json::from_str(&conversation.receive()?)?;
            let restored = if ready_ms == 0.0 { None } else { restored(&lab)? };
            report(action, Restarted { window, ready_ms, restored });
        }
    }
    drop(conversation);
    ensure!(generator.wait()?.success(), "the generator failed");
    Ok(())
}

/// Changes the configuration, and waits until the gateway has applied it.
fn reload(lab: &Lab, gateway: &mut LabProcess) -> Result<()> {
    let path = lab.directory().join("gateway.yaml");
    let text = std::fs::read_to_string(&path)?;
    let (now, next) = if text.contains("drainTimeout: 5s") { ("5s", "6s") } else { ("6s", "5s") };
    let changed = text.replace(&format!("drainTimeout: {now}"), &format!("drainTimeout: {next}"));
    std::fs::write(&path, changed)?;
    let reloads = |gateway: &LabProcess| gateway.log().matches("configuration reloaded").count();
    let before = reloads(gateway);
    gateway.signal(Signal::HUP);
    wait_for("the configuration to be reloaded", RELOADED, || (reloads(gateway) > before).then_some(()))
}

fn restored(lab: &Lab) -> Result<Option<(u64, f64)>> {
    let metrics = Metrics::read(lab)?;
    let flows = metrics.value("tidegate_restored_flows{result=\"restored\"}");
    let seconds = metrics.value("tidegate_restored_seconds ");
    Ok(flows.zip(seconds).map(|(flows, seconds)| (flows as u64, seconds * 1e3)))
}
