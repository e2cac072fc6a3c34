//! Saves the last known objects to disk and loads them, for a gateway that starts while the API server is down.
//!
//! The file consists of JSON lines: a head (format, API server, number of objects, last known version of each kind),
//! one line per object (kind, version, trimmed object, how long it is kept if it was lost, which parts are left out),
//! and a foot with a hash of all previous lines. A new file is written beside the old one, flushed to disk, and
//! renamed, so there is always one complete file. Its modification time is when its objects were last known to match
//! the API server.
//!
//! Only the gateway can read the file (mode 0600), because it contains everything that its account may read of the
//! cluster.
//!
//! Objects are decoded as if the API server had sent them. A file that is truncated, altered or of another format is
//! refused as a whole, with a reason.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tidegate_host::atomic_file;
use tidegate_model::fnv::{self, fnv1a};
use tidegate_model::objects::{LeftOut, NotKept};
use tidegate_model::yaml::Node;

use super::history::Point;
use super::kinds::{KINDS, KindIndex};
use super::object::{Content, Received};

/// Incremented whenever the meaning of the lines changes. Files with another number are not read.
const FORMAT: u32 = 1;

/// The file of one gateway.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    path: PathBuf,
}

/// The contents of a file that was read.
#[derive(Debug)]
pub(super) struct Saved {
    /// The API server that the objects came from.
    pub(super) server: String,
    /// When the objects were last known to match the API server.
    pub(super) confirmed: SystemTime,
    /// The last known point of each kind, and how long ago it was received.
    pub(super) points: Vec<(KindIndex, Point, Duration)>,
    pub(super) objects: Vec<SavedObject>,
}

/// One object of a file.
#[derive(Debug)]
pub(super) struct SavedObject {
    pub(super) kind: KindIndex,
    pub(super) received: Received,
    /// Set if the API server has lost it: the remaining time for which it is kept.
    pub(super) left: Option<Duration>,
}

/// The contents to write.
#[derive(Debug)]
pub(super) struct Contents {
    /// The API server that the objects came from.
    pub(super) server: String,
    /// When the objects were last known to match the API server.
    pub(super) confirmed: SystemTime,
    /// As in [`Saved::points`].
    pub(super) points: Vec<(KindIndex, Point, Duration)>,
    /// Kind, version, object, and the remaining time for which it is kept.
    pub(super) objects: Vec<(KindIndex, u64, Content, Option<Duration>)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: u32,
    server: String,
    objects: usize,
    #[serde(default, rename = "heard")]
    points: Vec<PointLine>,
}

#[derive(Debug, Serialize, Deserialize)]
struct PointLine {
    kind: String,
    #[serde(flatten)]
    point: Point,
    /// Unix time, in seconds.
    at: u64,
}

#[derive(Debug, Deserialize)]
struct Line {
    kind: String,
    version: u64,
    /// In seconds. It decreases only while the API server responds.
    #[serde(default)]
    left: Option<u64>,
    /// For an EndpointSlice whose endpoints were not kept.
    #[serde(default, rename = "leftOut")]
    left_out: Option<LeftOutLine>,
    object: Node,
}

#[derive(Debug, Serialize, Deserialize)]
struct LeftOutLine {
    endpoints: usize,
    bytes: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct Foot {
    hash: String,
}

impl Disk {
    /// The file of the gateway with this name.
    pub(super) fn new(directory: &Path, gateway: &str) -> Self {
        Self { path: directory.join(format!("{gateway}.objects.jsonl")) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file; `None` if there is none.
    ///
    /// # Errors
    /// It can't be read, or is not a complete file of this format.
    pub(super) fn read(&self) -> Result<Option<Saved>, String> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error.to_string()),
        };
        let confirmed = file.metadata().and_then(|m| m.modified()).map_err(|e| e.to_string())?;
        let mut lines = BufReader::new(file).split(b'\n');
        let mut hash = fnv::START;
        let mut next = |hash: &mut u64| -> Result<(Vec<u8>, u64), String> {
            let line = lines.next().ok_or("the file is truncated")?.map_err(|e| e.to_string())?;
            let before = *hash;
            *hash = hashed(*hash, &line);
            Ok((line, before))
        };
        let (line, _) = next(&mut hash)?;
        let head: Head = parse(&line)?;
        if head.format != FORMAT {
            return Err(format!("the file has format {}, not {FORMAT}", head.format));
        }
        let mut objects = Vec::new();
        for _ in 0..head.objects {
            let (line, _) = next(&mut hash)?;
            let Line { kind, version, left, left_out, object } = parse(&line)?;
            // A kind that is no longer watched is skipped.
            let Some(kind) = kind_of(&kind) else { continue };
            // An invalid object does not affect the others.
            let Ok(received) = Received::new(&KINDS[kind], object) else { continue };
            let content = match left_out {
                Some(LeftOutLine { endpoints, bytes }) => {
                    received.content.marked(LeftOut { endpoints, bytes, why: NotKept::Awaited })
                }
                None => received.content,
            };
            let received = Received { version, content, ..received };
            objects.push(SavedObject { kind, received, left: left.map(Duration::from_secs) });
        }
        let (line, hash) = next(&mut hash)?;
        let foot: Foot = parse(&line)?;
        if foot.hash != format!("{hash:016x}") {
            return Err("the checksum of the file does not match its contents".to_owned());
        }
        let now = SystemTime::now();
        // If the clock was set back since, the time is only known to be in the past.
        let ago = |at: u64| {
            let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at))?;
            Some(now.duration_since(at).unwrap_or_default())
        };
        let points = head.points.into_iter();
        let points = points.filter_map(|h| Some((kind_of(&h.kind)?, h.point, ago(h.at)?))).collect();
        Ok(Some(Saved { server: head.server, confirmed, points, objects }))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// The directory or the file can't be written. The previous file stays.
    pub(super) fn write(&self, contents: &Contents) -> io::Result<()> {
        // Only this user may read it, because annotations of objects may be confidential.
        atomic_file::replace_durably(&self.path, |out| {
            let mut out = Hashing { out, hash: fnv::START };
            out.line(&serde_json::to_vec(&head(contents))?)?;
            for (kind, version, content, left) in &contents.objects {
                let left = left.map(|left| format!("\"left\":{},", left.as_secs())).unwrap_or_default();
                let kind = KINDS[*kind].name;
                let left_out = match content.slice().and_then(|slice| slice.left_out) {
                    Some(LeftOut { endpoints, bytes, .. }) => {
                        let line = serde_json::to_string(&LeftOutLine { endpoints, bytes })?;
                        format!("\"leftOut\":{line},")
                    }
                    None => String::new(),
                };
                let mut line =
                    format!("{{\"kind\":\"{kind}\",\"version\":{version},{left}{left_out}\"object\":")
                        .into_bytes();
                line.extend_from_slice(content.json());
                line.push(b'}');
                out.line(&line)?;
            }
            let hash = format!("{:016x}", out.hash);
            out.line(&serde_json::to_vec(&Foot { hash })?)?;
            // A later write would change the time again.
            out.out.flush()?;
            out.out.get_ref().set_modified(contents.confirmed)
        })
    }

    /// Records that the objects in the file still match the API server.
    ///
    /// # Errors
    /// The file does not exist, or its times can't be set.
    pub(super) fn confirm(&self) -> io::Result<()> {
        File::options().append(true).open(&self.path)?.set_modified(SystemTime::now())
    }
}

fn head(contents: &Contents) -> Head {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let points = contents.points.iter().map(|(kind, point, ago)| PointLine {
        kind: KINDS[*kind].name.to_owned(),
        point: point.clone(),
        at: now.saturating_sub(*ago).as_secs(),
    });
    Head {
        format: FORMAT,
        server: contents.server.clone(),
        objects: contents.objects.len(),
        points: points.collect(),
    }
}

fn kind_of(name: &str) -> Option<KindIndex> {
    KINDS.iter().position(|kind| kind.name == name)
}

struct Hashing<W> {
    out: W,
    hash: u64,
}

impl<W: Write> Hashing<W> {
    fn line(&mut self, line: &[u8]) -> io::Result<()> {
        self.hash = hashed(self.hash, line);
        self.out.write_all(line)?;
        self.out.write_all(b"\n")
    }
}

/// FNV-1a of the line and its line feed.
fn hashed(hash: u64, line: &[u8]) -> u64 {
    fnv1a(hash, line.iter().chain(b"\n").copied())
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|e| format!("a line of the file is invalid: {e}"))
}
