//! The files of the directory with what each holds: found, read when changed, decoded one by one.
//!
//! A refresh looks at the metadata of every file and reads those that changed. A file that was changed in the
//! last two seconds is read again next time whatever its metadata say, for their clock may be too coarse to
//! tell two quick writes apart.
//!
//! Invariant: a file with an error has the objects of its last good reading, if there was one.

use std::collections::BTreeMap;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::assemble::assemble;
use crate::diagnostic::{Diagnostic, Location, Report};
use crate::model::Objects;
use crate::source::StaleFile;
use crate::source::manifest::{self, Object};
use crate::yaml::Sheet;

/// Largest file read: 64 MiB.
const FILE_BYTES_MAX: u64 = 64 << 20;
/// Deepest directory below the one given; links may form circles.
const DEPTH_MAX: usize = 16;
/// Age at which the metadata of a file are trusted to show its next change.
const SETTLED: Duration = Duration::from_secs(2);

/// What is known of the directory.
#[derive(Debug)]
pub(super) struct Files {
    root: PathBuf,
    files: BTreeMap<PathBuf, FileState>,
    /// Faults of directories in the last refresh.
    listing: Report,
}

#[derive(Debug, Default)]
struct FileState {
    /// Metadata at the last reading; `None`: read again in any case.
    signature: Option<Signature>,
    /// Of the text last read.
    text_hash: Option<u64>,
    /// Of the last good reading; or, where there never was one, the sound objects of a bad one.
    objects: Vec<Object>,
    /// Faults of the last reading.
    report: Report,
    /// There was a reading without errors.
    was_good: bool,
    /// Since when the last reading has errors.
    bad_since: Option<SystemTime>,
}

/// (device, inode, size, seconds and nanoseconds of modification and of change)
type Signature = (u64, u64, u64, [i64; 4]);

impl Files {
    pub(super) fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), files: BTreeMap::new(), listing: Report::new() }
    }

    pub(super) fn root(&self) -> &Path {
        &self.root
    }

    /// Looks at the directory again; true if anything changed that shows in objects or report.
    pub(super) fn refresh(&mut self) -> bool {
        let mut listing = Listing::default();
        listing.walk(&self.root, 0);
        let mut changed = listing.report != self.listing;
        let unreadable = listing.unreadable;
        let before = self.files.len();
        self.files.retain(|path, _| {
            listing.found.contains_key(path) || unreadable.iter().any(|dir| path.starts_with(dir))
        });
        changed |= self.files.len() != before;
        for (path, signature) in listing.found {
            let state = self.files.entry(path.clone()).or_default();
            changed |= state.refresh(&path, signature);
        }
        self.listing = listing.report;
        changed
    }

    /// All files put together: objects, and the faults of all.
    pub(super) fn assemble(&self) -> (Objects, Report) {
        let mut report = self.listing.clone();
        for (path, state) in &self.files {
            report.merge(&state.report);
            if let Some(since) = state.bad_since.filter(|_| state.was_good) {
                let since = jiff::Timestamp::try_from(since).map(|t| t.strftime("%FT%TZ").to_string());
                let what = format!(
                    "the file has errors; its last good state is kept since {}",
                    since.as_deref().unwrap_or("before time was counted")
                );
                let place = Location::start_of(path.to_string_lossy().as_ref());
                report.push(Diagnostic::warning(what).accepting("the file without its errors").at(place));
            }
        }
        let objects = assemble(self.files.values().flat_map(|f| &f.objects), &mut report);
        (objects, report)
    }

    /// The files that stand at an older state.
    pub(super) fn stale(&self) -> Vec<StaleFile> {
        let stale = |(path, state): (&PathBuf, &FileState)| {
            let since = state.bad_since.filter(|_| state.was_good)?;
            Some(StaleFile { path: path.clone(), since })
        };
        self.files.iter().filter_map(stale).collect()
    }
}

impl FileState {
    /// Reads the file if it changed; true if that shows.
    fn refresh(&mut self, path: &Path, signature: Signature) -> bool {
        if self.signature == Some(signature) {
            return false;
        }
        let shown = path.to_string_lossy();
        let read = read_bounded(path);
        let now = SystemTime::now();
        let modified = Duration::from_secs(signature.3[0].try_into().unwrap_or(0));
        let settled = now.duration_since(SystemTime::UNIX_EPOCH + modified).is_ok_and(|age| age > SETTLED);
        self.signature = (settled && read.is_ok()).then_some(signature);
        let mut hasher = DefaultHasher::new();
        read.hash(&mut hasher);
        let text_hash = Some(hasher.finish());
        if self.text_hash == text_hash {
            return false;
        }
        self.text_hash = text_hash;
        let sheet = Sheet::new(shown.as_ref());
        let mut objects = Vec::new();
        match &read {
            Ok(text) => {
                for (document, flawed) in sheet.documents_with_flaws(text) {
                    let decoded = manifest::decode(&sheet, &document);
                    // With a key twice nobody can say which was meant.
                    if !flawed {
                        objects.extend(decoded);
                    }
                }
            }
            Err(why) => sheet.push(
                Diagnostic::error(format!("cannot be read: {why}"))
                    .accepting("a readable file of UTF-8 text, 64 MiB at most")
                    .at(Location::start_of(shown.as_ref())),
            ),
        }
        self.report = sheet.into_report();
        if !self.report.has_errors() {
            self.objects = objects;
            self.was_good = true;
            self.bad_since = None;
        } else {
            self.bad_since = self.bad_since.or(Some(now));
            if !self.was_good {
                self.objects = objects;
            }
        }
        true
    }
}

/// The text of the file, or why not.
fn read_bounded(path: &Path) -> Result<String, String> {
    let file = fs::File::open(path).map_err(|e| e.to_string())?;
    let mut text = String::new();
    file.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).map_err(|e| e.to_string())?;
    if text.len() as u64 > FILE_BYTES_MAX {
        return Err("larger than 64 MiB".to_owned());
    }
    Ok(text)
}

/// A walk over the directory.
#[derive(Default)]
struct Listing {
    found: BTreeMap<PathBuf, Signature>,
    /// Directories that could not be listed, and entries whose metadata could not be had.
    unreadable: Vec<PathBuf>,
    report: Report,
}

impl Listing {
    fn walk(&mut self, directory: &Path, depth: usize) {
        let entries = fs::read_dir(directory)
            .and_then(|entries| entries.map(|e| e.map(|e| e.path())).collect::<Result<Vec<_>, _>>());
        let entries = match entries {
            Ok(entries) if depth <= DEPTH_MAX => entries,
            Ok(_) => return self.fault(directory, format!("nested deeper than {DEPTH_MAX} directories")),
            Err(error) => return self.fault(directory, format!("the directory cannot be read: {error}")),
        };
        for path in entries {
            let hidden = path.file_name().is_none_or(|n| n.as_encoded_bytes().starts_with(b"."));
            if hidden {
                continue;
            }
            let wanted = path.extension().is_some_and(|e| e == "yaml" || e == "yml" || e == "json");
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => self.walk(&path, depth + 1),
                Ok(metadata) if wanted && metadata.is_file() => {
                    self.found.insert(path, signature(&metadata));
                }
                Ok(_) => {}
                // Gone between the listing and now, or a link to nothing.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) if wanted => self.fault(&path, format!("cannot be read: {error}")),
                Err(_) => {}
            }
        }
    }

    fn fault(&mut self, path: &Path, what: String) {
        let place = Location::start_of(path.to_string_lossy().as_ref());
        self.report.push(Diagnostic::error(what).accepting("a readable directory of manifests").at(place));
        self.unreadable.push(path.to_owned());
    }
}

fn signature(metadata: &fs::Metadata) -> Signature {
    let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    (metadata.dev(), metadata.ino(), metadata.size(), times)
}
