//! Finds the files of the directory, reads those that changed, and decodes their objects.
//!
//! A refresh checks the metadata of every file and reads the files that changed. A file that changed within the last
//! two seconds is read again at the next refresh whatever its metadata, because the clock of a file system may be too
//! coarse to distinguish two quick writes.
//!
//! A file is *lost* if its name still exists but it contains no object, can't be read, or is no longer a file. An
//! editor that truncates and rewrites a file looks like that for a moment, so a lost file keeps its objects for the
//! grace time. If the name is gone, the file was deleted, and its objects are removed immediately. A file is also lost
//! if the remaining part of its path is on another device: the file system was unmounted.
//!
//! Invariants: an object with an error keeps its last valid version, if there was one, and the other objects of its
//! file are read as usual. A file with an error in its text loses no object, because an apparent deletion may be a file
//! that is still being written: missing objects are kept until the file has no error. An object keeps its place in the
//! order of arrival as long as any file contains it.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tidegate_model::bounded_file::{self, FILE_BYTES_MAX};
use tidegate_model::diagnostic::{Diagnostic, Location, Report};
use tidegate_model::objects::{ObjectKey, Objects};
use tidegate_model::yaml::{self, Sheet};

use super::assemble::assemble;
use super::listing::{Found, Listing, Signature};
use crate::manifest::{self, Object};
use crate::{Kinds, RefusedObject, StaleFile};

/// Once the last change of a file is this old, its metadata reliably show the next one.
const STABLE_AFTER: Duration = Duration::from_secs(2);

const BROKEN_LINK: &str = "it is a broken symbolic link";

/// The state of the directory.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    /// How long a lost file keeps its objects.
    loss_grace: Duration,
    kinds: Kinds,
    files: BTreeMap<PathBuf, FileState>,
    /// Faults of directories at the last refresh.
    listing: Report,
    arrivals: Arrivals,
}

/// When ListenerSets and routes without a creation time appeared, by the number of the refresh. An object of a lower
/// number has precedence, so that a new file takes nothing from the objects of others.
#[derive(Debug, Default)]
struct Arrivals {
    refreshes: u64,
    seen: HashMap<(&'static str, ObjectKey), u64>,
}

#[derive(Debug, Default)]
struct FileState {
    /// The device of its directory when the file was last found.
    device: Option<u64>,
    /// Metadata at the last read. `None` means that the file must be read again.
    signature: Option<Signature>,
    /// The hash of the text that was last read.
    text_hash: Option<u64>,
    /// The valid objects of the last read.
    objects: Vec<Object>,
    /// The last valid versions of objects that are missing in `objects`. Empty if the last read had no errors.
    earlier: Vec<Object>,
    /// The refused objects of the last read.
    refused: Vec<RefusedObject>,
    /// Faults of the last read.
    report: Report,
    /// When the current series of reads with errors started.
    bad_since: Option<SystemTime>,
    /// Set if the file is lost but still has objects.
    lost: Option<Lost>,
}

/// When a file was lost, and why.
#[derive(Debug)]
struct Lost {
    since: SystemTime,
    /// `since` by the monotonic clock, which measures the grace time.
    seen: Instant,
    why: String,
}

impl Files {
    pub(super) fn new(root: &Path, loss_grace: Duration, kinds: Kinds) -> Self {
        let (files, listing) = (BTreeMap::new(), Report::new());
        Self { root: root.to_owned(), loss_grace, kinds, files, listing, arrivals: Arrivals::default() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Reads the directory again. Returns whether the objects or the report changed.
    pub(super) fn refresh(&mut self) -> bool {
        let mut listing = Listing::of(&self.root);
        for (path, state) in &self.files {
            if !listing.found.contains_key(path) && state.has_objects() && state.is_unmounted(path) {
                listing
                    .found
                    .insert(path.clone(), Found::NoFile("the file system of the file is no longer mounted"));
            }
        }
        let unreadable = listing.unreadable;
        let before = self.files.len();
        self.files.retain(|path, _| {
            listing.found.contains_key(path) || unreadable.iter().any(|dir| path.starts_with(dir))
        });
        let mut changed = self.files.len() != before;
        for (path, found) in listing.found {
            // A name that was never a file is ignored, unless it is a broken link, which was meant to point to a file.
            if !matches!(found, Found::File(_)) && !self.files.contains_key(&path) {
                if matches!(found, Found::BrokenLink) {
                    let location = Location::start_of(path.to_string_lossy().as_ref());
                    let fault = Diagnostic::error(format!("cannot be read: {BROKEN_LINK}"));
                    listing.report.push(fault.accepting("a link to a file").at(location));
                }
                continue;
            }
            let state = self.files.entry(path.clone()).or_default();
            if matches!(found, Found::File(_)) {
                state.device = path.parent().and_then(|dir| listing.devices.get(dir)).copied();
            }
            changed |= state.refresh(&path, &found, self.kinds, &mut self.arrivals);
        }
        if changed {
            self.forget_arrivals();
        }
        changed |= self.expire();
        self.arrivals.refreshes += 1;
        changed |= listing.report != self.listing;
        self.listing = listing.report;
        changed
    }

    /// Removes the objects of files that have been lost for the grace time. Returns whether there were any.
    pub(super) fn expire(&mut self) -> bool {
        let mut expired = false;
        for state in self.files.values_mut() {
            expired |= state.expire(self.loss_grace);
        }
        if expired {
            self.forget_arrivals();
        }
        expired
    }

    /// Forgets objects that no file contains any more.
    fn forget_arrivals(&mut self) {
        let all = self.files.values().flat_map(|file| file.objects.iter().chain(&file.earlier));
        let present: HashSet<_> = all.map(identity).collect();
        self.arrivals.seen.retain(|(kind, key), _| present.contains(&(*kind, key)));
    }

    /// Combines all files: the objects, the refused objects that have no earlier version in use, and all faults.
    pub(super) fn assemble(&self) -> (Objects, Vec<RefusedObject>, Report) {
        let mut report = self.listing.clone();
        for (path, state) in &self.files {
            report.merge(&state.report);
            let what = if let Some(lost) = &state.lost {
                let until = shown(lost.since.checked_add(self.loss_grace));
                format!("{}; the previous objects of the file are kept until {until}", lost.why)
            } else if let (Some(since), Some(first)) = (state.bad_since, state.earlier.first()) {
                let others = match state.earlier.len() - 1 {
                    0 => String::new(),
                    others => format!(" and {others} more"),
                };
                format!(
                    "the file has errors; the gateway keeps using the version of {} {}{others} from before {}",
                    first.kind(),
                    first.meta().key,
                    shown(Some(since))
                )
            } else {
                continue;
            };
            let location = Location::start_of(path.to_string_lossy().as_ref());
            report
                .push(Diagnostic::warning(what).accepting("a readable manifest without errors").at(location));
        }
        let objects = assemble(self.objects(), &mut report);
        let is_in_use = |refused: &RefusedObject| match refused.kind {
            "Service" => objects.services.contains_key(&refused.key),
            "EndpointSlice" => objects.endpoint_slices.contains_key(&refused.key),
            "Endpoints" => objects.endpoints.contains_key(&refused.key),
            "Pod" => objects.pods.contains_key(&refused.key),
            "Namespace" => objects.namespaces.contains_key(&refused.key.name),
            "Node" => objects.nodes.contains_key(&refused.key.name),
            "ServiceCIDR" => objects.service_cidrs.contains_key(&refused.key.name),
            "GatewayClass" => objects.gateway_classes.contains_key(&refused.key.name),
            "Gateway" => objects.gateways.contains_key(&refused.key),
            "ListenerSet" => objects.listener_sets.contains_key(&refused.key),
            "TCPRoute" => objects.tcp_routes.contains_key(&refused.key),
            "UDPRoute" => objects.udp_routes.contains_key(&refused.key),
            "ReferenceGrant" => objects.reference_grants.contains_key(&refused.key),
            "Secret" => objects.tls_secrets.contains_key(&refused.key),
            _ => objects.address_pools.contains_key(&refused.key.name),
        };
        let refused = self.files.values().flat_map(|file| &file.refused);
        let refused = refused.filter(|refused| !is_in_use(refused)).cloned().collect();
        (objects, refused, report)
    }

    /// The objects of all files, in the order of the files. The earlier version of an object is skipped if another file
    /// now defines the object.
    fn objects(&self) -> impl Iterator<Item = &Object> {
        let mut present = HashSet::new();
        if self.files.values().any(|file| !file.earlier.is_empty()) {
            present.extend(self.files.values().flat_map(|file| &file.objects).map(identity));
        }
        self.files.values().flat_map(move |file| {
            let earlier: Vec<&Object> =
                file.earlier.iter().filter(|object| !present.contains(&identity(object))).collect();
            file.objects.iter().chain(earlier)
        })
    }

    /// The files whose last valid objects are used instead of their contents.
    pub(super) fn stale(&self) -> Vec<StaleFile> {
        let stale = |(path, state): (&PathBuf, &FileState)| {
            let bad = state.bad_since.filter(|_| !state.earlier.is_empty());
            let since = state.lost.as_ref().map(|lost| lost.since).or(bad)?;
            Some(StaleFile { path: path.clone(), since })
        };
        self.files.iter().filter_map(stale).collect()
    }
}

impl Arrivals {
    /// Records when an object appeared, if that matters.
    fn rank(&mut self, object: &mut Object) {
        let kind = object.kind();
        if let Some(meta) = object.ranked()
            && meta.creation_time.is_none()
        {
            meta.arrival = *self.seen.entry((kind, meta.key.clone())).or_insert(self.refreshes);
        }
    }
}

impl FileState {
    fn has_objects(&self) -> bool {
        !self.objects.is_empty() || !self.earlier.is_empty()
    }

    /// Whether the remaining part of the path is on another device than the file was. A deleted file leaves its
    /// directory on the original device.
    fn is_unmounted(&self, path: &Path) -> bool {
        let remaining = path.ancestors().skip(1).find_map(|dir| fs::metadata(dir).ok());
        self.device.is_some_and(|device| remaining.is_some_and(|remaining| remaining.dev() != device))
    }

    /// Reads the file if it changed. Returns whether the result changed.
    fn refresh(&mut self, path: &Path, found: &Found, kinds: Kinds, arrivals: &mut Arrivals) -> bool {
        let (signature, read) = match found {
            Found::File(signature) if self.signature == Some(*signature) => return false,
            Found::File(signature) => (Some(*signature), read(path)),
            Found::NoFile(what) => (None, Err((*what).to_owned())),
            Found::BrokenLink => (None, Err(BROKEN_LINK.to_owned())),
        };
        let shown = path.to_string_lossy();
        let now = SystemTime::now();
        let is_stable = signature.is_some_and(|signature| {
            now.duration_since(signature.modified()).is_ok_and(|age| age > STABLE_AFTER)
        });
        self.signature = signature.filter(|_| is_stable && read.is_ok());
        let mut hasher = DefaultHasher::new();
        read.hash(&mut hasher);
        let text_hash = Some(hasher.finish());
        if self.text_hash == text_hash {
            return false;
        }
        self.text_hash = text_hash;
        let sheet = Sheet::new(shown.as_ref());
        let (mut objects, mut refused) = (Vec::new(), Vec::new());
        let mut lost = None;
        match &read {
            Ok(bytes) if std::str::from_utf8(bytes).is_err() => {
                let (at, what) = yaml::not_utf8(bytes).expect("it is not");
                lost = Some(format!("the file cannot be read: {what}"));
                sheet.error(at, format!("cannot be read: {what}"), "UTF-8 text");
            }
            Ok(bytes) => {
                let text = &String::from_utf8_lossy(bytes);
                let documents = sheet.documents_with_flaws(text, |it, at| manifest::is_read(it, at, kinds));
                if documents.is_empty() && sheet.errors() == 0 {
                    lost = Some("the file contains no object".to_owned());
                }
                for (document, flawed) in documents {
                    let decoded = manifest::decode(&sheet, &document, kinds);
                    refused.extend(decoded.refused);
                    // With a duplicate key, the intended value is unknown.
                    if flawed {
                        let why = Diagnostic::error("its manifest has an error, such as a duplicate key")
                            .accepting("a manifest without errors")
                            .at(sheet.location(document.at));
                        refused.extend(decoded.objects.iter().map(|object| object.refuse(why.clone())));
                    } else {
                        objects.extend(decoded.objects);
                    }
                }
            }
            Err(why) => {
                lost = Some(format!("the file cannot be read: {why}"));
                sheet.push(
                    Diagnostic::error(format!("cannot be read: {why}"))
                        .accepting("a readable file, 64 MiB at most")
                        .at(Location::start_of(shown.as_ref())),
                );
            }
        }
        self.report = sheet.into_report();
        self.refused = refused;
        if let Some(why) = lost.filter(|_| self.has_objects()) {
            let (since, seen) =
                self.lost.take().map_or((now, Instant::now()), |before| (before.since, before.seen));
            self.lost = Some(Lost { since, seen, why });
            return true;
        }
        self.lost = None;
        objects.iter_mut().for_each(|object| arrivals.rank(object));
        self.replace(objects, now);
        true
    }

    /// Replaces the objects. If the file has errors, the last valid versions of missing objects stay.
    fn replace(&mut self, objects: Vec<Object>, now: SystemTime) {
        if self.report.has_errors() {
            let present: HashSet<_> = objects.iter().map(identity).collect();
            let before = self.objects.drain(..).chain(self.earlier.drain(..));
            let earlier = before.filter(|object| !present.contains(&identity(object))).collect();
            self.bad_since = self.bad_since.or(Some(now));
            self.earlier = earlier;
        } else {
            self.bad_since = None;
            self.earlier.clear();
        }
        self.objects = objects;
    }

    /// Removes the objects of the file if it has been lost for the grace time. Returns whether it has.
    fn expire(&mut self, grace: Duration) -> bool {
        let over = self.lost.take_if(|lost| lost.seen.elapsed() >= grace).is_some();
        if over {
            self.objects.clear();
            self.earlier.clear();
            self.bad_since = None;
        }
        over
    }
}

/// Identifies an object.
fn identity(object: &Object) -> (&'static str, &ObjectKey) {
    (object.kind(), &object.meta().key)
}

/// Formats a time for a message.
fn shown(time: Option<SystemTime>) -> String {
    let time = time.and_then(|time| jiff::Timestamp::try_from(time).ok());
    time.map_or_else(|| "a time after the year 9999".to_owned(), |time| time.strftime("%FT%TZ").to_string())
}

/// The contents of the file, or why they can't be read.
fn read(path: &Path) -> Result<Vec<u8>, String> {
    bounded_file::read(path, FILE_BYTES_MAX).map_err(|unreadable| unreadable.to_string())
}
