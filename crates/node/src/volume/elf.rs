//! Reads what we need of a shared library's ELF headers: machine, SONAME and what it needs. Little-endian ELF only, which is
//! all NVIDIA ships. It reads a few hundred bytes at known offsets, never the whole file (libcuda has tens of megabytes).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::ldcache::Machine;

/// More program headers or dynamic entries than this is corruption.
const HEADERS_MAX: u64 = 256;
const DYNAMIC_BYTES_MAX: u64 = 64 * 1024;
/// A library name longer than this is corruption (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;

const PT_LOAD: u32 = 1;
const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
const DT_STRTAB: u64 = 5;
const DT_SONAME: u64 = 14;

/// What a shared library says about itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// CPU and word size.
    pub machine: Machine,
    /// The name it wants to be found under.
    pub soname: Option<String>,
    /// The libraries the linker must load with it.
    pub needed: Vec<String>,
}

/// Reads the headers of the file at `path`. `Ok(None)`: it is no ELF file of a machine we know.
pub fn read(path: &Path) -> io::Result<Option<Elf>> {
    parse(&File::open(path)?)
}

/// Like [`read`], for anything that can be read at an offset.
fn parse(file: &impl Source) -> io::Result<Option<Elf>> {
    let Some(ident) = file.bytes(0, 20)? else {
        return Ok(None);
    };
    if ident[..4] != *b"\x7fELF" || ident[5] != 1 {
        return Ok(None);
    }
    let machine = match (ident[4], u16::from_le_bytes([ident[18], ident[19]])) {
        (2, 62) => Machine::X86_64,
        (2, 183) => Machine::Aarch64,
        (1, 3) => Machine::X86,
        (1, 40) => Machine::Arm,
        _ => return Ok(None),
    };
    let wide = ident[4] == 2;
    let mut elf = Elf {
        machine,
        soname: None,
        needed: Vec::new(),
    };
    let Some(segments) = segments(file, wide)? else {
        return Ok(Some(elf));
    };
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
        return Ok(Some(elf));
    };
    let Some(table) = file.bytes(dynamic.offset, dynamic.size.min(DYNAMIC_BYTES_MAX))? else {
        return Ok(Some(elf));
    };

    let entry_bytes = if wide { 16 } else { 8 };
    let entries: Vec<(u64, u64)> = table
        .chunks_exact(entry_bytes)
        .map(|entry| {
            (
                number(entry, 0, entry_bytes / 2),
                number(entry, entry_bytes / 2, entry_bytes / 2),
            )
        })
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    let strings = entries
        .iter()
        .find(|(tag, _)| *tag == DT_STRTAB)
        .and_then(|(_, address)| offset_of(&segments, *address));
    let Some(strings) = strings else { return Ok(Some(elf)) };
    for (tag, value) in entries {
        match tag {
            DT_SONAME => elf.soname = file.name(strings.saturating_add(value))?,
            DT_NEEDED => elf.needed.extend(file.name(strings.saturating_add(value))?),
            _ => {}
        }
    }
    Ok(Some(elf))
}

/// A file, or bytes in a test. `None` means that the range lies outside.
trait Source {
    fn bytes(&self, offset: u64, length: u64) -> io::Result<Option<Vec<u8>>>;
    /// The NUL-terminated text at `offset`.
    fn name(&self, offset: u64) -> io::Result<Option<String>>;
}

impl Source for File {
    fn bytes(&self, offset: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        let mut buffer = vec![0; length as usize];
        match self.read_exact_at(&mut buffer, offset) {
            Ok(()) => Ok(Some(buffer)),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn name(&self, offset: u64) -> io::Result<Option<String>> {
        let mut buffer = [0; NAME_BYTES_MAX + 1];
        let read = match self.read_at(&mut buffer, offset) {
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::InvalidInput => 0,
            Err(error) => return Err(error),
        };
        Ok(until_nul(&buffer[..read]))
    }
}

fn until_nul(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes[..end].to_vec())
        .ok()
        .filter(|name| !name.is_empty())
}

struct Segment {
    kind: u32,
    offset: u64,
    address: u64,
    size: u64,
}

fn segments(file: &impl Source, wide: bool) -> io::Result<Option<Vec<Segment>>> {
    let Some(header) = file.bytes(0, if wide { 64 } else { 52 })? else {
        return Ok(None);
    };
    let (table, entry_bytes, count) = if wide {
        (number(&header, 32, 8), number(&header, 54, 2), number(&header, 56, 2))
    } else {
        (number(&header, 28, 4), number(&header, 42, 2), number(&header, 44, 2))
    };
    let entry_bytes_min = if wide { 56 } else { 32 };
    if count > HEADERS_MAX || entry_bytes < entry_bytes_min {
        return Ok(None);
    }
    let Some(bytes) = file.bytes(table, count * entry_bytes)? else {
        return Ok(None);
    };
    let read = |entry: &[u8]| {
        let kind = number(entry, 0, 4) as u32;
        if wide {
            Segment {
                kind,
                offset: number(entry, 8, 8),
                address: number(entry, 16, 8),
                size: number(entry, 32, 8),
            }
        } else {
            Segment {
                kind,
                offset: number(entry, 4, 4),
                address: number(entry, 8, 4),
                size: number(entry, 16, 4),
            }
        }
    };
    Ok(Some(bytes.chunks_exact(entry_bytes as usize).map(read).collect()))
}

/// Where in the file the byte of this memory address is.
fn offset_of(segments: &[Segment], address: u64) -> Option<u64> {
    segments
        .iter()
        .filter(|segment| segment.kind == PT_LOAD)
        .find(|segment| address >= segment.address && address - segment.address < segment.size)
        .and_then(|segment| segment.offset.checked_add(address - segment.address))
}

/// Little-endian number of `length` bytes; the caller has checked that they are there.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    impl Source for Vec<u8> {
        fn bytes(&self, offset: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
            let end = offset.saturating_add(length).min(usize::MAX as u64) as usize;
            Ok(self
                .get(offset.min(usize::MAX as u64) as usize..end)
                .map(<[u8]>::to_vec))
        }
        fn name(&self, offset: u64) -> io::Result<Option<String>> {
            Ok(self.get(offset.min(usize::MAX as u64) as usize..).and_then(until_nul))
        }
    }

    /// A minimal but valid shared library: one loadable segment over the whole file and a dynamic table.
    pub(crate) fn write_library(machine: Machine, soname: Option<&str>, needed: &[&str]) -> Vec<u8> {
        let code: u16 = match machine {
            Machine::X86_64 => 62,
            Machine::Aarch64 => 183,
            Machine::X86 | Machine::Arm => panic!("only 64-bit libraries are written here"),
        };
        let mut strings = vec![0u8];
        let mut intern = |text: &str| {
            let at = strings.len() as u64;
            strings.extend_from_slice(text.as_bytes());
            strings.push(0);
            at
        };
        let mut dynamic: Vec<(u64, u64)> = needed.iter().map(|name| (DT_NEEDED, intern(name))).collect();
        dynamic.extend(soname.map(|name| (DT_SONAME, intern(name))));
        let dynamic_at = 64 + 2 * 56;
        let strings_at = dynamic_at + (dynamic.len() as u64 + 2) * 16;
        dynamic.push((DT_STRTAB, strings_at));
        dynamic.push((0, 0));
        let total = strings_at + strings.len() as u64;

        let mut out = b"\x7fELF\x02\x01\x01".to_vec();
        out.resize(16, 0);
        out.extend_from_slice(&3u16.to_le_bytes());
        out.extend_from_slice(&code.to_le_bytes());
        out.extend_from_slice(&1u32.to_le_bytes());
        for value in [0u64, 64, 0] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&0u32.to_le_bytes());
        for value in [64u16, 56, 2, 0, 0, 0] {
            out.extend_from_slice(&value.to_le_bytes());
        }
        for (kind, offset, size) in [(PT_LOAD, 0, total), (PT_DYNAMIC, dynamic_at, strings_at - dynamic_at)] {
            out.extend_from_slice(&kind.to_le_bytes());
            out.extend_from_slice(&4u32.to_le_bytes());
            for value in [offset, offset, offset, size, size, 8] {
                out.extend_from_slice(&value.to_le_bytes());
            }
        }
        for (tag, value) in dynamic {
            out.extend_from_slice(&tag.to_le_bytes());
            out.extend_from_slice(&value.to_le_bytes());
        }
        out.extend_from_slice(&strings);
        out
    }

    #[test]
    fn names_of_a_written_library_come_back() {
        let library = write_library(Machine::Aarch64, Some("libcuda.so.1"), &["libnvrm_gpu.so", "libc.so.6"]);
        let elf = parse(&library).unwrap().unwrap();
        assert_eq!(elf.machine, Machine::Aarch64);
        assert_eq!(elf.soname.as_deref(), Some("libcuda.so.1"));
        assert_eq!(elf.needed, ["libnvrm_gpu.so", "libc.so.6"]);
    }

    #[test]
    fn cut_or_garbled_files_give_less_but_never_panic() {
        let whole = write_library(Machine::X86_64, Some("libcuda.so.1"), &["libc.so.6"]);
        for length in 0..whole.len() {
            let _ = parse(&whole[..length].to_vec());
        }
        for at in 0..whole.len() {
            let mut garbled = whole.clone();
            garbled[at] = 0xff;
            let _ = parse(&garbled);
        }
        assert_eq!(parse(&b"#!/bin/sh\n echo this is a script".to_vec()).unwrap(), None);
    }

    #[test]
    fn this_very_test_program_needs_the_c_library() {
        let elf = read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert_eq!(elf.machine, Machine::here());
        assert!(elf.needed.iter().any(|name| name == "libc.so.6"), "{elf:?}");
    }
}
