//! Faults: of objects, of HAProxy, and of the edge itself.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, test_kill_process};

use crate::lab::{self, Client, Server, VIP, children, in_namespace, sh};

const HTTP: &str = "tidegate.dev/backend-protocol: http";
const PORT: &str = "{name: http, port: 80}";

fn signal(pid: i32, signal: Signal) {
    kill_process(Pid::from_raw(pid).expect("a pid"), signal).expect("it exists");
}

fn is_alive(pid: i32) -> bool {
    // A zombie counts as ended.
    let state = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = state.rsplit(") ").next().and_then(|rest| rest.chars().next());
    test_kill_process(Pid::from_raw(pid).expect("a pid")).is_ok() && state.is_some_and(|it| it != 'Z')
}

fn master(status: &tidegate_edge::status::Status) -> i32 {
    i32::try_from(status.haproxy.pid.expect("it runs")).expect("a pid")
}

#[test]
fn a_haproxy_that_is_killed_or_hangs_is_replaced() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.service(HTTP, PORT);
        lab.endpoints(&[server.address]);
        let mut status = lab.start_with(1);
        for what in ["master", "worker", "worker hangs"] {
            let pid = master(&status);
            let worker = lab::wait("a worker", || children(pid.cast_unsigned()).first().copied());
            match what {
                "master" => signal(pid, Signal::KILL),
                "worker" => signal(worker, Signal::KILL),
                _ => signal(worker, Signal::STOP),
            }
            status = lab.wait(what, |status| {
                status.haproxy.pid.is_some_and(|it| it != pid.cast_unsigned()) && status.listeners.len() == 1
            });
            assert!(lab.get(&["http://web.example/"]).contains(&server.line()), "{what}");
            lab::wait("the old worker has ended", || (!is_alive(worker)).then_some(()));
        }
        assert_eq!(status.haproxy.restarts, 3, "{status:?}");
    });
}

#[test]
fn a_missing_haproxy_is_reported_and_found_later() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.service(HTTP, PORT);
        lab.endpoints(&[server.address]);
        let program = lab.path("haproxy");
        lab.configure(&format!("haproxy: {{directory: RUN, program: {}}}", program.display()));
        lab.start();
        let status = lab.wait("an error", |status| status.haproxy.error.is_some());
        assert!(status.haproxy.error.expect("an error").contains("No such file"), "{:?}", lab.status());
        std::fs::write(&program, "#!/bin/sh\necho HAProxy version 2.4.22 2023/02/14\n").expect("written");
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("ours");
        lab.wait("too old", |status| {
            status.haproxy.error.as_ref().is_some_and(|it| it.contains("2.4.22; accepted: 2.6 or newer"))
        });
        std::fs::remove_file(&program).expect("removed");
        let installed = ["/usr/sbin/haproxy", "/usr/local/sbin/haproxy"].map(Path::new);
        let installed = installed.into_iter().find(|path| path.exists()).expect("HAProxy is installed");
        std::os::unix::fs::symlink(installed, &program).expect("linked");
        lab.wait("it runs", |status| status.listeners.len() == 1 && status.haproxy.error.is_none());
        assert!(lab.get(&["http://web.example/"]).contains(&server.line()));
    });
}

#[test]
fn haproxy_ends_with_the_edge_and_a_new_edge_serves_again() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.service(HTTP, PORT);
        lab.endpoints(&[server.address]);
        let status = lab.start_with(1);
        let pid = master(&status);
        let worker = lab::wait("a worker", || children(pid.cast_unsigned()).first().copied());
        let second = lab.command("run").output().expect("it runs");
        assert!(!second.status.success());
        let text = String::from_utf8_lossy(&second.stderr).into_owned();
        assert!(text.contains("another tidegate-edge uses it"), "{text}");
        lab.edge().kill().expect("ours");
        lab.edge().wait().expect("ours");
        lab::wait("HAProxy has ended", || (!is_alive(pid) && !is_alive(worker)).then_some(()));
        assert!(!lab.command("status").output().expect("it runs").status.success());
        lab.start();
        lab.wait("it runs", |status| status.haproxy.pid.is_some_and(|it| it != pid.cast_unsigned()));
        assert!(lab.get(&["http://web.example/"]).contains(&server.line()));
    });
}

#[test]
fn a_stopped_edge_finishes_its_requests() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.service(HTTP, PORT);
        lab.endpoints(&[server.address]);
        let status = lab.start_with(1);
        let slow = std::thread::spawn(|| Client::connect(&format!("{VIP}:80")).get("/slow/3000"));
        lab::wait("the request is in progress", || {
            let socket = lab.path("run/master.sock");
            let stat = tidegate_edge::haproxy::master::query_worker(&socket, "show sess").ok()?;
            stat.contains("be=shop.web:80").then_some(())
        });
        let edge = i32::try_from(lab.edge().id()).expect("a pid");
        signal(edge, Signal::TERM);
        lab::wait("no new connections", || std::net::TcpStream::connect((VIP, 80)).is_err().then_some(()));
        assert_eq!(slow.join().expect("a client").map(|(status, _)| status), Some(200));
        let ended = lab.edge().wait().expect("ours");
        assert!(ended.success(), "{ended}: {}", lab.log());
        assert!(!is_alive(master(&status)));
    });
}

#[test]
fn what_haproxy_refuses_is_left_out_alone() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.secret("a");
        // OpenSSL refuses a certificate that is signed with SHA-1. Nothing before HAProxy checks this.
        let sha1 = include_str!("../sha1.pem");
        let (certificate, key) = sha1.split_at(sha1.find("-----BEGIN PRIVATE").expect("a key"));
        lab.write("sha1", &lab::secret("sha1", certificate, key));
        lab.service("tidegate.dev/tls-secret: 'sha1, a'", "{name: https, port: 443}");
        let annotations = "tidegate.dev/tls-secret: sha1";
        let other = lab::service("other", "203.0.113.2", annotations, "{name: https, port: 443}", "");
        lab.write("other", &other);
        lab.endpoints(&[server.address]);
        let status = lab.start_with(1);
        assert_eq!(status.listeners[0].secrets, ["shop/a"]);
        let refused: Vec<&str> = status
            .findings
            .iter()
            .filter(|it| {
                it.reason == "CertificateRefused" && it.message.contains("unable to load SSL certificate")
            })
            .map(|it| it.object.as_str())
            .collect();
        assert_eq!(refused, ["shop/other", "shop/web"], "{:?}", status.findings);
        assert!(lab.get(&["https://web.example/"]).contains(&server.line()));
        // A renewal that HAProxy refuses at run time changes nothing either.
        lab.write("a", &lab::secret("a", certificate, key));
        lab.wait("a finding", |status| {
            status
                .findings
                .iter()
                .any(|it| it.object == "shop/a" && it.message.contains("last usable version"))
        });
        assert!(lab.get(&["https://web.example/"]).contains(&server.line()));
        let checked = lab.command("check").output().expect("it runs");
        let text = String::from_utf8_lossy(&checked.stderr).into_owned();
        assert_eq!(
            (checked.status.code(), text.contains("unable to load SSL certificate")),
            (Some(2), true),
            "{text}"
        );
    });
}

#[test]
fn an_address_that_is_not_local_costs_only_its_port_until_it_is() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.service(HTTP, PORT);
        lab.endpoints(&[server.address]);
        lab.write("other", &lab::service("other", "203.0.113.9", HTTP, PORT, ""));
        let taken = std::net::TcpListener::bind("127.0.0.1:9471").expect("free");
        let status = lab.start_with(1);
        let reasons: Vec<&str> = status.findings.iter().map(|it| it.reason.as_str()).collect();
        assert_eq!(reasons, ["CannotListen", "CannotListen"], "{status:?}");
        assert!(lab.get(&["http://web.example/"]).contains(&server.line()));
        sh("ip address add 203.0.113.9/32 dev lo");
        drop(taken);
        lab.wait("both", |status| status.listeners.len() == 2 && status.findings.is_empty());
        assert!(lab.get(&["http://127.0.0.1:9471/metrics"]).contains("shop.other:80"));
    });
}

#[test]
fn a_broken_object_keeps_its_last_state_and_harms_no_other() {
    in_namespace(|lab| {
        let server = Server::start("10.0.0.1");
        lab.service(HTTP, PORT);
        lab.endpoints(&[server.address]);
        lab.start_with(1);
        let broken: String = (0..500)
            .map(|n| {
                let broken = "tidegate.dev/backend-protocol: HTTP";
                format!(
                    "---\n{}",
                    lab::service(&format!("bad-{n}"), VIP, broken, PORT, "").replace("shop", "bad")
                )
            })
            .collect();
        let started = Instant::now();
        lab.write("bad", &broken);
        lab.wait("findings", |status| status.findings.len() == 500);
        assert!(started.elapsed() < Duration::from_secs(30));
        lab.write("web", "kind: Service\n");
        let status = lab.wait("a fault", |status| status.findings.len() > 500);
        assert_eq!((status.listeners.len(), status.haproxy.reloads), (1, 0), "{:?}", status.haproxy);
        assert!(lab.get(&["http://web.example/"]).contains(&server.line()));
    });
}
