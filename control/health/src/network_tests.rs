//! Tests each kind of check with real servers on loopback: HTTP by hyper, HTTPS by rustls with a generated certificate,
//! and raw sockets for servers that misbehave.

use std::convert::Infallible;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use http_body_util::Full;
use hyper::body::Incoming;
use hyper::service::service_fn;
use jiff::Timestamp;
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

use super::super::{Checker, Limits, Probe, Rules, Targets};
use super::*;

const LOOPBACK: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

async fn run_check(address: SocketAddr, check: Check) -> Answer {
    let target = Target::new(address, &Probe::new(check, Rules::default()).into());
    let bound = Duration::from_secs(10);
    tokio::time::timeout(bound, NetworkProber::new().run_check(&target))
        .await
        .expect("an answer within bounds")
}

fn failed(failure: Failure) -> Answer {
    CheckResult::Failure(failure).into()
}

const GOOD: Answer = Answer { result: CheckResult::Success, weight: None };

async fn listener() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind(LOOPBACK).await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    (listener, address)
}

/// Answers connections one after the other, and records the requests.
#[derive(Clone, Default)]
struct Server {
    requests: Arc<Mutex<Vec<Request<()>>>>,
    /// `/readyz` is answered with 500.
    not_ready: Arc<AtomicBool>,
}

impl Server {
    /// Serves HTTP. The path selects the status, as in `/204`; other paths get 404. The weight is 7 unless the query
    /// sets it, as in `/503?weight=0`.
    async fn http(&self) -> SocketAddr {
        let (listener, address) = listener().await;
        let server = self.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("it listens");
                server.serve(stream).await;
            }
        });
        address
    }

    /// Serves HTTPS with a self-signed certificate for another name.
    async fn https(&self, versions: &[&'static rustls::SupportedProtocolVersion]) -> SocketAddr {
        let made =
            rcgen::generate_simple_self_signed(["elsewhere.example".to_owned()]).expect("a certificate");
        let key = PrivateKeyDer::from(PrivatePkcs8KeyDer::from(made.signing_key.serialize_der()));
        let config =
            rustls::ServerConfig::builder_with_provider(rustls::crypto::ring::default_provider().into())
                .with_protocol_versions(versions)
                .expect("the provider has them")
                .with_no_client_auth()
                .with_single_cert(vec![made.cert.der().clone()], key)
                .expect("the key fits");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let (listener, address) = listener().await;
        let server = self.clone();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("it listens");
                if let Ok(stream) = acceptor.accept(stream).await {
                    server.serve(stream).await;
                }
            }
        });
        address
    }

    async fn serve(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) {
        let answer = |request: Request<Incoming>| {
            let uri = request.uri().clone();
            self.requests.lock().expect("no test panics with the lock").push(request.map(drop));
            let status = match uri.path() {
                "/readyz" if self.not_ready.load(Ordering::Relaxed) => 500,
                "/readyz" => 200,
                path => path.trim_start_matches('/').parse().unwrap_or(404),
            };
            let weight = uri.query().and_then(|q| q.strip_prefix("weight=")).unwrap_or("7").to_owned();
            async move {
                let answer =
                    Response::builder().status(status).header("X-Load-Balancing-Endpoint-Weight", weight);
                Ok::<_, Infallible>(answer.body(Full::<Bytes>::from("body")).expect("a response"))
            }
        };
        // The client closes the connection without a shutdown, so errors are ignored.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service_fn(answer))
            .await;
    }

    fn requests(&self) -> Vec<Request<()>> {
        std::mem::take(&mut self.requests.lock().expect("no test panics with the lock"))
    }
}

/// Accepts one connection, sends these bytes whatever was requested, and closes.
async fn raw(answer: &'static [u8]) -> SocketAddr {
    let (listener, address) = listener().await;
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("it listens");
        let _ = stream.read(&mut [0; 4096]).await;
        let _ = stream.write_all(answer).await;
    });
    address
}

/// A port on which nothing listens.
async fn closed() -> SocketAddr {
    let (_listener, address) = listener().await;
    address
}

#[tokio::test]
async fn checks_with_proxy_protocol_start_with_a_header_without_a_client() {
    for (version, header) in
        [(ProxyVersion::V1, &b"PROXY UNKNOWN\r\n"[..]), (ProxyVersion::V2, b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0")]
    {
        for check in [Check::Tcp, Check::Http { path: "/200".into() }] {
            let (listener, address) = listener().await;
            let probe = Probe::new(check.clone(), Rules::default()).with_header(Some(version));
            let target = Target::new(address, &probe.into());
            let server = async {
                let (mut stream, _) = listener.accept().await.expect("it listens");
                let mut read = vec![0; header.len()];
                stream.read_exact(&mut read).await.expect("a header");
                if check != Check::Tcp {
                    Server::default().serve(stream).await;
                }
                read
            };
            let prober = NetworkProber::new();
            let (read, answer) = tokio::join!(server, prober.run_check(&target));
            assert_eq!((&read[..], answer), (header, GOOD), "{target}");
        }
    }
}

#[tokio::test]
async fn a_tcp_check_needs_only_a_handshake() {
    let (listener, address) = listener().await;
    assert_eq!(run_check(address, Check::Tcp).await, GOOD);
    let (mut stream, _) = listener.accept().await.expect("the check connected");
    assert!(stream.read(&mut [0]).await.is_err(), "closed by RST: no TIME_WAIT is left");
    assert_eq!(run_check(closed().await, Check::Tcp).await, failed(Failure::Refused));
}

#[tokio::test]
async fn an_http_check_is_good_with_200_to_399() {
    let server = Server::default();
    let address = server.http().await;
    for (status, good) in
        [(200, true), (204, true), (302, true), (399, true), (400, false), (404, false), (503, false)]
    {
        let answer = run_check(address, Check::Http { path: format!("/{status}").into() }).await;
        assert_eq!(answer, if good { GOOD } else { failed(Failure::Status(status)) });
    }
    assert_eq!(server.requests().len(), 7, "redirections are not followed");
}

#[tokio::test]
async fn an_http_check_sends_path_host_and_user_agent() {
    let server = Server::default();
    let address = server.http().await;
    run_check(address, Check::Http { path: "/200?full=1".into() }).await;
    let requests = server.requests().remove(0);
    assert_eq!((requests.method().as_str(), requests.uri().to_string().as_str()), ("GET", "/200?full=1"));
    assert_eq!(requests.version(), hyper::Version::HTTP_11);
    let header = |name| requests.headers().get(name).and_then(|value| value.to_str().ok());
    assert_eq!(header("host"), Some(address.to_string().as_str()));
    assert_eq!(header("connection"), Some("close"));
    assert!(header("user-agent").is_some_and(|agent| agent.starts_with("tidegate-health/")));
}

#[tokio::test]
async fn misbehaving_servers_fail_with_a_specific_reason() {
    let check = || Check::Http { path: "/".into() };
    assert_eq!(run_check(raw(b"SSH-2.0-OpenSSH_9.2\r\n\r\n").await, check()).await, failed(Failure::NotHttp));
    assert_eq!(run_check(raw(b"").await, check()).await, failed(Failure::Closed));
    assert_eq!(run_check(raw(b"HTTP/1.1 200").await, check()).await, failed(Failure::Closed));
    assert_eq!(run_check(closed().await, check()).await, failed(Failure::Refused));
    let endless = Box::leak(
        [b"HTTP/1.1 200 OK\r\nx: ", [b'x'; 2 * HEAD_BYTES_MAX].as_slice()].concat().into_boxed_slice(),
    );
    assert_eq!(run_check(raw(endless).await, check()).await, failed(Failure::NotHttp));
    assert_eq!(run_check(raw(b"HTTP/1.0 200 OK\r\n\r\n").await, check()).await, GOOD, "HTTP/1.0 is accepted");
}

/// The answers are those of an API server (`docs/kubernetes.md`, section 9).
#[tokio::test]
async fn an_https_check_accepts_any_certificate_and_checks_the_status() {
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let server = Server::default();
        let address = server.https(&[version]).await;
        assert_eq!(run_check(address, Check::Https { path: "/200".into() }).await, GOOD);
        assert_eq!(
            run_check(address, Check::Https { path: "/500".into() }).await,
            failed(Failure::Status(500))
        );
        assert_eq!(server.requests().len(), 2);
    }
    let plain = Server::default().http().await;
    assert_eq!(run_check(plain, Check::Https { path: "/200".into() }).await, failed(Failure::Tls));
}

/// One of three API servers becomes not ready, is found to fail, and recovers (`docs/kubernetes.md`, section 9).
#[tokio::test]
async fn an_api_server_that_is_not_ready_fails_and_recovers() {
    let servers = [Server::default(), Server::default(), Server::default()];
    let rules = Rules {
        interval: Duration::from_millis(100),
        timeout: Duration::from_millis(100),
        unhealthy_threshold: 2,
        ..Rules::default()
    };
    let probe = Probe::new(Check::Https { path: "/readyz".into() }, rules).into();
    let mut targets = Vec::new();
    for server in &servers {
        targets.push(Target::new(server.https(rustls::ALL_VERSIONS).await, &probe));
    }
    servers[1].not_ready.store(true, Ordering::Relaxed);
    let checker = Checker::start(NetworkProber::new(), Limits::default(), "edge-1");
    checker.set_targets(targets.iter().cloned().collect::<Targets>());
    let bound = Duration::from_secs(30);
    let mut verdicts = checker.verdicts();
    // On a busy machine, another check may time out, so only this final state is asserted.
    let found = verdicts.wait_for(|now| {
        now.of(&targets[1]).failure == Some(Failure::Status(500)) && now.failing_count() == 1
    });
    tokio::time::timeout(bound, found).await.expect("within bounds").expect("the runner lives");
    servers[1].not_ready.store(false, Ordering::Relaxed);
    let back = verdicts.wait_for(|now| now.failing_count() == 0);
    tokio::time::timeout(bound, back).await.expect("within bounds").expect("the runner lives");
}

#[tokio::test]
async fn http_to_a_tls_port_fails() {
    let address = Server::default().https(&[&rustls::version::TLS13]).await;
    let answer = run_check(address, Check::Http { path: "/200".into() }).await;
    assert!(matches!(answer.result, CheckResult::Failure(Failure::NotHttp | Failure::Closed)), "{answer:?}");
}

#[tokio::test]
async fn a_udp_check_fails_only_by_port_unreachable() {
    let socket = UdpSocket::bind(LOOPBACK).await.expect("a free port");
    let address = socket.local_addr().expect("it is bound");
    let echo = tokio::spawn(async move {
        let (n, from) = socket.recv_from(&mut [0; 8]).await.expect("a datagram comes");
        socket.send_to(b"here", from).await.expect("it is sent");
        (n, socket)
    });
    assert_eq!(run_check(address, Check::Udp).await, GOOD);
    let (n, socket) = echo.await.expect("it answered");
    assert_eq!(n, 0, "an empty datagram");
    // The server does not answer. The runner ends the check after the timeout, and the check passes.
    let silent = tokio::time::timeout(Duration::from_millis(50), datagram(address)).await;
    assert!(silent.is_err() && Check::Udp.passes_in_silence());
    drop(socket);
    assert_eq!(run_check(address, Check::Udp).await, failed(Failure::Refused));
}

#[tokio::test]
async fn a_health_check_node_port_reports_its_weight_even_with_503() {
    let answers = |status: &'static str, weight: &'static str| async move {
        let head = format!(
            "HTTP/1.1 {status}\r\nContent-Length: 0\r\nX-Load-Balancing-Endpoint-Weight: {weight}\r\n\r\n"
        );
        run_check(raw(head.leak().as_bytes()).await, Check::NodeHealthPort).await
    };
    assert_eq!(answers("200 OK", "3").await, Answer { weight: Some(3), ..GOOD });
    let gone = Answer { weight: Some(0), ..failed(Failure::Status(503)) };
    assert_eq!(answers("503 Service Unavailable", "0").await, gone);
    assert_eq!(answers("200 OK", "70000").await.weight, Some(u16::MAX));
    assert_eq!(answers("200 OK", "many").await.weight, None);
    assert_eq!(answers("302 Found", "3").await.result, CheckResult::Failure(Failure::Status(302)));
}

/// The gateway's own health-check node port passes the check that gateways perform on nodes.
#[tokio::test]
async fn the_gateways_own_health_check_node_port_satisfies_its_check() {
    use crate::health_check_node_port::{ProxyHealth, http_answer};
    use tidegate_model::health::HealthCheckNodePort;
    use tidegate_model::objects::{ObjectKey, Port};
    for (local_endpoints, result) in
        [(2, CheckResult::Success), (0, CheckResult::Failure(Failure::Status(503)))]
    {
        let (listener, address) = listener().await;
        let port = Port::new(address.port()).expect("it is bound");
        let served = HealthCheckNodePort { port, service: ObjectKey::new("default", "web"), local_endpoints };
        let report = ProxyHealth::new(Duration::from_secs(1), Timestamp::UNIX_EPOCH);
        let report = report.report(Duration::ZERO, Timestamp::UNIX_EPOCH);
        let serving = tokio::spawn(async move {
            let (stream, _) = listener.accept().await.expect("it listens");
            let answer =
                service_fn(|_| async { Ok::<_, Infallible>(http_answer::service(&served, &report)) });
            let _ = hyper::server::conn::http1::Builder::new()
                .serve_connection(TokioIo::new(stream), answer)
                .await;
        });
        let weight = u16::try_from(local_endpoints).ok();
        assert_eq!(run_check(address, Check::NodeHealthPort).await, Answer { result, weight });
        serving.abort();
    }
}

#[tokio::test]
async fn the_proxys_healthz_is_good_with_200() {
    let server = Server::default();
    let address = server.http().await;
    assert_eq!(run_check(address, Check::NodeProxy).await, failed(Failure::Status(404)));
    assert_eq!(server.requests()[0].uri().path(), "/healthz");
    assert_eq!(
        run_check(raw(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n").await, Check::NodeProxy).await,
        GOOD
    );
}

#[test]
fn faults_of_the_gateway_are_distinguished_from_those_of_the_target() {
    let of = |errno: Errno| result_of(&io::Error::from_raw_os_error(errno.raw_os_error()));
    for ours in [Errno::MFILE, Errno::NFILE, Errno::NOBUFS, Errno::ADDRNOTAVAIL, Errno::PERM] {
        assert_eq!(of(ours), CheckResult::Inconclusive, "{ours}");
    }
    assert_eq!(of(Errno::CONNREFUSED), CheckResult::Failure(Failure::Refused));
    assert_eq!(of(Errno::HOSTUNREACH), CheckResult::Failure(Failure::Unreachable));
    assert_eq!(of(Errno::CONNRESET), CheckResult::Failure(Failure::Closed));
}

mod associations {
    use std::io::Read;

    use socket2::{Domain, Protocol, Socket, Type};
    use tidegate_wire::sctp::{self, chunk};

    use super::*;

    /// The tag that the server requires.
    const TAG: u32 = 0x5555_5555;

    /// A packet of the server with the tag of the client.
    fn packet(init: &[u8], tag: u32, kind: u8) -> Vec<u8> {
        let mut packet = [&init[2..4], &init[..2], &tag.to_be_bytes(), &[0; 4]].concat();
        packet.extend([kind, 0, 0, 20]);
        packet.extend(TAG.to_be_bytes());
        packet.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
        let crc = sctp::crc32c(&packet);
        packet[8..12].copy_from_slice(&crc);
        packet
    }

    /// A server on this loopback port. It answers one INIT with the packets that `answers` derives from it and its tag,
    /// and returns the next packet that it receives, if any.
    fn server(
        port: u16,
        answers: fn(&[u8], u32) -> Vec<Vec<u8>>,
    ) -> std::thread::JoinHandle<Option<Vec<u8>>> {
        let socket =
            Socket::new(Domain::IPV4, Type::RAW, Some(Protocol::from(132))).expect("this test needs root");
        socket.bind(&LOOPBACK.into()).expect("loopback");
        socket.set_read_timeout(Some(Duration::from_secs(2))).expect("a timeout");
        std::thread::spawn(move || {
            let next = || {
                loop {
                    let mut bytes = [0; 2048];
                    let len = (&socket).read(&mut bytes).ok()?;
                    let packet = bytes[20..len].to_vec();
                    // Raw sockets also deliver the packets of other tests.
                    if packet[2..4] == port.to_be_bytes() {
                        assert_eq!(packet[8..12], sctp::crc32c(&packet), "the check's packets are intact");
                        return Some(packet);
                    }
                }
            };
            let init = next()?;
            assert_eq!(sctp::kind(&init).0, sctp::Kind::Init);
            let tag = u32::from_be_bytes(init[16..20].try_into().expect("four bytes"));
            for answer in answers(&init, tag) {
                socket.send_to(&answer, &LOOPBACK.into()).expect("it is sent");
            }
            next()
        })
    }

    #[tokio::test]
    #[ignore = "needs root, for raw sockets: make test runs it"]
    async fn an_sctp_check_passes_on_an_init_ack_and_aborts_it() {
        let served = server(3868, |init, tag| vec![packet(init, tag, chunk::INIT_ACK)]);
        assert_eq!(run_check("127.0.0.1:3868".parse().expect("an address"), Check::Sctp).await, GOOD);
        let abort = served.join().expect("the server thread finished").expect("a packet follows");
        assert_eq!((&abort[4..8], &abort[12..16]), (&TAG.to_be_bytes()[..], &[chunk::ABORT, 0, 0, 4][..]));
    }

    #[tokio::test]
    #[ignore = "needs root, for raw sockets: make test runs it"]
    async fn an_sctp_check_fails_on_an_abort_and_ignores_unrelated_packets() {
        let served = server(3869, |init, tag| {
            let mut damaged = packet(init, tag, chunk::INIT_ACK);
            damaged[8] ^= 1;
            let elsewhere = packet(&[&[0, 9], &init[2..]].concat(), tag, chunk::INIT_ACK);
            let forged = packet(init, tag ^ 1, chunk::INIT_ACK);
            vec![damaged, elsewhere, forged, packet(init, tag, chunk::ABORT)]
        });
        let address = "127.0.0.1:3869".parse().expect("an address");
        assert_eq!(run_check(address, Check::Sctp).await, failed(Failure::Refused));
        assert_eq!(served.join().expect("the server thread finished"), None, "nothing follows");
    }
}
