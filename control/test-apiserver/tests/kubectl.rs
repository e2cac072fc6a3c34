//! Tests of the server with the real `kubectl`: the commands of operators work, with kubectl's messages and columns.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use test_apiserver::{Options, TestApiServer};

struct Kubectl {
    server: TestApiServer,
    kubeconfig: PathBuf,
    directory: tempfile::TempDir,
}

impl Kubectl {
    fn new() -> Self {
        let server = TestApiServer::start(Options::default()).expect("a free port");
        let directory = tempfile::tempdir().expect("a temporary directory");
        let kubeconfig = server.kubeconfig(directory.path()).expect("written");
        Self { server, kubeconfig, directory }
    }

    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new("kubectl");
        command
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", self.directory.path())
            .current_dir(self.directory.path())
            .args(arguments.split_whitespace());
        command
    }

    fn run(&self, arguments: &str) -> Output {
        self.command(arguments).output().expect("kubectl is installed")
    }

    /// The minor version of kubectl: Debian 12 has 1.20.
    fn minor(&self) -> u32 {
        let version: serde_json::Value =
            serde_json::from_str(&self.says("version --client -o json")).expect("JSON");
        let minor = version["clientVersion"]["minor"].as_str().expect("text");
        minor.trim_end_matches('+').parse().expect("a number")
    }

    /// Writes a status like a controller.
    fn status(&self, kind: (&str, &str, &str, &str), status: serde_json::Value) {
        let (api_version, kind, namespace, name) = kind;
        self.server
            .edit(api_version, kind, namespace, name, |object| object["status"] = status)
            .expect("legal");
    }

    fn says(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "kubectl {arguments}: {error}");
        String::from_utf8(output.stdout).expect("text")
    }

    fn refuses(&self, arguments: &str) -> String {
        let output = self.run(arguments);
        assert!(!output.status.success(), "kubectl {arguments}: {}", String::from_utf8_lossy(&output.stdout));
        String::from_utf8(output.stderr).expect("text")
    }

    fn file(&self, name: &str, text: &str) {
        // An old kubectl parses a file that begins with a brace as JSON.
        std::fs::write(self.directory.path().join(name), format!("---\n{text}")).expect("written");
    }
}

const SERVICE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: default, labels: {app: web}}
spec:
  type: LoadBalancer
  loadBalancerClass: tidegate.dev/gateway
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

const DEFINITION: &str = r#"
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: pools.example.org}
spec:
  group: example.org
  scope: Cluster
  names: {plural: pools, singular: pool, kind: Pool, shortNames: [pl]}
  versions:
    - name: v1
      served: true
      storage: true
      subresources: {status: {}}
      additionalPrinterColumns:
        - {name: Free, type: integer, jsonPath: .status.free}
        - {name: Ready, type: string, jsonPath: '.status.conditions[?(@.type=="Ready")].status'}
      schema:
        openAPIV3Schema:
          type: object
          required: [spec]
          properties:
            spec:
              type: object
              required: [addresses]
              properties:
                addresses: {type: array, minItems: 1, items: {type: string}}
                autoAssign: {type: boolean, default: true}
            status:
              type: object
              properties:
                free: {type: integer}
                conditions:
                  type: array
                  x-kubernetes-list-type: map
                  x-kubernetes-list-map-keys: [type]
                  items:
                    type: object
                    required: [type, status]
                    properties: {type: {type: string}, status: {type: string}}
"#;

#[test]
fn apply_get_describe_patch_and_delete_a_service() {
    let kubectl = Kubectl::new();
    kubectl.file("web.yaml", SERVICE);
    assert_eq!(kubectl.says("apply -f web.yaml"), "service/web created\n");
    assert_eq!(kubectl.says("apply -f web.yaml"), "service/web unchanged\n");
    let listed = kubectl.says("get svc");
    assert!(
        listed.contains("EXTERNAL-IP") && listed.contains("<pending>") && listed.contains("80:30000/TCP"),
        "{listed}"
    );
    kubectl.file("web.yaml", &SERVICE.replace("port: 80,", "port: 81,"));
    assert_eq!(kubectl.says("apply -f web.yaml"), "service/web configured\n");
    let service = kubectl.server.get("v1", "Service", "default", "web").expect("kept");
    assert_eq!(service["spec"]["ports"].as_array().expect("a list").len(), 1);
    assert_eq!(service["spec"]["ports"][0]["port"], 81);

    kubectl.says("annotate svc web tidegate.dev/forwarding=nat");
    kubectl.says("label svc web app-");
    kubectl.status(
        ("v1", "Service", "default", "web"),
        serde_json::json!({"loadBalancer": {"ingress": [{"ip": "203.0.113.1"}]}}),
    );
    let described = kubectl.says("describe svc web");
    assert!(
        described.contains("203.0.113.1") && described.contains("tidegate.dev/forwarding"),
        "{described}"
    );
    assert!(kubectl.says("get svc web -o wide").contains("203.0.113.1"));
    assert_eq!(kubectl.says("delete svc web"), "service \"web\" deleted\n");
    assert!(
        kubectl.refuses("get svc web").contains("Error from server (NotFound): services \"web\" not found")
    );
}

#[test]
fn validation_needs_no_switch_and_names_the_field() {
    let kubectl = Kubectl::new();
    kubectl.file("typo.yaml", &SERVICE.replace("selector:", "selektor:"));
    if kubectl.minor() >= 27 {
        let refused = kubectl.refuses("apply -f typo.yaml");
        assert!(refused.contains("unknown field \"spec.selektor\""), "{refused}");
    }
    kubectl.file("bad.yaml", &SERVICE.replace("port: 80,", "port: 70000,"));
    let refused = kubectl.refuses("apply -f bad.yaml");
    assert!(refused.contains("spec.ports[0].port: Invalid value: 70000"), "{refused}");
    kubectl.file("web.yaml", SERVICE);
    assert!(kubectl.says("apply --dry-run=server -f web.yaml").contains("created (server dry run)"));
    assert!(kubectl.server.get("v1", "Service", "default", "web").is_none());
}

#[test]
fn custom_resources_are_served_printed_and_validated() {
    let kubectl = Kubectl::new();
    kubectl.file("crd.yaml", DEFINITION);
    kubectl.says("apply -f crd.yaml");
    kubectl.says("wait --for=condition=Established crd/pools.example.org --timeout=20s");
    kubectl.file(
        "pool.yaml",
        "{apiVersion: example.org/v1, kind: Pool, metadata: {name: a}, spec: {addresses: [10.0.0.0/24]}}",
    );
    assert_eq!(kubectl.says("apply -f pool.yaml"), "pool.example.org/a created\n");
    assert_eq!(
        kubectl.says("apply --server-side --force-conflicts -f pool.yaml"),
        "pool.example.org/a serverside-applied\n"
    );
    kubectl.status(
        ("example.org/v1", "Pool", "", "a"),
        serde_json::json!({"free": 254, "conditions": [{"type": "Ready", "status": "True"}]}),
    );
    let listed = kubectl.says("get pl");
    let rows: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows, [vec!["NAME", "FREE", "READY"], vec!["a", "254", "True"]]);
    assert_eq!(kubectl.says("get pool a -o jsonpath={.spec.autoAssign}"), "true");
    kubectl.file(
        "pool.yaml",
        "{apiVersion: example.org/v1, kind: Pool, metadata: {name: b}, spec: {addresses: [], adresses: 1}}",
    );
    let refused = kubectl.refuses("apply -f pool.yaml --validate=false");
    assert!(refused.contains("spec.addresses: Invalid value"), "{refused}");
    // Older versions validate themselves, or have other messages.
    if kubectl.minor() >= 27 {
        let refused = kubectl.refuses("apply -f pool.yaml");
        assert!(refused.contains("unknown field \"spec.adresses\""), "{refused}");
        assert!(kubectl.says("explain pool.spec").contains("addresses"));
    }
    assert!(kubectl.says("describe pool a").contains("10.0.0.0/24"));
    kubectl.says("delete crd pools.example.org");
    let refused = kubectl.refuses("get pl");
    assert!(
        refused.contains("could not find the requested resource")
            || refused.contains("doesn't have a resource type"),
        "{refused}"
    );
}

#[test]
fn get_watch_tells_each_change_once() {
    let kubectl = Kubectl::new();
    let mut child =
        kubectl.command("get svc -w --no-headers").stdout(Stdio::piped()).spawn().expect("starts");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut next = || lines.next().expect("not ended").expect("text");
    let web = "{apiVersion: v1, kind: Service, metadata: {name: web}, spec: {ports: [{port: 80}]}}";
    kubectl.server.apply(web).expect("legal");
    assert!(next().contains("80/TCP"));
    kubectl.server.apply(&web.replace("80", "81")).expect("legal");
    assert!(next().contains("81/TCP"));
    kubectl.server.delete("v1", "Service", "default", "web");
    assert!(next().contains("81/TCP"));
    child.kill().expect("ours");
    child.wait().expect("ours");
}

#[test]
fn a_finalizer_holds_delete_until_it_goes_and_wait_sees_it() {
    let kubectl = Kubectl::new();
    kubectl.file("web.yaml", &SERVICE.replace("labels:", "finalizers: [tidegate.dev/cleanup], labels:"));
    kubectl.says("apply -f web.yaml");
    kubectl.says("delete svc web --wait=false");
    let deleting = kubectl.server.get("v1", "Service", "default", "web").expect("held");
    assert!(deleting["metadata"]["deletionTimestamp"].is_string());
    let refused = kubectl.refuses(
        r#"patch svc web --type=merge -p {"metadata":{"finalizers":["tidegate.dev/cleanup","other.dev/x"]}}"#,
    );
    assert!(refused.contains("no new finalizers can be added if the object is being deleted"), "{refused}");
    kubectl.server.forget_requests();
    let waiting = kubectl
        .command("wait --for=delete svc/web --timeout=60s")
        .stdout(Stdio::null())
        .spawn()
        .expect("starts");
    // Wait until it has seen the Service, because an older kubectl reports an error if it finds none at first.
    let seen = || kubectl.server.requests().iter().any(|r| r.method == "GET" && r.path.contains("/services"));
    let latest = Instant::now() + Duration::from_secs(60);
    while !seen() {
        assert!(Instant::now() < latest, "kubectl wait asks for the Service");
        std::thread::sleep(Duration::from_millis(10));
    }
    kubectl.says(r#"patch svc web --type=json -p [{"op":"remove","path":"/metadata/finalizers"}]"#);
    assert!(waiting.wait_with_output().expect("ends").status.success());
    assert!(kubectl.server.get("v1", "Service", "default", "web").is_none());
}

#[test]
fn replace_of_an_old_version_is_a_conflict() {
    let kubectl = Kubectl::new();
    kubectl.file("web.yaml", SERVICE);
    kubectl.says("create -f web.yaml");
    let old = kubectl.says("get svc web -o yaml");
    kubectl.says("annotate svc web a=b");
    kubectl.file("old.yaml", &old);
    let refused = kubectl.refuses("replace -f old.yaml");
    assert!(refused.contains("(Conflict)") && refused.contains("the object has been modified"), "{refused}");
}

#[test]
fn a_service_account_may_do_what_its_roles_say_and_no_more() {
    let mut kubectl = Kubectl::new();
    kubectl
        .server
        .apply(
            "
{apiVersion: v1, kind: ServiceAccount, metadata: {name: gateway, namespace: edge}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: reader}
rules: [{apiGroups: [''], resources: [services], verbs: [get, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: reader}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: reader}
subjects: [{kind: ServiceAccount, name: gateway, namespace: edge}]
",
        )
        .expect("legal");
    let token = kubectl.server.service_account_token("edge", "gateway");
    kubectl.kubeconfig = kubectl.server.kubeconfig_for(kubectl.directory.path(), &token).expect("written");
    assert!(kubectl.says("get svc -A -o name").is_empty());
    assert!(kubectl.refuses("delete svc web").contains(
        "Error from server (Forbidden): services \"web\" is forbidden: User \"system:serviceaccount:edge:gateway\" \
         cannot delete resource \"services\" in API group \"\" in the namespace \"default\""
    ));
    kubectl.server.expire_token(&token);
    assert!(kubectl.refuses("get svc").contains("Unauthorized"));
}

#[test]
fn events_are_shown_by_describe_in_both_spellings() {
    let kubectl = Kubectl::new();
    kubectl.file("web.yaml", SERVICE);
    kubectl.says("apply -f web.yaml");
    let uid = kubectl.says("get svc web -o jsonpath={.metadata.uid}");
    kubectl.file(
        "event.yaml",
        &format!(
            "
apiVersion: events.k8s.io/v1
kind: Event
metadata: {{generateName: web., namespace: default}}
regarding: {{apiVersion: v1, kind: Service, name: web, namespace: default, uid: {uid}}}
reason: IPAllocated
note: Assigned 203.0.113.1 from pool public
type: Normal
action: Allocate
eventTime: 2026-01-01T00:00:00.000000Z
reportingController: tidegate.dev/gateway
reportingInstance: edge-1
"
        ),
    );
    kubectl.says("create -f event.yaml");
    let described = kubectl.says("describe svc web");
    assert!(described.contains("IPAllocated") && described.contains("Assigned 203.0.113.1"), "{described}");
    assert!(kubectl.says("get events").contains("service/web"));
    assert!(kubectl.says("get events.events.k8s.io -o yaml").contains("note: Assigned"));
}

#[test]
fn a_deleted_namespace_removes_its_objects_and_accepts_no_new_ones() {
    let kubectl = Kubectl::new();
    kubectl.says("create namespace shop");
    kubectl.file(
        "web.yaml",
        &SERVICE.replace("namespace: default", "namespace: shop, finalizers: [tidegate.dev/cleanup]"),
    );
    kubectl.says("apply -f web.yaml");
    kubectl.says("delete namespace shop --wait=false");
    assert!(kubectl.says("get namespace shop").contains("Terminating"));
    kubectl.file("new.yaml", "{apiVersion: v1, kind: ConfigMap, metadata: {name: x, namespace: shop}}");
    let refused = kubectl.refuses("apply -f new.yaml");
    assert!(
        refused.contains("unable to create new content in namespace shop because it is being terminated"),
        "{refused}"
    );
    kubectl.says(r#"patch svc web -n shop --type=merge -p {"metadata":{"finalizers":null}}"#);
    assert!(kubectl.refuses("get namespace shop").contains("NotFound"));
}

#[test]
fn tls_is_trusted_by_the_kubeconfigs_authority_only() {
    let server = TestApiServer::start(Options { tls: true, ..Options::default() }).expect("a free port");
    let directory = tempfile::tempdir().expect("a temporary directory");
    let kubeconfig = server.kubeconfig(directory.path()).expect("written");
    let get = || {
        Command::new("kubectl")
            .env("KUBECONFIG", &kubeconfig)
            .args(["get", "namespaces"])
            .output()
            .expect("runs")
    };
    assert!(get().status.success());
    server.renew_certificate().expect("listens again");
    let refused = get();
    assert!(String::from_utf8_lossy(&refused.stderr).contains("certificate"));
}
