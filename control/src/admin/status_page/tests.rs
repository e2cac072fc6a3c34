//! Tests of the listener with the backend of the tests of the admin socket.

use std::net::Ipv4Addr;
use std::path::Path;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::admin::tests::Daemon;

const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
const TOKEN: &str = "0123456789abcdef";

fn token() -> PageToken {
    let directory = tempfile::tempdir().expect("a directory");
    std::fs::write(directory.path().join("token"), TOKEN).expect("a file");
    let text = "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\ndataplane:\n  cores: [0]\n  interfaces: \
                [{name: up, device: net_null0, addresses: [10.0.0.1/24]}]\n\
                admin: {page: {listen: '0.0.0.0:9470', tokenFile: token}}\n";
    let loaded = tidegate_model::config::parse(text, "gateway.yaml", directory.path(), 2);
    let config = loaded.config.unwrap_or_else(|| panic!("{}", loaded.report));
    config.admin.page.expect("a page").token.expect("a token")
}

async fn listener(token: Option<PageToken>) -> Listener {
    serve(LOOPBACK, move || token.clone(), Arc::new(Daemon::default())).await.expect("a port")
}

/// The head and the body of the answer to a request with these further lines.
async fn fetch(listener: &Listener, request: &str, host: &str, more: &str) -> (String, String) {
    let mut stream = TcpStream::connect(listener.address()).await.expect("the listener listens");
    let text = format!("{request} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n{more}\r\n");
    stream.write_all(text.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.to_owned(), body.to_owned())
}

async fn view_of(listener: &Listener, parameters: &str) -> Value {
    let (head, body) = fetch(listener, &format!("GET /live?{parameters}"), "127.0.0.1", "").await;
    assert!(head.starts_with("HTTP/1.1 200 ") && head.contains("text/event-stream"), "{head}");
    let data = body.strip_prefix("retry: 2000\ndata: ").and_then(|data| data.strip_suffix("\n\n"));
    serde_json::from_str(data.unwrap_or_else(|| panic!("one event: {body}"))).expect("JSON")
}

#[tokio::test]
async fn each_view_has_the_tables_of_the_commands() {
    let listener = listener(None).await;
    for (parameters, titles, cell) in [
        ("view=overview", &["Workers", "Interfaces", "Findings"][..], None),
        ("view=services", &["Services"], Some("203.0.113.1")),
        (
            "view=service&service=default%2Fweb",
            &["Service", "Backends", "Findings", "Events"],
            Some("10.0.0.1:8080"),
        ),
        ("view=network", &["BGP peers", "Gateways that share flows", "Owners on layer 2", "Ports"], None),
        ("view=events", &["Events"], None),
        ("view=pools", &["Pools"], Some("wide")),
        ("view=drops", &["Dropped and punted packets"], Some("no_route")),
    ] {
        let view = view_of(&listener, parameters).await;
        assert_eq!((&view["gateway"], &view["state"]), (&"edge-1".into(), &"serving".into()), "{view}");
        let tables = view["tables"].as_array().expect("tables");
        assert!(
            tables.iter().map(|table| table["title"].as_str().expect("a title")).eq(titles.iter().copied())
        );
        let shown = tables.iter().any(|table| table["rows"].to_string().contains(cell.unwrap_or_default()));
        assert!(shown, "{parameters}: {view}");
    }
    let (head, body) = fetch(&listener, "GET /live?view=all", "127.0.0.1", "").await;
    assert!(head.starts_with("HTTP/1.1 400 ") && body.contains("accepted: view=overview"), "{head} {body}");
}

#[tokio::test]
async fn a_gateway_has_its_findings_and_those_of_its_routes() {
    let listener = listener(None).await;
    for (name, objects) in [
        ("web", &["default/web"][..]),
        ("gateway%2Fedge", &["default/tcproute/web", "default/gateway/edge"]),
        // It isn't among the Services.
        ("gateway%2Frefused", &["default/gateway/refused"]),
    ] {
        let view = view_of(&listener, &format!("view=service&service=default%2F{name}")).await;
        let tables = view["tables"].as_array().expect("tables");
        let findings = tables.iter().find(|table| table["title"] == "Findings").expect("the table");
        let rows = findings["rows"].as_array().expect("rows").iter().map(ToString::to_string);
        let rows: Vec<String> = rows.collect();
        assert_eq!(rows.len(), objects.len(), "{name}: {rows:?}");
        let is_shown = |object: &&str| rows.iter().any(|row| row.contains(&format!("\"{object}\"")));
        assert!(objects.iter().all(is_shown), "{name}: {rows:?}");
    }
    let (_, body) = fetch(&listener, "GET /live?view=service&service=web", "127.0.0.1", "").await;
    assert!(body.contains("accepted: NAMESPACE/NAME or NAMESPACE/gateway/NAME"), "{body}");
}

#[tokio::test]
async fn the_page_loads_nothing_from_elsewhere_and_changes_nothing() {
    let listener = listener(None).await;
    for (path, content_type) in
        [("/", "text/html"), ("/page.css", "text/css"), ("/page.js", "text/javascript")]
    {
        let (head, body) = fetch(&listener, &format!("GET {path}"), "localhost:9470", "").await;
        assert!(head.starts_with("HTTP/1.1 200 ") && head.contains(content_type), "{path}: {head}");
        assert!(head.contains("default-src 'none'") && head.contains("frame-ancestors 'none'"), "{head}");
        assert!(!body.contains("//cdn") && !body.contains("http:"), "{path} refers to itself only");
    }
    for request in ["POST /live?view=pools", "DELETE /", "POST /v1/drain?gateway=true"] {
        let (head, _) = fetch(&listener, request, "127.0.0.1", "Content-Length: 0\r\n").await;
        assert!(head.starts_with("HTTP/1.1 405 "), "{request}: {head}");
    }
    for path in ["/v1/status", "/metrics", "/../etc"] {
        let (head, _) = fetch(&listener, &format!("GET {path}"), "127.0.0.1", "").await;
        assert!(head.starts_with("HTTP/1.1 404 "), "{path}: {head}");
    }
}

#[tokio::test]
async fn without_a_token_only_addresses_and_localhost_are_answered() {
    let listener = listener(None).await;
    for (host, status) in [
        ("127.0.0.1:9470", 200),
        ("[::1]:9470", 200),
        ("LOCALHOST", 200),
        ("rebound.example:9470", 421),
        ("127.0.0.1.rebound.example", 421),
        ("", 421),
    ] {
        let (head, _) = fetch(&listener, "GET /", host, "").await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{host}: {head}");
    }
}

#[tokio::test]
async fn a_token_opens_the_page_and_nothing_else_does() {
    let listener = listener(Some(token())).await;
    let wrong = ["", "Cookie: tidegate-page=0123456789abcde0\r\n", "Authorization: Bearer no\r\n"];
    for (path, more) in
        ["/", "/live?view=pools", "/explain"].iter().flat_map(|path| wrong.map(|more| (path, more)))
    {
        let (head, body) = fetch(&listener, &format!("GET {path}"), "edge-1.example", more).await;
        assert!(head.starts_with("HTTP/1.1 401 ") && !body.contains("wide"), "{path} {more}: {head}");
    }
    for more in
        [format!("Authorization: Bearer {TOKEN}\r\n"), format!("Cookie: a=b; tidegate-page={TOKEN}\r\n")]
    {
        let (head, body) = fetch(&listener, "GET /live?view=pools", "edge-1.example", &more).await;
        assert!(head.starts_with("HTTP/1.1 200 ") && body.contains("wide"), "{head} {body}");
    }
    for (entered, status) in [(TOKEN, 303), ("0123456789abcde0", 401)] {
        let form = format!("token={entered}");
        let more = format!("Content-Length: {}\r\n\r\n{form}", form.len());
        let (head, _) = fetch(&listener, "POST /", "edge-1.example", &more).await;
        assert!(head.starts_with(&format!("HTTP/1.1 {status} ")), "{entered}: {head}");
        let has_cookie = head.contains("HttpOnly; SameSite=Strict");
        assert_eq!(has_cookie, status == 303, "{head}");
    }
}

#[test]
fn the_page_of_other_hosts_needs_a_token() {
    let text = "apiVersion: tidegate.dev/v1alpha1\nkind: GatewayConfig\ndataplane:\n  cores: [0]\n  interfaces: \
                [{name: up, device: net_null0, addresses: [10.0.0.1/24]}]\n\
                admin: {page: {listen: '0.0.0.0:9470'}}\n";
    let loaded = tidegate_model::config::parse(text, "gateway.yaml", Path::new("."), 2);
    let report = loaded.report.to_string();
    assert!(loaded.config.is_none(), "{report}");
    assert!(
        report.contains("gateway.yaml:6:24: error: admin.page.listen: 0.0.0.0:9470 is not a loopback"),
        "{report}"
    );
}
