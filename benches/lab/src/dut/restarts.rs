//! Restarts of a gateway in each way, while the generator streams packets of established connections.

use std::io::{BufRead as _, BufReader, Lines, Write as _};
use std::path::Path;
use std::process::{ChildStdin, ChildStdout};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, wait_for};

use super::stand::{Setup, Stand, last_words, stand};
use super::tidegate::{Metrics, launch, start, wait_until_ready};
use crate::generator::{Stream, Window};
use crate::scenario::Scenario;

/// How the gateway is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// Not at all: what is lost on this machine in any case.
    Nothing,
    /// SIGHUP, with a changed configuration.
    Reload,
    /// SIGKILL, and the next process at once.
    Kill,
    /// SIGTERM, and the next process when the first has ended, as `systemctl restart` does.
    Restart,
    /// The same, and the next process is another build.
    Upgrade,
}

impl Way {
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

/// What one change did.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Restarted {
    pub(crate) window: Window,
    /// From the signal until the gateway was ready again; 0 if it went on.
    pub(crate) ready_ms: f64,
    /// Flows that the next process restored, and how long it took.
    pub(crate) restored: Option<(u64, f64)>,
}

/// The stream goes on for so long before and after each change.
const AROUND: Duration = Duration::from_millis(500);
const ENDS: Duration = Duration::from_secs(20);
/// A configuration is read and applied within this time.
const RELOADED: Duration = Duration::from_secs(10);

/// The generator, by its lines.
struct Conversation {
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Conversation {
    fn say(&mut self, word: &str) -> Result<()> {
        writeln!(self.to, "{word}")?;
        Ok(self.to.flush()?)
    }

    fn hear(&mut self) -> Result<String> {
        self.from.next().context("the generator has ended")?.context("the generator")
    }
}

/// Changes a gateway in each of these ways, `rounds` times, and calls `tell` after each change. `next` is the binary of another
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
    mut tell: impl FnMut(Way, Restarted),
) -> Result<()> {
    // tmpfs on every Linux, as /run in operation.
    let flows = tempfile::Builder::new().prefix("tidegate-bench").tempdir_in("/dev/shm")?;
    let Stand { lab, mut generator, forwarder_devices } = stand(scenario, setup, None, Some(stream))?;
    let mut gateway = start(&lab, scenario, setup, &forwarder_devices, Some(flows.path()))?;
    let (to, from) = (generator.stdin.take(), generator.stdout.take());
    let (to, from) = to.zip(from).context("the generator's input and output")?;
    let mut conversation = Conversation { to, from: BufReader::new(from).lines() };
    let heard = conversation.hear().with_context(|| last_words(&mut gateway))?;
    ensure!(heard == "ready", "the generator said {heard:?}");
    let mut is_next = false;
    for _ in 0..rounds {
        for way in Way::ALL {
            conversation.say("begin")?;
            std::thread::sleep(AROUND);
            let begun = Instant::now();
            is_next ^= way == Way::Upgrade;
            let binary = if is_next { next } else { &setup.tidegate };
            let ready_ms = match way {
                Way::Nothing => 0.0,
                Way::Reload => {
                    reload(&lab, &mut gateway)?;
                    0.0
                }
                Way::Kill | Way::Restart | Way::Upgrade => {
                    if way == Way::Kill {
                        gateway.kill();
                    } else {
                        gateway.signal(Signal::TERM);
                        ensure!(
                            gateway.wait(ENDS)?.success(),
                            "the gateway failed{}",
                            last_words(&mut gateway)
                        );
                    }
                    gateway = launch(&lab, binary)?;
                    wait_until_ready(&lab, &mut gateway)?;
                    begun.elapsed().as_secs_f64() * 1e3
                }
            };
            std::thread::sleep(AROUND);
            conversation.say("end")?;
            let window = serde_json::from_str(&conversation.hear()?)?;
            let restored = if ready_ms == 0.0 { None } else { restored(&lab)? };
            tell(way, Restarted { window, ready_ms, restored });
        }
    }
    drop(conversation);
    ensure!(generator.wait()?.success(), "the generator failed");
    Ok(())
}

/// Changes the configuration, and waits until the gateway has it.
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
