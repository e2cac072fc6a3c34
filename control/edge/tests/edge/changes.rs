//! Changes under load: of endpoints, certificates and Services.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::lab::{self, Client, Server, VIP, in_namespace};

/// Clients that send requests until they are stopped, each on its own connection.
struct Load {
    stop: Arc<AtomicBool>,
    answers: Arc<AtomicUsize>,
    threads: Vec<thread::JoinHandle<Vec<String>>>,
}

impl Load {
    /// Starts two clients. They connect again when a connection ends between two requests, as HTTP allows.
    fn start() -> Self {
        let (stop, answers) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let run = |stop: Arc<AtomicBool>, answers: Arc<AtomicUsize>| {
            let address = format!("{VIP}:80");
            let mut failures = Vec::new();
            let mut client = Client::connect(&address);
            let mut is_fresh = true;
            while !stop.load(Ordering::Relaxed) {
                match client.get("/") {
                    Some((200, _)) => {
                        answers.fetch_add(1, Ordering::Relaxed);
                        is_fresh = false;
                    }
                    Some((status, body)) => failures.push(format!("{status}: {body}")),
                    None if is_fresh => failures.push("no answer on a new connection".to_owned()),
                    None => {
                        client = Client::connect(&address);
                        is_fresh = true;
                    }
                }
            }
            failures
        };
        let clients = (0..2).map(|_| {
            let (stop, answers) = (Arc::clone(&stop), Arc::clone(&answers));
            thread::spawn(move || run(stop, answers))
        });
        Self { threads: clients.collect(), stop, answers }
    }

    /// Stops the clients, and checks that no request failed.
    fn end(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let failures = thread.join().expect("a client");
            assert!(failures.is_empty(), "{failures:?}");
        }
        assert!(self.answers.load(Ordering::Relaxed) > 100, "there was load: {:?}", self.answers);
    }
}

const HTTP: &str = "tidegate.dev/backend-protocol: http";
const PORT: &str = "{name: http, port: 80}";

#[test]
fn endpoints_change_under_load_without_a_reload_or_a_failed_request() {
    in_namespace(|lab| {
        let servers = ["10.0.0.1", "10.0.0.2", "10.0.0.3"].map(Server::start);
        let [a, b, c] = servers.each_ref().map(|server| server.address);
        lab.service(HTTP, PORT);
        lab.endpoints(&[a, b]);
        let pid = lab.start_with(1).haproxy.pid;
        let load = Load::start();
        for _ in 0..10 {
            for addresses in [vec![b, c], vec![c], vec![a, b, c], vec![a]] {
                lab.endpoints(&addresses);
                lab.wait("the servers", |status| status.listeners[0].servers == addresses);
            }
        }
        load.end();
        let status = lab.status().expect("a status");
        assert_eq!((status.haproxy.reloads, status.haproxy.restarts, status.haproxy.pid), (0, 0, pid));
        let answer = lab.get(&["http://web.example/"]);
        assert!(answer.contains(&servers[0].line()), "{answer}");
        lab.endpoints(&[]);
        lab.wait("no servers", |status| status.listeners[0].servers.is_empty());
        assert!(lab.get(&["http://web.example/"]).starts_with("HTTP/1.1 503 "));
    });
}

#[test]
fn a_removed_endpoint_finishes_its_request_and_is_then_deleted() {
    in_namespace(|lab| {
        let servers = ["10.0.0.1", "10.0.0.2"].map(Server::start);
        let [a, b] = servers.each_ref().map(|server| server.address);
        lab.service(HTTP, PORT);
        lab.endpoints(&[a]);
        lab.start_with(1);
        let slow = thread::spawn(|| Client::connect(&format!("{VIP}:80")).get("/slow/2000"));
        let state = |lab: &lab::Lab| {
            let socket = lab.path("run/master.sock");
            let command = "show servers state shop.web:80";
            tidegate_edge::haproxy::master::query_worker(&socket, command).unwrap_or_default()
        };
        lab::wait("the request is in progress", || {
            let socket = lab.path("run/master.sock");
            let stat = tidegate_edge::haproxy::master::query_worker(&socket, "show sess").ok()?;
            stat.contains("be=shop.web:80").then_some(())
        });
        lab.endpoints(&[b]);
        lab.wait("the new server", |status| status.listeners[0].servers == [b]);
        let first = format!("{}_{}", a.ip(), a.port());
        assert!(state(lab).contains(&first), "{}", state(lab));
        let (status, body) = slow.join().expect("a client").expect("an answer");
        assert_eq!((status, body.contains(&servers[0].line())), (200, true), "{body}");
        lab::wait("the server is deleted", || (!state(lab).contains(&first)).then_some(()));
    });
}

#[test]
fn connections_of_a_removed_endpoint_end_after_max_drain() {
    in_namespace(|lab| {
        let servers = ["10.0.0.1", "10.0.0.2"].map(Server::start);
        lab.service(HTTP, PORT);
        lab.endpoints(&[servers[0].address]);
        lab.configure("haproxy: {directory: RUN, maxDrain: 1s}");
        lab.start_with(1);
        let slow = thread::spawn(|| Client::connect(&format!("{VIP}:80")).get("/slow/600000"));
        lab::wait("the request is in progress", || {
            let socket = lab.path("run/master.sock");
            let stat = tidegate_edge::haproxy::master::query_worker(&socket, "show sess").ok()?;
            stat.contains("be=shop.web:80").then_some(())
        });
        lab.endpoints(&[servers[1].address]);
        let answer = slow.join().expect("a client");
        assert!(answer.as_ref().is_none_or(|(status, _)| *status >= 500), "{answer:?}");
    });
}

#[test]
fn a_renewed_certificate_serves_the_next_handshake_without_a_reload() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.secret("a");
        lab.service(
            "tidegate.dev/tls-secret: a, tidegate.dev/backend-protocol: http",
            "{name: https, port: 443}",
        );
        lab.endpoints(&[server.address]);
        lab.configure("accessLog: true");
        lab.start_with(1);
        lab.get(&["https://web.example/"]);
        // Two requests of one curl use one connection. The second is sent after the renewal.
        let old_ca = lab.path("old.pem");
        std::fs::copy(lab.path("ca.pem"), &old_ca).expect("copied");
        let mut established = std::process::Command::new("curl");
        established.args(["--silent", "--max-time", "30", "--cacert"]).arg(&old_ca);
        established.args(["--resolve", &format!("web.example:443:{VIP}"), "--rate", "20/m"]);
        established.args(["--write-out", "%{http_code} %{num_connects}\\n", "--output", "/dev/null"]);
        established.args(["https://web.example/1", "--output", "/dev/null", "https://web.example/2"]);
        let established = established.stdout(std::process::Stdio::piped()).spawn().expect("curl");
        lab::wait("the first request", || {
            (lab.access_log().iter().any(|line| line["uri"] == "/1")).then_some(())
        });
        let (certificate, key) = lab.secret("a");
        lab::wait("the new certificate", || lab.curl(&["https://web.example/"]).ok());
        let done = established.wait_with_output().expect("curl");
        assert_eq!(String::from_utf8_lossy(&done.stdout), "200 1\n200 0\n");
        // A key that does not match changes nothing.
        let (_, other) = lab::certificate(&["web.example"]);
        lab.write("a", &lab::secret("a", &certificate, &other));
        lab.wait("a finding", |status| status.findings.iter().any(|it| it.reason == "CertificateRefused"));
        lab.get(&["https://web.example/"]);
        lab.write("a", &lab::secret("a", &certificate, &key));
        lab.wait("no finding", |status| status.findings.is_empty());
        assert_eq!(lab.status().expect("a status").haproxy.reloads, 0);
        // Without the Secret, the port is not served.
        lab.remove("a");
        let status = lab.wait("not served", |status| status.listeners.is_empty());
        assert!(
            status.findings.iter().any(|it| it.message.contains("there is no Secret shop/a")),
            "{status:?}"
        );
        assert!(lab.curl(&["https://web.example/"]).is_err());
    });
}

#[test]
fn services_change_under_load_by_reloads_without_a_failed_request() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.service(HTTP, PORT);
        lab.endpoints(&[server.address]);
        lab.start_with(1);
        let long = thread::spawn(|| Client::connect(&format!("{VIP}:80")).get("/slow/5000"));
        let load = Load::start();
        for n in 1..=3 {
            let other = lab::service("other", "203.0.113.2", HTTP, &format!("{{name: http, port: {n}}}"), "");
            lab.write("other", &other);
            lab.wait("the other Service", |status| status.listeners.iter().any(|it| it.port == n));
        }
        // Changes that come together are one reload.
        let before = lab.status().expect("a status").haproxy.reloads;
        let started = Instant::now();
        for n in 10..20 {
            let other = lab::service("other", "203.0.113.2", HTTP, &format!("{{name: http, port: {n}}}"), "");
            lab.write("other", &other);
            thread::sleep(Duration::from_millis(20));
        }
        let status = lab.wait("the last change", |status| status.listeners.iter().any(|it| it.port == 19));
        let reloads_max = 2 + started.elapsed().as_secs() / 2;
        assert!(status.haproxy.reloads - before <= reloads_max, "{status:?}");
        assert!(status.haproxy.reloads >= 4, "{status:?}");
        load.end();
        let (status, _) = long.join().expect("a client").expect("an answer of the old process");
        assert_eq!(status, 200);
    });
}
