//! Parses the sessions in BIRD's replies to `show protocols all` and `show bfd sessions`.
//!
//! Unknown lines are ignored, because each version of BIRD prints different ones.
//!
//! Invariant: no input makes it panic.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::control::Reply;

tidegate_model::named! {
    /// The states of a BGP session (RFC 4271 section 8.2.2), and those that BIRD adds.
    #[derive(Default)]
    pub enum SessionState {
        /// BIRD has not been queried yet, or reported an unknown state.
        #[default]
        Unknown => "Unknown",
        /// Disabled, or BIRD is not running.
        Down => "Down",
        /// Waits before the next attempt.
        Idle => "Idle",
        /// Connects to the peer.
        Connect => "Connect",
        /// Waits for a connection.
        Active => "Active",
        /// Has sent an OPEN message.
        OpenSent => "OpenSent",
        /// Waits for a KEEPALIVE or NOTIFICATION message.
        OpenConfirm => "OpenConfirm",
        /// Exchanges routes.
        Established => "Established",
        /// Is closing the connection.
        Close => "Close",
    }
}

impl SessionState {
    fn of(text: &str) -> Self {
        Self::ALL.into_iter().find(|state| state.as_str() == text).unwrap_or_default()
    }
}

/// One session.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Session {
    /// Its state.
    pub state: SessionState,
    /// Since when the session is in this state, in BIRD's format.
    pub since: String,
    /// Why it ended or cannot start, in BIRD's words.
    pub last_error: Option<String>,
    /// The number of routes sent, by family: IPv4, IPv6.
    pub sent: [u64; 2],
    /// The hold time that both sides agreed on, in seconds.
    pub hold_seconds: Option<u64>,
    /// Whether the peer supports graceful restart.
    pub graceful_restart: bool,
}

/// All sessions, by the name of BIRD's protocol, and the BFD states, by peer.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Protocols {
    /// BGP.
    pub sessions: BTreeMap<String, Session>,
    /// BFD: `Up`, `Down`, `Init` or `AdminDown` (RFC 5880).
    pub bfd: BTreeMap<IpAddr, String>,
}

impl Protocols {
    /// Parses both replies.
    #[must_use]
    pub fn read(protocols: &Reply, bfd: &Reply) -> Self {
        Self { sessions: sessions(protocols), bfd: bfd_states(bfd) }
    }
}

/// The code of the first line of a protocol.
const PROTOCOL: u16 = 1002;
/// The code of its other lines.
const DETAILS: u16 = 1006;
/// The code of BFD sessions.
const BFD: u16 = 1020;

fn sessions(reply: &Reply) -> BTreeMap<String, Session> {
    let mut sessions = BTreeMap::new();
    let mut current: Option<(String, Session)> = None;
    // The channel of the line (an index of `sent`), and whether the line lists capabilities of the neighbour.
    let (mut channel, mut in_neighbor) = (None, false);
    for (code, line) in &reply.0 {
        if *code == PROTOCOL {
            sessions.extend(current.take());
            (channel, in_neighbor) = (None, false);
            let words: Vec<&str> = line.split_whitespace().collect();
            if let [name, "BGP", _, state, rest @ ..] = &words[..] {
                let state = if *state == "down" { SessionState::Down } else { SessionState::Unknown };
                let since = rest.iter().take(2).copied().collect::<Vec<_>>().join(" ");
                current = Some(((*name).to_owned(), Session { state, since, ..Session::default() }));
            }
            continue;
        }
        let Some((_, session)) = current.as_mut().filter(|_| *code == DETAILS) else { continue };
        let line = line.trim();
        match line {
            "Channel ipv4" => channel = Some(0),
            "Channel ipv6" => channel = Some(1),
            "Neighbor capabilities" => in_neighbor = true,
            "Graceful restart" if in_neighbor => session.graceful_restart = true,
            _ => {}
        }
        let Some((key, value)) = line.split_once(':') else { continue };
        let value = value.trim();
        match key {
            "BGP state" if session.state != SessionState::Down => session.state = SessionState::of(value),
            "Last error" => session.last_error = Some(value.to_owned()),
            "Hold timer" => {
                session.hold_seconds = value.split_once('/').and_then(|(_, total)| total.trim().parse().ok());
            }
            "Routes" => {
                let counted = value.split(',').find_map(|part| part.trim().strip_suffix(" exported"));
                if let (Some(channel), Some(count)) = (channel, counted.and_then(|n| n.parse().ok())) {
                    session.sent[channel] = count;
                }
            }
            _ => {}
        }
    }
    sessions.extend(current);
    sessions
}

fn bfd_states(reply: &Reply) -> BTreeMap<IpAddr, String> {
    let lines = reply.0.iter().filter(|(code, _)| *code == BFD);
    let read = |line: &str| {
        let mut words = line.split_whitespace();
        let address = words.next()?.parse().ok()?;
        let _interface = words.next()?;
        Some((address, words.next()?.to_owned()))
    };
    lines.filter_map(|(_, line)| read(line)).collect()
}

#[cfg(test)]
mod tests {
    use super::super::control::reply_of;
    use super::*;

    /// Output of BIRD 2.0.12 (Debian 12), shortened.
    const PROTOCOLS: &str = "\
2002-Name       Proto      Table      State  Since         Info
1002-device1    Device     ---        up     2026-11-24 23:38:46  
1006-
1002-peer_1     BGP        ---        up     2026-11-24 23:38:51  Established   
1006-  BGP state:          Established
     Neighbor address: 10.0.0.2
     Neighbor AS:      65000
     Local capabilities
       Graceful restart
     Neighbor capabilities
       Multiprotocol
         AF announced: ipv4
       Graceful restart
     Hold timer:       87.561/90
   Channel ipv4
     State:          UP
     Routes:         0 imported, 10000 exported, 0 preferred
   Channel ipv6
     Routes:         0 imported, 3 exported, 0 preferred
     BGP Next hop:   10.0.0.1
 
1002-peer_2     BGP        ---        start  2026-11-24 23:38:52  Active        Socket: Connection refused
1006-  BGP state:          Active
     Neighbor address: 10.0.0.3
     Last error:       Socket: Connection refused
     Something new:    unknown
   Channel ipv4
     State:          DOWN
 
0000 ";

    #[test]
    fn sessions_of_bird_are_read_and_unknown_lines_are_ignored() {
        let bfd = "1020-bfd1:\n IP address                Interface  State      Since         Interval  Timeout\n \
                   10.0.0.2                  eth0       Up         2026-11-24 23:38:47    0.300    0.900\n0000 ";
        let read = Protocols::read(&reply_of(PROTOCOLS), &reply_of(bfd));
        let one = &read.sessions["peer_1"];
        assert_eq!(
            (one.state, one.sent, one.hold_seconds),
            (SessionState::Established, [10_000, 3], Some(90))
        );
        assert_eq!((one.since.as_str(), one.graceful_restart), ("2026-11-24 23:38:51", true));
        let two = &read.sessions["peer_2"];
        assert_eq!(
            (two.state, two.last_error.as_deref()),
            (SessionState::Active, Some("Socket: Connection refused"))
        );
        assert_eq!(read.bfd, [("10.0.0.2".parse().unwrap(), "Up".to_owned())].into());
        assert_eq!(read.sessions.len(), 2, "device1 is not BGP");
    }

    #[test]
    fn a_reply_cut_anywhere_is_parsed_without_a_panic() {
        for end in 0..PROTOCOLS.len() {
            if PROTOCOLS.is_char_boundary(end) {
                let _ = Protocols::read(&reply_of(&PROTOCOLS[..end]), &reply_of(&PROTOCOLS[end..]));
            }
        }
    }
}
