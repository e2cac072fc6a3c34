//! Checks the contents of `deploy/` with the tools of operators: kubectl and its server-side dry run, kustomize,
//! systemd, a Dockerfile linter.

use std::path::{Path, PathBuf};
use std::process::Command;

use test_apiserver::{Options, TestApiServer};

use crate::api::{Api, Needs};
use crate::needs;
use crate::tool::{command, run};
use crate::uninstall::installed;
use crate::world::{World, deploy};

/// An API server with a kubeconfig for kubectl.
struct Cluster {
    place: Place,
    home: tempfile::TempDir,
}

/// The place of the server. The test API server needs no network of its own.
enum Place {
    Here(TestApiServer),
    Lab(Box<World>),
}

impl Cluster {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        let place = if Api::is_in_process() {
            let server = TestApiServer::start(Options::default()).expect("a free port");
            server.kubeconfig(home.path()).expect("written");
            Place::Here(server)
        } else {
            let world = World::empty();
            world.api.kubeconfig(home.path()).expect("written");
            Place::Lab(Box::new(world))
        };
        Self { place, home }
    }

    fn kubectl(&self, arguments: &[&str], path: &Path) -> Result<String, String> {
        self.run(self.command().args(arguments).arg(path))
    }

    /// Runs kubectl without a file.
    fn kubectl_plain(&self, arguments: &[&str]) -> Result<String, String> {
        self.run(self.command().args(arguments))
    }

    fn run(&self, command: &mut Command) -> Result<String, String> {
        match &self.place {
            Place::Here(_) => run(command),
            Place::Lab(world) => world.enter_gateway(|| run(command)),
        }
    }

    fn apply(&self, yaml: &str) -> Result<Vec<serde_json::Value>, String> {
        match &self.place {
            Place::Here(server) => server.apply(yaml),
            Place::Lab(world) => world.api.apply(yaml),
        }
    }

    /// Changes with every change of the installed objects. With the test API server, it changes with any object.
    fn version(&self) -> String {
        match &self.place {
            Place::Here(server) => server.resource_version().to_string(),
            Place::Lab(world) => installed(world).join("\n"),
        }
    }

    fn command(&self) -> Command {
        command(self.home.path())
    }

    /// Creates the namespace and the definitions, the first part of an installation.
    fn prepare(&self) {
        self.kubectl(&["apply", "-f"], &deploy().join("kubernetes/base/namespace.yaml")).expect("taken");
        self.kubectl(&["apply", "-k"], &deploy().join("kubernetes/crds")).expect("taken");
    }
}

/// Every directory of `deploy/kubernetes` that kustomize builds.
fn kustomizations() -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(deploy().join("kubernetes"))
        .expect("readable")
        .map(|entry| entry.expect("readable").path())
        .filter(|path| path.join("kustomization.yaml").is_file())
        .collect();
    found.sort();
    assert!(found.len() >= 4, "{found:?}");
    found
}

#[test]
fn every_kustomization_is_taken_by_a_server_side_dry_run_with_strict_validation() {
    needs!(Needs::Version(31));
    let cluster = Cluster::new();
    cluster.prepare();
    for path in kustomizations() {
        let before = cluster.version();
        let said = cluster.kubectl(&["apply", "--dry-run=server", "-k"], &path);
        let said = said.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(said.lines().all(|line| line.ends_with("(server dry run)")), "{said}");
        assert!(!said.is_empty(), "{}", path.display());
        assert_eq!(cluster.version(), before, "a dry run keeps nothing");
    }
}

#[test]
fn every_kustomization_is_installed_twice_without_a_change() {
    needs!(Needs::NoNodes, Needs::Version(31));
    for path in kustomizations() {
        let cluster = Cluster::new();
        cluster.prepare();
        cluster
            .kubectl(&["apply", "-k"], &path)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let again = cluster.kubectl(&["apply", "-k"], &path).expect("taken again");
        // kubectl replaces the selector of a PodDisruptionBudget as a whole, and so always reports it as configured.
        let is_same = |line: &str| {
            line.ends_with("unchanged") || line == "poddisruptionbudget.policy/tidegate configured"
        };
        assert!(again.lines().all(is_same), "{}: {again}", path.display());
    }
}

#[test]
fn a_misspelt_field_of_a_manifest_would_be_found() {
    needs!(Needs::Version(25));
    let cluster = Cluster::new();
    cluster.prepare();
    let text =
        std::fs::read_to_string(deploy().join("kubernetes/daemonset/daemonset.yaml")).expect("readable");
    let file = cluster.home.path().join("typo.yaml");
    std::fs::write(&file, text.replace("hostNetwork:", "hostNetwrk:")).expect("written");
    let url = "/apis/apps/v1/namespaces/tidegate-system/daemonsets?dryRun=All&fieldValidation=Strict";
    // The raw request of kubectl 1.25 and newer. Debian's version is older.
    let create = ["create", "--raw", url, "-f"];
    let json =
        cluster.kubectl(&["create", "--dry-run=client", "--validate=false", "-o", "json", "-f"], &file);
    std::fs::write(&file, json.expect("made into JSON")).expect("written");
    let refused = cluster.kubectl(&create, &file).expect_err("a typo");
    assert!(refused.contains("unknown field \"spec.template.spec.hostNetwrk\""), "{refused}");
}

#[test]
fn the_container_keeps_what_it_changed_of_devices_on_the_host() {
    let file = deploy().join("kubernetes/daemonset/daemonset.yaml");
    let cluster = Cluster::new();
    let json =
        cluster.kubectl(&["create", "--dry-run=client", "--validate=false", "-o", "json", "-f"], &file);
    let set: serde_json::Value = serde_json::from_str(&json.expect("made into JSON")).expect("JSON");
    let pod = &set["spec"]["template"]["spec"];
    let all = |list: &serde_json::Value| list.as_array().expect("a list").clone();
    let holds = |path: &serde_json::Value| {
        Path::new(tidegate_dataplane::links::record::DIRECTORY).starts_with(path.as_str().unwrap_or("-"))
    };
    let mounts = all(&pod["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(|mount| holds(&mount["mountPath"])).expect("a mount that holds it");
    let volumes = all(&pod["volumes"]);
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("its volume");
    // The path is the same on the host, so that a gateway started by hand on the host after the crash of a Pod finds
    // the files.
    assert_eq!(volume["hostPath"]["path"], mount["mountPath"], "{volume} {mount}");
    assert_eq!(volume["hostPath"]["type"], "DirectoryOrCreate", "{volume}");
    assert_ne!(mount["readOnly"], true, "{mount}");
    // Records and locks use the network namespace as a key. With its own namespace, each new Pod would look for other
    // files.
    assert_eq!(pod["hostNetwork"], true, "{pod}");
}

#[test]
fn the_systemd_unit_is_verified() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let unit = std::fs::read_to_string(deploy().join("systemd/tidegate.service")).expect("readable");
    assert!(unit.contains("/usr/local/bin/tidegate run"), "the unit runs the binary");
    // The unit names the place of the installation, but the tests built the binary elsewhere.
    let file = directory.path().join("tidegate.service");
    std::fs::write(&file, unit.replace("/usr/local/bin/tidegate", env!("CARGO_BIN_EXE_tidegate")))
        .expect("written");
    let said = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file));
    said.unwrap_or_else(|error| panic!("{error}"));
    std::fs::write(&file, unit.replace("Restart=always", "Restart=allways")).expect("written");
    let said = run(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file));
    assert!(said.is_err(), "a fault would be found");
}

#[test]
fn the_dockerfile_passes_its_linter() {
    let script = deploy().join("scripts/lint-dockerfile.sh");
    run(Command::new(&script).arg(deploy().join("Dockerfile"))).unwrap_or_else(|error| panic!("{error}"));
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("Dockerfile");
    std::fs::write(&file, "FROM debian\nRUN cd /x && sudo ls\n").expect("written");
    assert!(run(Command::new(&script).arg(&file)).is_err(), "a fault would be found");
}

/// For every order in which namespace, definitions and admission policies are applied and deleted: at each step, writes
/// of Services that request nothing succeed, and so does the removal of our finalizer.
#[test]
fn the_admission_policies_stop_no_write_in_any_order_of_apply_and_delete() {
    needs!(Needs::NamespaceController, Needs::Version(31));
    let cluster = Cluster::new();
    let held = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, finalizers: \
                [tidegate.dev/cleanup]}, spec: {externalIPs: [203.0.113.1], ports: [{port: 80}]}}";
    cluster.apply(held).expect("legal");
    let directory = |name: &str| deploy().join("kubernetes").join(name);
    let (base, crds, admission) = (directory("base"), directory("crds"), directory("admission"));
    let mut count = 0;
    let mut writes = |step: &str| {
        count += 1;
        // The finalizer is added and removed alternately.
        let finalizers = if count % 2 == 0 { "[\"tidegate.dev/cleanup\"]" } else { "null" };
        let patch = format!(
            "{{\"metadata\":{{\"annotations\":{{\"step\":\"{count}\"}},\"finalizers\":{finalizers}}}}}"
        );
        let taken =
            cluster.kubectl_plain(&["-n", "shop", "patch", "service", "web", "--type=merge", "-p", &patch]);
        taken.unwrap_or_else(|error| panic!("after {step}: {error}"));
    };
    for order in [[&base, &crds, &admission], [&admission, &base, &crds], [&crds, &admission, &base]] {
        for path in order {
            // A ConfigMap is refused without its namespace; the other objects are accepted.
            let applied = cluster.kubectl(&["apply", "-k"], path);
            assert!(applied.is_ok() || path == &admission, "{}: {applied:?}", path.display());
            writes(&format!("apply {}", path.display()));
        }
        for path in order {
            let deleted = cluster.kubectl(&["delete", "--ignore-not-found", "--timeout=20s", "-k"], path);
            deleted.unwrap_or_else(|error| panic!("delete {}: {error}", path.display()));
            writes(&format!("delete {}", path.display()));
        }
    }
}
