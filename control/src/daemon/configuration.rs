//! The configuration in use, and its replacement by a reload.

use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use tidegate_dataplane::gateway::Dataplane;
use tidegate_model::config::{self, GatewayConfig, Loaded};
use tidegate_model::diagnostic::{Diagnostic, Severity};
use tidegate_policy::reconcile::Settings;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use super::reload::fixed_parts_that_differ;
use crate::admin::api::ReloadAnswer;
use crate::assemble;
use crate::logging;

/// A reload waits no longer for the files of the configuration. No round runs meanwhile. A million prefixes take about a
/// second.
const READ_BOUND: Duration = Duration::from_secs(20);

/// The configuration in use, and the path of its file.
pub(super) struct Configuration {
    path: PathBuf,
    /// A read that has not ended within its bound, for example on a mount whose server does not answer.
    hanging: Option<Reading>,
    pub(super) config: GatewayConfig,
    /// The settings for the rounds. The state of the other gateways is set before each round.
    pub(super) settings: Settings,
}

/// The result of a reload.
pub(super) struct Reloaded {
    /// The answer to the request.
    pub(super) answer: ReloadAnswer,
    /// Why the new configuration is not in use.
    pub(super) refused: Option<String>,
}

impl Configuration {
    /// Creates the value for the configuration of the file at `path`.
    pub(super) fn new(path: &Path, config: GatewayConfig, dataplane: &Dataplane) -> Self {
        let settings = settings(&config, dataplane);
        Self { path: path.to_owned(), hanging: None, config, settings }
    }

    /// Reads the configuration again. A configuration that is refused, or that needs a restart, changes nothing.
    pub(super) async fn reload(&mut self, dataplane: &Dataplane) -> Reloaded {
        let path = self.path.clone();
        let Some(loaded) = read(move || config::load(&path), &mut self.hanging, READ_BOUND).await else {
            let path = self.path.display();
            let refused = format!(
                "{path}: the configuration cannot be read, because its file or a file in it does not answer: keeping the previous one"
            );
            tracing::error!("{refused}");
            let answer = ReloadAnswer { accepted: false, report: vec![refused.clone()] };
            return Reloaded { answer, refused: Some(refused) };
        };
        loaded.report.iter().for_each(logging::diagnostic);
        let mut report: Vec<String> = loaded.report.iter().map(ToString::to_string).collect();
        let refused = match loaded.config {
            None => {
                tracing::error!("the new configuration is refused: keeping the previous one");
                let is_error = |one: &&Diagnostic| one.severity == Severity::Error;
                Some(loaded.report.iter().find(is_error).map_or_else(String::new, ToString::to_string))
            }
            Some(config) => {
                let fixed = fixed_parts_that_differ(&self.config, &config).join(", ");
                if fixed.is_empty() {
                    self.settings = settings(&config, dataplane);
                    self.config = config;
                    tracing::info!("configuration reloaded");
                    None
                } else {
                    let refused =
                        format!("a change of {fixed} needs a restart: keeping the previous configuration");
                    tracing::error!("{refused}");
                    report.push(refused.clone());
                    Some(refused)
                }
            }
        };
        Reloaded { answer: ReloadAnswer { accepted: refused.is_none(), report }, refused }
    }
}

/// A configuration that a thread of its own reads: nothing can end a read that the kernel does not finish.
type Reading = oneshot::Receiver<Loaded>;

/// Reads the configuration with `load`; `None` if that takes longer than `bound`. It then goes on, and as long as it has not
/// ended, no other one begins.
async fn read(
    load: impl FnOnce() -> Loaded + Send + 'static,
    hanging: &mut Option<Reading>,
    bound: Duration,
) -> Option<Loaded> {
    let end = Instant::now() + bound;
    if let Some(reading) = hanging {
        // Its result is older than this request.
        timeout_at(end, reading).await.ok()?.ok();
        *hanging = None;
    }
    let (sender, mut reading) = oneshot::channel();
    let read = move || {
        // The receiver waits, or the gateway has ended.
        let _ = sender.send(load());
    };
    let thread = thread::Builder::new().name("configuration".to_owned()).spawn(read);
    if let Err(error) = thread {
        tracing::error!(%error, "no thread to read the configuration");
        return None;
    }
    match timeout_at(end, &mut reading).await {
        Ok(loaded) => loaded.ok(),
        Err(_) => {
            *hanging = Some(reading);
            None
        }
    }
}

/// The settings of reconcile, with the values that the ports report.
fn settings(config: &GatewayConfig, dataplane: &Dataplane) -> Settings {
    let ports = assemble::dataplane_config(config);
    let interfaces = tidegate_dataplane::gateway::interface_specs(&ports, dataplane.interfaces());
    assemble::settings(config, interfaces)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    fn named(name: &str) -> Loaded {
        let text =
            format!("apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\nmetadata: {{name: {name}}}\n");
        config::parse(&text, "gateway.yaml", Path::new("."), 1)
    }

    #[tokio::test]
    async fn files_that_do_not_answer_are_waited_for_within_a_bound_and_read_again_when_they_answer() {
        let (release, wait) = mpsc::channel::<()>();
        let mut hanging = None;
        let hangs = move || {
            wait.recv().expect("it is released");
            named("older")
        };
        let short = Duration::from_millis(20);
        assert!(read(hangs, &mut hanging, short).await.is_none());
        let waits = || -> Loaded { panic!("no second read begins while the first one hangs") };
        assert!(read(waits, &mut hanging, short).await.is_none());
        assert!(hanging.is_some());
        release.send(()).expect("it waits");
        let loaded =
            read(|| named("newer"), &mut hanging, Duration::from_secs(60)).await.expect("it answers");
        assert_eq!(loaded.config.unwrap_or_else(|| panic!("{}", loaded.report)).name, "newer");
        assert!(hanging.is_none());
    }
}
