//! Checks whether the linker can load a shared library without killing the process. It compares the headers with the length of the file and
//! checks the tables that the linker reads before it runs any code; other wrong content is not noticed.

use std::collections::{BTreeSet, VecDeque};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::Machine;
use super::elf::{self, DT_STRSZ, DT_STRTAB, DT_SYMTAB, PT_LOAD, Segment, Source, offset_of};
use super::search::Search;

/// Upper bound on checked dependencies of a library; no real library has more.
const DEPENDENCIES_MAX: usize = 256;

/// Why a file must not be loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Defect {
    /// No ELF file, or one for an unknown machine.
    #[error("it is no shared library of a known machine")]
    NotElf,
    /// For another CPU than this process.
    #[error("it is built for {}, and this program for {}", found.triplet(), wanted.triplet())]
    OtherMachine {
        /// CPU of the library.
        found: Machine,
        /// CPU of this process.
        wanted: Machine,
    },
    /// The file is shorter than its headers say.
    #[error("it is cut off (its headers need {needed} bytes, and the file has {length})")]
    CutOff {
        /// End of the last part that the linker would map.
        needed: u64,
        /// The file's length.
        length: u64,
    },
    /// The tables that the linker reads are missing or outside of the mapped parts.
    #[error("its headers are damaged: {0}")]
    Damaged(&'static str),
    /// It can't be read.
    #[error("it can't be read: {0}")]
    Unreadable(String),
}

impl From<io::Error> for Defect {
    fn from(error: io::Error) -> Self {
        Defect::Unreadable(error.to_string())
    }
}

/// A file with its defect.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefectiveFile {
    /// The file.
    pub path: PathBuf,
    /// Why it must not be loaded.
    pub defect: Defect,
}

/// Checks a library for this process and all its dependencies that `search` finds. For a dependency that is not found, the linker returns
/// an error and does no harm.
pub fn check_loadable(library: &Path, search: &Search) -> Result<(), DefectiveFile> {
    let mut seen = BTreeSet::from([library.to_owned()]);
    let mut queue = VecDeque::from([library.to_owned()]);
    while let Some(path) = queue.pop_front() {
        let defective = |defect| DefectiveFile {
            path: path.clone(),
            defect,
        };
        let file = File::open(&path).map_err(|error| defective(error.into()))?;
        check(&file, Some(Machine::here())).map_err(defective)?;
        let elf = elf::read(&path).map_err(|error| defective(error.into()))?;
        let needed = elf.map(|elf| elf.needed).unwrap_or_default();
        for found in needed.iter().filter_map(|name| search.find(name)) {
            if seen.len() < DEPENDENCIES_MAX && seen.insert(found.clone()) {
                queue.push_back(found);
            }
        }
    }
    Ok(())
}

/// Checks one file of any known machine.
pub fn check_file(path: &Path) -> Result<(), Defect> {
    check(&File::open(path)?, None)
}

/// Like [`check_file`], for a file's bytes.
pub fn check_bytes(bytes: &[u8]) -> Result<(), Defect> {
    check(bytes, None)
}

fn check(file: &(impl Source + ?Sized), wanted: Option<Machine>) -> Result<(), Defect> {
    let class = elf::class(file)?.ok_or(Defect::NotElf)?;
    if let Some(wanted) = wanted.filter(|wanted| *wanted != class.machine) {
        return Err(Defect::OtherMachine {
            found: class.machine,
            wanted,
        });
    }
    let table = elf::header_table(file, class)?;
    within(file, table.end)?;
    let segments = elf::segments(file, class)?.ok_or(Defect::Damaged("the program header table makes no sense"))?;
    let loaded: Vec<&Segment> = segments.iter().filter(|segment| segment.kind == PT_LOAD).collect();
    let end = loaded
        .iter()
        .map(|segment| segment.offset.saturating_add(segment.size))
        .max();
    within(file, end.ok_or(Defect::Damaged("there is no loadable segment"))?)?;

    let entries = elf::dynamic(file, class, &segments)?.ok_or(Defect::Damaged("there is no dynamic table"))?;
    let value = |wanted: u64| entries.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
    let offset = |tag: u64| value(tag).and_then(|address| offset_of(&segments, address));
    let strings = offset(DT_STRTAB).ok_or(Defect::Damaged("there is no string table within the loaded segments"))?;
    offset(DT_SYMTAB).ok_or(Defect::Damaged("there is no symbol table within the loaded segments"))?;
    within(file, strings.saturating_add(value(DT_STRSZ).unwrap_or(0)))
}

fn within(file: &(impl Source + ?Sized), needed: u64) -> Result<(), Defect> {
    let length = file.length()?;
    match needed <= length {
        true => Ok(()),
        false => Err(Defect::CutOff { needed, length }),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::linker::elf::tests::write_library;

    /// The C library of the machine that runs the tests: a real one, with everything that a linker writes.
    fn c_library() -> Vec<u8> {
        let path = Search::of_this_process()
            .find("libc.so.6")
            .expect("the C library is found");
        fs::read(path).unwrap()
    }

    #[test]
    fn a_whole_library_and_what_it_needs_pass() {
        let search = Search::of_this_process();
        let path = search.find("libc.so.6").unwrap();
        assert_eq!(check_loadable(&path, &search), Ok(()));
        assert_eq!(check_loadable(&std::env::current_exe().unwrap(), &search), Ok(()));
        let written = write_library(Machine::Aarch64, Some("libcuda.so.1"), &["libc.so.6"]);
        assert_eq!(check_bytes(&written), Ok(()));
    }

    #[test]
    fn a_library_that_is_cut_off_anywhere_is_refused() {
        let whole = c_library();
        // The section headers and the debug link at the end are not mapped; everything before them is.
        let mapped = match check_bytes(&whole[..whole.len() / 2]) {
            Err(Defect::CutOff { needed, length }) => {
                assert_eq!(length, whole.len() as u64 / 2);
                needed as usize
            }
            other => panic!("{other:?}"),
        };
        assert!(mapped <= whole.len());
        assert_eq!(check_bytes(&whole[..mapped]), Ok(()));
        for length in [
            0,
            1,
            19,
            20,
            63,
            64,
            100,
            1000,
            4096,
            mapped / 3,
            mapped - 4096,
            mapped - 1,
        ] {
            let defect = check_bytes(&whole[..length]).unwrap_err();
            let expected = match length {
                ..20 => matches!(defect, Defect::NotElf),
                _ => matches!(defect, Defect::CutOff { .. }),
            };
            assert!(expected, "{length}: {defect:?}");
        }
    }

    #[test]
    fn a_library_of_zeros_after_its_header_is_refused() {
        let mut zeros = c_library();
        zeros[4096..].fill(0);
        assert!(matches!(check_bytes(&zeros), Err(Defect::Damaged(_))));
    }

    #[test]
    fn another_machine_is_named() {
        let (here, other) = match Machine::here() {
            Machine::Aarch64 => (Machine::Aarch64, Machine::X86_64),
            _ => (Machine::X86_64, Machine::Aarch64),
        };
        let library = write_library(other, None, &[]);
        assert_eq!(
            check(library.as_slice(), Some(here)),
            Err(Defect::OtherMachine {
                found: other,
                wanted: here
            })
        );
    }

    #[test]
    fn a_dependency_that_is_cut_off_is_named() {
        let place = tempfile::tempdir().unwrap();
        let path = |name: &str| place.path().join(name);
        let whole = write_library(Machine::here(), Some("libb.so"), &["libabsent.so"]);
        fs::write(
            path("liba.so"),
            write_library(Machine::here(), Some("liba.so"), &["libb.so"]),
        )
        .unwrap();
        fs::write(path("libb.so"), &whole).unwrap();
        let search = Search::of_directories(vec![place.path().to_owned()]);
        assert_eq!(check_loadable(&path("liba.so"), &search), Ok(()));
        fs::write(path("libb.so"), &whole[..whole.len() - 1]).unwrap();
        let defective = check_loadable(&path("liba.so"), &search).unwrap_err();
        assert_eq!(defective.path, path("libb.so"));
        assert!(matches!(defective.defect, Defect::CutOff { .. }), "{defective:?}");
    }

    fn fuzz(fuzz: kai_fuzz::Fuzz) {
        let needed = ["libc.so.6", "libnvrm_gpu.so"];
        let mut seeds: Vec<Vec<u8>> = [Machine::X86_64, Machine::Aarch64]
            .map(|machine| write_library(machine, Some("libcuda.so.1"), &needed))
            .to_vec();
        // The headers of a real library: its tables lie beyond what is left of it.
        seeds.push(c_library()[..4096].to_vec());
        fuzz.bytes(&seeds, &[b"\x7fELF\x02\x01", b"\x7fELF\x01\x01"], |bytes| {
            let elf = elf::read_bytes(bytes).unwrap();
            if check_bytes(bytes).is_ok() {
                assert!(elf.is_some(), "what may be loaded can be read");
                // One byte less than the headers need is noticed.
                let mut shorter = bytes.to_vec();
                while check_bytes(&shorter).is_ok() {
                    shorter.truncate(shorter.len() / 2);
                }
            }
        });
    }

    #[test]
    fn mutated_libraries_never_panic() {
        fuzz(kai_fuzz::Fuzz::short("ELF"));
    }

    #[test]
    #[ignore = "runs for KAI_FUZZ_SECONDS"]
    fn long_run_of_libraries() {
        fuzz(kai_fuzz::Fuzz::long("ELF"));
    }
}
