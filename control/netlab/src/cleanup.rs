//! Removes a lab by its name, both labs of this process and those of processes that died.
//!
//! Every namespace is called `tg<pid>-<n>-<host>` and the directory `tidegate-lab-tg<pid>-<n>`: the names show the lab
//! and the process that they belong to. Links, addresses, taps and routes disappear with their namespace. The files in
//! [`DEVICES`] that a killed gateway leaves do not, and are removed here.
//!
//! Invariant: only processes inside a lab's namespaces are ended, by pid.

use super::exclusive::changing;
use super::namespace::{all_names, inode_of, ip, lab_directory, processes_in};
use anyhow::{Context, Result};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// The directory in which a gateway keeps a file for each of its devices. The name of the file begins with the inode
/// number of the device's network namespace and a dash.
const DEVICES: &str = "/run/tidegate/devices";

/// The existing labs of this process, for [`on_signals`].
static EXISTING: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Records that the lab `id` exists.
pub(super) fn register(id: &str) {
    existing().push(id.to_owned());
}

/// Ends every process in the lab `id` and removes its namespaces and its directory.
pub(super) fn tear_down(id: &str) {
    changing(|| undo(id));
}

fn undo(id: &str) {
    existing().retain(|other| other != id);
    let prefix = format!("{id}-");
    all_names().iter().filter(|name| name.starts_with(&prefix)).for_each(|name| remove_host(name));
    let directory = lab_directory(id);
    if directory.exists()
        && let Err(error) = fs::remove_dir_all(&directory)
    {
        eprintln!("clean-up: {}: {error}", directory.display());
    }
}

/// Ends every process in a namespace of a lab and removes it.
pub(super) fn remove_host(name: &str) {
    end_processes_in(name);
    // Remove the files before the namespace, because the next namespace may get its number.
    inode_of(name).into_iter().for_each(remove_devices);
    if let Err(error) = ip(&["netns", "del", name], "") {
        eprintln!("clean-up: {error:#}");
    }
}

/// Removes the files of the devices in the network namespace with this inode number.
fn remove_devices(namespace: u64) {
    let prefix = format!("{namespace}-");
    for entry in fs::read_dir(DEVICES).into_iter().flatten().flatten() {
        if entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            // A leftover file does no harm: the next gateway removes it.
            let _ = fs::remove_file(entry.path());
        }
    }
    // This fails while other namespaces have files there.
    let _ = fs::remove_dir(DEVICES);
}

/// Removes the labs of processes that no longer exist. Called before each lab is built.
pub fn sweep() {
    let of_names = all_names().into_iter();
    let of_directories =
        fs::read_dir(std::env::temp_dir()).into_iter().flatten().flatten().filter_map(|entry| {
            Some(entry.file_name().to_str()?.strip_prefix("tidegate-lab-")?.to_owned() + "-")
        });
    let mut dead: Vec<String> =
        of_names.chain(of_directories).filter_map(|name| lab_of_dead_process(&name)).collect();
    dead.sort_unstable();
    dead.dedup();
    for id in dead {
        eprintln!("removing the lab of a dead process: {id}");
        tear_down(&id);
    }
}

/// Installs handlers for SIGINT, SIGTERM and SIGHUP that remove every lab of this process and end it with 128 + signal.
///
/// # Errors
/// When the handlers cannot be installed.
pub fn on_signals() -> Result<()> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM, SIGHUP])
        .context("cannot install the signal handler")?;
    thread::Builder::new().name("netlab-signals".to_owned()).spawn(move || {
        if let Some(signal) = signals.forever().next() {
            eprintln!("\nstopped by signal {signal}, cleaning up");
            changing(|| {
                let ids = existing().clone();
                ids.iter().for_each(|id| undo(id));
                std::process::exit(128 + signal)
            });
        }
    })?;
    Ok(())
}

fn existing() -> std::sync::MutexGuard<'static, Vec<String>> {
    EXISTING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the processes inside the namespace `name`, and waits with a limit until they are gone.
pub(super) fn end_processes_in(name: &str) {
    for _ in 0..100 {
        let pids = processes_in(name);
        if pids.is_empty() {
            return;
        }
        for pid in pids.into_iter().filter_map(Pid::from_raw) {
            // The process may already be gone.
            let _ = kill_process(pid, Signal::KILL);
        }
        thread::sleep(Duration::from_millis(10));
    }
    eprintln!("clean-up: processes in namespace {name} are still running after SIGKILL");
}

/// `tg<pid>-<n>` from the beginning of a name, if no process has that pid.
fn lab_of_dead_process(name: &str) -> Option<String> {
    let mut parts = name.splitn(3, '-');
    let (owner, number, _host) = (parts.next()?, parts.next()?, parts.next()?);
    let pid: u32 = owner.strip_prefix("tg")?.parse().ok()?;
    number.parse::<u32>().ok()?;
    (!Path::new("/proc").join(pid.to_string()).exists()).then(|| format!("{owner}-{number}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_labs_of_dead_processes_are_swept() {
        let own = format!("tg{}-1-client", std::process::id());
        assert_eq!(lab_of_dead_process(&own), None, "this process runs");
        // Larger than any pid_max (2^22).
        assert_eq!(lab_of_dead_process("tg4999999-3-s1").as_deref(), Some("tg4999999-3"));
        for foreign in ["client", "tg-1-a", "tgx1-1-a", "tg4999999-x-a", "tg4999999", "tg4999999-3"] {
            assert_eq!(lab_of_dead_process(foreign), None, "{foreign}");
        }
    }
}
