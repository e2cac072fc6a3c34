//! Converts the resources of other load balancers to `gateway.yaml` and AddressPools.
//!
//! [`convert`] reads an [`Input`] and returns the result with a report ([`Note`]): each field of the input is either
//! converted, or reported with its position. What an API server adds (`status` and a part of `metadata`) is not
//! input, and neither are the fields of Services, because the gateway reads Services itself.
//!
//! [`metallb`], [`kube_vip`] and [`cilium`] know one load balancer each and build a draft of the result; `draft` writes
//! it. Pure: nothing here reads files or connects to an API server.
//!
//! Invariant: secrets of the input, such as passwords, are in no output.
//!
//! May depend on: `tidegate-model`. May not: an API server, the commands, the daemon.

mod addresses;
mod bgp;
mod cilium;
mod draft;
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
    /// A load balancer whose resources can be converted.
    pub enum Vendor {
        /// MetalLB.
        MetalLb => "metallb",
        /// kube-vip, with its cloud provider.
        KubeVip => "kube-vip",
        /// Cilium: LB IPAM, L2 announcements and the BGP control plane.
        Cilium => "cilium",
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
        }
    }
}

/// The result of a conversion.
#[derive(Debug)]
pub struct Imported {
    /// `gateway.yaml` without the sections of the machine (`metadata`, `dataplane`).
    pub gateway: String,
    /// The manifests of the AddressPools.
    pub pools: String,
    /// The numbers of pools and of BGP peers.
    pub counts: (usize, usize),
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
/// assert!(imported.pools.contains("autoAssign: false"), "{}", imported.pools);
/// ```
///
/// # Errors
/// All faults of the input, if it has an error.
pub fn convert(vendor: Vendor, input: Input) -> Result<Imported, Report> {
    let notes = Notes::default();
    let draft = {
        let objects = input.objects();
        let (annotations, draft) = match vendor {
            Vendor::MetalLb => (&metallb::ANNOTATIONS, metallb::convert(&objects, &notes)),
            Vendor::KubeVip => (&kube_vip::ANNOTATIONS, kube_vip::convert(&objects, &notes)),
            Vendor::Cilium => (&cilium::ANNOTATIONS, cilium::convert(&objects, &notes)),
        };
        services::report(annotations, &objects, &notes);
        draft
    };
    let mut report = input.into_report();
    let written = draft.write(vendor.as_str(), &mut report);
    if !report.has_errors() && draft.is_empty() {
        let what = format!("there is no resource of {vendor} that can be converted");
        report.push(Diagnostic::error(what).accepting("pools, BGP peers, or announcements of addresses"));
    }
    if report.has_errors() {
        return Err(report);
    }
    let mut notes = notes.into_notes();
    notes.extend(report.warnings().filter_map(|warning| {
        let location = warning.location.clone()?;
        Some(Note { location, kind: NoteKind::Decide, what: warning.what.clone() })
    }));
    notes.extend(draft.unannounced());
    notes.sort_unstable();
    notes.dedup();
    let yaml = |value: &Value| emit::to_string(value).expect("keys are text");
    let pools: Vec<String> = written.pools.iter().map(yaml).collect();
    Ok(Imported {
        gateway: HEAD.replace("VENDOR", vendor.as_str()) + &yaml(&written.gateway),
        pools: pools.join("---\n"),
        counts: (draft.pools.len(), draft.bgp.peers.len()),
        notes,
    })
}

/// The comment at the beginning of `gateway.yaml`.
const HEAD: &str = "\
# Converted by `tidegate import VENDOR`. Add the sections `metadata` and `dataplane` of this gateway, then run
# `tidegate check -c gateway.yaml`. docs/guide/11-migrating.md describes how to move without an interruption.
";
