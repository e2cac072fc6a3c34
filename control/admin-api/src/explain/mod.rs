//! The answer of `tidegate explain`: what happens to one packet, step by step.

mod explanation;
mod packet;

pub use explanation::{BackendChoice, Egress, Explanation, PacketVerdict, Step};
pub use packet::{KnownFlow, Packet, Transport};
