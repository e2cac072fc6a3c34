//! `tidegate support-bundle`: everything that somebody needs to explain a gateway's behaviour, in one tar file.
//!
//! What cannot be collected is named in `index.txt`, with the reason: a bundle of a gateway that doesn't run, or doesn't
//! answer, is useful, too. Every text passes [`Secrets`] before it is written.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use clap::Args;
use hyper::Method;
use jiff::Timestamp;
use tidegate_admin_api::{Client, Status};
use tidegate_model::config;

use crate::doctor;
use crate::machine::Machine;
use crate::network::Network;
use crate::redact::Secrets;
use crate::target::{Target, runtime};

/// The queries, and the names of their answers.
const QUERIES: [(&str, &str); 9] = [
    ("status.json", "/v1/status"),
    ("services.json", "/v1/services"),
    ("backends.json", "/v1/backends"),
    ("pools.json", "/v1/pools"),
    ("drops.json", "/v1/drops"),
    ("traffic.json", "/v1/traffic"),
    ("flow-counts.json", "/v1/flows?limit=0"),
    ("events.json", "/v1/events"),
    ("metrics-1.txt", "/v1/metrics"),
];
/// Files of the machine.
const FILES: [&str; 17] = [
    "etc/os-release",
    "proc/version",
    "proc/cmdline",
    "proc/cpuinfo",
    "proc/meminfo",
    "proc/loadavg",
    "proc/interrupts",
    "proc/softirqs",
    "proc/modules",
    "proc/self/mountinfo",
    "proc/net/dev",
    "proc/net/snmp",
    "proc/net/softnet_stat",
    "proc/net/route",
    "proc/net/arp",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/node/online",
];
/// What ethtool prints about a device.
const ETHTOOL: [(&str, &str); 5] =
    [("link", ""), ("driver", "-i"), ("offloads", "-k"), ("rings", "-g"), ("statistics", "-S")];
/// The time between the two queries of the metrics, for rates.
const METRICS_INTERVAL: Duration = Duration::from_secs(5);
/// The maximum wait for one answer.
const ANSWER_MAX: Duration = Duration::from_secs(30);
/// How much of the end of a log is taken.
const LOG_BYTES_MAX: u64 = 1 << 20;
const LOG_LINES_MAX: &str = "5000";

/// Options of `support-bundle`.
#[derive(Debug, Args)]
pub struct BundleArgs {
    #[command(flatten)]
    target: Target,
    /// The tar file to write; an existing file is never overwritten
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
}

pub(super) fn run(args: &BundleArgs) -> anyhow::Result<ExitCode> {
    let path = &args.output;
    // Created first, so that a wrong path is reported at once. Its contents are for the eyes of the operator.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.with_context(|| format!("cannot create {}", path.display()))?;
    let bundle = runtime()?.block_on(collect(&Machine::here(), &args.target));
    let (files, missing) = (bundle.files.len(), bundle.missing.len());
    bundle.write(file).with_context(|| format!("cannot write {}", path.display()))?;
    println!(
        "{} written: {files} files without secrets; {missing} parts are missing (index.txt)",
        path.display()
    );
    Ok(ExitCode::SUCCESS)
}

/// The contents of a bundle.
#[derive(Default)]
struct Bundle {
    /// Names and texts.
    files: Vec<(String, String)>,
    /// What could not be collected, and why.
    missing: Vec<String>,
    secrets: Secrets,
}

impl Bundle {
    fn add(&mut self, name: impl Into<String>, text: Result<String, String>) {
        let name = name.into();
        match text {
            Ok(text) => self.files.push((name, text)),
            Err(why) => self.missing.push(format!("{name}: {why}")),
        }
    }

    /// Writes the tar file. Secrets are removed here, when all of them are known.
    fn write(mut self, file: File) -> std::io::Result<()> {
        let now = Timestamp::now();
        let names: Vec<&str> = self.files.iter().map(|(name, _)| name.as_str()).collect();
        let index = format!(
            "tidegate {} support bundle, {now}\nSecrets are replaced with <removed>.\n\n{}\n\nMissing:\n{}\n",
            env!("CARGO_PKG_VERSION"),
            names.join("\n"),
            self.missing.join("\n")
        );
        self.files.insert(0, ("index.txt".to_owned(), index));
        let directory = format!("tidegate-support-{}", now.strftime("%Y%m%dT%H%M%SZ"));
        let mut tar = tar::Builder::new(BufWriter::new(file));
        for (name, text) in &self.files {
            let text = self.secrets.remove_from(text);
            let mut header = tar::Header::new_gnu();
            header.set_size(text.len() as u64);
            header.set_mode(0o600);
            header.set_mtime(u64::try_from(now.as_second()).unwrap_or(0));
            tar.append_data(&mut header, format!("{directory}/{name}"), text.as_bytes())?;
        }
        tar.into_inner()?.flush()
    }
}

async fn collect(machine: &Machine, target: &Target) -> Bundle {
    let mut bundle = Bundle::default();
    let path = target.config();
    let loaded = path.as_deref().map(config::load);
    if let (Some(path), Some(loaded)) = (&path, &loaded) {
        let text = bundle.secrets.configuration(path);
        let text = text
            .ok_or_else(|| "it cannot be read, or it is not YAML, so its secrets can't be found".to_owned());
        bundle.add("configuration.yaml", text);
        bundle.add("configuration-faults.txt", Ok(loaded.report.to_string()));
    } else {
        bundle.add("configuration.yaml", Err("no -c FILE, and no /etc/tidegate/gateway.yaml".to_owned()));
    }
    let config = loaded.and_then(|loaded| loaded.config.or(loaded.draft));
    let default = || PathBuf::from(tidegate_cli::SOCKET);
    let socket = target.socket().or_else(|| config.map(|config| config.admin.socket)).unwrap_or_else(default);
    let client = Client::new(socket);
    for (name, query) in QUERIES {
        let answer = answer(&client, query).await;
        bundle.add(name, answer);
    }
    if bundle.files.iter().any(|(name, _)| name == "metrics-1.txt") {
        tokio::time::sleep(METRICS_INTERVAL).await;
        let answer = answer(&client, "/v1/metrics").await;
        bundle.add("metrics-2.txt", answer);
    }
    let status = bundle.files.iter().find(|(name, _)| name == "status.json");
    let status: Option<Status> = status.and_then(|(_, text)| serde_json::from_str(text).ok());
    bundle.add("log.txt", log(machine, status.as_ref()));
    let report = doctor::examine(machine, target).await;
    let report = report.map_err(|error| format!("{error:#}"));
    bundle.add(
        "doctor.json",
        report
            .as_ref()
            .map_err(Clone::clone)
            .and_then(|report| serde_json::to_string_pretty(report).map_err(|error| error.to_string())),
    );
    bundle.add("doctor.txt", report.map(|report| report.to_string()));
    machine_data(machine, &mut bundle);
    bundle
}

/// The body of an answer of the gateway.
async fn answer(client: &Client, query: &str) -> Result<String, String> {
    let answer = tokio::time::timeout(ANSWER_MAX, client.request(Method::GET, query)).await;
    let body = answer.map_err(|_| format!("no answer within {} s", ANSWER_MAX.as_secs()))?;
    let body = body.map_err(|error| error.to_string())?;
    Ok(String::from_utf8_lossy(&body).into_owned())
}

/// The end of the gateway's log: from the journal, or from the file to which it writes.
fn log(machine: &Machine, status: Option<&Status>) -> Result<String, String> {
    let pid = status.map(|status| status.pid).ok_or("no gateway answers, so its log is not known")?;
    let file = machine.path(format!("proc/{pid}/fd/2"));
    let is_file = fs::metadata(&file).is_ok_and(|file| file.is_file());
    if is_file {
        return tail(&file).map_err(|error| format!("{}: {error}", file.display()));
    }
    let process = format!("_PID={pid}");
    let journal = machine
        .output("journalctl", &["--no-pager", "-o", "short-iso-precise", "-n", LOG_LINES_MAX, &process]);
    journal.ok_or_else(|| "it is not written to a file, and there is no journalctl".to_owned())
}

fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_BYTES_MAX)))?;
    let mut bytes = Vec::new();
    file.take(LOG_BYTES_MAX).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn machine_data(machine: &Machine, bundle: &mut Bundle) {
    for path in FILES {
        let text = machine.text(path).ok_or_else(|| "it cannot be read".to_owned());
        bundle.add(format!("machine/{}.txt", path.replace('/', "-")), text);
    }
    let network = match Network::read() {
        Ok(network) => network,
        Err(error) => return bundle.add("machine/network.txt", Err(error.to_string())),
    };
    bundle.add("machine/network.txt", Ok(format!("{network:#?}\n")));
    for link in network.links.iter().filter(|link| !link.is_loopback) {
        for (name, option) in ETHTOOL {
            let arguments: Vec<&str> =
                [option, &link.name].into_iter().filter(|text| !text.is_empty()).collect();
            let text =
                machine.output("ethtool", &arguments).ok_or_else(|| "ethtool is not installed".to_owned());
            bundle.add(format!("machine/ethtool-{}-{name}.txt", link.name), text);
        }
    }
}
