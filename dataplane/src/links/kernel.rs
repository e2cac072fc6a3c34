//! The state of the kernel's interfaces, read through rtnetlink.
//!
//! [`Kernel::link`] queries an interface by name, [`Kernel::link_at`] by index; [`Events`] wakes a waiter when any
//! interface changes. The contents of an event are ignored: the waiter queries again, so a lost event only costs time.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage};
use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use tidegate_host::rtnetlink::Connection;
use tidegate_wire::MacAddr;

use super::LinkState;

/// One interface of the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelLink {
    /// Its name, which differs from the queried name if that is an alternative name.
    pub name: String,
    /// Its index. An interface recreated under the same name has a different one.
    pub index: u32,
    /// Its state; never [`LinkState::Gone`].
    pub state: LinkState,
    /// The maximum size of an IP packet in bytes; `None` if the kernel doesn't report it.
    pub mtu: Option<u32>,
    /// Its MAC address; `None` if it has none.
    pub mac: Option<MacAddr>,
}

/// A netlink connection in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Kernel(Connection);

impl Kernel {
    /// Opens a connection.
    ///
    /// # Errors
    /// If the kernel provides none.
    pub fn open() -> io::Result<Self> {
        Connection::open().map(Self)
    }

    /// The interface with this name or alternative name, if any.
    ///
    /// # Errors
    /// Any other error of the kernel.
    pub fn link(&mut self, name: &str) -> io::Result<Option<KernelLink>> {
        let mut message = LinkMessage::default();
        message.attributes.push(LinkAttribute::IfName(name.to_owned()));
        self.query(message)
    }

    /// The interface with this index, whatever its name, if any.
    ///
    /// # Errors
    /// Any other error of the kernel.
    pub fn link_at(&mut self, index: u32) -> io::Result<Option<KernelLink>> {
        let mut message = LinkMessage::default();
        message.header.index = index;
        self.query(message)
    }

    fn query(&mut self, message: LinkMessage) -> io::Result<Option<KernelLink>> {
        match self.0.request(RouteNetlinkMessage::GetLink(message), 0).map(|mut answers| answers.pop()) {
            Ok(Some(RouteNetlinkMessage::NewLink(link))) => {
                let (index, state) = (link.header.index, state_of(link.header.flags));
                let (mtu, mac) = (mtu_of(&link.attributes), mac_of(&link.attributes));
                let name = name_of(&link.attributes).ok_or_else(|| {
                    io::Error::new(io::ErrorKind::InvalidData, "the kernel reported a link without a name")
                })?;
                Ok(Some(KernelLink { name, index, state, mtu, mac }))
            }
            Ok(other) => Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!("the kernel's answer is not a link: {other:?}"),
            )),
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NODEV.raw_os_error()) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn name_of(attributes: &[LinkAttribute]) -> Option<String> {
    attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::IfName(name) => Some(name.clone()),
        _ => None,
    })
}

fn mtu_of(attributes: &[LinkAttribute]) -> Option<u32> {
    attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Mtu(mtu) => Some(*mtu),
        _ => None,
    })
}

fn mac_of(attributes: &[LinkAttribute]) -> Option<MacAddr> {
    attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(bytes) => <[u8; 6]>::try_from(bytes.as_slice()).ok().map(MacAddr),
        _ => None,
    })
}

fn state_of(flags: LinkFlags) -> LinkState {
    if !flags.contains(LinkFlags::Up) {
        LinkState::Down
    } else if !flags.contains(LinkFlags::Running) {
        LinkState::NoCarrier
    } else {
        LinkState::Up
    }
}

/// A subscription to the kernel's notifications of interface changes.
#[derive(Debug)]
pub struct Events(Socket);

/// `RTNLGRP_LINK` of linux/rtnetlink.h.
const GROUP_LINK: u32 = 1;

impl Events {
    /// Subscribes.
    ///
    /// # Errors
    /// If the kernel refuses the subscription.
    pub fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.add_membership(GROUP_LINK)?;
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// Discards all pending notifications, so that the next wait is for new ones.
    pub fn drain(&self) {
        let mut buffer = Vec::with_capacity(8192);
        loop {
            buffer.clear();
            match self.0.recv(&mut buffer, 0) {
                // Some notifications were lost. The next query returns the current state.
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOBUFS.raw_os_error()) => {}
                Err(_) => return,
            }
        }
    }
}

impl AsFd for Events {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_there_and_a_made_up_name_is_not() {
        let mut kernel = Kernel::open().expect("netlink");
        let lo = kernel.link("lo").expect("an answer").expect("there is one");
        assert!(lo.index == 1 && lo.mtu.is_some_and(|mtu| mtu > 0), "{lo:?}");
        assert_eq!((lo.name.as_str(), lo.mac), ("lo", Some(MacAddr::ZERO)));
        assert_eq!(kernel.link("no-such-link").expect("an answer"), None);
    }

    #[test]
    fn an_interface_is_found_by_its_index() {
        let mut kernel = Kernel::open().expect("netlink");
        let lo = kernel.link("lo").expect("an answer");
        assert_eq!(kernel.link_at(1).expect("an answer"), lo);
        assert_eq!(kernel.link_at(i32::MAX.unsigned_abs()).expect("an answer"), None);
    }

    #[test]
    fn flags_distinguish_down_from_no_carrier() {
        assert_eq!(state_of(LinkFlags::empty()), LinkState::Down);
        assert_eq!(state_of(LinkFlags::Up), LinkState::NoCarrier);
        assert_eq!(state_of(LinkFlags::Up | LinkFlags::Running), LinkState::Up);
    }
}
