//! DPDK's EAL: typed configuration, a single initialization, and clean-up when the last handle is dropped.
//!
//! Every pool, port and ring owns an [`Eal`] handle, so they are removed before the clean-up. The options with which
//! the EAL is started keep it from creating files or sockets (`--in-memory`, or `--no-shconf` without hugepages):
//! nothing remains, however the process ends.
//!
//! Invariant: the calling thread keeps its CPU affinity. `rte_eal_init` would pin it, and with it all threads that it
//! starts later.

use std::ffi::{CString, c_char};
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use dpdk_sys as sys;

use crate::affinity;
use crate::error::{EalError, Errno};

/// A handle to the initialized EAL, which is cleaned up when the last handle is dropped.
///
/// ```no_run
/// use dpdk::{Eal, EalConfig, Memory};
///
/// let eal = Eal::init(&EalConfig { memory: Memory::Hugepages { mib: 1024 }, ..EalConfig::default() })?;
/// # Ok::<(), dpdk::EalError>(())
/// ```
#[derive(Clone)]
pub struct Eal(#[expect(dead_code, reason = "owned for its drop")] Arc<Initialised>);

/// How to start the EAL.
#[derive(Clone, Debug)]
pub struct EalConfig {
    /// The source of packet memory.
    pub memory: Memory,
    /// The CPUs of the main lcore, which does the EAL's housekeeping. If empty, it uses all CPUs of the process.
    /// Workers are not listed here: they are threads that register themselves ([`crate::Lcore`]).
    pub main_cpus: Vec<usize>,
    /// The PCI devices to probe.
    pub pci: Pci,
    /// Virtual devices to create at the start, in the syntax of `--vdev`. [`crate::Port::attach`] can also create them
    /// later.
    pub vdevs: Vec<String>,
    /// The minimum severity of messages that DPDK logs to standard error and syslog.
    pub log_level: LogLevel,
    /// `--file-prefix`. Only relevant if several DPDK processes share a run directory.
    pub file_prefix: Option<String>,
}

/// The source of packet memory, and its size in MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// Reserved hugepages, mapped without a hugetlbfs mount.
    Hugepages {
        /// MiB allocated at the start. More is allocated on demand while the kernel has any.
        mib: u32,
    },
    /// Plain pages (`--no-huge`): work everywhere, except for NICs that do DMA by physical address.
    NoHuge {
        /// MiB in total. No more is allocated later.
        mib: u32,
    },
}

/// The PCI devices to probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pci {
    /// None: the PCI bus is not scanned.
    None,
    /// Only these addresses (`0000:03:00.0`), optionally with driver arguments after a comma.
    Allow(Vec<String>),
}

/// DPDK's log levels, `RTE_LOG_*` of rte_log.h.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are self-explanatory")]
pub enum LogLevel {
    Critical = 3,
    Error = 4,
    Warning = 5,
    Notice = 6,
    Info = 7,
    Debug = 8,
}

impl Default for EalConfig {
    /// 512 MiB of plain pages, no PCI, no virtual device, warnings logged.
    fn default() -> Self {
        Self {
            memory: Memory::NoHuge { mib: 512 },
            main_cpus: Vec::new(),
            pci: Pci::None,
            vdevs: Vec::new(),
            log_level: LogLevel::Warning,
            file_prefix: None,
        }
    }
}

impl Eal {
    /// Starts the EAL. Can be called once per process.
    ///
    /// # Errors
    /// If it was started before, or if `rte_eal_init` fails (too few hugepages, an unknown vdev).
    pub fn init(config: &EalConfig) -> Result<Self, EalError> {
        let arguments = config.arguments();
        let argv = arguments
            .iter()
            .map(|argument| CString::new(argument.as_str()).map_err(|_| EalError::Argument(argument.clone())))
            .collect::<Result<Vec<_>, _>>()?;
        if STARTED.swap(true, Ordering::AcqRel) {
            return Err(EalError::AlreadyInitialised);
        }
        // The strings are leaked: getopt permutes the array, and the EAL keeps pointers to them.
        let mut argv: Vec<*mut c_char> = argv.into_iter().map(CString::into_raw).collect();
        let count = i32::try_from(argv.len()).expect("a few dozen arguments");
        argv.push(std::ptr::null_mut());
        let argv = argv.leak();

        let affinity = affinity::Affinity::of_this_thread();
        // SAFETY: argv is a NULL-terminated array of `count` mutable C strings that live for ever; STARTED makes
        // this the only call in the process.
        let parsed = unsafe { sys::rte_eal_init(count, argv.as_mut_ptr()) };
        let source = Errno::last();
        affinity.restore();
        if parsed < 0 {
            return Err(EalError::Init { arguments: arguments[1..].join(" "), hint: config.hint(), source });
        }
        let eal = Self(Arc::new(Initialised));
        remove_empty_run_directory();
        Ok(eal)
    }

    /// The version of the linked DPDK, such as `DPDK 22.11.4`.
    #[must_use]
    pub fn version() -> String {
        // SAFETY: returns a NUL-terminated string that lives as long as the process.
        unsafe { std::ffi::CStr::from_ptr(sys::rte_version()) }.to_string_lossy().into_owned()
    }
}

impl fmt::Debug for Eal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Eal")
    }
}

/// Set at the first attempt and never cleared: rte_eal_init can't be repeated, not even after a clean-up.
static STARTED: AtomicBool = AtomicBool::new(false);

/// Proof that rte_eal_init has succeeded and rte_eal_cleanup has not been called.
struct Initialised;

impl Drop for Initialised {
    fn drop(&mut self) {
        // SAFETY: initialised, and no other handle exists: no pool, port, ring or registered lcore is left, because
        // each of them owns a handle. A failure can't be handled.
        unsafe { sys::rte_eal_cleanup() };
        remove_empty_run_directory();
    }
}

impl EalConfig {
    /// The command line for `rte_eal_init`, including the program name.
    fn arguments(&self) -> Vec<String> {
        let cpus = if self.main_cpus.is_empty() { affinity::usable_cpus() } else { self.main_cpus.clone() };
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        let mut arguments: Vec<String> = vec![
            "dpdk".to_owned(),
            // One lcore, number 0, which may run on any of these CPUs.
            format!("--lcores=0@({})", cpus.join(",")),
            "--no-telemetry".to_owned(),
            format!("--log-level={}", self.log_level as u32),
        ];
        let mib = match self.memory {
            Memory::Hugepages { mib } => {
                arguments.push("--in-memory".to_owned());
                mib
            }
            // `--no-huge` implies the legacy memory mode, which excludes `--in-memory`. `--no-shconf` has the other
            // effects of `--in-memory`.
            Memory::NoHuge { mib } => {
                arguments.extend(["--no-huge".to_owned(), "--no-shconf".to_owned()]);
                mib
            }
        };
        arguments.extend(["-m".to_owned(), mib.to_string()]);
        match &self.pci {
            // Without PCI devices, virtual addresses suffice, which don't require root.
            Pci::None => arguments.extend(["--no-pci".to_owned(), "--iova-mode=va".to_owned()]),
            Pci::Allow(list) => {
                for address in list {
                    arguments.extend(["-a".to_owned(), address.clone()]);
                }
                if list.is_empty() {
                    arguments.push("--no-pci".to_owned());
                }
            }
        }
        for vdev in &self.vdevs {
            arguments.push(format!("--vdev={vdev}"));
        }
        if let Some(prefix) = &self.file_prefix {
            arguments.push(format!("--file-prefix={prefix}"));
        }
        arguments
    }

    fn hint(&self) -> &'static str {
        match self.memory {
            Memory::Hugepages { .. } => {
                "; are there enough free hugepages (HugePages_Free in /proc/meminfo)? Reserve some (sysctl vm.nr_hugepages), or use plain pages (dataplane.memory.hugepages: false)"
            }
            Memory::NoHuge { .. } => "",
        }
    }
}

/// The EAL creates its run directory (`/var/run/dpdk/PREFIX`) even in memory-only mode, and leaves it empty.
fn remove_empty_run_directory() {
    // SAFETY: returns a NUL-terminated static buffer that is written once in rte_eal_init and only read afterwards.
    let path = unsafe { std::ffi::CStr::from_ptr(sys::rte_eal_get_runtime_dir()) };
    let Ok(path) = path.to_str() else { return };
    let path = Path::new(path);
    // `remove_dir` fails if the directory is not empty, so the directories of other DPDK processes stay.
    if !path.as_os_str().is_empty()
        && std::fs::remove_dir(path).is_ok()
        && let Some(parent) = path.parent()
    {
        let _ = std::fs::remove_dir(parent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reflect_the_configuration() {
        let config = EalConfig {
            memory: Memory::Hugepages { mib: 64 },
            main_cpus: vec![0],
            pci: Pci::Allow(vec!["0000:03:00.0".to_owned()]),
            vdevs: vec!["net_null0,copy=1".to_owned()],
            log_level: LogLevel::Error,
            file_prefix: Some("one".to_owned()),
        };
        assert_eq!(
            config.arguments().join(" "),
            "dpdk --lcores=0@(0) --no-telemetry --log-level=4 --in-memory -m 64 -a 0000:03:00.0 \
             --vdev=net_null0,copy=1 --file-prefix=one"
        );
        let plain = EalConfig { main_cpus: vec![0, 1], ..EalConfig::default() }.arguments().join(" ");
        assert!(
            plain.contains("--lcores=0@(0,1)") && plain.contains("--no-huge --no-shconf -m 512 --no-pci"),
            "{plain}"
        );
    }

    #[test]
    fn second_initialisation_is_refused() {
        let _eal = crate::testing::eal();
        let error = Eal::init(&EalConfig::default()).unwrap_err();
        assert!(matches!(error, EalError::AlreadyInitialised));
    }

    #[test]
    fn initialisation_leaves_the_affinity_of_threads_alone() {
        let before = affinity::usable_cpus();
        let _eal = crate::testing::eal();
        assert_eq!(affinity::usable_cpus(), before);
    }
}
