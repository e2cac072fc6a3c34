//! Tests `tidegate check` with `source.kubernetes`: how the API server is found, and the error messages if it is not.

mod cli_support;

use std::fs;

use cli_support::{GATEWAY, Ran, Site, service, slice};
use test_apiserver::{Options, TestApiServer, User};

/// A site without manifests, and an API server with one Service.
fn world(source: &str) -> (Site, TestApiServer) {
    let site = Site::new(&format!("{GATEWAY}source: {{kubernetes: {source}}}\n"), &[]);
    let server = TestApiServer::start(Options::default()).expect("a free port");
    let objects = format!(
        "{}\n---\n{}",
        service("web", "nat", "203.0.113.1"),
        slice("web", "v4", "IPv4", &["192.0.2.11"])
    );
    server.apply(&objects).expect("legal");
    (site, server)
}

fn put_kubeconfig(site: &Site, server: &TestApiServer, directory: &str) {
    let directory = site.path(directory);
    fs::create_dir_all(&directory).expect("ours");
    server.kubeconfig(&directory).expect("it can be written");
}

fn check(site: &Site, variables: &[(&str, &str)]) -> Ran {
    site.run_with(&["check", "-c", "gateway.yaml"], variables)
}

fn found(ran: &Ran) {
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    // `default/kubernetes` may exist as well.
    assert!(ran.err.contains("2 service ports on VIPs"), "{}", ran.err);
}

#[test]
fn kubeconfig_is_relative_to_the_configuration() {
    let (site, server) = world("{default: true, stateDirectory: '', kubeconfig: secrets/kubeconfig}");
    put_kubeconfig(&site, &server, "secrets");
    found(&check(&site, &[]));
}

#[test]
fn without_a_kubeconfig_the_environment_decides_then_the_home_directory() {
    let (site, server) = world("{default: true, stateDirectory: ''}");
    put_kubeconfig(&site, &server, "elsewhere");
    found(&check(&site, &[("KUBECONFIG", "elsewhere/kubeconfig")]));
    put_kubeconfig(&site, &server, "home/.kube");
    fs::rename(site.path("home/.kube/kubeconfig"), site.path("home/.kube/config")).expect("ours");
    found(&check(&site, &[("HOME", "home")]));
}

#[test]
fn services_without_a_class_are_ignored_unless_the_gateway_is_the_default() {
    let (site, server) = world("{stateDirectory: '', kubeconfig: kubeconfig}");
    put_kubeconfig(&site, &server, "");
    let ran = check(&site, &[]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.err.contains(" 0 service ports on VIPs"), "{}", ran.err);
}

#[test]
fn an_api_server_that_is_not_found_or_not_reachable_is_an_error() {
    let (site, server) = world("{stateDirectory: '', kubeconfig: kubeconfig}");
    let missing = check(&site, &[]);
    assert_eq!(missing.code, 2);
    assert!(missing.out.starts_with("gateway.yaml:"), "it has a place: {}", missing.out);
    assert!(missing.out.contains("error: source.kubernetes: kubeconfig"), "{}", missing.out);
    assert!(missing.out.contains("and a valid kubeconfig for it"), "{}", missing.out);
    put_kubeconfig(&site, &server, "");
    let address = server.address();
    drop(server);
    let unreachable = check(&site, &[]);
    assert_eq!(unreachable.code, 2);
    assert!(unreachable.out.contains(&address.to_string()), "{}", unreachable.out);
    assert!(unreachable.out.contains("accepted: an API server that responds"), "{}", unreachable.out);

    let (site, _server) = world("{stateDirectory: ''}");
    let nowhere = check(&site, &[]);
    assert_eq!(nowhere.code, 2);
    assert!(nowhere.out.contains("found neither a kubeconfig nor a service account"), "{}", nowhere.out);
}

#[test]
fn commands_that_cannot_use_the_api_server_name_the_cause() {
    let commands: [&[&str]; 4] = [&["status"], &["services"], &["pools"], &["uninstall", "--dry-run"]];
    let (site, server) = world("{stateDirectory: ''}");
    let fail = |what: &str, causes: &[&str]| {
        for command in commands {
            let ran = site.run(&[command, &["--kubeconfig", "kubeconfig"]].concat());
            assert_ne!(ran.code, 0, "{what}: {command:?}");
            for cause in causes {
                let printed = ran.out.clone() + &ran.err;
                assert!(printed.contains(cause), "{what}: {command:?} does not name {cause:?}: {printed}");
            }
        }
    };
    fail("no kubeconfig", &["kubeconfig", "No such file or directory"]);
    put_kubeconfig(&site, &server, "");
    server.renew_certificate().expect("it can be renewed");
    let address = server.address().to_string();
    fail("another authority", &[&address, "certificate"]);
    drop(server);
    fail("no server", &[&address, "Connection refused"]);
}

#[test]
fn another_class_is_another_gateway() {
    let (site, server) =
        world("{stateDirectory: '', kubeconfig: kubeconfig, loadBalancerClass: example.com/lb}");
    put_kubeconfig(&site, &server, "");
    // The class of a Service cannot change, so the Service is created again.
    server.delete("v1", "Service", "default", "web");
    let classed = "type: LoadBalancer\n  loadBalancerClass: example.com/lb\n";
    let web = service("web", "nat", "203.0.113.1").replace("type: LoadBalancer\n", classed);
    server.apply(&web).expect("legal");
    found(&check(&site, &[]));
}

#[test]
fn doctor_names_the_rights_that_the_account_lacks() {
    let (site, server) = world("{default: true, stateDirectory: '', kubeconfig: kubeconfig}");
    let doctor = |token: &str| {
        server.kubeconfig_for(&site.path(""), token).expect("it can be written");
        site.run(&["doctor", "-c", "gateway.yaml", "--socket", "none", "-o", "json"])
    };
    server.add_token("weak", User::named("weak"));
    let weak = doctor("weak");
    assert_eq!(weak.code, 1, "{}", weak.out);
    let lacks = "the account lacks the rights: list services, watch services, patch services, list nodes";
    assert!(weak.out.contains(lacks), "{}", weak.out);
    assert!(weak.out.contains("patch gatewaystatuses.tidegate.dev/status"), "{}", weak.out);
    assert!(weak.out.contains("update leases.coordination.k8s.io in tidegate-system"), "{}", weak.out);
    assert!(weak.out.contains("kubectl apply -k deploy/kubernetes/off-cluster"), "{}", weak.out);

    let base = concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/kubernetes/base");
    for file in ["namespace.yaml", "rbac.yaml"] {
        server.apply(&fs::read_to_string(format!("{base}/{file}")).expect("it is there")).expect("legal");
    }
    let able = doctor(&server.service_account_token("tidegate-system", "tidegate"));
    assert!(able.out.contains("the account has all 47 rights"), "{}", able.out);
    assert!(!able.out.contains("\"api\",\n      \"level\": \"fault\""), "{}", able.out);

    let unknown = doctor("no-such-token");
    assert!(unknown.code == 1 && unknown.out.contains(&server.address().to_string()), "{}", unknown.out);
    assert!(!unknown.out.contains("no-such-token"), "{}", unknown.out);
}

#[test]
fn a_support_bundle_without_a_gateway_has_no_token() {
    let (site, server) = world("{default: true, stateDirectory: '', kubeconfig: kubeconfig}");
    let token = "a-token-that-nobody-may-see";
    server.add_token(token, User::admin());
    server.kubeconfig_for(&site.path(""), token).expect("it can be written");
    let ran = site.run(&["support-bundle", "-c", "gateway.yaml", "--socket", "none", "-o", "bundle.tar"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    let bundle = fs::read(site.path("bundle.tar")).expect("it is written");
    let contains = |text: &str| bundle.windows(text.len()).any(|window| window == text.as_bytes());
    assert!(!contains(token));
    for part in [
        "is `tidegate run` running, and is this its admin.socket?",
        "kubeconfig: kubeconfig",
        "the account has all 47 rights",
    ] {
        assert!(contains(part), "{part} is in the bundle");
    }
}
