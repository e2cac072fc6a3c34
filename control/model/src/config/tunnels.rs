//! The options of the tunnel modes: `gueVariant`, `guePort`, `greKey`, `genevePort` and `geneveVni` of
//! `services.defaults`, and the annotations with the same values.

use std::str::FromStr;

use tidegate_spec::TunnelOptions;
use tidegate_wire::encapsulation::{GueVariant, Vni};

use crate::yaml::{Field, Fields};

/// The values that [`gue_variant`] accepts.
pub const GUE_VARIANT_ACCEPTED: &str = "0, 1";
/// The values that [`tunnel_port`] accepts.
pub const TUNNEL_PORT_ACCEPTED: &str = "a port number, 1 to 65535";
/// The values that [`gre_key`] accepts.
pub const GRE_KEY_ACCEPTED: &str = "0 to 4294967295, or none";
/// The values that [`geneve_vni`] accepts.
pub const GENEVE_VNI_ACCEPTED: &str = "0 to 16777215";

/// Reads a variant of GUE.
#[must_use]
pub fn gue_variant(word: &str) -> Option<GueVariant> {
    match word {
        "0" => Some(GueVariant::Header),
        "1" => Some(GueVariant::Direct),
        _ => None,
    }
}

/// Reads a UDP port.
#[must_use]
pub fn tunnel_port(word: &str) -> Option<u16> {
    decimal(word).filter(|&port| port != 0)
}

/// Reads a GRE key; `none` is no key.
#[must_use]
pub fn gre_key(word: &str) -> Option<Option<u32>> {
    if word == "none" { Some(None) } else { decimal(word).map(Some) }
}

/// The values that [`dscp`] accepts.
pub const DSCP_ACCEPTED: &str = "1 to 63, different for VIPs that share a backend";

/// Reads a DSCP (RFC 2474 section 3). 0 is the DSCP of packets without a mark.
#[must_use]
pub fn dscp(word: &str) -> Option<u8> {
    decimal(word).filter(|value| (1..64).contains(value))
}

/// Reads a virtual network identifier of Geneve.
#[must_use]
pub fn geneve_vni(word: &str) -> Option<Vni> {
    decimal(word).and_then(Vni::new)
}

/// A number without a sign.
fn decimal<T: FromStr>(word: &str) -> Option<T> {
    let digits = word.bytes().all(|byte| byte.is_ascii_digit());
    digits.then(|| word.parse().ok())?
}

/// Reads the keys of `services.defaults`.
pub(super) fn decode(fields: &Fields<'_>, options: &mut TunnelOptions) {
    let port = |f: &Field<'_>| f.parsed_as_written(tunnel_port, TUNNEL_PORT_ACCEPTED);
    let variant = |f: &Field<'_>| f.parsed_as_written(gue_variant, GUE_VARIANT_ACCEPTED);
    fields.set("gueVariant", &mut options.gue_variant, variant);
    fields.set("guePort", &mut options.gue_port, port);
    fields.set("greKey", &mut options.gre_key, |f| f.parsed_as_written(gre_key, GRE_KEY_ACCEPTED));
    fields.set("genevePort", &mut options.geneve_port, port);
    fields
        .set("geneveVni", &mut options.geneve_vni, |f| f.parsed_as_written(geneve_vni, GENEVE_VNI_ACCEPTED));
}
