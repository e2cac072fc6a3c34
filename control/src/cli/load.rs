//! Loads configuration and manifests for `check`, `replay` and `explain -c`: offline, with every backend healthy.
//!
//! It reads the files, reconciles and compiles once, and collects the faults of all stages in one report. The daemon
//! does the same with additional inputs: link addresses of its ports, health, drains.
//!
//! Invariant: the result depends only on the files, not on the order of the files or of the objects in them.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidegate_model::config::{self, GatewayConfig, SourceConfig};
use tidegate_model::diagnostic::{Diagnostic, Location, Report};
use tidegate_model::health::Verdicts;
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_policy::cross_check;
use tidegate_policy::gateway_api::GatewayApi;
use tidegate_policy::reconcile::{DscpConflicts, Finding, Input, Memory, Outcome, Reason, reconcile};
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::neighbors::NeighborTable;
use tidegate_source::directory::DirectorySource;
use tidegate_source::kubernetes;
use tidegate_spec::{BackendProblem, CompileError, Problem, SnapshotSpec};

use crate::assemble;

/// The result of loading the files.
pub(super) struct Offline {
    /// The configuration, if it is valid. Queries need it.
    pub(super) config: Option<GatewayConfig>,
    /// The valid objects.
    pub(super) objects: Arc<Objects>,
    /// The desired state, if there is a configuration.
    pub(super) outcome: Option<Outcome>,
    /// Every fault of configuration, manifests and desired state.
    pub(super) report: Report,
}

/// Loads the configuration at `path` and its manifests.
pub(super) fn offline(path: &Path) -> Offline {
    let loaded = config::load(path);
    let mut report = loaded.report;
    let objects = match &loaded.source {
        Some(SourceConfig::Directory(directory)) => {
            let (objects, faults) = DirectorySource::load_within(
                &directory.path,
                directory.endpoint_slices_mib,
                directory.gateway_api,
            );
            report.merge(&faults);
            objects
        }
        Some(SourceConfig::Kubernetes(server)) => {
            let gateway = loaded.config.as_ref().map_or("gateway", |config| &config.name);
            let (objects, faults) = kubernetes::load(server, gateway);
            // Faults of objects name the object; faults of the connection name the key of the configuration.
            let origin = loaded.config.as_ref().map(|config| &config.origin);
            let place = origin.and_then(|origin| origin.field("source.kubernetes.kubeconfig"));
            let place = place.unwrap_or_else(|| Location::start_of(path.to_string_lossy().as_ref()));
            report.extend(faults.iter().cloned().map(|mut fault| {
                fault.location.get_or_insert_with(|| place.clone());
                fault
            }));
            objects
        }
        None => Objects::default(),
    };
    let mut gateway_api = GatewayApi::default();
    let objects = gateway_api.derive(&Arc::new(objects));
    report.extend(gateway_api.findings().iter().map(|finding| finding.diagnostic.clone()));
    let outcome = loaded.config.as_ref().map(|config| {
        let outcome = reconcile_offline(config, &objects);
        report.extend(outcome.findings.iter().map(|f| f.diagnostic.clone()));
        report.extend(notes(&objects, &outcome));
        report.extend(cross_check::faults(config, &objects, &outcome));
        report.merge(&compile_report(config, &objects, &outcome.spec));
        outcome
    });
    if let Some(draft) = &loaded.draft {
        let findings = reconcile_offline(draft, &objects).findings;
        let of_own_text = findings.iter().filter(|finding| is_of_own_text(finding));
        report.extend(of_own_text.map(|finding| finding.diagnostic.clone()));
    }
    Offline { config: loaded.config, objects, outcome, report }
}

/// Whether a finding is about the text of an object. Without a valid configuration, other findings are meaningless: for
/// example, a faulty pool has no addresses.
fn is_of_own_text(finding: &Finding) -> bool {
    matches!(finding.reason, Reason::InvalidValue | Reason::NotSupported | Reason::AliasIgnored)
}

/// Notes that are not findings: ports without a backend because of their traffic policy, which is normal on most nodes
/// with policy Local; and backends of `dsr-dscp` that cannot distinguish two VIPs.
fn notes(objects: &Objects, outcome: &Outcome) -> Vec<Diagnostic> {
    let mut notes = Vec::new();
    for view in &outcome.services {
        let key = ObjectKey::new(view.namespace.as_str(), view.name.as_str());
        let place =
            objects.services.get(&key).and_then(|s| s.meta.origin.field("spec.externalTrafficPolicy"));
        for port in &view.ports {
            let Some(note) = &port.note else { continue };
            let (number, protocol, vip) = (port.port, &port.protocol, port.vip);
            let what = format!("{number}/{protocol} of Service {key} on {vip} has no backend: {note}");
            let accepted = "endpoints on the gateway's node, or policy Cluster";
            notes.push(Diagnostic::warning(what).accepting(accepted).at(place.clone()));
        }
    }
    let mut conflicts = DscpConflicts::default();
    let conflicts = conflicts.among(&outcome.spec.services).iter();
    notes.extend(conflicts.map(|conflict| conflict.finding(objects).diagnostic));
    notes
}

/// The desired state of a gateway that has just started, with every backend healthy.
fn reconcile_offline(config: &GatewayConfig, objects: &Objects) -> Outcome {
    reconcile(&Input {
        settings: &assemble::settings(config, assemble::offline_interfaces(config)),
        objects,
        verdicts: &Verdicts::default(),
        drained: &BTreeSet::new(),
        memory: &Memory::default(),
        generation: 1,
        now: Duration::ZERO,
    })
}

/// Reports the problems found while compiling the spec, each with the position of its Service or key.
fn compile_report(config: &GatewayConfig, objects: &Objects, spec: &SnapshotSpec) -> Report {
    match Snapshot::compile(spec, None, &NeighborTable::new()) {
        Ok((_, problems)) => problems.iter().map(|p| problem(config, objects, spec, p)).collect(),
        Err(error) => [compile_error(config, objects, spec, &error)].into_iter().collect(),
    }
}

/// Reports one problem. It is an error because a requested part is missing, although the rest still works.
fn problem(config: &GatewayConfig, objects: &Objects, spec: &SnapshotSpec, problem: &Problem) -> Diagnostic {
    let place = match problem {
        Problem::Backend { service, .. }
        | Problem::TableTooSmall { service, .. }
        | Problem::WeightsDivided { service, .. } => service_place(objects, spec, *service),
        Problem::RouterOffLink { to, .. }
        | Problem::RouteShadowed { to, .. }
        | Problem::RouterTableFull { to, .. } => {
            let at = config.dataplane.network.routes.iter().position(|r| r.to == *to);
            at.and_then(|n| config.origin.field(&format!("dataplane.routes[{n}]")))
        }
        Problem::NeighborOffLink { ip } | Problem::NeighborTableFull { ip } => {
            let at = config.dataplane.network.neighbors.iter().position(|n| n.ip == *ip);
            at.and_then(|n| config.origin.field(&format!("dataplane.neighbors[{n}]")))
        }
    };
    let diagnostic = match problem {
        Problem::RouteShadowed { .. } | Problem::WeightsDivided { .. } => {
            Diagnostic::warning(problem.to_string())
        }
        _ => Diagnostic::error(problem.to_string()),
    };
    diagnostic.accepting(remedy(problem)).at(place)
}

fn remedy(problem: &Problem) -> &'static str {
    match problem {
        Problem::Backend { reason, .. } => backend_remedy(reason),
        Problem::TableTooSmall { .. } => {
            "a larger prime in tidegate.dev/table-size, or tidegate.dev/scheduler rendezvous"
        }
        Problem::WeightsDivided { .. } => "smaller weights in the same proportion",
        Problem::RouterOffLink { .. } => "a router in a network of dataplane.interfaces[].addresses",
        Problem::RouteShadowed { .. } => "no route: the network is on-link",
        Problem::NeighborOffLink { .. } => "a neighbour in a network of dataplane.interfaces[].addresses",
        Problem::RouterTableFull { .. } | Problem::NeighborTableFull { .. } => "fewer next hops",
    }
}

fn backend_remedy(reason: &BackendProblem) -> &'static str {
    match reason {
        BackendProblem::NoRoute => {
            "a backend in a network of an interface, or behind one of dataplane.routes"
        }
        BackendProblem::NotOnLink => "a backend in a network of an interface, or another forwarding mode",
        BackendProblem::PortDiffers { .. } => "a targetPort equal to the port, or forwarding nat or fullnat",
        BackendProblem::FamilyDiffers { .. } => "a backend of the VIP's address family, or a tunnel mode",
        BackendProblem::NoSnatAddress => "an address of the backend's family in dataplane.snatAddresses",
        BackendProblem::NoTunnelSource => "an address of the backend's family in dataplane.tunnelSource",
        BackendProblem::AddressIsOurs => "the address of another host",
        BackendProblem::PortZero => "a port from 1 to 65535",
        BackendProblem::NeighborTableFull => "fewer next hops",
    }
}

fn compile_error(
    config: &GatewayConfig,
    objects: &Objects,
    spec: &SnapshotSpec,
    error: &CompileError,
) -> Diagnostic {
    let place = match error {
        CompileError::TooManyBackends { service, .. }
        | CompileError::TooManySourceRanges { service, .. }
        | CompileError::DuplicateService { service }
        | CompileError::DuplicateBackend { service, .. }
        | CompileError::ServicePortZero { service }
        | CompileError::RejectedShare { service, .. }
        | CompileError::TableSize { service, .. } => service_place(objects, spec, *service),
        CompileError::TooMany { .. }
        | CompileError::Vlan { .. }
        | CompileError::DuplicateAddress { .. }
        | CompileError::DuplicateNeighbor { .. }
        | CompileError::DuplicateRoute { .. } => config.origin.field("dataplane"),
    };
    Diagnostic::error(error.to_string()).at(place)
}

/// The position where a service port is defined: its port, or else its object.
fn service_place(objects: &Objects, spec: &SnapshotSpec, key: tidegate_spec::ServiceKey) -> Option<Location> {
    let found = spec.services.iter().find(|s| s.key == key)?;
    let object = tidegate_model::objects::ObjectKey::new(found.namespace.clone(), found.name.clone());
    let service = objects.services.get(&object)?;
    let port = service.ports.iter().position(|p| p.port.get() == key.port && p.label() == found.port_name);
    service.meta.origin.field(&port.map_or_else(|| "spec".to_owned(), |n| format!("spec.ports[{n}]")))
}
