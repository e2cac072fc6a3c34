//! Selects the API server of this test run: the test API server in this process, a server started from binaries, or the
//! server of a cluster. Environment variables select it; `deploy/scripts/test-apiserver.sh` sets them for users.

use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;

use super::objects::Admin;

/// The API server of this test run.
#[derive(Debug)]
pub(crate) enum Mode {
    /// The test API server.
    InProcess,
    /// A separate server for each test: etcd and kube-apiserver as child processes.
    Binaries(Binaries),
    /// The cluster of this kubeconfig.
    Cluster(PathBuf),
}

/// Programs of a control plane.
#[derive(Debug)]
pub(crate) struct Binaries {
    pub(crate) apiserver: PathBuf,
    pub(crate) etcd: PathBuf,
    /// Only some tests need it.
    pub(crate) controller_manager: Option<PathBuf>,
}

impl Mode {
    /// The mode that the environment selects.
    ///
    /// # Panics
    /// If the environment selects two modes, or one only partly.
    pub(crate) fn of_this_run() -> &'static Self {
        static MODE: OnceLock<Mode> = OnceLock::new();
        MODE.get_or_init(|| {
            let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
            let kubeconfig = path("TIDEGATE_TEST_KUBECONFIG");
            match (path("KUBE_APISERVER"), path("ETCD"), kubeconfig) {
                (None, None, None) => Self::InProcess,
                (None, None, Some(kubeconfig)) => Self::Cluster(kubeconfig),
                (Some(apiserver), Some(etcd), None) => {
                    let controller_manager = path("KUBE_CONTROLLER_MANAGER");
                    Self::Binaries(Binaries { apiserver, etcd, controller_manager })
                }
                _ => panic!(
                    "accepted: KUBE_APISERVER and ETCD, both paths of programs; or TIDEGATE_TEST_KUBECONFIG alone; or \
                     none of them, for the test API server"
                ),
            }
        })
    }

    /// The minor version of its Kubernetes.
    pub(super) fn minor_version(&self) -> u32 {
        static MINOR: OnceLock<u32> = OnceLock::new();
        *MINOR.get_or_init(|| {
            let text = match self {
                Self::InProcess => return u32::MAX,
                Self::Binaries(binaries) => {
                    let output = Command::new(&binaries.apiserver).arg("--version").output();
                    let output = output.unwrap_or_else(|e| panic!("{}: {e}", binaries.apiserver.display()));
                    String::from_utf8_lossy(&output.stdout).into_owned()
                }
                Self::Cluster(kubeconfig) => {
                    let version = Admin::new(kubeconfig, None).request("GET", "/version", None);
                    version.expect("the server reports its version")["gitVersion"].to_string()
                }
            };
            minor_of(&text).unwrap_or_else(|| panic!("no version in {text:?}"))
        })
    }
}

/// The minor version in a text like `Kubernetes v1.33.1`.
fn minor_of(text: &str) -> Option<u32> {
    let (_, rest) = text.split_once("v1.")?;
    rest.split(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}

#[test]
fn the_minor_version_is_parsed_from_the_output_of_programs_and_servers() {
    assert_eq!(minor_of("Kubernetes v1.33.1\n"), Some(33));
    assert_eq!(minor_of("\"v1.31.0-gke.12\""), Some(31));
    assert_eq!(minor_of("Kubernetes"), None);
}
