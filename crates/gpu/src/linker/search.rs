//! The file that the dynamic linker loads for a name: it searches `LD_LIBRARY_PATH`, its cache and its default directories, in this order
//! (ld.so(8)). RUNPATH entries of libraries are not considered.

use std::fs;
use std::path::PathBuf;

use super::{Machine, elf, ldcache};

/// The searched directories and the cache, in order.
#[derive(Debug, Clone, Default)]
pub struct Search {
    before_cache: Vec<PathBuf>,
    cache: Vec<ldcache::Entry>,
    after_cache: Vec<PathBuf>,
}

impl Search {
    /// The search of this process's linker.
    pub fn of_this_process() -> Self {
        let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let triplet = Machine::here().triplet();
        Self {
            // An empty variable has no entry; an empty entry would mean the working directory.
            before_cache: match variable.is_empty() {
                true => Vec::new(),
                false => std::env::split_paths(&variable).collect(),
            },
            cache: fs::read("/etc/ld.so.cache")
                .ok()
                .and_then(|bytes| ldcache::parse(&bytes).ok())
                .unwrap_or_default(),
            after_cache: [
                &format!("/lib/{triplet}"),
                &format!("/usr/lib/{triplet}"),
                "/lib64",
                "/usr/lib64",
                "/lib",
                "/usr/lib",
            ]
            .map(PathBuf::from)
            .to_vec(),
        }
    }

    /// A search of these directories only.
    pub fn of_directories(directories: Vec<PathBuf>) -> Self {
        Self {
            before_cache: directories,
            ..Self::default()
        }
    }

    /// The file that the linker loads for a name without a slash. Like the linker, it skips files of other machines.
    pub fn find(&self, name: &str) -> Option<PathBuf> {
        let cached = self.cache.iter().filter(|entry| entry.name == name);
        let cached = cached.map(|entry| PathBuf::from(&entry.path));
        let in_directories = |directories: &[PathBuf]| -> Vec<PathBuf> {
            directories.iter().map(|directory| directory.join(name)).collect()
        };
        in_directories(&self.before_cache)
            .into_iter()
            .chain(cached)
            .chain(in_directories(&self.after_cache))
            .find(|path| is_for_this_machine(path))
    }
}

fn is_for_this_machine(path: &std::path::Path) -> bool {
    match elf::read(path) {
        Ok(Some(elf)) => elf.machine == Machine::here(),
        // The linker stops at such a file with an error.
        Ok(None) => true,
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linker::elf::tests::write_library;

    #[test]
    fn the_first_file_of_this_machine_is_taken() {
        let place = tempfile::tempdir().unwrap();
        let directories = ["empty", "other", "here", "later"].map(|name| place.path().join(name));
        let other = match Machine::here() {
            Machine::Aarch64 => Machine::X86_64,
            _ => Machine::Aarch64,
        };
        for (directory, machine) in
            directories
                .iter()
                .zip([None, Some(other), Some(Machine::here()), Some(Machine::here())])
        {
            fs::create_dir(directory).unwrap();
            if let Some(machine) = machine {
                fs::write(directory.join("liba.so"), write_library(machine, None, &[])).unwrap();
            }
        }
        let search = Search::of_directories(directories.to_vec());
        assert_eq!(search.find("liba.so"), Some(directories[2].join("liba.so")));
        assert_eq!(search.find("libb.so"), None);
    }
}
