//! Saves the last known objects to disk and loads them, for a gateway that starts while the API server is down.
//!
//! A file of JSON lines: a head (format, API server, number of objects, the last known version of each kind), one
//! line for each object (kind, version, trimmed object, how long it is kept if it is lost, which parts are left out),
//! and a foot with a hash of all lines before it. A new file is written beside the old one, flushed to disk, and
//! renamed into place, so there is always one complete file. Its modification time is the time at which its objects
//! were last known to be those of the API server.
//!
//! Only the gateway can read the file (mode 0600): it contains everything that its account may read of the cluster.
//!
//! Objects are decoded as if the API server had sent them. A file that is cut, altered or of another format is
//! refused as a whole, with a reason.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};
use tidegate_model::fnv::{self, fnv1a};
use tidegate_model::objects::{LeftOut, NotKept};
use tidegate_model::yaml::Node;

use super::history::Point;
use super::kinds::{KINDS, KindIndex};
use super::object::{Content, Received};

/// Changes whenever the lines mean something else; files of another number are not read.
const FORMAT: u32 = 1;

/// The file of one gateway.
#[derive(Debug, Clone)]
pub(super) struct Disk {
    path: PathBuf,
}

/// What was read.
#[derive(Debug)]
pub(super) struct Saved {
    /// The API server that the objects are from.
    pub(super) server: String,
    /// When they were last known to be its objects.
    pub(super) confirmed: SystemTime,
    /// The last word of the API server about each kind, and how long before now it was heard.
    pub(super) heard: Vec<(KindIndex, Point, Duration)>,
    pub(super) objects: Vec<SavedObject>,
}

/// One object of a file.
#[derive(Debug)]
pub(super) struct SavedObject {
    pub(super) kind: KindIndex,
    pub(super) received: Received,
    /// The API server had lost it, and it was to be kept for this long still.
    pub(super) left: Option<Duration>,
}

/// What is written.
#[derive(Debug)]
pub(super) struct Contents {
    /// The API server that the objects are from.
    pub(super) server: String,
    /// When they were last known to be its objects.
    pub(super) confirmed: SystemTime,
    /// As in [`Saved`].
    pub(super) heard: Vec<(KindIndex, Point, Duration)>,
    /// Kind, version, object, and how long it is kept still.
    pub(super) objects: Vec<(KindIndex, u64, Content, Option<Duration>)>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Head {
    format: u32,
    server: String,
    objects: usize,
    #[serde(default)]
    heard: Vec<HeardLine>,
}

#[derive(Debug, Serialize, Deserialize)]
struct HeardLine {
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
    /// In seconds; counts while the API server answers.
    #[serde(default)]
    left: Option<u64>,
    /// Of an EndpointSlice whose endpoints were not kept.
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
    /// The file of the gateway of this name.
    pub(super) fn new(directory: &Path, gateway: &str) -> Self {
        Self { path: directory.join(format!("{gateway}.objects.jsonl")) }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Reads the file; `None` where there is none.
    ///
    /// # Errors
    /// When it cannot be read, or is not a whole file of this format.
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
            let line = lines.next().ok_or("it ends too early")?.map_err(|e| e.to_string())?;
            let before = *hash;
            *hash = hashed(*hash, &line);
            Ok((line, before))
        };
        let (line, _) = next(&mut hash)?;
        let head: Head = parse(&line)?;
        if head.format != FORMAT {
            return Err(format!("it is of format {}, not {FORMAT}", head.format));
        }
        let mut objects = Vec::new();
        for _ in 0..head.objects {
            let (line, _) = next(&mut hash)?;
            let Line { kind, version, left, left_out, object } = parse(&line)?;
            // A kind that is not watched any more is passed over.
            let Some(kind) = kind_of(&kind) else { continue };
            // One that is of no use costs no other.
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
            return Err("its contents were altered".to_owned());
        }
        let now = SystemTime::now();
        // A clock that was set back since says only that it was heard before now.
        let ago = |at: u64| {
            let at = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(at))?;
            Some(now.duration_since(at).unwrap_or_default())
        };
        let heard = head.heard.into_iter();
        let heard = heard.filter_map(|h| Some((kind_of(&h.kind)?, h.point, ago(h.at)?))).collect();
        Ok(Some(Saved { server: head.server, confirmed, heard, objects }))
    }

    /// Replaces the file.
    ///
    /// # Errors
    /// When the directory or the file cannot be written; the file from before stays.
    pub(super) fn write(&self, contents: &Contents) -> io::Result<()> {
        let directory = self.path.parent().unwrap_or(Path::new("."));
        // For this user alone: objects have annotations that not everybody on this machine may read.
        DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
        let beside = self.path.with_extension("jsonl.new");
        let written = (|| {
            let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
            // One that was left over has the mode that it had.
            file.set_permissions(Permissions::from_mode(0o600))?;
            let mut out = Hashing { out: BufWriter::new(file), hash: fnv::START };
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
            let file = out.out.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.set_modified(contents.confirmed)?;
            file.sync_all()?;
            fs::rename(&beside, &self.path)?;
            File::open(directory)?.sync_all()
        })();
        if written.is_err() {
            // Whatever is there is of no use, and its place may be what is lacking.
            let _ = fs::remove_file(&beside);
        }
        written
    }

    /// Notes that the objects in the file are still those of the API server.
    ///
    /// # Errors
    /// When the file is not there or its times cannot be set.
    pub(super) fn confirm(&self) -> io::Result<()> {
        File::options().append(true).open(&self.path)?.set_modified(SystemTime::now())
    }
}

fn head(contents: &Contents) -> Head {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    let heard = contents.heard.iter().map(|(kind, point, ago)| HeardLine {
        kind: KINDS[*kind].name.to_owned(),
        point: point.clone(),
        at: now.saturating_sub(*ago).as_secs(),
    });
    Head {
        format: FORMAT,
        server: contents.server.clone(),
        objects: contents.objects.len(),
        heard: heard.collect(),
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

/// FNV-1a over the line and its end.
fn hashed(hash: u64, line: &[u8]) -> u64 {
    fnv1a(hash, line.iter().chain(b"\n").copied())
}

fn parse<'a, T: Deserialize<'a>>(line: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(line).map_err(|e| format!("a line is not understood: {e}"))
}
