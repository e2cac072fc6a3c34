//! The actions that the neighbour state machine returns to its driver.

use std::net::IpAddr;

use tidegate_core::ids::InterfaceIndex;
use tidegate_core::wire::{MacAddr, SmallFrame};

/// What the driver of the machine has to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this frame.
    Send {
        /// Out of this interface.
        interface: InterfaceIndex,
        /// All of it.
        frame: SmallFrame,
    },
    /// A neighbour is wanted: workers pass on what is told about it.
    Hold {
        /// On this interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
    },
    /// Workers may use this link address.
    Learn {
        /// On this interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
        /// Where it is.
        mac: MacAddr,
        /// How that is known.
        how: Known,
    },
    /// Nobody wants this neighbour any more.
    Release {
        /// On this interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
        /// Configuration gave its link address.
        fixed: bool,
    },
    /// Another station claims an address of ours: to be logged.
    Conflict {
        /// On this interface.
        interface: InterfaceIndex,
        /// Our address.
        address: IpAddr,
        /// The claimant.
        mac: Option<MacAddr>,
        /// It has been answered by an announcement.
        defended: bool,
    },
}

/// How a link address is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Configuration gives it: no answer changes it.
    Fixed,
    /// By an answer to a request of ours.
    Confirmed,
    /// By what was told unasked.
    Unconfirmed,
}
