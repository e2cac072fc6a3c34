//! The bodies and headers of the answers, identical to kube-proxy's. Pure.

use hyper::StatusCode;
use hyper::body::Body as _;
use hyper::header::{CONTENT_LENGTH, DATE, HeaderName, HeaderValue};
use jiff::Timestamp;
use jiff::fmt::rfc2822::DateTimePrinter;
use tidegate_http::{HttpResponse, text, with_type};
use tidegate_model::health::HealthCheckNodePort;

use super::HealthReport;

const ENDPOINT_WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The answer on a Service's health-check node port: 200 if there are local endpoints and the proxy is healthy,
/// otherwise 503. Both have the weight header.
#[must_use]
pub fn service(port: &HealthCheckNodePort, report: &HealthReport) -> HttpResponse {
    let proxy_healthy = report.healthy;
    let [namespace, name] = [&port.service.namespace, &port.service.name].map(|text| serde_json::json!(text));
    let n = port.local_endpoints;
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": {namespace},\n\t\t\"name\": {name}\n\t}},\n\
         \t\"localEndpoints\": {n},\n\t\"serviceProxyHealthy\": {proxy_healthy}\n}}"
    );
    let mut answer = json(n > 0 && proxy_healthy, body);
    answer.headers_mut().insert(ENDPOINT_WEIGHT, HeaderValue::from(n));
    complete(answer, report.now)
}

/// The answer of `/healthz`, `/livez`, `/readyz` or `/watchdog`; 404 for other paths.
///
/// `lastUpdated` is the current time while the gateway is healthy, otherwise the time when the latest state was
/// applied. `status` has that time for both families, since one state serves both.
#[must_use]
pub fn probe(path: &str, report: &HealthReport) -> HttpResponse {
    let ok = match path {
        "/healthz" => report.healthy && report.node_eligible,
        "/livez" => report.healthy,
        "/readyz" => report.ready,
        "/watchdog" => report.loop_alive,
        _ => return complete(text(StatusCode::NOT_FOUND, "404 page not found\n"), report.now),
    };
    let applied = report.last_applied.unwrap_or(report.started);
    let (updated, now) = (if ok { report.now } else { applied }, report.now);
    let healthy = report.healthy;
    let mut body = format!("{{\"lastUpdated\":\"{updated}\",\"currentTime\":\"{now}\"");
    // The reason would name interfaces and their faults, which not everybody who reaches this port should see.
    // `tidegate status` shows it.
    if !matches!(path, "/readyz" | "/watchdog") {
        if path == "/healthz" {
            body.push_str(&format!(",\"nodeEligible\":{}", report.node_eligible));
        }
        let family = format!("{{\"lastUpdated\":\"{applied}\",\"healthy\":{healthy}}}");
        body.push_str(&format!(",\"healthy\":{healthy},\"status\":{{\"IPv4\":{family},\"IPv6\":{family}}}"));
    }
    body.push('}');
    complete(json(ok, body), now)
}

/// Adds the headers that Go's server adds, in its order.
fn complete(mut answer: HttpResponse, now: Timestamp) -> HttpResponse {
    let length = answer.body().size_hint().exact().expect("the body is complete");
    let date = DateTimePrinter::new().timestamp_to_rfc9110_string(&now);
    let date = date.ok().and_then(|date| HeaderValue::try_from(date).ok());
    let headers = answer.headers_mut();
    // If the date could not be formatted, the server adds its own.
    headers.extend(date.map(|date| (DATE, date)));
    headers.insert(CONTENT_LENGTH, HeaderValue::from(length));
    answer
}

fn json(ok: bool, body: String) -> HttpResponse {
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    with_type(status, "application/json", body.into())
}
