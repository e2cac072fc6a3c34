//! The directory in which flow tables survive a restart of the process.
//!
//! ```text
//! DIRECTORY/lock              locked by the process that uses the directory
//! DIRECTORY/run-N/about       format, number of workers, secret and checksum of the N-th process
//! DIRECTORY/run-N/identities  its services and backends by id
//! DIRECTORY/run-N/seats       the weights of backends of Services that follow their seats
//! DIRECTORY/run-N/WORKER-TABLE-PART    the words of an array
//! DIRECTORY/run-N/WORKER-clock         two words: the kernel's clock minus the worker's, and the kernel's when the worker
//!                                      last ran, in milliseconds
//! ```
//!
//! Each process creates its own directory and reads those of its predecessors, which it removes after restoring their
//! flows. A process that is killed at any moment, even while it restores flows, leaves all of them to the next one.
//!
//! Invariant: files of another version, machine or boot are rejected with the reason, and removed.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use dpdk::Region;
use dpdk::region::{self, Reading};
use rustix::fs::{FlockOperation, flock, statfs};
use tidegate_conntrack::{Part, STORED_FORM, StoredTable, StoredTables, TableKind};
use tidegate_host::atomic_file;
use tidegate_pipeline::forward::snat_ports::Steering;
use tidegate_snapshot::Snapshot;
use tidegate_spec::EarlierPort;
use tidegate_spec::now::Now;

use super::boot_clock::kernel_ms;
use super::identities::{self, Identities};

/// The first line of `about`. A change of the format changes the number.
const TITLE: &str = "tidegate flow tables 1";

/// The maximum number of earlier runs to read, newest first. More exist only if processes ended before they had
/// restored the flows of their predecessors.
const RUNS_MAX: usize = 4;

/// The settings that determine which worker owns a flow, and where its table entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shape {
    /// The number of workers.
    pub workers: usize,
    /// The maximum number of flows per worker.
    pub entries: usize,
    /// How packets find their worker.
    pub steering: Steering,
    /// The secret of the hash.
    pub seed: u64,
}

/// Why flow tables do not survive a restart.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The directory is not in memory.
    #[error(
        "{} is on a file system of type {found:#x}, where writes would go to a disk; accepted: a directory on tmpfs",
        .path.display()
    )]
    NotInMemory {
        /// The directory.
        path: PathBuf,
        /// `f_type` of statfs(2).
        found: u64,
    },
    /// Another process uses the directory.
    #[error("{} is in use by another process: a gateway with the same metadata.name", .path.display())]
    InUse {
        /// The directory.
        path: PathBuf,
    },
    /// Others may write to the directory.
    #[error(
        "{} belongs to user {owner} with mode {mode:o}; accepted: a directory that belongs to the gateway's user and \
         that nobody else can write to",
        .path.display()
    )]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        owner: u32,
        /// Its permissions.
        mode: u32,
    },
    /// A system call failed.
    #[error("{}: {source}", .path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// The error of the kernel.
        source: io::Error,
    },
}

/// The directory of the gateway, with the runs of this process and of earlier ones.
#[derive(Debug)]
pub struct Store {
    /// The run of this process, or why it has none. Flows of earlier processes are restored even without a run.
    own: Result<Own, StoreError>,
    /// Locked while the process lives.
    _lock: File,
    /// The tables of earlier processes, newest first.
    pub(super) earlier: Vec<Earlier>,
    /// The number of tables rejected as a whole. All tables of a rejected process count as one.
    pub(super) refused: u64,
}

/// The run of this process.
#[derive(Debug)]
struct Own {
    run: PathBuf,
    identities: Mutex<Identities>,
}

/// The tables of an earlier process.
#[derive(Debug)]
pub(super) struct Earlier {
    pub(super) path: PathBuf,
    shape: About,
    workers: Vec<EarlierWorker>,
    /// Tables that can't be read.
    refused: u64,
}

/// The arrays of one worker: the parts of each table.
#[derive(Debug)]
struct EarlierWorker {
    parts: [[Option<Reading>; 3]; 4],
    /// The kernel's clock minus the worker's, in milliseconds.
    clock: u32,
    /// When it last ran, by [`kernel_ms`], if known.
    last: Option<u32>,
}

const PARTS: [Part; 3] = [Part::Entries, Part::Streams, Part::Splices];

impl Store {
    /// Opens the directory of a gateway and creates a run for this process. If only the new run fails, the flows of
    /// earlier processes are still read ([`Self::error`]).
    ///
    /// # Errors
    /// [`StoreError`]. Unusable tables of earlier processes are not an error: they are logged and removed.
    pub fn open(directory: &Path, shape: &Shape, now: Now) -> Result<Self, StoreError> {
        let fault = |path: &Path| {
            let path = path.to_owned();
            move |source: io::Error| StoreError::Io { path, source }
        };
        DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(fault(directory))?;
        check(directory)?;
        let path = directory.join("lock");
        let lock = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(&path);
        let lock = lock.map_err(fault(&path))?;
        flock(&lock, FlockOperation::NonBlockingLockExclusive).map_err(|error| match error {
            rustix::io::Errno::WOULDBLOCK => StoreError::InUse { path: directory.to_owned() },
            error => StoreError::Io { path, source: error.into() },
        })?;
        let mut runs = runs(directory).map_err(fault(directory))?;
        let number = runs.first().map_or(1, |(number, _)| number + 1);
        let (mut earlier, mut refused) = (Vec::new(), 0);
        for (at, (_, path)) in runs.drain(..).enumerate() {
            let opened = if at < RUNS_MAX {
                Earlier::open(&path)
            } else {
                Err(format!("only the flows of the last {RUNS_MAX} processes are restored"))
            };
            match opened {
                Ok(Some(one)) => {
                    refused += one.refused;
                    earlier.push(one);
                }
                Ok(None) => remove(&path),
                Err(why) => {
                    tracing::warn!(path = %path.display(), reason = why, "cannot restore the flows of an earlier process");
                    refused += 1;
                    remove(&path);
                }
            }
        }
        let run = directory.join(format!("run-{number}"));
        let own = Own::create(&run, &About::of(shape, now)).map_err(|source| {
            remove(&run);
            StoreError::Io { path: run, source }
        });
        Ok(Self { own, _lock: lock, earlier, refused })
    }

    /// Why this process has no run of its own, so that its flows don't survive a restart.
    pub fn error(&self) -> Option<&StoreError> {
        self.own.as_ref().err()
    }

    /// The service ports of earlier processes with their backends; the newest process wins.
    pub(super) fn earlier_ports(&self) -> Vec<EarlierPort> {
        let mut ports = BTreeMap::new();
        for earlier in self.earlier.iter().rev() {
            match identities::ports(&earlier.path, earlier.ended()) {
                Ok(all) => ports.extend(all.into_iter().map(|port| (port.key, port))),
                Err(error) => tracing::warn!(
                    path = %earlier.path.display(), %error,
                    "cannot read the backends saved by an earlier process: flows to backends removed since then are lost"
                ),
            }
        }
        if let Ok(own) = &self.own {
            own.identities.lock().unwrap_or_else(PoisonError::into_inner).continue_from(&ports);
        }
        ports.into_values().collect()
    }

    /// Records the ids of a snapshot. Call it before workers get the snapshot.
    pub(super) fn follow(&self, snapshot: &Snapshot) {
        let Ok(own) = &self.own else { return };
        let mut identities = own.identities.lock().unwrap_or_else(PoisonError::into_inner);
        let was_whole = identities.is_whole();
        match identities.follow(snapshot) {
            Err(error) if was_whole => {
                tracing::warn!(%error, "cannot record new Services, backends and weights: their flows will be lost on a restart");
            }
            Ok(()) if !was_whole => tracing::info!(
                "all Services, backends and weights are recorded again: their flows will survive a restart"
            ),
            _ => {}
        }
    }

    /// Whether the next process will know all Services and backends.
    pub(super) fn is_recorded(&self) -> bool {
        let is_whole = |own: &Own| own.identities.lock().unwrap_or_else(PoisonError::into_inner).is_whole();
        self.own.as_ref().is_ok_and(is_whole)
    }

    /// Creates a sparse file for the words of an array; `None` if the process has no run.
    pub(super) fn file(
        &self,
        worker: u8,
        table: TableKind,
        part: Part,
        words: usize,
    ) -> Option<io::Result<File>> {
        let path = self.own.as_ref().ok()?.run.join(file_name(worker, table, part));
        let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path);
        Some(file.and_then(|file| file.set_len(words as u64 * 4).map(|()| file)))
    }

    /// Two words: the kernel's clock minus the worker's, and when the worker last ran. `None` if the process has no
    /// run.
    pub(super) fn clock(&self, worker: u8) -> Option<io::Result<&'static mut [u32]>> {
        let path = self.own.as_ref().ok()?.run.join(clock_name(worker));
        let clock = || {
            let file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(path)?;
            file.set_len(4096)?;
            region::reserve(&file, 4096)?;
            Ok(Region::of_file(&file, 2)?.0)
        };
        Some(clock())
    }

    /// Whether the file system provides transparent huge pages on request (`mount -o huge=advise`).
    pub(super) fn has_huge_pages(&self) -> bool {
        let (Ok(own), Ok(mounts)) = (&self.own, fs::read_to_string("/proc/self/mounts")) else {
            return false;
        };
        let of_directory = mounts.lines().filter_map(|line| {
            let mut fields = line.split(' ').skip(1);
            let (at, options) = (fields.next()?, fields.nth(1)?);
            own.run.starts_with(at).then_some((at.len(), options))
        });
        let options = of_directory.max_by_key(|(len, _)| *len).map_or("", |(_, options)| options);
        options.split(',').any(|option| ["huge=always", "huge=within_size", "huge=advise"].contains(&option))
    }
}

impl Own {
    fn create(run: &Path, about: &About) -> io::Result<Self> {
        DirBuilder::new().mode(0o700).create(run)?;
        let identities = Mutex::new(Identities::create(run)?);
        atomic_file::replace(&run.join("about"), |out| out.write_all(about.text().as_bytes()))?;
        Ok(Self { run: run.to_owned(), identities })
    }
}

impl Earlier {
    /// Opens the tables of an earlier process; `None` if it had no flows. The error says why they are rejected.
    fn open(path: &Path) -> Result<Option<Self>, String> {
        let text = fs::read_to_string(path.join("about"));
        if identities::is_empty(path) && !has_used_tables(path) {
            return Ok(None);
        }
        let shape = About::read(&text.map_err(|error| format!("cannot read the file `about`: {error}"))?)?;
        let wanted = StoredTables::words(shape.entries);
        let mut refused = 0;
        let mut worker = |worker: u8| {
            let clock = File::open(path.join(clock_name(worker))).and_then(|file| Reading::of_file(&file, 2));
            // A worker that never ran has no flows. Older versions don't write the second word.
            let [clock, last] =
                clock.map_or([None; 2], |words| [0, 1].map(|at| Some(words[at]).filter(|&word| word != 0)));
            let clock = clock.unwrap_or(shape.clock);
            let parts = TableKind::ALL.map(|table| {
                PARTS.map(|part| {
                    let file = File::open(path.join(file_name(worker, table, part))).ok()?;
                    let metadata = file.metadata().ok()?;
                    // A table without pages was never used.
                    if metadata.blocks() == 0 {
                        return None;
                    }
                    let words = usize::try_from(metadata.len() / 4).ok()?;
                    let is_whole = part != Part::Entries || words == wanted[table as usize];
                    let why = match Reading::of_file(&file, words) {
                        Ok(read) if is_whole => return Some(read),
                        Ok(_) => format!("it has {words} words instead of {}", wanted[table as usize]),
                        Err(error) => error.to_string(),
                    };
                    tracing::warn!(
                        path = %path.display(), worker, table = table.as_str(), part = part.as_str(), reason = why,
                        "cannot restore the flows of a stored table"
                    );
                    refused += 1;
                    None
                })
            });
            EarlierWorker { parts, clock, last }
        };
        let workers = (0..shape.workers).map(|n| worker(u8::try_from(n).unwrap_or(u8::MAX))).collect();
        Ok(Some(Self { path: path.to_owned(), shape, workers, refused }))
    }

    /// Whether packets reach the same workers as in that process.
    pub(super) fn is_alike(&self, shape: &Shape) -> bool {
        self.shape.workers == shape.workers && self.shape.steering == fingerprint(&shape.steering)
    }

    /// How long ago that process ended, if known.
    fn ended(&self) -> Option<Duration> {
        let now = kernel_ms();
        let ago = self.workers.iter().filter_map(|worker| Some(now.wrapping_sub(worker.last?))).min()?;
        Some(Duration::from_millis(ago.into()))
    }

    /// The tables of one worker of that process.
    pub(super) fn tables(&self, worker: usize) -> Option<StoredTables<'_>> {
        let EarlierWorker { parts, clock, last: _ } = self.workers.get(worker)?;
        let tables = parts.each_ref().map(|[entries, streams, splices]| StoredTable {
            entries: entries.as_deref().unwrap_or_default(),
            streams: streams.as_deref().unwrap_or_default(),
            splices: splices.as_deref().unwrap_or_default(),
        });
        let then_ms = kernel_ms().wrapping_sub(*clock);
        Some(StoredTables { tables, entries_per_core: self.shape.entries, seed: self.shape.seed, then_ms })
    }

    /// The number of workers of that process.
    pub(super) fn workers(&self) -> usize {
        self.workers.len()
    }
}

/// The contents of the file `about`.
#[derive(Debug, Clone, PartialEq, Eq)]
struct About {
    form: String,
    boot: String,
    workers: usize,
    entries: usize,
    steering: u64,
    seed: u64,
    clock: u32,
}

impl About {
    fn of(shape: &Shape, now: Now) -> Self {
        Self {
            form: STORED_FORM.to_owned(),
            boot: boot(),
            workers: shape.workers,
            entries: shape.entries,
            steering: fingerprint(&shape.steering),
            seed: shape.seed,
            clock: kernel_ms().wrapping_sub(now.millis()),
        }
    }

    fn text(&self) -> String {
        let Self { form, boot, workers, entries, steering, seed, clock } = self;
        let mut text = format!(
            "{TITLE}\nform {form}\nboot {boot}\nworkers {workers}\nentries {entries}\nsteering {steering:016x}\nseed {seed:016x}\nclock {clock}\n"
        );
        let sum = crc32c::crc32c(text.as_bytes());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "checksum {sum:08x}");
        text
    }

    /// Parses the file. The error says why the tables are rejected.
    fn read(text: &str) -> Result<Self, String> {
        let mut lines = text.lines();
        let title = lines.next().unwrap_or_default();
        if title != TITLE {
            return Err(format!("the file `about` begins with {title:?}; this version reads {TITLE:?}"));
        }
        let (content, last) = text.trim_end().rsplit_once('\n').unwrap_or_default();
        let sum = format!("checksum {:08x}", crc32c::crc32c(format!("{content}\n").as_bytes()));
        if last != sum {
            return Err("the checksum in the file `about` is wrong".to_owned());
        }
        let mut field = |name: &str| {
            let line = lines.next().and_then(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.map(str::to_owned).ok_or_else(|| format!("the file `about` has no field {name}"))
        };
        let number = |name: &str, text: String, radix| {
            u64::from_str_radix(&text, radix)
                .map_err(|_| format!("the file `about` has an invalid {name}: {text:?}"))
        };
        let form = field("form")?;
        if form != STORED_FORM {
            return Err(format!("the tables have the format {form:?}; this version reads {STORED_FORM:?}"));
        }
        let (found, boot_now) = (field("boot")?, boot());
        if found != boot_now {
            return Err("the machine was rebooted".to_owned());
        }
        let workers = number("workers", field("workers")?, 10)?;
        let entries = number("entries", field("entries")?, 10)?;
        if !(1..=255).contains(&workers) || !(1..=1 << 30).contains(&entries) {
            return Err(format!(
                "the file `about` has invalid numbers: {workers} workers, {entries} entries"
            ));
        }
        Ok(Self {
            form,
            boot: found,
            // The checks above limit both values.
            workers: workers as usize,
            entries: entries as usize,
            steering: number("steering", field("steering")?, 16)?,
            seed: number("seed", field("seed")?, 16)?,
            clock: number("clock", field("clock")?, 10)?
                .try_into()
                .map_err(|_| "the file `about` has an invalid clock".to_owned())?,
        })
    }
}

/// A number that identifies how packets find their worker.
fn fingerprint(steering: &Steering) -> u64 {
    u64::from(crc32c::crc32c(format!("{steering:?}").as_bytes()))
}

/// Whether a table in the run has been used. A clock file also has a page, but it is not named like a table.
fn has_used_tables(run: &Path) -> bool {
    let is_used = |(worker, table): (u8, TableKind)| {
        let file = fs::metadata(run.join(file_name(worker, table, Part::Entries)));
        file.is_ok_and(|file| file.blocks() > 0)
    };
    (0..=u8::MAX).any(|worker| TableKind::ALL.into_iter().any(|table| is_used((worker, table))))
}

/// The identity of the current boot.
fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// The runs of earlier processes, newest first.
fn runs(directory: &Path) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut runs = Vec::new();
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).and_then(|name| name.strip_prefix("run-"));
        if let Some(number) = name.and_then(|number| number.parse().ok()) {
            runs.push((number, path));
        }
    }
    runs.sort_unstable_by(|a, b| b.cmp(a));
    Ok(runs)
}

pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_dir_all(path) {
        tracing::warn!(path = %path.display(), %error, "cannot remove the flow tables of an earlier process");
    }
}

fn file_name(worker: u8, table: TableKind, part: Part) -> String {
    format!("{worker}-{}-{}", table.as_str(), part.as_str())
}

fn clock_name(worker: u8) -> String {
    format!("{worker}-clock")
}

/// Checks that the directory is in memory and that nobody else can write to it.
fn check(directory: &Path) -> Result<(), StoreError> {
    const TMPFS_MAGIC: u64 = 0x0102_1994;
    let path = || directory.to_owned();
    let system = statfs(directory).map_err(|error| StoreError::Io { path: path(), source: error.into() })?;
    let found = u64::try_from(system.f_type).unwrap_or_default();
    if found != TMPFS_MAGIC {
        return Err(StoreError::NotInMemory { path: path(), found });
    }
    let metadata = fs::metadata(directory).map_err(|source| StoreError::Io { path: path(), source })?;
    let (owner, mode) = (metadata.uid(), metadata.mode() & 0o7777);
    if owner != rustix::process::geteuid().as_raw() || mode & 0o022 != 0 {
        return Err(StoreError::Unsafe { path: path(), owner, mode });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape() -> Shape {
        Shape { workers: 2, entries: 1024, steering: Steering::Partition, seed: 7 }
    }

    fn directory() -> tempfile::TempDir {
        tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
    }

    #[test]
    fn about_is_read_as_it_was_written_and_every_change_is_refused() {
        let about = About::of(&shape(), Now(5_000_000_000));
        let text = about.text();
        assert_eq!(About::read(&text), Ok(about.clone()));
        for at in 0..text.len() {
            for bit in 0..7 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                let changed = String::from_utf8(bytes).expect("ASCII stays ASCII");
                let read = About::read(&changed);
                assert!(
                    read.is_err() || read == Ok(about.clone()) && changed.trim() == text.trim(),
                    "{changed}"
                );
            }
            let torn = &text[..at];
            assert!(About::read(torn).is_err() || torn.trim_end() == text.trim_end(), "{torn}");
        }
    }

    #[test]
    fn another_form_or_boot_is_refused_with_both_values() {
        let about = About::of(&shape(), Now(0));
        let other = About { form: "0: dsr-v4".to_owned(), ..about.clone() }.text();
        let why = About::read(&other).expect_err("refused");
        assert!(why.contains("\"0: dsr-v4\"") && why.contains(STORED_FORM), "{why}");
        let other = About { boot: "another".to_owned(), ..about }.text();
        assert!(About::read(&other).expect_err("refused").contains("was rebooted"));
    }

    #[test]
    fn a_directory_on_a_disk_or_of_others_or_in_use_is_refused() {
        let on_disk = Path::new("/proc/self");
        assert!(matches!(check(on_disk), Err(StoreError::NotInMemory { .. })));
        let directory = directory();
        let first = Store::open(directory.path(), &shape(), Now(0)).expect("it opens");
        let second = Store::open(directory.path(), &shape(), Now(0));
        assert!(matches!(second, Err(StoreError::InUse { .. })));
        drop(first);
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(directory.path(), open).expect("it is ours");
        let others = Store::open(directory.path(), &shape(), Now(0));
        assert!(matches!(others, Err(StoreError::Unsafe { .. })), "{others:?}");
    }

    #[test]
    fn a_run_without_flows_is_removed_and_a_damaged_one_too() {
        let directory = directory();
        let names = || {
            let mut names: Vec<String> = fs::read_dir(directory.path())
                .expect("a directory")
                .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
                .collect();
            names.sort();
            names
        };
        drop(Store::open(directory.path(), &shape(), Now(0)).expect("it opens"));
        assert_eq!(names(), ["lock", "run-1"]);
        let store = Store::open(directory.path(), &shape(), Now(0)).expect("it opens");
        assert_eq!((names(), store.earlier.len()), (vec!["lock".into(), "run-2".into()], 0));
        drop(store);
        fs::write(directory.path().join("run-2/identities"), [0; 64]).expect("there is space");
        fs::write(directory.path().join("run-2/about"), "tidegate flow tables 0\n").expect("there is space");
        let store = Store::open(directory.path(), &shape(), Now(0)).expect("it opens");
        assert_eq!((names(), store.earlier.len()), (vec!["lock".into(), "run-3".into()], 0));
    }
}
