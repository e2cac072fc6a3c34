//! How connections end, and forged FINs and RSTs that must not end them.

use std::time::Duration;

use tidegate_spec::verdict::TransmitReason;
use tidegate_spec::{BackendState, ForwardingMode, Protocol};
use tidegate_wire::sctp::chunk;
use tidegate_wire::tcp::flags::{ACK, FIN, PSH, RST, SYN};

use super::connection::{Connection, client};
use super::lab::{Lab, service};
use crate::testing::builder::Builder;

const VIP: &str = "203.0.113.5:80";
const MODES: [ForwardingMode; 2] = [ForwardingMode::Nat, ForwardingMode::FullNat];

fn lab(mode: ForwardingMode) -> Lab {
    Lab::new(vec![service(mode, Protocol::Tcp, VIP, &["10.0.0.1:80", "10.0.0.2:80"])])
}

/// Advances the clock and ages all flows.
fn idle(lab: &mut Lab, seconds: u64) {
    lab.wait(Duration::from_secs(seconds));
    lab.pipeline.flows_mut().age(lab.now, usize::MAX);
}

#[test]
fn a_forged_reset_or_fin_does_not_end_an_idle_connection() {
    for mode in MODES {
        for forged in [RST, RST | ACK, FIN, FIN | ACK] {
            for from_client in [true, false] {
                let mut lab = lab(mode);
                let connection = Connection::open(&mut lab, client(1), VIP).unwrap();
                if from_client {
                    connection.query_tcp(&mut lab, forged);
                } else {
                    connection.answer_tcp(&mut lab, forged);
                }
                idle(&mut lab, 600);
                connection.continues(&mut lab);
                idle(&mut lab, 899);
                connection.continues(&mut lab);
                idle(&mut lab, 900);
                assert!(connection.is_forgotten(&mut lab));
            }
        }
    }
}

#[test]
fn a_connection_that_both_sides_end_expires_soon() {
    let endings: [(&[(bool, u8)], u64); 4] = [
        (&[(true, FIN | ACK), (false, FIN | ACK), (true, ACK)], 120),
        (&[(false, FIN | ACK), (true, FIN | ACK), (false, ACK)], 120),
        (&[(true, FIN | ACK), (false, RST)], 10),
        (&[(true, RST), (false, RST | ACK)], 10),
    ];
    for mode in MODES {
        for (packets, seconds) in endings {
            let mut lab = lab(mode);
            let connection = Connection::open(&mut lab, client(1), VIP).unwrap();
            for &(from_client, flags) in packets {
                if from_client {
                    connection.query_tcp(&mut lab, flags);
                } else {
                    connection.answer_tcp(&mut lab, flags);
                }
            }
            idle(&mut lab, seconds - 1);
            assert_eq!(lab.pipeline.flows().live(), 1);
            idle(&mut lab, 1);
            assert_eq!(lab.pipeline.flows().live(), 0, "{packets:?}");
        }
    }
}

#[test]
fn a_refused_connection_expires_soon() {
    for mode in MODES {
        let mut lab = lab(mode);
        let connection = Connection::send_syn(&mut lab, client(1), VIP).unwrap();
        connection.answer_tcp(&mut lab, RST | ACK);
        idle(&mut lab, 10);
        assert_eq!(lab.pipeline.flows().live(), 0);
    }
}

#[test]
fn a_forged_reset_and_syn_do_not_move_a_connection() {
    for mode in MODES {
        for forged in [&[RST, SYN][..], &[FIN | ACK, SYN], &[SYN], &[RST, SYN, RST, SYN]] {
            let mut lab = lab(mode);
            let connection = Connection::open(&mut lab, client(1), VIP).unwrap();
            for &flags in forged {
                connection.query_tcp(&mut lab, flags);
            }
            idle(&mut lab, 600);
            connection.continues(&mut lab);
        }
    }
}

#[test]
fn a_client_can_reconnect_from_the_same_port_after_a_reset() {
    for mode in MODES {
        for end in [RST, FIN | ACK] {
            let mut lab = lab(mode);
            let connection = Connection::open(&mut lab, client(1), VIP).unwrap();
            connection.query_tcp(&mut lab, end);
            let again = Connection::open(&mut lab, client(1), VIP).unwrap();
            again.continues(&mut lab);
            idle(&mut lab, 899);
            again.continues(&mut lab);
        }
    }
}

#[test]
fn a_connection_that_both_sides_ended_can_reopen_with_another_backend() {
    for mode in MODES {
        let mut lab = lab(mode);
        let connection = Connection::open(&mut lab, client(1), VIP).unwrap();
        connection.close(&mut lab);
        lab.change(|spec| {
            for backend in &mut spec.services[0].backends {
                if backend.address == connection.backend.ip() {
                    backend.state = BackendState::Draining;
                }
            }
        });
        let again = Connection::open(&mut lab, client(1), VIP).unwrap();
        assert_ne!(again.backend, connection.backend);
    }
}

#[test]
fn data_after_a_forged_fin_restores_the_connection() {
    let mut lab = lab(ForwardingMode::Nat);
    let connection = Connection::open(&mut lab, client(1), VIP).unwrap();
    connection.query_tcp(&mut lab, FIN | ACK);
    connection.query_tcp(&mut lab, PSH | ACK);
    let mut phases = Vec::new();
    lab.pipeline.flows().scan(0, u64::MAX, lab.now, |flow| phases.push(flow.phase));
    assert_eq!(phases, [tidegate_conntrack::Phase::Established]);
}

#[test]
fn an_init_leaves_a_backend_that_is_down_and_an_association_stays() {
    let (client, vip) = ("198.51.100.7:40000", "203.0.113.5:3868");
    let init = Builder::sctp_init(client, vip, 7);
    let data = Builder::sctp(client, vip).chunk(chunk::DATA, 3, &[0; 16]);
    for mode in ForwardingMode::ALL {
        let backends = ["10.0.0.1:3868", "10.0.0.2:3868"];
        let mut lab = Lab::new(vec![service(mode, Protocol::Sctp, vip, &backends)]);
        let send = |lab: &mut Lab, packet: &Builder| {
            let result = lab.send(packet.clone());
            result.sent(TransmitReason::Forward);
            lab.backend_of(&result)
        };
        let first = send(&mut lab, &init);
        assert_eq!(send(&mut lab, &data), first);
        lab.change(|spec| {
            for backend in &mut spec.services[0].backends {
                if backend.address == first {
                    backend.state = BackendState::Down;
                }
            }
        });
        assert_eq!(send(&mut lab, &data), first, "{mode}: the association continues");
        let other = send(&mut lab, &init);
        assert_ne!(other, first, "{mode}: it has not answered the INIT");
        assert_eq!(send(&mut lab, &data), other, "{mode}");
    }
}
