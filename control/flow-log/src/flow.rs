//! A record of a flow with its names and times, as all outputs get it.

use std::sync::Arc;

use tidegate_conntrack::flow_log::LoggedFlow;
use tidegate_spec::ids::{BackendId, ServiceId};
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::rewrite::Endpoint;

/// A service port, as the log names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServicePort {
    /// The namespace of the Service.
    pub namespace: String,
    /// The name of the Service.
    pub name: String,
    /// The name of the port, or its number.
    pub port_name: String,
    /// The VIP and port.
    pub vip: Endpoint,
    /// The protocol.
    pub protocol: Protocol,
    /// How packets reach the backends.
    pub mode: ForwardingMode,
}

/// The service ports and backends that exist now.
pub trait Ports {
    /// A service port.
    fn service(&self, id: ServiceId) -> Option<ServicePort>;
    /// The address and port of a backend of this service port.
    fn backend(&self, service: ServiceId, id: BackendId) -> Option<Endpoint>;
}

/// A record with its names. Times are milliseconds since 1970.
#[derive(Debug, Clone)]
pub(crate) struct Flow {
    pub(crate) record: LoggedFlow,
    pub(crate) service: Arc<ServicePort>,
    pub(crate) backend: Endpoint,
    pub(crate) start_ms: u64,
    pub(crate) end_ms: u64,
}

#[cfg(test)]
pub(crate) mod samples {
    use tidegate_conntrack::flow_log::{FlowCount, FlowEvent};
    use tidegate_spec::now::Now;
    use tidegate_wire::Addr;

    use super::*;

    /// 2026-11-27 12:00 UTC.
    pub(crate) const START_MS: u64 = 1_795_780_800_000;

    fn at(text: &str) -> Endpoint {
        let at: std::net::SocketAddr = text.parse().expect("an address in a test");
        Endpoint { addr: Addr::from(at.ip()), port: at.port() }
    }

    fn flow(event: FlowEvent, mode: ForwardingMode, [client, vip, backend]: [&str; 3]) -> Flow {
        let source = (!mode.is_dsr()).then(|| at("10.0.0.253:1024"));
        let replies = if mode.is_dsr() { 0 } else { 4 };
        let record = LoggedFlow {
            event,
            service: ServiceId::new(1, 0),
            client: at(client),
            backend: BackendId::new(1, 0),
            source,
            began: Now(0),
            last: Now(1_500_000_000),
            begin_seen: true,
            counts: [
                FlowCount { packets: 5, bytes: 400, tcp_flags: 0x13 },
                FlowCount { packets: replies, bytes: replies * 1_250, tcp_flags: 0x1b },
            ],
        };
        let service = ServicePort {
            namespace: "shop".to_owned(),
            name: "web".to_owned(),
            port_name: "http".to_owned(),
            vip: at(vip),
            protocol: Protocol::Tcp,
            mode,
        };
        let end_ms = START_MS + 1_500;
        Flow { record, service: Arc::new(service), backend: at(backend), start_ms: START_MS, end_ms }
    }

    /// A flow of `fullnat`.
    pub(crate) fn nat(event: FlowEvent) -> Flow {
        flow(event, ForwardingMode::FullNat, ["198.51.100.7:4711", "203.0.113.5:80", "10.0.0.1:8080"])
    }

    /// A flow of an IPv6 client through `dsr-ipip`, to an IPv4 backend.
    pub(crate) fn dsr(event: FlowEvent) -> Flow {
        let ends = ["[2001:db8::7]:4711", "[2001:db8:1::5]:80", "10.0.0.1:80"];
        flow(event, ForwardingMode::DsrIpip, ends)
    }
}
