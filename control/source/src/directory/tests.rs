//! Tests of directories: the files that are read, the effect of changes, and the effect of invalid files.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tidegate_model::config::GatewayApi;
use tidegate_model::objects::{ObjectKey, Objects};

use super::*;
use crate::SourceUpdate;

fn service(name: &str, port: u16) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec: {{ports: [{{port: {port}}}]}}\n"
    )
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn names(objects: &Objects) -> Vec<&str> {
    objects.services.keys().map(|k| k.name.as_str()).collect()
}

fn port_of(objects: &Objects, name: &str) -> Option<u16> {
    Some(objects.services.get(&ObjectKey::new("default", name))?.ports[0].port.get())
}

/// Follows a directory whose lost files keep their objects for an hour.
fn follow(path: &Path) -> std::io::Result<Watch> {
    DirectorySource::watch(path, Changes::Followed, Duration::from_secs(3600), 512, GatewayApi::Auto)
}

/// Waits for a state that `done` accepts, for at most 20 s.
fn wait(watch: &Watch, what: &str, done: impl Fn(&SourceUpdate) -> bool) -> SourceUpdate {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    let mut updates = watch.updates();
    let waiting = async { updates.wait_for(|u| done(u)).await.map(|u| u.clone()) };
    match runtime.block_on(async { tokio::time::timeout(Duration::from_secs(20), waiting).await }) {
        Ok(update) => update.expect("the thread still runs"),
        Err(_) => panic!("{what}: not within 20 s; last: {:?}", watch.updates().borrow()),
    }
}

#[test]
fn files_are_found_by_name_at_any_depth_unless_hidden() {
    let dir = tempfile::tempdir().unwrap();
    for (path, name) in
        [("a.yaml", "a"), ("x/y/b.yml", "b"), ("c.txt", "no"), (".d.yaml", "no"), (".h/e.yaml", "no")]
    {
        write(&dir.path().join(path), &service(name, 80));
    }
    write(
        &dir.path().join("j.json"),
        r#"{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "j"}, "spec": {"ports": [{"port": 1}]}}"#,
    );
    let (objects, report) = DirectorySource::load(dir.path());
    assert_eq!(
        report.to_string(),
        format!(
            "{}/c.txt:1:1: warning: the file is not read: it does not have the name of a manifest; accepted: \
             names that end in .yaml, .yml or .json\n",
            dir.path().display()
        )
    );
    assert_eq!(names(&objects), ["a", "b", "j"]);
}

#[test]
fn all_json_values_of_a_file_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let service = |name: &str, port: u32| {
        format!(
            r#"{{"apiVersion": "v1", "kind": "Service", "metadata": {{"name": "{name}"}}, "spec": {{"ports": [{{"port": {port}}}]}}}}"#
        )
    };
    let path = dir.path().join("all.json");
    write(&path, &format!("{}\n{}\n{}\n", service("a", 80), service("b", 0), service("c", 82)));
    let (objects, report) = DirectorySource::load(dir.path());
    assert_eq!(names(&objects), ["a", "c"]);
    let errors: Vec<String> = report.errors().map(ToString::to_string).collect();
    let place = format!("{}:2:", path.display());
    assert!(errors.len() == 1 && errors[0].starts_with(&place), "{errors:?}");
}

#[test]
fn a_fault_excludes_only_its_own_object() {
    let dir = tempfile::tempdir().unwrap();
    write(
        &dir.path().join("a.yaml"),
        &format!("{}---\n{}---\n{}", service("a", 80), service("b", 0), service("c", 82)),
    );
    write(&dir.path().join("b.yaml"), &format!("{}---\nspec: {{}}\nspec: {{}}\n", service("d", 80)));
    write(&dir.path().join("c.yaml"), "a: [\n");
    let (objects, report) = DirectorySource::load(dir.path());
    assert_eq!(names(&objects), ["a", "c", "d"]);
    let path = |name: &str| dir.path().join(name).display().to_string();
    let errors: Vec<String> = report.errors().map(ToString::to_string).collect();
    assert!(
        errors[0].starts_with(&format!("{}:9:23: error: spec.ports[0].port", path("a.yaml"))),
        "{errors:?}"
    );
    assert!(
        errors.iter().any(|e| e.starts_with(&format!("{}:7:1: error: duplicate key", path("b.yaml")))),
        "{errors:?}"
    );
    assert!(errors.iter().any(|e| e.starts_with(&path("c.yaml")) && e.contains("not YAML")), "{errors:?}");
}

#[test]
fn a_document_with_a_duplicate_key_is_left_out() {
    let dir = tempfile::tempdir().unwrap();
    let text = "apiVersion: v1\nkind: Service\nmetadata: {name: a}\nspec:\n  type: LoadBalancer\n  loadBalancerSourceRanges: []\n  loadBalancerSourceRanges: [10.0.0.0/8]\n  ports: [{port: 80}]\n";
    write(&dir.path().join("a.yaml"), text);
    let (objects, report) = DirectorySource::load(dir.path());
    assert!(report.has_errors() && objects.services.is_empty());
}

#[test]
fn a_duplicate_key_in_an_ignored_object_affects_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.yaml");
    let deployment = "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: a, name: b}\n";
    write(&path, &format!("{deployment}---\n{}", service("web", 80)));
    let (objects, report) = DirectorySource::load(dir.path());
    assert_eq!((names(&objects), report.has_errors()), (vec!["web"], false), "{report}");
    let text = format!("{}:3:21: warning: duplicate key \"name\"; accepted: each key once", path.display());
    assert!(report.iter().any(|fault| fault.to_string() == text), "{report}");

    let item = |text: &str| format!("- {}", text.trim_end().replace('\n', "\n  "));
    let list = |items: &[&str]| {
        let items: Vec<String> = items.iter().map(|text| item(text)).collect();
        format!("apiVersion: v1\nkind: List\nitems:\n{}\n", items.join("\n"))
    };
    write(&path, &list(&[&service("a", 80), deployment, &service("b", 80)]));
    let (objects, report) = DirectorySource::load(dir.path());
    assert_eq!((names(&objects), report.has_errors()), (vec!["a", "b"], false), "{report}");
    let faulty = service("b", 80).replace("{name: b}", "{name: b, name: c}");
    write(&path, &list(&[&service("a", 80), deployment, &faulty]));
    let (_, report) = DirectorySource::load(dir.path());
    assert!(report.has_errors(), "objects that the gateway reads must be unambiguous");
}

#[test]
fn a_duplicate_object_is_an_error_that_names_both_locations() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.yaml"), &service("web", 80));
    write(&dir.path().join("b.yaml"), &format!("---\n{}", service("web", 81)));
    let (objects, report) = DirectorySource::load(dir.path());
    assert_eq!(port_of(&objects, "web"), Some(80));
    let expected = format!(
        "{0}/b.yaml:2:1: error: Service default/web is also defined at {0}/a.yaml:1:1; accepted: each object once\n",
        dir.path().display()
    );
    assert_eq!(report.to_string(), expected);
}

#[test]
fn a_missing_directory_is_an_error() {
    let (objects, report) = DirectorySource::load(Path::new("no/such/directory"));
    assert_eq!(objects, Objects::default());
    assert_eq!(
        report.to_string(),
        "no/such/directory:1:1: error: the directory cannot be read: No such file or directory (os error 2); accepted: a readable directory of manifests\n"
    );
}

#[test]
fn text_that_is_not_utf8_is_an_error_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("a.yaml"), [0xff, 0xfe, 0x00]).unwrap();
    let (_, report) = DirectorySource::load(dir.path());
    assert!(
        report.to_string().contains("a.yaml:1:1: error: cannot be read: the byte 0xff is not UTF-8"),
        "{report}"
    );
}

#[test]
fn each_directory_is_read_once_regardless_of_links() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.yaml"), &service("a", 80));
    write(&dir.path().join("z/b.yaml"), &service("b", 80));
    // Two links to parent directories double the paths at each level. Two links to one directory would return each
    // object twice.
    for link in ["one", "two", "z/three", "z/four"] {
        symlink(dir.path(), dir.path().join(link)).unwrap();
    }
    symlink("z", dir.path().join("before-z")).unwrap();
    let outside = tempfile::tempdir().unwrap();
    write(&outside.path().join("c.yaml"), &service("c", 80));
    symlink(outside.path(), dir.path().join("outside")).unwrap();
    let (objects, report) = DirectorySource::load(dir.path());
    assert!(report.is_empty(), "{report}");
    assert_eq!(names(&objects), ["a", "b", "c"]);
    let origin = &objects.services[&ObjectKey::new("default", "b")].meta.origin;
    let place = origin.location().expect("a place").to_string();
    assert!(place.ends_with("/z/b.yaml:1:1"), "the path without links is reported: {place}");
}

#[test]
fn a_link_to_itself_is_an_error_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    symlink("a.yaml", dir.path().join("a.yaml")).unwrap();
    write(&dir.path().join("b.yaml"), &service("b", 80));
    let (objects, report) = DirectorySource::load(dir.path());
    assert_eq!(names(&objects), ["b"]);
    let text = report.to_string();
    assert!(
        text.contains("a.yaml:1:1: error: cannot be read: ") && text.contains("accepted: a readable file"),
        "{text}"
    );
}

#[test]
fn directories_nested_too_deep_are_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let deep = (0..20).fold(dir.path().to_owned(), |path, n| path.join(n.to_string()));
    write(&deep.join("a.yaml"), &service("a", 80));
    let (_, report) = DirectorySource::load(dir.path());
    assert!(
        report.to_string().contains("the directory is not read: it is nested deeper than 16"),
        "{report}"
    );
}

/// A kind of loss: its description and its action.
type Loss = (&'static str, fn(&Path));

/// The ways in which a file can be lost although its name stays.
fn losses() -> [Loss; 5] {
    [
        ("emptied", |path| fs::write(path, "").unwrap()),
        ("only comments", |path| fs::write(path, "# nothing\n---\n").unwrap()),
        ("not UTF-8", |path| fs::write(path, [0xff, 0xfe]).unwrap()),
        ("a directory", |path| {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }),
        ("a link to nothing", |path| {
            fs::remove_file(path).unwrap();
            symlink("nowhere", path).unwrap();
        }),
    ]
}

#[test]
fn a_lost_file_keeps_its_objects_and_is_reported() {
    for (how, lose) in losses() {
        let dir = tempfile::tempdir().unwrap();
        let a = dir.path().join("a.yaml");
        write(&a, &service("a", 80));
        write(&dir.path().join("b.yaml"), &service("b", 80));
        let watch = follow(dir.path()).unwrap();
        lose(&a);
        let lost = wait(&watch, how, |u| !u.stale.is_empty());
        assert_eq!(names(&lost.objects), ["a", "b"], "{how}");
        assert!(
            lost.report.to_string().contains("the previous objects of the file are kept until 20"),
            "{}",
            lost.report
        );
        if a.is_dir() {
            fs::remove_dir(&a).unwrap();
        }
        write(&dir.path().join(".new"), &service("a", 81));
        fs::rename(dir.path().join(".new"), &a).unwrap();
        let back = wait(&watch, how, |u| port_of(&u.objects, "a") == Some(81));
        assert!(back.stale.is_empty() && back.report.is_empty(), "{how}: {}", back.report);
    }
}

#[test]
fn files_of_an_unmounted_file_system_are_lost_not_deleted() {
    let (disk, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    // A link stands for the mount point, because its target changes in one step.
    let root = disk.path().join("manifests");
    let lead_to = |dir: &Path| {
        symlink(dir, disk.path().join(".new")).unwrap();
        fs::rename(disk.path().join(".new"), &root).unwrap();
    };
    let mounted = memory.path().join("mounted");
    fs::create_dir_all(mounted.join("below")).unwrap();
    fs::create_dir(disk.path().join("empty")).unwrap();
    write(&mounted.join("a.yaml"), &service("a", 80));
    write(&mounted.join("below/b.yaml"), &service("b", 80));
    write(&mounted.join("below/c.yaml"), &service("c", 80));
    lead_to(&mounted);
    let watch = follow(&root).unwrap();
    lead_to(&disk.path().join("empty"));
    let lost = wait(&watch, "the loss", |u| u.stale.len() == 3);
    assert_eq!(names(&lost.objects), ["a", "b", "c"]);
    assert!(lost.report.to_string().contains("no longer mounted"), "{}", lost.report);
    // One was deleted meanwhile, with its directory. That is seen once the file system is back.
    fs::rename(mounted.join("below/b.yaml"), mounted.join("b.yaml")).unwrap();
    fs::remove_dir_all(mounted.join("below")).unwrap();
    lead_to(&mounted);
    let back = wait(&watch, "the files", |u| u.stale.is_empty());
    assert_eq!((names(&back.objects), back.report.to_string()), (vec!["a", "b"], String::new()));
}

#[test]
fn a_fifo_that_replaces_a_file_is_a_lost_file_and_never_read() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a.yaml");
    write(&a, &service("a", 80));
    let watch = follow(dir.path()).unwrap();
    fs::remove_file(&a).unwrap();
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &a, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    // In between, the name may be missing, which is a deletion. A FIFO that was never a file is not read.
    wait(&watch, "the FIFO", |u| !u.stale.is_empty() || u.objects.services.is_empty());
    write(&dir.path().join("b.yaml"), &service("b", 80));
    wait(&watch, "another file", |u| names(&u.objects).contains(&"b"));
}

#[test]
fn a_lost_file_loses_its_objects_after_the_grace_time() {
    for changes in [Changes::Followed, Changes::AtReload] {
        for (how, lose) in losses() {
            let dir = tempfile::tempdir().unwrap();
            let a = dir.path().join("a.yaml");
            write(&a, &service("a", 80));
            let watch =
                DirectorySource::watch(dir.path(), changes, Duration::ZERO, 512, GatewayApi::Auto).unwrap();
            lose(&a);
            watch.reload();
            let gone = wait(&watch, how, |u| u.objects.services.is_empty());
            assert!(gone.stale.is_empty(), "{how}");
        }
    }
}

#[test]
fn a_reload_keeps_the_last_good_state_of_an_invalid_file() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a.yaml");
    write(&a, &service("a", 80));
    let watch =
        DirectorySource::watch(dir.path(), Changes::AtReload, Duration::from_secs(60), 512, GatewayApi::Auto)
            .unwrap();
    write(&a, &service("a", 0));
    watch.reload();
    let bad = wait(&watch, "the fault", |u| u.report.has_errors());
    assert_eq!(port_of(&bad.objects, "a"), Some(80));
}

#[test]
fn node_ports_are_assigned_where_an_api_server_would() {
    let dir = tempfile::tempdir().unwrap();
    let typed = |name: &str, rest: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  ports: [{{port: 80}}]\n  {rest}\n---\n"
        )
    };
    let text = [
        typed("cluster", "type: ClusterIP"),
        typed("node", "type: NodePort"),
        typed("local", "type: LoadBalancer\n  externalTrafficPolicy: Local"),
        typed(
            "bare",
            "type: LoadBalancer\n  allocateLoadBalancerNodePorts: false\n  externalTrafficPolicy: Local",
        ),
    ];
    write(&dir.path().join("a.yaml"), &text.concat());
    let (objects, report) = DirectorySource::load(dir.path());
    assert!(report.is_empty(), "{report}");
    let of = |name: &str| {
        let service = &objects.services[&ObjectKey::new("default", name)];
        (service.ports[0].node_port.map(u16::from), service.health_check_node_port.map(u16::from))
    };
    assert_eq!(of("cluster"), (None, None));
    let dynamic = 30_086..=32_767;
    assert!(matches!(of("node"), (Some(port), None) if dynamic.contains(&port)), "{:?}", of("node"));
    let (Some(port), Some(health)) = of("local") else { panic!("{:?}", of("local")) };
    assert!(dynamic.contains(&port) && dynamic.contains(&health) && port != health);
    assert!(matches!(of("bare"), (None, Some(health)) if dynamic.contains(&health)));
}

#[test]
fn ports_with_one_number_share_a_node_port_where_it_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let dns = |name: &str, tcp: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}}}\nspec:\n  type: NodePort\n  ports:\n  \
             - {{name: udp, port: 53, protocol: UDP}}\n  - {{name: tcp, port: 53{tcp}}}\n  - {{name: other, port: 54}}\n---\n"
        )
    };
    let owner = "apiVersion: v1\nkind: Service\nmetadata: {name: owner}\n\
                 spec: {type: NodePort, ports: [{port: 1, protocol: UDP, nodePort: 30001}]}\n---\n";
    let services = [
        dns("none", ""),
        dns("one", ", nodePort: 30000"),
        dns("taken", ", nodePort: 30001"),
        owner.to_owned(),
    ];
    write(&dir.path().join("a.yaml"), &services.concat());
    let (objects, report) = DirectorySource::load(dir.path());
    assert!(report.is_empty(), "{report}");
    let of = |name: &str| {
        let service = &objects.services[&ObjectKey::new("default", name)];
        [0, 1, 2].map(|i: usize| service.ports[i].node_port.map_or(0, u16::from))
    };
    let [udp, tcp, other] = of("none");
    assert!(udp >= 30_086 && udp == tcp && other >= 30_086 && udp != other, "{:?}", of("none"));
    assert_eq!(of("one")[..2], [30_000, 30_000]);
    let [udp, tcp, _] = of("taken");
    assert!(udp >= 30_086 && tcp == 30_001, "{:?}", of("taken"));
}

#[test]
fn a_duplicate_node_port_is_an_error_and_requested_ones_are_reserved() {
    let assigned = {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("a.yaml"), &service("web", 80).replace("spec: {", "spec: {type: NodePort, "));
        DirectorySource::load(dir.path()).0.services[&ObjectKey::new("default", "web")].ports[0].node_port
    };
    let assigned = assigned.expect("a NodePort Service has one");
    let dir = tempfile::tempdir().unwrap();
    let fixed = |name| {
        service(name, 80)
            .replace("port: 80", &format!("port: 80, nodePort: {assigned}"))
            .replace("spec: {", "spec: {type: NodePort, ")
    };
    write(&dir.path().join("web.yaml"), &service("web", 80).replace("spec: {", "spec: {type: NodePort, "));
    write(&dir.path().join("y.yaml"), &fixed("svc-y"));
    let (objects, report) = DirectorySource::load(dir.path());
    assert!(report.is_empty(), "{report}");
    assert_ne!(objects.services[&ObjectKey::new("default", "web")].ports[0].node_port, Some(assigned));
    write(&dir.path().join("z.yaml"), &fixed("svc-z"));
    let (objects, report) = DirectorySource::load(dir.path());
    assert!(
        report.to_string().contains(&format!("{assigned}/TCP is already taken by Service default/svc-y")),
        "{report}"
    );
    let number = |name| objects.services[&ObjectKey::new("default", name)].ports[0].node_port;
    assert_eq!(
        (number("svc-y"), number("svc-z")),
        (Some(assigned), None),
        "one of them has it, none has another"
    );
}

#[test]
fn edits_additions_and_deletions_are_followed() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.yaml"), &service("a", 80));
    let watch = follow(dir.path()).unwrap();
    assert_eq!(names(&watch.updates().borrow().objects), ["a"], "the first state is available immediately");
    write(&dir.path().join("a.yaml"), &service("a", 81));
    wait(&watch, "an edit in place", |u| port_of(&u.objects, "a") == Some(81));
    write(&dir.path().join("new/b.yaml"), &service("b", 80));
    wait(&watch, "a file in a new directory", |u| names(&u.objects) == ["a", "b"]);
    write(&dir.path().join(".tmp"), &service("a", 82));
    fs::rename(dir.path().join(".tmp"), dir.path().join("a.yaml")).unwrap();
    wait(&watch, "an atomic rename", |u| port_of(&u.objects, "a") == Some(82));
    fs::remove_file(dir.path().join("a.yaml")).unwrap();
    wait(&watch, "a deletion", |u| names(&u.objects) == ["b"]);
}

#[test]
fn a_config_map_that_swaps_its_data_link_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let data = |version: u16| {
        let name = format!("..{version}");
        write(&dir.path().join(&name).join("web.yaml"), &service("web", version));
        symlink(&name, dir.path().join("..data_tmp")).unwrap();
        fs::rename(dir.path().join("..data_tmp"), dir.path().join("..data")).unwrap();
    };
    data(80);
    symlink("..data/web.yaml", dir.path().join("web.yaml")).unwrap();
    let watch = follow(dir.path()).unwrap();
    assert_eq!(port_of(&watch.updates().borrow().objects, "web"), Some(80));
    data(81);
    wait(&watch, "the swap", |u| port_of(&u.objects, "web") == Some(81));
}

#[test]
fn an_invalid_file_keeps_its_last_good_state_and_others_change() {
    let dir = tempfile::tempdir().unwrap();
    let (a, b) = (dir.path().join("a.yaml"), dir.path().join("b.yaml"));
    write(&a, &service("a", 80));
    write(&b, &service("b", 80));
    let watch = follow(dir.path()).unwrap();
    write(&a, &service("a", 0));
    let bad = wait(&watch, "the fault", |u| u.report.has_errors());
    assert_eq!(port_of(&bad.objects, "a"), Some(80));
    let stale: Vec<&PathBuf> = bad.stale.iter().map(|s| &s.path).collect();
    assert_eq!(stale, [&a]);
    let text = "the file has errors; the gateway keeps using the version of Service default/a from before 20";
    assert!(bad.report.to_string().contains(text), "{}", bad.report);

    write(&b, &service("b", 81));
    let other = wait(&watch, "the other file", |u| port_of(&u.objects, "b") == Some(81));
    assert_eq!(port_of(&other.objects, "a"), Some(80));
    assert_eq!(other.stale[0].since, bad.stale[0].since, "bad since the same time");

    write(&a, &service("a", 82));
    let good = wait(&watch, "the repair", |u| port_of(&u.objects, "a") == Some(82));
    assert!(good.report.is_empty() && good.stale.is_empty(), "{}", good.report);
}

#[test]
fn an_invalid_object_does_not_delay_the_others_of_its_file() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a.yaml");
    let all = |ports: [u16; 3]| -> String {
        let one = |(name, port)| format!("---\n{}", service(name, port));
        ["front", "middle", "rear"].into_iter().zip(ports).map(one).collect()
    };
    write(&a, &all([80, 80, 80]));
    let watch = follow(dir.path()).unwrap();
    write(&a, &all([81, 0, 81]));
    let ports = |u: &SourceUpdate| ["front", "middle", "rear"].map(|name| port_of(&u.objects, name));
    let bad = wait(&watch, "the fault", |u| u.report.has_errors());
    assert_eq!(ports(&bad), [Some(81), Some(80), Some(81)], "only the middle one keeps its last good state");
    assert_eq!((bad.stale.len(), bad.refused.len()), (1, 0));

    // Text that is not YAML hides its object, and a file that is being written lacks the ones after it.
    write(&a, &format!("---\n{}---\nkind: [Service\n", service("front", 82)));
    let cut = wait(&watch, "the cut file", |u| port_of(&u.objects, "front") == Some(82));
    assert_eq!(ports(&cut), [Some(82), Some(80), Some(81)]);
    let text = "the gateway keeps using the version of Service default/rear and 1 more from before 20";
    assert!(cut.report.to_string().contains(text), "{}", cut.report);

    // An object that another file now defines is not kept from the old one.
    write(&dir.path().join("b.yaml"), &service("rear", 90));
    let moved = wait(&watch, "the other file", |u| port_of(&u.objects, "rear") == Some(90));
    assert!(!moved.report.to_string().contains("also defined"), "{}", moved.report);

    write(&a, &service("front", 83));
    let good = wait(&watch, "a file without errors", |u| port_of(&u.objects, "front") == Some(83));
    assert_eq!(ports(&good), [Some(83), None, Some(90)], "a missing object is deleted");
    assert!(good.report.is_empty() && good.stale.is_empty(), "{}", good.report);
}

#[test]
fn a_broken_link_is_reported_even_if_it_never_pointed_to_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a.yaml");
    symlink("..data/a.yaml", &a).unwrap();
    let watch = follow(dir.path()).unwrap();
    let text = format!("{}:1:1: error: cannot be read: it is a broken symbolic link", a.display());
    let first = watch.updates().borrow().clone();
    assert!(first.report.to_string().contains(&text), "{}", first.report);
    write(&dir.path().join("..data/a.yaml"), &service("a", 80));
    watch.reload();
    let good = wait(&watch, "the file", |u| port_of(&u.objects, "a") == Some(80));
    assert!(good.report.is_empty(), "{}", good.report);
}

#[test]
fn a_removed_directory_keeps_all_objects_and_a_new_one_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let (root, aside) = (dir.path().join("m"), dir.path().join("aside"));
    write(&root.join("a.yaml"), &service("a", 80));
    let watch = follow(&root).unwrap();
    fs::rename(&root, &aside).unwrap();
    let gone = wait(&watch, "its loss", |u| u.report.has_errors());
    assert_eq!(names(&gone.objects), ["a"]);
    write(&root.join("b.yaml"), &service("b", 80));
    let back = wait(&watch, "its return", |u| names(&u.objects) == ["b"]);
    assert!(back.report.is_empty(), "{}", back.report);
    write(&root.join("b.yaml"), &service("b", 81));
    wait(&watch, "an edit in the new one", |u| port_of(&u.objects, "b") == Some(81));
}

#[test]
fn a_burst_of_writes_results_in_few_states() {
    let dir = tempfile::tempdir().unwrap();
    let watch = follow(dir.path()).unwrap();
    let started = Instant::now();
    for i in 0..100 {
        write(&dir.path().join(format!("s{i}.yaml")), &service(&format!("s{i}"), 80));
    }
    let took = started.elapsed();
    let last = wait(&watch, "all of them", |u| u.objects.services.len() == 100);
    let allowed = 5 + u64::try_from(took.as_millis() / 10).expect("short");
    assert!(last.revision <= allowed, "{} states in {took:?}", last.revision);
}

#[test]
fn a_reload_reads_immediately_and_a_drop_ends_the_thread() {
    let dir = tempfile::tempdir().unwrap();
    let watch = follow(dir.path()).unwrap();
    write(&dir.path().join("a.yaml"), &service("a", 80));
    watch.reload();
    wait(&watch, "the reload", |u| names(&u.objects) == ["a"]);
    let updates = watch.updates();
    drop(watch);
    assert!(updates.has_changed().is_err(), "the sender is gone with its thread");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// Manifests in any order and in any files result in the same objects, including node ports.
    #[test]
    fn the_order_of_documents_and_files_does_not_matter(
        order in Just((0usize..8).collect::<Vec<_>>()).prop_shuffle(),
        files in prop::collection::vec(0usize..3, 8),
        as_list in any::<bool>(),
    ) {
        let manifests: Vec<String> = (0..8).map(|i| match i % 3 {
            0 => service(&format!("s{i}"), 80).replace("spec: {", "spec: {type: LoadBalancer, externalTrafficPolicy: Local, "),
            1 => format!("apiVersion: v1\nkind: Pod\nmetadata: {{name: p{i}}}\nstatus: {{podIP: 10.0.0.{i}}}\n"),
            _ => format!("apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {{name: e{i}, labels: {{kubernetes.io/service-name: s0}}}}\naddressType: IPv4\nendpoints: [{{addresses: [10.0.0.{i}]}}]\n"),
        }).collect();
        let load = |order: &[usize], files: &[usize], as_list: bool| {
            let dir = tempfile::tempdir().unwrap();
            let mut texts = vec![String::new(); 3];
            for i in order {
                let text = &mut texts[files[*i]];
                if as_list {
                    text.push_str("---\napiVersion: v1\nkind: List\nitems:\n");
                    for (n, line) in manifests[*i].lines().enumerate() {
                        text.push_str(&format!("{} {line}\n", if n == 0 { "-" } else { " " }));
                    }
                } else {
                    text.push_str(&format!("---\n{}", manifests[*i]));
                }
            }
            for (n, text) in texts.iter().enumerate() {
                write(&dir.path().join(format!("{n}.yaml")), text);
            }
            let (objects, report) = DirectorySource::load(dir.path());
            assert!(report.is_empty(), "{report}");
            objects
        };
        prop_assert_eq!(load(&order, &files, as_list), load(&[0, 1, 2, 3, 4, 5, 6, 7], &[0; 8], false));
    }
}

#[test]
fn refused_objects_are_listed_unless_an_earlier_version_is_in_use() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a.yaml");
    let slice = "apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\nmetadata: {name: s, labels: {kubernetes.io/service-name: web}}\naddressType: IPv5\n";
    let twice = "apiVersion: v1\nkind: Service\nmetadata: {name: twice}\nspec: {ports: [{port: 80}], type: ClusterIP, type: NodePort}\n";
    let gateway = "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\nmetadata: {name: edge}\nspec: {gatewayClassName: tidegate, listeners: [{name: y, port: 80, protocol: TCP}]}\n";
    write(
        &a,
        &format!("{}---\n{slice}---\n{}---\n{twice}---\n{gateway}", service("web", 0), service("api", 80)),
    );
    let watch = follow(dir.path()).unwrap();
    let first = watch.updates().borrow().clone();
    assert_eq!(names(&first.objects), ["api"]);
    let listed = |update: &SourceUpdate| {
        let one = |r: &crate::RefusedObject| {
            assert!(!r.faults.is_empty());
            (r.kind, r.key.name.clone(), r.service.as_ref().map(|s| s.name.clone()))
        };
        let mut listed: Vec<_> = update.refused.iter().map(one).collect();
        listed.sort();
        listed
    };
    let row = |kind, name: &str, service: &str| (kind, name.to_owned(), Some(service.to_owned()));
    let all = [
        row("EndpointSlice", "s", "web"),
        row("Gateway", "edge", "gateway/edge"),
        row("Service", "twice", "twice"),
        row("Service", "web", "web"),
    ];
    assert_eq!(listed(&first), all);
    write(&a, &service("web", 80));
    let good = wait(&watch, "a good state", |u| port_of(&u.objects, "web") == Some(80));
    assert!(good.refused.is_empty());
    write(&a, &service("web", 0));
    let bad = wait(&watch, "the fault", |u| u.report.has_errors());
    assert_eq!(
        (port_of(&bad.objects, "web"), listed(&bad)),
        (Some(80), vec![]),
        "the last good state is in use"
    );
}

#[test]
fn a_file_that_is_not_utf8_is_reported_and_keeps_its_objects() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a.yaml");
    write(&a, &service("web", 80));
    let watch = follow(dir.path()).unwrap();
    std::fs::write(&a, b"apiVersion: v1\nkind: Service # caf\xe9\n").unwrap();
    let bad = wait(&watch, "the fault", |u| u.report.has_errors());
    let text = format!(
        "{}:2:20: error: cannot be read: the byte 0xe9 is not UTF-8; accepted: UTF-8 text",
        a.display()
    );
    assert!(bad.report.to_string().contains(&text), "{}", bad.report);
    assert_eq!(port_of(&bad.objects, "web"), Some(80));
}

#[test]
fn routes_and_listener_sets_keep_the_order_in_which_they_appeared() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    let route = |name: &str, more: &str| {
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: TCPRoute\nmetadata: {{name: {name}{more}}}\n\
             spec: {{parentRefs: [{{name: edge}}], rules: [{{backendRefs: [{{name: web, port: 80}}]}}]}}\n---\n"
        )
    };
    let set = "apiVersion: gateway.networking.k8s.io/v1\nkind: ListenerSet\nmetadata: {name: set}\n\
               spec: {parentRef: {name: edge}, listeners: [{name: tcp, port: 80, protocol: TCP}]}\n";
    let arrival = |update: &SourceUpdate, name: &str| {
        let key = ObjectKey::new("default", name);
        let route = update.objects.tcp_routes.get(&key).map(|route| route.meta.arrival);
        route.or_else(|| Some(update.objects.listener_sets.get(&key)?.meta.arrival))
    };
    write(&path("1.yaml"), &route("old", ""));
    let watch = follow(dir.path()).unwrap();
    let now = |what: &str, names: &[&str]| {
        let update = wait(&watch, what, |update| {
            update.objects.tcp_routes.len() + update.objects.listener_sets.len() == names.len()
                && names.iter().all(|name| arrival(update, name).is_some())
        });
        names.iter().map(|name| arrival(&update, name).expect("it is there")).collect::<Vec<_>>()
    };
    assert_eq!(now("the start", &["old"]), [0]);
    write(&path("0.yaml"), &(route("a", "") + set));
    let [first, second] = now("new objects", &["a", "set", "old"])[..2] else { panic!("two") };
    assert!(first > 0 && first == second);
    // A change, an error and a move of a file change no order, nor does a file that appears later.
    write(&path("1.yaml"), &(route("old", "") + "a: [\n"));
    wait(&watch, "an error", |update| update.report.has_errors());
    write(&path("1.yaml"), &(route("old", "") + &route("late", "")));
    let late = now("a late route", &["old", "late", "a", "set"])[1];
    assert!(late > first);
    fs::rename(path("1.yaml"), path("2.yaml")).unwrap();
    write(&path("3.yaml"), &route("dated", ", creationTimestamp: '2026-01-01T00:00:00Z'"));
    let names = ["old", "late", "a", "set", "dated"];
    assert_eq!(now("a move", &names), [0, late, first, first, 0]);
    // A removed object that returns is the last.
    fs::remove_file(path("0.yaml")).unwrap();
    now("a removal", &["old", "late", "dated"]);
    write(&path("0.yaml"), &route("a", ""));
    assert!(now("its return", &["old", "late", "dated", "a"])[3] > late);
}

/// A Secret whose private key is `key`, in base64 if it is in `data`.
fn secret(name: &str, field: &str, key: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}}}\ntype: kubernetes.io/tls\n\
         {field}: {{tls.crt: Y2VydA==, tls.key: {key}}}\n"
    )
}

#[test]
fn secrets_of_type_tls_are_read_only_on_request() {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("a.yaml"), &secret("a", "data", "a2V5"));
    write(&dir.path().join("b.yaml"), &secret("b", "stringData", "a2V5"));
    write(&dir.path().join("c.yaml"), &secret("c", "data", "a2V5").replace("kubernetes.io/tls", "Opaque"));
    let kinds = Kinds { tls_secrets: true, ..Kinds::default() };
    let (objects, report) = DirectorySource::load_within(dir.path(), 512, kinds);
    assert!(report.is_empty(), "{report}");
    let read: Vec<(&str, &[u8], &[u8])> =
        objects.tls_secrets.values().map(|s| (s.meta.key.name.as_str(), &*s.certificate, &*s.key)).collect();
    assert_eq!(read, [("a", &b"cert"[..], &b"key"[..]), ("b", b"Y2VydA==", b"a2V5")]);

    let (objects, report) = DirectorySource::load(dir.path());
    assert!(objects.tls_secrets.is_empty());
    assert_eq!(report.warnings().count(), 3, "{report}");
}

#[test]
fn an_invalid_secret_keeps_its_last_version_and_is_never_repeated() {
    let dir = tempfile::tempdir().unwrap();
    let a = dir.path().join("a.yaml");
    write(&a, &secret("a", "data", "a2V5"));
    let kinds = Kinds { tls_secrets: true, ..Kinds::default() };
    let watch =
        DirectorySource::watch(dir.path(), Changes::AtReload, Duration::from_secs(60), 512, kinds).unwrap();
    for key in ["VERYPRIVATE!", "[VERYPRIVATE]", "{VERYPRIVATE: 1}", "1234567890", "~", "\"VERYPRIVATE"] {
        write(&a, &secret("a", "data", key));
        watch.reload();
        let bad = wait(&watch, key, |u| u.report.has_errors());
        let last = bad.objects.tls_secrets.get(&ObjectKey::new("default", "a")).expect("the last version");
        assert_eq!(&*last.key, b"key");
        let shown = format!("{}{:?}{:?}", bad.report, bad.refused, bad.objects);
        assert!(!shown.contains("VERYPRIVATE") && !shown.contains("1234567890"), "{shown}");
        write(&a, &secret("a", "data", "a2V5"));
        watch.reload();
        wait(&watch, "without the fault", |u| !u.report.has_errors());
    }
}
