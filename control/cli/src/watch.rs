//! `trace` and `capture`: the packets of a running gateway, with what happened to them.
//!
//! Both start a watch in the daemon and fetch its packets until they have enough, the time is over, or the operator
//! stops them. `trace` prints a line for each packet, `capture` writes a pcapng file.

use std::fs::File;
use std::io::{self, BufWriter, IsTerminal, Write};
use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use tidegate_admin_api::explain::Transport;
use tidegate_admin_api::{
    BackendName, Client, SNAP_MAX, ServiceName, Snap, VerdictName, WatchAnswer, WatchQuery, WatchedFrame,
    WatchedRow,
};
use tidegate_capture::{Captured, Direction, PcapngWriter};

use super::failure::Failure;
use super::output::{Format, Style};

/// Which packets, and how many.
#[derive(Debug, Args)]
pub(super) struct Selection {
    /// Packets from or to this address
    #[arg(long, value_name = "ADDRESS")]
    host: Option<IpAddr>,
    /// Packets from or to this port
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// Packets of this protocol: tcp, udp or sctp
    #[arg(long)]
    proto: Option<Transport>,
    /// Packets that this interface received
    #[arg(long, value_name = "NAME")]
    interface: Option<String>,
    /// Packets of this Service: NAME, NAMESPACE/NAME or NAMESPACE/gateway/NAME, optionally with :PORT
    #[arg(long, value_name = "SERVICE")]
    service: Option<ServiceName>,
    /// Packets to or from this backend: ADDRESS:PORT, or ADDRESS for all its ports
    #[arg(long, value_name = "BACKEND")]
    backend: Option<BackendName>,
    /// Packets with this verdict: transmit, punt or drop
    #[arg(long)]
    verdict: Option<VerdictName>,
    /// Packets with this reason, as `tidegate drops` shows them
    #[arg(long)]
    reason: Option<String>,
    /// Stop after this many packets
    #[arg(long, value_name = "N")]
    count: Option<u64>,
    /// Stop after this many seconds
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    seconds: Option<Duration>,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let time = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.ok_or_else(|| "accepted: a number of seconds, such as 10 or 0.5".to_owned())
}

impl Selection {
    fn query(&self, snap: Snap) -> WatchQuery {
        WatchQuery {
            host: self.host,
            port: self.port,
            protocol: self.proto,
            interface: self.interface.clone(),
            service: self.service.clone(),
            backend: self.backend,
            verdict: self.verdict,
            reason: self.reason.clone(),
            snap,
        }
    }
}

/// Where `capture` writes, and how much.
#[derive(Debug, Args)]
pub(super) struct FileArgs {
    /// Write the packets to this pcapng file; - writes to standard output
    #[arg(short, long, value_name = "FILE")]
    write: PathBuf,
    /// Maximum number of bytes to keep of each frame
    #[arg(long, value_name = "BYTES", default_value = "16384")]
    snap: Snap,
}

/// Prints a line for each packet.
///
/// # Errors
/// The gateway refuses the request or does not answer, or the write to `out` failed.
pub(super) async fn trace(
    client: &Client,
    selection: &Selection,
    style: Style,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let started = client.watch(&selection.query(Snap(if style.is_data() { SNAP_MAX } else { 256 }))).await?;
    if !style.is_data() && !style.no_headers {
        writeln!(out, "{}", heading(style.format == Format::Wide))?;
        out.flush()?;
    }
    let shown = follow(client, &started, selection, |row| {
        match style.format {
            Format::Json => writeln!(out, "{}", serde_json::to_string(row)?)?,
            Format::Yaml => {
                writeln!(out, "---")?;
                style.print_data(out, row)?;
            }
            Format::Table | Format::Wide => writeln!(out, "{}", line(row, style.format == Format::Wide))?,
        }
        out.flush()
    })
    .await?;
    report(&shown);
    Ok(())
}

/// Writes a pcapng file. A received frame has a comment that says what happened to it, and is followed by the frame
/// that was sent because of it.
///
/// # Errors
/// As for [`trace`], or the file cannot be written.
pub(super) async fn capture(client: &Client, selection: &Selection, file: &FileArgs) -> Result<(), Failure> {
    let is_stdout = file.write.as_os_str() == "-";
    if is_stdout && io::stdout().is_terminal() {
        let what =
            "standard output is a terminal; accepted: --write FILE, or a pipe to a program that reads pcapng";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, what).into());
    }
    let started = client.watch(&selection.query(file.snap)).await?;
    let in_file =
        |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", file.write.display()));
    let out: Box<dyn Write> = match is_stdout {
        true => Box::new(io::stdout()),
        false => Box::new(File::create(&file.write).map_err(in_file)?),
    };
    let names: Vec<&str> = started.interfaces.iter().map(String::as_str).collect();
    let program = concat!("tidegate ", env!("CARGO_PKG_VERSION"));
    let mut writer = PcapngWriter::new(BufWriter::new(out), program, &names).map_err(in_file)?;
    let index = |name: &str| names.iter().position(|one| *one == name).unwrap_or(0) as u32;
    let shown = follow(client, &started, selection, |row| {
        let comment = comment(row);
        let mut write = |interface: &str, direction, frame: &WatchedFrame, comment: &str| {
            writer
                .write(&Captured {
                    interface: index(interface),
                    timestamp_ns: row.timestamp_ns,
                    direction,
                    bytes: &bytes(&frame.hex),
                    len: u32::try_from(frame.length).unwrap_or(u32::MAX),
                    comment,
                })
                .map_err(in_file)
        };
        write(&row.interface, Direction::Inbound, &row.received, &comment)?;
        if let Some(sent) = &row.sent {
            write(&sent.interface, Direction::Outbound, &sent.frame, "")?;
        }
        writer.flush().map_err(in_file)
    })
    .await?;
    writer.finish().map_err(in_file)?;
    report(&shown);
    Ok(())
}

/// What was shown.
struct Shown {
    packets: u64,
    lost: u64,
}

/// Calls `each` for every packet until there are enough, the time is over, or the operator stops the command.
async fn follow(
    client: &Client,
    started: &WatchAnswer,
    selection: &Selection,
    mut each: impl FnMut(&WatchedRow) -> io::Result<()>,
) -> Result<Shown, Failure> {
    let count = selection.count.unwrap_or(u64::MAX);
    let over = async {
        match selection.seconds {
            Some(time) => tokio::time::sleep(time).await,
            None => std::future::pending().await,
        }
    };
    tokio::pin!(over);
    let mut shown = Shown { packets: 0, lost: 0 };
    let result = loop {
        if shown.packets >= count {
            break Ok(());
        }
        let answer = tokio::select! {
            answer = client.watched(started.id) => answer,
            () = &mut over => break Ok(()),
            _ = tokio::signal::ctrl_c() => break Ok(()),
        };
        let answer = match answer {
            Ok(answer) => answer,
            Err(error) => break Err(error.into()),
        };
        shown.lost = answer.lost;
        let remaining = usize::try_from(count - shown.packets).unwrap_or(usize::MAX);
        if let Err(error) = answer.packets.iter().take(remaining).try_for_each(&mut each) {
            break Err(error.into());
        }
        shown.packets += answer.packets.len().min(remaining) as u64;
    };
    // A gateway that does not answer ends the watch on its own.
    if let Ok(ended) = client.unwatch(started.id).await
        && selection.count.is_none()
    {
        shown.lost = ended.lost;
    }
    result.map(|()| shown)
}

/// Prints how many packets there were, on standard error.
fn report(shown: &Shown) {
    let Shown { packets, lost } = shown;
    match lost {
        0 => eprintln!("{packets} packets"),
        _ => eprintln!(
            "{packets} packets; {lost} further packets matched but were not recorded, because they arrived too fast"
        ),
    }
}

/// The columns of `trace`. The widths are fixed because lines are printed as packets arrive.
const COLUMNS: [(&str, usize); 11] = [
    ("TIME", 15),
    ("INTERFACE", 10),
    ("PROTO", 6),
    ("SOURCE", 22),
    ("DESTINATION", 22),
    ("DETAIL", 14),
    ("VERDICT", 9),
    ("REASON", 20),
    ("SERVICE", 24),
    ("BACKEND", 22),
    ("FLOW", 6),
];
/// The further columns with `-o wide`.
const WIDE: [(&str, usize); 5] = [("MODE", 10), ("LENGTH", 7), ("CHECKSUM", 10), ("WORKER", 7), ("OUT", 10)];

fn heading(wide: bool) -> String {
    let names = COLUMNS.iter().chain(if wide { &WIDE[..] } else { &[] });
    padded(names.map(|(name, _)| (*name).to_owned()), wide)
}

fn padded(cells: impl Iterator<Item = String>, wide: bool) -> String {
    let columns = COLUMNS.iter().chain(if wide { &WIDE[..] } else { &[] });
    let line: String = columns.zip(cells).map(|((_, width), cell)| format!("{cell:width$} ")).collect();
    line.trim_end().to_owned()
}

fn line(row: &WatchedRow, wide: bool) -> String {
    let or_none = |value: Option<String>| value.unwrap_or_else(|| "<none>".to_owned());
    let cells = [
        time(row.timestamp_ns),
        row.interface.clone(),
        or_none(row.protocol.clone()),
        or_none(row.source.clone()),
        or_none(row.destination.clone()),
        detail(row),
        if row.waits { "wait".to_owned() } else { row.verdict.clone() },
        row.reason.clone(),
        or_none(row.service.clone()),
        or_none(row.backend.map(|backend| backend.to_string())),
        row.flow.clone(),
        or_none(row.mode.clone()),
        row.received.length.to_string(),
        or_none(row.checksum.clone()),
        row.worker.to_string(),
        or_none(row.sent.as_ref().map(|sent| sent.interface.clone())),
    ];
    padded(cells.into_iter(), wide)
}

/// TCP flags or ICMP type, and a checksum that is wrong: `SYN bad-sum`.
fn detail(row: &WatchedRow) -> String {
    let wrong = row.checksum.as_deref().filter(|state| matches!(*state, "bad" | "partial"));
    let wrong = wrong.map(|state| format!("{state}-sum"));
    let parts: Vec<String> = row.detail.clone().into_iter().chain(wrong).collect();
    if parts.is_empty() { "<none>".to_owned() } else { parts.join(" ") }
}

/// The time of day in the local time zone, with microseconds.
fn time(timestamp_ns: u64) -> String {
    let at = jiff::Timestamp::from_nanosecond(i128::from(timestamp_ns)).unwrap_or_default();
    at.to_zoned(jiff::tz::TimeZone::system()).strftime("%H:%M:%S.%6f").to_string()
}

/// What happened to a packet, as the comment of a capture: `key=value` pairs.
fn comment(row: &WatchedRow) -> String {
    let mut text = format!("verdict={} reason={} flow={}", row.verdict, row.reason, row.flow);
    let more = [
        ("service", row.service.clone()),
        ("backend", row.backend.map(|backend| backend.to_string())),
        ("mode", row.mode.clone()),
        ("waits", row.waits.then(|| "true".to_owned())),
        ("checksum", row.checksum.clone().filter(|state| state != "ok")),
    ];
    for (key, value) in more {
        if let Some(value) = value {
            text.push_str(&format!(" {key}={value}"));
        }
    }
    text
}

/// The bytes of hexadecimal digits.
fn bytes(hex: &str) -> Vec<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).map_or(0, |digit| digit as u8);
    hex.as_bytes().chunks_exact(2).map(|pair| digit(pair[0]) << 4 | digit(pair[1])).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_admin_api::SentFrame;

    fn row() -> WatchedRow {
        WatchedRow {
            timestamp_ns: 1_900_000_000_123_456_789,
            interface: "uplink".into(),
            protocol: Some("TCP".into()),
            source: Some("198.51.100.7:40000".into()),
            destination: Some("203.0.113.1:80".into()),
            verdict: "transmit".into(),
            reason: "forward".into(),
            service: Some("shop/web:http".into()),
            backend: Some("10.0.0.1:8080".parse().expect("an address")),
            mode: Some("nat".into()),
            flow: "new".into(),
            received: WatchedFrame { length: 60, hex: "00ff10".into() },
            sent: Some(SentFrame {
                interface: "backends".into(),
                frame: WatchedFrame { length: 60, hex: "aa".into() },
            }),
            ..WatchedRow::default()
        }
    }

    #[test]
    fn a_line_has_a_cell_for_each_column_of_the_heading() {
        for wide in [false, true] {
            let (heading, line) = (heading(wide), line(&row(), wide));
            for (name, cell) in
                [("SOURCE", "198.51.100.7:40000"), ("VERDICT", "transmit"), ("BACKEND", "10.0.0.1")]
            {
                let at = heading.find(name).expect("a column");
                assert!(line[at..].starts_with(cell), "{heading}\n{line}");
            }
            assert_eq!(line.ends_with("backends"), wide, "{line}");
        }
        let syn = WatchedRow { detail: Some("SYN".into()), checksum: Some("partial".into()), ..row() };
        assert!(line(&syn, false).contains(" SYN partial-sum "), "{}", line(&syn, false));
        let waiting = WatchedRow { waits: true, verdict: "drop".into(), ..row() };
        assert!(line(&waiting, false).contains(" wait "), "{}", line(&waiting, false));
    }

    #[test]
    fn a_time_that_is_not_a_number_of_seconds_is_refused() {
        assert_eq!(seconds("0.5"), Ok(Duration::from_millis(500)));
        for wrong in ["-1", "nan", "inf", "ten", ""] {
            assert!(seconds(wrong).is_err_and(|message| message.starts_with("accepted: ")), "{wrong}");
        }
    }

    #[test]
    fn a_comment_says_what_happened_to_the_packet() {
        assert_eq!(
            comment(&row()),
            "verdict=transmit reason=forward flow=new service=shop/web:http backend=10.0.0.1:8080 mode=nat"
        );
        assert_eq!(bytes("00ff10"), [0, 255, 16]);
    }
}
