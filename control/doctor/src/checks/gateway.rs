//! What the running gateway itself reports: its state, and what its drivers accepted.

use super::subject::Subject;
use crate::finding::Finding;

const CHECK: &str = "gateway";
const STATUS: &str = "tidegate status -o wide; docs/troubleshooting.md";

pub(super) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(gateway) = subject.gateway else {
        return vec![Finding::ok(CHECK, "no gateway runs at this admin socket")];
    };
    let state = format!("{} {} runs with pid {}", gateway.name, gateway.version, gateway.pid);
    let mut findings = Vec::new();
    findings.push(match (gateway.healthy, gateway.ready) {
        (true, true) => Finding::ok(CHECK, format!("{state}, and is ready")),
        (true, false) => {
            Finding::fault(CHECK, format!("{state}, and is not ready"), "routers avoid it", STATUS)
        }
        (false, _) => {
            Finding::fault(CHECK, format!("{state}, and is not healthy"), "it may not forward", STATUS)
        }
    });
    let why = "the gateway is degraded";
    findings.extend(gateway.degraded.iter().map(|line| Finding::warning(CHECK, line, why, STATUS)));
    if !gateway.findings.is_empty() {
        let what = format!("findings about objects: {}", gateway.findings.len());
        findings.push(Finding::warning(CHECK, what, "clients of these Services may get no answer", STATUS));
    }
    for interface in &gateway.interfaces {
        let (name, port) = (&interface.name, &interface.port);
        if port.rx_missed > 0 {
            let what =
                format!("interface {name}: the NIC dropped {} packets since the start", port.rx_missed);
            let why = "the workers didn't read its queues in time";
            let fix = "more entries in dataplane.cores; the checks isolcpus, governor and smt";
            findings.push(Finding::warning("queues", what, why, fix));
        }
        let offloads: Vec<&str> =
            port.rx_offloads.iter().chain(&port.tx_offloads).map(String::as_str).collect();
        let offloads = if offloads.is_empty() { "none".to_owned() } else { offloads.join(" ") };
        let what = format!(
            "interface {name}: driver {}, queues {}, RSS {}, offloads {offloads}",
            port.driver, port.queues, port.rss
        );
        findings.push(Finding::ok("queues", what));
    }
    findings
}
