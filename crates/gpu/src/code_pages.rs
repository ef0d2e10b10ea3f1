//! Releases pages of the program that only its start needed: code, and constants beside it. The first access to 64 KiB maps all of it, and
//! the pages stay mapped until memory is short; in an idle node agent these were 5 of 18 MiB.
#![allow(unsafe_code)]

use std::io;
use std::ops::Range;

use rustix::mm::{Advice, madvise};

/// Releases the mapped pages of the program's code and constants, and returns an upper bound on their bytes. What is used again is mapped
/// again, from the page cache unless memory was short meanwhile.
pub fn release() -> io::Result<usize> {
    let program = std::fs::read_link("/proc/self/exe")?;
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let mut bytes = 0;
    for part in unchanged_parts(&program.to_string_lossy(), &maps) {
        // SAFETY: the range is a segment of the running program, which is never unmapped, so nothing else can have come to lie there. The
        // mapping is not writable and never was (`is_unchanged`): its pages are those of the file, and the kernel brings the same ones at
        // the next access. An address that is out of range is refused.
        unsafe { madvise(part.start as *mut _, part.len(), Advice::LinuxDontNeed) }?;
        bytes += part.len();
    }
    Ok(bytes)
}

/// Address ranges of `program` in the kernel's list that have the content of the file.
fn unchanged_parts(program: &str, maps: &str) -> Vec<Range<usize>> {
    let part = |line: &str| {
        let mut words = line.splitn(6, ' ');
        let (from, to) = words.next()?.split_once('-')?;
        let (permissions, offset) = (words.next()?, words.next()?);
        let found = is_unchanged(permissions, offset) && words.nth(2)?.trim_start() == program;
        let address = |text| usize::from_str_radix(text, 16).ok();
        found.then_some(address(from)?..address(to)?)
    };
    maps.lines().filter_map(part).collect()
}

/// Code; and the segment at the start of the file, which has the constants. Other segments that can only be read are not released: the
/// dynamic linker has written addresses into them before it protected them.
fn is_unchanged(permissions: &str, offset: &str) -> bool {
    let is_first = offset.bytes().all(|digit| digit == b'0');
    permissions == "r-xp" || (permissions == "r--p" && is_first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_programs_own_code_and_constants() {
        let maps = "\
00400000-00500000 r--p 00000000 fe:00 123                        /usr/bin/kai
00500000-01f00000 r-xp 00100000 fe:00 123                        /usr/bin/kai
01f00000-02000000 r--p 01b00000 fe:00 123                        /usr/bin/kai
02000000-02010000 rw-p 01c00000 fe:00 123                        /usr/bin/kai
02010000-02020000 rwxp 00000000 fe:00 123                        /usr/bin/kai
02020000-02100000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0000010000 r-xp 00000000 00:00 0 
7f0000010000-7f0000020000 r-xp 00028000 fe:00 456                /usr/lib/libc.so.6
7f0000020000-7f0000030000 r-xp 00000000 fe:00 789                /usr/bin/kai (deleted)
7ffd00000000-7ffd00002000 r-xp 00000000 00:00 0                  [vdso]
";
        let parts_of = |program: &str| -> Vec<(usize, usize)> {
            let found = unchanged_parts(program, maps);
            found.into_iter().map(|part| (part.start, part.end)).collect()
        };
        assert_eq!(
            parts_of("/usr/bin/kai"),
            [(0x40_0000, 0x50_0000), (0x50_0000, 0x1f0_0000)]
        );
        assert_eq!(
            parts_of("/usr/bin/kai (deleted)"),
            [(0x7f00_0002_0000, 0x7f00_0003_0000)]
        );
        assert!(parts_of("/usr/bin/other").is_empty());
        assert!(unchanged_parts("", "nonsense\n\n-- r-xp").is_empty());
    }

    #[test]
    fn the_program_runs_on() {
        for _ in 0..3 {
            assert!(release().unwrap() > 0, "code of the test itself");
            assert_eq!(
                format!("{:?}", [1.5, 2.0].map(f64::sqrt)),
                "[1.224744871391589, 1.4142135623730951]"
            );
        }
    }
}
