//! The table of the README: every protocol, family and forwarding mode with real clients and servers.
//!
//! `make test` fails if the table differs from the results of this run. `UPDATE_DOCS=1 cargo test --workspace --test
//! e2e matrix` writes it.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::thread;
use std::time::Duration;

use anyhow::{Result, ensure};
use tidegate_netlab::addresses::{CLIENT_ADDRESSES, Family, client};
use tidegate_netlab::client::{BackendAnswer, EchoConnection, udp_request};
use tidegate_netlab::modes::{ModePath, every_path, manifests_of, vips_on_servers, with_sctp};
use tidegate_netlab::{GatewayOptions, Lab};
use tidegate_spec::ForwardingMode;

use crate::sctp::{Peers, Requests};
use crate::world::{World, alone, lab_with};

const BEGIN: &str = "<!-- begin: written by `UPDATE_DOCS=1 cargo test --workspace --test e2e matrix` -->\n";
const END: &str = "<!-- end -->\n";

/// Connections, datagrams and associations for each cell and protocol.
const TIMES: usize = 12;

/// The protocols in the order of a cell.
const PROTOCOLS: [(&str, Exchange); 3] = [("TCP", over_tcp), ("UDP", over_udp), ("SCTP", over_sctp)];

/// Sends data both ways over a path and returns what the backends saw.
type Exchange = fn(&Lab, &Peers, ModePath, u8) -> Result<Vec<BackendAnswer>>;

/// The protocols that work on each path, in the order of [`every_path`], and the failures.
pub(crate) type Works = Vec<(ModePath, Vec<&'static str>)>;

/// The row of a path, and its column: the family of the client and of the tunnel.
fn cell_of(path: ModePath) -> (String, (Family, Family)) {
    let label = path.label();
    let (label, choice) = label.split_once(" (").map_or((label.as_str(), ""), |(name, rest)| (name, rest));
    assert!(choice.is_empty() || path.family != path.backends, "{label}: only families are in parentheses");
    let (mode, choice) = label.split_once(' ').map_or((label, ""), |(mode, choice)| (mode, choice));
    (format!("`{mode}` {choice}").trim_end().to_owned(), (path.family, path.backends))
}

#[test]
fn the_matrix_has_every_forwarding_mode() {
    let accepted: BTreeSet<&str> = ForwardingMode::ALL.into_iter().map(ForwardingMode::as_str).collect();
    let tested: BTreeSet<&str> = every_path().iter().map(|path| path.forwarding).collect();
    assert_eq!(tested, accepted);
}

#[test]
fn the_matrix_of_the_readme_matches_real_endpoints() {
    let _machine = alone();
    let lab = lab_with(2, vips_on_servers());
    let peers = Peers::start(&lab, 2);
    let services = with_sctp(manifests_of(&every_path(), &[1, 2]));
    let world = World::over(lab, GatewayOptions::default(), &services, "");
    for path in every_path() {
        world.wait_until_active(path, &[1, 2]);
    }
    let (works, faults) = try_every_path(&world.lab, &peers);
    let mut cells: BTreeMap<_, Vec<&str>> = BTreeMap::new();
    for (path, protocols) in works {
        cells.entry(cell_of(path)).or_default().extend(protocols);
    }
    compare_or_write(&table(&cells), &faults);
}

/// Exchanges data over every path and protocol, all paths at the same time.
pub(crate) fn try_every_path(lab: &Lab, peers: &Peers) -> (Works, Vec<String>) {
    let try_path = |n: usize, path: ModePath| {
        let n = u8::try_from(n).expect("a few paths") % CLIENT_ADDRESSES;
        let (mut works, mut faults) = (Vec::new(), Vec::new());
        for (protocol, exchange) in PROTOCOLS {
            match exchange(lab, peers, path, n).and_then(|answers| judge(path, n, &answers)) {
                Ok(()) => works.push(protocol),
                Err(error) => faults.push(format!("{} {} {protocol}: {error:#}", path.label(), path.family)),
            }
        }
        ((path, works), faults)
    };
    thread::scope(|scope| {
        let tried = every_path().into_iter().enumerate();
        let tried: Vec<_> = tried.map(|(n, path)| scope.spawn(move || try_path(n, path))).collect();
        let (mut works, mut faults) = (Vec::new(), Vec::new());
        for one in tried {
            let (path, of_path) = one.join().expect("no panic");
            works.push(path);
            faults.extend(of_path);
        }
        (works, faults)
    })
}

fn over_tcp(lab: &Lab, _: &Peers, path: ModePath, n: u8) -> Result<Vec<BackendAnswer>> {
    let request = |time: usize| {
        let source = SocketAddr::new(client(path.family, n), 0);
        let mut connection = EchoConnection::connect(lab.client(), source, path.tcp_echo())?;
        // Several segments, returned as one line.
        connection.exchange(&text(time, 20_000))?;
        Ok(connection.answer)
    };
    (0..TIMES).map(request).collect()
}

fn over_udp(lab: &Lab, _: &Peers, path: ModePath, n: u8) -> Result<Vec<BackendAnswer>> {
    let source = SocketAddr::new(client(path.family, n), 0);
    let request = |time| udp_request(lab.client(), source, path.udp_echo(), &text(time, 1000));
    (0..TIMES).map(request).collect()
}

fn over_sctp(lab: &Lab, peers: &Peers, path: ModePath, n: u8) -> Result<Vec<BackendAnswer>> {
    let requests = Requests { client: n, associations: TIMES, messages: 4, linger: Duration::ZERO };
    peers.exchange(lab, path, requests)
}

/// Printable text in which no part repeats.
fn text(seed: usize, length: usize) -> String {
    let mut text: String = (0..).map(|n| format!("{}-{} ", seed, n * 7)).take(length / 4).collect();
    text.truncate(length);
    text
}

/// Checks that every exchange was answered, and that each backend saw the client address that the mode specifies.
fn judge(path: ModePath, n: u8, answers: &[BackendAnswer]) -> Result<()> {
    let seen: IpAddr = path.seen_client(client(path.family, n));
    ensure!(answers.len() == TIMES, "{} of {TIMES} answers", answers.len());
    ensure!(
        answers.iter().all(|answer| answer.client.ip() == seen),
        "a backend saw another client: {answers:?}"
    );
    Ok(())
}

/// The table. A cell names the protocols that work; an empty cell is an impossible combination.
fn table(works: &BTreeMap<(String, (Family, Family)), Vec<&str>>) -> String {
    const COLUMNS: [(Family, Family); 4] = [
        (Family::V4, Family::V4),
        (Family::V6, Family::V6),
        (Family::V4, Family::V6),
        (Family::V6, Family::V4),
    ];
    let mut rows: Vec<String> = Vec::new();
    let (nat, dsr): (Vec<_>, Vec<_>) =
        every_path().into_iter().partition(|path| path.forwarding.contains("nat"));
    for (row, _) in dsr.into_iter().chain(nat).map(cell_of) {
        if !rows.contains(&row) {
            rows.push(row);
        }
    }
    let exists =
        |row: &String, column| every_path().into_iter().any(|path| cell_of(path) == (row.clone(), column));
    let mut text = "| mode | IPv4 | IPv6 | IPv4 in IPv6 | IPv6 in IPv4 |\n|---|---|---|---|---|\n".to_owned();
    for row in rows {
        let cells = COLUMNS.map(|column| match works.get(&(row.clone(), column)) {
            Some(protocols) => protocols.join(", "),
            None if exists(&row, column) => "none".to_owned(),
            None => String::new(),
        });
        text.push_str(&format!("| {row} | {} |\n", cells.join(" | ")));
    }
    text
}

/// Compares the table with that of the README, or writes it there.
fn compare_or_write(table: &str, faults: &[String]) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../README.md");
    let readme = std::fs::read_to_string(&path).expect("the README");
    let (before, rest) = readme.split_once(BEGIN).expect("the begin of the table");
    let (written, after) = rest.split_once(END).expect("the end of the table");
    if std::env::var_os("UPDATE_DOCS").is_some() {
        std::fs::write(&path, format!("{before}{BEGIN}{table}{END}{after}")).expect("the README is written");
    } else {
        assert_eq!(
            written,
            table,
            "README.md differs from the results of this run: {}\n{faults:#?}",
            BEGIN.trim()
        );
    }
    assert!(faults.is_empty(), "{faults:#?}");
}
