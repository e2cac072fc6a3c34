//! Floods and full tables: their effect on the flows of others.

use std::time::Duration;

use tidegate_conntrack::{EvictionReason, FlowView, Phase};
use tidegate_spec::verdict::{Refusal, TransmitReason};
use tidegate_spec::{ForwardingMode, Protocol};
use tidegate_wire::tcp::flags::{ACK, SYN};

use super::connection::{Connection, client};
use super::lab::{Lab, service};
use crate::testing::builder::Builder;

const DNS: &str = "203.0.113.5:53";
const WEB: &str = "203.0.113.6:80";
const MODES: [ForwardingMode; 2] = [ForwardingMode::Nat, ForwardingMode::FullNat];

/// `dns` over UDP with an idle timeout of 300 s, and `web` over TCP, with a table for this many flows.
fn lab(mode: ForwardingMode, entries: usize) -> Lab {
    let backends: Vec<String> = (1..=9).map(|n| format!("10.0.0.{n}:53")).collect();
    let backends: Vec<&str> = backends.iter().map(String::as_str).collect();
    let mut dns = service(mode, Protocol::Udp, DNS, &backends);
    dns.idle_timeout_udp = Duration::from_secs(300);
    let web = service(mode, Protocol::Tcp, WEB, &["10.0.0.1:80", "10.0.0.2:80"]);
    Lab::new(vec![dns, web]).with_entries(entries)
}

fn flows(lab: &Lab) -> Vec<FlowView> {
    let mut flows = Vec::new();
    lab.pipeline.flows().scan(0, u64::MAX, lab.now, |flow| flows.push(flow));
    flows
}

/// Advances the time, and ages flows like a worker with 30,000 bursts a second.
fn wait(lab: &mut Lab, time: Duration) {
    lab.wait(time);
    let count =
        30_000 * tidegate_spec::limits::AGEING_BUCKETS_PER_BURST as u128 * time.as_micros() / 1_000_000;
    lab.pipeline.flows_mut().age(lab.now, usize::try_from(count).unwrap());
}

#[test]
fn an_unanswered_datagram_flow_is_kept_for_30_seconds() {
    for mode in MODES {
        let mut lab = lab(mode, 4096);
        let silent = Connection::query(&mut lab, client(1), DNS).unwrap();
        assert_eq!(Connection::query(&mut lab, client(1), DNS), Ok(silent));
        let answered = Connection::query(&mut lab, client(2), DNS).unwrap();
        answered.answer(&mut lab);
        let phases = |lab: &Lab| flows(lab).iter().map(|flow| flow.phase).collect::<Vec<_>>();
        assert!(phases(&lab).contains(&Phase::Opening), "two packets of the client are not an answer");
        lab.wait(Duration::from_secs(30));
        for _ in 0..4 {
            lab.pipeline.flows_mut().age(lab.now, usize::MAX);
        }
        assert_eq!(phases(&lab), [Phase::Established]);
        lab.wait(Duration::from_secs(269));
        answered.answer(&mut lab);
    }
}

#[test]
fn unanswered_datagrams_block_no_connection() {
    // A sixteenth of 120,000 flows a second for 12 s into a table for a million.
    for mode in MODES {
        let mut lab = lab(mode, 1 << 16);
        let before: Vec<Connection> =
            (0..200).map(|n| Connection::open(&mut lab, client(9_000_000 + n), WEB).unwrap()).collect();
        let (mut refused, mut opened) = (0, 0);
        for ms in 0..24_000u32 {
            wait(&mut lab, Duration::from_millis(1));
            if ms < 12_000 {
                for n in 0..8 {
                    // glibc queries both families from one port.
                    let _ = Connection::query(&mut lab, client(8 * ms + n), DNS);
                    let _ = Connection::query(&mut lab, client(8 * ms + n), DNS);
                }
            }
            if ms % 10 == 0 {
                opened += 1;
                match Connection::open(&mut lab, client(5_000_000 + ms), WEB) {
                    Ok(connection) => connection.close(&mut lab),
                    Err(_) => refused += 1,
                }
            }
        }
        assert!(refused * 100 <= opened, "{mode}: {refused} of {opened} refused");
        before.iter().for_each(|connection| connection.continues(&mut lab));
    }
}

#[test]
fn spoofed_syns_block_no_connection() {
    for mode in MODES {
        let mut lab = lab(mode, 1 << 14);
        let before: Vec<Connection> =
            (0..200).map(|n| Connection::open(&mut lab, client(9_000_000 + n), WEB).unwrap()).collect();
        let (mut lost, mut opened) = (0, 0);
        for ms in 0..10_000u32 {
            wait(&mut lab, Duration::from_millis(1));
            // The handshake of a real client takes 1 ms, while the flood continues.
            let real = Connection::send_syn(&mut lab, client(5_000_000 + ms), WEB);
            for n in 0..20 {
                let _ = Connection::send_syn(&mut lab, client(20 * ms + n), WEB);
            }
            opened += 1;
            match real {
                Ok(real) if real.is_known(&mut lab) => {
                    real.answer_tcp(&mut lab, SYN | ACK);
                    real.query_tcp(&mut lab, ACK);
                    real.close(&mut lab);
                }
                _ => lost += 1,
            }
        }
        assert!(lost * 100 <= opened, "{mode}: {lost} of {opened} lost");
        before.iter().for_each(|connection| connection.continues(&mut lab));
    }
}

#[test]
fn a_segment_that_opens_no_connection_creates_only_a_short_lived_entry() {
    for flags in [SYN | ACK, ACK] {
        let web = service(ForwardingMode::DsrL2, Protocol::Tcp, WEB, &["10.0.0.1:80"]);
        let mut lab = Lab::new(vec![web]).with_entries(4096);
        for n in 0..1_000 {
            for _ in 0..3 {
                lab.send(Builder::tcp(client(n), WEB).flags(flags)).sent(TransmitReason::Forward);
            }
        }
        assert!(flows(&lab).iter().all(|flow| flow.phase == Phase::Opening));
        lab.wait(Duration::from_secs(60));
        for _ in 0..4 {
            lab.pipeline.flows_mut().age(lab.now, usize::MAX);
        }
        assert_eq!(lab.pipeline.flows().live(), 0);
    }
}

#[test]
fn spoofed_segments_evict_no_dsr_flow() {
    let web = service(ForwardingMode::DsrL2, Protocol::Tcp, WEB, &["10.0.0.1:80"]);
    let mut lab = Lab::new(vec![web]).with_entries(4096);
    for n in 0..2_000 {
        for flags in [SYN, ACK] {
            lab.send(Builder::tcp(client(n), WEB).flags(flags));
        }
    }
    for n in 10_000..40_000 {
        for _ in 0..2 {
            lab.send(Builder::tcp(client(n), WEB).flags(SYN | ACK)).sent(TransmitReason::Forward);
        }
    }
    let kept = flows(&lab).iter().filter(|flow| flow.phase == Phase::Established).count();
    assert_eq!(kept, 2_000);
}

#[test]
fn opening_flows_expire_sooner_as_the_table_fills() {
    for (flows_made, seconds) in [(1_000, 30), (3_200, 8), (3_800, 3)] {
        let mut lab = lab(ForwardingMode::Nat, 4096);
        for n in 0..flows_made {
            Connection::query(&mut lab, client(n), DNS).unwrap();
        }
        let kept = lab.pipeline.flows().live();
        assert_eq!(kept, flows_made as usize);
        lab.wait(Duration::from_secs(seconds));
        for _ in 0..4 {
            lab.pipeline.flows_mut().age(lab.now, usize::MAX);
        }
        assert_eq!(lab.pipeline.flows().live(), 0, "{flows_made} flows");
    }
}

/// The established flows of `dns` after this many attempts, and the reasons of the refused attempts.
fn fill(lab: &mut Lab, attempts: u32) -> (Vec<Connection>, Vec<Refusal>) {
    let (mut connections, mut refused) = (Vec::new(), Vec::new());
    for n in 0..attempts {
        match Connection::query(lab, client(n), DNS) {
            Ok(connection) => {
                connection.answer(lab);
                connections.push(connection);
            }
            Err(why) => refused.push(why),
        }
    }
    (connections, refused)
}

#[test]
fn a_service_is_limited_to_its_share_of_a_full_table() {
    for mode in MODES {
        let mut lab = lab(mode, 4096);
        let (connections, refused) = fill(&mut lab, 10_000);
        let share = refused.iter().filter(|why| **why == Refusal::ServiceFlowShare).count();
        assert!(share > 5_800, "{share} of 10,000, {} made", connections.len());
        assert!(connections.len() >= 4096);
        let others =
            (0..400).filter(|n| Connection::open(&mut lab, client(1_000_000 + n), WEB).is_ok()).count();
        // All flows are in use, so none is evicted. Beyond its limit, a table has no position for some.
        assert!(others >= 380, "{others} of 400");
        connections.iter().for_each(|connection| connection.answer(&mut lab));
    }
}

#[test]
fn the_share_of_a_service_can_be_set() {
    let mut lab = lab(ForwardingMode::Nat, 4096);
    lab.pipeline.flows_mut().set_service_share(100);
    let (connections, refused) = fill(&mut lab, 10_000);
    assert!(refused.iter().all(|why| *why == Refusal::FlowTableFull));
    assert!(connections.len() > 5_000, "{}", connections.len());
}

#[test]
fn the_longest_idle_flow_is_evicted_before_a_new_one_is_refused() {
    for mode in MODES {
        let mut lab = lab(mode, 1024);
        lab.pipeline.flows_mut().set_service_share(100);
        let (connections, _) = fill(&mut lab, 5_000);
        // Half of the flows are in use, and the others are idle.
        let (busy, idle) = connections.split_at(connections.len() / 2);
        for _ in 0..12 {
            lab.wait(Duration::from_secs(1));
            busy.iter().for_each(|connection| connection.answer(&mut lab));
        }
        let mut refused = 0;
        for n in 0..200 {
            refused += u32::from(Connection::open(&mut lab, client(1_000_000 + n), WEB).is_err());
        }
        assert!(refused <= 2, "{refused} of 200");
        busy.iter().for_each(|connection| connection.answer(&mut lab));
        let gone = lab.pipeline.flows().counters().evictions(EvictionReason::LongestIdle);
        assert!(gone > 100 && gone < idle.len() as u64, "{gone}");
    }
}
