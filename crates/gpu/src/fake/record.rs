//! What the fake driver was told to keep: small texts by key, in memory or as files of a directory that several processes share (a node
//! agent, a container runtime's hook and the containers, each with its own copy of the fake library).

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;

use parking_lot::Mutex;

/// The store. Keys are file names.
#[derive(Debug)]
pub(super) enum Record {
    /// Of this process. A lock, because driver calls come from any thread.
    Memory(Mutex<BTreeMap<String, String>>),
    /// Of all processes that name this directory.
    Directory(PathBuf),
}

impl Record {
    pub(super) fn new(directory: Option<PathBuf>) -> Self {
        directory.map_or_else(|| Record::Memory(Mutex::default()), Record::Directory)
    }

    /// Replaces the text of a key; a reader of the directory sees the old or the new text, never a part.
    pub(super) fn write(&self, key: &str, text: String) -> io::Result<()> {
        match self {
            Record::Memory(texts) => {
                texts.lock().insert(key.to_owned(), text);
                Ok(())
            }
            Record::Directory(directory) => {
                let beside = directory.join(format!(".{key}.{}.new", std::process::id()));
                std::fs::write(&beside, text)?;
                std::fs::rename(beside, directory.join(key))
            }
        }
    }

    /// The text of a key. A directory that does not exist holds nothing.
    pub(super) fn read(&self, key: &str) -> Option<String> {
        match self {
            Record::Memory(texts) => texts.lock().get(key).cloned(),
            Record::Directory(directory) => std::fs::read_to_string(directory.join(key)).ok(),
        }
    }
}
