//! `gateway.yaml`: the configuration of this gateway, decoded and validated as a whole.
//!
//! [`load`] reads a file and [`parse`] a text; both report every fault. The raw form is the YAML tree. The validated
//! form is [`GatewayConfig`], which needs no further checks. Each section has its own module. The comment of a field
//! names its key, and [`keys`] describes it for operators.
//!
//! Nothing here reads devices, addresses of the host or manifests. The result depends only on the file, the files that
//! it names (or their copies) and their permissions, the variables that `expand` reads from the environment, and the
//! number of cores, which determines the default of `dataplane.idle`.
//!
//! Invariant: a configuration exists only if its report has no error.

mod admin;
mod announce;
mod cross_checks;
mod dataplane;
mod drain;
mod expand;
mod files;
mod flow_log;
mod flow_sharing;
mod gateway;
mod health;
pub mod keys;
mod layer2;
mod listen;
mod page;
mod passive_health;
mod pools;
mod protection;
mod selection_key;
mod self_check;
mod services;
mod source;
mod tunnels;

#[cfg(test)]
mod tests;

pub use admin::{AdminConfig, EventsConfig, EventsDirectory};
pub use announce::{AnnounceConfig, BgpConfig, KernelRoutes, Peer, Secret};
pub use dataplane::{DataplaneConfig, Idle, Interface, Memory};
pub use drain::DrainConfig;
pub use files::{List, copies, copy_of};
pub use flow_log::{
    FLOW_LOG_ACCEPTED, FlowLogCollector, FlowLogConfig, FlowLogDefaults, FlowLogFile, FlowLogRequest,
    flow_log,
};
pub use flow_sharing::{FlowSharing, FlowSharingConfig, FlowSharingKey, reaches};
pub use gateway::{GatewayConfig, NodeConfig};
pub use health::{
    DsrDestination, HEALTH_INTERVAL, HEALTH_PATH_ACCEPTED, HEALTH_PROTOCOLS_LATER, HEALTH_THRESHOLD,
    HEALTH_TIMEOUT, HealthConfig, HealthProtocol, health_path,
};
pub use layer2::{Layer2Config, Layer2Mode, LeaseConfig, VrrpConfig};
pub use page::{PageConfig, PageToken};
pub use passive_health::{PASSIVE_HEALTH_ACCEPTED, passive_health};
pub use pools::{pool, selector};
pub use protection::ProtectionConfig;
pub use self_check::SelfCheckConfig;
pub use services::{
    FlowTracking, ForwardingMode, HashInput, MSS_CLAMP_ACCEPTED, MssClamp, NoEndpoints, OtherFamily,
    PodRoutes, SCHEDULER_ACCEPTED, SLOW_START_ACCEPTED, Scheduler, ServiceDefaults, ServicesConfig, Target,
    VENDORS, mss_clamp, scheduler, slow_start, table_size,
};
pub use source::{
    DirectoryConfig, ENDPOINT_SLICES_MIB, GatewayApi, KubernetesConfig, LOAD_BALANCER_CLASS, SourceConfig,
};
pub use tunnels::{
    DSCP_ACCEPTED, GENEVE_VNI_ACCEPTED, GRE_KEY_ACCEPTED, GUE_VARIANT_ACCEPTED, TUNNEL_PORT_ACCEPTED, dscp,
    geneve_vni, gre_key, gue_variant, tunnel_port,
};

use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::bounded_file::{self, FILE_BYTES_MAX};
use crate::diagnostic::{Diagnostic, Location, Report};
use crate::objects::Labels;
use crate::yaml::{Field, Node, Sheet, Unknown, text};
use cross_checks::Check;
use files::Files;

/// `apiVersion` of the configuration.
pub const API_VERSION: &str = "tidegate.dev/v1alpha1";
/// `kind` of the configuration.
pub const KIND: &str = "GatewayConfig";

/// The result of reading a configuration.
#[derive(Debug, Default)]
pub struct Loaded {
    /// The configuration, if there was no error.
    pub config: Option<GatewayConfig>,
    /// A configuration with errors, in which keys with a fault have their defaults. It is only used to report on the
    /// objects.
    pub draft: Option<GatewayConfig>,
    /// The source of the objects, if that section is valid, so that manifests can be checked although the
    /// configuration has faults elsewhere.
    pub source: Option<SourceConfig>,
    /// All faults.
    pub report: Report,
    /// The lists of `protection` that have no fault.
    pub lists: Vec<List>,
    /// The lists with faults whose copies are used.
    pub copied: Vec<PathBuf>,
    /// Whether all errors are about files that the configuration names, and none about its own text.
    pub only_files_refused: bool,
}

impl Loaded {
    /// The result for a file that cannot be read.
    fn unreadable(fault: Diagnostic) -> Self {
        Self { report: [fault].into_iter().collect(), ..Self::default() }
    }
}

/// Whether the copies of lists in the daemon's state directory may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Copies {
    Used,
    Ignored,
}

/// Reads and checks the file at `path`. An unreadable file is a fault in the report.
pub fn load(path: &Path) -> Loaded {
    load_with(path, Copies::Ignored)
}

/// Like [`load`], for a starting gateway: a list of `protection` with a fault is replaced with its copy in the state
/// directory, if there is one, and its faults become warnings.
pub fn load_at_start(path: &Path) -> Loaded {
    load_with(path, Copies::Used)
}

fn load_with(path: &Path, copies: Copies) -> Loaded {
    let shown = path.to_string_lossy();
    let base = path.parent().unwrap_or(Path::new(""));
    match bounded_file::read_text(path, FILE_BYTES_MAX) {
        Ok(text) => {
            let cores = std::thread::available_parallelism().map_or(1, NonZeroUsize::get);
            let own = Some((path, text.as_str()));
            parse_in(&|name| std::env::var(name).ok(), copies, own, &text, &shown, base, cores)
        }
        Err(fault) => Loaded::unreadable(fault),
    }
}

/// Checks the text of a configuration.
///
/// `file` is the name of the file in messages. Relative paths in the text are relative to `base`. `host_cores`
/// determines the default of `dataplane.idle`.
pub fn parse(text: &str, file: &str, base: &Path, host_cores: usize) -> Loaded {
    parse_in(&|name| std::env::var(name).ok(), Copies::Ignored, None, text, file, base, host_cores)
}

fn parse_in(
    environment: &dyn Fn(&str) -> Option<String>,
    copies: Copies,
    own: Option<(&Path, &str)>,
    text: &str,
    file: &str,
    base: &Path,
    host_cores: usize,
) -> Loaded {
    let sheet = Sheet::new(file);
    let mut documents = sheet.documents(text);
    if let Some(root) = documents.first_mut() {
        expand::expand(&sheet, root, environment);
    }
    if let Some(second) = documents.get(1) {
        sheet.error(second.at, "the file has a second document", "one GatewayConfig in each file");
    }
    let mut files = Files::new(base);
    files.own = own;
    let decoded = match documents.first() {
        Some(root) => decode(&sheet, root, &mut files, copies, host_cores),
        None => {
            if sheet.errors() == 0 {
                sheet.push(
                    Diagnostic::error("the file contains no configuration")
                        .accepting(format!("a document with apiVersion: {API_VERSION} and kind: {KIND}"))
                        .at(Location::start_of(file)),
                );
            }
            None
        }
    };
    let (config, source) = decoded.unzip();
    let only_files_refused = sheet.errors() > 0 && sheet.errors() == files.errors.get();
    let report = sheet.into_report();
    let (config, draft) = if report.has_errors() { (None, config) } else { (config, None) };
    Loaded {
        config,
        draft,
        source: source.flatten(),
        report,
        lists: files.lists.into_inner(),
        copied: files.copied.into_inner(),
        only_files_refused,
    }
}

/// Decodes all sections, then checks the rules across them. Keys with a fault have their defaults, so the result is
/// valid only if the sheet has no error.
fn decode(
    sheet: &Sheet,
    root: &Node,
    files: &mut Files<'_>,
    copies: Copies,
    host_cores: usize,
) -> Option<(GatewayConfig, Option<SourceConfig>)> {
    let base = files.base;
    let document = Field::document(sheet, root);
    let fields = document.fields()?;
    for (key, accepted) in [("apiVersion", API_VERSION), ("kind", KIND)] {
        fields.required(key, accepted).and_then(|field| field.one_of(&[(accepted, ())]));
    }
    let (mut name, mut labels) = ("gateway".to_owned(), Labels::new());
    fields.section("metadata", |metadata| {
        metadata.set("name", &mut name, |f| f.owned_where(text::is_rfc1123_subdomain, NAME));
        metadata.set("labels", &mut labels, |f| Some(pools::valid_labels(f)));
    });
    let node = fields.section("node", |node| {
        let text = |key| node.read(key, Field::string).filter(|text| !text.is_empty()).map(str::to_owned);
        NodeConfig { name: text("name"), zone: text("zone") }
    });
    let source = source::decode(&fields, files);
    let mut dataplane = dataplane::decode(&fields, host_cores);
    let services = services::decode(&fields, &mut dataplane.network.policy);
    if copies == Copies::Used {
        let default = SourceConfig::default_in(base);
        let state = source.as_ref().unwrap_or(&default).state_directory();
        files.copies = state.map(|state| files::copies(state, &name));
    }
    let protection = protection::decode(&fields, files);
    dataplane.network.sources = Arc::clone(&protection.sources);
    dataplane.network.source_rate = protection.new_connections;
    dataplane.network.policy.syn_cookies = protection.syn_cookies;
    dataplane.network.policy.selection_key = selection_key::decode(&fields, files);
    let pools = pools::decode(&fields);
    let config = GatewayConfig {
        name,
        labels,
        node: node.unwrap_or_default(),
        dataplane,
        source: source.clone().unwrap_or_else(|| SourceConfig::default_in(base)),
        services,
        protection,
        pools,
        health: health::decode(&fields),
        announce: announce::decode(&fields, files),
        drain: drain::decode(&fields),
        admin: admin::decode(&fields, files),
        self_check: self_check::decode(&fields),
        flow_sharing: flow_sharing::decode(&fields, files),
        flow_log: flow_log::decode(&fields, files),
        origin: sheet.origin(root),
    };
    fields.finish(Unknown::Refused);
    let check = Check { sheet, config: &config };
    cross_checks::check(&check);
    announce::check(&check);
    Some((config, source))
}

const NAME: &str = "a name of a-z, 0-9, - and . (RFC 1123)";
