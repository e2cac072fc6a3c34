//! How the process was called, and how it exits.

use std::ffi::OsStr;
use std::path::Path;

/// Exit code for input that is refused.
pub const REFUSED: u8 = 2;

/// The command name if kubectl runs this binary as a plugin: `kubectl tidegate` if the binary was started as
/// `kubectl-tidegate`.
pub(super) fn plugin_name(program: Option<&OsStr>) -> Option<String> {
    let file = Path::new(program?).file_name()?.to_str()?;
    // kubectl replaces a dash in a command name with an underscore in the file name of the plugin.
    Some(format!("kubectl {}", file.strip_prefix("kubectl-")?.replace('_', "-")))
}
