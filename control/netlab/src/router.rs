//! Routers of the lab: FRR with BGP and BFD, GoBGP, and BIRD, each in a namespace with an address on the clients' link.
//!
//! Every program has its files, sockets and pid below the lab's directory, so that it does not collide with an instance
//! of the system. FRR's daemons drop their privileges to the user `frr`, who must be able to write there.
//!
//! Invariant: a router stops when its value is dropped, and changes nothing outside of its namespace and directory.

use super::namespace::output_of;
use super::process::LabProcess;
use super::{Lab, Namespace, wait_for};
use anyhow::{Context, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where Debian has FRR's daemons.
const FRR: &str = "/usr/lib/frr";
/// The maximum time until a daemon has opened its socket.
const START_BOUND: Duration = Duration::from_secs(20);

/// FRR: zebra, bgpd, and bfdd.
#[derive(Debug)]
pub struct Frr {
    daemons: Vec<(&'static str, LabProcess)>,
    namespace: Namespace,
    directory: PathBuf,
}

impl Frr {
    /// Starts FRR in `namespace` with this configuration of bgpd; `name` is that of its directory in that of the lab.
    ///
    /// # Errors
    /// Without the Debian package frr, or when a daemon does not start.
    pub fn start(lab: &Path, namespace: &Namespace, name: &str, zebra: &str, bgpd: &str) -> Result<Self> {
        let directory = lab.join(name);
        fs::create_dir_all(&directory)?;
        for (file, text) in [("zebra", zebra), ("bgpd", bgpd), ("bfdd", "")] {
            fs::write(directory.join(format!("{file}.conf")), format!("hostname {name}\n{text}\n"))?;
        }
        give_to_frr(lab, &directory)?;
        let mut frr = Self { daemons: Vec::new(), namespace: namespace.clone(), directory };
        for daemon in ["zebra", "bfdd", "bgpd"] {
            frr.start_daemon(daemon)?;
        }
        Ok(frr)
    }

    /// What is missing to start FRR, with the package to install.
    #[must_use]
    pub fn missing() -> Option<String> {
        let program = Path::new(FRR).join("bgpd");
        (!program.is_file())
            .then(|| format!("{} does not exist: install the Debian package frr", program.display()))
    }

    fn start_daemon(&mut self, daemon: &'static str) -> Result<()> {
        let path = |file: String| self.directory.join(file).display().to_string();
        let mut args = vec![
            "-f".to_owned(),
            path(format!("{daemon}.conf")),
            "-i".to_owned(),
            path(format!("{daemon}.pid")),
            "-z".to_owned(),
            path("zserv".to_owned()),
            "--vty_socket".to_owned(),
            path(String::new()),
            "-A".to_owned(),
            "127.0.0.1".to_owned(),
            "-u".to_owned(),
            "frr".to_owned(),
            "-g".to_owned(),
            "frr".to_owned(),
            "--log".to_owned(),
            "stdout".to_owned(),
        ];
        if daemon == "bfdd" {
            args.extend(["--bfdctl".to_owned(), path("bfdd.sock".to_owned())]);
        }
        let program = Path::new(FRR).join(daemon);
        let mut process = LabProcess::start(&self.namespace, &self.directory, daemon, &program, &args)
            .with_context(|| format!("cannot start {} (Debian package frr)", program.display()))?;
        let socket = self.directory.join(format!("{daemon}.vty"));
        let started = wait_for(&format!("the socket of {daemon}"), START_BOUND, || {
            (socket.exists() || !process.runs()).then(|| process.runs())
        });
        let log = process.log_tail(20);
        anyhow::ensure!(started.with_context(|| log.clone())?, "{daemon} ended:\n{log}");
        self.daemons.push((daemon, process));
        Ok(())
    }

    /// Runs commands of `vtysh`, one after the other.
    ///
    /// # Errors
    /// When vtysh fails.
    pub fn vtysh(&self, commands: &[&str]) -> Result<String> {
        let mut command = Command::new("vtysh");
        command.arg("--vty_socket").arg(&self.directory);
        for one in commands {
            command.args(["-c", one]);
        }
        output_of(&mut command)
    }

    /// The JSON of a `show ... json`.
    ///
    /// # Errors
    /// When vtysh fails or its answer is not JSON.
    pub fn show(&self, command: &str) -> Result<serde_json::Value> {
        let text = self.vtysh(&[&format!("show {command} json")])?;
        serde_json::from_str(&text).with_context(|| format!("show {command}: {text}"))
    }

    /// The state of the session with a peer, such as `Established`.
    #[must_use]
    pub fn session(&self, peer: &str) -> Option<String> {
        let all = self.show("bgp neighbors").ok()?;
        Some(all.get(peer)?.get("bgpState")?.as_str()?.to_owned())
    }

    /// The next hops of a prefix that the router has chosen, sorted; empty if it has none.
    #[must_use]
    pub fn next_hops(&self, prefix: &str) -> Vec<String> {
        let family = if prefix.contains(':') { "ipv6" } else { "ip" };
        let Ok(all) = self.show(&format!("{family} route {prefix}")) else { return Vec::new() };
        let routes = all.get(prefix).and_then(serde_json::Value::as_array).into_iter().flatten();
        let selected = routes.filter(|route| route["selected"] == true);
        let hops = selected.flat_map(|route| route["nexthops"].as_array().into_iter().flatten());
        let active = hops.filter(|hop| hop["active"] == true);
        let mut found: Vec<String> = active.filter_map(|hop| hop["ip"].as_str()).map(str::to_owned).collect();
        found.sort_unstable();
        found
    }

    /// Kills bgpd, so that it cannot close its sessions.
    pub fn kill_bgpd(&mut self) {
        self.daemons.retain_mut(|(name, process)| {
            if *name == "bgpd" {
                process.kill();
            }
            *name != "bgpd"
        });
        let _ = fs::remove_file(self.directory.join("bgpd.vty"));
    }

    /// The end of the log of each daemon.
    #[must_use]
    pub fn log_tail(&self) -> String {
        self.daemons.iter().map(|(name, process)| format!("{name}:\n{}\n", process.log_tail(15))).collect()
    }
}

/// Lets the user `frr` reach and write the directory.
fn give_to_frr(lab: &Path, directory: &Path) -> Result<()> {
    use std::os::unix::fs::PermissionsExt as _;
    fs::set_permissions(lab, fs::Permissions::from_mode(0o755))?;
    output_of(Command::new("chown").args(["-R", "frr:frr"]).arg(directory))
        .context("the user frr is missing (Debian package frr)")
        .map(drop)
}

/// The time until the router's daemon answers.
const ANSWER_BOUND: Duration = Duration::from_secs(20);

/// GoBGP.
#[derive(Debug)]
pub struct GoBgp {
    process: LabProcess,
    namespace: Namespace,
}

impl GoBgp {
    /// Starts `gobgpd` in `namespace` with this configuration (TOML).
    ///
    /// # Errors
    /// Without the Debian package gobgpd, or when it does not start.
    pub fn start(lab: &Path, namespace: &Namespace, config: &str) -> Result<Self> {
        let path = lab.join("gobgp.toml");
        fs::write(&path, config)?;
        let args = ["-f".to_owned(), path.display().to_string()];
        let process = LabProcess::start(namespace, lab, "gobgpd", "gobgpd", &args)
            .context("cannot start gobgpd (Debian package gobgpd)")?;
        let gobgp = Self { process, namespace: namespace.clone() };
        wait_for("gobgpd to answer", ANSWER_BOUND, || gobgp.query(&["global"]).ok())
            .with_context(|| gobgp.process.log_tail(20))?;
        Ok(gobgp)
    }

    /// The output of `gobgp` with these arguments.
    ///
    /// # Errors
    /// When it fails.
    pub fn query(&self, args: &[&str]) -> Result<String> {
        output_of(self.namespace.command("gobgp").args(args))
    }

    /// The next hops of each IPv4 prefix, sorted: those of all paths that equal the best one in the length of their AS
    /// path and their MED.
    ///
    /// # Errors
    /// When it does not answer.
    pub fn routes(&self) -> Result<BTreeMap<String, Vec<String>>> {
        let text = self.query(&["-j", "global", "rib"])?;
        // The answer is `null` if there are no routes.
        let rib: Option<BTreeMap<String, Vec<GoBgpPath>>> =
            serde_json::from_str(&text).with_context(|| format!("gobgp global rib: {text}"))?;
        let hops = |paths: Vec<GoBgpPath>| {
            let best = paths.iter().find(|path| path.best).map(GoBgpPath::cost);
            let equal = paths.iter().filter(|path| Some(path.cost()) == best);
            let mut hops: Vec<String> = equal.filter_map(GoBgpPath::next_hop).collect();
            hops.sort_unstable();
            hops
        };
        Ok(rib.unwrap_or_default().into_iter().map(|(prefix, paths)| (prefix, hops(paths))).collect())
    }

    /// The last `lines` lines of its output.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        self.process.log_tail(lines)
    }
}

/// A path in the answer of `gobgp -j global rib`.
#[derive(Debug, Deserialize)]
struct GoBgpPath {
    #[serde(default)]
    best: bool,
    attrs: Vec<serde_json::Value>,
}

impl GoBgpPath {
    /// The path attribute of a type (RFC 4271 section 4.3).
    fn attribute(&self, number: u8) -> Option<&serde_json::Value> {
        self.attrs.iter().find(|attribute| attribute["type"] == number)
    }

    /// The length of the AS path, and the MED.
    fn cost(&self) -> (u64, u64) {
        let segments = self.attribute(2).and_then(|path| path["as_paths"].as_array()).into_iter().flatten();
        let length = segments.filter_map(|segment| segment["num"].as_u64()).sum();
        (length, self.attribute(4).and_then(|med| med["metric"].as_u64()).unwrap_or(0))
    }

    fn next_hop(&self) -> Option<String> {
        Some(self.attribute(3)?["nexthop"].as_str()?.to_owned())
    }
}

/// BIRD.
#[derive(Debug)]
pub struct BirdRouter {
    process: LabProcess,
    socket: PathBuf,
}

impl BirdRouter {
    /// Starts `bird` in `namespace` with this configuration.
    ///
    /// # Errors
    /// Without the Debian package bird2, or when it does not start.
    pub fn start(lab: &Lab, namespace: &Namespace, config: &str) -> Result<Self> {
        let path = |file: &str| lab.directory().join(file);
        fs::write(path("router-bird.conf"), config)?;
        let args: Vec<String> =
            [("-c", "router-bird.conf"), ("-s", "router-bird.ctl"), ("-P", "router-bird.pid")]
                .iter()
                .flat_map(|(option, file)| [(*option).to_owned(), path(file).display().to_string()])
                .chain(["-f".to_owned()])
                .collect();
        let process = LabProcess::start(namespace, lab.directory(), "router-bird", "/usr/sbin/bird", &args)
            .context("cannot start bird (Debian package bird2)")?;
        let bird = Self { process, socket: path("router-bird.ctl") };
        wait_for("the router's BIRD to answer", ANSWER_BOUND, || bird.query("show status").ok())
            .with_context(|| bird.process.log_tail(20))?;
        Ok(bird)
    }

    /// The output of `birdc`.
    ///
    /// # Errors
    /// When it fails.
    pub fn query(&self, command: &str) -> Result<String> {
        output_of(Command::new("/usr/sbin/birdc").arg("-s").arg(&self.socket).args(command.split(' ')))
    }
}
