//! Checks the contents of `deploy/` with the tools of operators: kubectl and its server-side dry run, kustomize,
//! systemd, and a Dockerfile linter.

use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::api::Needs;
use crate::needs;
use crate::tool::{command, kubectl, run};
use crate::uninstall::installed;
use crate::world::{SEEN, Setting, World, deploy, service, slice, text};

/// Runs kubectl on a file or directory.
fn kubectl_on(world: &World, arguments: &[&str], path: &Path) -> Result<String, String> {
    let path = path.display().to_string();
    kubectl(world, &[arguments, &[path.as_str()]].concat())
}

/// A cluster with the namespace and the definitions, the first part of an installation.
fn cluster() -> World {
    let world = World::empty();
    let directory = deploy().join("kubernetes");
    kubectl_on(&world, &["apply", "-f"], &directory.join("base/namespace.yaml")).expect("taken");
    kubectl_on(&world, &["apply", "-k"], &directory.join("crds")).expect("taken");
    world
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
fn every_kustomization_passes_a_strict_server_side_dry_run() {
    needs!(Needs::RealServer, Needs::Version(31));
    let world = cluster();
    for path in kustomizations() {
        let before = installed(&world);
        let printed = kubectl_on(&world, &["apply", "--dry-run=server", "-k"], &path);
        let printed = printed.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(printed.lines().all(|line| line.ends_with("(server dry run)")), "{printed}");
        assert!(!printed.is_empty(), "{}", path.display());
        assert_eq!(installed(&world), before, "a dry run keeps nothing");
        // The build alone, for its warnings.
        let built = command(world.directory()).arg("kustomize").arg(&path).output().expect("kubectl runs");
        assert_eq!(String::from_utf8_lossy(&built.stderr), "", "{}", path.display());
    }
    let text =
        std::fs::read_to_string(deploy().join("kubernetes/daemonset/daemonset.yaml")).expect("readable");
    let file = world.directory().join("typo.yaml");
    std::fs::write(&file, text.replace("hostNetwork:", "hostNetwrk:")).expect("written");
    let refused = kubectl_on(&world, &["apply", "--dry-run=server", "-f"], &file).expect_err("a typo");
    assert!(refused.contains("unknown field \"spec.template.spec.hostNetwrk\""), "{refused}");
}

#[test]
fn every_kustomization_is_installed_twice_without_a_change() {
    needs!(Needs::RealServer, Needs::NoNodes, Needs::Version(31));
    let world = cluster();
    for path in kustomizations() {
        let first = kubectl_on(&world, &["apply", "-k"], &path);
        first.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        let again = kubectl_on(&world, &["apply", "-k"], &path).expect("taken again");
        // kubectl replaces the selector of a PodDisruptionBudget as a whole, and so always reports it as configured.
        let is_same = |line: &str| {
            line.ends_with("unchanged") || line == "poddisruptionbudget.policy/tidegate configured"
        };
        assert!(again.lines().all(is_same), "{}: {again}", path.display());
    }
}

/// The Pod of the DaemonSet.
fn pod() -> Value {
    let file = deploy().join("kubernetes/daemonset/daemonset.yaml");
    let text = std::fs::read_to_string(file).expect("readable");
    let set: Value = serde_saphyr::from_str(&text).expect("YAML");
    set["spec"]["template"]["spec"].clone()
}

#[test]
fn the_rights_of_the_container_are_enough_for_an_interface_of_the_kernel() {
    let mut world = World::new();
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    let pod = pod();
    let container = &pod["containers"][0];
    let rights = &container["securityContext"];
    assert_eq!(rights["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!((&rights["privileged"], &rights["allowPrivilegeEscalation"]), (&Value::Null, &json!(false)));
    let added = rights["capabilities"]["add"].as_array().expect("a list");
    let added: Vec<String> = added.iter().map(|name| format!("+{}", text(name).to_lowercase())).collect();
    let named = |list: &Value| {
        let mut items = list.as_array().into_iter().flatten();
        items.find(|item| item["name"] == "sysctls").expect("for the sysctls").clone()
    };
    let (mount, volume) = (named(&container["volumeMounts"]), named(&pod["volumes"]));
    // What a container runtime does for a container without `privileged`. /mnt exists in the root of this machine.
    let script = format!(
        "mount -t tmpfs pod /mnt\nmkdir -p {mount}\nmount --bind {host} {mount}\nmount --bind /proc/sys /proc/sys\n\
         mount -o remount,bind,ro /proc/sys\n\
         exec setpriv --no-new-privs --inh-caps -all --bounding-set -all,{capabilities} \"$@\"",
        mount = text(&mount["mountPath"]),
        host = text(&volume["hostPath"]["path"]),
        capabilities = added.join(","),
    );
    let starter = ["unshare", "--mount", "sh", "-ec", &script, "sh"].map(str::to_owned).to_vec();
    let wire = "link add wire0 type veth peer name wire1\nlink set wire0 up\nlink set wire1 up\n";
    world.namespace().ip_batch(wire).expect("a veth pair");
    let sysctl = |world: &World| {
        let file = "/proc/sys/net/ipv4/conf/wire0/arp_ignore";
        world.enter_gateway(|| std::fs::read_to_string(file)).expect("readable").trim().to_owned()
    };
    let before = sysctl(&world);
    let device = "\"net_af_packet,iface=wire0\"".to_owned();
    world.start_with("edge-1", &Setting { starter, device, ..Setting::default() });
    world.until("a backend", || {
        (world.gateway("edge-1").backends("web") == ["10.244.0.1:8080 active"]).then_some(())
    });
    world.until("readiness", || (world.http(10_001, "/readyz")?.0 == 200).then_some(()));
    assert_ne!(sysctl(&world), before, "the kernel is silenced on the interface");
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");
    assert_eq!(sysctl(&world), before);
}

#[test]
fn the_container_keeps_its_device_records_on_the_host() {
    let pod = pod();
    let all = |list: &Value| list.as_array().expect("a list").clone();
    let contains = |path: &Value| {
        Path::new(tidegate_dataplane::links::device_state::DIRECTORY)
            .starts_with(path.as_str().unwrap_or("-"))
    };
    let mounts = all(&pod["containers"][0]["volumeMounts"]);
    let mount = mounts.iter().find(|mount| contains(&mount["mountPath"])).expect("a mount that contains it");
    let volumes = all(&pod["volumes"]);
    let volume = volumes.iter().find(|volume| volume["name"] == mount["name"]).expect("its volume");
    // The path must be the same on the host, so that a gateway started by hand after the crash of a Pod finds the
    // files.
    assert_eq!(volume["hostPath"]["path"], mount["mountPath"], "{volume} {mount}");
    assert_eq!(volume["hostPath"]["type"], "DirectoryOrCreate", "{volume}");
    assert_ne!(mount["readOnly"], true, "{mount}");
    // Records and locks are keyed by the network namespace. If each Pod had its own, it would look for other files.
    assert_eq!(pod["hostNetwork"], true, "{pod}");
}

#[test]
fn the_systemd_unit_is_verified() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let unit = std::fs::read_to_string(deploy().join("systemd/tidegate.service")).expect("readable");
    assert!(unit.contains("ExecStart=tidegate run"), "the unit runs the binary");
    // systemd would search the program where it is installed, but the tests built the binary elsewhere.
    let unit = unit.replace("ExecStart=tidegate", concat!("ExecStart=", env!("CARGO_BIN_EXE_tidegate")));
    let file = directory.path().join("tidegate.service");
    std::fs::write(&file, &unit).expect("written");
    let drop_ins = directory.path().join("tidegate.service.d");
    std::fs::create_dir(&drop_ins).expect("created");
    let drop_in = drop_ins.join("vfio.conf");
    std::fs::copy(deploy().join("systemd/vfio.conf"), &drop_in).expect("copied");
    // It succeeds with settings that it can't read, but names them with their file.
    let faults = || {
        let output = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&file).output();
        let output = output.expect("systemd-analyze runs");
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let is_about_it = printed.contains(&*directory.path().to_string_lossy());
        if output.status.success() && !is_about_it { None } else { Some(printed) }
    };
    assert_eq!(faults(), None);
    std::fs::write(&file, unit.replace("Restart=always", "Restart=allways")).expect("written");
    assert!(faults().is_some(), "a fault would be found");
}

#[test]
fn the_exposure_of_the_systemd_unit_is_below_3() {
    let unit = deploy().join("systemd/tidegate.service");
    let rate = |threshold: &str| {
        let arguments = ["security", "--offline=true", "--no-pager", threshold];
        run(Command::new("systemd-analyze").args(arguments).arg(&unit))
    };
    // In tenths.
    rate("--threshold=29").unwrap_or_else(|error| panic!("{error}"));
    assert!(rate("--threshold=5").is_err(), "a higher exposure would be found");
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
    needs!(Needs::RealServer, Needs::NamespaceController, Needs::Version(31));
    let world = World::empty();
    let service = "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: shop, finalizers: \
                [tidegate.dev/cleanup]}, spec: {externalIPs: [203.0.113.1], ports: [{port: 80}]}}";
    world.apply(service);
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
        let taken = kubectl(&world, &["-n", "shop", "patch", "service", "web", "--type=merge", "-p", &patch]);
        taken.unwrap_or_else(|error| panic!("after {step}: {error}"));
    };
    for order in [[&base, &crds, &admission], [&admission, &base, &crds], [&crds, &admission, &base]] {
        for path in order {
            // A ConfigMap is refused without its namespace; the other objects are accepted.
            let applied = kubectl_on(&world, &["apply", "-k"], path);
            assert!(applied.is_ok() || path == &admission, "{}: {applied:?}", path.display());
            writes(&format!("apply {}", path.display()));
        }
        for path in order {
            let deleted = kubectl_on(&world, &["delete", "--ignore-not-found", "--timeout=120s", "-k"], path);
            deleted.unwrap_or_else(|error| panic!("delete {}: {error}", path.display()));
            writes(&format!("delete {}", path.display()));
        }
    }
}
