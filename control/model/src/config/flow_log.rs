//! `flowLog`: which flows are logged, and where the log is written.

use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::path::PathBuf;

use super::files::Files;
use crate::yaml::Fields;

/// The validated `flowLog` section. Without an output there is no log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowLogConfig {
    /// `services` and `sample`, the default for Services.
    pub defaults: FlowLogDefaults,
    /// `file`: the file of JSON lines.
    pub file: Option<FlowLogFile>,
    /// `ipfix`: the collector.
    pub ipfix: Option<FlowLogCollector>,
}

/// Which Services are logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowLogDefaults {
    /// `services`: whether Services without an annotation are logged. Default no.
    pub all_services: bool,
    /// `sample`: one in this many flows is logged. Default 1.
    pub sample: NonZeroU16,
}

/// The validated `flowLog.file` section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlowLogFile {
    /// `path`.
    pub path: PathBuf,
    /// `maxSizeMiB`: the size at which it is renamed. Default 100.
    pub size_max_mib: u32,
}

/// The validated `flowLog.ipfix` section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FlowLogCollector {
    /// `collector`: its address and UDP port.
    pub address: SocketAddr,
    /// `domain`: the observation domain. Default 0.
    pub domain: u32,
}

impl Default for FlowLogConfig {
    fn default() -> Self {
        let defaults = FlowLogDefaults { all_services: false, sample: NonZeroU16::MIN };
        Self { defaults, file: None, ipfix: None }
    }
}

impl FlowLogConfig {
    /// Which Services are logged; `None` without an output.
    #[must_use]
    pub fn enabled(&self) -> Option<FlowLogDefaults> {
        (self.file.is_some() || self.ipfix.is_some()).then_some(self.defaults)
    }
}

/// The values of the annotation that [`flow_log`] accepts.
pub const FLOW_LOG_ACCEPTED: &str =
    "\"true\", \"false\", or the logged part of the flows, from \"1/1\" to \"1/65535\"";

/// What a Service requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FlowLogRequest {
    /// No log.
    Off,
    /// A log with the sample of the gateway.
    On,
    /// A log of one in this many flows.
    Sampled(NonZeroU16),
}

/// Reads what a Service requests.
#[must_use]
pub fn flow_log(word: &str) -> Option<FlowLogRequest> {
    match word {
        "true" => Some(FlowLogRequest::On),
        "false" => Some(FlowLogRequest::Off),
        _ => {
            let (one, every) = word.split_once('/')?;
            let every: NonZeroU16 = every.trim().parse().ok()?;
            (one.trim() == "1").then_some(FlowLogRequest::Sampled(every))
        }
    }
}

pub(super) fn decode(parent: &Fields<'_>, files: &Files<'_>) -> FlowLogConfig {
    let mut config = FlowLogConfig::default();
    parent.section("flowLog", |fields| {
        let whose = [("annotated", false), ("all", true)];
        fields.set("services", &mut config.defaults.all_services, |f| f.one_of(&whose));
        fields.set("sample", &mut config.defaults.sample, |f| NonZeroU16::new(f.integer(1..=u16::MAX)?));
        config.file = fields.section("file", |fields| file(fields, files)).flatten();
        config.ipfix = fields.section("ipfix", collector).flatten();
        if fields.get("file").is_none() && fields.get("ipfix").is_none() {
            fields.itself().error("the log is written nowhere", "flowLog.file, flowLog.ipfix, or both");
        }
    });
    config
}

fn file(fields: &Fields<'_>, files: &Files<'_>) -> Option<FlowLogFile> {
    let accepted = "the path of a file";
    let mut size_max_mib = 100;
    fields.set("maxSizeMiB", &mut size_max_mib, |f| f.integer(1..=1_048_576));
    let path = fields.required("path", accepted)?;
    let path = path.string_where(|t| !t.trim().is_empty() && !t.contains('\0'), accepted)?;
    Some(FlowLogFile { path: files.base.join(path.trim()), size_max_mib })
}

fn collector(fields: &Fields<'_>) -> Option<FlowLogCollector> {
    let accepted = "the address and UDP port of a collector, such as 192.0.2.9:4739 or [2001:db8::9]:4739";
    let mut domain = 0;
    fields.set("domain", &mut domain, |f| f.integer(0..=u32::MAX));
    let read =
        |text: &str| text.parse().ok().filter(|at: &SocketAddr| at.port() != 0 && !at.ip().is_unspecified());
    let address = fields.required("collector", accepted)?.parsed(read, accepted)?;
    Some(FlowLogCollector { address, domain })
}
