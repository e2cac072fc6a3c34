//! Tidegate is removed from a cluster: with a running gateway, without one, and by following `deploy/README.md`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;
use test_apiserver::Fault;

use crate::api::Needs;
use crate::needs;
use crate::tool::{helm, plugin, program};
use crate::world::{SEEN, Setting, World, deploy, service, slice, text};

const API: &str = "tidegate.dev/v1alpha1";

/// A pool, a LoadBalancer, and a Service with an external IP only.
fn objects() -> String {
    let pool = "{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {name: more}, spec: {addresses: \
                [198.51.100.0/28]}}\n---\n";
    let external = "{apiVersion: v1, kind: Service, metadata: {name: ext, namespace: shop}, spec: {externalIPs: \
                    [203.0.113.14], ports: [{name: http, port: 80}]}}\n---\n";
    pool.to_owned() + external + &service("web") + &slice("web", &["10.244.0.1"])
}

/// The parts of an object that a gateway wrote; `None` if there are none.
fn traces(object: &Value) -> Option<String> {
    let items = |list: &Value| list.as_array().cloned().unwrap_or_default();
    let ours = |one: &Value| text(one).starts_with("tidegate.dev/");
    let finalizers = items(&object["metadata"]["finalizers"]).iter().filter(|one| ours(one)).count();
    let conditions = items(&object["status"]["conditions"]);
    let conditions = match text(&object["kind"]).as_str() {
        "AddressPool" => conditions.len(),
        _ => conditions.iter().filter(|one| ours(&one["type"])).count(),
    };
    let addresses = items(&object["status"]["loadBalancer"]["ingress"]).len();
    let name = &object["metadata"]["name"];
    (finalizers + conditions + addresses > 0)
        .then(|| format!("{name}: {finalizers} finalizers, {conditions} conditions, {addresses} addresses"))
}

/// Everything that gateways wrote to the cluster, except the Lease and their events.
fn written(world: &World) -> Vec<String> {
    let objects = [("v1", "Service"), (API, "AddressPool")];
    let objects = objects.iter().flat_map(|(version, kind)| world.api.list(version, kind, ""));
    let gateways = world.api.list(API, "GatewayStatus", "");
    let gateways = gateways.iter().map(|one| format!("GatewayStatus {}", one["metadata"]["name"]));
    objects.filter_map(|object| traces(&object)).chain(gateways).collect()
}

fn lease_owner(world: &World) -> Option<String> {
    let lease = world.api.get("coordination.k8s.io/v1", "Lease", "tidegate-system", "tidegate")?;
    Some(text(&lease["spec"]["holderIdentity"]))
}

/// The kubeconfig of the cluster's administrator.
fn admin(world: &World) -> PathBuf {
    let directory = world.directory().join("admin");
    std::fs::create_dir_all(&directory).expect("a directory of the test");
    world.api.kubeconfig(&directory).expect("written")
}

/// Runs `tidegate uninstall` as on a workstation. Returns its exit code and output.
fn uninstall(world: &World, arguments: &[&str]) -> (i32, String) {
    let kubeconfig = admin(world);
    let output = world.enter_gateway(|| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate"));
        // There is no terminal, so it must not prompt.
        command.args(["uninstall", "--yes"]).args(arguments).arg("--kubeconfig").arg(&kubeconfig).output()
    });
    let output = output.expect("the binary runs");
    let printed = [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    (output.status.code().unwrap_or(-1), printed.concat())
}

/// A cluster with a gateway that has written everything that it can write.
fn at_work() -> World {
    let mut world = World::new();
    world.apply(&objects());
    world.start("edge-1");
    world.until("all to be written", || (written(&world).len() == 4).then_some(()));
    world
}

#[test]
fn with_a_running_gateway_everything_is_released_and_stays_released() {
    needs!(Needs::Requests);
    let mut world = at_work();
    let before = world.api.get("v1", "Service", "shop", "web");
    let (code, printed) = uninstall(&world, &["--dry-run"]);
    assert_eq!(code, 0, "{printed}");
    for part in ["would release Service shop/web: ", "AddressPool more: ", "dry run: 3 objects", "edge-1"] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert_eq!(world.api.get("v1", "Service", "shop", "web"), before, "a dry run changes nothing");
    let (code, printed) = uninstall(&world, &[]);
    assert_eq!(code, 0, "{printed}");
    assert!(
        printed.contains("released Service shop/web: ") && printed.contains("Stop them now"),
        "{printed}"
    );
    assert_eq!(written(&world), [] as [String; 0], "{printed}");
    world.until("the VIP to be withdrawn", || world.gateway("edge-1").vips("web").is_empty().then_some(()));
    // Repeated uninstalls succeed, even while the gateway is still running.
    let (code, printed) = uninstall(&world, &[]);
    assert!(code == 0 && printed.contains("prevents gateways from writing"), "{printed}");
    world.api.forget_requests();
    world.apply(&(service("late") + &slice("late", &["10.244.0.2"])));
    world.until("three more reads of the Lease", || {
        let reads = world.api.requests().iter().filter(|one| one.path.ends_with("/leases/tidegate")).count();
        (reads >= 3).then_some(())
    });
    // Other clients also write to a real server: this test, and controllers.
    let by_gateways = world.api.requests().into_iter().filter(|one| one.user.contains("tidegate"));
    let writes = by_gateways.filter(|one| one.method != "GET" && !one.path.contains("/events"));
    assert_eq!(writes.map(|one| one.path).collect::<Vec<_>>(), [] as [String; 0], "it writes nothing");
    assert_eq!(written(&world), [] as [String; 0]);
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    assert_eq!(written(&world), [] as [String; 0], "no status at the end either");
    assert!(world.api.delete("v1", "Service", "shop", "web"));
    assert!(world.api.get("v1", "Service", "shop", "web").is_none(), "it has no finalizer");
    // After a restart it still writes nothing. Once the Lease is deleted, it continues.
    world.start_again("edge-1");
    assert_eq!(lease_owner(&world).as_deref(), Some("tidegate-uninstall"));
    assert!(world.api.delete("coordination.k8s.io/v1", "Lease", "tidegate-system", "tidegate"));
    world.install();
    world.until("an address", || {
        let late = world.api.get("v1", "Service", "shop", "late")?;
        late["status"]["loadBalancer"]["ingress"].is_array().then_some(())
    });
}

#[test]
fn without_a_gateway_finalized_objects_are_released_and_the_lease_deleted() {
    needs!(Needs::NamespaceController);
    let mut world = at_work();
    // The gateway was killed a while ago.
    world.end("edge-1", Signal::KILL, SEEN).expect("it ends");
    let old = |status: &mut Value| status["status"]["lastHeartbeat"] = "2026-01-01T00:00:00Z".into();
    world.api.edit(API, "GatewayStatus", "", "edge-1", old).expect("legal");
    assert!(world.api.delete("v1", "Namespace", "", "shop"));
    assert!(world.api.delete(API, "AddressPool", "", "more") && !written(&world).is_empty());
    let (code, printed) = uninstall(&world, &[]);
    assert_eq!(code, 0, "{printed}");
    assert_eq!(written(&world), [] as [String; 0], "{printed}");
    // It has no other finalizer, and its controller deletes it.
    world.until("the namespace to go", || {
        world.api.get("v1", "Namespace", "", "shop").is_none().then_some(())
    });
    assert!(world.api.get(API, "AddressPool", "", "more").is_none());
    assert_eq!(lease_owner(&world), None);
    let (code, printed) = uninstall(&world, &[]);
    assert!(code == 0 && printed.contains("0 objects released; nothing"), "again: {printed}");
}

#[test]
fn a_refused_write_leaves_everything_unchanged_without_keep_going() {
    needs!(Needs::Faults);
    let mut world = at_work();
    world.apply(&(service("api") + &slice("api", &["10.244.0.2"])));
    world.until("another one", || (written(&world).len() == 5).then_some(()));
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    let before = written(&world);
    world.api.faults().on("/services/api/status", Fault::ServerError(403));
    let (code, printed) = uninstall(&world, &[]);
    assert!(
        code == 1 && printed.contains("nothing was changed") && printed.contains("shop/api"),
        "{code}: {printed}"
    );
    assert_eq!(written(&world), before);
    assert_eq!(lease_owner(&world).as_deref(), Some(""), "gateways may continue");
    let (code, printed) = uninstall(&world, &["--keep-going"]);
    assert!(code == 1 && printed.contains("error: not released: Service shop/api"), "{code}: {printed}");
    assert_eq!(written(&world).len(), 1, "{:?}", written(&world));
    world.api.faults().clear();
    let (code, printed) = uninstall(&world, &[]);
    assert_eq!((code, written(&world).len()), (0, 0), "{printed}");
}

/// The shell blocks below a heading of `deploy/README.md`, in order.
pub(crate) fn blocks(heading: &str) -> Vec<String> {
    let readme = std::fs::read_to_string(deploy().join("README.md")).expect("readable");
    let section = readme.split("\n## ").find(|section| section.lines().next() == Some(heading));
    let section = section.unwrap_or_else(|| panic!("deploy/README.md has no section {heading:?}"));
    let parts = section.split("```sh\n").skip(1);
    let blocks: Vec<String> = parts.filter_map(|part| Some(part.split_once("```")?.0.to_owned())).collect();
    assert!(!blocks.is_empty(), "{heading:?} has no shell block");
    blocks
}

/// A workstation: helm, kubectl with the plugin, the administrator's kubeconfig, and a checkout of this tree.
pub(crate) struct Workstation {
    home: tempfile::TempDir,
}

impl Workstation {
    pub(crate) fn new(world: &World) -> Self {
        let home = tempfile::tempdir().expect("a temporary directory");
        symlink(deploy().canonicalize().expect("it is there"), home.path().join("deploy")).expect("a link");
        std::fs::create_dir(home.path().join("bin")).expect("a directory");
        symlink(plugin(), home.path().join("bin/kubectl-tidegate")).expect("a link");
        for (program, name) in [(program(), "kubectl"), (helm(), "helm")] {
            if program.is_absolute() {
                symlink(program, home.path().join("bin").join(name)).expect("a link");
            }
        }
        std::fs::copy(admin(world), home.path().join("admin")).expect("a kubeconfig");
        Self { home }
    }

    /// Runs a block of the README.
    pub(crate) fn run(&self, world: &World, script: &str) -> String {
        let path = format!(
            "{}:{}",
            self.home.path().join("bin").display(),
            std::env::var("PATH").unwrap_or_default()
        );
        let output = world.enter_gateway(|| {
            let mut command = Command::new("timeout");
            command.args(["60", "bash", "-euo", "pipefail", "-c", script]).current_dir(self.home.path());
            command.env("PATH", &path).env("HOME", self.home.path());
            command.env("KUBECONFIG", self.home.path().join("admin")).output()
        });
        let output = output.expect("bash runs");
        let printed =
            [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat();
        assert!(output.status.success(), "{script}\n{}: {printed}", output.status);
        printed
    }

    fn file(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).expect("the README creates it")
    }

    /// The path of a file in its working directory.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }
}

/// All objects in the cluster, except those of every cluster and of its user.
pub(crate) fn installed(world: &World) -> Vec<String> {
    let rbac = "rbac.authorization.k8s.io/v1";
    let admission = "admissionregistration.k8s.io/v1";
    let kinds = [
        ("v1", "Namespace"),
        ("v1", "ServiceAccount"),
        ("v1", "Secret"),
        ("v1", "ConfigMap"),
        (rbac, "ClusterRole"),
        (rbac, "ClusterRoleBinding"),
        (rbac, "Role"),
        (rbac, "RoleBinding"),
        ("apps/v1", "DaemonSet"),
        ("apiextensions.k8s.io/v1", "CustomResourceDefinition"),
        (admission, "ValidatingAdmissionPolicy"),
        (admission, "ValidatingAdmissionPolicyBinding"),
        ("coordination.k8s.io/v1", "Lease"),
        (API, "AddressPool"),
        (API, "GatewayStatus"),
    ];
    let mut found: Vec<String> = Vec::new();
    for (version, kind) in kinds {
        for object in world.api.list(version, kind, "") {
            let (namespace, name) =
                (text(&object["metadata"]["namespace"]), text(&object["metadata"]["name"]));
            let is_of_all = match kind {
                "Namespace" => name.starts_with("kube-") || ["default", "shop"].contains(&&*name),
                // Controllers create these in every namespace.
                "ServiceAccount" => name == "default",
                "ConfigMap" => name == "kube-root-ca.crt",
                _ => false,
            };
            // A real server creates its own roles some time after its start.
            let is_of_server = name.starts_with("system:")
                || ["cluster-admin", "admin", "edit", "view"].contains(&&*name)
                || (namespace.starts_with("kube-") && !name.starts_with("tidegate"));
            if !is_of_all && !is_of_server {
                found.push(format!("{kind} {namespace}/{name}"));
            }
        }
    }
    found
}

#[test]
fn the_readme_installs_upgrades_and_removes_without_leftovers() {
    needs!(Needs::RealServer, Needs::NamespaceController, Needs::Version(31));
    let mut world = World::empty();
    let before = installed(&world);
    let installed = |world: &World| {
        let mut found = installed(world);
        found.retain(|object| !before.contains(object));
        found
    };
    let workstation = Workstation::new(&world);
    let guide = blocks("A gateway outside the cluster");
    let [install, kubeconfig, ..] = &guide[..] else { panic!("two steps") };
    let (first, removal) = (blocks("First steps"), blocks("Removing Tidegate"));
    for (case, runs) in [("with a gateway that runs", true), ("with none", false)] {
        workstation.run(&world, install);
        workstation.run(&world, kubeconfig);
        workstation.run(&world, &blocks("Admission")[0]);
        workstation.run(&world, &first[0]);
        world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
        let setting = Setting {
            document: "pools: []".into(),
            kubeconfig: Some(workstation.file("kubeconfig")),
            ..Setting::default()
        };
        world.start_with("edge-1", &setting);
        let ingress = || {
            world.api.get("v1", "Service", "shop", "web")?["status"]["loadBalancer"]["ingress"]
                .get(0)
                .cloned()
        };
        let address = world.until("an address", ingress);
        // An upgrade: everything is applied again, and the gateway is a new process.
        workstation.run(&world, install);
        workstation.run(&world, &blocks("Admission")[0]);
        world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
        world.start_again("edge-1");
        world.until("the gateway to lead again", || {
            lease_owner(&world).is_some_and(|owner| owner.starts_with("edge-1_")).then_some(())
        });
        let ingress = || {
            world.api.get("v1", "Service", "shop", "web")?["status"]["loadBalancer"]["ingress"]
                .get(0)
                .cloned()
        };
        assert_eq!(ingress(), Some(address), "{case}");
        if !runs {
            world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
        }
        for step in &removal {
            workstation.run(&world, step);
        }
        assert_eq!(installed(&world), [] as [String; 0], "{case}");
        assert_eq!(written(&world), [] as [String; 0], "{case}");
        if runs {
            // Its requests no longer matter: it has no rights, and there is nothing to write to.
            world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
            assert_eq!(installed(&world), [] as [String; 0], "{case}");
        }
        assert!(world.api.delete("v1", "Service", "shop", "web"));
        assert!(world.api.get("v1", "Service", "shop", "web").is_none(), "{case}: it has no finalizer");
    }
}

#[test]
fn the_readme_names_its_files() {
    // The files that these steps name must exist. A step names a file of the tree by its path from the root.
    let readme = std::fs::read_to_string(deploy().join("README.md")).expect("readable");
    for word in readme.split_whitespace().filter(|word| word.starts_with("deploy/")) {
        let word =
            word.trim_matches(|c: char| !c.is_alphanumeric() && c != '/' && c != '-' && c != '.' && c != '_');
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(word.trim_end_matches('.'));
        assert!(path.exists(), "{word}");
    }
}
