//! The filter of `flows`: by Service, backend, client, state and idle time, with an order and a limit.
//!
//! The command line and the query string of the request use the same syntax, which is parsed here. An IPv4-mapped IPv6
//! address is read as the IPv4 address in it, because the addresses of flows are never mapped ones.
//!
//! Invariant: apart from that, [`FlowsQuery::parse`] reads back exactly what [`FlowsQuery::pairs`] wrote.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use super::error::AdminError;
use super::query;

/// The number of flows that are listed if no limit is given.
pub const LIMIT_DEFAULT: usize = 500;
/// The maximum number of flows in one answer, which is then about 10 MB.
pub const LIMIT_MAX: usize = 50_000;

/// The filter, the order and the limit. A field that is `None` matches all flows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FlowsQuery {
    /// Flows of this Service.
    pub service: Option<ServiceName>,
    /// Flows to this backend.
    pub backend: Option<BackendName>,
    /// Flows of this client.
    pub client: Option<IpAddr>,
    /// Flows from this port of a client.
    pub client_port: Option<u16>,
    /// Flows in this state.
    pub state: Option<FlowState>,
    /// Flows without a packet for at least this number of seconds.
    pub idle_seconds_min: u32,
    /// The order of the flows.
    pub order: FlowOrder,
    /// The maximum number of flows; 0 returns only the counts.
    pub limit: usize,
}

impl FlowsQuery {
    /// The `key=value` pairs of a request.
    pub(super) fn pairs(&self) -> Vec<(&'static str, String)> {
        let text = |key, value: Option<String>| value.map(|value| (key, value));
        let pairs = [
            text("service", self.service.as_ref().map(ToString::to_string)),
            text("backend", self.backend.map(|backend| backend.to_string())),
            text("client", self.client.map(|client| client.to_string())),
            text("client-port", self.client_port.map(|port| port.to_string())),
            text("state", self.state.map(|state| state.to_string())),
            text("idle", (self.idle_seconds_min > 0).then(|| self.idle_seconds_min.to_string())),
            (self.order != FlowOrder::default()).then(|| ("order", self.order.to_string())),
            Some(("limit", self.limit.to_string())),
        ];
        pairs.into_iter().flatten().collect()
    }

    /// Parses the query of a request.
    ///
    /// # Errors
    /// An invalid value.
    pub fn parse(text: &str) -> Result<Self, AdminError> {
        fn one<T: FromStr<Err = String>>(text: &str, key: &str) -> Result<Option<T>, AdminError> {
            let value = query::value(text, key).map(|value| value.parse());
            value.transpose().map_err(|why| AdminError::BadRequest(format!("{key}: {why}")))
        }
        let Limit(limit) = one(text, "limit")?.unwrap_or(Limit(LIMIT_DEFAULT));
        let client = one::<Client>(text, "client")?.map(|Client(client)| client);
        Ok(Self {
            service: one(text, "service")?,
            backend: one(text, "backend")?,
            client,
            client_port: number(text, "client-port", "0 to 65535")?,
            state: one(text, "state")?,
            idle_seconds_min: number(text, "idle", "a number of seconds")?.unwrap_or(0),
            order: one(text, "order")?.unwrap_or_default(),
            limit,
        })
    }

    /// Whether it selects some flows rather than all.
    #[must_use]
    pub fn is_filter(&self) -> bool {
        let Self { service, backend, client, client_port, state, idle_seconds_min, order: _, limit: _ } =
            self;
        let is_named = service.is_some() || backend.is_some() || client.is_some();
        is_named || client_port.is_some() || state.is_some() || *idle_seconds_min > 0
    }
}

/// A number of a request.
fn number<T: FromStr>(text: &str, key: &str, accepted: &str) -> Result<Option<T>, AdminError> {
    let refuse = |value: &str| format!("{key}: {value:?} is not valid; accepted: {accepted}");
    let parsed = |value: String| value.parse().map_err(|_| AdminError::BadRequest(refuse(&value)));
    query::value(text, key).map(parsed).transpose()
}

tidegate_spec::named! {
    /// The state of a flow.
    pub enum FlowState {
        /// The other side has not answered yet.
        Opening => "opening",
        /// Packets flow in both directions.
        Established => "established",
        /// A FIN has been seen.
        Closing => "closing",
        /// A RST has been seen.
        Closed => "closed",
    }
}

impl FromStr for FlowState {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| {
            format!("{text:?} is not the state of a flow; accepted: opening, established, closing, closed")
        })
    }
}

tidegate_spec::named! {
    /// The order of flows, which also decides which ones are listed if there are more than the limit.
    #[derive(Default)]
    pub enum FlowOrder {
        /// By Service, VIP and client.
        #[default]
        Service => "service",
        /// The flow with the most bytes first.
        Bytes => "bytes",
    }
}

impl FromStr for FlowOrder {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|one| one.as_str() == text);
        found.ok_or_else(|| format!("{text:?} is not an order of flows; accepted: service, bytes"))
    }
}

/// A Service, in one namespace or in any, or a Gateway; at one port or at all ports.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceName {
    /// Its namespace.
    pub namespace: Option<String>,
    /// Its name; `gateway/NAME` for a Gateway.
    pub name: String,
    /// The name of a port, or its number if it has none; `NAMESPACE/NAME/LISTENER` for a listener of a ListenerSet.
    pub port: Option<String>,
}

impl ServiceName {
    /// What is accepted.
    pub const ACCEPTED: &str = "NAME, NAMESPACE/NAME or NAMESPACE/gateway/NAME, optionally with :PORT";
}

impl FromStr for ServiceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (service, port) = match text.split_once(':') {
            Some((service, port)) => (service, Some(port)),
            None => (text, None),
        };
        // `gateway/NAME` is a Service in the namespace `gateway`, so a Gateway needs its namespace.
        let (namespace, name) = match service.split_once('/') {
            Some((namespace, name)) => (Some(namespace), name),
            None => (None, service),
        };
        let gateway = namespace.and_then(|_| name.strip_prefix("gateway/"));
        let listener = port.filter(|port| gateway.is_some() && port.matches('/').count() == 2);
        let of_listener = listener.into_iter().flat_map(|listener| listener.split('/'));
        let of_port = port.filter(|_| listener.is_none());
        let parts = [namespace, Some(gateway.unwrap_or(name)), of_port].into_iter().flatten();
        if !parts.chain(of_listener).all(tidegate_model::yaml::text::is_rfc1123_subdomain) {
            return Err(format!("{text:?} is not a Service; accepted: {}", Self::ACCEPTED));
        }
        let owned = |part: Option<&str>| part.map(str::to_owned);
        Ok(Self { namespace: owned(namespace), name: name.to_owned(), port: owned(port) })
    }
}

impl fmt::Display for ServiceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(namespace) = &self.namespace {
            write!(f, "{namespace}/")?;
        }
        f.write_str(&self.name)?;
        self.port.as_ref().map_or(Ok(()), |port| write!(f, ":{port}"))
    }
}

/// A backend, at one port or at all ports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BackendName {
    /// Its address.
    pub address: IpAddr,
    /// Its port.
    pub port: Option<u16>,
}

impl FromStr for BackendName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Ok(at) = text.parse::<SocketAddr>() {
            return Ok(Self { address: at.ip().to_canonical(), port: Some(at.port()) });
        }
        let address = text.trim_matches(['[', ']']).parse::<IpAddr>();
        let address =
            address.map_err(|_| format!("{text:?} is not a backend; accepted: ADDRESS or ADDRESS:PORT"))?;
        Ok(Self { address: address.to_canonical(), port: None })
    }
}

impl fmt::Display for BackendName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.port {
            Some(port) => SocketAddr::new(self.address, port).fmt(f),
            None => self.address.fmt(f),
        }
    }
}

/// The maximum number of flows to list.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit(pub usize);

impl FromStr for Limit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let limit = text.parse().ok().filter(|&limit| limit <= LIMIT_MAX);
        limit.map(Self).ok_or_else(|| format!("{text:?} is not a limit; accepted: 0 to {LIMIT_MAX}"))
    }
}

struct Client(IpAddr);

impl FromStr for Client {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let client = text.parse::<IpAddr>();
        let client = client.map_err(|_| {
            format!("{text:?} is not the address of a client; accepted: an IPv4 or IPv6 address")
        })?;
        Ok(Self(client.to_canonical()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_encoded_query_is_parsed_to_an_equal_one() {
        for service in [
            None,
            Some("web"),
            Some("default/web"),
            Some("default/web:http"),
            Some("web:80"),
            Some("default/gateway/edge:team/more/tcp"),
        ] {
            for backend in
                [None, Some("10.0.0.1"), Some("10.0.0.1:80"), Some("2001:db8::1"), Some("[2001:db8::1]:80")]
            {
                let query = FlowsQuery {
                    service: service.map(|text| text.parse().expect("a Service")),
                    backend: backend.map(|text| text.parse().expect("a backend")),
                    client: backend.map(|_| "2001:db8::9".parse().expect("an address")),
                    client_port: backend.map(|_| 40_000),
                    state: backend.map(|_| FlowState::Closing),
                    idle_seconds_min: if backend.is_some() { 60 } else { 0 },
                    order: if backend.is_some() { FlowOrder::Bytes } else { FlowOrder::Service },
                    limit: 7,
                };
                let pairs = query.pairs();
                let pairs: Vec<(&str, &str)> =
                    pairs.iter().map(|(key, value)| (*key, value.as_str())).collect();
                assert_eq!(FlowsQuery::parse(&query::encode(&pairs)), Ok(query));
            }
        }
        assert_eq!(FlowsQuery::parse("").map(|query| query.limit), Ok(LIMIT_DEFAULT));
    }

    #[test]
    fn a_gateway_and_a_listener_of_a_listener_set_can_be_named() {
        let parts = |text: &str| {
            let ServiceName { namespace, name, port } = text.parse().ok()?;
            Some([namespace, Some(name), port].map(Option::unwrap_or_default).join(" "))
        };
        for (text, expected) in [
            ("shop/gateway/edge", Some("shop gateway/edge ")),
            ("shop/gateway/edge:tcp", Some("shop gateway/edge tcp")),
            ("shop/gateway/edge:53", Some("shop gateway/edge 53")),
            ("shop/gateway/edge:team/more/tcp", Some("shop gateway/edge team/more/tcp")),
            // A Service in a namespace with this name.
            ("gateway/edge", Some("gateway edge ")),
            ("gateway/gateway/edge", Some("gateway gateway/edge ")),
            ("gateway", Some(" gateway ")),
            ("shop/gateway/", None),
            ("shop/gateway/a/b", None),
            ("/gateway/edge", None),
            ("shop/gateway/edge:", None),
            ("shop/gateway/edge:more/tcp", None),
            ("shop/gateway/edge:team//tcp", None),
            ("shop/gateway/edge:a/b/c/d", None),
            ("shop/web:team/more/tcp", None),
            ("web:team/more/tcp", None),
        ] {
            assert_eq!(parts(text).as_deref(), expected, "{text}");
        }
    }

    #[test]
    fn an_ipv4_mapped_address_is_read_as_the_ipv4_address() {
        for (mapped, plain) in [
            ("backend=[::ffff:10.0.0.1]:80", "backend=10.0.0.1:80"),
            ("backend=::ffff:10.0.0.1", "backend=10.0.0.1"),
            ("client=::ffff:192.0.2.9", "client=192.0.2.9"),
        ] {
            assert_eq!(FlowsQuery::parse(mapped), FlowsQuery::parse(plain));
        }
    }

    #[test]
    fn an_invalid_value_is_reported_with_the_accepted_ones() {
        for (text, named) in [
            (
                "service=a/b/c",
                "service: \"a/b/c\" is not a Service; accepted: NAME, NAMESPACE/NAME or NAMESPACE/gateway/NAME, \
                 optionally with :PORT",
            ),
            ("service=", "service: \"\" is not a Service"),
            ("backend=web", "backend: \"web\" is not a backend; accepted: ADDRESS or ADDRESS:PORT"),
            (
                "client=10.0.0.0/8",
                "client: \"10.0.0.0/8\" is not the address of a client; accepted: an IPv4 or IPv6 address",
            ),
            ("limit=-1", "limit: \"-1\" is not a limit; accepted: 0 to 50000"),
            ("limit=50001", "accepted: 0 to 50000"),
            ("client-port=x", "client-port: \"x\" is not valid; accepted: 0 to 65535"),
            ("state=open", "state: \"open\" is not the state of a flow; accepted: opening, established"),
            ("order=size", "order: \"size\" is not an order of flows; accepted: service, bytes"),
            ("idle=1m", "idle: \"1m\" is not valid; accepted: a number of seconds"),
        ] {
            let error = FlowsQuery::parse(text).expect_err(text).to_string();
            assert!(error.contains(named), "{error}");
        }
    }
}
