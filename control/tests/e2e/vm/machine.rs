//! A virtual machine under QEMU's software emulation, with one emulated PCI NIC on the switch of a lab.
//!
//! `deploy/vm` builds its kernel and its initramfs. The machine has the host's `/usr` and the directory of the lab,
//! over 9p. Commands go through a serial port to its first process; `deploy/vm/init` is the other end. QEMU's monitor
//! changes the link of the NIC.
//!
//! Invariant: the machine ends when its [`Machine`] is dropped; its tap disappears with the namespace of the switch.

use anyhow::{Context as _, Result, bail, ensure};
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tidegate_netlab::process::LabProcess;
use tidegate_netlab::{Lab, wait_for};

/// The maximum time until the machine has booted, under emulation and on a busy host.
const BOOT_BOUND: Duration = Duration::from_secs(180);
/// The maximum time of one command.
const COMMAND_BOUND: Duration = Duration::from_secs(120);
/// Processors of the machine: one for the control plane, and one for each of two workers.
const CPUS: u8 = 3;
/// Memory of the machine, and the part of it in hugepages of 2 MiB.
const MEMORY_MIB: u32 = 1536;
const HUGEPAGES: u32 = 320;
/// The environment variable with the directory of `vmlinuz` and `initramfs`.
const IMAGE: &str = "TIDEGATE_VM_IMAGE";

/// An emulated NIC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Nic {
    /// Its name in the output.
    pub(super) name: &'static str,
    /// QEMU's device and its options.
    pub(super) device: &'static str,
    /// Pairs of queues, and workers.
    pub(super) queues: u8,
    /// DPDK's name of its driver.
    pub(super) driver: &'static str,
    /// How it distributes packets, as in `status`.
    pub(super) rss: &'static str,
}

impl Nic {
    /// Its PCI address in the machine.
    pub(super) const ADDRESS: &'static str = "0000:00:10.0";
    /// QEMU's name of the NIC and of its other end.
    const ID: &'static str = "nic";

    fn arguments(&self) -> [String; 4] {
        let Self { device, queues, .. } = self;
        let many = if *queues > 1 { format!(",queues={queues}") } else { String::new() };
        let id = Self::ID;
        [
            "-netdev".to_owned(),
            format!("tap,id={id},ifname={TAP},script=no,downscript=no{many}"),
            "-device".to_owned(),
            format!("{device},netdev={id},mac=52:54:00:00:00:01,addr=10"),
        ]
    }
}

/// The tap of the NIC in the namespace of the switch.
const TAP: &str = "vm0";

/// A running machine.
pub(super) struct Machine {
    process: LabProcess,
    agent: BufReader<UnixStream>,
    monitor: UnixStream,
    directory: PathBuf,
}

impl Machine {
    /// Starts a machine with this NIC on the switch of the lab, and waits until it has booted.
    pub(super) fn boot(lab: &Lab, nic: Nic) -> Result<Self> {
        let image = std::env::var_os(IMAGE).map(PathBuf::from);
        let image = image.with_context(|| format!("{IMAGE} is not set: run `make vm-test`"))?;
        let many = if nic.queues > 1 { " multi_queue" } else { "" };
        // The machine replaces the gateway on the switch.
        lab.switch().ip_batch(&format!(
            "link set p-gateway down\ntuntap add dev {TAP} mode tap{many}\nlink set {TAP} master br0 up"
        ))?;
        let directory = lab.directory().to_owned();
        let arguments = arguments(&image, &directory, nic);
        let process = LabProcess::start(lab.switch(), &directory, "qemu", "qemu-system-x86_64", &arguments)?;
        let connect = |name: &str| {
            let path = directory.join(name);
            wait_for(name, BOOT_BOUND, || UnixStream::connect(&path).ok())
        };
        let agent = connect(AGENT).with_context(|| process.log())?;
        let monitor = connect(MONITOR)?;
        monitor.set_read_timeout(Some(COMMAND_BOUND))?;
        agent.set_read_timeout(Some(BOOT_BOUND))?;
        let mut machine = Self { process, agent: BufReader::new(agent), monitor, directory };
        let ready = machine.answer().and_then(|line| {
            ensure!(line == "ready", "the machine sent {line:?}");
            Ok(())
        });
        ready.with_context(|| format!("the machine does not boot:\n{}", machine.console()))?;
        machine.agent.get_ref().set_read_timeout(Some(COMMAND_BOUND))?;
        machine.until_prompt()?;
        Ok(machine)
    }

    /// Runs a shell command in the directory of the lab. Returns its exit code and its output.
    pub(super) fn run(&mut self, command: &str) -> Result<(i32, String)> {
        ensure!(!command.contains('\n'), "a command is one line");
        self.agent.get_mut().write_all(format!("{command}\n").as_bytes())?;
        let answer = self.answer().with_context(|| format!("no answer to `{command}`"))?;
        let code = answer.strip_prefix("exit ").and_then(|code| code.parse().ok());
        let code = code.with_context(|| format!("`{command}` was answered by {answer:?}"))?;
        Ok((code, fs::read_to_string(self.directory.join("out")).context("the output of a command")?))
    }

    /// Runs a command that must succeed, and returns its output.
    pub(super) fn must(&mut self, command: &str) -> Result<String> {
        let (code, output) = self.run(command)?;
        if code != 0 {
            bail!("`{command}` ended with {code}: {}", output.trim());
        }
        Ok(output)
    }

    /// Sets the link of the NIC, as if its cable was unplugged or plugged in.
    pub(super) fn set_link(&mut self, up: bool) -> Result<()> {
        let state = if up { "on" } else { "off" };
        self.monitor.write_all(format!("set_link {} {state}\n", Nic::ID).as_bytes())?;
        self.until_prompt()
    }

    /// The output of the machine's kernel and of QEMU.
    pub(super) fn console(&self) -> String {
        let console = fs::read(self.directory.join("console.log")).unwrap_or_default();
        format!("{}{}", String::from_utf8_lossy(&console), self.process.log())
    }

    /// The next line of the agent.
    fn answer(&mut self) -> Result<String> {
        let mut line = String::new();
        self.agent.read_line(&mut line)?;
        ensure!(line.ends_with('\n'), "the machine has ended");
        Ok(line.trim().to_owned())
    }

    /// Reads the monitor up to its prompt.
    fn until_prompt(&mut self) -> Result<()> {
        use std::io::Read as _;
        let (mut text, mut byte) = (Vec::new(), [0]);
        while !text.ends_with(b"(qemu) ") {
            self.monitor.read_exact(&mut byte).context("QEMU's monitor")?;
            text.push(byte[0]);
        }
        Ok(())
    }
}

/// The arguments of the machine's kernel. Its check of the timer measures time, and fails on a busy host.
fn kernel_arguments(directory: &Path) -> String {
    let lab = directory.display();
    format!("console=ttyS0 quiet panic=-1 no_timer_check intel_iommu=on hugepages={HUGEPAGES} lab={lab}")
}

const AGENT: &str = "agent.sock";
const MONITOR: &str = "monitor.sock";

fn arguments(image: &Path, directory: &Path, nic: Nic) -> Vec<String> {
    let lab = directory.display();
    let socket = |id: &str, name: &str| format!("socket,id={id},path={lab}/{name},server=on,wait=off");
    let share = |id: &str, path: &str, more: &str| {
        format!("local,id={id},path={path},security_model=none,multidevs=remap{more}")
    };
    let fixed = [
        // VFIO needs an IOMMU, and interrupts that it remaps.
        ("-machine", "q35,kernel-irqchip=split".to_owned()),
        ("-device", "intel-iommu,intremap=on".to_owned()),
        ("-accel", "tcg,thread=multi".to_owned()),
        ("-cpu", "max".to_owned()),
        ("-smp", CPUS.to_string()),
        ("-m", MEMORY_MIB.to_string()),
        ("-kernel", image.join("vmlinuz").display().to_string()),
        ("-initrd", image.join("initramfs").display().to_string()),
        ("-append", kernel_arguments(directory)),
        ("-display", "none".to_owned()),
        ("-chardev", format!("file,id=console,path={lab}/console.log")),
        ("-serial", "chardev:console".to_owned()),
        ("-chardev", socket("agent", AGENT)),
        ("-serial", "chardev:agent".to_owned()),
        ("-chardev", socket("monitor", MONITOR)),
        ("-mon", "chardev=monitor,mode=readline".to_owned()),
        ("-fsdev", share("usr", "/usr", ",readonly=on")),
        ("-device", "virtio-9p-pci,fsdev=usr,mount_tag=usr".to_owned()),
        ("-fsdev", share("lab", &lab.to_string(), "")),
        ("-device", "virtio-9p-pci,fsdev=lab,mount_tag=lab".to_owned()),
    ];
    let mut all = vec!["-nodefaults".to_owned(), "-no-reboot".to_owned()];
    all.extend(fixed.into_iter().flat_map(|(name, value)| [name.to_owned(), value]));
    all.extend(nic.arguments());
    all
}
