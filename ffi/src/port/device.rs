//! A device of the EAL: how it is attached, configured and removed.
//!
//! Contains the ethdev control calls that change a device, and the state that determines which of them are allowed.
//! Only [`super::Port`] calls them; queues own the [`Device`] so that it is not removed.
//!
//! Invariant: a `Device` is the only one for its port number; dropping it stops, closes and detaches the device.
//! Invariant: only one thread at a time attaches or detaches devices, because the EAL's device lists have no lock.

use std::ffi::{CStr, CString, c_char};
use std::fmt;
use std::ptr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dpdk_sys as sys;

use super::config::PortConfig;
use super::modes::modes;
use crate::burst::Burst;
use crate::eal::Eal;
use crate::error::{Errno, PortError};
use crate::mempool::{OnlyPool, PktPool};
use crate::ring::Ring;

/// An attached Ethernet device.
pub(crate) struct Device {
    id: u16,
    name: String,
    driver: String,
    bus_device: *mut sys::rte_device,
    /// The number of receive queues while it runs; 0 when it is stopped.
    running_queues: u16,
    /// The pool that its queues allocate from. Kept until the device is closed or reconfigured.
    pool: Option<PktPool>,
    /// Kept while sent mbufs are returned to `pool` unchecked.
    only_pool: Option<OnlyPool>,
    /// Descriptors of each receive and transmit ring, as the device accepted them.
    descriptors: (u16, u16),
    /// The rings that it is built from, if any. Kept until it is closed.
    rings: Vec<Arc<Ring>>,
    _eal: Eal,
}

// SAFETY: ethdev's calls may come from any thread. Calls that change the device need `&mut self`, except for setting
// the address, for which the caller has mutable access to the port.
unsafe impl Send for Device {}
// SAFETY: as for Send; `&self` only allows reads, and the burst functions with one thread per queue.
unsafe impl Sync for Device {}

impl Device {
    /// See [`super::Port::attach`].
    pub(super) fn attach(eal: &Eal, text: &str) -> Result<Self, PortError> {
        let mut claimed = claimed();
        let device = DeviceString::parse(text)?;
        let name = device.name.clone();
        if port_named(&name).is_none() {
            let devargs = CString::new(device.devargs.as_str()).expect("DeviceString has no NUL byte");
            // SAFETY: the EAL is initialised (`eal`), and the lock makes this the only thread that attaches or detaches
            // devices; the string is copied.
            let result = unsafe { sys::rte_dev_probe(devargs.as_ptr()) };
            if let Err(source) = Errno::check(result) {
                return Err(PortError::Attach { device: device.devargs, hint: device.hint, source });
            }
        }
        let id = port_named(&name).ok_or(PortError::NoPort(name))?;
        Self::claim(eal, id, &mut claimed)
    }

    /// See [`super::Port::of_rings`].
    pub(super) fn of_rings(eal: &Eal, rx: &[Arc<Ring>], tx: &[Arc<Ring>]) -> Result<Self, PortError> {
        let mut claimed = claimed();
        let name = format!("pair{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let c_name = CString::new(name.as_str()).expect("no NUL byte in it");
        let pointers = |rings: &[Arc<Ring>]| rings.iter().map(|ring| ring.as_ptr()).collect::<Vec<_>>();
        let (rx_raw, tx_raw) = (pointers(rx), pointers(tx));
        let count = |rings: &[Arc<Ring>]| u32::try_from(rings.len()).expect("a few rings");
        // SAFETY: the EAL is initialised (`eal`); the arrays contain the given numbers of rings, which live until the
        // port is closed (`rings` below); name and arrays are copied.
        let id = unsafe {
            sys::rte_eth_from_rings(
                c_name.as_ptr(),
                rx_raw.as_ptr(),
                count(rx),
                tx_raw.as_ptr(),
                count(tx),
                0,
            )
        };
        let Ok(id) = u16::try_from(id) else {
            return Err(PortError::Attach {
                device: format!("net_ring_{name}"),
                hint: "",
                source: Errno::last(),
            });
        };
        let mut device = Self::claim(eal, id, &mut claimed)?;
        device.rings = rx.iter().chain(tx).cloned().collect();
        Ok(device)
    }

    fn claim(eal: &Eal, id: u16, claimed: &mut Vec<u16>) -> Result<Self, PortError> {
        let name = port_name(id).ok_or_else(|| PortError::NoPort(id.to_string()))?;
        if claimed.contains(&id) {
            return Err(PortError::InUse(name));
        }
        let info = raw_info(id, &name)?;
        let driver = if info.driver_name.is_null() {
            String::new()
        } else {
            // SAFETY: not null, so it is a NUL-terminated constant of the driver.
            unsafe { CStr::from_ptr(info.driver_name) }.to_string_lossy().into_owned()
        };
        claimed.push(id);
        Ok(Self {
            id,
            name,
            driver,
            bus_device: info.device,
            running_queues: 0,
            pool: None,
            only_pool: None,
            descriptors: (0, 0),
            rings: Vec::new(),
            _eal: eal.clone(),
        })
    }

    #[inline]
    pub(crate) fn id(&self) -> u16 {
        self.id
    }

    pub(super) fn name(&self) -> &str {
        &self.name
    }

    pub(super) fn driver(&self) -> &str {
        &self.driver
    }

    pub(super) fn socket(&self) -> Option<i32> {
        // SAFETY: the port is attached.
        let socket = unsafe { sys::rte_eth_dev_socket_id(self.id) };
        (socket >= 0).then_some(socket)
    }

    pub(super) fn raw_info(&self) -> Result<sys::rte_eth_dev_info, PortError> {
        raw_info(self.id, &self.name)
    }

    /// Converts a return value to an error that names the port and the operation.
    pub(super) fn check(&self, what: &'static str, result: i32) -> Result<i32, PortError> {
        Errno::check(result).map_err(|source| PortError::Call { port: self.name.clone(), what, source })
    }

    /// Like [`Device::check`], but ignores the error of a driver that doesn't support the operation.
    fn check_if_supported(&self, what: &'static str, result: i32) -> Result<(), PortError> {
        match Errno::check(result) {
            Err(source) if is_unsupported(source) => Ok(()),
            _ => self.check(what, result).map(drop),
        }
    }

    /// Configures a stopped port and its queues. The caller has checked the values against the port's limits.
    pub(super) fn configure(&mut self, config: &PortConfig, pool: &PktPool) -> Result<(), PortError> {
        let info = self.raw_info()?;
        let mut conf = modes(config, &info);
        let mut key = config.rss.key.clone();
        if let Some(key) = key.as_mut().filter(|_| conf.rxmode.mq_mode == sys::RTE_ETH_MQ_RX_RSS) {
            conf.rx_adv_conf.rss_conf.rss_key = key.as_mut_ptr();
            conf.rx_adv_conf.rss_conf.rss_key_len = u8::try_from(key.len()).unwrap_or(u8::MAX);
        }
        let fast_free = sys::DPDK_SYS_TX_OFFLOAD_MBUF_FAST_FREE & info.tx_offload_capa;
        // The queues of an earlier configuration are stopped.
        self.only_pool = None;
        if config.fast_free && fast_free != 0 {
            self.only_pool = pool.only_pool();
        }
        if self.only_pool.is_some() {
            conf.txmode.offloads |= fast_free;
        }

        let (mut rx_descriptors, mut tx_descriptors) = (config.rx_descriptors, config.tx_descriptors);
        let socket = self.socket().unwrap_or(sys::DPDK_SYS_SOCKET_ANY).cast_unsigned();
        let mut rx_conf = info.default_rxconf;
        rx_conf.offloads = conf.rxmode.offloads;
        let mut tx_conf = info.default_txconf;
        tx_conf.offloads = conf.txmode.offloads;
        // SAFETY: the port is attached and stopped, and no queue handle exists (`&mut self`). `conf` and the key
        // outlive the call, and are copied. The pool lives until the queues are set up again or closed (`self.pool`).
        unsafe {
            self.check(
                "configure",
                sys::rte_eth_dev_configure(self.id, config.queues, config.queues, &conf),
            )?;
            self.check(
                "adjust the descriptors",
                sys::rte_eth_dev_adjust_nb_rx_tx_desc(self.id, &mut rx_descriptors, &mut tx_descriptors),
            )?;
            self.descriptors = (rx_descriptors, tx_descriptors);
            // The old pool is released only after the queues use the new one.
            let _old = self.pool.replace(pool.clone());
            for queue in 0..config.queues {
                self.check(
                    "set up a receive queue",
                    sys::rte_eth_rx_queue_setup(
                        self.id,
                        queue,
                        rx_descriptors,
                        socket,
                        &rx_conf,
                        pool.as_ptr(),
                    ),
                )?;
                self.check(
                    "set up a transmit queue",
                    sys::rte_eth_tx_queue_setup(self.id, queue, tx_descriptors, socket, &tx_conf),
                )?;
            }
        }
        if let Some(mtu) = config.mtu {
            // SAFETY: attached and stopped. Drivers without this call have taken the MTU from the configuration.
            self.check_if_supported("set the MTU", unsafe { sys::rte_eth_dev_set_mtu(self.id, mtu) })?;
        }
        match config.mac {
            Some(mac) => self.set_mac(mac),
            None => Ok(()),
        }
    }

    /// Starts a configured port.
    pub(super) fn start(&mut self, config: &PortConfig) -> Result<(), PortError> {
        // SAFETY: attached, configured, all of its queues set up.
        self.check("start", unsafe { sys::rte_eth_dev_start(self.id) })?;
        self.running_queues = config.queues;
        let set = self
            .set_modes(config)
            .and_then(|()| self.set_rss_key(config))
            .and_then(|()| self.set_rss_table(config));
        if set.is_err() {
            // The first error is the one to report.
            let _ = self.stop();
        }
        set
    }

    /// Sets the RSS key explicitly: some drivers (net_null) ignore the key in the configuration.
    fn set_rss_key(&self, config: &PortConfig) -> Result<(), PortError> {
        let hash = config.rss.hash.bits() & self.raw_info()?.flow_type_rss_offloads;
        let Some(mut key) = config.rss.key.clone().filter(|_| config.queues > 1 && hash != 0) else {
            return Ok(());
        };
        #[allow(clippy::needless_update, reason = "since 23.11 the struct has one more field")]
        let mut conf = sys::rte_eth_rss_conf {
            rss_key: key.as_mut_ptr(),
            rss_key_len: u8::try_from(key.len()).unwrap_or(u8::MAX),
            rss_hf: hash,
            ..Default::default()
        };
        // SAFETY: attached and started; the key has the length that the port requires and outlives the call, which
        // copies it.
        let result = unsafe { sys::rte_eth_dev_rss_hash_update(self.id, &mut conf) };
        self.check_if_supported("set the RSS key", result)
    }

    /// Sets the RSS table, if the length of the device's table is a multiple of its length.
    fn set_rss_table(&self, config: &PortConfig) -> Result<(), PortError> {
        let info = self.raw_info()?;
        let Some(table) = config.rss.table.as_ref().filter(|table| !table.is_empty() && config.queues > 1)
        else {
            return Ok(());
        };
        let len = usize::from(info.reta_size);
        if len == 0 || !len.is_multiple_of(table.len()) || table.iter().any(|&queue| queue >= config.queues) {
            return Ok(());
        }
        let group = sys::RTE_ETH_RETA_GROUP_SIZE as usize;
        let mut groups = vec![sys::rte_eth_rss_reta_entry64::default(); len.div_ceil(group)];
        for (n, &queue) in table.iter().cycle().take(len).enumerate() {
            groups[n / group].mask |= 1 << (n % group);
            groups[n / group].reta[n % group] = queue;
        }
        // SAFETY: attached and started; the table has `reta_size` entries, outlives the call, and is copied.
        let result =
            unsafe { sys::rte_eth_dev_rss_reta_update(self.id, groups.as_mut_ptr(), info.reta_size) };
        self.check_if_supported("set the RSS table", result)
    }

    /// Descriptors of each receive and transmit ring.
    pub(super) fn descriptors(&self) -> (u16, u16) {
        self.descriptors
    }

    /// Sets promiscuous and multicast mode. A driver without promiscuous mode passes on all frames that it gets.
    fn set_modes(&self, config: &PortConfig) -> Result<(), PortError> {
        // SAFETY: attached and started.
        let (promiscuous, multicast) = unsafe {
            (
                if config.promiscuous {
                    sys::rte_eth_promiscuous_enable(self.id)
                } else {
                    sys::rte_eth_promiscuous_disable(self.id)
                },
                if config.all_multicast {
                    sys::rte_eth_allmulticast_enable(self.id)
                } else {
                    sys::rte_eth_allmulticast_disable(self.id)
                },
            )
        };
        self.check_if_supported("set promiscuous mode", promiscuous)?;
        self.check_if_supported("set all-multicast mode", multicast)
    }

    /// Sets its address. The caller has mutable access to the port.
    pub(super) fn set_mac(&self, mac: [u8; 6]) -> Result<(), PortError> {
        unicast(&self.name, mac)?;
        let mut address = sys::rte_ether_addr { addr_bytes: mac };
        // SAFETY: attached; the address is copied.
        let result = unsafe { sys::rte_eth_dev_default_mac_addr_set(self.id, &mut address) };
        self.check("set the MAC address", result).map(drop)
    }

    /// Stops it if it is running.
    pub(super) fn stop(&mut self) -> Result<(), PortError> {
        let queues = std::mem::take(&mut self.running_queues);
        if queues == 0 {
            return Ok(());
        }
        if self.driver == "net_ring" && self.rings.is_empty() {
            self.free_ring_contents(queues);
        }
        // SAFETY: attached and running; no thread is in a burst function, because no queue handle exists.
        self.check("stop", unsafe { sys::rte_eth_dev_stop(self.id) }).map(drop)
    }

    /// Frees the mbufs in the rings of a net_ring. If the driver created the rings itself, it frees them without
    /// freeing the mbufs inside.
    fn free_ring_contents(&self, queues: u16) {
        for queue in 0..queues {
            loop {
                let mut burst = Burst::<32>::new();
                let spare = burst.spare();
                // SAFETY: the port runs and has this queue, which nobody else polls, because no handle exists; there is
                // space for 32 pointers; the received mbufs are ours.
                unsafe {
                    let received = sys::rte_eth_rx_burst(self.id, queue, spare.as_mut_ptr().cast(), 32);
                    burst.assume_filled(usize::from(received));
                }
                if burst.is_empty() {
                    break;
                }
            }
        }
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // If the driver fails to stop, nothing can be done; closing it is still correct.
        let _ = self.stop();
        let mut claimed = claimed();
        claimed.retain(|&id| id != self.id);
        // SAFETY: attached, stopped, and no handle exists. The bus device is unplugged only if this was its last port,
        // so it still exists.
        unsafe {
            sys::rte_eth_dev_close(self.id);
            if !self.bus_device.is_null() && !ports().any(|id| bus_device(id) == self.bus_device) {
                sys::rte_dev_remove(self.bus_device);
            }
        }
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.name)
    }
}

/// Rejects addresses that can't belong to a single device.
pub(super) fn unicast(port: &str, mac: [u8; 6]) -> Result<(), PortError> {
    if mac[0] & 1 == 0 && mac != [0; 6] {
        return Ok(());
    }
    Err(PortError::Config {
        port: port.to_owned(),
        what: "MAC address",
        given: mac.map(|byte| format!("{byte:02x}")).join(":"),
        accepted: "a unicast address, not all zeroes".to_owned(),
    })
}

/// A counter for the names of devices without a number.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// The ports that belong to a [`Device`]. Its lock also protects attaching and detaching.
fn claimed() -> MutexGuard<'static, Vec<u16>> {
    static CLAIMED: Mutex<Vec<u16>> = Mutex::new(Vec::new());
    CLAIMED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A parsed device string.
struct DeviceString {
    /// The name that the port will have.
    name: String,
    /// The string for the EAL.
    devargs: String,
    /// A likely remedy if the EAL rejects it.
    hint: &'static str,
}

impl DeviceString {
    fn parse(text: &str) -> Result<Self, PortError> {
        let refuse = |why| Err(PortError::Device { device: text.to_owned(), why });
        let text = text.trim();
        if text.contains('\0') {
            return refuse("it contains a NUL byte");
        }
        let (name, arguments) = match text.split_once(',') {
            Some((name, arguments)) => (name, Some(arguments)),
            None => (text, None),
        };
        let (name, hint) = match pci_address(name) {
            Some(address) => (address, "; is it bound to vfio-pci, and among the allowed PCI devices?"),
            None if !name.starts_with(|c: char| c.is_ascii_alphabetic()) => {
                return refuse("it is neither a driver's name nor a PCI address");
            }
            None if name.contains(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '-') => {
                return refuse("the driver's name contains an invalid character");
            }
            None => (
                numbered(name),
                "; is the driver installed (librte_net_*), are its arguments right, and may this process use the \
                 device? DPDK's log says more",
            ),
        };
        if name.len() >= sys::RTE_ETH_NAME_MAX_LEN as usize {
            return refuse("the driver's name is too long");
        }
        let devargs = match arguments {
            Some(arguments) => format!("{name},{arguments}"),
            None => name.clone(),
        };
        Ok(Self { name, devargs, hint })
    }
}

/// The name of a vdev needs a number at its end, to distinguish it from other vdevs of the driver.
fn numbered(name: &str) -> String {
    if name.ends_with(|c: char| c.is_ascii_digit()) {
        return name.to_owned();
    }
    loop {
        let numbered = format!("{name}{}", NEXT.fetch_add(1, Ordering::Relaxed));
        if port_named(&numbered).is_none() {
            return numbered;
        }
    }
}

/// Accepts `DDDD:BB:DD.F`, with or without the domain, and returns it with the domain.
fn pci_address(text: &str) -> Option<String> {
    let is_hex = |part: &str, len| part.len() == len && part.chars().all(|c| c.is_ascii_hexdigit());
    let (rest, function) = text.rsplit_once('.')?;
    let mut parts = rest.rsplit(':');
    let (device, bus, domain) = (parts.next()?, parts.next()?, parts.next().unwrap_or("0000"));
    let good = is_hex(function, 1)
        && is_hex(device, 2)
        && is_hex(bus, 2)
        && is_hex(domain, 4)
        && parts.next().is_none();
    good.then(|| format!("{domain}:{bus}:{device}.{function}").to_ascii_lowercase())
}

/// The port with this name, or with this name followed by a non-digit (the first port of a PCI device).
fn port_named(name: &str) -> Option<u16> {
    ports().find(|&id| {
        port_name(id).is_some_and(|found| {
            found.strip_prefix(name).is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_digit()))
        })
    })
}

fn port_name(id: u16) -> Option<String> {
    let mut name = [0 as c_char; sys::RTE_ETH_NAME_MAX_LEN as usize];
    // SAFETY: the buffer has the documented size; the call writes a NUL-terminated name.
    unsafe {
        (sys::rte_eth_dev_get_name_by_port(id, name.as_mut_ptr()) == 0)
            .then(|| CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned())
    }
}

/// All attached ports.
fn ports() -> impl Iterator<Item = u16> {
    // SAFETY: the call checks the index before it looks it up in a static array.
    (0..sys::RTE_MAX_ETHPORTS as u16).filter(|&id| unsafe { sys::rte_eth_dev_is_valid_port(id) } != 0)
}

fn bus_device(id: u16) -> *mut sys::rte_device {
    raw_info(id, "").map_or(ptr::null_mut(), |info| info.device)
}

fn raw_info(id: u16, name: &str) -> Result<sys::rte_eth_dev_info, PortError> {
    let mut info = sys::rte_eth_dev_info::default();
    // SAFETY: any number may be queried; the struct is written, nothing is kept.
    Errno::check(unsafe { sys::rte_eth_dev_info_get(id, &mut info) }).map_err(|source| PortError::Call {
        port: name.to_owned(),
        what: "read its capabilities",
        source,
    })?;
    Ok(info)
}

/// Whether the driver doesn't support the operation, as opposed to failing at it.
fn is_unsupported(error: Errno) -> bool {
    error.code() == libc::ENOTSUP || error.code() == libc::ENOSYS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_strings_are_distinguished() {
        let _eal = crate::testing::eal();
        let parse = |text: &str| DeviceString::parse(text).map(|device| (device.name, device.devargs));
        assert_eq!(parse("03:00.0").unwrap(), ("0000:03:00.0".into(), "0000:03:00.0".into()));
        assert_eq!(parse("0001:AF:00.1,a=b").unwrap(), ("0001:af:00.1".into(), "0001:af:00.1,a=b".into()));
        assert_eq!(
            parse("net_tap7,iface=tap0,remote=eth1").unwrap(),
            ("net_tap7".into(), "net_tap7,iface=tap0,remote=eth1".into())
        );
        let (name, devargs) = parse("net_af_packet,iface=eth1").unwrap();
        assert!(name.starts_with("net_af_packet") && name.ends_with(|c: char| c.is_ascii_digit()), "{name}");
        assert_eq!(devargs, format!("{name},iface=eth1"));
        for wrong in
            ["", ",iface=eth1", "eth 1", "03:00", "0000:03:00.0:1", "net/null", "a\0b", &"n".repeat(64)]
        {
            assert!(matches!(parse(wrong), Err(PortError::Device { .. })), "{wrong:?}");
        }
    }
}
