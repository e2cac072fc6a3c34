//! Starts the ports of a gateway, and reads back how each driver has applied the configuration.
//!
//! Every port gets the same RSS key and redirection table, so that a packet reaches the same worker through any port.
//! The drivers' reports decide: if all of them hash addresses and ports alike, workers can compute where packets arrive
//! ([`Steering::Rss`]); otherwise they hand packets over.
//!
//! [`crate::links`] manages devices, their locks and their loss.
//!
//! Invariant: a port whose driver refuses the key or the table still starts, with the driver's own.

use std::sync::Arc;

use dpdk::{PktPool, Port, PortConfig, PortError, RssConfig, RssHash};
use tidegate_pipeline::forward::snat_ports::{Rss, Steering};
use tidegate_wire::MacAddr;

use super::config::{
    DataplaneConfig, InterfaceConfig, InterfaceState, NegotiatedPort, RssReport, StartError,
};
use super::device_string::{is_pci, takes_large_frames};
use crate::drivers::dpdk::{DpdkQueue, QueuePair};
use crate::drivers::gate::Gate;
use crate::links::open_port;
use crate::topology::{Idle, Plan};
use crate::worker::idle::sleep_for_ring;

/// The RSS key of every port; a port with a shorter key uses only the first bytes. The hash of two IPv6 addresses and
/// two ports uses only the first 40 bytes. The key is constant, so that a restarted gateway computes the same worker
/// for each flow. The first 40 bytes are those of Microsoft's RSS verification suite, and the rest repeats them.
const RSS_KEY: [u8; 64] = [
    0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0,
    0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42,
    0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa, 0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25,
    0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4,
];

/// The bytes of a key that the hash of addresses and ports uses.
const RSS_KEY_USED: usize = 40;

/// Descriptors of each ring.
pub(super) const DESCRIPTORS: u16 = 1024;

/// The ports that were started.
pub(super) struct Started {
    /// Indexed by worker, then by interface.
    pub(super) queues: Vec<Vec<DpdkQueue>>,
    pub(super) interfaces: Vec<InterfaceState>,
    /// Indexed by interface, then by worker.
    pub(super) gates: Vec<Vec<Arc<Gate<QueuePair>>>>,
    /// The configuration of each interface.
    pub(super) configs: Vec<PortConfig>,
    /// How packets find their worker.
    pub(super) steering: Steering,
    /// Settings that work but reduce performance.
    pub(super) warnings: Vec<String>,
}

/// Starts every port and distributes its queues to the workers.
pub(super) fn start(
    config: &DataplaneConfig,
    ports: &mut [Port],
    plan: &Plan,
    pool: &PktPool,
    large: Option<&PktPool>,
) -> Result<Started, StartError> {
    let mut by_worker: Vec<Vec<DpdkQueue>> = plan.workers.iter().map(|_| Vec::new()).collect();
    let (mut interfaces, mut all_gates, mut configs) = (Vec::new(), Vec::new(), Vec::new());
    let table = common_table(ports.iter().map(|port| port.info().rss_table_len), plan.queues_per_port);
    let mut read = Vec::new();
    for (one, port) in config.interfaces.iter().zip(ports) {
        let failed = |source| StartError::Port { interface: one.name.clone(), source };
        let mut port_config = PortConfig {
            queues: plan.queues_per_port,
            rx_descriptors: DESCRIPTORS,
            tx_descriptors: DESCRIPTORS,
            mtu: one.mtu,
            mac: one.mac.map(|mac| mac.0),
            rss: RssConfig {
                key: key_of(port.info().rss_key_len),
                table: table.clone(),
                ..RssConfig::default()
            },
            // Every frame of the pipeline is contiguous.
            send_segments: false,
            fast_free: large.is_none(),
            ..PortConfig::default()
        };
        let large = large.filter(|_| takes_large_frames(&one.device));
        let queues = open(port, &mut port_config, large.unwrap_or(pool), &one.name).map_err(failed)?;
        let mtu = match one.mtu {
            Some(mtu) => mtu,
            None => port.mtu().map_err(failed)?,
        };
        let mut gates = Vec::new();
        for (worker, queue) in by_worker.iter_mut().zip(queues) {
            let gate = Arc::new(Gate::default());
            let queue = DpdkQueue::behind(Arc::clone(&gate), queue, pool.clone());
            worker.push(if large.is_some() { queue.with_large_frames(mtu) } else { queue });
            gates.push(gate);
        }
        let rss = if plan.queues_per_port > 1 { port.rss().map_err(failed)? } else { None };
        let agreed = port.negotiated().map_err(failed)?;
        interfaces.push(InterfaceState {
            name: one.name.clone(),
            device: port.info().name.clone(),
            driver: port.info().driver.clone(),
            mac: MacAddr(port.mac().map_err(failed)?),
            mtu,
            tap: None,
            negotiated: NegotiatedPort {
                queues: plan.queues_per_port,
                rx_descriptors: agreed.rx_descriptors,
                tx_descriptors: agreed.tx_descriptors,
                rx_offloads: agreed.rx_offloads,
                tx_offloads: agreed.tx_offloads,
                rss: report(plan.queues_per_port, rss.as_ref()),
            },
        });
        read.push(rss);
        all_gates.push(gates);
        configs.push(port_config);
    }
    let (steering, warning) =
        if plan.queues_per_port > 1 { steering_of(&read, config) } else { (Steering::Single, None) };
    let warnings = warning.into_iter().collect();
    Ok(Started { queues: by_worker, interfaces, gates: all_gates, configs, steering, warnings })
}

/// How packets find their worker if ports with this RSS have several queues, with a warning if a device distributes
/// packets differently from the others.
fn steering_of(read: &[Option<dpdk::Rss>], config: &DataplaneConfig) -> (Steering, Option<String>) {
    match common(read) {
        Ok(rss) => (Steering::Rss(Box::new(rss)), None),
        Err((at, why)) => {
            // Most virtual devices don't report how they distribute packets.
            let is_pci_port = config.interfaces.iter().any(|one| is_pci(&one.device));
            let interface = config.interfaces.get(at).filter(|_| is_pci_port);
            (Steering::Partition, interface.map(|one| warning(one, why)))
        }
    }
}

/// How workers wait: the ring of a NIC must not overflow while they sleep. Rings of other devices belong to the kernel
/// or another process.
pub(super) fn idle(config: &DataplaneConfig, ports: &[Port]) -> Idle {
    let nics = config.interfaces.iter().zip(ports).filter(|(one, _)| is_pci(&one.device));
    let sleep = |port: &Port| {
        let mbps = port.link().ok().filter(|link| link.up).and_then(|link| link.mbps);
        let descriptors = port.negotiated().map_or(DESCRIPTORS, |agreed| agreed.rx_descriptors);
        sleep_for_ring(descriptors, mbps)
    };
    match (config.idle, nics.map(|(_, port)| sleep(port)).min()) {
        (Idle::Adaptive, Some(most)) => Idle::AdaptiveUpTo(most),
        (idle, _) => idle,
    }
}

/// Starts a port. If its driver refuses the key or the table, the port uses its own.
fn open(
    port: &mut Port,
    config: &mut PortConfig,
    pool: &PktPool,
    interface: &str,
) -> Result<Vec<QueuePair>, PortError> {
    let error = match open_port(port, config, pool) {
        Err(error) if config.queues > 1 => error,
        done => return done,
    };
    config.rss = RssConfig::default();
    let queues = open_port(port, config, pool)?;
    tracing::warn!(interface, %error, "the port does not start with the gateway's RSS key and table: using the \
                                       driver's defaults");
    Ok(queues)
}

/// The key for a port with this key length.
fn key_of(len: usize) -> Option<Vec<u8>> {
    (RSS_KEY_USED..=RSS_KEY.len()).contains(&len).then(|| RSS_KEY[..len].to_vec())
}

/// A table for all ports, as long as the shortest one. Longer tables repeat it a whole number of times.
fn common_table(lens: impl Iterator<Item = u16>, queues: u16) -> Option<Vec<u16>> {
    let len = lens.filter(|&len| len > 0).min()?;
    (queues > 1 && len.is_power_of_two() && len >= queues).then(|| (0..len).map(|n| n % queues).collect())
}

/// The driver's report.
fn report(queues: u16, rss: Option<&dpdk::Rss>) -> RssReport {
    match rss {
        _ if queues == 1 => RssReport::OneQueue,
        None => RssReport::Unknown,
        Some(rss) => RssReport::Hash {
            gateway_key: rss.key.get(..RSS_KEY_USED) == Some(&RSS_KEY[..RSS_KEY_USED]),
            tcp_udp: rss.hash.contains(RssHash::TCP | RssHash::UDP),
            sctp: rss.hash.contains(RssHash::SCTP),
        },
    }
}

/// Why workers can't compute where packets arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum RssConflict {
    /// The driver doesn't report how it distributes packets.
    Unknown,
    /// TCP or UDP ports are not hashed.
    Fields,
    /// Key or table differ from those of the first interface.
    Differs,
}

/// The RSS configuration of all ports, or the first port that differs.
fn common(read: &[Option<dpdk::Rss>]) -> Result<Rss, (usize, RssConflict)> {
    let mut common: Option<Rss> = None;
    for (at, rss) in read.iter().enumerate() {
        let Some(rss) = rss else { return Err((at, RssConflict::Unknown)) };
        if !rss.hash.contains(RssHash::TCP | RssHash::UDP) {
            return Err((at, RssConflict::Fields));
        }
        let queues: Result<Vec<u8>, _> = rss.table.iter().map(|&queue| u8::try_from(queue)).collect();
        let (Some(key), Ok(queues)) = (rss.key.get(..RSS_KEY_USED), queues) else {
            return Err((at, RssConflict::Unknown));
        };
        if !queues.len().is_power_of_two() {
            return Err((at, RssConflict::Unknown));
        }
        let sctp_ports = rss.hash.contains(RssHash::SCTP);
        let this = Rss { key: key.to_vec(), queues, sctp_ports };
        common = Some(match common {
            None => this,
            Some(first) if first.key == this.key && is_same_table(&first.queues, &this.queues) => {
                let queues = if first.queues.len() < this.queues.len() { this.queues } else { first.queues };
                Rss { queues, sctp_ports: first.sctp_ports && sctp_ports, key: first.key }
            }
            Some(_) => return Err((at, RssConflict::Differs)),
        });
    }
    common.ok_or((0, RssConflict::Unknown))
}

/// Whether two tables map each hash to the same queue. Their lengths are powers of two.
fn is_same_table(one: &[u8], other: &[u8]) -> bool {
    let len = one.len().max(other.len());
    one.iter().cycle().zip(other.iter().cycle()).take(len).all(|(one, other)| one == other)
}

fn warning(one: &InterfaceConfig, why: RssConflict) -> String {
    let why = match why {
        RssConflict::Unknown => "its driver does not report how it distributes packets to queues",
        RssConflict::Fields => "its RSS hash does not include TCP and UDP ports",
        RssConflict::Differs => "its RSS key or table differs from the one of the first interface",
    };
    format!(
        "interface {:?}: {why}, so workers hand packets of nat and fullnat flows over to each other, which costs time",
        one.name
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rss(table: &[u16]) -> dpdk::Rss {
        let hash = RssConfig::default().hash;
        dpdk::Rss { key: RSS_KEY[..40].to_vec(), hash, table: table.to_vec() }
    }

    #[test]
    fn keys_and_tables_of_different_lengths_can_yield_equal_hashes() {
        let long = dpdk::Rss { key: RSS_KEY[..52].to_vec(), ..rss(&[0, 1, 2, 0, 0, 1, 2, 0]) };
        let found = common(&[Some(rss(&[0, 1, 2, 0])), Some(long.clone())]).expect("they are equal");
        assert_eq!((found.queues, found.key.len()), (vec![0, 1, 2, 0, 0, 1, 2, 0], 40));
        assert!(found.sctp_ports);
        let other = Some(rss(&[0, 1, 2, 1]));
        assert_eq!(common(&[Some(long.clone()), other]), Err((1, RssConflict::Differs)));
        let mut key = long.clone();
        key.key[39] ^= 1;
        assert_eq!(common(&[Some(long.clone()), Some(key)]), Err((1, RssConflict::Differs)));
        assert_eq!(common(&[Some(long.clone()), None]), Err((1, RssConflict::Unknown)));
        let addresses = dpdk::Rss { hash: RssHash::IP | RssHash::TCP, ..long };
        assert_eq!(common(&[Some(addresses)]), Err((0, RssConflict::Fields)));
    }

    #[test]
    fn sctp_is_computed_only_if_every_port_hashes_its_ports() {
        let without = dpdk::Rss { hash: RssHash::IP | RssHash::TCP | RssHash::UDP, ..rss(&[0, 1]) };
        assert!(!common(&[Some(rss(&[0, 1])), Some(without.clone())]).expect("equal").sctp_ports);
        assert_eq!(report(2, Some(&without)).to_string(), "tcp,udp");
        let own = dpdk::Rss { key: vec![7; 40], ..rss(&[0, 1]) };
        assert_eq!(report(2, Some(&own)).to_string(), "tcp,udp,sctp,own-key");
        assert_eq!(
            (report(1, None).to_string(), report(2, None).to_string()),
            ("one-queue".into(), "unknown".into())
        );
    }

    #[test]
    fn the_common_table_fits_into_every_port() {
        let table = common_table([512, 0, 128].into_iter(), 3).expect("a table");
        assert_eq!((table.len(), &table[..4]), (128, &[0, 1, 2, 0][..]));
        assert_eq!(common_table([128].into_iter(), 1), None);
        assert_eq!(common_table([2].into_iter(), 4), None, "too short for each worker");
        assert_eq!(key_of(52).map(|key| key.len()), Some(52));
        assert_eq!((key_of(10), key_of(65)), (None, None));
    }
}
