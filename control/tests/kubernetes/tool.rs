//! Runs kubectl and helm as an operator does, with the administrator's kubeconfig.
//!
//! `KUBECTL` and `HELM` name the programs; the default is the one beside `KUBE_APISERVER`, or the one in `PATH`.
//! `KUBECTL_TIDEGATE` names the plugin.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::world::World;

/// The kubectl of this run.
pub(crate) fn program() -> PathBuf {
    find("KUBECTL", "kubectl")
}

/// The helm of this run.
pub(crate) fn helm() -> PathBuf {
    find("HELM", "helm")
}

/// The program that a variable names.
fn find(variable: &str, name: &str) -> PathBuf {
    let named = std::env::var_os(variable).filter(|value| !value.is_empty()).map(PathBuf::from);
    let beside = || {
        let server = std::env::var_os("KUBE_APISERVER").map(PathBuf::from)?;
        Some(server.canonicalize().ok()?.with_file_name(name)).filter(|path| path.is_file())
    };
    named.or_else(beside).unwrap_or_else(|| name.into())
}

/// The plugin. By default, the one beside the gateway's binary.
pub(crate) fn plugin() -> PathBuf {
    let named = std::env::var_os("KUBECTL_TIDEGATE").map(PathBuf::from);
    let beside = || Path::new(env!("CARGO_BIN_EXE_tidegate")).with_file_name("kubectl-tidegate");
    let plugin = named.unwrap_or_else(beside);
    assert!(plugin.is_file(), "no {}: cargo build -p kubectl-tidegate", plugin.display());
    plugin
}

/// A kubectl command with the kubeconfig in a directory, which is its home.
pub(crate) fn command(home: &Path) -> Command {
    let mut command = Command::new(program());
    command.env("KUBECONFIG", home.join("kubeconfig")).env("HOME", home);
    command
}

/// Runs a tool. Returns its output, or on failure its output and error output.
pub(crate) fn run(command: &mut Command) -> Result<String, String> {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        return Ok(text);
    }
    Err(format!("{text}{}", String::from_utf8_lossy(&output.stderr)))
}

/// Runs kubectl as the administrator, in the namespace of the API server.
pub(crate) fn kubectl(world: &World, arguments: &[&str]) -> Result<String, String> {
    let home = world.directory().join("admin");
    std::fs::create_dir_all(&home).expect("a directory of the test");
    world.api.kubeconfig(&home).expect("written");
    // kubectl finds plugins in the PATH.
    let plugins = plugin().parent().expect("a directory").to_owned();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = std::env::join_paths([plugins].into_iter().chain(std::env::split_paths(&path)));
    let path = path.expect("directories without colons");
    world.enter_gateway(|| run(command(&home).env("PATH", path).args(arguments)))
}
