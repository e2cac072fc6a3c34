//! keepalived of the lab, on the tap of a gateway, with the configuration of docs/layer2.md.
//!
//! Its files are in the directory of the gateway, which has `vrrp.fifo` and `tidegate.sock` there.
//!
//! Invariant: the process ends when the value is dropped.

use super::process::LabProcess;
use super::{Namespace, wait_for};
use anyhow::{Context, Result};
use std::fs;
use std::path::Path;
use std::time::Duration;

/// The name of the `vrrp_instance`: the default of `announce.l2.vrrp.groups`.
pub const GROUP: &str = "tidegate";
/// The maximum time until an earlier keepalived, which was killed, is gone.
const END_BOUND: Duration = Duration::from_secs(60);

/// The settings that differ between the keepalived processes of the tests.
#[derive(Clone, Copy, Debug)]
pub struct KeepalivedPlan<'a> {
    /// `priority`.
    pub priority: u32,
    /// The line about preempting a gateway with a lower priority.
    pub preempt: &'a str,
    /// `advert_int`, in seconds.
    pub advert_int: &'a str,
    /// The maximum duration of a check, in seconds.
    pub check_timeout: u32,
    /// `virtual_ipaddress`.
    pub address: &'a str,
}

impl KeepalivedPlan<'_> {
    fn conf(&self, directory: &Path, tidegate: &Path) -> String {
        let Self { priority, preempt, advert_int, check_timeout, address } = self;
        format!(
            r#"global_defs {{
    router_id edge-{priority}
    script_user root
    vrrp_notify_fifo {fifo}
    dynamic_interfaces
}}
vrrp_script tidegate {{
    script "{program} vrrp-check --socket {socket}"
    interval 1
    timeout {check_timeout}
    fall 1
    rise 1
    init_fail
}}
vrrp_instance {GROUP} {{
    state BACKUP
    {preempt}
    interface tg-uplink
    virtual_router_id 51
    version 3
    priority {priority}
    advert_int {advert_int}
    virtual_ipaddress {{
        {address}
    }}
    track_script {{
        tidegate
    }}
}}
"#,
            fifo = directory.join("vrrp.fifo").display(),
            program = tidegate.display(),
            socket = directory.join("tidegate.sock").display(),
        )
    }
}

/// A running keepalived.
#[derive(Debug)]
pub struct Keepalived {
    process: LabProcess,
}

impl Keepalived {
    /// Starts keepalived in `namespace`, with its files in `directory`, which is that of the gateway.
    ///
    /// # Errors
    /// Without the Debian package keepalived, or if an earlier one still runs.
    pub fn start(
        namespace: &Namespace,
        directory: &Path,
        tidegate: &Path,
        plan: &KeepalivedPlan<'_>,
    ) -> Result<Self> {
        fs::write(directory.join("keepalived.conf"), plan.conf(directory, tidegate))?;
        let path = |name: &str| directory.join(name).display().to_string();
        let (config, pid, vrrp_pid) = (path("keepalived.conf"), path("keepalived.pid"), path("vrrp.pid"));
        // keepalived does not start while a process of an earlier one runs. Its child exits slightly later.
        if let Ok(text) = fs::read_to_string(&vrrp_pid) {
            let process = format!("/proc/{}", text.trim());
            wait_for("the end of the earlier keepalived", END_BOUND, || {
                (!Path::new(&process).exists()).then_some(())
            })?;
        }
        let files = ["-f", &config, "-p", &pid, "-r", &vrrp_pid];
        let options = ["--vrrp", "--dont-fork", "--log-console", "--log-detail"];
        let args = [&files[..], &options].concat();
        let process = LabProcess::start(namespace, directory, "keepalived", "keepalived", &args)
            .context("cannot start keepalived (Debian package keepalived)")?;
        Ok(Self { process })
    }

    /// What is missing to start keepalived, with the package to install.
    #[must_use]
    pub fn missing() -> Option<String> {
        super::process::missing("keepalived", "keepalived")
    }

    /// The last `lines` lines of its output.
    #[must_use]
    pub fn log_tail(&self, lines: usize) -> String {
        self.process.log_tail(lines)
    }
}
