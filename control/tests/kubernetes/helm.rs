//! The Helm chart, with the real helm: it renders the objects of the kustomizations, and the steps of
//! `deploy/README.md` install it, upgrade it with the definitions, and remove it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::api::{Needs, ObjectPath};
use crate::definitions::older;
use crate::needs;
use crate::tool::{command, helm, run};
use crate::uninstall::{Workstation, blocks, installed};
use crate::world::{SEEN, Setting, World, deploy, service, slice, text};

const CRD: &str = "apiextensions.k8s.io/v1";
const POOL: &str = "tidegate.dev/v1alpha1";

fn chart() -> PathBuf {
    deploy().join("helm/tidegate")
}

/// Runs helm with the chart. An empty directory is its home, so it uses no cluster.
fn rendered(command: &str, values: &[&str]) -> Result<String, String> {
    let home = tempfile::tempdir().expect("a temporary directory");
    let mut helm = Command::new(helm());
    helm.env("HOME", home.path()).env_remove("KUBECONFIG").arg(command);
    if command == "template" {
        helm.arg("tidegate");
    }
    run(helm.arg(chart()).args(["--namespace", "tidegate-system"]).args(values))
}

/// The objects of a YAML text, by kind and name.
fn objects(yaml: &str) -> BTreeMap<String, Value> {
    let documents: Vec<Value> = serde_saphyr::from_multiple(yaml).expect("YAML");
    let documents: Vec<Value> = documents.into_iter().filter(|object| !object.is_null()).collect();
    let count = documents.len();
    let name = |object: &Value| format!("{} {}", text(&object["kind"]), text(&object["metadata"]["name"]));
    let objects: BTreeMap<_, _> = documents.into_iter().map(|object| (name(&object), object)).collect();
    assert_eq!(objects.len(), count, "no duplicates: {:?}", objects.keys());
    objects
}

/// The objects of the chart, without what only helm uses: what it keeps, and what replaces Pods with an old
/// configuration.
fn of_chart(values: &[&str]) -> BTreeMap<String, Value> {
    let mut objects = objects(&rendered("template", values).expect("it renders"));
    for object in objects.values_mut() {
        let (place, key) = match object["kind"].as_str() {
            Some("CustomResourceDefinition") => ("/metadata", "helm.sh/resource-policy"),
            Some("DaemonSet") => ("/spec/template/metadata", "tidegate.dev/config-checksum"),
            _ => continue,
        };
        let metadata = object.pointer_mut(place).and_then(Value::as_object_mut).expect("metadata");
        let annotations = metadata["annotations"].as_object_mut().expect("annotations");
        assert!(annotations.remove(key).is_some(), "{key}");
        if annotations.is_empty() {
            metadata.remove("annotations");
        }
    }
    objects
}

/// The objects of some kustomizations, without the namespace, which helm creates. kustomize adds a hash to the name of
/// the generated ConfigMap; it is removed.
fn of_kustomize(directories: &[&str]) -> BTreeMap<String, Value> {
    let home = tempfile::tempdir().expect("a temporary directory");
    let mut all = BTreeMap::new();
    for directory in directories {
        let path = deploy().join("kubernetes").join(directory);
        let yaml = run(command(home.path()).arg("kustomize").arg(path)).expect("kustomize builds it");
        let generated =
            objects(&yaml).into_values().find(|object| object["data"]["gateway.yaml"].is_string());
        let name = generated.map(|object| text(&object["metadata"]["name"]));
        all.extend(objects(&name.map_or_else(|| yaml.clone(), |name| yaml.replace(&name, "tidegate"))));
    }
    all.remove("Namespace tidegate-system").expect("a namespace");
    all
}

/// The values of a DaemonSet with the configuration of `deploy/kubernetes`.
fn daemonset() -> Vec<String> {
    let gateway = deploy().join("kubernetes/daemonset/gateway.yaml");
    let file = format!("daemonset.gateway={}", gateway.display());
    ["--set", "daemonset.enabled=true,offCluster.enabled=false", "--set-file", &file]
        .map(str::to_owned)
        .into()
}

/// Values that enable everything.
fn everything() -> Vec<String> {
    let mut values = daemonset();
    let switches = "podWeights.enabled=true,admission.enabled=true,rules.enabled=true,dashboard.enabled=true";
    values.extend(["--set".to_owned(), switches.to_owned()]);
    values.extend([
        "--set".to_owned(),
        "monitors.targets={192.0.2.2:9469},rules.labels.release=prom".to_owned(),
    ]);
    values
}

fn words(values: &[String]) -> Vec<&str> {
    values.iter().map(String::as_str).collect()
}

#[test]
fn the_chart_renders_the_objects_of_the_kustomizations() {
    needs!(Needs::RealServer);
    let daemonset = daemonset();
    let vfio = [words(&daemonset), vec!["--set", "daemonset.vfio=true"]].concat();
    let optional = ["--set", "podWeights.enabled=true,admission.enabled=true"];
    let cases: [(&[&str], &[&str]); 4] = [
        (&[], &["off-cluster"]),
        (&words(&daemonset), &["daemonset"]),
        (&vfio, &["daemonset-vfio"]),
        (&optional, &["off-cluster", "pod-weights", "admission"]),
    ];
    for (values, directories) in cases {
        let (chart, kustomize) = (of_chart(values), of_kustomize(directories));
        let names = |objects: &BTreeMap<String, Value>| objects.keys().cloned().collect::<Vec<_>>();
        assert_eq!(names(&chart), names(&kustomize), "{directories:?}");
        for (name, object) in kustomize {
            assert_eq!(chart[&name], object, "{directories:?}: {name}");
        }
    }
}

#[test]
fn the_chart_passes_lint_and_its_schema_refuses_wrong_values() {
    needs!(Needs::RealServer);
    let everything = everything();
    for values in [Vec::new(), words(&everything)] {
        rendered("lint", &[vec!["--strict"], values].concat()).unwrap_or_else(|error| panic!("{error}"));
    }
    let daemonset = daemonset();
    let monitored = [words(&daemonset), vec!["--set", "monitors.pods.enabled=true"]].concat();
    let refused: [(&[&str], &str); 6] = [
        (&["--set", "daemonset.enabled=true"], "/daemonset/gateway"),
        (
            &["--set", "daemonset.enabled=true,daemonset.gateway=pools: []"],
            "accepted: the text of a gateway.yaml",
        ),
        (&["--set", "admission.enabeld=true"], "enabeld"),
        (&["--set", "admission.externalIPRanges={all}"], "/admission/externalIPRanges/0"),
        (&monitored, "accepted: an address that Prometheus reaches"),
        (&["--namespace", "default"], "accepted: --namespace tidegate-system"),
    ];
    for (values, expected) in refused {
        let error = rendered("template", values).expect_err("wrong values");
        assert!(error.contains(expected), "{values:?}: {error}");
    }
    let chart = std::fs::read_to_string(chart().join("Chart.yaml")).expect("readable");
    let chart: Value = serde_saphyr::from_str(&chart).expect("YAML");
    for version in ["version", "appVersion"] {
        assert_eq!(chart[version], env!("CARGO_PKG_VERSION"), "{version}");
    }
}

#[test]
fn the_chart_has_the_alerts_the_dashboard_and_the_monitors() {
    needs!(Needs::RealServer);
    let everything = everything();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("gateway.yaml");
    let gateway =
        std::fs::read_to_string(deploy().join("kubernetes/daemonset/gateway.yaml")).expect("readable");
    std::fs::write(&file, gateway + "admin: {listen: \"${NODE_IP}:9500\"}\n").expect("written");
    let file = format!("daemonset.gateway={}", file.display());
    let more = ["--set-file", &file, "--set", "monitors.pods.enabled=true"];
    let objects = of_chart(&[&words(&everything)[..], &more[..]].concat());
    let read = |path: &str| std::fs::read_to_string(deploy().join(path)).expect("readable");
    let rules: Value = serde_saphyr::from_str(&read("prometheus/rules.yaml")).expect("YAML");
    assert_eq!(objects["PrometheusRule tidegate"]["spec"], rules);
    assert_eq!(objects["PrometheusRule tidegate"]["metadata"]["labels"]["release"], "prom");
    let dashboard = &objects["ConfigMap tidegate-dashboard"]["data"]["tidegate.json"];
    assert_eq!(text(dashboard), read("grafana/tidegate.json"));
    let pods = &objects["PodMonitor tidegate"]["spec"];
    assert_eq!(pods["podMetricsEndpoints"][0]["portNumber"], 9500);
    let selected = &pods["selector"]["matchLabels"];
    assert_eq!(selected, &objects["DaemonSet tidegate"]["spec"]["template"]["metadata"]["labels"]);
    let targets = &objects["ScrapeConfig tidegate"]["spec"]["staticConfigs"];
    assert_eq!(targets, &json!([{"targets": ["192.0.2.2:9469"]}]));
}

/// A copy of `deploy/` whose definition of AddressPool lacks `spec.gatewaySelector`, as that of an older release.
fn older_release(copy: &Path) {
    run(Command::new("cp").arg("-a").arg(deploy().canonicalize().expect("it exists")).arg(copy))
        .expect("copied");
    let file = copy.join("kubernetes/crds/tidegate.dev_addresspools.yaml");
    let definition: Value =
        serde_saphyr::from_str(&std::fs::read_to_string(&file).expect("readable")).expect("YAML");
    let definition = older(definition, &[("spec", "gatewaySelector")]);
    std::fs::write(&file, definition.to_string()).expect("written");
}

/// Whether the API server serves AddressPools with `spec.gatewaySelector`.
fn is_upgraded(world: &World) -> bool {
    let pool = json!({"apiVersion": POOL, "kind": "AddressPool", "metadata": {"name": "probe"},
        "spec": {"addresses": ["192.0.2.1"], "gatewaySelector": {"matchLabels": {"rack": "r1"}}}});
    let path = ObjectPath::new(POOL, "AddressPool", "", "").path() + "?dryRun=All&fieldValidation=Strict";
    world.api.admin().request("POST", &path, Some(("application/json", &pool))).is_ok()
}

#[test]
fn the_readme_installs_upgrades_and_removes_the_chart() {
    needs!(Needs::RealServer, Needs::NamespaceController, Needs::NoNodes, Needs::Version(31));
    let mut world = World::empty();
    let before = installed(&world);
    let installed = |world: &World| {
        let mut found = installed(world);
        // The test makes the token of the gateway's account.
        found.retain(|object| !before.contains(object) && !object.contains("/stories-"));
        found
    };
    let workstation = Workstation::new(&world);
    let steps = blocks("With Helm");
    let [install, upgrade, remove, delete, adopt] = &steps[..] else { panic!("five steps: {steps:?}") };

    // An older release, and a gateway with the rights of the chart.
    older_release(&workstation.path("older"));
    workstation.run(&world, &install.replace("deploy/helm", "older/helm"));
    assert!(!is_upgraded(&world));
    world.apply(
        "{apiVersion: tidegate.dev/v1alpha1, kind: AddressPool, metadata: {name: public}, \
         spec: {addresses: [203.0.113.0/28]}}",
    );
    world.apply(&(service("web") + &slice("web", &["10.244.0.1"])));
    world.start_with("edge-1", &Setting { document: "pools: []".into(), ..Setting::default() });
    let ingress = |world: &World| {
        let service = world.api.get("v1", "Service", "shop", "web")?;
        service["status"]["loadBalancer"]["ingress"].get(0).cloned()
    };
    let address = world.until("an address", || ingress(&world));

    workstation.run(&world, upgrade);
    world.until("the definition to be upgraded", || is_upgraded(&world).then_some(()));
    let all = installed(&world).join("\n");
    for part in ["ValidatingAdmissionPolicy /tidegate-accounts", "ClusterRole /tidegate-pod-weights"] {
        assert!(all.contains(part), "{part}: {all}");
    }
    // The next upgrade removes what is switched off, and adds the DaemonSet.
    let file = "--set-file daemonset.gateway=deploy/kubernetes/daemonset/gateway.yaml";
    let changed = upgrade.replace("admission.enabled=true", "admission.enabled=false,daemonset.enabled=true");
    workstation.run(&world, &format!("{} {file}", changed.trim_end()));
    let all = installed(&world).join("\n");
    assert!(!all.contains("ValidatingAdmissionPolicy"), "{all}");
    assert!(all.contains("DaemonSet tidegate-system/tidegate"), "{all}");
    assert_eq!(ingress(&world), Some(address));
    world.end("edge-1", Signal::TERM, SEEN).expect("it ends");

    // The definitions and the pools stay, until they are deleted.
    workstation.run(&world, remove);
    let definitions = ["addresspools", "gatewaystatuses"].map(|name| format!("{name}.tidegate.dev"));
    let kept: Vec<_> = definitions.iter().map(|name| format!("CustomResourceDefinition /{name}")).collect();
    let namespace = "Namespace /tidegate-system".to_owned();
    let pool = "AddressPool /public".to_owned();
    assert_eq!(installed(&world), [vec![namespace], kept, vec![pool]].concat());
    assert!(world.api.get(CRD, "CustomResourceDefinition", "", &definitions[0]).is_some());
    workstation.run(&world, delete);
    assert_eq!(installed(&world), [] as [String; 0]);

    // helm takes over what kubectl has installed, and upgrades it.
    workstation.run(&world, &blocks("A gateway outside the cluster")[0].replace("deploy/", "older/"));
    assert!(!is_upgraded(&world));
    workstation.run(&world, adopt);
    world.until("the definition to be upgraded", || is_upgraded(&world).then_some(()));
    workstation.run(&world, &remove.replace("kubectl tidegate uninstall --yes", ""));
    workstation.run(&world, delete);
    assert_eq!(installed(&world), [] as [String; 0]);
}
