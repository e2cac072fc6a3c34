//! Reads the configuration for a command.

use std::path::Path;
use std::process::ExitCode;

use tidegate_edge::config::{self, Config};

/// The exit code for input that is refused, as of `tidegate check`.
pub(crate) const REFUSED: u8 = 2;

/// Reads the configuration, and prints its faults to the standard error. `Err` with the exit code if it has errors.
pub(crate) fn load(path: &Path) -> Result<Config, ExitCode> {
    let loaded = config::load(path);
    eprint!("{}", loaded.report);
    loaded.config.ok_or(ExitCode::from(REFUSED))
}
