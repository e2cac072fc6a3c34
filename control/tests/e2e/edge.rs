//! Edges behind a gateway: TLS ends at one of two edges, which the gateway reaches by DSR.

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use rcgen::{CertificateParams, KeyPair};
use tidegate_netlab::addresses::{Family, HTTP_TARGET_PORT, client, routed_vip};
use tidegate_netlab::client::curl;
use tidegate_netlab::manifests::{EndpointSpec, Manifest, PortSpec, put};
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{GatewayOptions, wait_for};

use crate::world::{APPLIED, World, beside_others, tidegate};

const FAMILY: Family = Family::V4;
const PORT: u16 = 443;

/// An edge on the machine of a server.
struct Edge {
    process: LabProcess,
    directory: PathBuf,
}

impl Edge {
    /// Starts an edge that ends TLS at the VIP for the HTTP server of another machine.
    fn start(world: &World, n: u8, backend: SocketAddr, (certificate, key): (&str, &str)) -> Self {
        let directory = world.lab.directory().join(format!("edge-{n}"));
        let manifests = directory.join("manifests");
        fs::create_dir_all(&manifests).expect("created");
        fs::set_permissions(&directory, fs::Permissions::from_mode(0o700)).expect("ours");
        let (run, vip) = (directory.join("run"), routed_vip(FAMILY, 1));
        let config = format!(
            "apiVersion: tidegate.dev/v1alpha1\nkind: EdgeConfig\nmetadata: {{name: edge-{n}}}\n\
             addresses: [{vip}/32]\naccessLog: true\nhaproxy: {{directory: {}, threads: 1}}\n",
            run.display()
        );
        fs::write(directory.join("edge.yaml"), config).expect("written");
        let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
        let (ip, port) = (backend.ip(), backend.port());
        let objects = format!(
            "apiVersion: v1\nkind: Service\nmetadata:\n  name: web\n  annotations:\n    tidegate.dev/tls-secret: web\n    \
             tidegate.dev/backend-protocol: http\nspec: {{type: LoadBalancer, loadBalancerIP: {vip}, ports: [{{port: {PORT}}}]}}\n\
             ---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: web-1, labels: {{kubernetes.io/service-name: web}}}}\naddressType: IPv4\n\
             ports: [{{port: {port}}}]\nendpoints: [{{addresses: [{ip}]}}]\n\
             ---\napiVersion: v1\nkind: Secret\nmetadata: {{name: web}}\ntype: kubernetes.io/tls\nstringData:\n  \
             tls.crt: |\n{}  tls.key: |\n{}",
            indented(certificate),
            indented(key)
        );
        put(&manifests, "objects.yaml", &objects).expect("written");
        let namespace = world.lab.server(n).namespace();
        let binary = tidegate().with_file_name("tidegate-edge");
        assert!(binary.is_file(), "{} does not exist: run `cargo build -p tidegate-edge`", binary.display());
        let config = directory.join("edge.yaml");
        let args = ["run", "-c", config.to_str().expect("text")];
        let process = LabProcess::start(namespace, &directory, "edge", &binary, &args).expect("started");
        Self { process, directory }
    }

    fn status(&self) -> String {
        fs::read_to_string(self.directory.join("run/status.json")).unwrap_or_default()
    }

    /// Waits until HAProxy serves the Service.
    fn wait(&self) {
        let is_served = || self.status().contains("\"service\": \"default/web\"").then_some(());
        wait_for("the edge serves the Service", APPLIED, is_served)
            .unwrap_or_else(|error| panic!("{error:#}\n{}\n{}", self.status(), self.process.log()));
    }
}

#[test]
fn tls_ends_at_an_edge_behind_the_gateway_with_the_clients_address() {
    let _machine = beside_others();
    let vip = routed_vip(FAMILY, 1);
    let world = World::start(3, GatewayOptions::default(), &[]);
    let endpoint = |n: u8| EndpointSpec::ready(world.lab.server(n).address(FAMILY));
    let service = Manifest::new("web", "dsr-l2", &[vip], vec![PortSpec::tcp("https", PORT)]);
    let service = service.with_endpoints([endpoint(1), endpoint(2)]);

    let key = KeyPair::generate().expect("a key");
    let params = CertificateParams::new(vec!["web.example".to_owned()]).expect("a name");
    let certificate = params.self_signed(&key).expect("signed").pem();
    let pair = (certificate.as_str(), key.serialize_pem());
    let backend = SocketAddr::new(world.lab.server(3).address(FAMILY), HTTP_TARGET_PORT);
    let mut edges = [1, 2].map(|n| Edge::start(&world, n, backend, (pair.0, &pair.1)));
    edges.iter().for_each(Edge::wait);
    world.write(&[service]);
    let authority = world.lab.directory().join("ca.pem");
    fs::write(&authority, &certificate).expect("written");

    let get = |version: &str, path: &str| request(&world, &authority, version, path);
    wait_for("an answer over TLS", APPLIED, || get("--http2", "/").ok()).unwrap_or_else(|error| {
        panic!("{error:#}\n{}\n{}", edges[0].process.log(), edges[1].process.log());
    });
    for version in ["--http1.1", "--http2"] {
        let answers: Vec<String> = (0..40).map(|_| get(version, "/").expect("an answer")).collect();
        assert!(answers.iter().all(|answer| answer.contains("backend-3")), "{version}: {answers:?}");
    }

    // Both edges got connections.
    let connections = || {
        edges.each_ref().map(|edge| {
            let metrics = edge.directory.join("run/metrics.sock");
            let args = ["--unix-socket", metrics.to_str().expect("text"), "http://edge/metrics"];
            let text = curl(world.lab.client(), &args).expect("metrics");
            let line = text.lines().find(|line| {
                line.starts_with("haproxy_frontend_connections_total{proxy=\"default.web:443\"}")
            });
            line.and_then(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
                .unwrap_or_else(|| panic!("{text}"))
        })
    };
    let counts = connections();
    assert!(counts.iter().all(|count| *count > 5.0), "{counts:?}");

    // The edges see the client's own address.
    for edge in &edges {
        let seen = format!("\"client\":\"{}\"", client(FAMILY, 0));
        assert!(edge.process.log().contains(&seen), "{}", edge.process.log());
    }

    // A killed edge fails its health checks, and new connections go to the other one.
    edges[0].process.kill();
    wait_for("all connections go to the second edge", APPLIED, || {
        (0..20).all(|_| get("--http2", "/").is_ok()).then_some(())
    })
    .unwrap_or_else(|error| panic!("{error:#}"));
}

fn request(world: &World, authority: &Path, version: &str, path: &str) -> anyhow::Result<String> {
    let resolve = format!("web.example:{PORT}:{}", routed_vip(FAMILY, 1));
    let url = format!("https://web.example{path}");
    let authority = authority.to_str().expect("text");
    curl(
        world.lab.client(),
        &[version, "--max-time", "5", "--cacert", authority, "--resolve", &resolve, &url],
    )
}
