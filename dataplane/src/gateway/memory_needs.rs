//! The memory that a gateway will take, before it starts: the settings of its packet pools, and the bytes of its tables.
//!
//! [`MemoryNeeds`] is for `tidegate size`. The start of a gateway uses the same functions.
//!
//! Invariant: nothing here depends on the machine, and no memory is kept.

use dpdk::PoolConfig;
use tidegate_conntrack::flow_copies::FlowCopies;
use tidegate_conntrack::{StoredTables, TableKind};
use tidegate_snapshot::TableBytes;
use tidegate_spec::limits::{BURST, COPIES_TABLE_SHARE};

use super::config::DataplaneConfig;
use super::device_string::{LARGE_DATA_ROOM, takes_large_frames};
use super::ledger;
use super::memory::socket_ring_mib;
use super::ports::DESCRIPTORS;
use crate::punt::class::PuntClass;
use crate::worker::mailbox::INJECTED_MAX;
use crate::worker::pending_fragments::FRAMES_MAX;
use crate::worker::pending_neighbor::PARKED_MAX;
use crate::worker::rings::handed_over_max;

/// Bytes that a gateway with a configuration takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryNeeds {
    /// Packet buffers, in DPDK's memory (`dataplane.memory`).
    pub packet_buffers: usize,
    /// Rings of packet sockets, in locked memory of the kernel.
    pub socket_rings: usize,
    /// Flow tables of all workers, and the copies that workers have of each other's flows.
    pub flow_tables: usize,
    /// Tables of service ports and backends, with their counters of all workers.
    pub service_tables: usize,
    /// Seats or Maglev tables by which backends are chosen.
    pub selection_tables: usize,
}

impl MemoryNeeds {
    /// The bytes of a gateway that uses these kinds of flow tables, and whose snapshot has these numbers of service ports
    /// and backends. The scheduler is `maglev` with tables of this many slots, or `rendezvous`.
    #[must_use]
    pub fn of(
        config: &DataplaneConfig,
        kinds: &[TableKind],
        services: usize,
        backends: usize,
        maglev_slots: Option<u32>,
    ) -> Self {
        let workers = config.cores.len();
        let pools = std::iter::once(pool_config(config)).chain(large_pool_config(config));
        let of_kinds = StoredTables::words(config.flow_entries_per_core);
        let flows: usize = kinds.iter().map(|&kind| of_kinds[kind as usize] * size_of::<u32>()).sum();
        let copies =
            if kinds.iter().any(|kind| matches!(kind, TableKind::NatV4 | TableKind::NatV6)) && workers > 1 {
                FlowCopies::bytes_for(config.flow_entries_per_core / COPIES_TABLE_SHARE)
            } else {
                0
            };
        let tables = TableBytes::of(services, backends, maglev_slots);
        let counters = TableBytes::counters(ledger::capacity(services), ledger::capacity(backends));
        Self {
            packet_buffers: pools.map(|pool| pool.memory_bytes()).sum(),
            socket_rings: (socket_ring_mib(config) << 20) as usize,
            flow_tables: workers * (flows + copies),
            service_tables: tables.records + workers * counters,
            selection_tables: tables.selection,
        }
    }
}

/// Large mbufs for the ports that need them. A worker fills and empties one burst of them at a time, and may use a few
/// more.
pub(super) fn large_pool_config(config: &DataplaneConfig) -> Option<PoolConfig> {
    let ports = config.interfaces.iter().filter(|one| takes_large_frames(&one.device)).count();
    let queues = u32::try_from(ports * config.cores.len()).unwrap_or(u32::MAX);
    (queues > 0).then(|| PoolConfig {
        mbufs: (128 * queues).next_power_of_two() - 1,
        cache: 16,
        data_room: LARGE_DATA_ROOM,
        ..PoolConfig::default()
    })
}

/// Enough mbufs for every queue and ring to be full at the same time, so that none starves another.
pub(super) fn pool_config(config: &DataplaneConfig) -> PoolConfig {
    let defaults = PoolConfig::default();
    let (workers, ports) = (config.cores.len(), config.interfaces.len());
    let rings = workers * ports * 2 * usize::from(DESCRIPTORS);
    let in_hand = workers * (ports + 2) * BURST;
    // A cache is flushed only when it exceeds its size by half.
    let cached = workers * defaults.cache as usize * 3 / 2;
    let queued =
        workers * (handed_over_max(workers) + INJECTED_MAX + PARKED_MAX + FRAMES_MAX) + PuntClass::QUEUED_MAX;
    let wanted = rings + in_hand + cached + queued;
    let mtu_max = config.interfaces.iter().filter_map(|one| one.mtu).max().unwrap_or(0);
    PoolConfig {
        // DPDK recommends a power of two minus one, to save a ring of pointers; rounding up could double the number of
        // mbufs.
        mbufs: u32::try_from((wanted + 1).next_multiple_of(1024) - 1).unwrap_or(u32::MAX),
        data_room: defaults.data_room.max(mtu_max.saturating_add(64)),
        ..defaults
    }
}

#[cfg(test)]
mod tests {
    use tidegate_conntrack::FlowTables;

    use super::*;
    use crate::gateway::InterfaceConfig;

    fn config(workers: usize, device: &str) -> DataplaneConfig {
        let interface = InterfaceConfig {
            name: "uplink".into(),
            device: device.into(),
            mac: None,
            mtu: Some(9000),
            vlan: None,
            addresses: Vec::new(),
        };
        DataplaneConfig {
            cores: (0..workers).collect(),
            interfaces: vec![interface],
            flow_entries_per_core: 10_000,
            ..DataplaneConfig::default()
        }
    }

    #[test]
    fn the_pool_covers_every_queue_that_can_contain_frames() {
        let pool = pool_config(&config(1, "net_null"));
        assert!(
            pool.mbufs as usize > 2 * 1024 + INJECTED_MAX + PARKED_MAX + FRAMES_MAX + PuntClass::QUEUED_MAX
        );
        assert!(pool.data_room >= 9064);
    }

    #[test]
    fn flow_tables_take_what_was_predicted() {
        let real = FlowTables::new(10_000, 7).regions().map(size_of_val);
        let needs = |workers, kinds: &[TableKind]| {
            MemoryNeeds::of(&config(workers, "net_null"), kinds, 1, 1, None).flow_tables
        };
        assert_eq!(needs(1, &TableKind::ALL), real.iter().sum::<usize>());
        assert_eq!(needs(3, &[TableKind::DsrV6]), 3 * real[TableKind::DsrV6 as usize]);
        let copies = FlowCopies::new(10_000 / COPIES_TABLE_SHARE).memory_bytes();
        assert_eq!(needs(2, &[TableKind::NatV4]), 2 * (real[TableKind::NatV4 as usize] + copies));
    }

    #[test]
    fn packet_sockets_need_large_buffers_and_rings() {
        let needs = |device| MemoryNeeds::of(&config(2, device), &[], 1, 1, None);
        let (nic, socket) = (needs("0000:3b:00.0"), needs("net_af_packet,iface=eth1"));
        assert_eq!((nic.socket_rings, socket.socket_rings), (0, (2 * 2 * 64) << 20));
        assert!(socket.packet_buffers > nic.packet_buffers + 255 * usize::from(LARGE_DATA_ROOM));
    }
}
