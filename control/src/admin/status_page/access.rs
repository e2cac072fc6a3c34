//! Decides who may see the page: with a token, those who present it in a cookie or as a bearer token (RFC 6750 section
//! 2.1); without one, programs on this machine.
//!
//! Invariant: a web page of somebody else can't read this one. Without a token, the host in a request must be an address
//! or `localhost`, because another name may have been pointed at this listener (DNS rebinding).

use std::net::IpAddr;

use http_body_util::{BodyExt as _, Limited};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, COOKIE, HOST, HeaderValue, LOCATION, SET_COOKIE};
use hyper::{HeaderMap, Method, Request, StatusCode};
use tidegate_admin_api::query;
use tidegate_http::HttpResponse;
use tidegate_model::config::PageToken;

/// The name of the cookie. Cookies are shared by the ports of a host.
const NAME: &str = "tidegate-page";
/// The maximum size of the form with the token.
const FORM_BYTES_MAX: usize = 1_024;

pub(super) struct Access<T> {
    /// The current token.
    pub(super) token: T,
}

impl<T: Fn() -> Option<PageToken>> Access<T> {
    /// Returns a request that may be answered.
    ///
    /// # Errors
    /// The response to another request: a form for the token, or the redirect after it.
    pub(super) async fn check(&self, request: Request<Incoming>) -> Result<Request<Incoming>, HttpResponse> {
        let Some(token) = (self.token)() else {
            return if is_local_name(request.headers()) {
                Ok(request)
            } else {
                let what = "421: use an IP address or localhost, or configure admin.page.tokenFile\n";
                Err(tidegate_http::text(StatusCode::MISDIRECTED_REQUEST, what))
            };
        };
        if presented(request.headers()).any(|presented| token.is(presented)) {
            return Ok(request);
        }
        if request.uri().path() == "/page.css" {
            return Ok(request);
        }
        if (request.method(), request.uri().path()) != (&Method::POST, "/") {
            return Err(form(""));
        }
        let body = Limited::new(request.into_body(), FORM_BYTES_MAX).collect().await;
        let body = body.map(http_body_util::Collected::to_bytes).unwrap_or_default();
        let entered = query::value(&String::from_utf8_lossy(&body), "token").unwrap_or_default();
        Err(if token.is(entered.trim()) { enter(entered.trim()) } else { form("This is not the token.") })
    }
}

/// The tokens in a request.
fn presented(headers: &HeaderMap) -> impl Iterator<Item = &str> {
    let texts =
        |name| headers.get_all(name).into_iter().filter_map(|value: &HeaderValue| value.to_str().ok());
    let bearer = texts(AUTHORIZATION).filter_map(|text| text.strip_prefix("Bearer "));
    let cookies = texts(COOKIE).flat_map(|text| text.split(';'));
    bearer.chain(cookies.filter_map(|one| one.trim().strip_prefix(NAME)?.strip_prefix('=')))
}

fn is_local_name(headers: &HeaderMap) -> bool {
    let host = headers.get(HOST).and_then(|host| host.to_str().ok()).unwrap_or_default();
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|digit| digit.is_ascii_digit()) => name,
        _ => host,
    };
    let address = name.trim_start_matches('[').trim_end_matches(']').parse::<IpAddr>();
    name.eq_ignore_ascii_case("localhost") || address.is_ok()
}

fn form(fault: &str) -> HttpResponse {
    let page = include_str!("token.html").replace("FAULT", fault);
    tidegate_http::with_type(StatusCode::UNAUTHORIZED, "text/html; charset=utf-8", page.into())
}

/// The response to the right token.
fn enter(token: &str) -> HttpResponse {
    let mut answer = tidegate_http::with_type(StatusCode::SEE_OTHER, "text/plain", Bytes::new());
    let cookie = format!("{NAME}={token}; HttpOnly; SameSite=Strict; Path=/");
    let cookie = HeaderValue::from_str(&cookie).expect("a token has letters, digits, - and _");
    answer.headers_mut().insert(SET_COOKIE, cookie);
    answer.headers_mut().insert(LOCATION, HeaderValue::from_static("/"));
    answer
}
