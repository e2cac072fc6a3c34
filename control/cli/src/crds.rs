//! `tidegate crds`: prints the CustomResourceDefinitions of the gateway's own kinds, for `kubectl apply -f -`.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::Args;
use tidegate_cluster::crd;

/// Options of `crds`.
#[derive(Debug, Args)]
pub struct CrdsArgs {
    /// Write one file per kind to this directory instead of printing
    #[arg(long, value_name = "PATH")]
    dir: Option<PathBuf>,
}

pub(super) fn run(args: &CrdsArgs) -> anyhow::Result<ExitCode> {
    let Some(dir) = &args.dir else {
        let texts: Vec<String> = crd::manifests().into_iter().map(|(_, text)| text).collect();
        std::io::stdout().lock().write_all(texts.join("---\n").as_bytes())?;
        return Ok(ExitCode::SUCCESS);
    };
    std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
    for (file, text) in crd::manifests() {
        let path = dir.join(file);
        std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(ExitCode::SUCCESS)
}
