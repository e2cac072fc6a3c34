//! A scenario: the traffic, the state of the forwarder, and how it is measured. Read from a TOML file.
//!
//! Invariant: a scenario that exists is valid. Every error names the key, and the accepted values.

use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

/// Bytes of the mark at the end of each frame: magic, flow, time. Every frame has space for it.
pub(crate) const MARK_LEN: usize = 16;

/// The content of one file. A list stands for several rows: each combination of its values is measured.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct File {
    forwarders: Vec<Forwarder>,
    modes: Vec<Mode>,
    wire: Wire,
    family: Family,
    protocol: Protocol,
    flows: Vec<u32>,
    new_percent: u8,
    direction: Direction,
    frame_bytes: Vec<u16>,
    services: u32,
    backends: u32,
    flow_tracking: Tracking,
    seconds: f64,
    rounds: u32,
    loss_percent: f64,
    precision_percent: f64,
    search: bool,
    latency: bool,
    connections: bool,
}

impl Default for File {
    fn default() -> Self {
        Self {
            forwarders: vec![Forwarder::Tidegate],
            modes: vec![Mode::DsrL2],
            wire: Wire::Memif,
            family: Family::V4,
            protocol: Protocol::Udp,
            flows: vec![1_000_000],
            new_percent: 0,
            direction: Direction::Requests,
            frame_bytes: vec![60],
            services: 1_000,
            backends: 10,
            flow_tracking: Tracking::Always,
            seconds: 0.3,
            rounds: 3,
            loss_percent: 0.1,
            precision_percent: 2.0,
            search: true,
            latency: true,
            connections: false,
        }
    }
}

/// The device under test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Forwarder {
    /// `tidegate run`.
    Tidegate,
    /// `dpdk-testpmd`, which only passes frames on: the minimum cost of a DPDK program on the same wire.
    Testpmd,
    /// The Linux kernel with the rules that kube-proxy writes for nftables.
    Kernel,
}

/// The forwarding mode of Tidegate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mode {
    DsrL2,
    DsrIpip,
    DsrGue,
    DsrGre,
    DsrGeneve,
    Nat,
    #[serde(rename = "fullnat")]
    FullNat,
}

/// What connects the generator with the forwarder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Wire {
    /// Rings in memory that both processes share (`net_memif`).
    Memif,
    /// Links of the kernel (veth), by packet sockets (`net_af_packet`).
    Veth,
}

/// The family of clients, VIPs and backends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Family {
    V4,
    V6,
}

/// The protocol of the flows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Protocol {
    Tcp,
    Udp,
}

/// The senders of the packets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Direction {
    /// Those of clients.
    Requests,
    /// Packets of backends, only if they pass the forwarder: `nat` and `fullnat`.
    Replies,
}

/// Which flows Tidegate remembers in DSR modes (`tidegate.dev/flow-tracking`).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Tracking {
    /// All.
    #[default]
    Always,
    /// Flows whose backend may change. There are none while backends do not change.
    OnChange,
}

/// One row of a table of results.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub(crate) struct Scenario {
    pub(crate) forwarder: Forwarder,
    /// The mode, for Tidegate.
    pub(crate) mode: Option<Mode>,
    pub(crate) wire: Wire,
    pub(crate) family: Family,
    pub(crate) protocol: Protocol,
    /// Established flows, each packet of one picked at random. 0: each packet begins a flow.
    pub(crate) flows: u32,
    /// Percent of packets that begin a flow, among those of established ones.
    pub(crate) new_percent: u8,
    pub(crate) direction: Direction,
    /// Bytes of the frames, without check sequence, used in turn.
    pub(crate) frame_bytes: Vec<u16>,
    pub(crate) services: u32,
    /// Backends of each service.
    pub(crate) backends: u32,
    /// Older files of results do not have it.
    #[serde(default)]
    pub(crate) flow_tracking: Tracking,
    /// Seconds of one trial.
    pub(crate) seconds: f64,
    /// How often each row is measured.
    pub(crate) rounds: u32,
    /// The loss that a rate may have to count as forwarded.
    pub(crate) loss_percent: f64,
    /// The precision with which the search finds the highest rate.
    pub(crate) precision_percent: f64,
    /// Whether the highest rate within the bound is searched; otherwise only the rate under overload is measured. Older
    /// files of results do not have it.
    #[serde(default = "yes")]
    pub(crate) search: bool,
    /// Whether latency is measured too.
    pub(crate) latency: bool,
    /// Whether whole TCP connections per second are measured too.
    pub(crate) connections: bool,
}

fn yes() -> bool {
    true
}

/// The most services x backends: the addresses of the plan end there.
const BACKENDS_ALL_MAX: u32 = 60_000;
/// The most flows: those that the generator can number.
const FLOWS_MAX: u32 = 16_000_000;
/// The bytes of the smallest frame with the generator's mark in its payload.
const FRAME_MIN: u16 = 60;

impl Scenario {
    /// The rows of a file.
    ///
    /// # Errors
    /// It cannot be read, or is invalid; the message names the file and the position.
    pub(crate) fn read(path: &Path) -> Result<Vec<Self>> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Self::parse(&text).with_context(|| path.display().to_string())
    }

    /// The rows of the text of a file.
    ///
    /// # Errors
    /// The message has the line of the error, or the key.
    pub(crate) fn parse(text: &str) -> Result<Vec<Self>> {
        let file: File = toml::from_str(text)?;
        let mut rows = Vec::new();
        for &forwarder in &file.forwarders {
            let modes = match forwarder {
                Forwarder::Tidegate => file.modes.iter().copied().map(Some).collect(),
                Forwarder::Testpmd | Forwarder::Kernel => vec![None],
            };
            for (mode, &flows) in
                modes.iter().flat_map(|mode| file.flows.iter().map(move |flows| (mode, flows)))
            {
                let row = file.row(forwarder, *mode, flows);
                row.check()?;
                rows.push(row);
            }
        }
        ensure!(
            !rows.is_empty(),
            "there is nothing to measure; accepted: at least one of `forwarders`, `modes` and `flows`"
        );
        Ok(rows)
    }

    /// Measures only the rate under overload.
    pub(crate) fn only_overload(&mut self) {
        (self.search, self.latency) = (false, false);
    }

    fn check(&self) -> Result<()> {
        let all = u64::from(self.services) * u64::from(self.backends);
        within("services x backends", all, 1..=u64::from(BACKENDS_ALL_MAX))?;
        within("flows", u64::from(self.flows), 0..=u64::from(FLOWS_MAX))?;
        within("new-percent", u64::from(self.new_percent), 0..=100)?;
        within("rounds", u64::from(self.rounds), 1..=1_000)?;
        ensure!(!self.frame_bytes.is_empty(), "frame-bytes is empty; accepted: a list such as [60]");
        let least = self.frame_min();
        for &bytes in &self.frame_bytes {
            within("frame-bytes", u64::from(bytes), u64::from(least)..=1514)?;
        }
        ensure!(
            (0.01..=3_600.0).contains(&self.seconds),
            "seconds = {}; accepted: 0.01 to 3600",
            self.seconds
        );
        ensure!(
            (0.0..100.0).contains(&self.loss_percent),
            "loss-percent = {}; accepted: 0 to less than 100",
            self.loss_percent
        );
        ensure!(
            (0.1..=50.0).contains(&self.precision_percent),
            "precision-percent = {}; accepted: 0.1 to 50",
            self.precision_percent
        );
        ensure!(
            !self.connections || self.protocol == Protocol::Tcp,
            "connections = true needs connections; accepted with protocol = \"tcp\""
        );
        match (self.forwarder, self.wire, self.direction) {
            (Forwarder::Kernel, Wire::Memif, _) => {
                bail!("forwarders: the kernel has no memif; accepted with wire = \"veth\"")
            }
            (Forwarder::Kernel | Forwarder::Testpmd, _, Direction::Replies) => {
                bail!("direction = \"replies\" is measured for tidegate only; accepted here: \"requests\"")
            }
            (Forwarder::Tidegate, _, _)
                if self.flow_tracking == Tracking::OnChange && self.mode.is_some_and(Mode::returns) =>
            {
                bail!(
                    "flow-tracking = \"on-change\": nat and fullnat remember every flow; accepted with DSR modes"
                )
            }
            (Forwarder::Tidegate, _, Direction::Replies)
                if !matches!(self.mode, Some(Mode::Nat | Mode::FullNat)) || self.flows == 0 =>
            {
                bail!(
                    "direction = \"replies\" needs established flows in mode nat or fullnat: other replies do not pass \
                     through the gateway"
                )
            }
            _ => Ok(()),
        }
    }

    /// The smallest frame with all headers and the generator's mark.
    pub(crate) fn frame_min(&self) -> u16 {
        let headers = match self.family {
            Family::V4 => 14 + 20,
            Family::V6 => 14 + 40,
        } + match self.protocol {
            Protocol::Tcp => 20,
            Protocol::Udp => 8,
        };
        (headers + MARK_LEN as u16).max(FRAME_MIN)
    }

    /// Its name in tables, which has the fields that differ between rows.
    pub(crate) fn name(&self) -> String {
        let who = match (self.forwarder, self.mode) {
            (Forwarder::Tidegate, Some(mode)) => {
                let replies = if self.direction == Direction::Replies { " replies" } else { "" };
                let tracking = if self.flow_tracking == Tracking::OnChange { " on-change" } else { "" };
                format!("tidegate {}{replies}{tracking}", mode.as_str())
            }
            (Forwarder::Tidegate, None) => "tidegate".to_owned(),
            (Forwarder::Testpmd, _) => "testpmd".to_owned(),
            (Forwarder::Kernel, _) => "kernel nftables".to_owned(),
        };
        let wire = match self.wire {
            Wire::Memif => "memif",
            Wire::Veth => "veth",
        };
        format!("{who}, {wire}, {}", self.traffic())
    }

    /// The traffic, which rows that are compared with each other have in common.
    pub(crate) fn traffic(&self) -> String {
        let flows = match self.flows {
            0 => "a new flow each packet".to_owned(),
            n => format!("{} flows", thousands(u64::from(n))),
        };
        let new = if self.new_percent > 0 { format!(", {} % new", self.new_percent) } else { String::new() };
        let bytes: Vec<String> = self.frame_bytes.iter().map(ToString::to_string).collect();
        let protocol = match (self.protocol, self.family) {
            (Protocol::Tcp, Family::V4) => "TCP",
            (Protocol::Udp, Family::V4) => "UDP",
            (Protocol::Tcp, Family::V6) => "TCP over IPv6",
            (Protocol::Udp, Family::V6) => "UDP over IPv6",
        };
        format!("{flows}{new}, {} bytes, {protocol}, {}x{}", bytes.join("/"), self.services, self.backends)
    }
}

impl File {
    fn row(&self, forwarder: Forwarder, mode: Option<Mode>, flows: u32) -> Scenario {
        Scenario {
            forwarder,
            mode,
            wire: self.wire,
            family: self.family,
            protocol: self.protocol,
            flows,
            new_percent: self.new_percent,
            direction: self.direction,
            frame_bytes: self.frame_bytes.clone(),
            services: self.services,
            backends: self.backends,
            flow_tracking: self.flow_tracking,
            seconds: self.seconds,
            rounds: self.rounds,
            loss_percent: self.loss_percent,
            precision_percent: self.precision_percent,
            search: self.search,
            latency: self.latency,
            connections: self.connections,
        }
    }
}

impl Mode {
    /// The name in Tidegate's annotations.
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::DsrL2 => "dsr-l2",
            Self::DsrIpip => "dsr-ipip",
            Self::DsrGue => "dsr-gue",
            Self::DsrGre => "dsr-gre",
            Self::DsrGeneve => "dsr-geneve",
            Self::Nat => "nat",
            Self::FullNat => "fullnat",
        }
    }

    /// Whether backends answer through the gateway.
    pub(crate) fn returns(self) -> bool {
        matches!(self, Self::Nat | Self::FullNat)
    }
}

fn within(key: &str, value: u64, accepted: RangeInclusive<u64>) -> Result<()> {
    ensure!(
        accepted.contains(&value),
        "{key} = {value}; accepted: {} to {}",
        accepted.start(),
        accepted.end()
    );
    Ok(())
}

/// A number with commas between its thousands.
pub(crate) fn thousands(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_combination_of_a_file_is_a_row() {
        let rows = Scenario::parse(
            "forwarders = ['tidegate', 'testpmd']\nmodes = ['dsr-l2', 'fullnat']\nflows = [1000, 0]\nrounds = 5",
        )
        .unwrap();
        let names: Vec<String> = rows.iter().map(Scenario::name).collect();
        assert_eq!(names.len(), 6);
        assert_eq!(names[0], "tidegate dsr-l2, memif, 1,000 flows, 60 bytes, UDP, 1000x10");
        assert_eq!(names[3], "tidegate fullnat, memif, a new flow each packet, 60 bytes, UDP, 1000x10");
        assert_eq!(names[5], "testpmd, memif, a new flow each packet, 60 bytes, UDP, 1000x10");
        assert!(rows.iter().all(|row| row.rounds == 5));
    }

    #[test]
    fn errors_name_the_line_and_the_accepted_values() {
        let wrong = |text: &str| format!("{:#}", Scenario::parse(text).unwrap_err());
        for (text, expected) in [
            ("rounds = 1\nflow = [1]", "line 2"),
            ("modes = ['dsr']", "`dsr-l2`"),
            ("frame-bytes = [59]", "frame-bytes = 59; accepted: 60 to 1514"),
            ("frame-bytes = [69]\nprotocol = 'tcp'", "accepted: 70 to 1514"),
            ("services = 10000\nbackends = 10", "services x backends = 100000; accepted: 1 to 60000"),
            ("loss-percent = 100.0", "0 to less than 100"),
            ("forwarders = ['kernel']", "accepted with wire = \"veth\""),
            ("direction = 'replies'", "mode nat or fullnat"),
            ("forwarders = []", "nothing to measure"),
            ("seconds = 0.0", "0.01 to 3600"),
            ("connections = true", "accepted with protocol = \"tcp\""),
            ("modes = ['nat']\nflow-tracking = 'on-change'", "accepted with DSR modes"),
        ] {
            assert!(wrong(text).contains(expected), "{text:?}: {}", wrong(text));
        }
    }
}
