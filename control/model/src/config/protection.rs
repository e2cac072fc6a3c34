//! `protection`: the sources that the gateway refuses or always admits, and how many new flows a source may begin.
//!
//! Lists are in the configuration, in files, or both. A file has a prefix or an address in each line; `#` begins a comment.
//! The files are read whenever the configuration is, and a fault in one is a fault of the configuration: the lists in use
//! stay until all files are right.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_core::limits::LISTED_SOURCES_MAX;
use tidegate_core::snapshot::SynCookies;
use tidegate_core::source_lists::SourceLists;
use tidegate_core::source_rates::SourceRate;

use super::section::{scalar_text, section};
use crate::bounded_file::{self, FILE_BYTES_MAX};
use crate::diagnostic::{Diagnostic, Location};
use crate::yaml::{Field, Fields, text};

/// The validated `protection` section.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ProtectionConfig {
    /// `deny` and `allow`, from the configuration and from their files. Default none.
    pub sources: Arc<SourceLists>,
    /// The files of both lists, in the order written.
    pub files: Vec<PathBuf>,
    /// `newConnections`. Default no limit.
    pub new_connections: Option<SourceRate>,
    /// `synCookies`. Default auto.
    pub syn_cookies: SynCookies,
}

/// When SYN cookies are used unless configured.
pub(super) const SYN_COOKIES: SynCookies = SynCookies::Auto;

/// The values that [`syn_cookies`] accepts.
pub const SYN_COOKIES_ACCEPTED: &str = "off, auto, always";

/// The choice with this name.
#[must_use]
pub fn syn_cookies(word: &str) -> Option<SynCookies> {
    [SynCookies::Off, SynCookies::Auto, SynCookies::Always].into_iter().find(|one| one.as_str() == word)
}

/// Faults of one file that are reported; more would only repeat what is wrong with it.
const FAULTS_PER_FILE: usize = 20;

/// The accepted content of a line.
const LINE: &str = "an address or a CIDR such as 192.0.2.0/24 or 2001:db8::/64, or a comment after #";

/// The rates that are accepted, in new flows per second.
const RATE_MAX: i64 = 10_000_000;

pub(super) fn decode(parent: &Fields<'_>, base: &Path) -> ProtectionConfig {
    let mut config = ProtectionConfig::default();
    section(parent, "protection", |fields| {
        let deny = list(fields, "deny", base, &mut config.files);
        let allow = list(fields, "allow", base, &mut config.files);
        let count = deny.len() + allow.len();
        if count > LISTED_SOURCES_MAX {
            let what = format!("{count} prefixes in deny and allow");
            fields.itself().error(what, format!("at most {LISTED_SOURCES_MAX} together"));
        } else {
            config.sources = Arc::new(SourceLists::new(&deny, &allow));
        }
        config.new_connections = section(fields, "newConnections", new_connections);
        let chosen = fields.get("synCookies").and_then(|field| {
            // The text, because `off` is a boolean in YAML.
            let word = scalar_text(field.node).unwrap_or_default();
            let found = syn_cookies(word);
            if found.is_none() {
                field.error(format_args!("{word:?} is not valid"), SYN_COOKIES_ACCEPTED);
            }
            found
        });
        config.syn_cookies = chosen.unwrap_or(SYN_COOKIES);
        Some(())
    });
    config
}

/// The prefixes of `deny` or `allow`.
fn list(parent: &Fields<'_>, key: &'static str, base: &Path, files: &mut Vec<PathBuf>) -> Vec<IpNet> {
    let mut nets = Vec::new();
    section(parent, key, |fields| {
        nets.extend(fields.items("prefixes").iter().filter_map(prefix));
        for field in fields.items("files") {
            let Some(path) = field.string_where(|t| !t.trim().is_empty(), "the path of a file") else {
                continue;
            };
            let path = base.join(path);
            read(&field, &path, &mut nets);
            files.push(path);
        }
        Some(())
    });
    nets
}

/// A network, or an address as the network of one host.
fn prefix(field: &Field<'_>) -> Option<IpNet> {
    if field.string()?.contains('/') { field.network() } else { Some(field.ip()?.into()) }
}

/// Adds the prefixes of a file, and reports its faults with their lines.
fn read(field: &Field<'_>, path: &Path, nets: &mut Vec<IpNet>) {
    let text = match bounded_file::read(path, FILE_BYTES_MAX) {
        Ok(bytes) => bytes,
        Err(error) => {
            return field.error(format_args!("{} cannot be read: {error}", path.display()), error.accepted());
        }
    };
    let name: Arc<str> = path.to_string_lossy().into();
    let mut faults = 0;
    for (line, number) in text.split(|byte| *byte == b'\n').zip(1_u32..) {
        let fault = match std::str::from_utf8(line).map(parse_line) {
            Ok(Ok(net)) => {
                nets.extend(net);
                continue;
            }
            Ok(Err(fault)) => fault,
            Err(_) => "the line is not UTF-8".to_owned(),
        };
        faults += 1;
        if faults <= FAULTS_PER_FILE {
            let place = Location::new(Arc::clone(&name), number, 1);
            field.sheet.push(Diagnostic::error(fault).accepting(LINE).at(place));
        }
    }
    if faults > FAULTS_PER_FILE {
        field.error(format_args!("{} has {faults} lines with faults", path.display()), LINE);
    }
}

/// The prefix of a line, if it has one.
fn parse_line(line: &str) -> Result<Option<IpNet>, String> {
    let entry = line.split('#').next().unwrap_or_default().trim();
    if entry.is_empty() {
        return Ok(None);
    }
    let net = match entry.contains('/') {
        true => text::cidr(entry),
        false => entry.parse::<std::net::IpAddr>().ok().map(IpNet::from),
    };
    let net = net.map(text::unmapped).ok_or_else(|| format!("{entry:?} is not a prefix"))?;
    match net.trunc() == net {
        true => Ok(Some(net)),
        false => {
            Err(format!("{entry} has bits after its prefix: {} is meant, or a longer prefix", net.trunc()))
        }
    }
}

fn new_connections(fields: &Fields<'_>) -> Option<SourceRate> {
    let number = |key: &'static str, range: std::ops::RangeInclusive<i64>| {
        fields.get(key).and_then(|f| f.integer(range)).and_then(|n| u32::try_from(n).ok())
    };
    let per_second = number("perSecond", 1..=RATE_MAX);
    let burst = number("burst", 1..=RATE_MAX);
    let length =
        |key, range, default| number(key, range).and_then(|n| u8::try_from(n).ok()).unwrap_or(default);
    let (v4_len, v6_len) = (length("ipv4Prefix", 8..=32, 32), length("ipv6Prefix", 16..=64, 64));
    let Some(per_second) = per_second else {
        if !fields.is_empty() && fields.get("perSecond").is_none() {
            fields.itself().error("perSecond is missing", format!("perSecond: 1 to {RATE_MAX}"));
        }
        return None;
    };
    Some(SourceRate { per_second, burst: burst.unwrap_or(per_second), v4_len, v6_len })
}
