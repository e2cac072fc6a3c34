//! Finds the binary that contains the tools.

use anyhow::{Result, ensure};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};

/// The file name of the binary.
const NAME: &str = "tidegate-demo";

/// The binary of the tools: this process's if it is `tidegate-demo`, or else the one beside the binary `tidegate`.
///
/// # Errors
/// When there is none.
pub fn of_tools(tidegate: &Path) -> Result<PathBuf> {
    let own = std::env::current_exe().ok().filter(|own| own.file_name() == Some(OsStr::new(NAME)));
    let binary = own.unwrap_or_else(|| tidegate.with_file_name(NAME));
    ensure!(binary.is_file(), "{} does not exist: run `cargo build -p tidegate-netlab`", binary.display());
    Ok(binary)
}
