//! Converts the resources of other load balancers to `gateway.yaml` and AddressPools, and Services to Gateways.
//!
//! [`convert`] reads an [`Input`] and returns the result with a report ([`Note`]): each field of the input is either
//! converted, or reported with its position. What an API server adds (`status` and a part of `metadata`) is not
//! input. Neither are the fields of Services beside another load balancer, because the gateway reads Services itself.
//!
//! [`metallb`], [`kube_vip`] and [`cilium`] know one load balancer each and build a draft of the result; `draft` writes
//! it. [`gateways`] converts Services. Pure: nothing here reads files or connects to an API server.
//!
//! Invariant: secrets of the input, such as passwords, are in no output.
//!
//! May depend on: `tidegate-model`. May not: an API server, the commands, the daemon.

mod addresses;
mod bgp;
mod cilium;
mod draft;
mod gateways;
mod kube_vip;
mod metallb;
mod note;
mod object;
mod selector;
mod services;

use serde_json::Value;
use tidegate_model::diagnostic::{Diagnostic, Report};
use tidegate_model::named;
use tidegate_model::yaml::emit;

pub use note::{Note, NoteKind};
pub use object::Input;

use note::Notes;

named! {
    /// A load balancer whose resources can be converted, or Kubernetes with its Services.
    pub enum Vendor {
        /// MetalLB.
        MetalLb => "metallb",
        /// kube-vip, with its cloud provider.
        KubeVip => "kube-vip",
        /// Cilium: LB IPAM, L2 announcements and the BGP control plane.
        Cilium => "cilium",
        /// Kubernetes: Services of type LoadBalancer, which become Gateways and routes.
        Kubernetes => "services",
    }
}

impl Vendor {
    /// The paths of its resources at an API server. If there are several versions of a kind, the first that the server
    /// has is the one to read.
    #[must_use]
    pub fn paths(self) -> &'static [&'static [&'static str]] {
        match self {
            Self::MetalLb => metallb::PATHS,
            Self::KubeVip => kube_vip::PATHS,
            Self::Cilium => cilium::PATHS,
            Self::Kubernetes => gateways::PATHS,
        }
    }
}

/// The result of a conversion.
#[derive(Debug)]
pub struct Imported {
    /// Names and texts of the files: `gateway.yaml` without the sections of the machine (`metadata`, `dataplane`) and
    /// `pools.yaml`, if there are pools; or `gateways.yaml`.
    pub files: Vec<(&'static str, String)>,
    /// How much was converted, such as `pools 1, BGP peers 0`.
    pub summary: String,
    /// What the operator must know, sorted by position.
    pub notes: Vec<Note>,
}

/// Converts the resources of a load balancer.
///
/// ```
/// use tidegate_import::{Input, Vendor, convert};
/// let mut input = Input::default();
/// let pool = "{apiVersion: metallb.io/v1beta1, kind: IPAddressPool, metadata: {name: a}, spec: SPEC}";
/// input.file("a.yaml", &pool.replace("SPEC", "{addresses: [192.0.2.0/28], autoAssign: false}"));
/// let imported = convert(Vendor::MetalLb, input).expect("it has no errors");
/// let (name, pools) = &imported.files[1];
/// assert!(*name == "pools.yaml" && pools.contains("autoAssign: false"), "{pools}");
/// ```
///
/// # Errors
/// All faults of the input, if it has an error.
pub fn convert(vendor: Vendor, input: Input) -> Result<Imported, Report> {
    let notes = Notes::default();
    let objects = input.objects();
    let (annotations, draft) = match vendor {
        Vendor::MetalLb => (&metallb::ANNOTATIONS, metallb::convert(&objects, &notes)),
        Vendor::KubeVip => (&kube_vip::ANNOTATIONS, kube_vip::convert(&objects, &notes)),
        Vendor::Cilium => (&cilium::ANNOTATIONS, cilium::convert(&objects, &notes)),
        Vendor::Kubernetes => {
            let converted = gateways::convert(&objects, &notes);
            drop(objects);
            return to_gateways(&converted, input.into_report(), notes);
        }
    };
    services::report(annotations, &objects, &notes);
    drop(objects);
    let mut report = input.into_report();
    let written = draft.write(vendor.as_str(), &mut report);
    let what = format!("there is no resource of {vendor} that can be converted");
    let accepted = "pools, BGP peers, or announcements of addresses";
    let mut notes = accepted_notes(report, notes, || {
        draft.is_empty().then(|| Diagnostic::error(what).accepting(accepted))
    })?;
    notes.extend(draft.unannounced());
    let gateway = HEAD.replace("VENDOR", vendor.as_str()) + &yaml(&written.gateway);
    let mut files = vec![("gateway.yaml", gateway)];
    if !written.pools.is_empty() {
        files.push(("pools.yaml", documents(&written.pools)));
    }
    let summary = format!("pools {}, BGP peers {}", draft.pools.len(), draft.bgp.peers.len());
    Ok(Imported { files, summary, notes: sorted(notes) })
}

/// The result of a conversion to Gateways.
fn to_gateways(converted: &gateways::Converted, report: Report, notes: Notes) -> Result<Imported, Report> {
    let nothing = || Diagnostic::error("there is no Service that can be converted");
    let accepted = "Services of type LoadBalancer with a TCP or UDP port";
    let is_empty = converted.gateways == 0;
    let notes = accepted_notes(report, notes, || is_empty.then(|| nothing().accepting(accepted)))?;
    let summary = format!("Gateways {}, routes {}", converted.gateways, converted.routes);
    let files = vec![("gateways.yaml", HEAD_OF_GATEWAYS.to_owned() + &documents(&converted.manifests))];
    Ok(Imported { files, summary, notes: sorted(notes) })
}

/// The notes, and the warnings of the report as notes; or the report, if it has an error or nothing was converted.
fn accepted_notes(
    mut report: Report,
    notes: Notes,
    nothing: impl FnOnce() -> Option<Diagnostic>,
) -> Result<Vec<Note>, Report> {
    if !report.has_errors() {
        report.extend(nothing());
    }
    if report.has_errors() {
        return Err(report);
    }
    let mut notes = notes.into_notes();
    notes.extend(report.warnings().filter_map(|warning| {
        let location = warning.location.clone()?;
        Some(Note { location, kind: NoteKind::Decide, what: warning.what.clone() })
    }));
    Ok(notes)
}

fn sorted(mut notes: Vec<Note>) -> Vec<Note> {
    notes.sort_unstable();
    notes.dedup();
    notes
}

fn yaml(value: &Value) -> String {
    emit::to_string(value).expect("keys are text")
}

fn documents(values: &[Value]) -> String {
    values.iter().map(yaml).collect::<Vec<_>>().join("---\n")
}

/// The comment at the beginning of `gateway.yaml`.
const HEAD: &str = "\
# Converted by `tidegate import VENDOR`. Add the sections `metadata` and `dataplane` of this gateway, then run
# `tidegate check -c gateway.yaml`. docs/guide/11-migrating.md describes how to move without an interruption.
";

/// The comment at the beginning of `gateways.yaml`.
const HEAD_OF_GATEWAYS: &str = "\
# Converted by `tidegate import services`. docs/gateway-api.md describes how to move from Services to Gateways.
";
