//! The actions that the neighbour state machine requests from its driver.

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
    /// A neighbour is needed: create its table entry, so that workers report packets for it.
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
        /// The source of the link address.
        how: Known,
    },
    /// A neighbour is no longer needed.
    Release {
        /// Its interface.
        interface: InterfaceIndex,
        /// The neighbour.
        address: IpAddr,
        /// Whether its link address was configured.
        fixed: bool,
    },
    /// Another station claims one of our addresses. The driver logs it.
    Conflict {
        /// Its interface.
        interface: InterfaceIndex,
        /// Our address.
        address: IpAddr,
        /// The claimant.
        mac: Option<MacAddr>,
        /// Whether an announcement has defended the address.
        defended: bool,
        /// Whether further claims of this station, or on this link, are not logged for a while.
        is_last: bool,
    },
}

/// The source of a link address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Known {
    /// Configuration: no answer changes it.
    Fixed,
    /// An answer to our own request.
    Confirmed,
    /// An unsolicited packet.
    Unconfirmed,
}
