//! The annotation of a `GatewayStatus` with which users drain a gateway through the API server.
//!
//! The gateway reads it with each poll of the gateways, every ten seconds, and never writes it.

use super::crd::GatewayStatus;

/// The key of the annotation.
pub const DRAIN_ANNOTATION: &str = "tidegate.dev/drain";

/// The value of the annotation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum DrainAnnotation {
    /// The object has not been read.
    #[default]
    Unknown,
    /// It is missing, or `false`.
    Absent,
    /// `true`: the gateway must drain.
    Drain,
    /// Neither `true` nor `false`; treated as missing.
    Invalid(String),
}

impl DrainAnnotation {
    /// Reads the annotation of a gateway.
    #[must_use]
    pub fn of(gateway: &GatewayStatus) -> Self {
        let annotations = gateway.metadata.annotations.as_ref();
        match annotations.and_then(|annotations| annotations.get(DRAIN_ANNOTATION)).map(String::as_str) {
            None | Some("false") => Self::Absent,
            Some("true") => Self::Drain,
            Some(value) => Self::Invalid(value.chars().take(64).collect()),
        }
    }

    /// What is wrong with the value, and what is accepted.
    #[must_use]
    pub fn fault(&self) -> Option<String> {
        match self {
            Self::Invalid(value) => Some(format!(
                "the value {value:?} of the annotation {DRAIN_ANNOTATION} is ignored; accepted: \"true\", \"false\""
            )),
            Self::Unknown | Self::Absent | Self::Drain => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::crd::GatewayStatusSpec;
    use super::*;

    #[test]
    fn an_invalid_value_drains_nothing_and_is_reported() {
        let read = |value: Option<&str>| {
            let mut gateway = GatewayStatus::new("edge-1", GatewayStatusSpec::default());
            let value = value.map(|value| (DRAIN_ANNOTATION.to_owned(), value.to_owned()));
            gateway.metadata.annotations = Some(value.into_iter().collect());
            DrainAnnotation::of(&gateway)
        };
        assert_eq!(read(None), DrainAnnotation::Absent);
        assert_eq!(read(Some("false")), DrainAnnotation::Absent);
        assert_eq!(read(Some("true")), DrainAnnotation::Drain);
        let invalid = read(Some("yes"));
        let fault = invalid.fault().expect("a fault");
        assert!(fault.contains("\"yes\"") && fault.contains("accepted"), "{fault}");
        assert_eq!(read(Some("true")).fault(), None);
    }
}
