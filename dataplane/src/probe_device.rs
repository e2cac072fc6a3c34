//! The TUN device through which this process sends probes. It has the near addresses of [`Ends`].
//!
//! Invariant: not persistent. The device, its addresses and routes disappear with the process.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use ipnet::IpNet;
use tidegate_probe::Ends;
use tidegate_wire::Family;
use tidegate_wire::ethernet::{HEADER_LEN, ether_type};
use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use crate::punt::netlink::Netlink;

/// The names to try: another gateway in this network namespace may use the first ones.
const NAMES: [&str; 4] = ["tg-probe", "tg-probe-2", "tg-probe-3", "tg-probe-4"];

/// An open device. Never blocks.
pub struct ProbeDevice {
    device: SyncDevice,
    name: String,
    mtu: u16,
    /// The addresses that the kernel has accepted.
    addresses: Vec<IpNet>,
}

impl ProbeDevice {
    /// Creates the device in this thread's network namespace, for packets of up to `mtu` bytes. A family that the
    /// kernel doesn't support is left out.
    ///
    /// # Errors
    /// The error of the kernel, if the device cannot be created or no address can be added.
    pub fn create(mtu: u16) -> io::Result<Self> {
        let mut last = io::Error::other("no name was tried");
        for name in NAMES {
            let made = DeviceBuilder::new()
                .name(name)
                .layer(Layer::L3)
                .mtu(mtu)
                .packet_information(false)
                .build_sync();
            match made {
                Ok(device) => {
                    device.set_nonblocking(true)?;
                    let mut this = Self { device, name: name.to_owned(), mtu, addresses: Vec::new() };
                    this.addresses = this.add_addresses()?;
                    return Ok(this);
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Recreates a device that another program has deleted.
    ///
    /// # Errors
    /// As for [`ProbeDevice::create`].
    pub fn recreate(&self) -> io::Result<Self> {
        Self::create(self.mtu)
    }

    /// Adds the addresses that another program has removed from the device, and returns them.
    ///
    /// # Errors
    /// The error of the kernel.
    pub fn add_missing_addresses(&self) -> io::Result<Vec<IpNet>> {
        let index = self.device.if_index()?;
        let mut netlink = Netlink::open()?;
        let mut missing = Vec::new();
        for &net in &self.addresses {
            if netlink.add_missing_address(index, net)? {
                missing.push(net);
            }
        }
        Ok(missing)
    }

    /// Adds the addresses, and returns those that the kernel accepts.
    fn add_addresses(&self) -> io::Result<Vec<IpNet>> {
        let index = self.device.if_index()?;
        let mut netlink = Netlink::open()?;
        let (mut given, mut refused) = (Vec::new(), None);
        for (family, prefix_len) in [(Family::V4, 30), (Family::V6, 126)] {
            let net = IpNet::new(Ends::of(family).near, prefix_len).expect("the length is one of the family");
            match netlink.add_address(index, net) {
                Ok(()) => given.push(net),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if given.is_empty() => Err(error),
            Some(error) => {
                tracing::info!(device = self.name, %error, "probes at VIPs use one address family only");
                Ok(given)
            }
            None => Ok(given),
        }
    }

    /// The device's name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes a packet to the kernel.
    ///
    /// # Errors
    /// `WouldBlock` when the kernel's queue is full; others when the device is gone.
    pub fn send(&self, packet: &[u8]) -> io::Result<()> {
        self.device.send(packet).map(drop)
    }

    /// Reads a packet that the kernel sends, and puts an Ethernet header without addresses in front. `None` if no
    /// packet is waiting.
    ///
    /// # Errors
    /// If the device is gone.
    pub fn receive<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        let len = match self.device.recv(&mut buffer[HEADER_LEN..]) {
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(None),
            Err(error) => return Err(error),
        };
        let is_v6 = buffer.get(HEADER_LEN).is_some_and(|first| first >> 4 == 6);
        buffer[..12].fill(0);
        let kind = if is_v6 { ether_type::IPV6 } else { ether_type::IPV4 };
        buffer[12..HEADER_LEN].copy_from_slice(&kind.to_be_bytes());
        Ok(Some(&buffer[..HEADER_LEN + len]))
    }
}

impl AsFd for ProbeDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

impl std::fmt::Debug for ProbeDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ProbeDevice({})", self.name)
    }
}
