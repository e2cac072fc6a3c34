//! Health probes of DSR backends at the VIP: connections from the kernel to a VIP. The packets of each connection reach
//! a chosen backend in the same way as client packets (link address or tunnel).
//!
//! A health check opens a socket between two addresses that only this host knows, [`Ends::near`] and [`Ends::far`], on
//! a dedicated device (`probe_device` of `tidegate-dataplane`). The slow path reads the kernel's packets from that
//! device, sets the gateway's own address as the source and the VIP as the destination, and sends them to the backend.
//! Packets from the VIP take the reverse path. The near port identifies the connection. So the kernel needs no route to
//! a VIP, and host rules for VIPs (such as those of kube-proxy) don't affect a check.
//!
//! Workers only pass packets to the slow path that come from a VIP, go to one of the gateway's own addresses and answer
//! a packet of the host.
//!
//! May depend on: `tidegate-pipeline`, `tidegate-snapshot`, `tidegate-spec`, `tidegate-wire`.
//!
//! Health checks open flows here, and the slow path of `tidegate-dataplane` forwards their packets; health checks and
//! slow path don't depend on each other.
//!
//! Invariant: all packets that this crate sends to a VIP or accepts from one belong to a [`Flow`] that is open or was
//! closed recently.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use tidegate_pipeline::forward::tunnel::{self, Tunnel};
use tidegate_pipeline::forward::{Link, dsr_dscp, fullnat};
use tidegate_pipeline::frame::Frame;
use tidegate_snapshot::Snapshot;
use tidegate_snapshot::routes::Routes;
use tidegate_spec::ids::InterfaceIndex;
use tidegate_spec::{ForwardingMode, InterfaceSpec, TunnelOptions, TunnelPrefix};
use tidegate_wire::encapsulation::Encapsulation;
use tidegate_wire::rewrite::Endpoint;
use tidegate_wire::{Addr, Family, Headers, MacAddr, Parsed, VlanId, proto, quote};

#[cfg(test)]
mod tests;

/// How long packets of a closed connection are still sent to its backend: the final reset may have to be repeated for
/// packets in flight.
const CLOSED_FOR: Duration = Duration::from_secs(3);

/// The two addresses of one family between which a probe's socket is connected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ends {
    /// The host's end.
    pub near: IpAddr,
    /// The end that represents the VIP.
    pub far: IpAddr,
}

impl Ends {
    /// The ends of a family. The IPv4 addresses are in a network that never leaves a host (RFC 7335), the IPv6
    /// addresses in a unique local network (RFC 4193).
    #[must_use]
    pub fn of(family: Family) -> Self {
        let v6 = |last| IpAddr::from(Ipv6Addr::new(0xfd74, 0x6964, 0x6567, 0x6174, 0, 0, 0, last));
        match family {
            Family::V4 => {
                Self { near: Ipv4Addr::new(192, 0, 0, 5).into(), far: Ipv4Addr::new(192, 0, 0, 6).into() }
            }
            Family::V6 => Self { near: v6(1), far: v6(2) },
        }
    }
}

/// The path from one of the gateway's own addresses to a VIP on one backend.
#[derive(Debug, Clone)]
pub struct ProbePath {
    vip: IpAddr,
    own: IpAddr,
    backend: Addr,
    interface: InterfaceIndex,
    next_hop: Addr,
    source_mac: MacAddr,
    vlan: Option<VlanId>,
    tunnel: Option<(TunnelPrefix, Encapsulation)>,
    /// The DSCP that marks packets in mode `dsr-dscp`.
    mark: Option<u8>,
}

impl ProbePath {
    /// The addresses that a socket of this probe binds to and connects to.
    #[must_use]
    pub fn ends(&self) -> Ends {
        Ends::of(family(self.vip))
    }
}

/// The parts of the newest forwarding state that paths depend on.
#[derive(Debug, Clone, Default)]
struct Net {
    interfaces: Vec<InterfaceSpec>,
    routes: Routes,
    tunnel_sources: [Option<TunnelPrefix>; 2],
}

/// The key of a connection: family, protocol, near port.
type Key = (Family, u8, u16);

#[derive(Debug)]
struct Entry {
    id: u64,
    port: u16,
    path: ProbePath,
}

#[derive(Debug, Default)]
struct Flows {
    open: HashMap<Key, Entry>,
    /// Closed connections that are still stored, oldest first.
    closed: VecDeque<(Instant, Key, u64)>,
}

/// All probes of a gateway.
#[derive(Debug, Default)]
pub struct Probes {
    net: Mutex<Arc<Net>>,
    device: Mutex<Option<Arc<str>>>,
    flows: Mutex<Flows>,
    /// The number of entries, which the slow path reads before it takes the lock.
    count: AtomicUsize,
    next_id: AtomicU64,
}

/// An open probe. Its packets are forwarded until shortly after this value is dropped.
#[derive(Debug)]
pub struct Flow<'p> {
    probes: &'p Probes,
    key: Key,
    id: u64,
}

impl Probes {
    /// The device that probe sockets are bound to; `None` if probes are not possible.
    #[must_use]
    pub fn device(&self) -> Option<Arc<str>> {
        lock(&self.device).clone()
    }

    /// Sets the device that probe sockets are bound to. Without one, probes are not possible.
    pub fn set_device(&self, name: Option<&str>) {
        *lock(&self.device) = name.map(Arc::from);
    }

    /// Sets the forwarding state that paths are derived from.
    pub fn follow(&self, interfaces: &[InterfaceSpec], snapshot: &Snapshot) {
        let tunnel_sources = [Family::V4, Family::V6].map(|family| snapshot.tunnel_source(family).copied());
        let net = Net { interfaces: interfaces.to_vec(), routes: snapshot.routes().clone(), tunnel_sources };
        *lock(&self.net) = Arc::new(net);
    }

    /// The path to a VIP on a backend in a DSR mode, with these tunnel options. `None` if the mode isn't a DSR mode, or
    /// if there is no route, no tunnel source, or no own address of the VIP's family for the answers.
    #[must_use]
    pub fn path(
        &self,
        vip: IpAddr,
        backend: IpAddr,
        mode: ForwardingMode,
        options: &TunnelOptions,
    ) -> Option<ProbePath> {
        self.device()?;
        let net = Arc::clone(&lock(&self.net));
        let backend_addr = Addr::from(backend);
        let hop = net.routes.find(&backend_addr)?;
        let spec = net.interfaces.get(usize::from(hop.interface))?;
        let tunnel = match mode.encapsulation(options) {
            Some(encapsulation) => Some((net.tunnel_sources[usize::from(backend.is_ipv6())]?, encapsulation)),
            None if mode == ForwardingMode::DsrL2 && hop.via.is_none() => None,
            None if mode == ForwardingMode::DsrDscp && options.dscp != 0 => None,
            None => return None,
        };
        // Prefer an own address on the backend's link, because the backend certainly has a route to it.
        let fits = |address: &IpAddr| address.is_ipv4() == vip.is_ipv4();
        let of = |spec: &InterfaceSpec| spec.addresses.iter().map(IpNet::addr).find(fits);
        let same_link = spec.addresses.iter().find(|net| net.contains(&backend)).map(IpNet::addr);
        let own =
            same_link.filter(fits).or_else(|| of(spec)).or_else(|| net.interfaces.iter().find_map(of))?;
        Some(ProbePath {
            vip,
            own,
            backend: backend_addr,
            interface: hop.interface,
            next_hop: hop.via.unwrap_or(backend_addr),
            source_mac: spec.mac,
            vlan: spec.vlan.and_then(VlanId::new),
            tunnel,
            mark: (mode == ForwardingMode::DsrDscp).then_some(options.dscp),
        })
    }

    /// Starts sending the packets of the socket with this near port along this path, to this port of the VIP.
    pub fn open(&self, protocol: u8, near_port: u16, port: u16, path: ProbePath) -> Flow<'_> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let key = (family(path.vip), protocol, near_port);
        let mut flows = lock(&self.flows);
        flows.forget(Instant::now());
        flows.open.insert(key, Entry { id, port, path });
        self.count.store(flows.open.len(), Ordering::Relaxed);
        Flow { probes: self, key, id }
    }

    /// Whether any probe is open or was closed recently.
    pub fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Rewrites a packet of the kernel to a packet to the VIP, and returns its egress interface. The link addresses of
    /// the frame don't matter. `mac` returns the link address of a next hop. `None` if the packet belongs to no probe
    /// or its next hop is unknown.
    pub fn outward<F: Frame>(
        &self,
        frame: &mut F,
        mac: impl FnOnce(InterfaceIndex, &Addr) -> Option<MacAddr>,
        note: impl FnOnce(&[u8]),
    ) -> Option<InterfaceIndex> {
        let Ok(Parsed::Ip(mut h)) = tidegate_wire::parse(frame.bytes()) else { return None };
        let (path, port) = self.find(&h, h.src_port)?;
        let ends = path.ends();
        if (h.src.ip(), h.dst.ip(), h.dst_port) != (ends.near, ends.far, port) {
            return None;
        }
        let destination = mac(path.interface, &path.next_hop)?;
        let link = Link { source: path.source_mac, destination, vlan: path.vlan };
        let own = Endpoint { addr: path.own.into(), port: h.src_port };
        let vip = Endpoint { addr: path.vip.into(), port };
        fullnat::to_backend(frame, &mut h, &link, own, vip).ok()?;
        note(frame.bytes());
        if let Some((sources, encapsulation)) = path.tunnel {
            let Ok(Parsed::Ip(h)) = tidegate_wire::parse(frame.bytes()) else { return None };
            let hash = tunnel::flow_hash(frame.bytes(), &h);
            let tunnel = Tunnel {
                encapsulation,
                source: sources.pick(hash),
                destination: path.backend,
                flow_hash: hash as u32,
            };
            tunnel::forward(frame, &h, &link, &tunnel).ok()?;
        }
        if let Some(dscp) = path.mark {
            let Ok(Parsed::Ip(h)) = tidegate_wire::parse(frame.bytes()) else { return None };
            dsr_dscp::forward(frame, &h, &link, path.backend, dscp).ok()?;
        }
        Some(path.interface)
    }

    /// Rewrites a frame from the wire that answers a probe, or is an ICMP error about a probe, to a packet for the
    /// probe's socket. Returns the packet without the Ethernet header. `None` if the frame belongs to no probe; the
    /// frame is then unchanged.
    pub fn inward<'f, F: Frame>(&self, frame: &'f mut F) -> Option<&'f [u8]> {
        let Ok(Parsed::Ip(mut h)) = tidegate_wire::parse(frame.bytes()) else { return None };
        let quoted = quote::parse(frame.bytes(), &h).ok()?;
        let (local, remote, key_of) = match &quoted {
            Some(q) => ((q.src, q.src_port), (q.dst, q.dst_port), (q.family, q.proto, q.src_port)),
            None => ((h.dst, h.dst_port), (h.src, h.src_port), (h.family, h.proto, h.dst_port)),
        };
        let (path, port) = self.entry(key_of)?;
        // An ICMP error about a marked packet quotes it with the address of the backend.
        let is_marked = quoted.is_some() && path.mark.is_some() && remote.0 == path.backend;
        let is_remote = (remote.0.ip() == path.vip || is_marked) && remote.1 == port;
        if local.0.ip() != path.own || !is_remote || h.dst.ip() != path.own {
            return None;
        }
        let ends = path.ends();
        let near = Endpoint { addr: ends.near.into(), port: local.1 };
        let far = Endpoint { addr: ends.far.into(), port };
        let link = Link { source: path.source_mac, destination: path.source_mac, vlan: None };
        fullnat::to_client(frame, &mut h, &link, far, near).ok()?;
        // The quote may have moved within the frame.
        if quoted.is_some()
            && let Ok(Some(mut quoted)) = quote::parse(frame.bytes(), &h)
        {
            quote::translate(frame.bytes_mut(), &h, &mut quoted, Some(near), Some(far));
        }
        let l3 = link.header_len();
        let end = l3 + usize::from(h.ip_len());
        frame.bytes().get(l3..end)
    }

    fn find(&self, h: &Headers, near_port: u16) -> Option<(ProbePath, u16)> {
        self.entry((h.family, h.proto, near_port))
    }

    fn entry(&self, key: Key) -> Option<(ProbePath, u16)> {
        if !matches!(key.1, proto::TCP | proto::UDP | proto::SCTP) {
            return None;
        }
        let flows = lock(&self.flows);
        flows.open.get(&key).map(|entry| (entry.path.clone(), entry.port))
    }
}

impl Flows {
    /// Removes connections that were closed long enough ago, unless their port has been reused.
    fn forget(&mut self, now: Instant) {
        while let Some((at, key, id)) = self.closed.front().copied()
            && now.saturating_duration_since(at) >= CLOSED_FOR
        {
            self.closed.pop_front();
            if self.open.get(&key).is_some_and(|entry| entry.id == id) {
                self.open.remove(&key);
            }
        }
    }
}

impl Drop for Flow<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut flows = lock(&self.probes.flows);
        flows.closed.push_back((now, self.key, self.id));
        flows.forget(now);
        self.probes.count.store(flows.open.len(), Ordering::Relaxed);
    }
}

fn family(ip: IpAddr) -> Family {
    if ip.is_ipv4() { Family::V4 } else { Family::V6 }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
