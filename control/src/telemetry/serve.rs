//! The listener of `admin.listen`: answers `GET /metrics` with a page rendered for each request, and everything else
//! with 404.
//!
//! The page is rendered on a blocking thread, so that a large one does not delay other tasks, and compressed for
//! clients that accept gzip (RFC 9110 section 12.5.3), as Prometheus does. Each connection serves
//! one request: scrapes are seconds apart, and connections that close at once need no idle timer.
//!
//! Invariant: connections are bounded in number and in time ([`Limits::SCRAPES`]), and end with their [`Listener`].

use std::io::{self, Write as _};
use std::net::SocketAddr;
use std::sync::Arc;

use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::Incoming;
use hyper::header::{ACCEPT_ENCODING, ALLOW, CONTENT_ENCODING, HeaderValue, VARY};
use hyper::{HeaderMap, Method, Request, StatusCode};
use tidegate_http::{HttpResponse, Limits};

use super::exposition;
use crate::listener::Listener;

/// Listens, and answers `GET /metrics` with the result of `render`. Needs a tokio runtime with I/O and time; `render`
/// may block.
///
/// # Errors
/// If the address cannot be bound.
pub async fn serve(
    listen: SocketAddr,
    render: impl Fn() -> String + Send + Sync + 'static,
) -> io::Result<Listener> {
    let render = Arc::new(render);
    Listener::start(listen, Limits::SCRAPES, move |request| answer(request, render.clone())).await
}

async fn answer<R: Fn() -> String + Send + Sync + 'static>(
    request: Request<Incoming>,
    render: Arc<R>,
) -> HttpResponse {
    if request.uri().path() != "/metrics" {
        return tidegate_http::text(StatusCode::NOT_FOUND, "404: metrics are at /metrics\n");
    }
    if !matches!(*request.method(), Method::GET | Method::HEAD) {
        let mut answer = tidegate_http::text(StatusCode::METHOD_NOT_ALLOWED, "405: GET\n");
        answer.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return answer;
    }
    let is_gzip = accepts_gzip(request.headers());
    let page = move || if is_gzip { compressed(render().as_bytes()) } else { Ok(render().into_bytes()) };
    match tokio::task::spawn_blocking(page).await {
        Ok(Ok(page)) => {
            let mut answer = tidegate_http::with_type(StatusCode::OK, exposition::CONTENT_TYPE, page.into());
            answer.headers_mut().insert(VARY, HeaderValue::from_name(ACCEPT_ENCODING));
            if is_gzip {
                answer.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            }
            answer
        }
        // `render` panicked. The scrape fails, and forwarding continues.
        Err(_) | Ok(Err(_)) => {
            tidegate_http::text(StatusCode::INTERNAL_SERVER_ERROR, "500: the page could not be rendered\n")
        }
    }
}

/// Whether one of the encodings that the client accepts is gzip.
fn accepts_gzip(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).into_iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|encoding| {
        let (name, weight) = encoding.split_once(';').unwrap_or((encoding, "q=1"));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_some_and(|weight| weight > 0.0)
    })
}

fn compressed(page: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(page)?;
    encoder.finish()
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::task::JoinSet;

    use super::*;

    const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

    /// The complete answer to a request that is sent byte for byte.
    async fn fetch(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).await.expect("the listener listens");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    fn get(path: &str) -> String {
        format!("GET {path} HTTP/1.1\r\nHost: gateway\r\n\r\n")
    }

    #[tokio::test]
    async fn each_request_gets_a_new_page() {
        let made = AtomicU32::new(0);
        let render = move || format!("n {}\n", made.fetch_add(1, Ordering::Relaxed));
        let listener = serve(LOOPBACK, render).await.unwrap();
        for n in 0..2 {
            let answer = fetch(listener.address(), &get("/metrics")).await;
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
            assert!(
                head.contains("\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"),
                "{head}"
            );
            assert_eq!(body, format!("n {n}\n"));
        }
        let query = fetch(listener.address(), &get("/metrics?x=1")).await;
        assert!(query.ends_with("n 2\n"), "{query}");
    }

    #[tokio::test]
    async fn clients_that_accept_gzip_get_a_compressed_page() {
        let page = "tidegate_x 1\n".repeat(1_000);
        let rendered = page.clone();
        let listener = serve(LOOPBACK, move || rendered.clone()).await.unwrap();
        for (accepted, is_gzip) in
            [("gzip", true), ("br;q=1.0, GZIP;q=0.8", true), ("gzip;q=0", false), ("identity", false)]
        {
            let request =
                format!("GET /metrics HTTP/1.1\r\nHost: gateway\r\nAccept-Encoding: {accepted}\r\n\r\n");
            let mut stream = TcpStream::connect(listener.address()).await.unwrap();
            stream.write_all(request.as_bytes()).await.unwrap();
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer).await.unwrap();
            let end = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + 4;
            let head = String::from_utf8_lossy(&answer[..end]).to_ascii_lowercase();
            assert!(head.contains("\r\nvary: accept-encoding\r\n"), "{head}");
            assert_eq!(head.contains("\r\ncontent-encoding: gzip\r\n"), is_gzip, "{accepted}: {head}");
            let mut body = String::new();
            if is_gzip {
                assert!(answer.len() < page.len() / 4, "{}", answer.len());
                let mut decoder = flate2::read::GzDecoder::new(&answer[end..]);
                std::io::Read::read_to_string(&mut decoder, &mut body).expect("a gzip stream");
            } else {
                body = String::from_utf8(answer[end..].to_vec()).unwrap();
            }
            assert_eq!(body, page, "{accepted}");
        }
    }

    #[tokio::test]
    async fn other_paths_and_methods_are_refused_without_rendering() {
        let listener = serve(LOOPBACK, || panic!("no page is requested")).await.unwrap();
        for path in ["/", "/metrics/", "/metricsx"] {
            let answer = fetch(listener.address(), &get(path)).await;
            assert!(answer.starts_with("HTTP/1.1 404 "), "{path}: {answer}");
        }
        let post = "POST /metrics HTTP/1.1\r\nHost: gateway\r\nContent-Length: 0\r\n\r\n";
        let answer = fetch(listener.address(), post).await;
        assert!(answer.starts_with("HTTP/1.1 405 "), "{answer}");
        assert!(answer.contains("\r\nAllow: GET, HEAD\r\n"), "{answer}");
    }

    #[tokio::test]
    async fn a_page_that_panics_is_a_500_and_the_listener_continues() {
        let made = AtomicU32::new(0);
        let render = move || {
            assert!(made.fetch_add(1, Ordering::Relaxed) > 0, "the first page panics on purpose");
            "fine 1\n".to_owned()
        };
        let listener = serve(LOOPBACK, render).await.unwrap();
        assert!(fetch(listener.address(), &get("/metrics")).await.starts_with("HTTP/1.1 500 "));
        assert!(fetch(listener.address(), &get("/metrics")).await.ends_with("fine 1\n"));
    }

    #[tokio::test]
    async fn more_clients_than_connections_are_all_served() {
        let listener = serve(LOOPBACK, || "x 1\n".to_owned()).await.unwrap();
        let address = listener.address();
        let mut clients = JoinSet::new();
        for _ in 0..3 * Limits::SCRAPES.connections_max {
            clients.spawn(async move { fetch(address, &get("/metrics")).await });
        }
        let answers = clients.join_all().await;
        assert_eq!(answers.len(), 3 * Limits::SCRAPES.connections_max);
        assert!(answers.iter().all(|answer| answer.ends_with("x 1\n")));
    }

    #[tokio::test]
    async fn dropping_the_listener_closes_its_connections_and_its_port() {
        let listener = serve(LOOPBACK, String::new).await.unwrap();
        let address = listener.address();
        let mut waiting = TcpStream::connect(address).await.unwrap();
        waiting.write_all(b"GET /met").await.unwrap();
        drop(listener);
        let mut rest = Vec::new();
        // A reset also ends the connection.
        let _ = waiting.read_to_end(&mut rest).await;
        assert!(rest.is_empty());
        assert!(TcpStream::connect(address).await.is_err(), "nobody listens any more");
    }

    #[tokio::test]
    async fn an_address_in_use_is_an_error() {
        let listener = serve(LOOPBACK, String::new).await.unwrap();
        let error = serve(listener.address(), String::new).await.expect_err("it is taken");
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse);
    }
}
