//! The configuration in use, and its replacement by a reload.

use std::path::{Path, PathBuf};

use tidegate_dataplane::gateway::Dataplane;
use tidegate_model::config::{self, GatewayConfig};
use tidegate_model::diagnostic::{Diagnostic, Severity};
use tidegate_policy::reconcile::Settings;

use super::reload::fixed_parts_that_differ;
use crate::admin::api::ReloadAnswer;
use crate::assemble;
use crate::logging;

/// The configuration in use, and the path of its file.
pub(super) struct Configuration {
    path: PathBuf,
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
        Self { path: path.to_owned(), config, settings }
    }

    /// Reads the configuration again. A configuration that is refused, or that needs a restart, changes nothing.
    pub(super) fn reload(&mut self, dataplane: &Dataplane) -> Reloaded {
        let loaded = config::load(&self.path);
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

/// The settings of reconcile, with the values that the ports report.
fn settings(config: &GatewayConfig, dataplane: &Dataplane) -> Settings {
    let ports = assemble::dataplane_config(config);
    let interfaces = tidegate_dataplane::gateway::interface_specs(&ports, dataplane.interfaces());
    assemble::settings(config, interfaces)
}
