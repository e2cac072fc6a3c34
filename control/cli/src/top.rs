//! `top`: live figures of a running gateway.
//!
//! It queries the counters periodically and shows their rates. On a terminal it draws a screen that fits; otherwise,
//! and with a number of iterations, it prints one table after another. It keeps only the counters of the last query.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use crossterm::terminal::{self, Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen};
use crossterm::{cursor, queue};
use serde::Serialize;
use tidegate_admin_api::{
    BackendRow, BackendViewState, Client, DropsAnswer, ServiceTraffic, Status, TrafficAnswer,
};

use super::failure::Failure;
use super::output::{Format, Style, Table, age};
use super::query::is_named;
use super::tables;

/// What is shown, and how often.
#[derive(Debug, Args)]
pub(super) struct View {
    /// Seconds between two refreshes
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = interval)]
    interval: f64,
    /// Stop after this many refreshes, and print each instead of drawing a screen
    #[arg(long, value_name = "N")]
    iterations: Option<u64>,
    /// Order of the Services
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Number of Services to print; a terminal shows as many as fit
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// Show only this Service, NAME or NAMESPACE/NAME, and its backends
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
}

impl View {
    fn wants(&self, namespace: &str, name: &str) -> bool {
        self.service.as_ref().is_none_or(|wanted| is_named(wanted, Some(namespace), name))
    }
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3_600.0).contains(seconds));
    seconds.ok_or_else(|| "accepted: 0.1 to 3600".to_owned())
}

/// The order of the Services, the busiest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
enum Sort {
    /// By packets per second.
    #[default]
    Packets,
    /// By bytes per second.
    Bytes,
    /// By new connections per second.
    Connections,
}

/// The counters of one query.
struct Reading {
    at: Instant,
    status: Status,
    traffic: TrafficAnswer,
    drops: DropsAnswer,
    /// Only those of the Service that is shown alone.
    backends: Vec<BackendRow>,
}

/// The rates between two queries.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct Figures {
    name: String,
    ready: bool,
    uptime_seconds: u64,
    generation_desired: u64,
    generation_applied: u64,
    /// Seconds between the two queries.
    seconds: f64,
    workers: Vec<WorkerFigures>,
    interfaces: Vec<InterfaceFigures>,
    /// Packets dropped per second, the most frequent reason first. Reasons that did not occur are omitted.
    drops: Vec<DropFigures>,
    /// The busiest first.
    services: Vec<ServiceFigures>,
    /// With `--service`: its backends, the busiest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    backends: Vec<BackendFigures>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct BackendFigures {
    backend: SocketAddr,
    /// The service port on its VIP.
    vip: SocketAddr,
    protocol: String,
    state: BackendViewState,
    connections: u64,
    connections_per_second: f64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct WorkerFigures {
    worker: u8,
    core: usize,
    state: String,
    busy_ratio: f64,
    cycles_per_packet: f64,
    flows: u64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct InterfaceFigures {
    name: String,
    link: String,
    rx_packets_per_second: f64,
    rx_bits_per_second: f64,
    tx_packets_per_second: f64,
    tx_bits_per_second: f64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct DropFigures {
    reason: String,
    per_second: f64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceFigures {
    /// `namespace/name:port`.
    service: String,
    vip: SocketAddr,
    protocol: String,
    packets_per_second: f64,
    bits_per_second: f64,
    connections_per_second: f64,
}

/// Shows the figures until the operator quits, or for a number of refreshes.
///
/// # Errors
/// The gateway does not answer, or the write to `out` failed.
pub(super) async fn run(
    client: &Client,
    view: &View,
    style: Style,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let interval = Duration::from_secs_f64(view.interval);
    let draws = view.iterations.is_none() && !style.is_data() && io::stdout().is_terminal();
    let screen = if draws { Some(Screen::enter()?) } else { None };
    let mut sort = view.sort;
    let mut last = read(client, view).await?;
    let mut shown = 0;
    loop {
        if screen.is_some() {
            match keys_until(Instant::now() + interval)? {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Sort(by)) => sort = by,
                None => {}
            }
        } else {
            tokio::select! {
                () = tokio::time::sleep(interval) => {}
                _ = tokio::signal::ctrl_c() => return Ok(()),
            }
        }
        let now = read(client, view).await?;
        let mut figures = figures(&last, &now, sort);
        last = now;
        if let Some(screen) = &screen {
            screen.draw(&figures, style)?;
            continue;
        }
        figures.services.truncate(view.rows);
        match style.format {
            Format::Json => writeln!(out, "{}", serde_json::to_string(&figures).map_err(io::Error::from)?)?,
            Format::Yaml => {
                writeln!(out, "---")?;
                style.print_data(out, &figures)?;
            }
            Format::Table | Format::Wide => out.write_all(text(&figures, style).as_bytes())?,
        }
        out.flush()?;
        shown += 1;
        if view.iterations.is_some_and(|most| shown >= most) {
            return Ok(());
        }
    }
}

async fn read(client: &Client, view: &View) -> Result<Reading, Failure> {
    let (status, mut traffic, drops) =
        (client.status().await?, client.traffic().await?, client.drops().await?);
    traffic.services.retain(|one| view.wants(&one.namespace, &one.service));
    let mut backends = Vec::new();
    if let Some(name) = &view.service {
        backends = client.backends().await?.backends;
        backends.retain(|row| view.wants(&row.namespace, &row.service));
        if traffic.services.is_empty() && backends.is_empty() {
            return Err(Failure::NotFound(vec![format!("services {name:?}")]));
        }
    }
    Ok(Reading { at: Instant::now(), status, traffic, drops, backends })
}

/// The backends with their rates of new connections, the busiest first.
fn backends(before: &Reading, now: &Reading, rate: impl Fn(u64, u64) -> f64) -> Vec<BackendFigures> {
    let key = |row: &BackendRow| {
        let vip = SocketAddr::new(row.vip, row.service_port);
        (vip, row.protocol.clone(), SocketAddr::new(row.backend.address, row.backend.port))
    };
    let count = |row: &BackendRow| row.forwarding.connections.unwrap_or(0);
    let old: BTreeMap<_, u64> = before.backends.iter().map(|row| (key(row), count(row))).collect();
    let figures = now.backends.iter().map(|row| {
        let (vip, protocol, backend) = key(row);
        let old = old.get(&key(row)).copied().unwrap_or(0);
        let (connections, state) = (count(row), row.backend.state);
        let connections_per_second = rate(connections, old);
        BackendFigures { backend, vip, protocol, state, connections, connections_per_second }
    });
    let mut figures: Vec<BackendFigures> = figures.collect();
    figures.sort_by(|a, b| b.connections_per_second.total_cmp(&a.connections_per_second));
    figures
}

fn figures(before: &Reading, now: &Reading, sort: Sort) -> Figures {
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    // A restarted daemon counts from 0.
    let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds.max(0.001);
    let status = &now.status;
    let interfaces = status.interfaces.iter().map(|one| {
        let old = before.status.interfaces.iter().find(|old| old.name == one.name).unwrap_or(one);
        InterfaceFigures {
            name: one.name.clone(),
            link: one.link.state.clone(),
            rx_packets_per_second: rate(one.rx_packets, old.rx_packets),
            rx_bits_per_second: 8.0 * rate(one.rx_bytes, old.rx_bytes),
            tx_packets_per_second: rate(one.tx_packets, old.tx_packets),
            tx_bits_per_second: 8.0 * rate(one.tx_bytes, old.tx_bytes),
        }
    });
    let old: BTreeMap<&str, u64> =
        before.drops.drops.iter().map(|one| (one.reason.as_str(), one.count)).collect();
    let drops = now.drops.drops.iter().map(|one| DropFigures {
        reason: one.reason.clone(),
        per_second: rate(one.count, old.get(one.reason.as_str()).copied().unwrap_or(0)),
    });
    let mut drops: Vec<DropFigures> = drops.filter(|one| one.per_second > 0.0).collect();
    drops.sort_by(|a, b| b.per_second.total_cmp(&a.per_second));
    let key = |one: &ServiceTraffic| (one.vip, one.protocol.clone());
    let old: BTreeMap<_, &ServiceTraffic> =
        before.traffic.services.iter().map(|one| (key(one), one)).collect();
    let services = now.traffic.services.iter().map(|one| {
        // A Service that is new since the last query has counted from 0.
        let of = |count: fn(&ServiceTraffic) -> u64| {
            rate(count(one), old.get(&key(one)).map_or(0, |old| count(old)))
        };
        ServiceFigures {
            service: format!("{}/{}:{}", one.namespace, one.service, one.port_name),
            vip: one.vip,
            protocol: one.protocol.clone(),
            packets_per_second: of(|one| one.packets),
            bits_per_second: 8.0 * of(|one| one.bytes),
            connections_per_second: of(|one| one.connections),
        }
    });
    let mut services: Vec<ServiceFigures> = services.collect();
    let by = |one: &ServiceFigures| match sort {
        Sort::Packets => one.packets_per_second,
        Sort::Bytes => one.bits_per_second,
        Sort::Connections => one.connections_per_second,
    };
    services.sort_by(|a, b| by(b).total_cmp(&by(a)).then_with(|| a.service.cmp(&b.service)));
    Figures {
        name: status.name.clone(),
        ready: status.ready,
        uptime_seconds: status.uptime_seconds,
        generation_desired: status.generation_desired,
        generation_applied: status.generation_applied,
        seconds,
        workers: status
            .workers
            .iter()
            .map(|one| WorkerFigures {
                worker: one.worker,
                core: one.core,
                state: one.state.clone(),
                busy_ratio: one.busy_ratio,
                cycles_per_packet: one.cycles_per_packet,
                flows: one.flows,
            })
            .collect(),
        interfaces: interfaces.collect(),
        drops,
        services,
        backends: backends(before, now, rate),
    }
}

/// The figures as tables.
fn text(figures: &Figures, style: Style) -> String {
    let ready = if figures.ready { "ready" } else { "NOT READY" };
    let mut text = format!(
        "{}, {ready}, up for {}, generation {} applied, {} desired\n\n",
        figures.name,
        age(figures.uptime_seconds),
        figures.generation_applied,
        figures.generation_desired
    );
    let mut add = |table: &Table| {
        if !table.is_empty() {
            text.push_str(&table.render(style.format == Format::Wide, !style.no_headers));
            text.push('\n');
        }
    };
    let mut workers = Table::new(&["WORKER", "CORE", "STATE", "BUSY", "CYCLES/PACKET", "FLOWS"]);
    for one in &figures.workers {
        workers.row([
            one.worker.to_string(),
            one.core.to_string(),
            one.state.clone(),
            format!("{:.1}%", 100.0 * one.busy_ratio),
            format!("{:.0}", one.cycles_per_packet),
            one.flows.to_string(),
        ]);
    }
    add(&workers);
    let mut interfaces = Table::new(&["INTERFACE", "LINK", "RX-PPS", "RX-BPS", "TX-PPS", "TX-BPS"]);
    for one in &figures.interfaces {
        interfaces.row([
            one.name.clone(),
            one.link.clone(),
            short(one.rx_packets_per_second),
            short(one.rx_bits_per_second),
            short(one.tx_packets_per_second),
            short(one.tx_bits_per_second),
        ]);
    }
    add(&interfaces);
    let mut drops = Table::new(&["DROPPED", "PER-SECOND"]);
    for one in &figures.drops {
        drops.row([one.reason.clone(), short(one.per_second)]);
    }
    add(&drops);
    let mut services = Table::new(&["SERVICE", "VIP", "PROTOCOL", "PPS", "BPS", "NEW/S"]);
    for one in &figures.services {
        services.row([
            one.service.clone(),
            one.vip.to_string(),
            one.protocol.clone(),
            short(one.packets_per_second),
            short(one.bits_per_second),
            short(one.connections_per_second),
        ]);
    }
    add(&services);
    let mut backends = Table::new(&["BACKEND", "VIP", "PROTOCOL", "STATE", "CONNECTIONS", "NEW/S"]);
    for one in &figures.backends {
        backends.row([
            one.backend.to_string(),
            one.vip.to_string(),
            one.protocol.clone(),
            tables::state(one.state).to_owned(),
            one.connections.to_string(),
            short(one.connections_per_second),
        ]);
    }
    add(&backends);
    text
}

/// A number with at most four digits and a unit: `950`, `1.52k`, `15.2M`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value {
        v if v >= 1e9 => (v / 1e9, "G"),
        v if v >= 1e6 => (v / 1e6, "M"),
        v if v >= 1e3 => (v / 1e3, "k"),
        v => (v, ""),
    };
    match scaled {
        s if unit.is_empty() || s >= 100.0 => format!("{s:.0}{unit}"),
        s if s >= 10.0 => format!("{s:.1}{unit}"),
        s => format!("{s:.2}{unit}"),
    }
}

/// What the operator has pressed.
enum Key {
    Quit,
    Sort(Sort),
}

/// Waits for a key until the given time.
fn keys_until(until: Instant) -> io::Result<Option<Key>> {
    loop {
        let remaining = until.saturating_duration_since(Instant::now());
        if !event::poll(remaining)? {
            return Ok(None);
        }
        match event::read()? {
            Event::Key(key) if key.kind == KeyEventKind::Press => match key.code {
                KeyCode::Char('q') | KeyCode::Esc => return Ok(Some(Key::Quit)),
                KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => {
                    return Ok(Some(Key::Quit));
                }
                KeyCode::Char('p') => return Ok(Some(Key::Sort(Sort::Packets))),
                KeyCode::Char('b') => return Ok(Some(Key::Sort(Sort::Bytes))),
                KeyCode::Char('n') => return Ok(Some(Key::Sort(Sort::Connections))),
                _ => {}
            },
            Event::Resize(..) => return Ok(None),
            _ => {}
        }
    }
}

/// The terminal while figures are drawn on it. Dropping this restores its state.
struct Screen;

impl Screen {
    fn enter() -> io::Result<Self> {
        terminal::enable_raw_mode()?;
        let screen = Self;
        queue!(io::stdout(), EnterAlternateScreen, cursor::Hide)?;
        io::stdout().flush()?;
        Ok(screen)
    }

    fn draw(&self, figures: &Figures, style: Style) -> io::Result<()> {
        let (columns, rows) = terminal::size()?;
        let out = &mut io::stdout();
        queue!(out, cursor::MoveTo(0, 0))?;
        let keys = "keys: q quit; sort by p packets, b bytes, n new connections";
        let text = text(figures, style);
        let lines = std::iter::once(keys).chain(text.lines()).take(usize::from(rows.max(1)));
        for (n, line) in lines.enumerate() {
            let line: String = line.chars().take(usize::from(columns)).collect();
            let end = if n == 0 { "" } else { "\r\n" };
            write!(out, "{end}{line}")?;
            queue!(out, Clear(ClearType::UntilNewLine))?;
        }
        queue!(out, Clear(ClearType::FromCursorDown))?;
        out.flush()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // Nothing else can be done if the terminal is gone.
        let _ = queue!(io::stdout(), LeaveAlternateScreen, cursor::Show);
        let _ = io::stdout().flush();
        let _ = terminal::disable_raw_mode();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidegate_admin_api::{InterfaceStatus, LinkStatus, PortStatus, ReasonView};

    fn reading(at: Instant, packets: u64) -> Reading {
        let service = |name: &str, packets| ServiceTraffic {
            namespace: "shop".into(),
            service: name.into(),
            port_name: "http".into(),
            vip: format!("203.0.113.{}:80", name.len()).parse().expect("an address"),
            protocol: "TCP".into(),
            packets,
            bytes: 100 * packets,
            connections: 1_000 - packets / 2,
        };
        let interface = InterfaceStatus {
            name: "uplink".into(),
            device: "net_null0".into(),
            mac: "02:00:00:00:00:02".into(),
            link_up: true,
            link: LinkStatus { state: "up".into(), ..LinkStatus::default() },
            tap: None,
            port: PortStatus::default(),
            rx_packets: packets,
            rx_bytes: 60 * packets,
            tx_packets: 2 * packets,
            tx_bytes: 120 * packets,
        };
        let drops = [("no_flow", packets / 10), ("no_route", 7)];
        Reading {
            at,
            status: Status { name: "edge-1".into(), interfaces: vec![interface], ..Status::default() },
            traffic: TrafficAnswer { services: vec![service("quiet", 5), service("web", packets)] },
            drops: DropsAnswer {
                drops: drops
                    .map(|(reason, count)| ReasonView {
                        reason: reason.into(),
                        count,
                        ..ReasonView::default()
                    })
                    .into(),
                punts: Vec::new(),
            },
            backends: Vec::new(),
        }
    }

    #[test]
    fn rates_are_differences_of_counters_over_the_time_between() {
        let at = Instant::now();
        let (before, now) = (reading(at, 1_000), reading(at + Duration::from_secs(2), 1_200));
        let figures = figures(&before, &now, Sort::Packets);
        assert_eq!(figures.seconds, 2.0);
        assert_eq!(figures.interfaces[0].rx_packets_per_second, 100.0);
        assert_eq!(figures.interfaces[0].tx_bits_per_second, 8.0 * 120.0 * 100.0);
        assert_eq!(figures.drops, [DropFigures { reason: "no_flow".into(), per_second: 10.0 }]);
        let services: Vec<&str> = figures.services.iter().map(|one| one.service.as_str()).collect();
        assert_eq!(services, ["shop/web:http", "shop/quiet:http"]);
        let text = text(&figures, Style::default());
        for expected in ["edge-1, NOT READY", "uplink", "no_flow", "shop/web:http", "80.0k"] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
    }

    #[test]
    fn counters_of_a_restarted_daemon_give_no_negative_rates() {
        let at = Instant::now();
        let figures = figures(&reading(at, 900), &reading(at + Duration::from_secs(1), 10), Sort::Bytes);
        assert_eq!(figures.interfaces[0].rx_packets_per_second, 0.0);
        assert!(figures.services.iter().all(|one| one.packets_per_second >= 0.0));
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (950.0, "950"), (1_520.0, "1.52k"), (15_200_000.0, "15.2M"), (3.2e9, "3.20G")]
        {
            assert_eq!(short(value), text);
        }
    }
}
