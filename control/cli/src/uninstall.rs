//! `tidegate uninstall` and `kubectl tidegate uninstall` remove everything that gateways wrote to a cluster. They need
//! a kubeconfig and no gateway.
//!
//! It prints a line for each change to standard output, and the next steps to standard error. The exit code is 1 if
//! something could not be removed.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;
use tidegate_cluster::lease::{LEASE, UNINSTALLED};
use tidegate_cluster::uninstall::{Options, Uninstalled, uninstall};
use tidegate_model::config::{self, KubernetesConfig, SourceConfig};
use tidegate_source::kubernetes::Connector;

use super::args::maybe_empty;
use super::query::confirmed_on_terminal;

/// Options of `uninstall`.
#[derive(Debug, Args)]
pub struct UninstallArgs {
    /// Change nothing; print what would be released and what the API server would refuse
    #[arg(long)]
    dry_run: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    yes: bool,
    /// Continue if the API server refuses some of the changes
    #[arg(long)]
    keep_going: bool,
    /// Kubeconfig of the cluster; "" or no option: $KUBECONFIG, ~/.kube/config or the service account of the Pod
    #[arg(long, value_name = "FILE", value_parser = maybe_empty())]
    kubeconfig: Option<PathBuf>,
    /// Context of the kubeconfig to use
    #[arg(long, value_name = "NAME")]
    context: Option<String>,
    /// Read the kubeconfig and the namespace of the Lease from this configuration file of a gateway
    #[arg(short, long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "lease_namespace"])]
    config: Option<PathBuf>,
    /// Namespace of the Lease (source.kubernetes.leaseNamespace)
    #[arg(long, value_name = "NAMESPACE")]
    lease_namespace: Option<String>,
}

pub(super) fn run(args: UninstallArgs) -> anyhow::Result<ExitCode> {
    let UninstallArgs { dry_run, yes, keep_going, kubeconfig, context, config, lease_namespace } = args;
    let of_config = config.as_deref().map(source_of).transpose()?;
    let KubernetesConfig { kubeconfig: of_config, lease_namespace: namespace, .. } =
        of_config.unwrap_or_default();
    let lease_namespace = lease_namespace.unwrap_or(namespace);
    let options = Options { dry_run, keep_going, lease_namespace };
    let kubeconfig = kubeconfig.filter(|path| !path.as_os_str().is_empty()).or(of_config);
    if !dry_run && !yes {
        let question = question(kubeconfig.as_deref(), context.as_deref());
        let accepted = "--yes, or --dry-run to see what would be released";
        if !confirmed_on_terminal(&question, accepted)? {
            eprintln!("nothing was changed");
            return Ok(ExitCode::FAILURE);
        }
    }
    let connector = Connector::with_context(kubeconfig, context);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let mut report = |line: &str| {
        // Ignore write errors: the uninstall continues even if the reader has closed the output.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    };
    let done = runtime.block_on(uninstall(&connector, &options, &mut report));
    // Do not wait for background tasks: a credential plugin may hang.
    runtime.shutdown_background();
    let done = done?;
    eprint!("{}", summary(&options, &done));
    Ok(if done.remaining.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The question for the operator before anything changes.
fn question(kubeconfig: Option<&Path>, context: Option<&str>) -> String {
    let context =
        context.map_or_else(|| "the current context".to_owned(), |name| format!("context {name:?}"));
    let kubeconfig = kubeconfig.map_or_else(String::new, |path| format!(" of {}", path.display()));
    format!(
        "This releases the addresses of all Services that gateways serve in the cluster of {context}{kubeconfig}, so \
         clients can no longer reach these Services. Continue?"
    )
}

/// Reads `source.kubernetes` from a configuration.
fn source_of(path: &Path) -> anyhow::Result<KubernetesConfig> {
    match config::load(path).source {
        Some(SourceConfig::Kubernetes(kubernetes)) => Ok(kubernetes),
        Some(SourceConfig::Directory(_)) => {
            bail!(
                "{}: this gateway reads manifests from a directory, so it wrote nothing to a cluster",
                path.display()
            )
        }
        None => Err(anyhow::anyhow!("run `tidegate check -c {}` to see why", path.display()))
            .context("the configuration is invalid"),
    }
}

/// Summarises the result and the next steps.
fn summary(options: &Options, done: &Uninstalled) -> String {
    let Uninstalled { released, remaining, running, holds_lease } = done;
    let mut text = String::new();
    let mut line = |words: String| text.push_str(&(words + "\n"));
    let objects = if *released == 1 { "1 object".to_owned() } else { format!("{released} objects") };
    if options.dry_run {
        line(format!("dry run: {objects} would be released; nothing was changed"));
        remaining.iter().for_each(|one| line(format!("error: the API server would refuse {one}")));
        if !running.is_empty() {
            line(format!("running gateways: {}", running.join(", ")));
        }
        return text;
    }
    remaining.iter().for_each(|one| line(format!("error: not released: {one}")));
    let lease = format!("Lease {}/{LEASE}", options.lease_namespace);
    if remaining.is_empty() {
        line(format!(
            "{objects} released; nothing that Tidegate wrote to objects remains. Its events expire."
        ));
    }
    if !running.is_empty() {
        let names = running.join(", ");
        line(format!("these gateways still run but no longer write to the cluster: {names}. Stop them now."));
    }
    if *holds_lease {
        line(format!(
            "The {lease} (holder {UNINSTALLED}) prevents gateways from writing to the cluster. Deleting \
             deploy/kubernetes/base also deletes the Lease. To let the gateways write again, delete only the Lease."
        ));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_names_the_context() {
        assert!(question(None, Some("prod")).contains("context \"prod\""));
    }

    #[test]
    fn the_summary_names_what_remains_and_which_gateways_run() {
        let options =
            |dry_run| Options { dry_run, keep_going: false, lease_namespace: "tidegate-system".into() };
        let running = vec!["edge-1".into()];
        let done = Uninstalled { released: 2, remaining: vec![], running, holds_lease: true };
        let text = summary(&options(false), &done);
        assert!(text.starts_with("2 objects released; nothing"), "{text}");
        assert!(
            text.contains("edge-1. Stop them now.") && text.contains("Lease tidegate-system/tidegate"),
            "{text}"
        );
        let refused = Uninstalled { remaining: vec!["Service a/b: 403".into()], ..Uninstalled::default() };
        let text = summary(&options(true), &refused);
        assert!(
            text.contains("nothing was changed\nerror: the API server would refuse Service a/b: 403"),
            "{text}"
        );
    }
}
