//! Saves the addresses of Services to disk, for a gateway that reads manifests from a directory and so has no status to
//! write them to.
//!
//! Each Service has one line: a hash of the rest of the line, and JSON. If a line is truncated or altered, only that
//! Service loses its record, and the loss is logged. The controller saves before it publishes, so a gateway that is
//! killed at any moment restarts with every address that a client could have used.
//!
//! Each gateway and each directory of manifests has its own file, so two gateways on one machine do not share one.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tidegate_host::atomic_file;
use tidegate_model::fnv::{self, fnv1a};
use tidegate_model::objects::ObjectKey;
use tidegate_model::shared_map::SharedMap;
use tidegate_model::time::whole_seconds;
use tidegate_policy::pools::{Allocations, Holdings, OwnedAddress};
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// The version of the line format. Lines of other versions are ignored, like damaged ones.
const FORMAT: u32 = 1;
/// How long a round waits for the disk. A slower disk does not delay the publication further.
const SAVE_MAX: Duration = Duration::from_secs(2);
/// The pause before a failed save is retried.
const RETRY: Duration = Duration::from_secs(10);
/// The maximum size of the file. A larger file was not written by this program.
const BYTES_MAX: u64 = 256 << 20;

/// The file with the addresses of Services.
#[derive(Debug)]
pub(super) struct AddressFile {
    path: PathBuf,
    saved: Arc<Allocations>,
    /// The latest content to save.
    tried: Arc<Allocations>,
    in_progress: Option<JoinHandle<io::Result<()>>>,
    failed: Option<Failed>,
}

/// The state while no save has succeeded since a failure.
#[derive(Debug)]
struct Failed {
    why: String,
    /// The time of the first of the consecutive failures.
    since: Timestamp,
    /// The time of the next attempt.
    again: Instant,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line {
    namespace: String,
    name: String,
    uid: String,
    /// Whether the Service no longer exists. The line is kept in case the Service returns.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    departed: bool,
    #[serde(rename = "held")]
    owned: Vec<OwnedAddress>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: u32,
    services: usize,
}

impl AddressFile {
    /// The file of the gateway with this name and these manifests.
    pub(super) fn new(directory: &Path, gateway: &str, manifests: &Path) -> Self {
        let manifests = std::path::absolute(manifests).unwrap_or_else(|_| manifests.to_owned());
        let hash = hash(manifests.as_os_str().as_encoded_bytes());
        let path = directory.join(format!("{gateway}-{hash:016x}.addresses"));
        Self { path, saved: Arc::default(), tried: Arc::default(), in_progress: None, failed: None }
    }

    /// Reads the file. Damaged lines are logged and lost.
    pub(super) fn load(&mut self) -> Arc<Allocations> {
        match read(&self.path) {
            Ok(None) => tracing::info!(path = %self.path.display(), "no saved addresses of a previous run"),
            Ok(Some(read)) => {
                let services = read.allocations.by_service.len();
                if read.lost == 0 {
                    tracing::info!(services, "loaded the addresses of the previous run");
                } else {
                    tracing::warn!(
                        services,
                        lost = read.lost,
                        path = %self.path.display(),
                        "part of the address file is damaged: Services in the lost lines may get other addresses"
                    );
                }
                self.saved = Arc::new(read.allocations);
            }
            Err(error) => tracing::warn!(
                path = %self.path.display(),
                %error,
                "cannot read the addresses of the previous run: Services may get other addresses"
            ),
        }
        Arc::clone(&self.saved)
    }

    /// When a failed save is due to be retried.
    pub(super) fn due(&self) -> Option<Instant> {
        self.failed.as_ref().map(|failed| failed.again)
    }

    /// Why the addresses on disk are outdated, as text for display.
    pub(super) fn trouble(&self) -> Option<String> {
        let Failed { why, since, .. } = self.failed.as_ref()?;
        let since = whole_seconds(*since);
        let path = self.path.display();
        Some(format!(
            "the addresses of Services have not been saved since {since}; a restart may assign other addresses: \
             {path}: {why}"
        ))
    }

    /// Saves these addresses to disk, and waits up to a time limit.
    pub(super) async fn save(&mut self, allocations: &Arc<Allocations>) {
        match &self.failed {
            None if Arc::ptr_eq(&self.saved, allocations) => return,
            None if *self.saved == **allocations => {
                self.saved = Arc::clone(allocations);
                return;
            }
            Some(failed) if failed.again > Instant::now() && Arc::ptr_eq(&self.tried, allocations) => return,
            // After a failure the content on disk is unknown, and only a successful save ends the retries.
            None | Some(_) => {}
        }
        self.tried = Arc::clone(allocations);
        let until = Instant::now() + SAVE_MAX;
        if let Some(before) = self.in_progress.take_if(|before| !before.is_finished()) {
            // The disk hangs, so a second write would not help.
            self.in_progress = Some(before);
            return self.fail("the disk has not answered yet".to_owned());
        }
        let (path, to_save) = (self.path.clone(), Arc::clone(allocations));
        let mut write = tokio::task::spawn_blocking(move || write(&path, &to_save));
        match tokio::time::timeout_at(until, &mut write).await {
            Ok(Ok(Ok(()))) => {
                if self.failed.take().is_some() {
                    tracing::info!(path = %self.path.display(), "addresses are saved to disk again");
                }
                self.saved = Arc::clone(allocations);
            }
            Ok(Ok(Err(error))) => self.fail(error.to_string()),
            Ok(Err(panic)) => self.fail(panic.to_string()),
            Err(_) => {
                self.in_progress = Some(write);
                self.fail(format!("the disk has not answered within {} s", SAVE_MAX.as_secs()));
            }
        }
    }

    fn fail(&mut self, why: String) {
        if self.failed.as_ref().is_none_or(|failed| failed.why != why) {
            tracing::warn!(
                path = %self.path.display(),
                error = why,
                "cannot save the addresses of Services: they may change at a restart"
            );
        }
        let since = self.failed.as_ref().map_or_else(Timestamp::now, |failed| failed.since);
        self.failed = Some(Failed { why, since, again: Instant::now() + RETRY });
    }
}

/// The result of reading a file.
struct Read {
    allocations: Allocations,
    /// Services whose lines are damaged or missing.
    lost: usize,
}

fn read(path: &Path) -> io::Result<Option<Read>> {
    let bytes = match fs::metadata(path).map(|metadata| metadata.len()) {
        Ok(len) if len > BYTES_MAX => return Err(io::Error::other("it is too large")),
        Ok(_) => fs::read(path)?,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut lines = bytes.split(|byte| *byte == b'\n').filter(|line| !line.is_empty());
    let head: Option<Head> = lines.clone().next().and_then(checked);
    if head.is_some() {
        lines.next();
    }
    let (mut by_service, mut of_removed) = (SharedMap::new(), SharedMap::new());
    let (mut good, mut bad) = (0, usize::from(head.is_none()));
    for line in lines {
        let Some(Line { namespace, name, uid, departed: is_departed, owned }) = checked(line) else {
            bad += 1;
            continue;
        };
        good += 1;
        let of = if is_departed { &mut of_removed } else { &mut by_service };
        of.insert(ObjectKey::new(namespace, name), Holdings::new(&uid, owned));
    }
    let missing = head.map_or(0, |head| head.services.saturating_sub(good));
    Ok(Some(Read { allocations: Allocations { by_service, of_removed }, lost: bad.max(missing) }))
}

/// The JSON of a line whose hash is correct.
fn checked<T: for<'de> Deserialize<'de>>(line: &[u8]) -> Option<T> {
    let (sum, json) = line.split_at_checked(16)?;
    let json = json.strip_prefix(b" ")?;
    let sum = u64::from_str_radix(std::str::from_utf8(sum).ok()?, 16).ok()?;
    (sum == hash(json)).then(|| serde_json::from_slice(json).ok()).flatten()
}

fn write(path: &Path, allocations: &Allocations) -> io::Result<()> {
    let all = allocations.by_service.iter().map(|(key, holdings)| (key, holdings, false));
    let all = all.chain(allocations.of_removed.iter().map(|(key, holdings)| (key, holdings, true)));
    atomic_file::replace_durably(path, |out| {
        let head =
            Head { format: FORMAT, services: allocations.by_service.len() + allocations.of_removed.len() };
        writeln!(out, "{}", summed(&head)?)?;
        for (key, holdings, departed) in all {
            let ObjectKey { namespace, name } = key.clone();
            let line = Line {
                namespace,
                name,
                uid: holdings.uid.clone(),
                departed,
                owned: holdings.addresses.clone(),
            };
            writeln!(out, "{}", summed(&line)?)?;
        }
        Ok(())
    })
}

fn summed(value: &impl Serialize) -> io::Result<String> {
    let json = serde_json::to_string(value)?;
    Ok(format!("{:016x} {json}", hash(json.as_bytes())))
}

fn hash(bytes: &[u8]) -> u64 {
    fnv1a(fnv::START, bytes.iter().copied())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use tidegate_model::objects::Protocol;

    fn allocations(count: u8) -> Arc<Allocations> {
        let one = |n: u8| {
            let address = OwnedAddress {
                pool: "public".into(),
                ports: Some(vec![(Protocol::Tcp, 80), (Protocol::Udp, u16::from(n) + 1)]),
                ..OwnedAddress::of_status(std::net::IpAddr::from([203, 0, 113, n]))
            };
            (ObjectKey::new("shop", format!("s{n}")), Holdings::new("u", vec![address]))
        };
        let of_removed = [(ObjectKey::new("shop", "gone"), Holdings::new("u", vec![]))].into_iter().collect();
        Arc::new(Allocations { by_service: (0..count).map(one).collect(), of_removed })
    }

    fn file(directory: &Path) -> AddressFile {
        AddressFile::new(directory, "edge", Path::new("/etc/tidegate/manifests"))
    }

    #[tokio::test]
    async fn saved_addresses_are_loaded_only_by_the_next_run_of_this_gateway() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state");
        let mut first = file(&state);
        assert_eq!(*first.load(), Allocations::default());
        first.save(&allocations(3)).await;
        assert_eq!(file(&state).load(), allocations(3));
        let mode = fs::metadata(&first.path).expect("it is there").permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let mut others = [
            AddressFile::new(&state, "edge", Path::new("/srv/manifests")),
            AddressFile::new(&state, "edge-2", Path::new("/etc/tidegate/manifests")),
        ];
        assert!(others.iter_mut().all(|other| *other.load() == Allocations::default()));
    }

    #[tokio::test]
    async fn a_damaged_or_truncated_file_loses_only_its_damaged_lines() {
        let directory = tempfile::tempdir().expect("a directory");
        let mut first = file(directory.path());
        first.save(&allocations(4)).await;
        let good = fs::read(&first.path).expect("it is there");
        let services = |bytes: &[u8]| {
            fs::write(&first.path, bytes).expect("ours");
            let read = read(&first.path).expect("it can be read").expect("it is there");
            (read.allocations.by_service.len(), read.lost > 0)
        };
        assert_eq!(services(&good), (4, false));
        let text = String::from_utf8(good.clone()).expect("text");
        assert_eq!(services(text.replace("203.0.113.2", "203.0.113.9").as_bytes()), (3, true));
        assert_eq!(services(text.replace("\"format\"", "\"farmot\"").as_bytes()), (4, true));
        for len in 0..good.len() {
            let (left, lost) = services(&good[..len]);
            assert!(left <= 4 && (lost || len + 1 >= good.len()), "{len} bytes: {left} {lost}");
        }
        assert_eq!(services(b"\0\xff\n\n{}\n"), (0, true));
    }

    #[tokio::test]
    async fn an_unwritable_directory_is_reported_and_retried() {
        let directory = tempfile::tempdir().expect("a directory");
        let blocked = directory.path().join("blocked");
        fs::write(&blocked, "").expect("ours");
        let mut first = file(&blocked.join("state"));
        first.save(&allocations(1)).await;
        assert!(first.due().is_some());
        fs::remove_file(&blocked).expect("ours");
        first.failed.as_mut().expect("it failed").again = Instant::now();
        first.save(&allocations(1)).await;
        assert!(first.due().is_none() && first.trouble().is_none());
        assert_eq!(file(&blocked.join("state")).load(), allocations(1));
    }

    /// Saves unchanged content again, which must not cause endless retries.
    #[tokio::test]
    async fn a_failed_save_is_cleared_by_the_next_successful_save() {
        let directory = tempfile::tempdir().expect("a directory");
        let state = directory.path().join("state");
        let mut first = file(&state);
        first.save(&allocations(1)).await;
        fs::rename(&state, directory.path().join("away")).expect("ours");
        fs::write(&state, "").expect("ours");
        first.save(&allocations(2)).await;
        let reported = first.trouble().expect("it failed");
        assert!(
            reported.contains("a restart may assign other addresses") && reported.contains(".addresses: "),
            "{reported}"
        );
        fs::remove_file(&state).expect("ours");
        // The Service of the failed save was removed again.
        first.save(&allocations(1)).await;
        assert_eq!((first.due(), first.trouble()), (None, None));
        assert_eq!(file(&state).load(), allocations(1));
    }
}
