//! A port that is closed when its device disappears and reopened when the device is back.
//!
//! A packet socket is bound to the interface on which it was opened, not to its name: an interface that is deleted and
//! recreated needs a new socket. So the port is closed as soon as its interface no longer exists or its name belongs to
//! another one. It is reopened with its initial settings (queues, address, MTU, kernel settings). Meanwhile, workers
//! release their queues through their [`Gate`]s; flows, services and neighbours stay. Only devices that are kernel
//! interfaces are reopened; for others, the driver only reports the link. If the interface is merely renamed, the port
//! stays open.
//!
//! Invariant: nothing here waits for a worker. A check does what is possible at once, and returns whether it should be
//! repeated soon.

use std::sync::Arc;
use std::time::{Duration, Instant};
use std::{io, mem};

use dpdk::{Eal, PktPool, Port, PortConfig, PortError, Queues};
use tidegate_wire::MacAddr;

use super::kernel::{Kernel, KernelLink};
use super::lock::{DeviceLock, LockError};
use super::{LinkState, Links, PortReport};
use crate::drivers::dpdk::QueuePair;
use crate::drivers::gate::Gate;
use crate::punt::sysctl_guard::{SysctlGuard, SysctlGuardError};

/// Interval between two attempts to open a port whose device exists.
const RETRY: Duration = Duration::from_secs(1);

/// What a device string names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Device {
    /// An existing kernel interface.
    Kernel(String),
    /// A kernel interface that the driver creates.
    Created(String),
    /// A NIC by its PCI address.
    Pci(String),
    /// A device that only this process can see.
    Private,
}

impl Device {
    /// The device that a device string of the configuration names.
    pub(crate) fn of(device: &str) -> Self {
        let iface = device.split(',').find_map(|argument| argument.strip_prefix("iface=")).map(str::to_owned);
        let name = device.split(',').next().unwrap_or(device);
        match iface {
            Some(iface) if name.starts_with("net_af_packet") || name.starts_with("net_af_xdp") => {
                Self::Kernel(iface)
            }
            Some(iface) if name.starts_with("net_tap") && !iface.contains('%') => Self::Created(iface),
            _ if !name.starts_with("net_") && name.contains(':') => Self::Pci(name.to_ascii_lowercase()),
            _ => Self::Private,
        }
    }

    /// Locks the device for this process. Devices that no other process can use need no lock.
    pub(crate) fn lock(&self) -> Result<Option<DeviceLock>, LockError> {
        match self {
            Self::Kernel(name) | Self::Created(name) => DeviceLock::take(name).map(Some),
            Self::Pci(address) => {
                let domain = if address.matches(':').count() == 1 { "0000:" } else { "" };
                DeviceLock::take(&format!("{domain}{address}")).map(Some)
            }
            Self::Private => Ok(None),
        }
    }

    /// The name of its kernel interface.
    fn kernel_name(&self) -> Option<&str> {
        match self {
            Self::Kernel(name) | Self::Created(name) => Some(name),
            Self::Pci(_) | Self::Private => None,
        }
    }
}

/// The current kernel name of an interface that the configuration calls differently, and the lock on that name: the
/// interface was renamed, or the configuration uses an alternative name.
#[derive(Debug)]
pub(crate) struct OtherName {
    name: String,
    lock: DeviceLock,
}

impl OtherName {
    /// Locks the name of the device's interface; `None` if the lock of the device covers it.
    pub(crate) fn of(device: &Device, link: &KernelLink) -> Result<Option<Self>, LockError> {
        if device.kernel_name() == Some(link.name.as_str()) {
            return Ok(None);
        }
        let lock = DeviceLock::take(&link.name)?;
        Ok(Some(Self { name: link.name.clone(), lock }))
    }
}

/// Silences the kernel on an interface that it shares with a port, under the kernel's name of the interface.
pub(crate) fn silence(
    devargs: &str,
    device: &Device,
    lock: Option<&DeviceLock>,
    other_name: Option<&OtherName>,
) -> Result<Option<SysctlGuard>, SysctlGuardError> {
    let Device::Kernel(name) = device else { return Ok(None) };
    let other = other_name.map(|other| (&other.name, &other.lock));
    match other.or(lock.map(|lock| (name, lock))) {
        Some((name, lock)) if SysctlGuard::is_needed(devargs) => {
            SysctlGuard::begin(name, lock.record()).map(Some)
        }
        _ => Ok(None),
    }
}

/// Starts a port, and returns its queues by number.
pub(crate) fn open_port(
    port: &mut Port,
    config: &PortConfig,
    pool: &PktPool,
) -> Result<Vec<QueuePair>, PortError> {
    let Queues { rx, tx } = port.start(config, pool)?;
    Ok(rx.into_iter().zip(tx).collect())
}

/// A port with its device. Fields are dropped in order, so the port is dropped before the guards of its device.
#[derive(Debug)]
pub(crate) struct WatchedPort {
    /// The port and its lifecycle stage.
    pub(crate) stage: Stage,
    /// What the device string names.
    pub(crate) device: Device,
    /// The device string with the name of the port.
    pub(crate) devargs: String,
    /// The index of the kernel interface that the port was opened on.
    pub(crate) bound: Option<u32>,
    /// The gates of its queues, one for each worker.
    pub(crate) gates: Vec<Arc<Gate<QueuePair>>>,
    /// The configuration that it was started with.
    pub(crate) config: PortConfig,
    /// The pool that it receives into.
    pub(crate) pool: PktPool,
    /// The address in use.
    pub(crate) mac: MacAddr,
    /// The MTU in use.
    pub(crate) mtu: u16,
    /// Silences the kernel on the interface.
    pub(crate) sysctl_guard: Option<SysctlGuard>,
    /// The current name of the device's interface, if it differs from the configuration.
    pub(crate) other_name: Option<OtherName>,
    /// Keeps other gateways from using the device.
    pub(crate) lock: Option<DeviceLock>,
    /// The earliest time of the next attempt to open it.
    pub(crate) retry_at: Option<Instant>,
}

/// The lifecycle stage of a port.
#[derive(Debug)]
pub(crate) enum Stage {
    /// Workers use the port.
    Open(Port),
    /// The device is gone, and workers may still own queues.
    Closing(Port),
    /// There is no port.
    Closed,
    /// New queues are offered to the workers.
    Opening(Port),
}

/// The resources that a port is opened with.
#[derive(Debug, Clone)]
pub(crate) struct PortResources {
    pub(crate) eal: Eal,
}

impl WatchedPort {
    /// Checks the device and applies pending changes. Returns whether to call it again soon.
    pub(crate) fn check(
        &mut self,
        interface: usize,
        kernel: &mut Kernel,
        links: &Links,
        resources: &PortResources,
        now: Instant,
    ) -> bool {
        let (found, is_renamed) = match self.find(kernel) {
            Ok(found) => found,
            Err(error) => {
                // The last known state applies until the kernel answers again.
                tracing::debug!(%error, "cannot read the state of an interface from the kernel");
                return false;
            }
        };
        loop {
            match mem::replace(&mut self.stage, Stage::Closed) {
                Stage::Open(mut port) => {
                    if let Some(state) = self.state(&port, found.as_ref()) {
                        let link = found.as_ref().and_then(Option::as_ref);
                        let short = self.short_mtu(&mut port, interface, kernel, link, links);
                        let other = self.other_mac(&mut port, interface, kernel, link, links);
                        self.report(interface, state, short, other, links);
                        links.set_renamed(interface, self.names().filter(|_| is_renamed));
                        self.stage = Stage::Open(port);
                        return false;
                    }
                    links.set_port(interface, LinkState::Gone, None);
                    links.set_renamed(interface, None);
                    self.gates.iter().for_each(|gate| gate.release());
                    self.stage = Stage::Closing(port);
                }
                Stage::Closing(port) => {
                    if !self.gates.iter().all(|gate| gate.is_released()) {
                        self.stage = Stage::Closing(port);
                        return true;
                    }
                    drop(port);
                    self.release_sysctls(kernel);
                }
                Stage::Closed => {
                    let link = found.as_ref().and_then(Option::as_ref);
                    match self.reopen(interface, link, links, resources, now) {
                        Some(port) => self.stage = Stage::Opening(port),
                        None => return false,
                    }
                }
                Stage::Opening(port) => {
                    if !self.gates.iter().all(|gate| gate.is_owned()) {
                        self.stage = Stage::Opening(port);
                        return true;
                    }
                    self.stage = Stage::Open(port);
                    if !matches!(found, Some(Some(_))) {
                        // The driver has just created its interface. The next check finds it.
                        return true;
                    }
                }
            }
        }
    }

    /// Reads the counters of an open port from its driver. If that fails, the previous values stay.
    pub(crate) fn read_counters(&self, interface: usize, links: &Links) {
        let Stage::Open(port) = &self.stage else { return };
        match port.extended_stats() {
            Ok(stats) => {
                let mbps = port.link().ok().filter(|link| link.up).and_then(|link| link.mbps);
                links.set_port_report(interface, PortReport { mbps, stats });
            }
            Err(error) => tracing::debug!(%error, "cannot read the counters of a port"),
        }
    }

    /// Keeps the kernel silent on the interface.
    pub(crate) fn restore_sysctls(&self) {
        if let Some(guard) = &self.sysctl_guard {
            guard.restore_changed();
        }
    }

    /// The device's kernel interface, and whether it was renamed. The outer `None` means that the device has no kernel
    /// interface, the inner `None` that no interface has its name.
    ///
    /// A renamed interface is found only while the port is open on it, because opening a port needs the name. A renamed
    /// interface of `net_tap` is never found, because its driver recreates it.
    fn find(&self, kernel: &mut Kernel) -> io::Result<(Option<Option<KernelLink>>, bool)> {
        let Some(name) = self.device.kernel_name() else { return Ok((None, false)) };
        let found = kernel.link(name)?;
        match (&self.device, &self.stage, self.bound) {
            (Device::Kernel(_), Stage::Open(_), Some(index)) if found.is_none() => {
                let renamed = kernel.link_at(index)?;
                let is_renamed = renamed.is_some();
                Ok((Some(renamed), is_renamed))
            }
            _ => Ok((Some(found), false)),
        }
    }

    /// The configured name, and the different current name of the interface.
    fn names(&self) -> Option<(&str, &str)> {
        Some((self.device.kernel_name()?, self.other_name.as_ref()?.name.as_str()))
    }

    /// Follows the interface to its current name: locks that name, and moves the sysctl guard there.
    fn follow(&mut self, link: &KernelLink) -> Result<(), LockError> {
        let name = self.other_name.as_ref().map(|other| other.name.as_str()).or(self.device.kernel_name());
        if name == Some(link.name.as_str()) {
            return Ok(());
        }
        let other = OtherName::of(&self.device, link)?;
        let lock = other.as_ref().map(|other| &other.lock).or(self.lock.as_ref());
        if let (Some(guard), Some(lock)) = (&mut self.sysctl_guard, lock) {
            guard.follow(&link.name, lock.record());
        }
        self.other_name = other;
        Ok(())
    }

    /// Restores the sysctls of the interface that the port was open on, under its current name. If the interface no
    /// longer exists, forgets them.
    fn release_sysctls(&mut self, kernel: &mut Kernel) {
        let link = self.bound.and_then(|index| kernel.link_at(index).ok().flatten());
        match (self.sysctl_guard.take(), link) {
            (Some(guard), Some(link)) => guard.restore(&link.name),
            (Some(guard), None) => guard.forget(),
            (None, _) => {}
        }
        self.other_name = None;
    }

    /// Informs workers and `links` about an open port.
    fn report(
        &self,
        interface: usize,
        state: LinkState,
        short_mtu: Option<(u32, u16)>,
        other_mac: Option<MacAddr>,
        links: &Links,
    ) {
        links.set_short_mtu(interface, short_mtu);
        links.set_other_mac(interface, other_mac.map(|other| (other, self.mac)));
        self.gates.iter().for_each(|gate| gate.set_link(state == LinkState::Up));
        links.set_port(interface, state, None);
    }

    /// Opens a closed port if its device exists and an attempt is due. `found` is the device's kernel interface.
    fn reopen(
        &mut self,
        interface: usize,
        found: Option<&KernelLink>,
        links: &Links,
        resources: &PortResources,
        now: Instant,
    ) -> Option<Port> {
        let is_there = found.is_some() || matches!(self.device, Device::Created(_));
        if !is_there {
            links.set_port(interface, LinkState::Gone, None);
            self.retry_at = None;
            return None;
        }
        if self.retry_at.is_some_and(|at| now < at) {
            return None;
        }
        self.retry_at = Some(now + RETRY);
        match self.open(found, resources) {
            Ok(port) => {
                self.bound = found.map(|link| link.index);
                Some(port)
            }
            Err(fault) => {
                // The kernel may use the interface until the next attempt.
                self.sysctl_guard = None;
                self.other_name = None;
                links.set_port(interface, LinkState::Gone, Some(fault));
                None
            }
        }
    }

    /// The link state of an open port; `None` if the port's device is gone.
    fn state(&mut self, port: &Port, found: Option<&Option<KernelLink>>) -> Option<LinkState> {
        match found {
            // If a driver can't report its link, the link counts as up.
            None => Some(match port.link() {
                Ok(link) if !link.up => LinkState::NoCarrier,
                _ => LinkState::Up,
            }),
            Some(None) => None,
            Some(Some(link)) => {
                // The index of an interface that the driver created was not known before.
                let bound = *self.bound.get_or_insert(link.index);
                if bound != link.index {
                    return None;
                }
                match self.follow(link) {
                    // Two ports on one interface would both receive every frame.
                    Err(error) if error.is_in_use() => {
                        tracing::warn!(%error, "a device was renamed to a name that another gateway or interface \
                                                uses: closing the port of the device");
                        return None;
                    }
                    Err(error) => tracing::debug!(%error, "cannot lock the new name of a renamed device yet"),
                    Ok(()) => {}
                }
                Some(link.state)
            }
        }
    }

    /// The MTU of the device, if it is smaller than the MTU in use and can't be restored: the kernel then silently
    /// drops larger packets. A configured MTU is set on the device, as at the start.
    fn short_mtu(
        &self,
        port: &mut Port,
        interface: usize,
        kernel: &mut Kernel,
        found: Option<&KernelLink>,
        links: &Links,
    ) -> Option<(u32, u16)> {
        let found = found?;
        let is_short = |link: &KernelLink| link.mtu.filter(|mtu| *mtu < u32::from(self.mtu));
        let short = is_short(found)?;
        if self.config.mtu.is_some() {
            let set = port.set_mtu(self.mtu);
            let now = kernel.link_at(found.index).ok().flatten();
            if set.is_ok() && now.is_some_and(|link| is_short(&link).is_none()) {
                links.mtu_restored(interface, short, self.mtu);
                return None;
            }
        }
        Some((short, self.mtu))
    }

    /// The MAC address of the device, if it is not the address in use and can't be restored: the device then ignores
    /// frames to the gateway. A configured address is set on the device, as at the start.
    ///
    /// The gateway doesn't adopt the new address, because neighbours, the tap and the forwarding state have the old
    /// one. The interface of `net_tap` is not checked: it is the other end of a link, with its own address.
    fn other_mac(
        &self,
        port: &mut Port,
        interface: usize,
        kernel: &mut Kernel,
        found: Option<&KernelLink>,
        links: &Links,
    ) -> Option<MacAddr> {
        let found = found.filter(|_| matches!(self.device, Device::Kernel(_)))?;
        let other = |link: &KernelLink| link.mac.filter(|mac| *mac != self.mac);
        other(found)?;
        let query = |kernel: &mut Kernel| kernel.link_at(found.index).ok().flatten().as_ref().and_then(other);
        // `found` may have been read before the port was opened, which has set the address.
        let device = query(kernel)?;
        if self.config.mac.is_some() && port.set_mac(self.mac.0).is_ok() && query(kernel).is_none() {
            links.mac_restored(interface, device, self.mac);
            return None;
        }
        Some(device)
    }

    fn open(&mut self, found: Option<&KernelLink>, resources: &PortResources) -> Result<Port, String> {
        if let Some(link) = found {
            self.follow(link).map_err(|error| error.to_string())?;
        }
        let guard = silence(&self.devargs, &self.device, self.lock.as_ref(), self.other_name.as_ref());
        self.sysctl_guard = guard.map_err(|error| error.to_string())?;
        let failed = |error: PortError| error.to_string();
        let mut port = Port::attach(&resources.eal, &self.devargs).map_err(failed)?;
        let queues = open_port(&mut port, &self.config, &self.pool).map_err(failed)?;
        if port.mac().map_err(failed)? != self.mac.0 {
            port.set_mac(self.mac.0).map_err(failed)?;
        }
        let mtu = port.mtu().map_err(failed)?;
        if self.config.mtu.is_none() && mtu < self.mtu {
            let port = &port.info().name;
            tracing::warn!(port, mtu, before = self.mtu, "the MTU of the device is smaller than before");
        }
        for (gate, queue) in self.gates.iter().zip(queues) {
            gate.offer(queue);
        }
        Ok(port)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_are_distinguished() {
        let kernel = Device::Kernel("eth1".to_owned());
        assert_eq!(Device::of("net_af_packet0,iface=eth1,qpairs=2"), kernel);
        assert_eq!(Device::of("net_af_xdp,iface=eth1"), kernel);
        assert_eq!(Device::of("net_tap0,iface=dtap0"), Device::Created("dtap0".to_owned()));
        assert_eq!(Device::of("0000:03:00.0,arg=1"), Device::Pci("0000:03:00.0".to_owned()));
        for private in
            ["net_null0", "net_null,iface=eth1", "net_ring0,nodeaction=a:0:CREATE", "net_tap,iface=t%d"]
        {
            assert_eq!(Device::of(private), Device::Private, "{private}");
        }
    }

    #[test]
    fn the_kernel_name_is_locked_too_if_the_configured_one_differs() {
        let [device, other] = ["alt", "own"].map(|name| format!("tg-{name}-{}", std::process::id()));
        let link = |name: &str| KernelLink {
            name: name.to_owned(),
            index: 7,
            state: LinkState::Up,
            mtu: None,
            mac: None,
        };
        let kernel = Device::Kernel(device.clone());
        assert!(OtherName::of(&kernel, &link(&device)).expect("no lock is needed").is_none());
        let lock = OtherName::of(&kernel, &link(&other)).expect("it is free").expect("another name");
        assert!(DeviceLock::take(&other).is_err_and(|refused| refused.is_in_use()));
        drop(lock);
    }
}
