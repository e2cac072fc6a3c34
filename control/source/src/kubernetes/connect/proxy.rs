//! Selects an HTTP proxy and opens a tunnel through it to the API server (CONNECT, RFC 9110 section 9.3.6).
//!
//! [`Proxy::choose`] follows the rules of Kubernetes' own clients: `proxy-url` of the cluster takes precedence;
//! otherwise the environment applies (`HTTPS_PROXY`, for http API servers `HTTP_PROXY`, in upper or lower case), except
//! for hosts in `NO_PROXY` and for loopback. [`Tunnel`] connects. `connect` calls it.
//!
//! Implemented here because kube-client 5.0.0 compares `NO_PROXY` with the address of the proxy instead of the server's
//! (`config/file_loader.rs`), and `hyper-util` supports no ports in it. Neither excludes loopback. The tunnel of
//! `hyper-util` omits the proxy's own response from its errors, which operators need to fix a refusal.
//!
//! Invariant: no message contains the password of a proxy.

use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine;
use hyper::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioIo;
use ipnet::IpNet;
use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::Service;

use super::super::error_text::causes;
use super::server_addresses::host_of;

/// The maximum size of a proxy's response.
const RESPONSE_BYTES_MAX: usize = 8 * 1024;
/// The accepted forms of a proxy URL, for messages.
const PROXY: &str = "http://HOST:PORT, http://USER:PASSWORD@HOST:PORT";

/// An HTTP proxy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Proxy {
    /// Scheme, host and port.
    address: Uri,
    /// `user:password`.
    user: Option<Vec<u8>>,
}

impl Proxy {
    /// The proxy for an API server, if there is one.
    ///
    /// # Errors
    /// A configured proxy can't be used.
    pub(super) fn choose(
        server: &Uri,
        of_cluster: Option<&str>,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Option<Self>, String> {
        if let Some(named) = of_cluster.filter(|named| !named.is_empty()) {
            return Self::parse(named).map(Some).map_err(|why| format!("proxy-url {why}"));
        }
        let either = |name: &str| {
            let lower = name.to_lowercase();
            [name, &lower].into_iter().find_map(|name| Some((name.to_owned(), environment(name)?)))
        };
        let name = if server.scheme_str() == Some("http") { "HTTP_PROXY" } else { "HTTPS_PROXY" };
        let Some((name, named)) = either(name).filter(|(_, named)| !named.is_empty()) else {
            return Ok(None);
        };
        let direct = either("NO_PROXY").map(|(_, list)| list).unwrap_or_default();
        if is_direct(server, &direct) {
            return Ok(None);
        }
        Self::parse(&named).map(Some).map_err(|why| format!("${name} {why}"))
    }

    fn parse(named: &str) -> Result<Self, String> {
        let refused = |what: &str| Err(format!("{what}; accepted: {PROXY}"));
        // The scheme is optional in environment variables.
        let full = if named.contains("://") { named.to_owned() } else { format!("http://{named}") };
        let Ok(uri) = full.parse::<Uri>() else { return refused("is not a URL") };
        match uri.scheme_str() {
            Some("http") => {}
            Some(other) => return refused(&format!("has the scheme {other}, which is not supported")),
            None => return refused("is not a URL"),
        }
        let Some(authority) = uri.authority() else { return refused("has no host") };
        let user = authority.as_str().rsplit_once('@').map(|(user, _)| percent_decode_str(user).collect());
        let port = authority.port_u16().unwrap_or(80);
        match format!("http://{}:{port}", authority.host()).parse() {
            Ok(address) if !authority.host().is_empty() => Ok(Self { address, user }),
            _ => refused("has no host"),
        }
    }
}

/// Whether the API server is reached without the proxy of the environment. This applies to loopback and to entries of
/// `NO_PROXY`: `*`, addresses, CIDRs, domains with all of their subdomains, and with a leading dot only the subdomains.
/// All entries except CIDRs may include a port.
fn is_direct(server: &Uri, list: &str) -> bool {
    let (host, port) = host_of(server).unwrap_or_default();
    let host = host.to_lowercase();
    let ip: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || ip.is_some_and(|ip| ip.is_loopback()) {
        return true;
    }
    list.split(',').map(|entry| entry.trim().to_lowercase()).filter(|entry| !entry.is_empty()).any(|entry| {
        if entry == "*" {
            return true;
        }
        if let Ok(network) = entry.parse::<IpNet>() {
            return ip.is_some_and(|ip| network.contains(&ip));
        }
        let named = entry.parse::<IpAddr>().is_ok();
        let (name, wanted) = match entry.rsplit_once(':') {
            Some((name, wanted)) if !named => (name, wanted.parse::<u16>().ok()),
            _ => (entry.as_str(), None),
        };
        if wanted.is_some_and(|wanted| wanted != port) {
            return false;
        }
        let name = name.trim_matches(['[', ']']);
        if let Ok(named) = name.parse::<IpAddr>() {
            return ip == Some(named);
        }
        let name = name.strip_prefix('*').unwrap_or(name);
        match name.strip_prefix('.') {
            Some(domain) => host.strip_suffix(domain).is_some_and(|below| below.ends_with('.')),
            None => host.strip_suffix(name).is_some_and(|below| below.is_empty() || below.ends_with('.')),
        }
    })
}

/// Connects to the API server, through the proxy if there is one.
#[derive(Debug, Clone)]
pub(super) struct Tunnel {
    pub(super) tcp: HttpConnector,
    pub(super) proxy: Option<Proxy>,
}

impl Service<Uri> for Tunnel {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, io::Error>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        self.tcp.poll_ready(context).map_err(io::Error::other)
    }

    fn call(&mut self, server: Uri) -> Self::Future {
        let Some(proxy) = self.proxy.clone() else {
            let connected = self.tcp.call(server);
            return Box::pin(async move { connected.await.map_err(io::Error::other) });
        };
        let connected = self.tcp.call(proxy.address.clone());
        Box::pin(async move {
            let address = proxy.address.to_string();
            let failed =
                |what: String| io::Error::other(format!("proxy {}: {what}", address.trim_end_matches('/')));
            let stream = connected.await.map_err(|error| failed(causes(&error)))?;
            let mut stream = stream.into_inner();
            request_tunnel(&mut stream, &server, proxy.user.as_deref()).await.map_err(failed)?;
            Ok(TokioIo::new(stream))
        })
    }
}

/// Requests a tunnel from the proxy.
async fn request_tunnel(stream: &mut TcpStream, server: &Uri, user: Option<&[u8]>) -> Result<(), String> {
    let (_, port) = host_of(server).unwrap_or_default();
    // An IPv6 address keeps its brackets.
    let host = server.host().unwrap_or_default();
    let mut request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n");
    if let Some(user) = user {
        let encoded = base64::engine::general_purpose::STANDARD.encode(user);
        request.push_str(&format!("Proxy-Authorization: Basic {encoded}\r\n"));
    }
    request.push_str("\r\n");
    stream.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
    let mut response = Vec::new();
    // Read the head byte by byte, because the following bytes belong to the API server.
    while !response.ends_with(b"\r\n\r\n") {
        if response.len() >= RESPONSE_BYTES_MAX {
            return Err(format!("its response exceeds {RESPONSE_BYTES_MAX} bytes"));
        }
        let byte = stream.read_u8().await;
        response.push(
            byte.map_err(|error| format!("the connection ended in the middle of its response: {error}"))?,
        );
    }
    let response = String::from_utf8_lossy(&response);
    let status = response.lines().next().unwrap_or_default();
    let code = status.strip_prefix("HTTP/1.").and_then(|rest| rest.split(' ').nth(1));
    match code.map(|code| code.starts_with('2')) {
        Some(true) => Ok(()),
        Some(false) => Err(format!("it refuses to connect to {host}:{port}: {status}")),
        None => Err("it does not speak HTTP".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn uri(text: &str) -> Uri {
        text.parse().expect("a URI")
    }

    fn chosen(
        server: &str,
        of_cluster: Option<&str>,
        environment: &[(&str, &str)],
    ) -> Result<String, String> {
        let of =
            |name: &str| environment.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned());
        let proxy = Proxy::choose(&uri(server), of_cluster, of)?;
        Ok(proxy.map_or_else(|| "direct".to_owned(), |proxy| proxy.address.to_string()))
    }

    #[test]
    fn the_proxy_of_the_cluster_overrides_the_environment() {
        let environment = [("HTTPS_PROXY", "http://other:1"), ("NO_PROXY", "*")];
        let said = chosen("https://10.0.0.1:6443", Some("http://proxy:3128"), &environment);
        assert_eq!(said.as_deref(), Ok("http://proxy:3128/"));
        assert_eq!(
            chosen("https://127.0.0.1:6443", Some("http://proxy"), &[]).as_deref(),
            Ok("http://proxy:80/")
        );
    }

    #[test]
    fn the_proxy_of_the_environment_depends_on_the_scheme_and_not_loopback() {
        let both = [("HTTPS_PROXY", "secure:1"), ("http_proxy", "http://plain:2")];
        assert_eq!(chosen("https://10.0.0.1", None, &both).as_deref(), Ok("http://secure:1/"));
        assert_eq!(chosen("http://10.0.0.1", None, &both).as_deref(), Ok("http://plain:2/"));
        for server in ["https://127.0.0.1:6443", "https://localhost", "https://[::1]:6443"] {
            assert_eq!(chosen(server, None, &both).as_deref(), Ok("direct"), "{server}");
        }
        assert_eq!(chosen("https://10.0.0.1", None, &[("HTTPS_PROXY", "")]).as_deref(), Ok("direct"));
    }

    #[test]
    fn no_proxy_accepts_addresses_networks_and_domains_with_ports() {
        for (list, server, direct) in [
            ("10.0.0.1", "https://10.0.0.1:6443", true),
            ("10.0.0.1:443", "https://10.0.0.1:6443", false),
            ("10.0.0.1:6443", "https://10.0.0.1:6443", true),
            ("192.0.2.0/24, 10.0.0.0/8,", "https://10.0.0.1:6443", true),
            ("2001:db8::1", "https://[2001:db8::1]:6443", true),
            ("[2001:db8::1]:443", "https://[2001:db8::1]:6443", false),
            ("2001:db8::/32", "https://[2001:db8::1]", true),
            ("example.org", "https://api.example.org", true),
            ("Example.org", "https://EXAMPLE.org", true),
            ("example.org", "https://anexample.org", false),
            (".example.org", "https://api.example.org", true),
            (".example.org", "https://example.org", false),
            ("*.example.org", "https://api.example.org", true),
            ("example.org:6443", "https://api.example.org:6443", true),
            ("*", "https://10.0.0.1", true),
            ("", "https://10.0.0.1", false),
        ] {
            let environment = [("HTTPS_PROXY", "http://proxy:3128"), ("no_proxy", list)];
            let proxy = chosen(server, None, &environment).expect("a proxy that can be used");
            assert_eq!(proxy == "direct", direct, "{list} for {server}: {proxy}");
        }
    }

    #[test]
    fn unsupported_proxies_are_refused_by_name_without_their_password() {
        for (named, expected) in [
            (
                "socks5://me:hush@proxy:1080",
                "proxy-url has the scheme socks5, which is not supported; accepted: http://",
            ),
            ("https://proxy", "proxy-url has the scheme https, which is not supported"),
            ("http://me:hush@", "proxy-url is not a URL"),
            ("http:// proxy", "proxy-url is not a URL"),
        ] {
            let text = chosen("https://10.0.0.1", Some(named), &[]).expect_err(named);
            assert!(text.starts_with(expected) && !text.contains("hush"), "{text}");
        }
        let text = chosen("https://10.0.0.1", None, &[("https_proxy", "socks5://proxy")])
            .expect_err("not supported");
        assert!(text.starts_with("$https_proxy has the scheme socks5"), "{text}");
    }

    #[test]
    fn the_password_of_a_proxy_is_decoded_before_it_is_sent() {
        let proxy = Proxy::parse("http://me:p%40ss%3Aword%@proxy:1").expect("a proxy");
        assert_eq!(proxy.user.as_deref(), Some(&b"me:p@ss:word%"[..]));
    }
}
