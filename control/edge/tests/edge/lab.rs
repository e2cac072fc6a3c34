//! A network namespace with an edge, its Services and real servers. It needs root or a kernel that allows user
//! namespaces, and `unshare`, `ip`, `curl` and `haproxy`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use rcgen::{CertificateParams, KeyPair};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tidegate_edge::status::Status;

const IN_NAMESPACE: &str = "TIDEGATE_EDGE_TEST_IN_NAMESPACE";
/// How long a condition may take, on a busy machine.
const WAIT_MAX: Duration = Duration::from_secs(60);
pub(crate) const VIP: &str = "203.0.113.1";

/// Runs a test in a network namespace of its own: this program runs itself again, with only the current test.
pub(crate) fn in_namespace(test: impl FnOnce(&mut Lab)) {
    if std::env::var_os(IN_NAMESPACE).is_some() {
        sh("ip link set lo up");
        for address in [VIP, "203.0.113.2", "10.0.0.1", "10.0.0.2", "10.0.0.3", "198.51.100.7"] {
            sh(&format!("ip address add {address}/32 dev lo"));
        }
        return test(&mut Lab::new());
    }
    let name = thread::current().name().expect("the name of the test").to_owned();
    let mut command = Command::new("unshare");
    if !rustix::process::geteuid().is_root() {
        command.args(["--user", "--map-root-user"]);
    }
    command.args(["--net", "--"]).arg(std::env::current_exe().expect("a path"));
    command.args(["--exact", &name, "--nocapture", "--test-threads=1"]).env(IN_NAMESPACE, "1");
    let ran = command.output().expect("unshare");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(ran.status.success(), "{}{}", text(&ran.stdout), text(&ran.stderr));
    assert!(text(&ran.stdout).contains("1 passed"), "the test ran: {}", text(&ran.stdout));
}

pub(crate) fn sh(command: &str) {
    let ran = Command::new("sh").args(["-c", command]).output().expect("sh");
    assert!(ran.status.success(), "{command}: {}", String::from_utf8_lossy(&ran.stderr));
}

/// Waits for a condition.
pub(crate) fn wait<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + WAIT_MAX;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < until, "not within {WAIT_MAX:?}: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

pub(crate) struct Lab {
    directory: tempfile::TempDir,
    edge: Option<Child>,
}

impl Lab {
    fn new() -> Self {
        let lab = Self { directory: tempfile::tempdir().expect("a directory"), edge: None };
        fs::create_dir(lab.path("manifests")).expect("created");
        lab.configure("");
        lab
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Writes the configuration. `more` are further keys.
    pub(crate) fn configure(&self, more: &str) {
        let run = self.path("run");
        let haproxy = if more.contains("haproxy:") { "" } else { "haproxy: {directory: RUN, threads: 2}\n" };
        let text = format!(
            "apiVersion: tidegate.dev/v1alpha1\nkind: EdgeConfig\naddresses: [203.0.113.0/24]\n{haproxy}{more}\n"
        );
        fs::write(self.path("edge.yaml"), text.replace("RUN", &run.display().to_string())).expect("written");
    }

    /// Writes a manifest, by renaming, so that the edge never reads a part of it.
    pub(crate) fn write(&self, name: &str, text: &str) {
        fs::write(self.path("new"), text).expect("written");
        fs::rename(self.path("new"), self.path("manifests").join(format!("{name}.yaml"))).expect("renamed");
    }

    pub(crate) fn remove(&self, name: &str) {
        fs::remove_file(self.path("manifests").join(format!("{name}.yaml"))).expect("removed");
    }

    /// Writes a Service `shop/web` at a VIP, with these annotations and ports.
    pub(crate) fn service(&self, annotations: &str, ports: &str) {
        self.write("web", &service("web", VIP, annotations, ports, ""));
    }

    /// Writes the endpoints of `shop/web`. They have the port `http`.
    pub(crate) fn endpoints(&self, addresses: &[SocketAddr]) {
        self.write("endpoints", &endpoints("web", addresses));
    }

    /// Writes a Secret with a new certificate for `web.example`. Returns it and its key as PEM.
    pub(crate) fn secret(&self, name: &str) -> (String, String) {
        let (certificate, key) = certificate(&["web.example"]);
        self.write(name, &secret(name, &certificate, &key));
        fs::write(self.path("ca.pem"), &certificate).expect("written");
        (certificate, key)
    }

    pub(crate) fn command(&self, name: &str) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tidegate-edge"));
        command.arg(name).arg("-c").arg(self.path("edge.yaml"));
        command
    }

    /// Starts the edge. Its output is in the files `out` and `err`.
    pub(crate) fn start(&mut self) {
        let file = |name: &str| fs::File::create(self.path(name)).expect("created");
        let mut command = self.command("run");
        command.env("RUST_LOG", "debug").stdin(Stdio::null()).stdout(file("out")).stderr(file("err"));
        self.edge = Some(command.process_group(0).spawn().expect("started"));
    }

    /// Starts the edge and waits until it serves this number of listeners.
    pub(crate) fn start_with(&mut self, listeners: usize) -> Status {
        self.start();
        self.wait(&format!("{listeners} listeners"), |status| status.listeners.len() == listeners)
    }

    /// Waits until the edge has applied everything and `condition` is true.
    pub(crate) fn wait(&self, what: &str, condition: impl Fn(&Status) -> bool) -> Status {
        let last = std::cell::RefCell::new(None);
        let until = Instant::now() + WAIT_MAX;
        loop {
            if let Some(status) = self.status() {
                if condition(&status) {
                    return status;
                }
                *last.borrow_mut() = Some(status);
            }
            if Instant::now() >= until {
                panic!("not within {WAIT_MAX:?}: {what}\n{:#?}\n{}", last.borrow(), self.log());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }

    pub(crate) fn status(&self) -> Option<Status> {
        Status::read(&self.path("run")).ok()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.path("err")).unwrap_or_default()
    }

    pub(crate) fn access_log(&self) -> Vec<serde_json::Value> {
        let text = fs::read_to_string(self.path("out")).expect("readable");
        let line = |line: &str| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        text.lines().map(line).collect()
    }

    pub(crate) fn edge(&mut self) -> &mut Child {
        self.edge.as_mut().expect("it was started")
    }

    /// Runs curl and returns its output: headers and body.
    pub(crate) fn curl(&self, arguments: &[&str]) -> Result<String, String> {
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--include", "--max-time", "20", "--cacert"]);
        command.arg(self.path("ca.pem"));
        for port in [80, 443] {
            command.args(["--resolve", &format!("web.example:{port}:{VIP}")]);
        }
        let ran = command.args(arguments).output().expect("curl");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        if ran.status.success() { Ok(text(&ran.stdout)) } else { Err(text(&ran.stderr)) }
    }

    pub(crate) fn get(&self, arguments: &[&str]) -> String {
        self.curl(arguments).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{}", self.log()))
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if let Some(mut edge) = self.edge.take() {
            let _ = edge.kill();
            let _ = edge.wait();
        }
    }
}

pub(crate) fn service(name: &str, vip: &str, annotations: &str, ports: &str, spec: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: shop, annotations: {{{annotations}}}}}\n\
         spec: {{type: LoadBalancer, loadBalancerIP: {vip}, ports: [{ports}]{spec}}}\n"
    )
}

pub(crate) fn endpoints(service: &str, addresses: &[SocketAddr]) -> String {
    let slices = addresses.iter().enumerate().map(|(at, address)| {
        let (ip, port) = (address.ip(), address.port());
        format!(
            "---\napiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {service}-{at}, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}\n\
             addressType: IPv4\nports: [{{name: http, port: {port}}}, {{name: https, port: {port}}}]\n\
             endpoints: [{{addresses: [{ip}]}}]\n"
        )
    });
    // A file without objects would keep its last ones for a while.
    let none = "apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n";
    none.to_owned() + &slices.collect::<String>()
}

pub(crate) fn secret(name: &str, certificate: &str, key: &str) -> String {
    let indented = |text: &str| text.lines().map(|line| format!("    {line}\n")).collect::<String>();
    format!(
        "apiVersion: v1\nkind: Secret\nmetadata: {{name: {name}, namespace: shop}}\ntype: kubernetes.io/tls\n\
         stringData:\n  tls.crt: |\n{}  tls.key: |\n{}",
        indented(certificate),
        indented(key)
    )
}

/// A self-signed certificate and its key.
pub(crate) fn certificate(names: &[&str]) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let mut params = CertificateParams::new(names).expect("names");
    params.not_after = rcgen::date_time_ymd(2060, 1, 1);
    (params.self_signed(&key).expect("signed").pem(), key.serialize_pem())
}

/// A server that answers each request with its own address and the head of the request.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
}

impl Server {
    /// Starts it without TLS.
    pub(crate) fn start(ip: &str) -> Self {
        Self::run(ip, None)
    }

    /// Starts it with TLS.
    pub(crate) fn start_tls(ip: &str) -> Self {
        let (certificate, key) = certificate(&["backend.example"]);
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM")];
        let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config = rustls::ServerConfig::builder_with_provider(provider);
        let config = config.with_safe_default_protocol_versions().expect("versions");
        let config = config.with_no_client_auth().with_single_cert(chain, key).expect("a pair");
        Self::run(ip, Some(Arc::new(config)))
    }

    fn run(ip: &str, tls: Option<Arc<rustls::ServerConfig>>) -> Self {
        let listener = TcpListener::bind((ip, 0)).expect("a free port");
        let address = listener.local_addr().expect("it is bound");
        thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let tls = tls.clone();
                thread::spawn(move || match tls {
                    None => answer(stream, address),
                    Some(tls) => {
                        let session = rustls::ServerConnection::new(tls).expect("a session");
                        answer(rustls::StreamOwned::new(session, stream), address);
                    }
                });
            }
        });
        Self { address }
    }

    /// The line by which it is known.
    pub(crate) fn line(&self) -> String {
        format!("server {}\n", self.address)
    }
}

/// Answers requests until the connection ends. A request `/slow/N` takes N milliseconds.
fn answer(stream: impl std::io::Read + Write, address: SocketAddr) {
    let mut stream = BufReader::new(stream);
    loop {
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            match stream.read_line(&mut head) {
                Ok(0) | Err(_) => return,
                Ok(_) => {}
            }
        }
        let slow =
            head.split_once("/slow/").and_then(|(_, rest)| rest.split_whitespace().next()?.parse().ok());
        thread::sleep(Duration::from_millis(slow.unwrap_or(0)));
        let body = format!("server {address}\n{}", head.to_lowercase());
        let answer = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{body}", body.len());
        if stream.get_mut().write_all(answer.as_bytes()).and_then(|()| stream.get_mut().flush()).is_err() {
            return;
        }
    }
}

/// Sends bytes on a new connection and returns the answer until the connection ends or is silent for 20 s.
pub(crate) fn raw(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_secs(20))).expect("a timeout");
    stream.write_all(bytes).expect("sent");
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer) {
        answer.extend_from_slice(&buffer[..count]);
    }
    String::from_utf8_lossy(&answer).into_owned()
}

/// A client with one connection, which sends request after request.
pub(crate) struct Client(BufReader<TcpStream>);

impl Client {
    pub(crate) fn connect(address: &str) -> Self {
        let stream = TcpStream::connect(address).expect("a connection");
        stream.set_read_timeout(Some(Duration::from_secs(30))).expect("a timeout");
        Self(BufReader::new(stream))
    }

    /// Sends a request and returns status and body; `None` if the connection ends before the answer begins.
    pub(crate) fn get(&mut self, path: &str) -> Option<(u16, String)> {
        let request = format!("GET {path} HTTP/1.1\r\nHost: web.example\r\n\r\n");
        self.0.get_mut().write_all(request.as_bytes()).ok()?;
        let mut head = String::new();
        while !head.ends_with("\r\n\r\n") {
            if self.0.read_line(&mut head).ok()? == 0 {
                return None;
            }
        }
        let head = head.to_lowercase();
        let length = head.split_once("content-length: ")?.1.split_whitespace().next()?.parse().ok()?;
        let mut body = vec![0; length];
        self.0.read_exact(&mut body).ok()?;
        let status = head.split(' ').nth(1)?.parse().ok()?;
        Some((status, String::from_utf8(body).ok()?))
    }
}

pub(crate) fn children(pid: u32) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = fs::read_to_string(Path::new(&path)).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().expect("a pid")).collect()
}
