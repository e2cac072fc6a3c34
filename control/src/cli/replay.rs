//! `tidegate replay`: shows offline what the gateway would do with the packets of a capture.
//!
//! It uses the dataplane's own replay; this file reads and writes captures and prints a JSON line for each packet. If
//! manifests have faults, the objects that the daemon would refuse are omitted, and the faults go to standard error. A
//! faulty configuration is refused with exit code 2. If a file is not a capture, or is truncated, the packets before
//! the fault are written and the exit code is 1.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, Write};
use std::net::{IpAddr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use serde::Serialize;
use tidegate_capture::{Reader, Writer};
use tidegate_cli::REFUSED;
use tidegate_dataplane::replay::{ASSUMED_MAC, FlowTable, Replayed, Summary, replay};
use tidegate_model::config::GatewayConfig;
use tidegate_pipeline::pipeline::FlowNote;
use tidegate_spec::SnapshotSpec;
use tidegate_spec::verdict::Verdict;
use tidegate_wire::MacAddr;

use super::load;

/// The arguments.
#[derive(Debug, Args)]
pub(super) struct ReplayArgs {
    /// Configuration file of the gateway
    #[arg(short, long, value_name = "FILE", default_value = tidegate_cli::CONFIG)]
    config: PathBuf,
    /// Capture file to read: pcap or pcapng, Ethernet
    #[arg(long = "in", value_name = "IN.pcap")]
    input: PathBuf,
    /// Capture file to write, different from the input: the frames that the gateway would send
    #[arg(long = "out", value_name = "OUT.pcap")]
    output: PathBuf,
    /// Print one JSON object per packet of the capture
    ///
    /// {"n": packet number, from 1, "interface", "verdict": transmit|punt|drop, "reason", "service":
    /// namespace/name:port, "vip", "backend": address:port, "mode", "flow": new|known|none, "frames": [hex of each
    /// frame sent]}. Keys that do not apply are omitted, except flow.
    #[arg(long)]
    json: bool,
}

/// The output line of one packet. Fields that do not apply are omitted, except `flow`, which is then `none`.
#[derive(Debug, Serialize)]
struct Line<'a> {
    /// Number in the capture, from 1.
    n: u64,
    interface: &'a str,
    verdict: &'static str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    service: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    vip: Option<IpAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backend: Option<SocketAddr>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mode: Option<&'static str>,
    flow: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    frames: Vec<String>,
}

pub(super) fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let files = load::offline(&args.config);
    eprint!("{}", files.report);
    let (Some(config), Some(mut outcome)) = (files.config, files.outcome) else {
        return Ok(ExitCode::from(REFUSED));
    };
    take_over_stations(&config, &mut outcome.spec, &args.input);
    let input = File::open(&args.input).with_context(|| args.input.display().to_string())?;
    if is_same_file(&input, &args.output) {
        let (input, output) = (args.input.display(), args.output.display());
        return Err(anyhow!("--out {output} is the same file as --in {input}; accepted: another file"));
    }
    let output = File::create(&args.output).with_context(|| args.output.display().to_string())?;
    let mut writer =
        Writer::new(BufWriter::new(output)).with_context(|| args.output.display().to_string())?;
    let names: Vec<&str> = outcome.spec.network.interfaces.iter().map(|i| i.name.as_str()).collect();
    let mut out = BufWriter::new(io::stdout().lock());
    let entries = usize::try_from(config.dataplane.flow_entries_per_core).unwrap_or(usize::MAX);
    let flow_table = FlowTable { entries, service_percent: config.dataplane.flow_service_percent };
    let ended = replay(&outcome.spec, flow_table, BufReader::new(input), &mut writer, |packet| {
        if args.json {
            serde_json::to_writer(&mut out, &line(&names, packet))?;
            out.write_all(b"\n")?;
        }
        Ok(())
    });
    writer.finish().and_then(|mut file| file.flush()).with_context(|| args.output.display().to_string())?;
    out.flush()?;
    let summary = ended.map_err(|error| anyhow!("{}: {error}", args.input.display()))?;
    if !summary.assumed.is_empty() {
        let assumed: Vec<String> = summary.assumed.iter().map(ToString::to_string).collect();
        eprintln!(
            "the link addresses of these next hops are not in dataplane.neighbors: using {ASSUMED_MAC} for {}",
            assumed.join(", ")
        );
    }
    eprintln!("{}", text(&summary));
    Ok(ExitCode::SUCCESS)
}

/// Whether the output would overwrite the capture that is read: the same regular file under any name.
fn is_same_file(input: &File, output: &Path) -> bool {
    let (Ok(input), Ok(output)) = (input.metadata(), std::fs::metadata(output)) else { return false };
    input.is_file() && (input.dev(), input.ino()) == (output.dev(), output.ino())
}

/// Sets the MAC address of each interface that has no `mac` in the configuration. A running gateway uses the MAC
/// address of the device, which is not available offline. The replay uses the first unicast destination address among
/// the capture's frames for that interface. The replay itself reports faults of the capture.
fn take_over_stations(config: &GatewayConfig, spec: &mut SnapshotSpec, capture: &Path) {
    let configured = config.dataplane.network.interfaces.iter().map(|i| i.mac.is_some());
    let mut open: Vec<bool> = configured.map(|has| !has).collect();
    // A pipe can be read only once, so only a regular file is scanned.
    let is_file = std::fs::metadata(capture).is_ok_and(|m| m.is_file());
    if !is_file || !open.contains(&true) {
        return;
    }
    let Ok(file) = File::open(capture) else { return };
    let Ok(mut reader) = Reader::new(BufReader::new(file)) else { return };
    while let Ok(Some(packet)) = reader.next_packet() {
        let at = packet.interface as usize;
        let station = packet.data.first_chunk().map(|bytes| MacAddr(*bytes)).filter(MacAddr::is_unicast);
        if let (Some(true), Some(mac)) = (open.get(at), station) {
            let interface = &mut spec.network.interfaces[at];
            eprintln!(
                "interface {} has no mac in the configuration: using {mac} from the capture",
                interface.name
            );
            interface.mac = mac;
            open[at] = false;
        }
        if !open.contains(&true) {
            return;
        }
    }
}

fn line<'a>(names: &[&'a str], packet: &'a Replayed) -> Line<'a> {
    let (verdict, reason) = match packet.verdict {
        Verdict::Transmit { why, .. } => ("transmit", why.as_str()),
        Verdict::Punt(why) => ("punt", why.as_str()),
        Verdict::Drop(why) => ("drop", why.as_str()),
        Verdict::HandOver(_) => unreachable!("a replay has one worker, which hands nothing over"),
    };
    Line {
        n: packet.n,
        interface: names[usize::from(packet.interface)],
        verdict,
        reason,
        service: packet.service.as_deref(),
        vip: packet.vip,
        backend: packet.backend,
        mode: packet.mode.map(tidegate_spec::ForwardingMode::as_str),
        flow: match packet.flow {
            FlowNote::None => "none",
            FlowNote::New => "new",
            FlowNote::Known => "known",
        },
        frames: packet.frames.iter().map(|frame| hex(frame)).collect(),
    }
}

fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digit = |n: u8| char::from(DIGITS[usize::from(n)]);
    bytes.iter().flat_map(|b| [digit(b >> 4), digit(b & 15)]).collect()
}

fn text(summary: &Summary) -> String {
    let Summary { packets, transmitted, punted, dropped, .. } = summary;
    format!("{packets} packets: {transmitted} transmitted, {punted} punted, {dropped} dropped")
}
