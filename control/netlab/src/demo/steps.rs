//! The steps of the demo: every path, a backend killed under load, a backend added, a flood.
//!
//! A step prints its table and adds every deviation from the expected behaviour to the list of problems. It returns
//! an error only if the demo cannot continue: a tool is missing, or the gateway has ended.

use super::flood::flood;
use super::report::{counts, print_table};
use crate::addresses::client;
use crate::client::{Answers, BackendAnswer, EchoConnection, Load, curl_many, spread, udp_request_here};
use crate::gateway::manifests_of;
use crate::modes::{ModePath, all_paths, demo_paths, manifests};
use crate::tools::sctp_echo;
use crate::{Gateway, GatewayOptions, Lab, wait_for};
use anyhow::Result;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

/// The number of servers in the lab. The last one is added while the gateway runs.
pub(super) const SERVERS: u8 = 4;
/// The initial servers of the Services.
pub(super) const FIRST_SERVERS: [u8; 3] = [1, 2, 3];

const HTTP_REQUESTS: usize = 60;
const UDP_REQUESTS: usize = 30;
const ASSOCIATIONS: usize = 30;
/// The number of connections on each path that stay open while a backend is killed and another is added.
const OPEN_CONNECTIONS: usize = 12;
/// The number of the backend that is killed, and of the one that is added.
const KILLED: u8 = 3;
const ADDED: u8 = 4;
/// The additional time on a busy machine, on top of what the health checks need.
const SLACK: Duration = Duration::from_secs(2);
/// A failed backend counts as removed after this time without a failure.
const QUIET: Duration = Duration::from_secs(1);

/// Runs all steps. Returns the problems.
pub(super) fn all(lab: &mut Lab, gateway: &Gateway, options: &GatewayOptions) -> Result<Vec<String>> {
    let mut problems = Vec::new();
    every_path(lab, &mut problems)?;
    under_load(lab, options, &mut problems)?;
    flood(lab, gateway, &mut problems)?;
    println!("\nThrough DPDK: {}", frames(gateway)?);
    Ok(problems)
}

/// Sends HTTP with curl, UDP and SCTP over every path, and checks which backends answered and which clients they saw.
fn every_path(lab: &Lab, problems: &mut Vec<String>) -> Result<()> {
    println!("Every mode, both families, {} backends; answered requests:", FIRST_SERVERS.len());
    let mut rows = Vec::new();
    for path in demo_paths() {
        wait_for_path(lab, path, problems);
        let source = client(path.family, 0);
        let http = curl_many(lab.client(), &format!("http://{}/", path.http()), HTTP_REQUESTS, &[])?;
        // The servers' UDP program does not read headers of the PROXY protocol.
        let is_http_only = path.proxy_version().is_some();
        let udp = if is_http_only {
            Answers::default()
        } else {
            request_many(lab, UDP_REQUESTS, |text| {
                udp_request_here(SocketAddr::new(source, 0), path.udp_echo(), text)
            })
        };
        let sctp = if is_http_only {
            Answers::default()
        } else {
            request_many(lab, ASSOCIATIONS, |text| sctp_echo::request_here(source, path.sctp(), text))
        };
        let mut row = vec![path.label(), path.family.to_string()];
        for (protocol, answers) in [("HTTP", &http), ("UDP", &udp), ("SCTP", &sctp)] {
            judge(path, protocol, source, answers, problems);
            let cell = format!("{} of {}", answers.received.len(), answers.requests);
            row.push(if answers.requests == 0 { "-".to_owned() } else { cell });
        }
        let all = [http.received, udp.received, sctp.received].concat();
        row.push(counts(&spread(&all), SERVERS - 1));
        row.push(all.first().map_or("-".to_owned(), |answer| {
            let ip = answer.client.ip();
            format!("{ip}{}", if ip == source { " (itself)" } else { " (gateway)" })
        }));
        rows.push(row);
    }
    check_tunnels(lab, problems);
    let header = ["mode", "family", "HTTP", "UDP", "SCTP", "backends 1 2 3", "client as a backend sees it"];
    print_table(&header, &rows);
    Ok(())
}

/// The servers refuse tunnel packets with a wrong outer header, and count them.
fn check_tunnels(lab: &Lab, problems: &mut Vec<String>) {
    for n in FIRST_SERVERS {
        match lab.server(n).tunnel_counts() {
            Ok(counts) => problems.extend(
                counts
                    .refused
                    .iter()
                    .map(|(why, count)| format!("backend {n} refused {count} packets: {why}")),
            ),
            Err(error) => problems.push(format!("{error:#}")),
        }
    }
}

/// Waits until a path works. The first answer may take time, because of health checks and neighbors. Later ones may
/// not.
fn wait_for_path(lab: &Lab, path: ModePath, problems: &mut Vec<String>) {
    let any = SocketAddr::new(client(path.family, 2), 0);
    let waited = wait_for("a first answer", Duration::from_secs(10), || {
        if path.proxy_version().is_some() {
            let answers = curl_many(lab.client(), &format!("http://{}/", path.http()), 1, &[]).ok()?;
            return (!answers.received.is_empty()).then_some(());
        }
        EchoConnection::connect(lab.client(), any, path.tcp_echo()).ok().map(drop)
    });
    if let Err(error) = waited {
        problems.push(format!("{} {}: {error:#}", path.label(), path.family));
    }
}

/// Sends `count` requests from the client.
fn request_many(lab: &Lab, count: usize, request: impl Fn(&str) -> Result<BackendAnswer> + Sync) -> Answers {
    let mut answers = Answers { requests: count, ..Answers::default() };
    let mut failures = 0;
    lab.client().enter(|| {
        for n in 0..count {
            match request(&format!("request {n}")) {
                Ok(answer) => answers.received.push(answer),
                Err(error) => {
                    answers.errors = format!("{error:#}");
                    failures += 1;
                }
            }
            // A broken path must not delay the demo by a minute and a half.
            if failures == 3 {
                break;
            }
        }
    });
    answers
}

fn judge(path: ModePath, protocol: &str, source: IpAddr, answers: &Answers, problems: &mut Vec<String>) {
    let mut problem =
        |what: String| problems.push(format!("{} {} {protocol}: {what}", path.label(), path.family));
    if answers.received.len() != answers.requests {
        let first = answers.errors.lines().next().unwrap_or("no reason given");
        problem(format!(
            "{} of {} requests were answered (first error: {first})",
            answers.received.len(),
            answers.requests
        ));
    }
    if !answers.received.is_empty() && spread(&answers.received).len() != FIRST_SERVERS.len() {
        problem(format!("not every backend was used: {:?}", spread(&answers.received)));
    }
    let expected = path.seen_client(source);
    if let Some(answer) = answers.received.iter().find(|answer| answer.client.ip() != expected) {
        problem(format!("{} saw the client as {} instead of {expected}", answer.backend, answer.client.ip()));
    }
}

/// The observations on a path while backends are removed and added.
struct Watched {
    path: ModePath,
    load: Load,
    open: Vec<EchoConnection>,
    out_after: Option<Duration>,
    used_after: Option<Duration>,
    failed: usize,
}

impl Watched {
    fn problem(&self, error: &anyhow::Error) -> String {
        format!("{} {}: {error:#}", self.path.label(), self.path.family)
    }
}

/// Kills a backend and adds another while new connections open and old ones stay, on every path at once.
fn under_load(lab: &mut Lab, options: &GatewayOptions, problems: &mut Vec<String>) -> Result<()> {
    let mut watched = watch_all(lab, problems);
    kill_one(lab, options, &mut watched, problems);
    add_one(lab, &mut watched, problems)?;
    let rows: Vec<_> = watched.into_iter().map(|one| row(one, problems)).collect();
    let threshold = options.unhealthy_threshold;
    println!(
        "\nBackend {KILLED} killed under load (health checks every {} ms, removed after {threshold} failures), then \
         backend {ADDED} added:",
        options.health_interval.as_millis()
    );
    print_table(
        &["mode", "family", "new conns", "failed", "removed after", "added in use after", "others survive"],
        &rows,
    );
    Ok(())
}

/// Opens the connections that should survive, and starts to open new ones, on every path.
fn watch_all(lab: &Lab, problems: &mut Vec<String>) -> Vec<Watched> {
    let mut watched = Vec::new();
    for path in all_paths() {
        let source = client(path.family, 3);
        let any = SocketAddr::new(source, 0);
        let open = (0..OPEN_CONNECTIONS).map(|_| EchoConnection::connect(lab.client(), any, path.tcp_echo()));
        match open.collect::<Result<Vec<_>>>() {
            Ok(open) => {
                let load = Load::start(lab.client(), source, path.tcp_echo());
                watched.push(Watched { path, load, open, out_after: None, used_after: None, failed: 0 });
            }
            Err(error) => problems.push(format!("{} {}: {error:#}", path.label(), path.family)),
        }
    }
    watched
}

/// Kills a backend, and waits until no new connection goes to it.
fn kill_one(lab: &mut Lab, options: &GatewayOptions, watched: &mut [Watched], problems: &mut Vec<String>) {
    let killed_at = Instant::now();
    lab.server_mut(KILLED).kill();
    let bound = options.detection_bound() + SLACK;
    for one in watched {
        match one.load.until_quiet(killed_at, QUIET, bound + QUIET) {
            Ok(out_after) => one.out_after = Some(out_after),
            Err(error) => problems.push(one.problem(&error)),
        }
        one.failed = one.load.attempts_since(killed_at).iter().filter(|a| a.outcome.is_err()).count();
    }
}

/// Adds a backend, and waits until new connections go to it.
fn add_one(lab: &Lab, watched: &mut [Watched], problems: &mut Vec<String>) -> Result<()> {
    let with_added: Vec<u8> = FIRST_SERVERS.into_iter().chain([ADDED]).collect();
    let added_at = Instant::now();
    for manifest in manifests(&with_added) {
        manifest.write(&manifests_of(lab))?;
    }
    let added = crate::server::name(ADDED);
    for one in watched {
        let used = wait_for("the first connection at the added backend", Duration::from_secs(10), || {
            let attempts = one.load.attempts_since(added_at);
            attempts.iter().find(|a| a.outcome.as_ref() == Ok(&added)).map(|a| a.at.duration_since(added_at))
        });
        match used {
            Ok(after) => one.used_after = Some(after),
            Err(error) => problems.push(one.problem(&error)),
        }
    }
    Ok(())
}

/// The line of a path, with how many of the connections to the other backends are still alive.
fn row(watched: Watched, problems: &mut Vec<String>) -> Vec<String> {
    let killed = crate::server::name(KILLED);
    let Watched { path, load, mut open, out_after, used_after, failed } = watched;
    open.retain(|connection| connection.answer.backend != killed);
    let (mut lived, all) = (0, open.len());
    for connection in &mut open {
        match connection.ping() {
            Ok(()) => lived += 1,
            Err(error) => problems.push(format!(
                "{} {}: an open connection to {} broke: {error:#}",
                path.label(),
                path.family,
                connection.answer.backend
            )),
        }
    }
    vec![
        path.label(),
        path.family.to_string(),
        load.attempts().len().to_string(),
        failed.to_string(),
        milliseconds(out_after),
        milliseconds(used_after),
        format!("{lived} of {all}"),
    ]
}

fn milliseconds(time: Option<Duration>) -> String {
    time.map_or("-".to_owned(), |time| format!("{} ms", time.as_millis()))
}

/// The frames that the gateway itself counted on its port.
fn frames(gateway: &Gateway) -> Result<String> {
    let count = |direction| gateway.metric("tidegate_packets_total", &[direction]);
    let sum = gateway.metric("tidegate_packets_total", &[])?;
    let (received, sent) = (count("direction=\"rx\"")?, count("direction=\"tx\"")?);
    Ok(format!("{sum:.0} frames at the gateway's port, {received:.0} received, {sent:.0} sent."))
}
