//! `protection`: the sources that the gateway refuses or always admits, and how many new flows a source may create.
//!
//! Lists are in the configuration, in files, or both. A file has a prefix or an address in each line. `#` or `;`
//! starts a comment, because published lists use either. Files are read together with the configuration, and a fault
//! in one is a fault of the configuration: the current lists stay in use until all files are valid. A starting
//! gateway uses the last valid copy of a file with a fault.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use ipnet::IpNet;
use tidegate_spec::limits::LISTED_SOURCES_MAX;
use tidegate_spec::source_lists::SourceLists;
use tidegate_spec::{SourceRate, SynCookies};
use tidegate_wire::Named;

use super::files::{Files, List};
use crate::bounded_file::{self, FILE_BYTES_MAX};
use crate::diagnostic::{Diagnostic, Location, Severity};
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

/// When SYN cookies are used by default.
pub(super) const SYN_COOKIES: SynCookies = SynCookies::Auto;

/// The maximum number of reported faults of one file. More would only repeat what is wrong with it.
const FAULTS_PER_FILE: usize = 20;

/// The accepted content of a line.
const LINE: &str = "an address or a CIDR such as 192.0.2.0/24 or 2001:db8::/64, or a comment after # or ;";

/// The maximum rate, in new flows per second.
const RATE_MAX: u32 = 10_000_000;

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> ProtectionConfig {
    let mut config = ProtectionConfig::default();
    parent.section("protection", |fields| {
        let deny = list(fields, "deny", files, &mut config.files);
        let allow = list(fields, "allow", files, &mut config.files);
        let count = deny.len() + allow.len();
        if count > LISTED_SOURCES_MAX {
            let what = format!("deny and allow have {count} prefixes in total");
            fields.itself().error(what, format!("at most {LISTED_SOURCES_MAX} prefixes in total"));
        } else {
            config.sources = Arc::new(SourceLists::new(&deny, &allow));
        }
        config.new_connections = fields.section("newConnections", new_connections).flatten();
        config.syn_cookies = fields.read("synCookies", syn_cookies).unwrap_or(SYN_COOKIES);
    });
    config
}

fn syn_cookies(field: &Field<'_>) -> Option<SynCookies> {
    let word = field.as_written().unwrap_or_default();
    let found = SynCookies::named(word);
    if found.is_none() {
        field.error(format_args!("{word:?} is not valid"), text::names::<SynCookies>());
    }
    found
}

/// The prefixes of `deny` or `allow`.
fn list(parent: &Fields<'_>, key: &'static str, files: &Files<'_>, named: &mut Vec<PathBuf>) -> Vec<IpNet> {
    let mut nets = Vec::new();
    parent.section(key, |fields| {
        nets.extend(fields.each("prefixes", prefix));
        for field in fields.items("files") {
            let Some(path) = field.not_blank("the path of a file") else { continue };
            let path = files.base.join(path);
            nets.extend(read(&field, &path, files));
            named.push(path);
        }
    });
    nets
}

/// A network, or an address as the network of one host.
fn prefix(field: &Field<'_>) -> Option<IpNet> {
    if field.string()?.contains('/') { field.network() } else { Some(field.ip()?.into()) }
}

/// Reads the prefixes of a file. Faults are reported with their lines. If there are any, the result is the prefixes
/// of the file's copy, or nothing without a copy.
fn read(field: &Field<'_>, path: &Path, files: &Files<'_>) -> Vec<IpNet> {
    let (faults, cut) = match bounded_file::read(path, FILE_BYTES_MAX) {
        Ok(contents) => match parse(&contents) {
            Ok(nets) => {
                if contents.last().is_some_and(|byte| *byte != b'\n') {
                    let what = format!(
                        "{} is used, but may have been cut off: it does not end with a line feed",
                        path.display()
                    );
                    field.warning(what, "a line feed after the last line");
                }
                files.lists.borrow_mut().push(List { path: path.to_owned(), contents });
                return nets;
            }
            Err(faults) => {
                let name: Arc<str> = path.to_string_lossy().into();
                let count = faults.len();
                let reported = faults.into_iter().take(FAULTS_PER_FILE).map(|(line, fault)| {
                    let location = Location::new(Arc::clone(&name), line, 1);
                    Diagnostic::error(fault).accepting(LINE).at(location)
                });
                let more = format!(
                    "{} has {count} lines with faults: only the first {FAULTS_PER_FILE} are reported",
                    path.display()
                );
                (reported.collect(), (count > FAULTS_PER_FILE).then(|| field.fault(more, LINE)))
            }
        },
        Err(error) => {
            let what = format!("{} cannot be read: {error}", path.display());
            (vec![field.fault(what, error.accepted())], None)
        }
    };
    let faults: Vec<Diagnostic> = faults.into_iter().chain(cut).collect();
    let copy = files.copy(path).and_then(|copy| parse(&copy).ok());
    let Some(nets) = copy else {
        files.count(faults.len());
        faults.into_iter().for_each(|fault| field.sheet.push(fault));
        return Vec::new();
    };
    for fault in faults {
        field.sheet.push(Diagnostic { severity: Severity::Warning, ..fault });
    }
    let what = format!(
        "{} cannot be used: the {} prefixes of its last valid version are used instead",
        path.display(),
        nets.len()
    );
    field.warning(what, "a readable file without errors, then SIGHUP");
    files.copied.borrow_mut().push(path.to_owned());
    nets
}

/// Parses the contents of a file into prefixes, or into its faults with their lines.
fn parse(contents: &[u8]) -> Result<Vec<IpNet>, Vec<(u32, String)>> {
    let (mut nets, mut faults) = (Vec::new(), Vec::new());
    // Some editors start a file with a byte order mark, which is not part of its first line.
    let contents = contents.strip_prefix("\u{feff}".as_bytes()).unwrap_or(contents);
    for (line, number) in contents.split(|byte| *byte == b'\n').zip(1_u32..) {
        match std::str::from_utf8(line).map(parse_line) {
            Ok(Ok(net)) => nets.extend(net),
            Ok(Err(fault)) => faults.push((number, fault)),
            Err(_) => faults.push((number, "the line is not UTF-8".to_owned())),
        }
    }
    if faults.is_empty() { Ok(nets) } else { Err(faults) }
}

/// Parses a line into its prefix, if it has one.
fn parse_line(line: &str) -> Result<Option<IpNet>, String> {
    let entry = line.split(['#', ';']).next().unwrap_or_default().trim();
    if entry.is_empty() {
        return Ok(None);
    }
    let net = match entry.contains('/') {
        true => text::cidr(entry),
        false => entry.parse::<std::net::IpAddr>().ok().map(IpNet::from),
    };
    let net = net.map(text::unmapped).ok_or_else(|| format!("{entry:?} is not an address or a prefix"))?;
    match net.trunc() == net {
        true => Ok(Some(net)),
        false => Err(format!("{entry} has host bits set: write {} or a longer prefix", net.trunc())),
    }
}

fn new_connections(fields: &Fields<'_>) -> Option<SourceRate> {
    let per_second = fields.read("perSecond", |f| f.integer(1..=RATE_MAX));
    let burst = fields.read("burst", |f| f.integer(1..=RATE_MAX));
    let (mut v4_len, mut v6_len) = (32, 64);
    fields.set("ipv4Prefix", &mut v4_len, |f| f.integer(8..=32));
    fields.set("ipv6Prefix", &mut v6_len, |f| f.integer(16..=64));
    let Some(per_second) = per_second else {
        if !fields.is_empty() && fields.get("perSecond").is_none() {
            fields.itself().error("perSecond is missing", format!("perSecond: 1 to {RATE_MAX}"));
        }
        return None;
    };
    Some(SourceRate { per_second, burst: burst.unwrap_or(per_second), v4_len, v6_len })
}
