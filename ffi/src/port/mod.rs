//! Ports: NICs, and the virtual devices that replace them.
//!
//! [`Port`] attaches, configures and starts a device, and reports its properties and counters. `config` contains the
//! settings, `device` the calls into ethdev, and [`crate::queue`] the packet path. The control thread uses ports;
//! workers only get the queues.
//!
//! Invariant: a port is reconfigured or stopped only when no queue handle is left, so no worker can be in a burst
//! function at that time. It is detached when the [`Port`] and all its queues are dropped.

mod config;
mod device;
mod modes;

use std::fmt;
use std::ops::RangeInclusive;
use std::sync::Arc;

use dpdk_sys as sys;

pub use self::config::PortConfig;
pub(crate) use self::device::Device;
use crate::eal::Eal;
use crate::error::PortError;
use crate::flow::{Rss, RssHash};
use crate::mempool::PktPool;
use crate::queue::{RxQueue, TxQueue};
use crate::ring::Ring;
use crate::stats::PortStats;

/// An exclusively owned port.
///
/// ```
/// use dpdk::{PktPool, PoolConfig, Port, PortConfig, testing};
///
/// let eal = testing::eal();
/// let pool = PktPool::new(eal, &PoolConfig { mbufs: 2047, ..PoolConfig::default() })?;
/// let mut port = Port::attach(eal, "net_null,size=60")?;
/// let queues = port.start(&PortConfig { queues: 2, ..PortConfig::default() }, &pool)?;
/// assert_eq!((queues.rx.len(), queues.tx.len()), (2, 2));
/// assert!(port.link()?.up);
/// drop(queues);
/// port.stop()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Port {
    device: Arc<Device>,
    info: PortInfo,
}

/// The capabilities of a port as its driver reports them.
#[derive(Clone, Debug)]
pub struct PortInfo {
    /// The name of the vdev, or the PCI address.
    pub name: String,
    /// The driver's name, such as `net_af_packet`.
    pub driver: String,
    /// The maximum number of receive queues.
    pub rx_queues_max: u16,
    /// The maximum number of transmit queues.
    pub tx_queues_max: u16,
    /// The accepted MTUs, in bytes of an IP packet. A vdev on a kernel interface may pass larger packets, up to the
    /// frame size in its arguments, if the interface's own MTU is larger and [`PortConfig::mtu`] is not set.
    pub mtu: RangeInclusive<u16>,
    /// Length of the RSS key in bytes; 0 if there is none.
    pub rss_key_len: usize,
    /// Length of the RSS redirection table; 0 if there is none.
    pub rss_table_len: u16,
    /// The headers that it can hash; [`RssHash::NONE`] if it has no RSS.
    pub rss_hash: RssHash,
    /// NUMA node, if known.
    pub socket: Option<i32>,
}

/// The queues of a started port, by number. Move each to the thread that uses it.
#[derive(Debug)]
pub struct Queues {
    /// Receive queues.
    pub rx: Vec<RxQueue>,
    /// Transmit queues.
    pub tx: Vec<TxQueue>,
}

/// State of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link {
    /// Whether frames can pass.
    pub up: bool,
    /// Megabits per second, if known.
    pub mbps: Option<u32>,
}

/// What was negotiated with the device of a started port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Negotiated {
    /// Descriptors of each receive ring; 0 before the first start.
    pub rx_descriptors: u16,
    /// Descriptors of each transmit ring.
    pub tx_descriptors: u16,
    /// The receive offloads that are in use, by DPDK's names, such as `RSS_HASH`.
    pub rx_offloads: Vec<String>,
    /// The transmit offloads that are in use.
    pub tx_offloads: Vec<String>,
}

/// Maximum number of extended counters read from a port.
pub const EXTENDED_STATS_MAX: usize = 512;

impl Port {
    /// Takes ownership of a device. Attaches it unless the EAL already did so when starting.
    ///
    /// `device` is a vdev with its arguments (`net_af_packet0,iface=eth1,qpairs=2`; without a number it gets a free
    /// one) or a PCI address (`0000:03:00.0`), which must be in [`crate::Pci::Allow`].
    ///
    /// # Errors
    /// If there is no such driver or device, the driver rejects its arguments, or another [`Port`] uses it.
    pub fn attach(eal: &Eal, device: &str) -> Result<Self, PortError> {
        Self::of(Device::attach(eal, device)?)
    }

    /// Creates a port from rings: it receives the contents of `rx[i]` on queue i, and frames sent on queue i enter
    /// `tx[i]`.
    pub(crate) fn of_rings(eal: &Eal, rx: &[Arc<Ring>], tx: &[Arc<Ring>]) -> Result<Self, PortError> {
        Self::of(Device::of_rings(eal, rx, tx)?)
    }

    fn of(device: Device) -> Result<Self, PortError> {
        let raw = device.raw_info()?;
        let info = PortInfo {
            name: device.name().to_owned(),
            driver: device.driver().to_owned(),
            rx_queues_max: raw.max_rx_queues,
            tx_queues_max: raw.max_tx_queues,
            mtu: mtu_range(&raw),
            rss_key_len: match raw.hash_key_size {
                // If a driver doesn't report the key length, ethdev assumes the usual length and copies that many
                // bytes.
                0 if raw.flow_type_rss_offloads != 0 => USUAL_RSS_KEY_LEN,
                len => usize::from(len),
            },
            rss_table_len: raw.reta_size,
            rss_hash: RssHash::from_bits(raw.flow_type_rss_offloads),
            socket: device.socket(),
        };
        Ok(Self { device: Arc::new(device), info })
    }

    /// Configures the port, sets up its queues with mbufs from `pool`, and starts it. A running port is stopped first.
    ///
    /// # Errors
    /// If queues of an earlier start are still in use, if the device doesn't support the configuration (the error lists
    /// what it supports), or if a driver call fails. The port is then stopped.
    pub fn start(&mut self, config: &PortConfig, pool: &PktPool) -> Result<Queues, PortError> {
        self.check(config, pool)?;
        self.stop()?;
        let device = self.exclusive()?;
        device.configure(config, pool)?;
        device.start(config)?;
        Ok(Queues {
            rx: (0..config.queues).map(|queue| RxQueue::new(Arc::clone(&self.device), queue)).collect(),
            tx: (0..config.queues).map(|queue| TxQueue::new(Arc::clone(&self.device), queue)).collect(),
        })
    }

    /// Stops the port, which may be started again. Does nothing if it isn't running.
    ///
    /// # Errors
    /// If its queues are still in use.
    pub fn stop(&mut self) -> Result<(), PortError> {
        self.exclusive()?.stop()
    }

    /// The capabilities of the port.
    #[must_use]
    pub fn info(&self) -> &PortInfo {
        &self.info
    }

    /// DPDK's number of the port, which [`crate::Mbuf::port`] returns for frames that it received.
    #[must_use]
    pub fn id(&self) -> u16 {
        self.device.id()
    }

    /// Its address.
    ///
    /// # Errors
    /// If the driver cannot report it.
    pub fn mac(&self) -> Result<[u8; 6], PortError> {
        let mut address = sys::rte_ether_addr::default();
        // SAFETY: the port is ours and attached; the address is written, nothing is kept.
        let result = unsafe { sys::rte_eth_macaddr_get(self.id(), &mut address) };
        self.device.check("read the MAC address", result)?;
        Ok(address.addr_bytes)
    }

    /// Sets its address.
    ///
    /// # Errors
    /// If the address is not a unicast address, or the driver cannot set it.
    pub fn set_mac(&mut self, mac: [u8; 6]) -> Result<(), PortError> {
        self.device.set_mac(mac)
    }

    /// The size in bytes of the largest IP packet that it sends and receives.
    ///
    /// # Errors
    /// If the driver cannot report it.
    pub fn mtu(&self) -> Result<u16, PortError> {
        let mut mtu = 0;
        // SAFETY: the port is ours and attached; the number is written, nothing is kept.
        self.device.check("read the MTU", unsafe { sys::rte_eth_dev_get_mtu(self.id(), &mut mtu) })?;
        Ok(mtu)
    }

    /// Sets the size of the largest IP packet, in bytes. The driver of a kernel interface also sets it there.
    ///
    /// # Errors
    /// If the driver cannot set it.
    pub fn set_mtu(&mut self, mtu: u16) -> Result<(), PortError> {
        // SAFETY: the port is ours and attached; the number is copied.
        self.device.check("set the MTU", unsafe { sys::rte_eth_dev_set_mtu(self.id(), mtu) })?;
        Ok(())
    }

    /// The state of the link, without waiting for it to stabilize.
    ///
    /// # Errors
    /// If the driver cannot report it.
    pub fn link(&self) -> Result<Link, PortError> {
        let mut link = sys::rte_eth_link::default();
        // SAFETY: the port is ours and attached; the struct is written, nothing is kept; then it is only read.
        unsafe {
            self.device.check("read the link", sys::rte_eth_link_get_nowait(self.id(), &mut link))?;
            let mbps = sys::dpdk_sys_link_mbps(&link);
            Ok(Link {
                up: sys::dpdk_sys_link_up(&link) != 0,
                mbps: (mbps != 0 && mbps != u32::MAX).then_some(mbps),
            })
        }
    }

    /// What was negotiated with the device when it was started.
    ///
    /// # Errors
    /// If the driver cannot report it.
    pub fn negotiated(&self) -> Result<Negotiated, PortError> {
        let mut conf = sys::rte_eth_conf::default();
        // SAFETY: the port is ours and attached; the struct is written, nothing is kept.
        let read = unsafe { sys::rte_eth_dev_conf_get(self.id(), &mut conf) };
        self.device.check("read the configuration", read)?;
        let (rx_descriptors, tx_descriptors) = self.device.descriptors();
        Ok(Negotiated {
            rx_descriptors,
            tx_descriptors,
            // SAFETY: both calls look up a bit in a static table and return a static string.
            rx_offloads: names_of_bits(conf.rxmode.offloads, |bit| unsafe {
                sys::rte_eth_dev_rx_offload_name(bit)
            }),
            // SAFETY: as above.
            tx_offloads: names_of_bits(conf.txmode.offloads, |bit| unsafe {
                sys::rte_eth_dev_tx_offload_name(bit)
            }),
        })
    }

    /// Its extended counters by name, including those of single queues; at most [`EXTENDED_STATS_MAX`]. Allocates, and
    /// some drivers wait for their device.
    ///
    /// # Errors
    /// If the driver fails to report them.
    pub fn extended_stats(&self) -> Result<Vec<(String, u64)>, PortError> {
        let none = std::ptr::null_mut();
        // SAFETY: the port is ours and attached; without arrays the call only returns the number.
        let len = self.device.check("count the extended counters", unsafe {
            sys::rte_eth_xstats_get_names(self.id(), none, 0)
        })?;
        let mut names = vec![sys::rte_eth_xstat_name::default(); usize::try_from(len).unwrap_or(0)];
        let mut values = vec![sys::rte_eth_xstat::default(); names.len()];
        let capacity = u32::try_from(names.len()).unwrap_or(u32::MAX);
        // SAFETY: the port is ours and attached; both arrays have `capacity` elements and outlive the calls.
        let (named, counted) = unsafe {
            (
                sys::rte_eth_xstats_get_names(self.id(), names.as_mut_ptr(), capacity),
                sys::rte_eth_xstats_get(self.id(), values.as_mut_ptr(), capacity),
            )
        };
        let named = self.device.check("read the names of the extended counters", named)?;
        let counted = self.device.check("read the extended counters", counted)?;
        // A number beyond the capacity means that nothing was written.
        let written = |count: i32| usize::try_from(count).ok().filter(|&count| count <= names.len());
        let (Some(named), Some(counted)) = (written(named), written(counted)) else { return Ok(Vec::new()) };
        let value = |value: &sys::rte_eth_xstat| {
            let at = usize::try_from(value.id).ok().filter(|&at| at < named)?;
            let name: Vec<u8> =
                names[at].name.iter().map(|&c| c.cast_unsigned()).take_while(|&c| c != 0).collect();
            Some((String::from_utf8_lossy(&name).into_owned(), value.value))
        };
        Ok(values[..counted].iter().filter_map(value).take(EXTENDED_STATS_MAX).collect())
    }

    /// Its counters.
    ///
    /// # Errors
    /// If the driver has none.
    pub fn stats(&self) -> Result<PortStats, PortError> {
        let mut stats = sys::rte_eth_stats::default();
        // SAFETY: the port is ours and attached; the struct is written, nothing is kept.
        self.device.check("read the counters", unsafe { sys::rte_eth_stats_get(self.id(), &mut stats) })?;
        Ok(PortStats::from(&stats))
    }

    /// Sets its counters to 0.
    ///
    /// # Errors
    /// If the driver cannot reset them.
    pub fn reset_stats(&mut self) -> Result<(), PortError> {
        // SAFETY: the port is ours and attached.
        self.device.check("reset the counters", unsafe { sys::rte_eth_stats_reset(self.id()) }).map(drop)
    }

    /// The actual RSS setting. `None` if the device can't report one: the queue at which a frame arrives is then
    /// unknown.
    ///
    /// # Errors
    /// If the driver supports RSS but fails to report it. Call it on a started port.
    pub fn rss(&self) -> Result<Option<Rss>, PortError> {
        let (key_len, table_len) = (self.info.rss_key_len, usize::from(self.info.rss_table_len));
        if key_len == 0 || table_len == 0 || self.info.rss_hash == RssHash::NONE {
            return Ok(None);
        }
        let mut key = vec![0u8; key_len];
        let mut conf = sys::rte_eth_rss_conf {
            rss_key: key.as_mut_ptr(),
            rss_key_len: u8::try_from(key_len).expect("the device reports the length as u8"),
            ..Default::default()
        };
        let group = sys::RTE_ETH_RETA_GROUP_SIZE as usize;
        let mut groups = vec![sys::rte_eth_rss_reta_entry64::default(); table_len.div_ceil(group)];
        for group in &mut groups {
            group.mask = u64::MAX;
        }
        // SAFETY: the port is ours and attached. The key buffer has the length that the device reported, and the table
        // has `rss_table_len` entries. Both outlive the calls.
        unsafe {
            self.device
                .check("read the RSS key", sys::rte_eth_dev_rss_hash_conf_get(self.id(), &mut conf))?;
            self.device.check(
                "read the RSS table",
                sys::rte_eth_dev_rss_reta_query(self.id(), groups.as_mut_ptr(), self.info.rss_table_len),
            )?;
        }
        let table = groups.iter().flat_map(|group| group.reta).take(table_len).collect();
        Ok(Some(Rss { key, hash: RssHash::from_bits(conf.rss_hf), table }))
    }

    /// The device, if no queue handle shares it.
    fn exclusive(&mut self) -> Result<&mut Device, PortError> {
        Arc::get_mut(&mut self.device).ok_or_else(|| PortError::QueuesInUse(self.info.name.clone()))
    }

    /// Rejects an unsupported configuration with an explanation, before any driver is called.
    fn check(&self, config: &PortConfig, pool: &PktPool) -> Result<(), PortError> {
        let refuse = |what, given: u64, accepted| {
            Err(PortError::Config { port: self.info.name.clone(), what, given: given.to_string(), accepted })
        };
        let most = self.info.rx_queues_max.min(self.info.tx_queues_max);
        if config.queues == 0 || config.queues > most {
            return refuse("number of queues", u64::from(config.queues), format!("1 to {most}"));
        }
        if let Some(mtu) = config.mtu {
            if !self.info.mtu.contains(&mtu) {
                let accepted = format!("{} to {}", self.info.mtu.start(), self.info.mtu.end());
                return refuse("MTU", u64::from(mtu), accepted);
            }
            let data_room = pool.data_room().saturating_sub(FRAME_OVERHEAD);
            if mtu > data_room {
                return refuse(
                    "MTU",
                    u64::from(mtu),
                    format!("up to {data_room}, the data room of the pool's mbufs"),
                );
            }
        }
        if let Some(mac) = config.mac {
            device::unicast(&self.info.name, mac)?;
        }
        match &config.rss.key {
            Some(key) if self.info.rss_key_len != 0 && key.len() != self.info.rss_key_len => {
                refuse("length of the RSS key", key.len() as u64, format!("{} bytes", self.info.rss_key_len))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Port {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Port({} {:?})", self.id(), self.info.name)
    }
}

/// The names of the bits that are set. `name` returns a static C string for a bit.
fn names_of_bits(bits: u64, name: impl Fn(u64) -> *const std::ffi::c_char) -> Vec<String> {
    let set = (0..u64::BITS).map(|n| 1 << n).filter(|bit| bits & bit != 0);
    // SAFETY: `name` returns a static string that ends with a NUL byte.
    set.map(|bit| unsafe { std::ffi::CStr::from_ptr(name(bit)) }.to_string_lossy().into_owned()).collect()
}

/// Bytes of an RSS key if the driver doesn't report a length (net_null).
const USUAL_RSS_KEY_LEN: usize = 40;

/// Ethernet header and one 802.1Q tag. The FCS is never in memory.
const FRAME_OVERHEAD: u16 = 14 + 4;

/// The MTUs that rte_eth_dev_configure accepts: within the driver's own bounds, and such that a frame with header and
/// FCS is at most the driver's longest frame (this gives 1,500 for net_af_packet of 22.11) and at least the shortest
/// Ethernet frame.
fn mtu_range(info: &sys::rte_eth_dev_info) -> RangeInclusive<u16> {
    let overhead = match info.max_rx_pktlen.checked_sub(u32::from(info.max_mtu)) {
        Some(overhead) if overhead > 0 && info.max_mtu != u16::MAX => overhead,
        _ => sys::RTE_ETHER_HDR_LEN + sys::RTE_ETHER_CRC_LEN,
    };
    let within = |length: u32| u16::try_from(length.saturating_sub(overhead)).unwrap_or(u16::MAX);
    info.min_mtu.max(within(sys::RTE_ETHER_MIN_LEN))..=info.max_mtu.min(within(info.max_rx_pktlen))
}
