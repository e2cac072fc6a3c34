//! The annotations of a Service that edges read.
//!
//! A value that decides what clients or backends receive (Secrets, ports, protocols) refuses the ports if it is
//! invalid, because a default could expose plain text. Another invalid value gives the default. Each is a finding.

use std::time::Duration;

use tidegate_model::diagnostic::Diagnostic;
use tidegate_model::objects::{Labels, Protocol, Service, ServicePort};
use tidegate_model::yaml::text;
use tidegate_wire::Named;

use super::finding::{Finding, Reason};
use crate::reconcile::edge_key as key;

/// An annotation of gateways that edges honour as well.
const IDLE_TIMEOUT: &str = "tidegate.dev/idle-timeout-tcp";

/// The maximum number of Secrets of one Service.
const SECRETS_MAX: usize = 100;
const IDLE_MAX: Duration = Duration::from_secs(7 * 86_400);

tidegate_model::named! {
    /// `tidegate.dev/tls-policy`: what clients may negotiate, after Mozilla's server-side recommendations.
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub enum TlsPolicy {
        /// TLS 1.3 only.
        Modern => "modern",
        /// TLS 1.2 with ECDHE and AEAD ciphers, and TLS 1.3.
        #[default]
        Intermediate => "intermediate",
    }
}

tidegate_model::named! {
    /// `tidegate.dev/backend-protocol`: what backends receive.
    #[derive(PartialOrd, Ord, Hash)]
    pub enum BackendProtocol {
        /// The bytes of the client, without TLS.
        Tcp => "tcp",
        /// The bytes of the client, in a new TLS connection.
        Tls => "tls",
        /// HTTP/1.1.
        Http => "http",
        /// HTTP/2 or HTTP/1.1 over TLS.
        Https => "https",
        /// HTTP/2 without TLS, with prior knowledge.
        H2c => "h2c",
        /// gRPC: HTTP/2 without TLS.
        Grpc => "grpc",
    }
}

impl BackendProtocol {
    /// Whether the edge handles requests. Otherwise it copies bytes.
    #[must_use]
    pub fn is_http(self) -> bool {
        !matches!(self, Self::Tcp | Self::Tls)
    }

    /// The protocol that an `appProtocol` names (Kubernetes' standard names, IANA service names). Other values mean
    /// bytes.
    fn of_app_protocol(name: &str) -> Self {
        match name.to_ascii_lowercase().as_str() {
            "http" | "kubernetes.io/ws" => Self::Http,
            "https" | "kubernetes.io/wss" => Self::Https,
            "kubernetes.io/h2c" | "h2c" => Self::H2c,
            "grpc" => Self::Grpc,
            "tls" | "ssl" => Self::Tls,
            _ => Self::Tcp,
        }
    }
}

tidegate_model::named! {
    /// `tidegate.dev/forwarded-headers`: what happens to `Forwarded` and `X-Forwarded-*`.
    #[derive(Default, PartialOrd, Ord, Hash)]
    pub enum ForwardedHeaders {
        /// They are removed, and replaced by the client's address, the scheme and the port.
        #[default]
        Replace => "replace",
        /// The client's address is appended to `X-Forwarded-For`; the others are replaced.
        Append => "append",
        /// They are removed.
        Remove => "remove",
    }
}

/// What a Service requests.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Options {
    /// The names of the Secrets, in the order written.
    pub(super) secrets: Vec<String>,
    tls_ports: Ports,
    pub(super) policy: TlsPolicy,
    protocol: Option<BackendProtocol>,
    pub(super) forwarded: ForwardedHeaders,
    pub(super) redirect: bool,
    pub(super) idle: Option<Duration>,
    /// Whether an invalid value refuses all ports.
    pub(super) refused: bool,
}

/// The ports with TLS.
#[derive(Debug, Clone, PartialEq)]
enum Ports {
    /// All but port 80.
    Default,
    All,
    /// These numbers and names.
    Listed(Vec<String>),
}

/// How an edge serves a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct PortOptions {
    pub(super) tls: bool,
    pub(super) protocol: BackendProtocol,
}

impl Options {
    /// How an edge serves this port; `None` if the port needs no edge: it has neither TLS nor HTTP.
    pub(super) fn of(&self, port: &ServicePort) -> Option<PortOptions> {
        let named = |word: &String| *word == port.port.to_string() || *word == port.name;
        let tls = !self.secrets.is_empty()
            && match &self.tls_ports {
                Ports::Default => port.port.get() != 80,
                Ports::All => true,
                Ports::Listed(words) => words.iter().any(named),
            };
        let app = port.app_protocol.as_deref().map(BackendProtocol::of_app_protocol);
        let protocol = self.protocol.or(app).unwrap_or(BackendProtocol::Tcp);
        (port.protocol == Protocol::Tcp && (tls || protocol.is_http() || self.redirects(port)))
            .then_some(PortOptions { tls, protocol })
    }

    /// Whether requests to this port are redirected.
    pub(super) fn redirects(&self, port: &ServicePort) -> bool {
        self.redirect && port.port.get() == 80
    }
}

/// Whether a Service requests an edge.
pub(super) fn is_requested(annotations: &Labels) -> bool {
    key::ALL.iter().any(|key| annotations.contains_key(*key))
}

/// Reads the annotations of a Service.
pub(super) fn read(service: &Service, findings: &mut Vec<Finding>) -> Options {
    let mut read = Reader { service, findings };
    let tls_ports = read.value(key::TLS_PORTS, |value| tls_ports(value, service), PORTS_ACCEPTED);
    let secrets = read.value(key::TLS_SECRET, secrets, SECRETS_ACCEPTED);
    let protocols = text::names::<BackendProtocol>();
    let protocol = read.value(key::BACKEND_PROTOCOL, BackendProtocol::named, &protocols);
    let refused = [tls_ports.is_err(), secrets.is_err(), protocol.is_err()].contains(&true);
    let secrets = secrets.ok().flatten().unwrap_or_default();
    if !refused && secrets.is_empty() {
        for annotation in [key::TLS_PORTS, key::TLS_POLICY] {
            if service.meta.annotations.contains_key(annotation) {
                let secret = key::TLS_SECRET;
                let what = format!("annotation {annotation} has no effect: there is no {secret}");
                let accepted = format!("{secret}, or no annotation");
                read.push(annotation, Diagnostic::warning(what).accepting(accepted));
            }
        }
    }
    Options {
        secrets,
        tls_ports: tls_ports.ok().flatten().unwrap_or(Ports::Default),
        policy: read.or_default(key::TLS_POLICY, TlsPolicy::named, &text::names::<TlsPolicy>()),
        protocol: protocol.ok().flatten(),
        forwarded: read.or_default(
            key::FORWARDED_HEADERS,
            ForwardedHeaders::named,
            &text::names::<ForwardedHeaders>(),
        ),
        redirect: read.or_default(key::REDIRECT_HTTPS, |value| value.parse().ok(), "true, false"),
        idle: read.value(IDLE_TIMEOUT, idle, "a duration from 1s to 168h").ok().flatten(),
        refused,
    }
}

struct Reader<'a> {
    service: &'a Service,
    findings: &'a mut Vec<Finding>,
}

impl Reader<'_> {
    /// The value of an annotation; `Ok(None)` without the annotation, `Err` if it is invalid, which is reported.
    fn value<T>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        accepted: &str,
    ) -> Result<Option<T>, ()> {
        let Some(value) = self.service.meta.annotations.get(key) else { return Ok(None) };
        let parsed = parse(value.trim());
        if parsed.is_none() {
            let what = format!("annotation {key}: {:?} is invalid", text::shown(value));
            self.push(key, Diagnostic::error(what).accepting(accepted));
        }
        parsed.map(Some).ok_or(())
    }

    fn or_default<T: Default>(
        &mut self,
        key: &str,
        parse: impl FnOnce(&str) -> Option<T>,
        accepted: &str,
    ) -> T {
        self.value(key, parse, accepted).ok().flatten().unwrap_or_default()
    }

    fn push(&mut self, key: &str, diagnostic: Diagnostic) {
        let field = format!("metadata.annotations[{key}]");
        self.findings.push(Finding::at(&self.service.meta, &field, Reason::InvalidValue, diagnostic));
    }
}

const PORTS_ACCEPTED: &str =
    "* for all TCP ports, or numbers and names of TCP ports of the Service, separated by commas";
const SECRETS_ACCEPTED: &str =
    "names of 1 to 100 Secrets of type kubernetes.io/tls in the Service's namespace, separated by commas";

fn secrets(value: &str) -> Option<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for name in value.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        if !text::is_rfc1123_subdomain(name) {
            return None;
        }
        if !names.iter().any(|known| known == name) {
            names.push(name.to_owned());
        }
    }
    (1..=SECRETS_MAX).contains(&names.len()).then_some(names)
}

fn tls_ports(value: &str, service: &Service) -> Option<Ports> {
    if value == "*" {
        return Some(Ports::All);
    }
    let is_port = |word: &str| {
        let mut tcp = service.ports.iter().filter(|port| port.protocol == Protocol::Tcp);
        tcp.any(|port| port.name == word || port.port.to_string() == word)
    };
    let words: Vec<&str> = value.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let are_ports = !words.is_empty() && words.iter().all(|word| is_port(word));
    are_ports.then(|| Ports::Listed(words.into_iter().map(str::to_owned).collect()))
}

fn idle(value: &str) -> Option<Duration> {
    text::duration(value).filter(|idle| (Duration::from_secs(1)..=IDLE_MAX).contains(idle))
}
