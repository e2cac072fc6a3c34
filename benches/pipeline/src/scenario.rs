//! The names of scenarios: `dsr-l2/known-1000000`, `nat-reply/known-1000`, `dsr-ipip/new/tcp` ...
//!
//! A name is `PATH/FLOWS` followed by any of `tcp` and `udp` (default: both, with half of the services each), `v6`,
//! `on-change`, `copied`, and `SERVICESxBACKENDS` (default 1000x10). Nothing is built or measured here.

use std::fmt;
use std::str::FromStr;

use anyhow::{Context, bail};
use tidegate_spec::ForwardingMode;

/// The processing of the frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Path {
    /// The trivial forwarder, which swaps link addresses. All ratios are relative to it.
    Trivial,
    /// From clients to backends.
    Requests(ForwardingMode),
    /// From backends to clients, in the modes that translate addresses.
    Replies(ForwardingMode),
}

/// Which flows the packets belong to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flows {
    /// This many established flows. Each packet belongs to one of them, chosen at random.
    Known(usize),
    /// Each packet starts a flow. The table is emptied before it is full, outside of the timed part.
    New,
    /// Each packet starts a flow, and the table is full of other new flows: a flood of SYNs or of datagrams with
    /// changing sources.
    Flood,
}

/// Transport protocol of the services.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transports {
    /// TCP and UDP, half of the services each.
    Both,
    /// TCP only.
    Tcp,
    /// UDP only.
    Udp,
}

/// A scenario to measure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Scenario {
    /// The processing of the frames.
    pub path: Path,
    /// The flows that the packets belong to.
    pub flows: Flows,
    /// The protocols of the services.
    pub transports: Transports,
    /// IPv6 rather than IPv4.
    pub v6: bool,
    /// `flowTracking: on-change` rather than `always`: flows that are not in flux have no entry.
    pub on_change: bool,
    /// Another worker owns the flows, and the one that is measured has copies of them, in modes that translate
    /// addresses.
    pub copied: bool,
    /// The number of service ports.
    pub services: usize,
    /// The number of backends of each service port.
    pub backends: usize,
}

impl Scenario {
    /// The default setting: IPv4, TCP and UDP, 1,000 services with 10 backends each.
    #[must_use]
    pub fn new(path: Path, flows: Flows) -> Self {
        Self {
            path,
            flows,
            transports: Transports::Both,
            v6: false,
            on_change: false,
            copied: false,
            services: 1000,
            backends: 10,
        }
    }

    /// Whether the service with this number uses TCP.
    #[must_use]
    pub fn is_tcp(&self, service: usize) -> bool {
        match self.transports {
            Transports::Both => service.is_multiple_of(2),
            Transports::Tcp => true,
            Transports::Udp => false,
        }
    }

    /// The forwarding mode of the services.
    #[must_use]
    pub fn mode(&self) -> ForwardingMode {
        match self.path {
            Path::Trivial => ForwardingMode::DsrL2,
            Path::Requests(mode) | Path::Replies(mode) => mode,
        }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path {
            Path::Trivial => write!(f, "trivial")?,
            Path::Requests(mode) => write!(f, "{mode}")?,
            Path::Replies(mode) => write!(f, "{mode}-reply")?,
        }
        match self.flows {
            Flows::Known(flows) => write!(f, "/known-{flows}")?,
            Flows::New => write!(f, "/new")?,
            Flows::Flood => write!(f, "/flood")?,
        }
        match self.transports {
            Transports::Both => {}
            Transports::Tcp => write!(f, "/tcp")?,
            Transports::Udp => write!(f, "/udp")?,
        }
        if self.v6 {
            write!(f, "/v6")?;
        }
        if self.on_change {
            write!(f, "/on-change")?;
        }
        if self.copied {
            write!(f, "/copied")?;
        }
        if (self.services, self.backends) != (1000, 10) {
            write!(f, "/{}x{}", self.services, self.backends)?;
        }
        Ok(())
    }
}

impl FromStr for Scenario {
    type Err = anyhow::Error;

    fn from_str(name: &str) -> anyhow::Result<Self> {
        let mut words = name.split('/');
        let path = path(words.next().unwrap_or_default())?;
        let flows = match words.next().context("accepted: PATH/FLOWS, as in dsr-l2/known-1000")? {
            "new" => Flows::New,
            "flood" => Flows::Flood,
            other => {
                let flows =
                    other.strip_prefix("known-").context("accepted flows: known-NUMBER, new, flood")?;
                Flows::Known(flows.parse().context("a number of flows")?)
            }
        };
        let mut scenario = Self::new(path, flows);
        for word in words {
            match (word, word.split_once('x')) {
                ("tcp", _) => scenario.transports = Transports::Tcp,
                ("udp", _) => scenario.transports = Transports::Udp,
                ("v6", _) => scenario.v6 = true,
                ("on-change", _) => scenario.on_change = true,
                ("copied", _) => scenario.copied = true,
                (_, Some((services, backends))) => {
                    scenario.services = services.parse().context("a number of services")?;
                    scenario.backends = backends.parse().context("a number of backends")?;
                }
                _ => bail!(
                    "{word:?} in {name:?}; accepted: tcp, udp, v6, on-change, copied, SERVICESxBACKENDS"
                ),
            }
        }
        if scenario.on_change && !matches!(path, Path::Requests(mode) if mode.is_dsr()) {
            bail!("{name:?}: on-change is for DSR modes");
        }
        let translates = matches!(path, Path::Requests(mode) | Path::Replies(mode) if !mode.is_dsr());
        if scenario.copied && !(translates && matches!(flows, Flows::Known(_))) {
            bail!("{name:?}: copied is for known flows in nat and fullnat");
        }
        Ok(scenario)
    }
}

fn path(word: &str) -> anyhow::Result<Path> {
    let (mode, reply) = match word.strip_suffix("-reply") {
        Some(mode) => (mode, true),
        None => (word, false),
    };
    if mode == "trivial" && !reply {
        return Ok(Path::Trivial);
    }
    let mode = ForwardingMode::ALL.into_iter().find(|known| known.as_str() == mode);
    match (mode, reply) {
        (Some(mode), false) => Ok(Path::Requests(mode)),
        (Some(mode), true) if !mode.is_dsr() => Ok(Path::Replies(mode)),
        _ => bail!("{word:?}; accepted: trivial, any forwarding mode, nat-reply, fullnat-reply"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scenario_matches_its_name() {
        for name in [
            "trivial/known-1",
            "dsr-l2/known-1000000",
            "dsr-ipip/new/tcp",
            "nat-reply/known-1000/udp",
            "fullnat/flood/v6",
            "dsr-l2/known-5/tcp/v6/1x100",
            "dsr-gue/known-5/on-change",
            "fullnat-reply/known-5/copied",
        ] {
            let scenario: Scenario = name.parse().unwrap();
            assert_eq!(scenario.to_string(), name);
        }
        for name in [
            "",
            "dsr-l2",
            "dsr-l2-reply/new",
            "dsr-l2/known",
            "dsr-l2/new/sctp",
            "l2/new",
            "nat/new/on-change",
            "nat/new/copied",
            "dsr-l2/known-5/copied",
        ] {
            assert!(name.parse::<Scenario>().is_err(), "{name}");
        }
    }
}
