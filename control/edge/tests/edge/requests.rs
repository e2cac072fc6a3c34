//! What clients and servers see of requests and connections.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::lab::{self, Server, VIP, in_namespace, raw};

const BOTH: &str = "{name: http, port: 80}, {name: https, port: 443}";

#[test]
fn tls_and_http_end_at_the_edge() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        let (_, key) = lab.secret("a");
        lab.configure("accessLog: true");
        lab.service("tidegate.dev/tls-secret: a, tidegate.dev/backend-protocol: http", BOTH);
        lab.endpoints(&[server.address]);
        lab.start_with(2);
        for (version, shown) in [("--http1.1", "HTTP/1.1 200"), ("--http2", "HTTP/2 200")] {
            let answer = lab.get(&[
                version,
                "https://web.example/path?q=1",
                "-H",
                "X-Forwarded-For: 192.0.2.66",
                "-H",
                "X_Forwarded_For: 192.0.2.66",
                "-H",
                "Forwarded: for=192.0.2.66",
            ]);
            assert!(answer.starts_with(shown), "{answer}");
            assert!(answer.contains(&server.line()), "{answer}");
            assert!(answer.contains("get /path?q=1 http/1.1\r\nhost: web.example\r\n"), "{answer}");
            for header in [
                "x-forwarded-for: 203.0.113.1",
                "x-forwarded-proto: https",
                "x-forwarded-port: 443",
                "x-forwarded-host: web.example",
            ] {
                assert_eq!(answer.matches(header).count(), 1, "{header}: {answer}");
            }
            assert!(!answer.contains("192.0.2.66"), "{answer}");
        }
        let plain = lab.get(&["http://web.example/"]);
        assert!(plain.contains("x-forwarded-proto: http\r\n"), "{plain}");

        let lines = lab::wait("three lines of the log", || Some(lab.access_log()).filter(|it| it.len() == 3));
        let first = &lines[0];
        assert_eq!((&first["service"], &first["port"]), (&"shop/web".into(), &443.into()), "{first}");
        assert_eq!((&first["method"], &first["uri"]), (&"GET".into(), &"/path?q=1".into()), "{first}");
        assert_eq!((&first["status"], &first["version"]), (&200.into(), &"HTTP/1.1".into()), "{first}");
        assert_eq!(lines[1]["version"], "HTTP/2.0");
        assert_eq!(lines[2]["tls"], "-");
        assert!(first["id"].as_str().is_some_and(|id| id.len() == 36), "{first}");

        let metrics = lab.get(&["http://127.0.0.1:9471/metrics"]);
        assert!(
            metrics.contains("haproxy_frontend_http_requests_total{proxy=\"shop.web:443\"} 2"),
            "{metrics}"
        );

        // The key is only in the Secret and in the files that HAProxy reads.
        let secret_line = key.lines().nth(1).expect("a line of the key");
        let status = std::fs::read_to_string(lab.path("run/status.json")).expect("readable");
        let out = std::fs::read_to_string(lab.path("out")).expect("readable");
        for text in [lab.log(), status, out] {
            assert!(!text.contains(secret_line), "{text}");
        }
        let printed = lab.command("status").output().expect("it runs");
        let printed = String::from_utf8(printed.stdout).expect("text");
        assert!(printed.contains("shop/web:443  203.0.113.1:443  intermediate  http      1"), "{printed}");
    });
}

#[test]
fn the_examples_of_the_document_are_accepted() {
    in_namespace(|lab| {
        let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/edge.md");
        let document = std::fs::read_to_string(document).expect("the document");
        let blocks = document.split("```yaml\n").skip(1);
        let blocks: Vec<&str> = blocks.map(|rest| rest.split("```").next().expect("an end")).collect();
        let [config, manifests] = blocks[..] else { panic!("{} examples", blocks.len()) };
        let directory = lab.path("manifests").display().to_string();
        std::fs::write(lab.path("edge.yaml"), config.replace("/etc/tidegate/edge", &directory))
            .expect("written");
        lab.write("web", manifests);
        lab.secret("web-tls");
        let checked = lab.command("check").output().expect("it runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (out, err) = (text(&checked.stdout), text(&checked.stderr));
        assert_eq!((checked.status.code(), err.as_str()), (Some(0), ""), "{out}");
        assert_eq!(out, "2 ports of Services are served\n");
    });
}

#[test]
fn backends_receive_the_protocol_of_the_annotation() {
    in_namespace(|lab| {
        let plain = Server::start("10.0.0.1");
        let tls = Server::start_tls("10.0.0.2");
        lab.secret("a");
        let ports = "{name: https, port: 443}";
        for (protocol, server) in [("http", &plain), ("tcp", &plain), ("https", &tls), ("tls", &tls)] {
            let annotations =
                format!("tidegate.dev/tls-secret: a, tidegate.dev/backend-protocol: {protocol}");
            lab.service(&annotations, ports);
            lab.endpoints(&[server.address]);
            if protocol == "http" {
                lab.start_with(1);
            }
            lab.wait(protocol, |status| {
                let is_protocol = status.listeners.iter().any(|listener| listener.protocol == protocol);
                is_protocol && status.listeners[0].servers == [server.address]
            });
            let answer = lab.get(&["--http1.1", "https://web.example/"]);
            assert!(answer.contains(&server.line()), "{protocol}: {answer}");
            let has_header = answer.contains("x-forwarded-for: ");
            assert_eq!(has_header, protocol.starts_with("http"), "{protocol}: {answer}");
        }

        // nginx speaks HTTP/2 without TLS.
        let nginx = "daemon off; master_process off; pid DIR/nginx.pid; error_log stderr; events {} http { access_log off; \
            client_body_temp_path DIR; proxy_temp_path DIR; fastcgi_temp_path DIR; uwsgi_temp_path DIR; scgi_temp_path DIR; \
            server { listen 10.0.0.3:8080 http2; return 200 \"nginx got $server_protocol\\n\"; } }";
        let nginx = nginx.replace("DIR", &lab.path("").display().to_string());
        std::fs::write(lab.path("nginx.conf"), nginx).expect("written");
        let mut nginx = Command::new("nginx");
        nginx.arg("-c").arg(lab.path("nginx.conf")).stdout(Stdio::null()).stderr(Stdio::null());
        let mut nginx = nginx.spawn().expect("nginx");
        for protocol in ["h2c", "grpc"] {
            let annotations =
                format!("tidegate.dev/tls-secret: a, tidegate.dev/backend-protocol: {protocol}");
            lab.service(&annotations, ports);
            lab.endpoints(&["10.0.0.3:8080".parse().expect("an address")]);
            lab.wait(protocol, |status| status.listeners.iter().any(|it| it.protocol == protocol));
            let answer = lab::wait("an answer of nginx", || {
                lab.curl(&["https://web.example/"]).ok().filter(|it| it.contains("200"))
            });
            assert!(answer.contains("nginx got HTTP/2.0"), "{protocol}: {answer}");
        }
        nginx.kill().expect("ours");
        nginx.wait().expect("ours");
    });
}

#[test]
fn port_80_is_redirected_and_a_request_for_another_host_is_misdirected() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.secret("a");
        let annotations = "tidegate.dev/tls-secret: a, tidegate.dev/backend-protocol: http, tidegate.dev/redirect-https: 'true'";
        lab.service(annotations, BOTH);
        lab.endpoints(&[server.address]);
        lab.start_with(2);
        let answer = lab.get(&["http://web.example:80/a?b=c"]);
        assert!(answer.starts_with("HTTP/1.1 308 "), "{answer}");
        assert!(answer.contains("location: https://web.example/a?b=c\r\n"), "{answer}");
        let followed = lab.get(&["--location", "http://web.example/a"]);
        assert!(followed.contains(&server.line()), "{followed}");
        let other = lab.get(&["--http1.1", "https://web.example/", "-H", "Host: other.example"]);
        assert!(other.starts_with("HTTP/1.1 421 "), "{other}");
        let with_port = lab.get(&["--http1.1", "https://web.example/", "-H", "Host: WEB.example:443"]);
        assert!(with_port.starts_with("HTTP/1.1 200 "), "{with_port}");
    });
}

#[test]
fn a_tls_policy_limits_what_clients_may_negotiate() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.secret("a");
        lab.endpoints(&[server.address]);
        let ports = "{name: https, port: 443}";
        let versions = ["--tlsv1.2 --tls-max 1.2", "--tlsv1.3"];
        for (policy, accepted) in [("intermediate", [true, true]), ("modern", [false, true])] {
            lab.service(&format!("tidegate.dev/tls-secret: a, tidegate.dev/tls-policy: {policy}"), ports);
            if policy == "intermediate" {
                lab.start_with(1);
            }
            lab.wait(policy, |status| status.listeners[0].tls.as_deref() == Some(policy));
            for (version, accepted) in versions.iter().zip(accepted) {
                let mut arguments: Vec<&str> = version.split(' ').collect();
                arguments.push("https://web.example/");
                let answer = lab.curl(&arguments);
                assert_eq!(answer.is_ok(), accepted, "{policy} {version}: {answer:?}");
            }
            let old = lab.curl(&[
                "--tlsv1.0",
                "--tls-max",
                "1.1",
                "--ciphers",
                "DEFAULT@SECLEVEL=0",
                "https://web.example/",
            ]);
            assert!(old.is_err(), "{old:?}");
        }
    });
}

/// Doubtful requests: whether a server answers them, and if it does, what it must not receive.
const DOUBTFUL: [(&str, &str, u16, &str); 16] = [
    ("no Host", "GET / HTTP/1.1\r\n\r\n", 400, ""),
    ("two Hosts", "GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, ""),
    ("an invalid Host", "GET / HTTP/1.1\r\nHost: a b\r\n\r\n", 400, ""),
    ("a Host with a path", "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n", 400, ""),
    ("another authority", "GET http://b/ HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""),
    (
        "two lengths",
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        400,
        "",
    ),
    ("a negative length", "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, ""),
    ("an unknown coding", "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 400, ""),
    (
        "chunked that is not last",
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
        400,
        "",
    ),
    ("a space before the colon", "GET / HTTP/1.1\r\nHost : a\r\n\r\n", 400, ""),
    ("HTTP/0.9", "GET /\r\n\r\n", 400, ""),
    ("a control character", "GET / HTTP/1.1\r\nHost: a\r\nA: b\u{0}c\r\n\r\n", 400, ""),
    ("a space in the target", "GET /a b HTTP/1.1\r\nHost: a\r\n\r\n", 400, ""),
    (
        "an underscore",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nX_Real_IP: 1\r\n\r\n",
        200,
        "x_real_ip",
    ),
    (
        "a folded line",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nA: b\r\n c: d\r\n\r\n",
        200,
        "\r\n c",
    ),
    (
        "a length and chunked",
        "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        200,
        "content-length",
    ),
];

#[test]
fn doubtful_requests_are_refused_or_reach_servers_without_the_doubt() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.service("tidegate.dev/backend-protocol: http", "{name: http, port: 80}");
        lab.endpoints(&[server.address]);
        lab.configure("accessLog: true\nlimits: {headerTimeout: 1s}");
        lab.start_with(1);
        let address = format!("{VIP}:80");
        for (what, request, status, without) in DOUBTFUL {
            let answer = raw(&address, request.as_bytes());
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{what}: {answer}");
            assert_eq!(answer.contains("server 10.0.0.1"), status == 200, "{what}: {answer}");
            let body = answer.split_once("\r\n\r\n").map_or("", |(_, body)| body);
            assert!(without.is_empty() || !body.contains(without), "{what}: {answer}");
        }
        let long = format!("GET / HTTP/1.1\r\nHost: a\r\nA: {}\r\n\r\n", "b".repeat(20_000));
        assert!(raw(&address, long.as_bytes()).starts_with("HTTP/1.1 400 "), "long headers");
        let many = format!("GET / HTTP/1.1\r\nHost: a\r\n{}\r\n", "A: b\r\n".repeat(200));
        assert!(raw(&address, many.as_bytes()).starts_with("HTTP/1.1 400 "), "many headers");
        assert!(raw(&address, b"GET / HTTP/1.1\r\nHost: a\r\n").starts_with("HTTP/1.1 408 "), "slow headers");
        // Each line of the log is JSON, whatever the client sends.
        let uri = "GET /\"\\%22\u{e9} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
        raw(&address, uri.as_bytes());
        assert!(lab.access_log().len() >= DOUBTFUL.len());
    });
}

#[test]
fn only_admitted_clients_connect_and_each_only_so_often() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        let spec = ", loadBalancerSourceRanges: [198.51.100.0/24]";
        let ports = "{name: http, port: 80}";
        lab.write("web", &lab::service("web", VIP, "tidegate.dev/backend-protocol: http", ports, spec));
        lab.endpoints(&[server.address]);
        lab.configure("limits: {connectionsPerSource: 3}");
        lab.start_with(1);
        assert!(lab.curl(&["http://web.example/"]).is_err(), "the client is the VIP itself");
        let admitted = ["--interface", "198.51.100.7", "http://web.example/"];
        assert!(lab.get(&admitted).contains(&server.line()));

        lab.service("tidegate.dev/backend-protocol: http", ports);
        lab::wait("everybody is admitted", || lab.curl(&["http://web.example/"]).ok());
        let address = format!("{VIP}:80");
        let mut clients: Vec<lab::Client> = (0..3).map(|_| lab::Client::connect(&address)).collect();
        for client in &mut clients {
            assert!(client.get("/").is_some());
        }
        assert!(lab::Client::connect(&address).get("/").is_none(), "the fourth connection is closed");
        assert!(lab.get(&admitted).contains(&server.line()), "another client");
        drop(clients);
        lab::wait("a new connection", || lab.curl(&["http://web.example/"]).ok());
    });
}
