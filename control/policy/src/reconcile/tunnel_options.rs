//! The annotations for the tunnel modes and for the mark of `dsr-dscp`. Each affects its own mode only; with another
//! mode, a warning reports it.

use tidegate_model::config;
use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{Labels, ObjectKey};
use tidegate_model::yaml::text;
use tidegate_spec::{ForwardingMode, TunnelOptions};
use tidegate_wire::encapsulation::ServiceIdentity;

use super::annotation_reader::Reader;
use super::annotations::{annotation_field, key};
use super::finding::Reason;
use super::view::{PortRefusal, RefusalReason};

/// The annotations, each with the mode that reads it.
const READ_BY: [(&str, ForwardingMode); 6] = [
    (key::GUE_VARIANT, ForwardingMode::DsrGue),
    (key::GUE_PORT, ForwardingMode::DsrGue),
    (key::GRE_KEY, ForwardingMode::DsrGre),
    (key::GENEVE_PORT, ForwardingMode::DsrGeneve),
    (key::GENEVE_VNI, ForwardingMode::DsrGeneve),
    (key::DSCP, ForwardingMode::DsrDscp),
];

/// Applies the value of one of the annotations.
pub(super) fn apply(
    read: &mut Reader<'_>,
    options: &mut TunnelOptions,
    ours: &str,
    annotation: &str,
    value: &str,
) {
    match set(options, ours, value) {
        Ok(()) => {}
        // There is no default. Without a mark, `check_mark` refuses the ports of a mode that needs it.
        Err(accepted) if ours == key::DSCP => {
            let value = text::shown(value);
            let what = format!("annotation {annotation}: {value:?} is invalid: it is ignored");
            read.invalid_at(&annotation_field(annotation), what, accepted);
        }
        Err(accepted) => read.invalid(annotation, value, accepted),
    }
}

/// Sets the option of an annotation. The error is the accepted values.
fn set(options: &mut TunnelOptions, ours: &str, value: &str) -> Result<(), &'static str> {
    match ours {
        key::GUE_VARIANT => {
            options.gue_variant = config::gue_variant(value).ok_or(config::GUE_VARIANT_ACCEPTED)?;
        }
        key::GUE_PORT => options.gue_port = config::tunnel_port(value).ok_or(config::TUNNEL_PORT_ACCEPTED)?,
        key::GENEVE_PORT => {
            options.geneve_port = config::tunnel_port(value).ok_or(config::TUNNEL_PORT_ACCEPTED)?;
        }
        key::GENEVE_VNI => {
            options.geneve_vni = config::geneve_vni(value).ok_or(config::GENEVE_VNI_ACCEPTED)?;
        }
        key::DSCP => options.dscp = config::dscp(value).ok_or(config::DSCP_ACCEPTED)?,
        _ => options.gre_key = config::gre_key(value).ok_or(config::GRE_KEY_ACCEPTED)?,
    }
    Ok(())
}

/// Derives the identity in Geneve packets from the name of the Service, with `dsr-geneve`.
pub(super) fn identify(options: &mut TunnelOptions, service: &ObjectKey, mode: ForwardingMode) {
    if mode == ForwardingMode::DsrGeneve {
        options.geneve_service = ServiceIdentity::of(&service.namespace, &service.name);
    }
}

/// Why no port is programmed, if the mode marks packets and the Service has no mark. Removes the mark in other modes.
pub(super) fn check_mark(
    read: &mut Reader<'_>,
    options: &mut TunnelOptions,
    mode: ForwardingMode,
) -> Option<PortRefusal> {
    if mode != ForwardingMode::DsrDscp {
        options.dscp = 0;
        return None;
    }
    if options.dscp != 0 {
        return None;
    }
    let why = format!("forwarding {mode} needs {}, by which a backend identifies the VIP", key::DSCP);
    let diagnostic = Diagnostic::error(format!("{why}: no port is programmed")).accepting(format!(
        "{} {}",
        key::DSCP,
        config::DSCP_ACCEPTED
    ));
    read.push(&annotation_field(key::FORWARDING), Reason::InvalidValue, diagnostic);
    Some(PortRefusal::new(RefusalReason::NotProgrammed, why))
}

/// Adds a warning for each valid annotation that the mode does not use.
pub(super) fn warn_without_effect(read: &mut Reader<'_>, annotations: &Labels, mode: ForwardingMode) {
    for (annotation, of) in READ_BY.into_iter().filter(|&(_, of)| of != mode) {
        let value = annotations.get(annotation);
        if value.is_some_and(|value| set(&mut TunnelOptions::default(), annotation, value.trim()).is_ok()) {
            let why = format!("forwarding is {mode}");
            read.ignored(annotation, &why, &format!("tidegate.dev/forwarding {of}, or no annotation"));
        }
    }
}
