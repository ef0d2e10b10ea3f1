//! Reads machine, SONAME and needed libraries from the ELF headers of a shared library. Little-endian ELF only, since NVIDIA ships no
//! other. It reads a few hundred bytes at known offsets, never the whole file (libcuda has tens of megabytes).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::Machine;

/// More program headers or dynamic entries than this is corruption.
const HEADERS_MAX: u64 = 256;
const DYNAMIC_BYTES_MAX: u64 = 64 * 1024;
/// A library name longer than this is corruption (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;

pub(super) const PT_LOAD: u32 = 1;
pub(super) const PT_DYNAMIC: u32 = 2;
const DT_NEEDED: u64 = 1;
pub(super) const DT_STRTAB: u64 = 5;
pub(super) const DT_SYMTAB: u64 = 6;
pub(super) const DT_STRSZ: u64 = 10;
const DT_SONAME: u64 = 14;

/// Facts from the headers of a shared library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// CPU and word size.
    pub machine: Machine,
    /// SONAME.
    pub soname: Option<String>,
    /// Names of the libraries that the linker loads with it.
    pub needed: Vec<String>,
}

/// Reads the headers of the file at `path`. `Ok(None)`: it is no ELF file of a known machine.
pub fn read(path: &Path) -> io::Result<Option<Elf>> {
    parse(&File::open(path)?)
}

/// Like [`read`], for a file's bytes.
pub fn read_bytes(bytes: &[u8]) -> io::Result<Option<Elf>> {
    parse(bytes)
}

fn parse(file: &(impl Source + ?Sized)) -> io::Result<Option<Elf>> {
    let Some(class) = class(file)? else { return Ok(None) };
    let mut elf = Elf {
        machine: class.machine,
        soname: None,
        needed: Vec::new(),
    };
    let Some(segments) = segments(file, class)? else {
        return Ok(Some(elf));
    };
    let Some(entries) = dynamic(file, class, &segments)? else {
        return Ok(Some(elf));
    };
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

/// CPU of a file, and whether its headers are the 64-bit ones.
#[derive(Debug, Clone, Copy)]
pub(super) struct Class {
    pub(super) machine: Machine,
    wide: bool,
}

/// `None`: no ELF file of a known machine.
pub(super) fn class(file: &(impl Source + ?Sized)) -> io::Result<Option<Class>> {
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
    Ok(Some(Class { machine, wide }))
}

/// Tags and values of the dynamic table, without the end mark. `None`: there is no table, or it lies outside of the file.
pub(super) fn dynamic(
    file: &(impl Source + ?Sized),
    class: Class,
    segments: &[Segment],
) -> io::Result<Option<Vec<(u64, u64)>>> {
    let Some(dynamic) = segments.iter().find(|segment| segment.kind == PT_DYNAMIC) else {
        return Ok(None);
    };
    let Some(table) = file.bytes(dynamic.offset, dynamic.size.min(DYNAMIC_BYTES_MAX))? else {
        return Ok(None);
    };
    let entry_bytes = if class.wide { 16 } else { 8 };
    let half = entry_bytes / 2;
    let entries = table
        .chunks_exact(entry_bytes)
        .map(|entry| (number(entry, 0, half), number(entry, half, half)))
        .take_while(|(tag, _)| *tag != 0)
        .collect();
    Ok(Some(entries))
}

/// A file, or its bytes. Methods return `None` for a range outside of it.
pub(super) trait Source {
    /// How many bytes there are.
    fn length(&self) -> io::Result<u64>;
    fn bytes(&self, offset: u64, length: u64) -> io::Result<Option<Vec<u8>>>;
    /// The NUL-terminated text at `offset`.
    fn name(&self, offset: u64) -> io::Result<Option<String>>;
}

impl Source for File {
    fn length(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

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

impl Source for [u8] {
    fn length(&self) -> io::Result<u64> {
        Ok(self.len() as u64)
    }

    fn bytes(&self, offset: u64, length: u64) -> io::Result<Option<Vec<u8>>> {
        let end = offset.saturating_add(length).min(usize::MAX as u64) as usize;
        Ok(self
            .get(offset.min(usize::MAX as u64) as usize..end)
            .map(<[u8]>::to_vec))
    }

    fn name(&self, offset: u64) -> io::Result<Option<String>> {
        let text = self.get(offset.min(usize::MAX as u64) as usize..);
        Ok(text.and_then(|text| until_nul(&text[..text.len().min(NAME_BYTES_MAX + 1)])))
    }
}

fn until_nul(bytes: &[u8]) -> Option<String> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    String::from_utf8(bytes[..end].to_vec())
        .ok()
        .filter(|name| !name.is_empty())
}

/// One entry of the program header table.
#[derive(Debug)]
pub(super) struct Segment {
    pub(super) kind: u32,
    pub(super) offset: u64,
    pub(super) address: u64,
    /// Bytes in the file; in memory there may be more.
    pub(super) size: u64,
}

/// Where the program header table lies, and how long its entries are.
pub(super) struct HeaderTable {
    start: u64,
    pub(super) end: u64,
    entry_bytes: u64,
}

/// If the ELF header itself is truncated, the table is empty and ends at the header's end.
pub(super) fn header_table(file: &(impl Source + ?Sized), class: Class) -> io::Result<HeaderTable> {
    let header_bytes = if class.wide { 64 } else { 52 };
    let Some(header) = file.bytes(0, header_bytes)? else {
        return Ok(HeaderTable {
            start: header_bytes,
            end: header_bytes,
            entry_bytes: 0,
        });
    };
    let (start, entry_bytes, count) = if class.wide {
        (number(&header, 32, 8), number(&header, 54, 2), number(&header, 56, 2))
    } else {
        (number(&header, 28, 4), number(&header, 42, 2), number(&header, 44, 2))
    };
    Ok(HeaderTable {
        start,
        end: start.saturating_add(count * entry_bytes),
        entry_bytes,
    })
}

/// The program header table. `None`: it is outside of the file, or corrupt.
pub(super) fn segments(file: &(impl Source + ?Sized), class: Class) -> io::Result<Option<Vec<Segment>>> {
    let wide = class.wide;
    let table = header_table(file, class)?;
    let entry_bytes_min = if wide { 56 } else { 32 };
    let bytes_max = HEADERS_MAX * table.entry_bytes;
    if table.entry_bytes < entry_bytes_min || table.end - table.start > bytes_max {
        return Ok(None);
    }
    let Some(bytes) = file.bytes(table.start, table.end - table.start)? else {
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
    Ok(Some(bytes.chunks_exact(table.entry_bytes as usize).map(read).collect()))
}

/// File offset of a memory address.
pub(super) fn offset_of(segments: &[Segment], address: u64) -> Option<u64> {
    segments
        .iter()
        .filter(|segment| segment.kind == PT_LOAD)
        .find(|segment| address >= segment.address && address - segment.address < segment.size)
        .and_then(|segment| segment.offset.checked_add(address - segment.address))
}

/// Little-endian number of `length` bytes; the caller has checked the range.
fn number(bytes: &[u8], at: usize, length: usize) -> u64 {
    bytes[at..at + length]
        .iter()
        .rev()
        .fold(0, |value, byte| value << 8 | u64::from(*byte))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

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
        let strings_at = dynamic_at + (dynamic.len() as u64 + 4) * 16;
        dynamic.push((DT_STRTAB, strings_at));
        dynamic.push((DT_STRSZ, strings.len() as u64));
        // No symbol: an empty table may lie anywhere.
        dynamic.push((DT_SYMTAB, dynamic_at));
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
        let elf = parse(library.as_slice()).unwrap().unwrap();
        assert_eq!(elf.machine, Machine::Aarch64);
        assert_eq!(elf.soname.as_deref(), Some("libcuda.so.1"));
        assert_eq!(elf.needed, ["libnvrm_gpu.so", "libc.so.6"]);
    }

    #[test]
    fn cut_or_garbled_files_give_less_but_never_panic() {
        let whole = write_library(Machine::X86_64, Some("libcuda.so.1"), &["libc.so.6"]);
        for length in 0..whole.len() {
            let _ = parse(&whole[..length]);
        }
        for at in 0..whole.len() {
            let mut garbled = whole.clone();
            garbled[at] = 0xff;
            let _ = parse(garbled.as_slice());
        }
        assert_eq!(parse(b"#!/bin/sh\n echo this is a script".as_slice()).unwrap(), None);
    }

    #[test]
    fn this_very_test_program_needs_the_c_library() {
        let elf = read(&std::env::current_exe().unwrap()).unwrap().unwrap();
        assert_eq!(elf.machine, Machine::here());
        assert!(elf.needed.iter().any(|name| name == "libc.so.6"), "{elf:?}");
    }
}
