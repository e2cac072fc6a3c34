//! Gateways with different histories that share flows: backends are added and removed, routers move flows, gateways
//! restart without state, and no connection changes its backend.
//!
//! The model of a gateway's control plane knows the current backends and the changes that it has seen itself
//! ([`WeightHistory`]) or received from the other gateway at its start. Removed backends continue to serve.
//!
//! Connections send at least once a minute and, if their gateway fails, before the backends change again. Otherwise no
//! gateway would know them, since tables don't survive the process.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use proptest::prelude::*;
use tidegate_conntrack::flow_record::FlowUpdate;
use tidegate_conntrack::flow_record::Walks;
use tidegate_select::rendezvous::WeightHistory;
use tidegate_spec::verdict::TransmitReason;
use tidegate_spec::{
    BackendSpec, BackendState, FlowTracking, FormerWeight, ForwardingMode, NeighborSpec, Protocol,
};
use tidegate_wire::tcp::flags::{ACK, PSH, SYN};

use super::lab::{Lab, backend_mac, service};
use crate::pipeline::SharedFlows;
use crate::testing::builder::Builder;

const VIP: &str = "203.0.113.5:80";
const WINDOW: Duration = Duration::from_secs(3600);

#[derive(Debug, Clone)]
enum Event {
    /// This many connections open.
    Open(u8),
    /// Every n-th connection sends, starting with this one.
    Send {
        every: u8,
        first: u8,
    },
    /// The oldest backend is removed but continues to serve, and another one is added.
    Replace,
    Join,
    /// The router uses these gateways, and distributes flows by this salt.
    Route {
        gateways: [bool; 2],
        salt: u8,
    },
    /// A gateway restarts and loses its tables and its history. Meanwhile the router uses the other one.
    Restart(usize),
    Wait(u8),
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        4 => (1_u8..20).prop_map(Event::Open),
        6 => (1_u8..4, 0_u8..4).prop_map(|(every, first)| Event::Send { every, first }),
        3 => Just(Event::Replace),
        1 => Just(Event::Join),
        4 => (0_u8..3, any::<u8>()).prop_map(|(which, salt)| {
            Event::Route { gateways: [which != 1, which != 2], salt }
        }),
        2 => (0_usize..2).prop_map(Event::Restart),
        1 => (1_u8..20).prop_map(Event::Wait),
    ]
}

struct Gateway {
    lab: Lab,
    history: WeightHistory,
    walks: Walks,
}

#[derive(Clone, Copy)]
struct Connection {
    port: u16,
    backend: IpAddr,
}

struct Fleet {
    is_on_change: bool,
    gateways: Vec<Gateway>,
    /// All backends that serve, oldest first, and whether they accept new flows.
    backends: Vec<(SocketAddr, bool)>,
    connections: Vec<Connection>,
    used: [bool; 2],
    salt: u8,
    elapsed: Duration,
}

fn host(n: usize) -> SocketAddr {
    let [high, low] = u16::try_from(n).expect("few backends").to_be_bytes();
    SocketAddr::new([10, 0, high, low].into(), 80)
}

fn client(port: u16) -> SocketAddr {
    SocketAddr::new([198, 51, 100, 7].into(), port)
}

impl Gateway {
    fn start(fleet: &Fleet, peer: Option<&WeightHistory>) -> Self {
        let mut lab = Lab::new(vec![service(ForwardingMode::DsrL2, Protocol::Tcp, VIP, &[])]);
        lab.change(|spec| {
            spec.network.interfaces[0].addresses[0] = "10.0.255.254/16".parse().expect("an address");
            spec.network.neighbors.retain(|neighbor| neighbor.ip.is_ipv6());
            let mac = backend_mac(1);
            spec.network.neighbors.extend((1..300).map(|n| NeighborSpec { ip: host(n).ip(), mac }));
            spec.network.routes.retain(|route| route.via.is_ipv6());
            spec.network.snat_addresses.clear();
        });
        lab.wait(fleet.elapsed);
        lab.pipeline.set_shared_flows(Some(SharedFlows::Nat), Walks::default());
        let mut history = WeightHistory::next(None, fleet.weights(), WINDOW, fleet.elapsed);
        if let Some(peer) = peer {
            peer.changes(fleet.elapsed).for_each(|seat| history.import(&seat, WINDOW, fleet.elapsed));
        }
        let mut gateway = Self { lab, history, walks: Walks::default() };
        gateway.publish(fleet);
        gateway
    }

    fn publish(&mut self, fleet: &Fleet) {
        self.history = WeightHistory::next(Some(&self.history), fleet.weights(), WINDOW, fleet.elapsed);
        let moved = self.history.former_weights();
        let moved = moved.map(|(at, weight)| FormerWeight { address: at.ip(), port: at.port(), weight });
        let moved: Vec<FormerWeight> = moved.collect();
        let state = |accepts_new| if accepts_new { BackendState::Active } else { BackendState::Draining };
        let backend = |&(at, accepts_new): &(SocketAddr, bool)| BackendSpec {
            address: at.ip(),
            port: at.port(),
            weight: 1,
            state: state(accepts_new),
        };
        let mut backends: Vec<BackendSpec> = fleet.backends.iter().map(backend).collect();
        backends.sort_by_key(|backend| backend.address);
        self.lab.change(|spec| {
            spec.services[0].backends = backends;
            if fleet.is_on_change {
                spec.services[0].flow_tracking = FlowTracking::OnChange(moved.into());
            }
        });
    }

    fn updates(&mut self) -> Vec<FlowUpdate> {
        let (mut all, lab) = (Vec::new(), &mut self.lab);
        while lab.pipeline.share(&lab.snapshot, self.walks, true, lab.now, |updates| all.push(updates)) {}
        all
    }
}

impl Fleet {
    fn new(is_on_change: bool) -> Self {
        let mut fleet = Self {
            is_on_change,
            gateways: Vec::new(),
            backends: (1..=4).map(|n| (host(n), true)).collect(),
            connections: Vec::new(),
            used: [true, true],
            salt: 0,
            elapsed: Duration::ZERO,
        };
        fleet.gateways = vec![Gateway::start(&fleet, None), Gateway::start(&fleet, None)];
        fleet
    }

    fn weights(&self) -> BTreeMap<SocketAddr, u16> {
        self.backends.iter().filter(|(_, accepts_new)| *accepts_new).map(|(at, _)| (*at, 1)).collect()
    }

    /// The gateways exchange updates until there are none.
    fn exchange(&mut self) {
        loop {
            let sent = [0, 1].map(|n| self.gateways[n].updates());
            for (from, updates) in sent.iter().enumerate() {
                let Lab { pipeline, snapshot, now, .. } = &mut self.gateways[1 - from].lab;
                for one in updates {
                    pipeline.adopt(snapshot, one, *now);
                }
            }
            if sent.iter().all(Vec::is_empty) {
                return;
            }
        }
    }

    fn publish(&mut self) {
        let mut gateways = std::mem::take(&mut self.gateways);
        gateways.iter_mut().for_each(|gateway| gateway.publish(self));
        self.gateways = gateways;
    }

    fn join(&mut self) {
        self.backends.push((host(self.backends.len() + 1), true));
    }

    /// The gateway that gets the packets of a client port.
    fn gateway_of(&self, port: u16) -> usize {
        match self.used {
            [true, true] => {
                let spread = (u32::from(port) ^ u32::from(self.salt) << 7).wrapping_mul(0x9e37_79b1);
                (spread >> 31) as usize
            }
            [is_first, _] => usize::from(!is_first),
        }
    }

    fn send(&mut self, port: u16, bits: u8) -> IpAddr {
        let at = self.gateway_of(port);
        let lab = &mut self.gateways[at].lab;
        let result =
            lab.send(Builder::tcp(client(port), VIP.parse::<SocketAddr>().expect("a VIP")).flags(bits));
        result.sent(TransmitReason::Forward);
        lab.backend_of(&result)
    }

    fn send_all(&mut self, every: usize, first: usize) -> Result<(), TestCaseError> {
        for at in (first..self.connections.len()).step_by(every) {
            let Connection { port, backend } = self.connections[at];
            let (got, gateway) = (self.send(port, ACK | PSH), self.gateway_of(port));
            prop_assert_eq!(got, backend, "port {} at gateway {}", port, gateway);
        }
        Ok(())
    }

    fn apply(&mut self, event: &Event) -> Result<(), TestCaseError> {
        match event {
            Event::Open(count) => {
                for _ in 0..*count {
                    let port = 1_000 + u16::try_from(self.connections.len()).expect("few connections");
                    let backend = self.send(port, SYN);
                    prop_assert_eq!(self.send(port, ACK), backend);
                    self.connections.push(Connection { port, backend });
                }
            }
            Event::Send { every, first } => {
                self.send_all(usize::from(*every), usize::from(*first))?;
            }
            Event::Replace => {
                if let Some((_, accepts_new)) = self.backends.iter_mut().find(|(_, accepts_new)| *accepts_new)
                {
                    *accepts_new = false;
                }
                self.join();
                self.publish();
            }
            Event::Join => {
                self.join();
                self.publish();
            }
            Event::Route { gateways, salt } => (self.used, self.salt) = (*gateways, *salt),
            Event::Restart(n) => {
                self.used = [*n != 0, *n != 1];
                self.send_all(1, 0)?;
                self.exchange();
                self.gateways[*n] = Gateway::start(self, Some(&self.gateways[1 - *n].history));
                self.gateways.iter_mut().for_each(|gateway| gateway.walks.complete += 1);
            }
            Event::Wait(seconds) => {
                let time = Duration::from_secs(u64::from(*seconds));
                self.elapsed += time;
                for gateway in &mut self.gateways {
                    gateway.lab.wait(time);
                    gateway.walks.refreshing += 1;
                }
                self.send_all(1, 0)?;
            }
        }
        self.exchange();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn a_service_that_tracks_always_loses_no_connection(events in prop::collection::vec(event(), 1..40)) {
        let mut fleet = Fleet::new(false);
        for event in &events {
            fleet.apply(event)?;
        }
    }

    #[test]
    fn a_service_that_tracks_on_change_loses_no_connection(events in prop::collection::vec(event(), 1..40)) {
        let mut fleet = Fleet::new(true);
        for event in &events {
            fleet.apply(event)?;
        }
    }
}

#[test]
fn a_flow_that_moved_before_it_was_in_flux_is_exported_then() {
    let mut fleet = Fleet::new(false);
    let only = |first| Event::Route { gateways: [first, !first], salt: 0 };
    let events = [
        only(true),
        Event::Open(19),
        // The other gateway doesn't see these connections open.
        only(false),
        Event::Send { every: 1, first: 0 },
        Event::Restart(0),
        Event::Replace,
        Event::Replace,
        only(true),
        Event::Send { every: 1, first: 0 },
    ];
    for event in &events {
        fleet.apply(event).unwrap_or_else(|error| panic!("{event:?}: {error}"));
    }
}
