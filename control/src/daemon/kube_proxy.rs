//! Detects whether the node of the gateway runs kube-proxy.
//!
//! kube-proxy answers the health-check node ports of all Services on its node. If the gateway bound one of them first,
//! kube-proxy could not bind it and would log an error forever, although both give the same answer. So the gateway
//! leaves these ports to kube-proxy. It detects kube-proxy by its own health port on loopback, `--healthz-bind-address`
//! (10256 by default), and checks every few seconds, because kube-proxy may start later than the gateway, or stop.
//!
//! A gateway outside of a cluster (no `node.name`) does not check.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use tidegate_model::config::GatewayConfig;
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};

use super::task_watchdog::Vital;

/// The port of kube-proxy's `/healthz`.
const PORT: u16 = 10256;
const CHECK_INTERVAL: Duration = Duration::from_secs(2);
const ANSWER_MAX: Duration = Duration::from_millis(200);

/// Reports whether there is a kube-proxy, and then each change, until the receiver is dropped. The task that checks is
/// added to `vital`.
pub(super) fn follow(config: &GatewayConfig, vital: &mut Vital) -> watch::Receiver<bool> {
    let (sender, receiver) = watch::channel(false);
    // A gateway that listens on this port itself would detect itself.
    let is_own = config.admin.healthz.is_some_and(|address| address.port() == PORT);
    if config.node.name.is_some() && !is_own {
        let detection = tokio::spawn(async move {
            while !sender.is_closed() {
                let is_there = is_there().await;
                sender.send_if_modified(|last| std::mem::replace(last, is_there) != is_there);
                sleep(CHECK_INTERVAL).await;
            }
        });
        vital.task("the task that detects kube-proxy", detection.abort_handle());
    }
    receiver
}

async fn is_there() -> bool {
    for ip in [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)] {
        let connection = timeout(ANSWER_MAX, TcpStream::connect(SocketAddr::new(ip, PORT)));
        if matches!(connection.await, Ok(Ok(_))) {
            return true;
        }
    }
    false
}
