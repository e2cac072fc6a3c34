//! One network namespace: commands and closures run inside it, and its links and sysctls.
//!
//! It is created with `ip netns`, so `ip netns exec` works by hand as well. A socket stays in the namespace in which it
//! was created, so [`Namespace::enter`] needs a thread only to create it.
//!
//! Invariant: the namespace of the calling thread never changes.

use super::addresses::Family;
use super::exclusive::changing;
use anyhow::{Context, Result, bail};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

/// The directory in which `ip netns` keeps its names.
const NETNS_DIR: &str = "/run/netns";

/// A named network namespace of a lab. It is removed with the lab, not when this value is dropped.
#[derive(Clone, Debug)]
pub struct Namespace {
    name: String,
}

impl Namespace {
    /// Creates the namespace, and sets its loopback up.
    ///
    /// # Errors
    /// When `ip netns add` fails, usually because the caller is not root.
    pub fn create(name: &str) -> Result<Self> {
        changing(|| ip(&["netns", "add", name], ""))?;
        let namespace = Self { name: name.to_owned() };
        namespace.ip_batch("link set lo up")?;
        Ok(namespace)
    }

    /// The name that `ip netns list` shows.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A command that will run inside this namespace, in a separate process group, so that Ctrl-C at the terminal
    /// reaches only the process that owns the lab. Its pid is the pid of `program`, because `ip` execs it.
    #[must_use]
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        use std::os::unix::process::CommandExt as _;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.name]).arg(program);
        command.stdin(Stdio::null()).process_group(0);
        command
    }

    /// Runs `work` on a thread inside this namespace and returns its result.
    ///
    /// # Panics
    /// When `work` panics, or the namespace does not exist.
    pub fn enter<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.move_this_thread().expect("the namespace lives as long as its lab");
                work()
            });
            match inside.join() {
                Ok(value) => value,
                Err(panic) => std::panic::resume_unwind(panic),
            }
        })
    }

    /// Moves the calling thread permanently to this namespace, for threads that always run in it.
    ///
    /// # Errors
    /// When the namespace does not exist or the caller is not root.
    pub fn move_this_thread(&self) -> Result<()> {
        let path = Path::new(NETNS_DIR).join(&self.name);
        let file = File::open(&path).with_context(|| format!("cannot open namespace {}", path.display()))?;
        move_into_link_name_space(file.as_fd(), Some(LinkNameSpaceType::Network))
            .with_context(|| format!("cannot enter namespace {}", self.name))
    }

    /// Runs lines of `ip` in the namespace, as with `ip -batch`. Stops at the first line that fails.
    ///
    /// # Errors
    /// When a line fails; the message contains the output of `ip`.
    pub fn ip_batch(&self, lines: &str) -> Result<()> {
        ip(&["-n", &self.name, "-batch", "-"], lines)
            .with_context(|| format!("in namespace {}:\n{lines}", self.name))
    }

    /// Like [`Self::ip_batch`], for lines from which `ip` cannot infer the family.
    ///
    /// # Errors
    /// When a line fails; the message contains the output of `ip`.
    pub fn ip_batch_of(&self, family: Family, lines: &str) -> Result<()> {
        let version = if family == Family::V4 { "-4" } else { "-6" };
        ip(&[version, "-n", &self.name, "-batch", "-"], lines)
            .with_context(|| format!("in namespace {}:\n{lines}", self.name))
    }

    /// Sets `net.*` sysctls of this namespace: pairs of a path below `/proc/sys/net` and a value.
    ///
    /// # Errors
    /// When one does not exist or its value is refused.
    pub fn sysctls(&self, settings: &[(&str, &str)]) -> Result<()> {
        // /proc/sys/net shows the namespace of the thread that opens it.
        self.enter(|| {
            for (key, value) in settings {
                let path = Path::new("/proc/sys/net").join(key);
                fs::write(&path, value).with_context(|| format!("{} = {value}", path.display()))?;
            }
            Ok(())
        })
    }

    /// Disables the offloads of `interface` that leave checksums or segmentation to a device. Otherwise a frame on a
    /// veth would reach AF_PACKET with an incomplete checksum.
    ///
    /// # Errors
    /// When ethtool is missing or fails.
    pub fn turn_off_offloads(&self, interface: &str) -> Result<()> {
        let off = ["tx", "off", "tso", "off", "gso", "off", "gro", "off"];
        run(self.command("ethtool").args(["-K", interface]).args(off))
    }
}

/// Runs `ip` with `args` and this standard input.
pub(super) fn ip(args: &[&str], input: &str) -> Result<()> {
    let mut child = Command::new("ip")
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run `ip` (iproute2)")?;
    let mut stdin = child.stdin.take().expect("stdin is piped");
    // An `ip` that fails may exit before it has read all input. Its output is then the better error.
    let _ = stdin.write_all(input.as_bytes());
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("ip {}: {}", args.join(" "), String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(())
}

/// Runs a command to its end. The error of a failure contains its output.
pub(super) fn run(command: &mut Command) -> Result<()> {
    output_of(command).map(drop)
}

/// Runs a command to its end and returns its standard output.
///
/// # Errors
/// When it cannot be started or its exit code is not 0; the message contains its output.
pub fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    if !output.status.success() {
        let (out, err) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        bail!("{command:?}: {}: {}{}", output.status, out.trim(), err.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The names of all namespaces of this machine.
pub(super) fn all_names() -> Vec<String> {
    let Ok(entries) = fs::read_dir(NETNS_DIR) else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// The inode number of the namespace `name`, which identifies the records of its devices.
pub(super) fn inode_of(name: &str) -> Option<u64> {
    fs::metadata(Path::new(NETNS_DIR).join(name)).ok().map(|file| file.ino())
}

/// The processes inside the namespace `name`.
pub(super) fn processes_in(name: &str) -> Vec<i32> {
    let Ok(output) = Command::new("ip").args(["netns", "pids", name]).stderr(Stdio::null()).output() else {
        return Vec::new();
    };
    String::from_utf8_lossy(&output.stdout).lines().filter_map(|line| line.trim().parse().ok()).collect()
}

/// The directory of the lab `id`.
pub(super) fn lab_directory(id: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tidegate-lab-{id}"))
}
