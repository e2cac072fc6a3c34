//! The network checks: TCP, HTTP, TLS, UDP and SCTP through this host's kernel, to a backend's own address or, through the
//! dataplane, to the VIP on this backend ([`Probes`]).
//!
//! Each check opens a new connection, so it sees what a new client would see. The memory of a check is bounded: the
//! head of an HTTP answer is read up to [`HEAD_BYTES_MAX`], the body is not read.
//!
//! Connections are closed with RST, so that thousands of checks a second leave no TIME_WAIT.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderMap, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustix::io::Errno;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{ClientConfig, Resumption};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};
use tidegate_probe::{Flow, ProbePath, Probes};
use tidegate_wire::proto;
use tidegate_wire::proxy_header::ProxyVersion;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpSocket, TcpStream, UdpSocket};
use tokio_rustls::TlsConnector;

use super::association::{Init, Reply};
use super::check_result::{Answer, CheckResult};
use super::runner::Prober;
use super::{Check, Failure, Target};

/// The maximum length of the head of an answer. A longer one does not count as HTTP.
const HEAD_BYTES_MAX: usize = 16 * 1024;
/// The user agent, which appears in the logs of servers.
const AGENT: &str = concat!("tidegate-health/", env!("CARGO_PKG_VERSION"));
/// The header in which a node reports how many ready endpoints of the Service it has.
const ENDPOINT_WEIGHT: &str = "x-load-balancing-endpoint-weight";

/// Performs checks over the network.
#[derive(Debug, Clone)]
pub struct NetworkProber {
    tls: TlsConfig,
    probes: Option<Arc<Probes>>,
}

#[derive(Debug, Clone)]
struct TlsConfig(Arc<ClientConfig>);

impl NetworkProber {
    /// A prober; cheap to clone.
    #[must_use]
    pub fn new() -> Self {
        Self { tls: TlsConfig::accepting_any_certificate(), probes: None }
    }

    /// Checks targets at their VIPs through these probes. If there are no probes, or they have no path to a target, the
    /// target is checked at its own address.
    #[must_use]
    pub fn through(self, probes: Arc<Probes>) -> Self {
        Self { probes: Some(probes), ..self }
    }

    async fn result(&self, target: &Target) -> Result<Option<u16>, Fault> {
        let path = self.path(target);
        let address = match (&target.at_vip, &path) {
            (Some(at), Some(_)) => SocketAddr::new(at.vip, target.address.port()),
            _ => target.address,
        };
        if target.probe.check == Check::Udp {
            return match path {
                Some((probes, path)) => datagram_at_vip(probes, path, address.port()).await,
                None => datagram(address).await,
            }
            .map(|()| None);
        }
        if target.probe.check == Check::Sctp {
            return associate(path, address).await.map(|()| None);
        }
        // A flow that was dropped is forwarded for another few seconds, so that the end of the connection reaches the
        // backend.
        let (mut stream, _flow) = match path {
            Some((probes, path)) => connect_at_vip(probes, path, address.port()).await?,
            None => (connect(address).await?, None),
        };
        if let Some(version) = target.probe.header {
            stream.write_all(header_without_client(version)).await?;
        }
        match &target.probe.check {
            Check::Tcp => Ok(None),
            Check::Udp | Check::Sctp => unreachable!("they have no stream"),
            Check::Http { path } => {
                let head = get(stream, address, path).await?;
                good(&head, 200..400).map(|()| None)
            }
            Check::Https { path } => {
                let tls = TlsConnector::from(Arc::clone(&self.tls.0));
                let stream = tls.connect(ServerName::from(address.ip()), stream).await;
                let head = get(stream.map_err(|_| Failure::Tls)?, address, path).await?;
                good(&head, 200..400).map(|()| None)
            }
            Check::NodeProxy => {
                let head = get(stream, address, "/healthz").await?;
                good(&head, 200..201).map(|()| None)
            }
            Check::NodeHealthPort => {
                let head = get(stream, address, "/").await?;
                let weight = weight(head.headers());
                good(&head, 200..201).map(|()| weight).map_err(|fault| Fault { weight, ..fault })
            }
        }
    }

    /// The path to a target's VIP, if the target is checked there.
    fn path(&self, target: &Target) -> Option<(&Probes, ProbePath)> {
        let (at, probes) = (target.at_vip.as_ref()?, self.probes.as_deref()?);
        Some((probes, probes.path(at.vip, target.address.ip(), at.mode, &at.tunnel)?))
    }
}

impl Default for NetworkProber {
    fn default() -> Self {
        Self::new()
    }
}

impl Prober for NetworkProber {
    async fn run_check(&self, target: &Target) -> Answer {
        match self.result(target).await {
            Ok(weight) => Answer { result: CheckResult::Success, weight },
            Err(fault) => Answer { result: fault.result, weight: fault.weight },
        }
    }
}

/// Why a check did not succeed.
#[derive(Debug)]
struct Fault {
    result: CheckResult,
    weight: Option<u16>,
}

impl Fault {
    /// A fault of this host, which says nothing about the target.
    const OURS: Self = Self { result: CheckResult::Inconclusive, weight: None };
}

impl From<Failure> for Fault {
    fn from(failure: Failure) -> Self {
        Self { result: CheckResult::Failure(failure), weight: None }
    }
}

impl From<io::Error> for Fault {
    fn from(error: io::Error) -> Self {
        Self { result: result_of(&error), weight: None }
    }
}

/// A PROXY protocol header that names no client: servers treat the connection as one of the sender itself.
fn header_without_client(version: ProxyVersion) -> &'static [u8] {
    match version {
        ProxyVersion::V1 => b"PROXY UNKNOWN\r\n",
        // Command LOCAL, no family, no addresses.
        ProxyVersion::V2 => b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0",
        // The TOA option replaces the header.
        ProxyVersion::Toa => b"",
    }
}

/// A TCP handshake.
async fn connect(address: SocketAddr) -> Result<TcpStream, Fault> {
    let stream = TcpStream::connect(address).await?;
    // If this fails, the connection is closed with FIN instead of RST.
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    Ok(stream)
}

/// A TCP handshake with a VIP on one backend.
async fn connect_at_vip(
    probes: &Probes,
    path: ProbePath,
    port: u16,
) -> Result<(TcpStream, Option<Flow<'_>>), Fault> {
    let ends = path.ends();
    let ours = |_: io::Error| Fault::OURS;
    let socket = if ends.near.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }.map_err(ours)?;
    bind_device(probes, &socket);
    socket.bind(SocketAddr::new(ends.near, 0)).map_err(ours)?;
    let near_port = socket.local_addr().map_err(ours)?.port();
    let flow = probes.open(proto::TCP, near_port, port, path);
    let stream = socket.connect(SocketAddr::new(ends.far, port)).await?;
    let _ = socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO));
    Ok((stream, Some(flow)))
}

/// The routes of other gateways on this host may lead to this address, too. Binding selects our device.
fn bind_device(probes: &Probes, socket: &impl std::os::fd::AsFd) {
    if let Some(device) = probes.device() {
        let _ = socket2::SockRef::from(socket).bind_device(Some(device.as_bytes()));
    }
}

/// An empty datagram to a VIP on one backend.
async fn datagram_at_vip(probes: &Probes, path: ProbePath, port: u16) -> Result<(), Fault> {
    let ends = path.ends();
    let ours = |_: io::Error| Fault::OURS;
    let socket = UdpSocket::bind(SocketAddr::new(ends.near, 0)).await.map_err(ours)?;
    bind_device(probes, &socket);
    let near_port = socket.local_addr().map_err(ours)?.port();
    let _flow = probes.open(proto::UDP, near_port, port, path);
    socket.connect(SocketAddr::new(ends.far, port)).await?;
    socket.send(&[]).await?;
    socket.recv(&mut [0]).await?;
    Ok(())
}

/// Starts an association, at a VIP on one backend if there is a path to it.
async fn associate(path: Option<(&Probes, ProbePath)>, address: SocketAddr) -> Result<(), Fault> {
    let near = path.as_ref().map_or(Init::any(address.ip()), |(_, path)| path.ends().near);
    let init = Init::new(near, address.port()).map_err(|_| Fault::OURS)?;
    let (far, _flow) = match path {
        Some((probes, path)) => {
            bind_device(probes, &init);
            let far = path.ends().far;
            (far, Some(probes.open(proto::SCTP, init.local_port(), address.port(), path)))
        }
        None => (address.ip(), None),
    };
    match init.send_init(far).await? {
        Reply::Accepted => Ok(()),
        Reply::Refused => Err(Failure::Refused.into()),
    }
}

/// Sends an empty datagram. The result is success only if a datagram comes back.
async fn datagram(address: SocketAddr) -> Result<(), Fault> {
    let any: IpAddr =
        if address.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind((any, 0)).await?;
    // Connected, so that the kernel reports ICMP errors on this socket.
    socket.connect(address).await?;
    socket.send(&[]).await?;
    socket.recv(&mut [0]).await?;
    Ok(())
}

/// Sends a GET, and returns the head of the answer.
async fn get(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    address: SocketAddr,
    path: &str,
) -> Result<Response<()>, Fault> {
    let request = Request::get(path)
        .header(HOST, address.to_string())
        .header(USER_AGENT, AGENT)
        .header(ACCEPT, "*/*")
        .header(CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .expect("paths were parsed as such when they were configured");
    let mut http = http1::Builder::new();
    http.max_buf_size(HEAD_BYTES_MAX).title_case_headers(true);
    let (mut sender, connection) = http.handshake(TokioIo::new(stream)).await.map_err(|e| http_fault(&e))?;
    let answer = sender.send_request(request);
    // This task does the reading and writing. When it ends, the request fails.
    let drive = async {
        let _ = connection.await;
        std::future::pending::<std::convert::Infallible>().await
    };
    tokio::select! {
        biased;
        answer = answer => answer.map(|response| response.map(drop)).map_err(|e| http_fault(&e)),
        never = drive => match never {},
    }
}

fn good(head: &Response<()>, accepted: std::ops::Range<u16>) -> Result<(), Fault> {
    let status = head.status().as_u16();
    if accepted.contains(&status) { Ok(()) } else { Err(Failure::Status(status).into()) }
}

fn weight(headers: &HeaderMap) -> Option<u16> {
    let weight: u64 = headers.get(ENDPOINT_WEIGHT)?.to_str().ok()?.trim().parse().ok()?;
    Some(u16::try_from(weight).unwrap_or(u16::MAX))
}

fn http_fault(error: &hyper::Error) -> Fault {
    if error.is_parse() || error.is_parse_too_large() {
        return Failure::NotHttp.into();
    }
    let source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<io::Error>());
    source.map_or(Failure::Closed.into(), |error| Fault { result: result_of(error), weight: None })
}

/// Whether an error of the system concerns this host (no descriptor, no memory, no local port, forbidden by its
/// firewall) or the target.
fn result_of(error: &io::Error) -> CheckResult {
    let ours = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOBUFS,
        Errno::NOMEM,
        Errno::ADDRNOTAVAIL,
        Errno::AGAIN,
        Errno::PERM,
        Errno::ACCESS,
    ];
    if error.raw_os_error().is_some_and(|raw| ours.contains(&Errno::from_raw_os_error(raw))) {
        return CheckResult::Inconclusive;
    }
    let no_protocol = error.raw_os_error() == Some(Errno::NOPROTOOPT.raw_os_error());
    CheckResult::Failure(match error.kind() {
        io::ErrorKind::ConnectionRefused => Failure::Refused,
        // ICMP protocol unreachable: the host has no SCTP.
        _ if no_protocol => Failure::Refused,
        io::ErrorKind::HostUnreachable | io::ErrorKind::NetworkUnreachable => Failure::Unreachable,
        io::ErrorKind::TimedOut => Failure::Timeout,
        // Only rustls reports invalid data.
        io::ErrorKind::InvalidData => Failure::Tls,
        io::ErrorKind::ConnectionReset
        | io::ErrorKind::ConnectionAborted
        | io::ErrorKind::BrokenPipe
        | io::ErrorKind::UnexpectedEof => Failure::Closed,
        _ => Failure::System(error.raw_os_error()),
    })
}

impl TlsConfig {
    fn accepting_any_certificate() -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = AnyCertificate(Arc::clone(&provider));
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has cipher suites of TLS 1.2 and 1.3")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_no_client_auth();
        // Each check is a complete handshake, so no session is stored.
        config.resumption = Resumption::disabled();
        Self(Arc::new(config))
    }
}

/// Accepts every certificate: a check tests whether the server at this address works, and sends it no secret.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
#[path = "network_tests.rs"]
mod tests;
