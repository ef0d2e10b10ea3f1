//! Parses glibc's `/etc/ld.so.cache`: names and paths of the shared libraries that the host's linker knows. Works on bytes; never opens a
//! file, and checks every offset.

use super::Machine;

/// Magic of the format before glibc 2.2, which ldconfig can still write in front of the current one.
const OLD_MAGIC: &[u8] = b"ld.so-1.7.0\0";
const OLD_ENTRY_BYTES: usize = 12;
/// Magic and version of the format since glibc 2.2.
const NEW_MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
const NEW_HEADER_BYTES: usize = 48;
const NEW_ENTRY_BYTES: usize = 24;
/// Longest name or path we accept; longer is corruption, not a file name (`PATH_MAX`).
const TEXT_BYTES_MAX: usize = 4096;

/// One library in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// The name that programs ask for, mostly a SONAME: `libcuda.so.1`.
    pub name: String,
    /// Absolute path on the host, often a symbolic link.
    pub path: String,
    /// CPU of the library.
    pub machine: Machine,
}

/// All entries of the cache, in file order. Entries of other machines or with unreadable text are left out;
/// `Err` says in a few words why the file as a whole is no cache.
pub fn parse(bytes: &[u8]) -> Result<Vec<Entry>, &'static str> {
    let cache = new_format(bytes)?;
    let count = word(cache, NEW_MAGIC.len()).ok_or("the header is cut off")? as usize;
    let entries_end = count
        .checked_mul(NEW_ENTRY_BYTES)
        .and_then(|size| size.checked_add(NEW_HEADER_BYTES))
        .ok_or("the entry count is absurd")?;
    let table = cache
        .get(NEW_HEADER_BYTES..entries_end)
        .ok_or("the entry table is cut off")?;
    Ok(table
        .chunks_exact(NEW_ENTRY_BYTES)
        .filter_map(|entry| decode(cache, entry))
        .collect())
}

/// Skips the old header, if there is one. Offsets in the new part count from its own start.
fn new_format(bytes: &[u8]) -> Result<&[u8], &'static str> {
    if bytes.starts_with(NEW_MAGIC) {
        return Ok(bytes);
    }
    if !bytes.starts_with(OLD_MAGIC) {
        return Err("it does not start like an ld.so.cache");
    }
    let count = word(bytes, OLD_MAGIC.len()).ok_or("the old header is cut off")? as usize;
    let end = count
        .checked_mul(OLD_ENTRY_BYTES)
        .and_then(|size| size.checked_add(OLD_MAGIC.len() + 4))
        .ok_or("the old entry count is absurd")?;
    let rest = bytes
        .get(end.next_multiple_of(8)..)
        .ok_or("the old entry table is cut off")?;
    if rest.starts_with(NEW_MAGIC) {
        Ok(rest)
    } else {
        Err("it only has the format of glibc before 2.2")
    }
}

fn decode(cache: &[u8], entry: &[u8]) -> Option<Entry> {
    let machine = machine_of(word(entry, 0)?)?;
    Some(Entry {
        name: text(cache, word(entry, 4)?)?,
        path: text(cache, word(entry, 8)?)?,
        machine,
    })
}

/// The low byte says ELF, the next one the machine and ABI.
fn machine_of(flags: u32) -> Option<Machine> {
    const ELF: u32 = 1;
    if flags & ELF == 0 {
        return None;
    }
    match flags & 0xff00 {
        0x0300 => Some(Machine::X86_64),
        0x0a00 => Some(Machine::Aarch64),
        0x0000 => Some(Machine::X86),
        0x0900 => Some(Machine::Arm),
        _ => None,
    }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes
        .get(at..at.checked_add(4)?)?
        .try_into()
        .ok()
        .map(u32::from_le_bytes)
}

fn text(cache: &[u8], offset: u32) -> Option<String> {
    let tail = cache.get(offset as usize..)?;
    let end = tail.iter().take(TEXT_BYTES_MAX).position(|byte| *byte == 0)?;
    String::from_utf8(tail[..end].to_vec()).ok()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Builds a cache as ldconfig would, for this and other tests.
    pub(crate) fn write_cache(entries: &[(&str, &str, u32)], with_old_header: bool) -> Vec<u8> {
        let strings_at = NEW_HEADER_BYTES + entries.len() * NEW_ENTRY_BYTES;
        let (mut table, mut strings) = (Vec::new(), Vec::new());
        for (name, path, flags) in entries {
            let name_at = strings_at + strings.len();
            strings.extend_from_slice(name.as_bytes());
            strings.push(0);
            let path_at = strings_at + strings.len();
            strings.extend_from_slice(path.as_bytes());
            strings.push(0);
            for value in [*flags, name_at as u32, path_at as u32, 0, 0, 0] {
                table.extend_from_slice(&value.to_le_bytes());
            }
        }
        let mut cache = NEW_MAGIC.to_vec();
        cache.extend_from_slice(&(entries.len() as u32).to_le_bytes());
        cache.extend_from_slice(&(strings.len() as u32).to_le_bytes());
        cache.resize(NEW_HEADER_BYTES, 0);
        cache.extend_from_slice(&table);
        cache.extend_from_slice(&strings);
        if !with_old_header {
            return cache;
        }
        let mut old = OLD_MAGIC.to_vec();
        old.extend_from_slice(&1u32.to_le_bytes());
        old.extend_from_slice(&[7; OLD_ENTRY_BYTES]);
        old.resize(old.len().next_multiple_of(8), 0);
        old.extend_from_slice(&cache);
        old
    }

    const X86_64: u32 = 0x0303;
    const AARCH64: u32 = 0x0a03;

    #[test]
    fn both_headers_and_both_machines_are_read() {
        let written = [
            ("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", X86_64),
            (
                "libcuda.so.1",
                "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1",
                AARCH64,
            ),
            ("libcuda.so.1", "/usr/lib32/libcuda.so.1", 0x0003),
            ("libold.so", "/lib/libold.so", 0x0300),
            ("libppc.so", "/lib/libppc.so", 0x0503),
        ];
        for with_old_header in [false, true] {
            let entries = parse(&write_cache(&written, with_old_header)).unwrap();
            let machines: Vec<_> = entries.iter().map(|entry| entry.machine).collect();
            assert_eq!(machines, [Machine::X86_64, Machine::Aarch64, Machine::X86]);
            assert_eq!(entries[1].path, "/usr/lib/aarch64-linux-gnu/nvidia/libcuda.so.1");
        }
    }

    #[test]
    fn a_cut_or_foreign_file_is_refused_and_never_panics() {
        assert!(parse(b"").is_err());
        assert!(parse(b"\x7fELF and so on").is_err());
        let whole = write_cache(&[("libcuda.so.1", "/usr/lib/libcuda.so.1", X86_64)], true);
        for length in 0..whole.len() {
            // A cut inside the strings only loses that entry; a cut before them is an error. Neither may panic.
            let _ = parse(&whole[..length]);
        }
        let mut absurd = NEW_MAGIC.to_vec();
        absurd.extend_from_slice(&u32::MAX.to_le_bytes());
        absurd.resize(NEW_HEADER_BYTES, 0);
        assert!(parse(&absurd).is_err());
    }

    #[test]
    fn the_cache_of_the_machine_that_runs_the_tests_has_the_c_library() {
        let Ok(bytes) = std::fs::read("/etc/ld.so.cache") else {
            return;
        };
        let entries = parse(&bytes).unwrap();
        assert!(entries.iter().any(|entry| entry.name == "libc.so.6"), "{entries:?}");
    }

    fn fuzz(fuzz: kai_fuzz::Fuzz) {
        let entries = [
            ("libcuda.so.1", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", X86_64),
            (
                "libnvidia-ml.so.1",
                "/usr/lib/aarch64-linux-gnu/nvidia/libnvidia-ml.so.1",
                AARCH64,
            ),
        ];
        let seeds = [false, true].map(|with_old_header| write_cache(&entries, with_old_header));
        fuzz.bytes(&seeds, &[OLD_MAGIC, NEW_MAGIC], |bytes| {
            for entry in parse(bytes).unwrap_or_default() {
                assert!(entry.name.len() < TEXT_BYTES_MAX && entry.path.len() < TEXT_BYTES_MAX);
            }
        });
    }

    #[test]
    fn mutated_caches_never_panic() {
        fuzz(kai_fuzz::Fuzz::short("ld.so.cache"));
    }

    #[test]
    #[ignore = "runs for KAI_FUZZ_SECONDS"]
    fn long_run_of_caches() {
        fuzz(kai_fuzz::Fuzz::long("ld.so.cache"));
    }
}
