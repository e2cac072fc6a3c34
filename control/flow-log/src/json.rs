//! JSON lines: one object for each begin and each end of a flow.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::Serialize;
use tidegate_conntrack::flow_log::{FlowCount, FlowEvent};
use tidegate_wire::rewrite::Endpoint;

use super::flow::Flow;

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    event: &'static str,
    gateway: &'a str,
    namespace: &'a str,
    service: &'a str,
    port: &'a str,
    protocol: &'static str,
    forwarding: &'static str,
    client: Address,
    vip: Address,
    backend: Address,
    /// The source that the backend sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    source: Option<Address>,
    start: String,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    end: Option<End>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct End {
    end: String,
    duration_ms: u64,
    reason: &'static str,
    begin_seen: bool,
    request: Count,
    #[serde(skip_serializing_if = "Option::is_none")]
    reply: Option<Count>,
}

#[derive(Serialize)]
struct Address {
    address: IpAddr,
    port: u16,
}

#[derive(Serialize)]
struct Count {
    packets: u64,
    bytes: u64,
}

impl From<Endpoint> for Address {
    fn from(at: Endpoint) -> Self {
        Self { address: at.addr.into(), port: at.port }
    }
}

impl From<FlowCount> for Count {
    fn from(count: FlowCount) -> Self {
        Self { packets: count.packets, bytes: count.bytes }
    }
}

/// Appends the line of a record.
pub(crate) fn append(out: &mut Vec<u8>, gateway: &str, flow: &Flow) {
    let Flow { record, service, backend, start_ms, end_ms } = flow;
    let [request, reply] = record.counts;
    let (event, end) = match record.event {
        FlowEvent::Begin => ("begin", None),
        FlowEvent::End(reason) => {
            let end = End {
                end: timestamp(*end_ms),
                duration_ms: end_ms.saturating_sub(*start_ms),
                reason: reason.as_str(),
                begin_seen: record.begin_seen,
                request: request.into(),
                reply: (!service.mode.is_dsr()).then(|| reply.into()),
            };
            ("end", Some(end))
        }
    };
    let line = Line {
        event,
        gateway,
        namespace: &service.namespace,
        service: &service.name,
        port: &service.port_name,
        protocol: service.protocol.as_str(),
        forwarding: service.mode.as_str(),
        client: record.client.into(),
        vip: service.vip.into(),
        backend: (*backend).into(),
        source: record.source.map(Address::from),
        start: timestamp(*start_ms),
        end,
    };
    serde_json::to_writer(&mut *out, &line).expect("a line can be serialized");
    out.push(b'\n');
}

fn timestamp(ms: u64) -> String {
    let time = i64::try_from(ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
    time.unwrap_or(Timestamp::MAX).to_string()
}

#[cfg(test)]
mod tests {
    use super::super::flow::samples::{dsr, nat};
    use super::*;

    fn line(flow: &Flow) -> String {
        let mut out = Vec::new();
        append(&mut out, "edge", flow);
        String::from_utf8(out).expect("JSON is UTF-8")
    }

    #[test]
    fn a_line_has_the_flow_its_names_and_at_the_end_its_counts() {
        assert_eq!(
            line(&nat(FlowEvent::End(tidegate_conntrack::flow_log::EndReason::Closed))),
            "{\"event\":\"end\",\"gateway\":\"edge\",\"namespace\":\"shop\",\"service\":\"web\",\"port\":\"http\",\
             \"protocol\":\"TCP\",\"forwarding\":\"fullnat\",\"client\":{\"address\":\"198.51.100.7\",\"port\":4711},\
             \"vip\":{\"address\":\"203.0.113.5\",\"port\":80},\"backend\":{\"address\":\"10.0.0.1\",\"port\":8080},\
             \"source\":{\"address\":\"10.0.0.253\",\"port\":1024},\"start\":\"2026-11-27T12:00:00Z\",\
             \"end\":\"2026-11-27T12:00:01.5Z\",\"durationMs\":1500,\"reason\":\"closed\",\"beginSeen\":true,\
             \"request\":{\"packets\":5,\"bytes\":400},\"reply\":{\"packets\":4,\"bytes\":5000}}\n"
        );
        assert_eq!(
            line(&dsr(FlowEvent::Begin)),
            "{\"event\":\"begin\",\"gateway\":\"edge\",\"namespace\":\"shop\",\"service\":\"web\",\"port\":\"http\",\
             \"protocol\":\"TCP\",\"forwarding\":\"dsr-ipip\",\"client\":{\"address\":\"2001:db8::7\",\"port\":4711},\
             \"vip\":{\"address\":\"2001:db8:1::5\",\"port\":80},\"backend\":{\"address\":\"10.0.0.1\",\"port\":80},\
             \"start\":\"2026-11-27T12:00:00Z\"}\n"
        );
    }
}
