//! The other gateways, by what they say in their `GatewayStatus` and how long ago we heard it change.
//!
//! Pure: time is an argument. A gateway is live for 40 s after its heartbeat was seen to move; one that says goodbye
//! leaves its heartbeat empty and is not. No clock of another machine is compared with ours.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

use super::crd::GatewayStatus;
use super::plan::Peer;

/// A gateway that is not heard of for this long holds nobody up.
pub(super) const LIVE: Duration = Duration::from_secs(40);

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Peers {
    heard: BTreeMap<String, (Option<String>, Instant)>,
    list: Vec<GatewayStatus>,
}

impl Peers {
    /// The API server has these.
    pub(super) fn listed(&mut self, list: Vec<GatewayStatus>, now: Instant) {
        let mut heard = BTreeMap::new();
        for one in &list {
            let Some(name) = one.metadata.name.clone() else { continue };
            let beat = one.status.as_ref().and_then(|status| status.last_heartbeat.clone());
            let before = self.heard.get(&name).filter(|(last, _)| *last == beat);
            let since = before.map_or(now, |(_, since)| *since);
            heard.insert(name, (beat, since));
        }
        self.heard = heard;
        self.list = list;
    }

    /// What is known of each now.
    pub(super) fn at(&self, now: Instant) -> Vec<Peer> {
        let peer = |one: &GatewayStatus| {
            let name = one.metadata.name.clone()?;
            let (beat, since) = self.heard.get(&name)?;
            let status = one.status.clone().unwrap_or_default();
            Some(Peer {
                live: beat.is_some() && now.duration_since(*since) < LIVE,
                vips: status.vips.iter().filter_map(|vip| vip.parse().ok()).collect(),
                released: status.released.into_iter().collect(),
                name,
            })
        };
        self.list.iter().filter_map(peer).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::crd::{GatewayStatusSpec, GatewayStatusStatus};
    use super::*;

    fn status(name: &str, beat: Option<&str>) -> GatewayStatus {
        let mut status = GatewayStatus::new(name, GatewayStatusSpec { gateway: name.into() });
        let last_heartbeat = beat.map(str::to_owned);
        status.status = Some(GatewayStatusStatus { last_heartbeat, ..GatewayStatusStatus::default() });
        status
    }

    #[test]
    fn a_gateway_is_live_while_its_heartbeat_moves_whatever_its_clock_says() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let mut peers = Peers::default();
        let live =
            |peers: &Peers, seconds: u64| peers.at(at(seconds)).iter().map(|p| p.live).collect::<Vec<_>>();
        peers.listed(vec![status("a", Some("1999-01-01T00:00:00Z")), status("b", None)], start);
        assert_eq!(live(&peers, 39), [true, false], "b said goodbye");
        peers.listed(vec![status("a", Some("1999-01-01T00:00:00Z"))], at(30));
        assert_eq!(live(&peers, 40), [false]);
        peers.listed(vec![status("a", Some("1999-01-01T00:00:10Z"))], at(50));
        assert_eq!(live(&peers, 89), [true]);
    }
}
