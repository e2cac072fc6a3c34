//! `tidegate import`: converts the resources of another load balancer, or Services, from files or an API server.
//!
//! The result goes to standard output or, with `-o`, to new files; the report goes to
//! standard error. Faults of the input are printed as by `tidegate check`, also to standard error. The exit code is
//! then 2, and nothing is written.

use std::fs::{self, File};
use std::io::{self, Read as _, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser as _};
use kube::Client;
use kube::api::ListParams;
use tidegate_import::{Imported, Input, NoteKind, Vendor, convert};
use tidegate_model::bounded_file::{self, FILE_BYTES_MAX};
use tidegate_model::diagnostic::{Diagnostic, Location, Report};
use tidegate_model::yaml::{self, Node};
use tidegate_source::kubernetes::{Connector, causes};

use super::invocation::REFUSED;

/// The HTTP status if an API server doesn't have a kind or an object.
const NOT_FOUND: u16 = 404;

/// Options of `import`.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: kubectl get ipaddresspools,l2advertisements,bgppeers -A -o yaml | tidegate import metallb -"
)]
pub struct ImportArgs {
    /// Load balancer whose resources are converted; or services, to convert Services to Gateways and routes
    #[arg(value_name = "WHAT", value_parser = PossibleValuesParser::new(Vendor::ALL.map(Vendor::as_str)).map(vendor))]
    vendor: Vendor,
    /// Manifests; - is standard input
    #[arg(value_name = "FILE", required_unless_present = "kubeconfig", conflicts_with = "kubeconfig")]
    files: Vec<PathBuf>,
    /// Read the resources from the API server of this kubeconfig; "" selects the default kubeconfig
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use
    #[arg(long, value_name = "NAME", requires = "kubeconfig")]
    context: Option<String>,
    /// Write gateway.yaml and pools.yaml (or gateways.yaml), and report.txt to this directory instead of printing; existing files are never
    /// overwritten
    #[arg(short, long, value_name = "DIRECTORY")]
    output: Option<PathBuf>,
}

#[expect(clippy::needless_pass_by_value, reason = "clap passes the value")]
fn vendor(name: String) -> Vendor {
    Vendor::ALL.into_iter().find(|vendor| vendor.as_str() == name).expect("clap accepts only these names")
}

pub(super) fn run(args: ImportArgs) -> anyhow::Result<ExitCode> {
    let ImportArgs { vendor, files, kubeconfig, context, output } = args;
    let mut input = Input::default();
    let mut unreadable = Report::new();
    match kubeconfig {
        Some(kubeconfig) => {
            let kubeconfig = Some(kubeconfig).filter(|path| !path.as_os_str().is_empty());
            let runtime =
                tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
            let fetched =
                runtime.block_on(fetch(vendor, &Connector::with_context(kubeconfig, context), &mut input));
            // Do not wait for background tasks: a credential plugin may hang.
            runtime.shutdown_background();
            fetched?;
        }
        None => files.iter().for_each(|file| unreadable.extend(read(file, &mut input).err())),
    }
    let converted = match convert(vendor, input) {
        Ok(imported) if unreadable.is_empty() => imported,
        Ok(_) => return Ok(refused(&unreadable)),
        Err(mut report) => {
            // Without the unreadable files, there may be nothing to convert.
            if !unreadable.is_empty() {
                report = report.iter().filter(|fault| fault.location.is_some()).cloned().collect();
            }
            report.merge(&unreadable);
            return Ok(refused(&report));
        }
    };
    let report: String = converted.notes.iter().map(|note| format!("{note}\n")).collect();
    eprint!("{report}");
    match output {
        Some(directory) => write(&directory, &converted, &report)?,
        None => {
            let texts: Vec<&str> = converted.files.iter().map(|(_, text)| text.as_str()).collect();
            io::stdout().lock().write_all(texts.join("---\n").as_bytes())?;
        }
    }
    eprintln!("{}", summary(&converted));
    Ok(ExitCode::SUCCESS)
}

fn refused(report: &Report) -> ExitCode {
    eprint!("{report}");
    let errors = report.errors().count();
    eprintln!("nothing was converted: {errors} error{}", if errors == 1 { "" } else { "s" });
    ExitCode::from(REFUSED)
}

fn summary(imported: &Imported) -> String {
    let count = |kind| imported.notes.iter().filter(|note| note.kind == kind).count();
    format!(
        "converted: {}; fields without a counterpart {}, decisions {}",
        imported.summary,
        count(NoteKind::NoCounterpart),
        count(NoteKind::Decide)
    )
}

/// Reads a file, or standard input.
fn read(path: &Path, input: &mut Input) -> Result<(), Diagnostic> {
    let (name, text) = if path.as_os_str() == "-" {
        let mut bytes = Vec::new();
        io::stdin().lock().take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| {
            Diagnostic::error(format!("cannot be read: {error}")).at(Location::start_of("<stdin>"))
        })?;
        ("<stdin>".into(), yaml::text_of(bytes, "<stdin>")?)
    } else {
        (path.to_string_lossy(), bounded_file::read_text(path, FILE_BYTES_MAX)?)
    };
    input.file(&name, &text);
    Ok(())
}

/// Reads the resources of a load balancer from an API server. Kinds that the server doesn't have are left out.
async fn fetch(vendor: Vendor, connector: &Connector, input: &mut Input) -> anyhow::Result<()> {
    let connection = connector.connection().await?;
    for versions in vendor.paths() {
        for path in *versions {
            if let Some(answer) =
                get(&connection.client, path).await.with_context(|| connection.server.clone())?
            {
                input.stored(answer);
                break;
            }
        }
    }
    Ok(())
}

/// The object or the list at a path; `None` if the server doesn't have it.
async fn get(client: &Client, path: &str) -> anyhow::Result<Option<Node>> {
    let request = kube::core::Request::new(path).list(&ListParams::default())?;
    match client.request_text(request).await {
        Ok(text) => Ok(Some(serde_json::from_str(&text).with_context(|| format!("cannot read {path}"))?)),
        Err(kube::Error::Api(status)) if status.code == NOT_FOUND => Ok(None),
        Err(kube::Error::Api(status)) => {
            bail!("{path}: {} {}: {}", status.code, status.reason, status.message)
        }
        Err(other) => bail!("{path}: {}", causes(&other)),
    }
}

/// Writes new files. If one of them exists, nothing is written.
fn write(directory: &Path, imported: &Imported, report: &str) -> anyhow::Result<()> {
    fs::create_dir_all(directory).with_context(|| format!("cannot create {}", directory.display()))?;
    let texts = imported.files.iter().map(|(name, text)| (*name, text.as_str()));
    let texts = texts.chain([("report.txt", report)].into_iter().filter(|(_, text)| !text.is_empty()));
    let files: Vec<(PathBuf, &str)> = texts.map(|(name, text)| (directory.join(name), text)).collect();
    if let Some((path, _)) = files.iter().find(|(path, _)| path.symlink_metadata().is_ok()) {
        bail!("{} exists, and nothing is overwritten: name another directory with -o", path.display());
    }
    for (path, text) in &files {
        let written = File::create_new(path).and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| format!("cannot write {}", path.display()))?;
        writeln!(io::stdout().lock(), "wrote {}", path.display())?;
    }
    Ok(())
}
