//! The API server's process: the test API server with a cluster in it, and the objects that `deploy/` installs.
//!
//! It writes the kubeconfigs of the gateway's account and of the administrator to a directory, then the file `ready`,
//! and serves until it is stopped.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use test_apiserver::{ADMIN_TOKEN, Options, TestApiServer};
use tidegate_control_bench::cluster;

use crate::plan::{Plan, SINGLES};

/// The name of the file that is created when the server has all objects.
pub(crate) const READY: &str = "ready";

/// Serves without end.
///
/// # Errors
/// The server cannot listen, or `deploy/` lacks an object.
pub(crate) fn run(plan: &Plan, directory: &Path) -> Result<()> {
    let server = TestApiServer::start(Options::default())?;
    for file in installed()? {
        let text = std::fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        server.apply(&text).map_err(anyhow::Error::msg)?;
    }
    server.load(cluster::objects(plan.size, SINGLES, plan.variant).collect()).map_err(anyhow::Error::msg)?;
    let token = server.service_account_token("tidegate-system", "tidegate");
    std::fs::write(gateway_kubeconfig(directory), server.kubeconfig_text(&token))?;
    std::fs::write(admin_kubeconfig(directory), server.kubeconfig_text(ADMIN_TOKEN))?;
    std::fs::write(directory.join(READY), "")?;
    loop {
        std::thread::sleep(Duration::from_secs(1));
        // The records are not used and would grow without limit.
        server.forget_requests();
    }
}

/// The kubeconfig of the gateway's ServiceAccount.
pub(crate) fn gateway_kubeconfig(directory: &Path) -> PathBuf {
    directory.join("kubeconfig")
}

/// The kubeconfig of the administrator.
pub(crate) fn admin_kubeconfig(directory: &Path) -> PathBuf {
    directory.join("admin.kubeconfig")
}

fn installed() -> Result<Vec<PathBuf>> {
    let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/kubernetes");
    let mut files = ["namespace", "rbac"].map(|name| deploy.join(format!("base/{name}.yaml"))).to_vec();
    for entry in std::fs::read_dir(deploy.join("crds"))? {
        let path = entry?.path();
        if !path.ends_with("kustomization.yaml") {
            files.push(path);
        }
    }
    Ok(files)
}
