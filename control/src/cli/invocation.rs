//! How the process was called, and how it exits.

use std::ffi::OsStr;
use std::path::Path;

/// Exit code for input that is refused.
pub const REFUSED: u8 = 2;

/// The name of the command when kubectl runs it as a plugin: `kubectl tidegate` if the binary was started by the name
/// `kubectl-tidegate`.
pub(super) fn plugin_name(program: Option<&OsStr>) -> Option<String> {
    let file = Path::new(program?).file_name()?.to_str()?;
    // In the file name of a plugin, an underscore stands for a dash of the command.
    Some(format!("kubectl {}", file.strip_prefix("kubectl-")?.replace('_', "-")))
}
