//! `tidegate-edge check`: every fault of the configuration and the manifests in one report.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use jiff::Timestamp;
use tidegate_edge::config::Config;
use tidegate_edge::haproxy::program::Program;
use tidegate_edge::runtime::Runtime;
use tidegate_edge::wanted::{Configuration, Wanted};
use tidegate_model::config::ENDPOINT_SLICES_MIB;
use tidegate_source::Kinds;
use tidegate_source::directory::DirectorySource;

use crate::input;

pub(crate) fn check(path: &Path) -> Result<ExitCode, String> {
    let config = match input::load(path) {
        Ok(config) => config,
        Err(code) => return Ok(code),
    };
    let kinds = Kinds { tls_secrets: true, ..Kinds::default() };
    let (objects, mut report) = DirectorySource::load_within(&config.source.path, ENDPOINT_SLICES_MIB, kinds);
    let mut wanted = Wanted::new(config.clone());
    wanted.set_objects(Arc::new(objects));
    validate(&config, &mut wanted)?;
    report.extend(wanted.findings(Timestamp::now()).into_iter().map(|finding| finding.diagnostic));
    eprint!("{report}");
    println!("{} ports of Services are served", wanted.configuration().rendered.proxies.len());
    Ok(if report.has_errors() { ExitCode::from(input::REFUSED) } else { ExitCode::SUCCESS })
}

/// Has HAProxy validate the configuration in a directory of its own, which is removed.
fn validate(config: &Config, wanted: &mut Wanted) -> Result<(), String> {
    let program = Program::find(&config.haproxy.program)?;
    // Keys should not be written to a disk.
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    let directory = parent.join(format!("tidegate-edge-check-{}", std::process::id()));
    let mut runtime =
        Runtime::open(&directory).map_err(|error| format!("{}: {error}", directory.display()))?;
    let _removed = Removed(directory);
    wanted.stage(&program, &mut runtime, &Configuration::default()).map(drop)
}

/// A directory that is removed at the end.
struct Removed(PathBuf);

impl Drop for Removed {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
