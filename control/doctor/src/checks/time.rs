//! The clock of this machine: is it synchronized, and quick to read?

use super::subject::Subject;
use crate::finding::Finding;

/// Programs that synchronize the clock.
const DAEMONS: [&str; 5] = ["chronyd", "systemd-timesyn", "ntpd", "ntpsec", "openntpd"];
/// Clock sources that take a microsecond or more to read.
const SLOW: [&str; 3] = ["hpet", "acpi_pm", "refined-jiffies"];

pub(super) fn check(subject: &Subject<'_>) -> Vec<Finding> {
    let source = source(subject);
    std::iter::once(synchronized(subject)).chain(source).collect()
}

fn synchronized(subject: &Subject<'_>) -> Finding {
    let machine = subject.machine;
    if machine.path("run/systemd/timesync/synchronized").exists() {
        return Finding::ok("clock", "systemd-timesyncd has synchronized it");
    }
    let processes =
        machine.names("proc").into_iter().filter(|name| name.starts_with(|c: char| c.is_ascii_digit()));
    let names = processes.filter_map(|pid| machine.text(format!("proc/{pid}/comm")));
    if let Some(name) = names.into_iter().find(|name| DAEMONS.contains(&name.as_str())) {
        return Finding::ok("clock", format!("{name} runs"));
    }
    let why = "with a wrong clock, tokens and certificates seem expired, and times in logs of several gateways don't \
               match";
    Finding::warning("clock", "no program synchronizes it", why, "apt-get install chrony")
}

fn source(subject: &Subject<'_>) -> Option<Finding> {
    let source = subject.machine.text("sys/devices/system/clocksource/clocksource0/current_clocksource")?;
    let what = format!("clock source {source}");
    if !SLOW.contains(&source.as_str()) {
        return Some(Finding::ok("clocksource", what));
    }
    let why = "workers read the clock for each burst of packets, and this one takes microseconds";
    let fix = "add tsc=reliable to the kernel's command line, or use another hypervisor's clock (kvm-clock)";
    Some(Finding::warning("clocksource", what, why, fix))
}
