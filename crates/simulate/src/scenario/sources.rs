//! Which files make up which scenario.
//!
//! A case file is a scenario of its own. Manifests belong together as for `kubectl apply -f`: those named on the command
//! line make one cluster, and those of a folder make one. A snapshot is a cluster; manifests named with it are added to it.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

use super::snapshot;
use crate::Error;

/// Enough of a file to see its first keys.
const PREFIX_BYTES: u64 = 16 * 1024;

/// The formats of objects, for messages.
pub(super) const OBJECTS_FORMAT: &str = "a JSON or YAML file";

/// The path that means standard input.
const STANDARD_INPUT: &str = "-";
/// The name of standard input in messages.
const STANDARD_INPUT_NAME: &str = "standard input";

/// A file of a scenario. Standard input is read once, by `discover`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    path: PathBuf,
    content: Content,
    bytes: Option<Arc<[u8]>>,
}

impl File {
    /// The path, or `standard input`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn is_snapshot(&self) -> bool {
        self.content == Content::Snapshot
    }

    /// The text.
    pub(super) fn read(&self) -> Result<String, Error> {
        let bytes = self.read_bytes()?;
        String::from_utf8(bytes).map_err(|_| Error::NotText {
            path: self.path.clone(),
            expected: OBJECTS_FORMAT,
        })
    }

    /// The content.
    pub(super) fn read_bytes(&self) -> Result<Vec<u8>, Error> {
        match &self.bytes {
            Some(bytes) => Ok(bytes.to_vec()),
            None => std::fs::read(&self.path).map_err(|source| Error::Unreadable {
                path: self.path.clone(),
                source,
            }),
        }
    }
}

/// The files of one scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A case file.
    Case(File),
    /// Manifests of one cluster, at most one snapshot among them.
    Manifests {
        /// Name of the scenario.
        id: String,
        /// The files, in order.
        files: Vec<File>,
    },
}

impl Source {
    /// The files, in order.
    pub fn files(&self) -> &[File] {
        match self {
            Source::Case(file) => std::slice::from_ref(file),
            Source::Manifests { files, .. } => files,
        }
    }

    /// The file to name in messages.
    pub fn path(&self) -> &Path {
        self.files().first().map_or(Path::new(""), File::path)
    }
}

/// The scenarios in these files and folders, in order. Folders are read recursively; `-` is `standard_input`.
pub fn discover(paths: &[PathBuf], mut standard_input: impl Read) -> Result<Vec<Source>, Error> {
    let mut found = Found::default();
    let mut named = Vec::new();
    if paths.iter().filter(|path| path.as_os_str() == STANDARD_INPUT).count() > 1 {
        return Err(Error::StandardInputTwice);
    }
    for path in paths {
        if path.as_os_str() == STANDARD_INPUT {
            let path = PathBuf::from(STANDARD_INPUT_NAME);
            let mut bytes = Vec::new();
            let read = standard_input.read_to_end(&mut bytes);
            read.map_err(|source| Error::Unreadable {
                path: path.clone(),
                source,
            })?;
            let content = sniff_bytes(&path, &bytes);
            let bytes = Some(Arc::from(bytes));
            found.add(File { path, content, bytes }, &mut named);
            continue;
        }
        let metadata = std::fs::metadata(path).map_err(|source| Error::Unreadable {
            path: path.clone(),
            source,
        })?;
        if metadata.is_dir() {
            let before = found.sources.len();
            found.folder(path)?;
            if found.sources.len() == before {
                return Err(Error::EmptyFolder { path: path.clone() });
            }
        } else {
            found.file(path, &mut named)?;
        }
    }
    found.manifests(named, None)?;
    Ok(found.sources)
}

#[derive(Default)]
struct Found {
    sources: Vec<Source>,
}

impl Found {
    fn folder(&mut self, folder: &Path) -> Result<(), Error> {
        let unreadable = |source| Error::Unreadable {
            path: folder.to_owned(),
            source,
        };
        let entries = std::fs::read_dir(folder).map_err(unreadable)?;
        let mut paths: Vec<PathBuf> = Vec::new();
        for entry in entries {
            paths.push(entry.map_err(unreadable)?.path());
        }
        paths.sort();
        let mut manifests: Vec<File> = Vec::new();
        for path in &paths {
            if path.is_dir() {
                self.folder(path)?;
            } else if format_of(path).is_some() {
                self.file(path, &mut manifests)?;
            }
        }
        self.manifests(manifests, Some(folder))
    }

    fn file(&mut self, path: &Path, manifests: &mut Vec<File>) -> Result<(), Error> {
        let content = sniff(path)?;
        let (path, bytes) = (path.to_owned(), None);
        self.add(File { path, content, bytes }, manifests);
        Ok(())
    }

    fn add(&mut self, file: File, manifests: &mut Vec<File>) {
        match file.content {
            Content::Case => self.sources.push(Source::Case(file)),
            Content::Manifest | Content::Snapshot => manifests.push(file),
        }
    }

    fn manifests(&mut self, files: Vec<File>, folder: Option<&Path>) -> Result<(), Error> {
        let snapshots: Vec<&File> = files.iter().filter(|file| file.is_snapshot()).collect();
        match snapshots.get(1) {
            Some(_) if snapshots.len() == files.len() => {
                files.into_iter().for_each(|file| self.cluster(vec![file], None))
            }
            Some(second) => {
                return Err(Error::SeveralSnapshots {
                    path: second.path.clone(),
                });
            }
            None => self.cluster(files, folder),
        }
        Ok(())
    }

    fn cluster(&mut self, files: Vec<File>, folder: Option<&Path>) {
        let Some(first) = files.first() else { return };
        let name = folder.and_then(Path::file_name).or(first.path.file_stem());
        let id = name.map_or_else(|| "manifests".to_owned(), |name| name.to_string_lossy().into_owned());
        self.sources.push(Source::Manifests { id, files });
    }
}

/// The format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Json,
    Yaml,
}

/// The format by the extension; `None` for other extensions.
pub(super) fn format_of(path: &Path) -> Option<Format> {
    match path.extension()?.to_str()? {
        "json" => Some(Format::Json),
        "yaml" | "yml" => Some(Format::Yaml),
        _ => None,
    }
}

/// The format by the extension, else by the first character.
pub(super) fn format_of_text(path: &Path, text: &str) -> Format {
    format_of(path).unwrap_or(if text.trim_start().starts_with('{') {
        Format::Json
    } else {
        Format::Yaml
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    Case,
    Manifest,
    Snapshot,
}

fn sniff(path: &Path) -> Result<Content, Error> {
    let unreadable = |source| Error::Unreadable {
        path: path.to_owned(),
        source,
    };
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .map_err(unreadable)?
        .take(PREFIX_BYTES)
        .read_to_end(&mut bytes)
        .map_err(unreadable)?;
    Ok(sniff_bytes(path, &bytes))
}

fn sniff_bytes(path: &Path, bytes: &[u8]) -> Content {
    match snapshot::is_zip(bytes) {
        true => Content::Snapshot,
        false => sniff_text(path, &String::from_utf8_lossy(bytes)),
    }
}

fn sniff_text(path: &Path, text: &str) -> Content {
    let content = match format_of_text(path, text) {
        Format::Json => sniff_json(text),
        Format::Yaml if text.trim_start().starts_with('{') => sniff_json(text),
        Format::Yaml => sniff_yaml(text),
    };
    // A file without known keys is read as a case, whose loading reports what is missing.
    content.unwrap_or(Content::Case)
}

fn decisive(key: &str) -> Option<Content> {
    match key {
        "kind" | "apiVersion" | "items" => Some(Content::Manifest),
        "rawObjects" | "schedulerParams" => Some(Content::Snapshot),
        "id" | "group" | "now" | "actions" | "cycles" | "objects" | "expect" | "params" | "settleCycles" => {
            Some(Content::Case)
        }
        _ => None,
    }
}

fn sniff_yaml(text: &str) -> Option<Content> {
    text.lines()
        .find_map(|line| decisive(line.split_once(':')?.0.trim_matches('"')))
}

fn sniff_json(text: &str) -> Option<Content> {
    struct Keys<'c>(&'c mut Option<Content>);

    impl<'de> Visitor<'de> for Keys<'_> {
        type Value = ();
        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }
        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
            while let Some(key) = map.next_key::<String>()? {
                *self.0 = decisive(&key);
                if self.0.is_some() {
                    return Ok(());
                }
                map.next_value::<IgnoredAny>()?;
            }
            Ok(())
        }
    }

    let mut content = None;
    // The text is a prefix of the file, so an error at its end is expected.
    let _ = serde_json::Deserializer::from_str(text).deserialize_map(Keys(&mut content));
    content
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_telling_key_decides() {
        assert_eq!(sniff_json(r#"{"apiVersion":"v1","items":["#), Some(Content::Manifest));
        assert_eq!(
            sniff_json(r#"{"purpose":{"a":[1]},"objects":{"pods":"#),
            Some(Content::Case)
        );
        assert_eq!(
            sniff_json(r#"{"config":{"actions":"allocate"},"rawObjects":"#),
            Some(Content::Snapshot)
        );
        assert_eq!(sniff_json("{"), None);
        assert_eq!(sniff_yaml("# words\n---\nkind: Pod\n"), Some(Content::Manifest));
        assert_eq!(
            sniff_yaml("purpose: x\nid: one\nobjects:\n  pods:\n  - kind: Pod\n"),
            Some(Content::Case)
        );
    }
}
