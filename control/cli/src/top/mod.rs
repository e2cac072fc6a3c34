//! `top`: live figures of a running gateway.
//!
//! It queries the counters periodically and shows their rates. On a terminal it draws a screen that fits (`screen.rs`);
//! otherwise, and with a number of iterations, it prints one table after another. It keeps only the counters of the last
//! two queries.

mod figures;
mod screen;

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use clap::Args;
use tidegate_admin_api::{
    BackendForwarding, BackendRow, Client, DropsAnswer, ServiceTraffic, Status, TrafficAnswer,
};

use figures::{
    BackendFigures, DropFigures, Figures, InterfaceFigures, ServiceFigures, Sort, WorkerFigures, lines,
};
use screen::{Key, Screen};

use super::failure::Failure;
use super::output::{Format, Style};
use super::query::is_named;

/// What is shown, and how often.
#[derive(Debug, Args)]
pub(super) struct View {
    /// Seconds between two refreshes
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = interval)]
    interval: f64,
    /// Stop after this many refreshes, and print each instead of drawing a screen
    #[arg(long, value_name = "N")]
    iterations: Option<u64>,
    /// Order of the Services and backends
    #[arg(long, value_enum, default_value_t)]
    sort: Sort,
    /// Number of Services to print; a terminal shows as many as fit
    #[arg(long, value_name = "N", default_value_t = 20)]
    rows: usize,
    /// Show only this Service, NAME, NAMESPACE/NAME or NAMESPACE/gateway/NAME, and its backends
    #[arg(long, value_name = "SERVICE")]
    service: Option<String>,
}

impl View {
    fn interval(&self) -> Duration {
        Duration::from_secs_f64(self.interval)
    }
}

fn interval(text: &str) -> Result<f64, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3_600.0).contains(seconds));
    seconds.ok_or_else(|| "accepted: 0.1 to 3600".to_owned())
}

/// The counters of one query.
#[derive(Clone)]
struct Reading {
    at: Instant,
    status: Status,
    traffic: TrafficAnswer,
    drops: DropsAnswer,
    /// Only those of the Service that is shown alone.
    backends: Vec<BackendRow>,
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
    let draws = view.iterations.is_none() && !style.is_data() && io::stdout().is_terminal();
    if draws {
        return draw(client, view, style).await;
    }
    let mut last = read(client, view.service.as_deref()).await?;
    let mut shown = 0;
    loop {
        tokio::select! {
            () = tokio::time::sleep(view.interval()) => {}
            _ = tokio::signal::ctrl_c() => return Ok(()),
        }
        let now = read(client, view.service.as_deref()).await?;
        let mut figures = figures(&last, &now, view.sort);
        last = now;
        figures.services.truncate(view.rows);
        match style.format {
            Format::Json => writeln!(out, "{}", serde_json::to_string(&figures).map_err(io::Error::from)?)?,
            Format::Yaml => {
                writeln!(out, "---")?;
                style.print_data(out, &figures)?;
            }
            Format::Table | Format::Wide => {
                for line in lines(&figures, style) {
                    writeln!(out, "{}", line.text)?;
                }
            }
        }
        out.flush()?;
        shown += 1;
        if view.iterations.is_some_and(|most| shown >= most) {
            return Ok(());
        }
    }
}

/// Draws the figures on the terminal until the operator quits.
async fn draw(client: &Client, view: &View, style: Style) -> Result<(), Failure> {
    let mut screen = Screen::enter()?;
    let (mut sort, mut service) = (view.sort, view.service.clone());
    let mut now = read(client, service.as_deref()).await?;
    let mut before = now.clone();
    loop {
        let until = Instant::now() + view.interval();
        loop {
            let figures = figures(&before, &now, sort);
            screen.draw(&figures, style)?;
            match screen.key_until(until)? {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Sort(by)) => sort = by,
                Some(Key::Redraw) => {}
                key @ (Some(Key::Open | Key::Back) | None) => {
                    match key {
                        Some(Key::Open) => {
                            let Some(selected) = figures.services.get(screen.selected()) else { continue };
                            service = Some(format!("{}/{}", selected.namespace, selected.name));
                        }
                        Some(_) if service == view.service => return Ok(()),
                        Some(_) => service.clone_from(&view.service),
                        None => {}
                    }
                    let last = std::mem::replace(&mut now, read(client, service.as_deref()).await?);
                    // Backends that weren't read before have no rates yet.
                    before = if key.is_none() { last } else { now.clone() };
                    break;
                }
            }
        }
    }
}

async fn read(client: &Client, service: Option<&str>) -> Result<Reading, Failure> {
    let (status, mut traffic, drops) =
        (client.status().await?, client.traffic().await?, client.drops().await?);
    let mut backends = Vec::new();
    if let Some(wanted) = service {
        let wants = |namespace: &str, name: &str| is_named(wanted, Some(namespace), name);
        traffic.services.retain(|one| wants(&one.namespace, &one.service));
        backends = client.backends().await?.backends;
        backends.retain(|row| wants(&row.namespace, &row.service));
        if traffic.services.is_empty() && backends.is_empty() {
            return Err(Failure::NotFound(vec![format!("services {wanted:?}")]));
        }
    }
    Ok(Reading { at: Instant::now(), status, traffic, drops, backends })
}

/// The backends with their rates, the busiest first.
fn backends(
    before: &Reading,
    now: &Reading,
    sort: Sort,
    rate: impl Fn(u64, u64) -> f64,
) -> Vec<BackendFigures> {
    let key = |row: &BackendRow| {
        let vip = SocketAddr::new(row.vip, row.service_port);
        (vip, row.protocol.clone(), SocketAddr::new(row.backend.address, row.backend.port))
    };
    let old: BTreeMap<_, _> = before.backends.iter().map(|row| (key(row), row.forwarding)).collect();
    let figures = now.backends.iter().map(|row| {
        let (vip, protocol, backend) = key(row);
        let old = old.get(&key(row)).copied().unwrap_or_default();
        let of = |count: fn(&BackendForwarding) -> Option<u64>| {
            rate(count(&row.forwarding).unwrap_or(0), count(&old).unwrap_or(0))
        };
        BackendFigures {
            backend,
            vip,
            protocol,
            state: row.backend.state,
            active: row.forwarding.active.unwrap_or(0),
            connections: row.forwarding.connections.unwrap_or(0),
            connections_per_second: of(|one| one.connections),
            packets_per_second: of(|one| one.packets),
            bits_per_second: 8.0 * of(|one| one.bytes),
        }
    });
    let mut figures: Vec<BackendFigures> = figures.collect();
    let by = |one: &BackendFigures| {
        sort.of(one.packets_per_second, one.bits_per_second, one.connections_per_second)
    };
    figures.sort_by(|a, b| by(b).total_cmp(&by(a)));
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
            namespace: one.namespace.clone(),
            name: one.service.clone(),
            vip: one.vip,
            protocol: one.protocol.clone(),
            packets_per_second: of(|one| one.packets),
            bits_per_second: 8.0 * of(|one| one.bytes),
            connections_per_second: of(|one| one.connections),
        }
    });
    let mut services: Vec<ServiceFigures> = services.collect();
    let by = |one: &ServiceFigures| {
        sort.of(one.packets_per_second, one.bits_per_second, one.connections_per_second)
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
        backends: backends(before, now, sort, rate),
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
        let text: String =
            lines(&figures, Style::default()).into_iter().map(|line| line.text + "\n").collect();
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
}
