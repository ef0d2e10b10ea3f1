//! Which files make up which scenario.
//!
//! A case file is a scenario of its own. Manifests belong together as for `kubectl apply -f`: those named on the command
//! line make one cluster, and those of a folder make one.

use std::fmt;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

use crate::Error;

/// Enough of a file to see its first keys.
const PREFIX_BYTES: u64 = 16 * 1024;

/// The path that means standard input.
const STANDARD_INPUT: &str = "-";
/// The name of standard input in messages.
const STANDARD_INPUT_NAME: &str = "standard input";

/// A file of a scenario. Standard input is read once, by `discover`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct File {
    path: PathBuf,
    text: Option<Arc<str>>,
}

impl File {
    /// The path, or `standard input`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The text.
    pub(super) fn read(&self) -> Result<String, Error> {
        match &self.text {
            Some(text) => Ok(text.to_string()),
            None => text_of(&self.path, std::fs::read(&self.path)),
        }
    }
}

fn text_of(path: &Path, read: std::io::Result<Vec<u8>>) -> Result<String, Error> {
    let bytes = read.map_err(|source| Error::Unreadable {
        path: path.to_owned(),
        source,
    })?;
    String::from_utf8(bytes).map_err(|_| Error::NotText { path: path.to_owned() })
}

/// The files of one scenario.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A case file.
    Case(File),
    /// Manifests of one cluster.
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
            let read = standard_input.read_to_end(&mut bytes).map(|_| bytes);
            let text = text_of(&path, read)?;
            let content = sniff_text(&path, &text);
            let text = Some(Arc::from(text));
            found.add(content, File { path, text }, &mut named);
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
    found.manifests(named, None);
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
        self.manifests(manifests, Some(folder));
        Ok(())
    }

    fn file(&mut self, path: &Path, manifests: &mut Vec<File>) -> Result<(), Error> {
        let content = sniff(path)?;
        let (path, text) = (path.to_owned(), None);
        self.add(content, File { path, text }, manifests);
        Ok(())
    }

    fn add(&mut self, content: Content, file: File, manifests: &mut Vec<File>) {
        match content {
            Content::Case => self.sources.push(Source::Case(file)),
            Content::Manifest => manifests.push(file),
        }
    }

    fn manifests(&mut self, files: Vec<File>, folder: Option<&Path>) {
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
    Ok(sniff_text(path, &String::from_utf8_lossy(&bytes)))
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
        assert_eq!(sniff_json("{"), None);
        assert_eq!(sniff_yaml("# words\n---\nkind: Pod\n"), Some(Content::Manifest));
        assert_eq!(
            sniff_yaml("purpose: x\nid: one\nobjects:\n  pods:\n  - kind: Pod\n"),
            Some(Content::Case)
        );
    }
}
