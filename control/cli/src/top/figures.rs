//! What `top` shows: the figures, and the tables of them.

use std::net::SocketAddr;

use clap::ValueEnum;
use serde::Serialize;
use tidegate_admin_api::BackendViewState;

use super::super::output::{Format, Style, Table, age};
use super::super::tables;

/// The order of the Services and backends, the busiest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub(super) enum Sort {
    /// By packets per second.
    #[default]
    Packets,
    /// By bytes per second.
    Bytes,
    /// By new connections per second.
    Connections,
}

impl Sort {
    /// The figure that decides.
    pub(super) fn of(self, packets: f64, bits: f64, connections: f64) -> f64 {
        match self {
            Self::Packets => packets,
            Self::Bytes => bits,
            Self::Connections => connections,
        }
    }
}

/// The rates between two queries.
#[derive(Debug, Default, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Figures {
    pub(super) name: String,
    pub(super) ready: bool,
    pub(super) uptime_seconds: u64,
    pub(super) generation_desired: u64,
    pub(super) generation_applied: u64,
    /// Seconds between the two queries.
    pub(super) seconds: f64,
    pub(super) workers: Vec<WorkerFigures>,
    pub(super) interfaces: Vec<InterfaceFigures>,
    /// Packets dropped per second, the most frequent reason first. Reasons that did not occur are omitted.
    pub(super) drops: Vec<DropFigures>,
    /// The busiest first.
    pub(super) services: Vec<ServiceFigures>,
    /// With `--service`: its backends, the busiest first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) backends: Vec<BackendFigures>,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct BackendFigures {
    pub(super) backend: SocketAddr,
    /// The service port on its VIP.
    pub(super) vip: SocketAddr,
    pub(super) protocol: String,
    pub(super) state: BackendViewState,
    pub(super) active: u64,
    pub(super) connections: u64,
    pub(super) connections_per_second: f64,
    pub(super) packets_per_second: f64,
    pub(super) bits_per_second: f64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct WorkerFigures {
    pub(super) worker: u8,
    pub(super) core: usize,
    pub(super) state: String,
    pub(super) busy_ratio: f64,
    pub(super) cycles_per_packet: f64,
    pub(super) flows: u64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct InterfaceFigures {
    pub(super) name: String,
    pub(super) link: String,
    pub(super) rx_packets_per_second: f64,
    pub(super) rx_bits_per_second: f64,
    pub(super) tx_packets_per_second: f64,
    pub(super) tx_bits_per_second: f64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct DropFigures {
    pub(super) reason: String,
    pub(super) per_second: f64,
}

#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct ServiceFigures {
    /// `namespace/name:port`.
    pub(super) service: String,
    #[serde(skip)]
    pub(super) namespace: String,
    #[serde(skip)]
    pub(super) name: String,
    pub(super) vip: SocketAddr,
    pub(super) protocol: String,
    pub(super) packets_per_second: f64,
    pub(super) bits_per_second: f64,
    pub(super) connections_per_second: f64,
}

/// A line of the tables.
pub(super) struct Line {
    pub(super) text: String,
    pub(super) kind: LineKind,
}

/// The kind of a line, for its color.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LineKind {
    Plain,
    Header,
    /// The row of the service at this position.
    Service(usize),
    /// Something that needs attention.
    Warning,
}

/// The figures as tables.
pub(super) fn lines(figures: &Figures, style: Style) -> Vec<Line> {
    let (ready, kind) =
        if figures.ready { ("ready", LineKind::Plain) } else { ("NOT READY", LineKind::Warning) };
    let title = format!(
        "{}, {ready}, up for {}, generation {} applied, {} desired",
        figures.name,
        age(figures.uptime_seconds),
        figures.generation_applied,
        figures.generation_desired
    );
    let blank = || Line { text: String::new(), kind: LineKind::Plain };
    let mut lines = vec![Line { text: title, kind }, blank()];
    let mut add = |table: &Table, kind: &dyn Fn(usize) -> LineKind| {
        if table.is_empty() {
            return;
        }
        let text = table.render(style.format == Format::Wide, !style.no_headers);
        let headers = usize::from(!style.no_headers);
        lines.extend(text.lines().enumerate().map(|(n, line)| {
            let kind = n.checked_sub(headers).map_or(LineKind::Header, kind);
            Line { text: line.to_owned(), kind }
        }));
        lines.push(blank());
    };
    let plain = |_| LineKind::Plain;
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
    add(&workers, &plain);
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
    add(&interfaces, &plain);
    let mut drops = Table::new(&["DROPPED", "PER-SECOND"]);
    for one in &figures.drops {
        drops.row([one.reason.clone(), short(one.per_second)]);
    }
    add(&drops, &|_| LineKind::Warning);
    add(&services(&figures.services), &LineKind::Service);
    add(&backends(&figures.backends), &|n| match figures.backends[n].state {
        BackendViewState::Active => LineKind::Plain,
        BackendViewState::Draining | BackendViewState::Down => LineKind::Warning,
    });
    lines
}

fn services(figures: &[ServiceFigures]) -> Table {
    let mut services = Table::new(&["SERVICE", "VIP", "PROTOCOL", "PPS", "BPS", "NEW/S"]);
    for one in figures {
        services.row([
            one.service.clone(),
            one.vip.to_string(),
            one.protocol.clone(),
            short(one.packets_per_second),
            short(one.bits_per_second),
            short(one.connections_per_second),
        ]);
    }
    services
}

fn backends(figures: &[BackendFigures]) -> Table {
    let mut backends =
        Table::new(&["BACKEND", "VIP", "PROTOCOL", "STATE", "ACTIVE", "CONNECTIONS", "PPS", "BPS", "NEW/S"]);
    for one in figures {
        backends.row([
            one.backend.to_string(),
            one.vip.to_string(),
            one.protocol.clone(),
            tables::state(one.state).to_owned(),
            one.active.to_string(),
            one.connections.to_string(),
            short(one.packets_per_second),
            short(one.bits_per_second),
            short(one.connections_per_second),
        ]);
    }
    backends
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        for (value, text) in
            [(0.0, "0"), (950.0, "950"), (1_520.0, "1.52k"), (15_200_000.0, "15.2M"), (3.2e9, "3.20G")]
        {
            assert_eq!(short(value), text);
        }
    }
}
