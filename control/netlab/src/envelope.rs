//! The outer headers of a tunnel, as the manifests request them and as the servers' decapsulation recognizes them.
//!
//! [`super::modes`] gives every tunnel Service an envelope, and [`super::tools::decap`] counts the packets of each one,
//! so a test can compare what was requested with what arrived.

use std::fmt;

/// The headers behind the outer IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Envelope {
    /// None (RFC 2003, RFC 2473, RFC 4213).
    Ip,
    /// UDP to this port and GUE (draft-ietf-intarea-gue-09).
    Gue {
        /// 0 with a GUE header, 1 without.
        variant: u8,
        /// The UDP destination port.
        port: u16,
    },
    /// GRE (RFC 2784), with a key (RFC 2890) or without.
    Gre {
        /// The key.
        key: Option<u32>,
    },
    /// UDP to this port and Geneve (RFC 8926) with the option that identifies the Service.
    Geneve {
        /// The UDP destination port.
        port: u16,
        /// The virtual network identifier.
        vni: u32,
    },
}

impl Envelope {
    /// GUE variant 1, at the port of IANA.
    pub const GUE_DIRECT: Self = Self::Gue { variant: 1, port: 6080 };
    /// GUE variant 0. The lab uses another port for it, so that the port identifies the Service.
    pub const GUE_HEADER: Self = Self::Gue { variant: 0, port: 6081 };
    /// GRE without a key.
    pub const GRE_PLAIN: Self = Self::Gre { key: None };
    /// GRE with a key that has four different bytes.
    pub const GRE_KEYED: Self = Self::Gre { key: Some(0x0a_1b_2c_3d) };
    /// Geneve at the lab's own port, because the lab uses the standard one for GUE, with an identifier of three
    /// different bytes.
    pub const GENEVE: Self = Self::Geneve { port: 6082, vni: 0x1a_2b_3c };
    /// Everything that the lab's servers accept.
    pub const ALL: [Self; 6] =
        [Self::Ip, Self::GUE_DIRECT, Self::GUE_HEADER, Self::GRE_PLAIN, Self::GRE_KEYED, Self::GENEVE];

    /// The forwarding mode.
    #[must_use]
    pub fn forwarding(self) -> &'static str {
        match self {
            Self::Ip => "dsr-ipip",
            Self::Gue { .. } => "dsr-gue",
            Self::Gre { .. } => "dsr-gre",
            Self::Geneve { .. } => "dsr-geneve",
        }
    }

    /// The annotations of a Service that select this envelope within its forwarding mode. The gateway's defaults need
    /// none.
    #[must_use]
    pub fn annotations(self) -> Vec<(&'static str, String)> {
        match self {
            Self::Gue { variant, port } if self != Self::GUE_DIRECT => {
                vec![
                    ("tidegate.dev/gue-variant", variant.to_string()),
                    ("tidegate.dev/gue-port", port.to_string()),
                ]
            }
            Self::Gre { key: Some(key) } => vec![("tidegate.dev/gre-key", key.to_string())],
            Self::Geneve { port, vni } => vec![
                ("tidegate.dev/geneve-port", port.to_string()),
                ("tidegate.dev/geneve-vni", vni.to_string()),
            ],
            Self::Ip | Self::Gue { .. } | Self::Gre { key: None } => Vec::new(),
        }
    }
}

impl fmt::Display for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip => f.write_str("ip"),
            Self::Gue { variant, port } => write!(f, "gue:variant={variant}:port={port}"),
            Self::Gre { key: None } => f.write_str("gre"),
            Self::Gre { key: Some(key) } => write!(f, "gre:key={key}"),
            Self::Geneve { port, vni } => write!(f, "geneve:port={port}:vni={vni}"),
        }
    }
}
