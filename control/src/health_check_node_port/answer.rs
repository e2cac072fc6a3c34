//! The texts and headers of the answers, as kube-proxy has them. Pure.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use hyper::{Response, StatusCode};

use super::HealthReport;
use crate::reconcile::HealthCheckNodePort;

/// An answer with its whole body.
pub type Answer = Response<Full<Bytes>>;

const ENDPOINT_WEIGHT: HeaderName = HeaderName::from_static("x-load-balancing-endpoint-weight");

/// The answer on a Service's health-check node port: 200 with local endpoints while the proxy is healthy, else
/// 503. The weight header is there in both cases.
#[must_use]
pub fn service(port: &HealthCheckNodePort, proxy_healthy: bool) -> Answer {
    let (namespace, name, n) = (&port.service.namespace, &port.service.name, port.local_endpoints);
    // Names are RFC 1035 labels: nothing to escape.
    let body = format!(
        "{{\n\t\"service\": {{\n\t\t\"namespace\": \"{namespace}\",\n\t\t\"name\": \"{name}\"\n\t}},\n\
         \t\"localEndpoints\": {n},\n\t\"serviceProxyHealthy\": {proxy_healthy}\n}}"
    );
    let mut answer = json(n > 0 && proxy_healthy, body);
    answer.headers_mut().insert(ENDPOINT_WEIGHT, HeaderValue::from(n));
    answer
}

/// The answer of `/healthz`, `/livez` or `/readyz`; 404 for other paths.
///
/// `lastUpdated` is the current time while all is well, else the time when the newest state was last applied.
#[must_use]
pub fn probe(path: &str, report: &HealthReport) -> Answer {
    let ok = match path {
        "/healthz" => report.healthy && report.node_eligible,
        "/livez" => report.healthy,
        "/readyz" => report.ready,
        _ => return text(StatusCode::NOT_FOUND, "404 page not found\n"),
    };
    let (updated, now) =
        (if ok { report.now } else { report.last_applied.unwrap_or(report.started) }, report.now);
    let body = if path == "/healthz" {
        let eligible = report.node_eligible;
        format!("{{\"lastUpdated\": \"{updated}\",\"currentTime\": \"{now}\", \"nodeEligible\": {eligible}}}")
    } else {
        format!("{{\"lastUpdated\": \"{updated}\",\"currentTime\": \"{now}\"}}")
    };
    json(ok, body)
}

/// A plain text.
pub(crate) fn text(status: StatusCode, body: impl Into<Bytes>) -> Answer {
    with_type(status, "text/plain; charset=utf-8", body.into())
}

fn json(ok: bool, body: String) -> Answer {
    let status = if ok { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    with_type(status, "application/json", body.into())
}

/// An answer of any type.
pub(crate) fn with_type(status: StatusCode, content_type: &'static str, body: Bytes) -> Answer {
    let mut answer = Response::new(Full::new(body));
    *answer.status_mut() = status;
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    answer
}
