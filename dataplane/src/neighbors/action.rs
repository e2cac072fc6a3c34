//! The actions that the neighbour state machine returns to its driver.

use std::net::IpAddr;

use tidegate_spec::ids::InterfaceIndex;
use tidegate_wire::{MacAddr, SmallFrame};

/// An action that the driver of the state machine must carry out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Send this frame.
    Send {
        /// The egress interface.
        interface: InterfaceIndex,
        /// The complete frame.
        frame: SmallFrame,
    },
    /// A neighbour is needed: workers report packets about it.
    Allocate {
        /// Its interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
    },
    /// Workers may use this link address.
    Update {
        /// Its interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
        /// The link address.
        mac: MacAddr,
        /// Where the link address comes from.
        how: Known,
    },
    /// A neighbour is no longer needed.
    Release {
        /// Its interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
        /// Whether configuration gave its link address.
        fixed: bool,
    },
    /// Another station claims an address of ours. This must be logged.
    Conflict {
        /// Its interface.
        interface: InterfaceIndex,
        /// Our address.
        address: IpAddr,
        /// The claimant.
        mac: Option<MacAddr>,
        /// Whether an announcement has answered the claim.
        defended: bool,
        /// Whether further claims of this station, or on this link, are not logged for a while.
        is_last: bool,
    },
}

/// Where a link address comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// From configuration: no answer changes it.
    Fixed,
    /// From an answer to a request of ours.
    Confirmed,
    /// From an unsolicited packet.
    Unconfirmed,
}
