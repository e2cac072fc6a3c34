//! A server of the lab: real nginx and iperf3, and our tools that report their own name and the client's address.
//!
//! Programs that must answer from the address of the request (UDP) bind every address; the others bind the wildcard.
//! Killing a server ends all its programs and keeps its namespace, so that it can start again.

use super::addresses::{
    self as plan, DECAP_PORT, Family, HTTP_PORT, HTTP_TARGET_PORT, IPERF_PORT, PROXY_PORT, TCP_ECHO_PORT,
    UDP_ECHO_PORT, UPSTREAM_PORT,
};
use super::binary;
use super::cleanup::end_processes_in;
use super::lab_plan::LabPlan;
use super::process::LabProcess;
use super::tools::decap::Counts;
use super::{Namespace, wait_for};
use anyhow::{Context, Result};
use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The maximum time until a program answers after its start, on a busy machine.
const START_BOUND: Duration = Duration::from_secs(20);

/// The size of the file `/large` that nginx serves, in bytes.
pub const LARGE_FILE_BYTES: u64 = 8 << 20;

/// The log of nginx's requests for `/echo` with a header of the PROXY protocol, in the server's directory. A line has
/// the client's address and port and the VIP and port from the header.
const PROXY_LOG: &str = "proxy-protocol.log";

/// A server and its programs.
#[derive(Debug)]
pub struct Server {
    number: u8,
    namespace: Namespace,
    directory: PathBuf,
    tools: PathBuf,
    vips: Vec<IpAddr>,
    processes: Vec<LabProcess>,
}

impl Server {
    pub(super) fn new(number: u8, namespace: Namespace, lab_directory: &Path, lab: &LabPlan) -> Result<Self> {
        let directory = lab_directory.join(format!("s{number}"));
        fs::create_dir(&directory)?;
        fs::write(directory.join("nginx.conf"), nginx_conf(number, &directory))?;
        fs::File::create(directory.join("large"))?.set_len(LARGE_FILE_BYTES)?;
        let (tools, vips) = (binary::of_tools(&lab.tidegate)?, lab.vips.clone());
        Ok(Self { number, namespace, directory, tools, vips, processes: Vec::new() })
    }

    /// Its name in every answer: `backend-<n>`.
    #[must_use]
    pub fn name(&self) -> String {
        name(self.number)
    }

    /// Its namespace.
    #[must_use]
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// Its own address of `family`.
    #[must_use]
    pub fn address(&self, family: Family) -> IpAddr {
        plan::server(family, self.number)
    }

    /// Starts all programs. Returns before they answer: see [`Server::wait_until_up`].
    ///
    /// # Errors
    /// When a program cannot be started.
    pub fn start(&mut self) -> Result<()> {
        self.processes.clear();
        let directory = self.directory.display().to_string();
        let nginx = ["-p", &directory, "-c", "nginx.conf", "-e", "nginx-error.log"];
        self.processes.push(self.run("nginx", Path::new("nginx"), &nginx)?);

        let own = Family::BOTH.map(|family| self.address(family));
        let mut echo = vec!["--name".to_owned(), self.name()];
        for address in own.iter().chain(&self.vips) {
            echo.extend(["--bind".to_owned(), SocketAddr::new(*address, UDP_ECHO_PORT).to_string()]);
        }
        let tcp_echo = ["--name", &self.name(), "--port", &TCP_ECHO_PORT.to_string()].map(str::to_owned);
        let mut decap = ["--tun", "decap0"].map(str::to_owned).to_vec();
        decap.extend(own.iter().flat_map(|own| ["--own".to_owned(), own.to_string()]));
        for (tool, args) in [("udp-echo", &echo[..]), ("tcp-echo", &tcp_echo), ("decap", &decap)] {
            let process = self.run_tool(tool, args)?;
            self.processes.push(process);
        }
        Ok(())
    }

    /// Starts `sctp-echo` at its own addresses and the VIPs. No other SCTP program may run there.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn start_sctp(&self) -> Result<LabProcess> {
        let own = Family::BOTH.map(|family| self.address(family));
        let addresses: Vec<String> = own.iter().chain(&self.vips).map(ToString::to_string).collect();
        let (name, binds) = (self.name(), addresses.iter().flat_map(|address| ["--bind", address]));
        let args: Vec<&str> = ["--name", &name].into_iter().chain(binds).collect();
        self.run_tool("sctp-echo", &args)
    }

    /// The packets that decapsulation has delivered and refused so far.
    ///
    /// # Errors
    /// When it does not run.
    pub fn tunnel_counts(&self) -> Result<Counts> {
        let text = self.namespace.enter(|| -> Result<String> {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, DECAP_PORT))?;
            let mut text = String::new();
            stream.read_to_string(&mut text)?;
            Ok(text)
        });
        let text = text.with_context(|| format!("cannot read the counts of server {}", self.number))?;
        Counts::parse(&text).with_context(|| format!("unexpected counts `{text}`"))
    }

    /// Waits until every program answers on the server's own addresses.
    ///
    /// # Errors
    /// When one does not; the message contains its output.
    pub fn wait_until_up(&mut self) -> Result<()> {
        for family in Family::BOTH {
            let address = self.address(family);
            for port in [HTTP_PORT, HTTP_TARGET_PORT, TCP_ECHO_PORT] {
                self.until_it_answers(&format!("TCP port {port} ({family})"), || {
                    let to = SocketAddr::new(address, port);
                    TcpStream::connect_timeout(&to, Duration::from_millis(200)).ok().map(drop)
                })?;
            }
            self.until_it_answers(&format!("UDP port {UDP_ECHO_PORT} ({family})"), || {
                let socket = UdpSocket::bind(SocketAddr::new(address, 0)).ok()?;
                socket.set_read_timeout(Some(Duration::from_millis(100))).ok()?;
                socket.send_to(b"up?", SocketAddr::new(address, UDP_ECHO_PORT)).ok()?;
                socket.recv(&mut [0; 256]).ok().map(drop)
            })?;
        }
        let tun = "/proc/sys/net/ipv6/conf/decap0";
        self.until_it_answers("decap's TUN device", || Path::new(tun).exists().then_some(()))
    }

    /// Starts an additional program, whose output goes to `<name>.log` in the server's directory.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run(&self, name: &str, program: &Path, args: &[&str]) -> Result<LabProcess> {
        LabProcess::start(&self.namespace, &self.directory, name, program, args)
            .with_context(|| format!("on server {}", self.number))
    }

    /// Starts one of the [`tools`](super::tools) like [`Server::run`].
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn run_tool<S: AsRef<OsStr>>(&self, tool: &str, args: &[S]) -> Result<LabProcess> {
        let args: Vec<&OsStr> =
            ["lab", tool].map(OsStr::new).into_iter().chain(args.iter().map(AsRef::as_ref)).collect();
        LabProcess::start(&self.namespace, &self.directory, tool, &self.tools, &args)
            .with_context(|| format!("on server {}", self.number))
    }

    /// The directory of its configuration and logs.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// nginx's log of requests for `/echo` with a header of the PROXY protocol: for each request the client's address
    /// and port and the VIP and port, separated by blanks.
    #[must_use]
    pub fn proxy_log(&self) -> String {
        fs::read_to_string(self.directory.join(PROXY_LOG)).unwrap_or_default()
    }

    /// Starts iperf3 for one run, and returns when it is listening. Each run needs its own process: between two runs
    /// iperf3 closes its listening socket, and a client that connects too early is reset.
    ///
    /// # Errors
    /// When it does not start listening.
    pub fn offer_iperf(&self) -> Result<LabProcess> {
        let args = ["-s", "-1", "-p", &IPERF_PORT.to_string(), "--forceflush"];
        let log = self.directory.join("iperf3.log");
        if log.exists() {
            fs::remove_file(&log)?;
        }
        let iperf = LabProcess::start(&self.namespace, &self.directory, "iperf3", "iperf3", &args)?;
        wait_for("iperf3 to listen", START_BOUND, || iperf.log().contains("Server listening").then_some(()))?;
        Ok(iperf)
    }

    /// Kills every program of the server without a shutdown.
    pub fn kill(&mut self) {
        self.processes.clear();
        end_processes_in(self.namespace.name());
    }

    fn until_it_answers(&self, what: &str, probe: impl FnMut() -> Option<()> + Send) -> Result<()> {
        let what = format!("{what} of server {}", self.number);
        let outcome = self.namespace.enter(|| wait_for(&what, START_BOUND, probe));
        outcome.with_context(|| {
            self.processes.iter().map(|process| process.log_tail(5)).collect::<Vec<_>>().join("\n")
        })
    }
}

/// The name of server `n`.
#[must_use]
pub fn name(n: u8) -> String {
    format!("backend-{n}")
}

/// The configuration of one process with all files below `directory`. It uses nothing of the system's nginx.
fn nginx_conf(n: u8, directory: &Path) -> String {
    let name = name(n);
    let directory = directory.display();
    format!(
        r#"daemon off;
master_process off;
pid {directory}/nginx.pid;
events {{ worker_connections 8192; }}
http {{
    access_log off;
    log_format proxied "$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr $proxy_protocol_server_port";
    client_body_temp_path {directory}/body;
    proxy_temp_path {directory}/proxy;
    fastcgi_temp_path {directory}/fastcgi;
    uwsgi_temp_path {directory}/uwsgi;
    scgi_temp_path {directory}/scgi;
    client_max_body_size 0;
    default_type text/plain;
    server {{
        listen {HTTP_PORT} backlog=4096;
        listen [::]:{HTTP_PORT} ipv6only=on backlog=4096;
        listen {HTTP_TARGET_PORT} backlog=4096;
        listen [::]:{HTTP_TARGET_PORT} ipv6only=on backlog=4096;
        root {directory};
        location / {{ return 200 "{name} client=$remote_addr:$remote_port\n"; }}
        location = /large {{ }}
    }}
    server {{
        listen {PROXY_PORT} proxy_protocol backlog=4096;
        listen [::]:{PROXY_PORT} proxy_protocol ipv6only=on backlog=4096;
        location / {{ return 200 "{name} client=$proxy_protocol_addr:$proxy_protocol_port\n"; }}
        location = /echo {{
            access_log {directory}/{PROXY_LOG} proxied;
            proxy_pass http://127.0.0.1:{UPSTREAM_PORT};
        }}
    }}
}}
"#
    )
}
