//! A kernel tap that mirrors an interface, with the same MAC address, MTU and IP addresses (routes: [`super::routes`]).
//! It lets ssh, BGP daemons and the control plane's health checks use the gateway's own address.
//!
//! The tap carries untagged frames; the interface's 802.1Q tag is removed and added here. Without IFF_VNET_HDR the
//! kernel passes complete frames: checksums are filled in, and no frame exceeds the MTU.
//!
//! The device survives the process, so that daemons whose sockets are bound to it (BGP, VRRP) keep them during a
//! restart. The next process adopts a device of its name that no process has open. When the process ends, for whatever
//! reason, the kernel removes the carrier, and routes through the device no longer apply
//! (`ignore_routes_with_linkdown`).
//!
//! [`TapConfig::mark`] is the alias of the device. It identifies the taps of interfaces that the configuration no
//! longer has ([`remove_stale`]), whose addresses would otherwise remain on the host.
//!
//! Invariant: after [`Tap::create`], a device that already existed has no unwanted address or route of an earlier
//! process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use tidegate_wire::ethernet::{HEADER_LEN, HEADER_LEN_MAX, ether_type};
use tidegate_wire::{MacAddr, VlanId};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::netlink::Netlink;
use super::sysctl;

/// The maximum length of a network device name (IFNAMSIZ without the NUL).
const NAME_MAX: usize = 15;

/// The properties of a tap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TapConfig {
    /// Name of the interface in the configuration.
    pub interface: String,
    /// The address of the interface.
    pub mac: MacAddr,
    /// The MTU in bytes of an IP packet.
    pub mtu: u16,
    /// The tag that frames have on the wire.
    pub vlan: Option<VlanId>,
    /// Its own addresses with their prefixes.
    pub addresses: Vec<IpNet>,
    /// The mark of this gateway's taps, which no other gateway of the host uses.
    pub mark: Option<String>,
}

/// Why a tap could not be created.
#[derive(Debug, thiserror::Error)]
pub enum TapError {
    /// The device could not be created.
    #[error(
        "cannot create tap {name}: {source}; a tap needs /dev/net/tun, CAP_NET_ADMIN, and a free name (the \
         gateway tries ten)"
    )]
    Create {
        /// Its name.
        name: String,
        /// The error of the kernel.
        source: io::Error,
    },
    /// An address was refused.
    #[error("tap {name}: cannot {what}: {source}")]
    Configure {
        /// Its name.
        name: String,
        /// The operation that failed.
        what: String,
        /// The error of the kernel.
        source: io::Error,
    },
}

/// An open tap. Never blocks.
pub struct Tap {
    device: SyncDevice,
    name: String,
    config: TapConfig,
}

impl std::fmt::Debug for Tap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Tap({})", self.name)
    }
}

/// The name of an interface's tap: `tg-uplink`, truncated to the kernel's limit.
#[must_use]
pub fn tap_name(interface: &str) -> String {
    format!("tg-{interface}").chars().filter(char::is_ascii).take(NAME_MAX).collect()
}

/// [`tap_name`], followed by alternatives in case it is taken: `tg-uplink-2` to `tg-uplink-10`. Another gateway in this
/// network namespace may have an interface with the same name.
fn tap_names(interface: &str) -> impl Iterator<Item = String> {
    let name = tap_name(interface);
    let numbered = {
        let name = name.clone();
        (2..=10).map(move |n| {
            let number = format!("-{n}");
            let base: String = name.chars().take(NAME_MAX - number.len()).collect();
            base + &number
        })
    };
    std::iter::once(name).chain(numbered)
}

/// Removes the taps with this mark, except those with these names and those that another process has open. Returns
/// their names.
///
/// # Errors
/// The error of the kernel.
pub fn remove_stale(mark: &str, kept: &[&str]) -> io::Result<Vec<String>> {
    let mut netlink = Netlink::open()?;
    let mut removed = Vec::new();
    for (index, name) in netlink.taps_with_alias(mark)? {
        if kept.contains(&name.as_str()) {
            continue;
        }
        // Only one process can have a tap open, so no other process can start using this one meanwhile.
        let Ok(device) = builder(&name).build_sync() else { continue };
        // If another program renamed the tap, this is a new device, which is deleted when `device` is dropped.
        if device.if_index().is_ok_and(|opened| opened == index) {
            match netlink.remove_link(index) {
                Ok(()) => removed.push(name),
                Err(error) => {
                    tracing::warn!(tap = name, %error, "cannot remove the tap of an earlier process");
                }
            }
        }
    }
    Ok(removed)
}

/// A builder for a device. If the device exists, it stays up or down as it is.
fn builder(name: &str) -> DeviceBuilder {
    DeviceBuilder::new().name(name).layer(Layer::L2).packet_information(false).inherit_enable_state()
}

impl Tap {
    /// Creates the device in this thread's network namespace, or takes over the one that an earlier process left. Adds
    /// its addresses and brings it up.
    ///
    /// # Errors
    /// The operation that failed, with the error of the kernel.
    pub fn create(config: &TapConfig) -> Result<Self, TapError> {
        let mut taken = None;
        for name in tap_names(&config.interface) {
            match Self::device(&name, config) {
                Ok(device) => {
                    if taken.is_some() {
                        let interface = &config.interface;
                        tracing::warn!(
                            interface,
                            tap = name,
                            "the usual name of the tap is in use: using another name"
                        );
                    }
                    let tap = Self { device, name, config: config.clone() };
                    tap.restore_sysctls();
                    tap.remove_stale_addresses()?;
                    tap.add_addresses()?;
                    return Ok(tap);
                }
                Err(source) if is_taken(&source) => taken = Some(source),
                Err(source) => return Err(TapError::Create { name, source }),
            }
        }
        let source =
            taken.expect("at least one name was tried, and the loop only ends without a device on an error");
        Err(TapError::Create { name: tap_name(&config.interface), source })
    }

    /// Recreates a device that another program has deleted, with the same name and addresses.
    ///
    /// # Errors
    /// As for [`Tap::create`]. The old, unusable device then stays.
    pub fn recreate(&mut self) -> Result<(), TapError> {
        let failed = |source| TapError::Create { name: self.name.clone(), source };
        self.device = Self::device(&self.name, &self.config).map_err(failed)?;
        self.restore_sysctls();
        self.add_addresses()
    }

    /// Removes addresses of an earlier process that are no longer configured. Addresses added by other programs stay.
    fn remove_stale_addresses(&self) -> Result<(), TapError> {
        let failed = |source| self.failed("remove the addresses of an earlier process".into(), source);
        let index = self.device.if_index().map_err(failed)?;
        let mut netlink = Netlink::open().map_err(failed)?;
        let stale = netlink.remove_addresses_except(index, &self.config.addresses).map_err(failed)?;
        if !stale.is_empty() {
            tracing::info!(tap = self.name, ?stale, "removed addresses of an earlier process from the tap");
        }
        Ok(())
    }

    /// Adds the missing addresses of the device.
    ///
    /// # Errors
    /// The operation that failed, with the error of the kernel.
    pub fn add_addresses(&self) -> Result<(), TapError> {
        let tap = self;
        let index = tap.device.if_index().map_err(|source| tap.failed("find its index".into(), source))?;
        let mut netlink = Netlink::open().map_err(|source| tap.failed("open netlink".into(), source))?;
        for &net in &tap.config.addresses {
            netlink
                .add_address(index, net)
                .map_err(|source| tap.failed(format!("add address {net}"), source))?;
        }
        Ok(())
    }

    /// Adds the addresses that another program has removed from the device, and returns them.
    ///
    /// # Errors
    /// The failed operation with the error of the kernel, if no address was added.
    pub fn add_missing_addresses(&self) -> Result<Vec<IpNet>, TapError> {
        let index = self.device.if_index().map_err(|source| self.failed("find its index".into(), source))?;
        let mut netlink = Netlink::open().map_err(|source| self.failed("open netlink".into(), source))?;
        let (mut missing, mut refused) = (Vec::new(), None);
        for &net in &self.config.addresses {
            match netlink.add_missing_address(index, net) {
                Ok(true) => missing.push(net),
                Ok(false) => {}
                // Addresses of the other family may still be added.
                Err(source) => refused = Some(self.failed(format!("add address {net}"), source)),
            }
        }
        match refused {
            Some(error) if missing.is_empty() => Err(error),
            _ => Ok(missing),
        }
    }

    /// Restores the name, the MAC address and the MTU of the device if another program has changed them. Returns what
    /// was found instead, as text.
    ///
    /// # Errors
    /// The operation that failed, with the error of the kernel.
    pub fn restore_settings(&self) -> Result<Vec<String>, TapError> {
        let mut found = Vec::new();
        let name = self.device.name().map_err(|source| self.failed("read its name".into(), source))?;
        if name != self.name {
            self.rename_back().map_err(|source| self.failed(format!("rename it from {name}"), source))?;
            found.push(format!("name {name}"));
        }
        let mac =
            self.device.mac_address().map_err(|source| self.failed("read its MAC address".into(), source))?;
        if mac != self.config.mac.0 {
            let set = self.device.set_mac_address(self.config.mac.0);
            set.map_err(|source| self.failed(format!("set the MAC address {}", self.config.mac), source))?;
            found.push(format!("MAC address {}", MacAddr(mac)));
        }
        let mtu = self.device.mtu().map_err(|source| self.failed("read its MTU".into(), source))?;
        if mtu != self.config.mtu {
            let set = self.device.set_mtu(self.config.mtu);
            set.map_err(|source| self.failed(format!("set the MTU {}", self.config.mtu), source))?;
            found.push(format!("MTU {mtu}"));
        }
        Ok(found)
    }

    /// Kernels before Linux 6.2 rename a device only while it is down. A device that is down loses routes and IPv6
    /// addresses, which are restored once it is up again under its old name.
    fn rename_back(&self) -> io::Result<()> {
        match self.device.set_name(&self.name) {
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::BUSY.raw_os_error()) => {
                self.device.enabled(false)?;
                let renamed = self.device.set_name(&self.name);
                self.device.enabled(true)?;
                renamed
            }
            done => done,
        }
    }

    /// Sets the sysctls of the device if they have other values, because it is new or another program has changed them.
    /// udev may apply the host's sysctls to a new device after this process has set them, so other values are normal.
    /// With a read-only `/proc`, and without the host's mount, the host's settings stay.
    ///
    /// Packets of clients may arrive through the tap although the return route uses another interface, so `rp_filter`
    /// is off. The kernel applies the larger of this value and the one in `conf/all`, which the operator controls.
    pub fn restore_sysctls(&self) {
        let has_v6 = self.config.addresses.iter().any(|net| net.addr().is_ipv6());
        let sysctls = [
            ("ipv4", "rp_filter", "0", true),
            ("ipv6", "disable_ipv6", "0", has_v6),
            // Otherwise, removing one of our addresses would also remove other programs' addresses in the same network.
            ("ipv4", "promote_secondaries", "1", true),
            ("ipv4", "ignore_routes_with_linkdown", "1", true),
            ("ipv6", "ignore_routes_with_linkdown", "1", has_v6),
        ];
        for (family, name, wanted, _) in sysctls.into_iter().filter(|(.., is_needed)| *is_needed) {
            let file = sysctl::path(&self.name, family, name);
            let found = std::fs::read_to_string(&file).unwrap_or_default();
            if ["", wanted].contains(&found.trim()) {
                continue;
            }
            let path = file.display();
            match sysctl::write(&file, wanted) {
                Ok(()) => tracing::debug!(%path, found = found.trim(), wanted, "a sysctl of the tap is set"),
                Err(error) => tracing::debug!(%path, wanted, %error, "cannot set a sysctl of the tap"),
            }
        }
    }

    /// Whether an error of [`Tap::send`] or [`Tap::receive`] means that the device was deleted.
    #[must_use]
    pub fn is_gone(error: &io::Error) -> bool {
        error.raw_os_error() == Some(rustix::io::Errno::BADFD.raw_os_error())
    }

    fn device(name: &str, config: &TapConfig) -> io::Result<SyncDevice> {
        // The device must end up enabled: while an existing device is down, the kernel removes the routes and
        // neighbours that the previous process left.
        let device = builder(name).enable(false).mac_addr(config.mac.0).mtu(config.mtu).build_sync()?;
        if let Some(mark) = &config.mark {
            let marked = Netlink::open().and_then(|mut netlink| netlink.set_alias(device.if_index()?, mark));
            if let Err(error) = marked {
                tracing::warn!(tap = name, %error, "cannot set the alias of the tap: the tap will remain after its \
                                                    interface is removed from the configuration");
            }
        }
        device.enabled(true)?;
        device.persist()?;
        device.set_nonblocking(true)?;
        Ok(device)
    }

    fn failed(&self, what: String, source: io::Error) -> TapError {
        TapError::Configure { name: self.name.clone(), what, source }
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's index.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn index(&self) -> io::Result<u32> {
        self.device.if_index()
    }

    /// Writes a frame from the wire to the kernel, without its 802.1Q tag.
    ///
    /// # Errors
    /// `WouldBlock` when the kernel's queue is full; others when the device is down.
    pub fn send(&self, frame: &mut [u8]) -> io::Result<()> {
        let frame = if self.config.vlan.is_some() { untag(frame) } else { frame };
        self.device.send(frame).map(drop)
    }

    /// Reads a frame that the kernel sends, and adds the tag that it needs on the wire. `None` if no frame is waiting.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        // Space for the tag in front: the Ethernet addresses are moved there.
        const TAG: usize = HEADER_LEN_MAX - HEADER_LEN;
        let len = match self.device.recv(&mut buffer[TAG..]) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        Ok(match self.config.vlan {
            Some(vlan) if len >= HEADER_LEN => {
                buffer.copy_within(TAG..TAG + 12, 0);
                buffer[12..14].copy_from_slice(&ether_type::VLAN.to_be_bytes());
                buffer[14..16].copy_from_slice(&vlan.value().to_be_bytes());
                Some(&buffer[..TAG + len])
            }
            _ => Some(&buffer[TAG..TAG + len]),
        })
    }
}

impl AsFd for Tap {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

/// Whether a device could not be created because its name is taken.
fn is_taken(error: &io::Error) -> bool {
    use rustix::io::Errno;
    [Errno::BUSY, Errno::EXIST, Errno::INVAL].iter().any(|e| error.raw_os_error() == Some(e.raw_os_error()))
}

/// The frame without its tag. An untagged frame is returned as it is.
fn untag(frame: &mut [u8]) -> &[u8] {
    const TAG: usize = HEADER_LEN_MAX - HEADER_LEN;
    if frame.len() < HEADER_LEN_MAX || frame[12..14] != ether_type::VLAN.to_be_bytes() {
        return frame;
    }
    frame.copy_within(0..12, TAG);
    &frame[TAG..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_taps_fit_the_kernel() {
        assert_eq!(tap_name("uplink"), "tg-uplink");
        assert_eq!(tap_name("a-very-long-interface-name"), "tg-a-very-long-");
        let names: Vec<_> = tap_names("a-very-long-interface-name").collect();
        assert_eq!(
            (names.len(), names[1].as_str(), names[9].as_str()),
            (10, "tg-a-very-lon-2", "tg-a-very-lo-10")
        );
        assert!(tap_names("a-very-long-interface-name").all(|name| name.len() <= NAME_MAX));
    }

    #[test]
    fn tags_come_off_and_untagged_frames_stay() {
        let mut tagged: Vec<u8> = (0..12).chain([0x81, 0, 0, 100, 8, 0, 1, 2, 3]).collect();
        assert_eq!(untag(&mut tagged), (0..12).chain([8, 0, 1, 2, 3]).collect::<Vec<u8>>());
        let mut plain: Vec<u8> = (0..12).chain([8, 0, 1, 2, 3, 4, 5, 6]).collect();
        assert_eq!(untag(&mut plain.clone()), plain);
        assert_eq!(untag(&mut plain[..10]).len(), 10);
    }
}
