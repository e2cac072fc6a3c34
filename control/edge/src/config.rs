//! `edge.yaml`: the configuration of an edge, decoded and validated as a whole.
//!
//! [`load`] reads a file and reports every fault with its position. [`KEYS`] describes the keys; the table of
//! `docs/edge.md` is generated from it.
//!
//! Invariant: a configuration exists only if its report has no error.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ipnet::IpNet;
use tidegate_model::bounded_file::{self, FILE_BYTES_MAX};
use tidegate_model::config::API_VERSION;
use tidegate_model::config::keys::KeyDefault::{self, Required, Value};
use tidegate_model::diagnostic::{Diagnostic, Location, Report};
use tidegate_model::yaml::{Field, Fields, Sheet, Unknown, text};

/// `kind` of the configuration.
pub const KIND: &str = "EdgeConfig";

/// The maximum length of the path of HAProxy's master socket: `sun_path` of 108 bytes, for which HAProxy also needs the
/// names of temporary files.
const DIRECTORY_BYTES_MAX: usize = 60;

/// The validated configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// `metadata.name`.
    pub name: String,
    /// `addresses`: the networks whose addresses this edge serves.
    pub addresses: Vec<IpNet>,
    /// `source.directory`.
    pub source: Directory,
    /// `haproxy`.
    pub haproxy: Haproxy,
    /// `limits`.
    pub limits: Limits,
    /// `accessLog`: whether requests and connections are logged.
    pub access_log: bool,
    /// `metrics`: the address of HAProxy's Prometheus endpoint.
    pub metrics: Option<SocketAddr>,
}

/// The validated `source.directory` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Directory {
    /// `path`, as the path to open.
    pub path: PathBuf,
    /// `lossGrace`: how long the objects of a lost file are kept.
    pub loss_grace: Duration,
}

/// The validated `haproxy` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Haproxy {
    /// `program`: a path, or a name that is searched for.
    pub program: PathBuf,
    /// `directory`: the runtime directory, an absolute path.
    pub directory: PathBuf,
    /// `threads`: the number of threads; `None` for one per core.
    pub threads: Option<u16>,
    /// `maxDrain`: how long connections of a replaced process and of removed servers may last.
    pub max_drain: Duration,
}

/// The validated `limits` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// `connections`: all connections together.
    pub connections: u32,
    /// `connectionsPerSource`: connections of one client address to one listener; 0 for no limit.
    pub connections_per_source: u32,
    /// `streams`: concurrent requests of one HTTP/2 connection.
    pub streams: u16,
    /// `headerTimeout`: how long a client may take to send the headers of a request.
    pub header_timeout: Duration,
}

/// One key: its path, what is accepted, its default and what it does.
#[derive(Debug, Clone, Copy)]
pub struct Key {
    /// Its path.
    pub path: &'static str,
    /// What is accepted, in words.
    pub kind: &'static str,
    /// The value when the key is absent.
    pub default: KeyDefault,
    /// What the key does.
    pub meaning: &'static str,
}

const fn key(path: &'static str, kind: &'static str, default: KeyDefault, meaning: &'static str) -> Key {
    Key { path, kind, default, meaning }
}

/// Every key, in the order of the document.
#[rustfmt::skip]
pub const KEYS: &[Key] = &[
    key("apiVersion", "`tidegate.dev/v1alpha1`", Required, "The version of this format."),
    key("kind", "`EdgeConfig`", Required, "The kind of this document."),
    key("metadata.name", "name of a-z, 0-9, - and .", Value("edge"), "The edge's name in logs and in `status`."),
    key("addresses", "list of CIDRs", Required,
        "The networks whose addresses this edge serves, usually those of the pools. The addresses of Services must be local addresses of this machine."),
    key("source.directory.path", "path, relative to this file", Value("manifests"), "The directory with the manifests. It is watched for changes."),
    key("source.directory.lossGrace", "duration, 0s to 168h", Value("60s"), "How long the objects of a file that is empty or unreadable are kept."),
    key("haproxy.program", "path or name", Value("haproxy"),
        "The program HAProxy, version 2.6 or newer. A name is searched for in `PATH`, `/usr/sbin` and `/usr/local/sbin`."),
    key("haproxy.directory", "absolute path of at most 60 bytes", Value("/run/tidegate-edge"),
        "The runtime directory, which only this edge uses. It contains private keys, so it should be on a tmpfs, and only its owner can read it."),
    key("haproxy.threads", "0 to 64", Value("0"), "The number of HAProxy's threads. 0: one for each core."),
    key("haproxy.maxDrain", "duration, 1s to 24h", Value("5m"),
        "How long connections may last after HAProxy was reloaded, or after their endpoint was removed. Then they are closed."),
    key("limits.connections", "1 to 1000000", Value("10000"), "The number of client connections. More connections wait until others end. A connection needs two files: a file limit of the process (`LimitNOFILE`) that is too low lowers the number."),
    key("limits.connectionsPerSource", "0 to 1000000", Value("1000"),
        "The number of connections of one client address to one port of a Service. More are closed. 0: no limit."),
    key("limits.streams", "1 to 1000", Value("100"), "The number of concurrent requests of one HTTP/2 connection."),
    key("limits.headerTimeout", "duration, 1s to 10m", Value("10s"), "How long a client may take to send the headers of a request. Then the answer is 408."),
    key("accessLog", "boolean", Value("false"), "Write a JSON line to the standard output for each request, and for each connection without HTTP."),
    key("metrics", "address and port, or `\"\"` for none", Value("\"127.0.0.1:9471\""),
        "The address of HAProxy's Prometheus endpoint, `/metrics`. The label `proxy` is `NAMESPACE.SERVICE:PORT`."),
];

/// The result of reading a configuration.
#[derive(Debug)]
pub struct Loaded {
    /// The configuration, if there was no error.
    pub config: Option<Config>,
    /// All faults.
    pub report: Report,
}

/// Reads and checks the file at `path`. An unreadable file is a fault in the report.
#[must_use]
pub fn load(path: &Path) -> Loaded {
    let shown = path.to_string_lossy();
    let base = path.parent().unwrap_or(Path::new(""));
    match bounded_file::read_text(path, FILE_BYTES_MAX) {
        Ok(text) => parse(&text, &shown, base),
        Err(fault) => Loaded { config: None, report: [fault].into_iter().collect() },
    }
}

/// Checks the text of a configuration. `file` is its name in messages; paths are relative to `base`.
#[must_use]
pub fn parse(text: &str, file: &str, base: &Path) -> Loaded {
    let sheet = Sheet::new(file);
    let documents = sheet.documents(text);
    if let Some(second) = documents.get(1) {
        sheet.error(second.at, "the file has a second document", "one EdgeConfig in each file");
    }
    let config = match documents.first() {
        Some(root) => Field::document(&sheet, root).fields().map(|fields| decode(fields, base)),
        None => {
            let accepted = format!("a document with apiVersion: {API_VERSION} and kind: {KIND}");
            let at = Location::start_of(file);
            sheet.push(Diagnostic::error("the file contains no configuration").accepting(accepted).at(at));
            None
        }
    };
    let report = sheet.into_report();
    Loaded { config: config.filter(|_| !report.has_errors()), report }
}

fn seconds(from: u64, to: u64) -> RangeInclusive<Duration> {
    Duration::from_secs(from)..=Duration::from_secs(to)
}

fn decode(fields: Fields<'_>, base: &Path) -> Config {
    let mut config = Config {
        name: "edge".to_owned(),
        addresses: Vec::new(),
        source: Directory { path: base.join("manifests"), loss_grace: Duration::from_secs(60) },
        haproxy: Haproxy {
            program: PathBuf::from("haproxy"),
            directory: PathBuf::from("/run/tidegate-edge"),
            threads: None,
            max_drain: Duration::from_secs(300),
        },
        limits: Limits {
            connections: 10_000,
            connections_per_source: 1000,
            streams: 100,
            header_timeout: Duration::from_secs(10),
        },
        access_log: false,
        metrics: Some(SocketAddr::from(([127, 0, 0, 1], 9471))),
    };
    for (key, accepted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        fields.required(key, accepted).and_then(|field| field.one_of(&[(accepted, ())]));
    }
    fields.section("metadata", |metadata| {
        let accepted = "a name of a-z, 0-9, - and . (RFC 1123)";
        metadata.set("name", &mut config.name, |f| f.owned_where(text::is_rfc1123_subdomain, accepted));
    });
    if let Some(list) = fields.required("addresses", "a list of CIDRs such as 203.0.113.0/28") {
        config.addresses = list.list().iter().filter_map(Field::network).collect();
        if config.addresses.is_empty() {
            list.error("the list is empty", "a list of CIDRs such as 203.0.113.0/28");
        }
    }
    fields.section("source", |source| {
        source.section("directory", |directory| {
            let path = |f: &Field<'_>| Some(base.join(f.not_blank("the path of a directory")?));
            directory.set("path", &mut config.source.path, path);
            directory.set("lossGrace", &mut config.source.loss_grace, |f| f.duration(seconds(0, 7 * 86_400)));
        });
    });
    fields.section("haproxy", |fields| decode_haproxy(fields, &mut config.haproxy));
    fields.section("limits", |fields| {
        let limits = &mut config.limits;
        fields.set("connections", &mut limits.connections, |f| f.integer(1..=1_000_000));
        fields.set("connectionsPerSource", &mut limits.connections_per_source, |f| f.integer(0..=1_000_000));
        fields.set("streams", &mut limits.streams, |f| f.integer(1..=1000));
        fields.set("headerTimeout", &mut limits.header_timeout, |f| f.duration(seconds(1, 600)));
    });
    fields.set("accessLog", &mut config.access_log, Field::boolean);
    fields.set("metrics", &mut config.metrics, |f| {
        let read = |t: &str| {
            let address = || t.parse().ok().filter(|a: &SocketAddr| a.port() != 0);
            if t.is_empty() { Some(None) } else { address().map(Some) }
        };
        f.parsed(read, "an address and port such as 127.0.0.1:9471 or [::1]:9471, or \"\" for none")
    });
    fields.finish(Unknown::Refused);
    config
}

fn decode_haproxy(fields: &Fields<'_>, haproxy: &mut Haproxy) {
    let program = |f: &Field<'_>| f.not_blank("a path or the name of a program").map(PathBuf::from);
    fields.set("program", &mut haproxy.program, program);
    // The path is part of HAProxy's configuration, in which other characters have a meaning.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/-_.".contains(c);
    let is_path = |t: &str| t.starts_with('/') && t.len() <= DIRECTORY_BYTES_MAX && t.chars().all(is_plain);
    let accepted = "an absolute path of at most 60 letters, digits, /, -, _ and .";
    fields.set("directory", &mut haproxy.directory, |f| f.string_where(is_path, accepted).map(PathBuf::from));
    fields.set("threads", &mut haproxy.threads, |f| f.integer(0..=64).map(|n: u16| (n > 0).then_some(n)));
    fields.set("maxDrain", &mut haproxy.max_drain, |f| f.duration(seconds(1, 86_400)));
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "apiVersion: tidegate.dev/v1alpha1\nkind: EdgeConfig\n";

    fn read(text: &str) -> Loaded {
        parse(&format!("{HEAD}{text}"), "edge.yaml", Path::new("/etc/tidegate"))
    }

    /// A configuration with this value at the path of a key.
    fn with(path: &str, value: &str) -> String {
        let steps: Vec<&str> = path.split('.').collect();
        let opened: String = steps.iter().map(|step| format!("{step}: {{")).collect();
        let opened = opened.trim_end_matches('{');
        let addresses = if path == "addresses" { "" } else { "addresses: [203.0.113.0/24]\n" };
        format!("{addresses}{opened}{value}{}\n", "}".repeat(steps.len() - 1))
    }

    #[test]
    fn defaults_are_those_of_the_keys() {
        let default = read("addresses: [203.0.113.0/24]").config.expect("valid");
        assert_eq!(default.source.path, Path::new("/etc/tidegate/manifests"));
        for key in &KEYS[2..] {
            let Value(value) = key.default else { continue };
            let loaded = read(&with(key.path, value));
            assert_eq!(loaded.config.as_ref(), Some(&default), "{}: {}", key.path, loaded.report);
        }
    }

    #[test]
    fn a_key_that_is_not_described_is_refused() {
        for key in ["other: 1", "limits: {other: 1}", "haproxy: {other: 1}", "source: {kubernetes: {}}"] {
            let loaded = read(&format!("addresses: [203.0.113.0/24]\n{key}"));
            assert!(loaded.config.is_none(), "{key}");
            assert!(loaded.report.to_string().starts_with("edge.yaml:4:"), "{}", loaded.report);
        }
    }

    #[test]
    fn an_invalid_value_is_an_error_with_its_position() {
        for (path, value) in [
            ("addresses", "[]"),
            ("addresses", "[203.0.113.1/24]"),
            ("haproxy.directory", "run"),
            ("haproxy.directory", "\"/run/a b\""),
            ("haproxy.maxDrain", "0s"),
            ("limits.connections", "0"),
            ("metrics", "\"localhost:1\""),
            ("accessLog", "stdout"),
        ] {
            let loaded = read(&with(path, value));
            assert!(loaded.config.is_none(), "{path}");
            let report = loaded.report.to_string();
            assert!(report.contains(path) && report.contains("accepted: "), "{report}");
        }
        assert!(read("").report.to_string().contains("addresses is missing"));
    }

    #[test]
    fn the_document_has_the_keys() {
        let row = |key: &Key| {
            let default = match key.default {
                Required => "required".to_owned(),
                Value(value) => format!("`{value}`"),
                KeyDefault::Words(words) => words.to_owned(),
            };
            format!("| `{}` | {} | {default} | {} |\n", key.path, key.kind, key.meaning)
        };
        let rows: String = KEYS.iter().map(row).collect();
        let table = format!("| key | accepted | default | meaning |\n|---|---|---|---|\n{rows}");
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/edge.md");
        let document = std::fs::read_to_string(&path).expect("the document");
        let (start, end) = ("<!-- keys -->\n\n", "\n<!-- end of keys -->");
        let (before, rest) = document.split_once(start).expect("the start of the table");
        let (written, after) = rest.split_once(end).expect("the end of the table");
        if std::env::var_os("UPDATE_DOCS").is_some() {
            std::fs::write(&path, format!("{before}{start}{table}{end}{after}")).expect("written");
        } else {
            assert_eq!(written, table, "UPDATE_DOCS=1 cargo test -p tidegate-edge document");
        }
    }
}
