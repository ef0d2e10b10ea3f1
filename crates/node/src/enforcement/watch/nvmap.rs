//! Memory per process on a Jetson, from nvmap's debug file. NVML lists no memory of processes there, and `/proc/meminfo` has sums only, which
//! name no pod. The file belongs to root and needs debugfs; where it can't be read, the use of pods is not known.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

const KIB: u64 = 1 << 10;

/// The file of the allocations by process, below the machine's `/sys`.
pub fn clients_file(sys: &Path) -> PathBuf {
    sys.join("kernel/debug/nvmap/iovmm/clients")
}

/// Longest name of a process.
const NAME_BYTES_MAX: usize = 15;

/// Bytes by process id.
pub fn read(file: &Path) -> io::Result<BTreeMap<u32, u64>> {
    parse(&std::fs::read(file)?).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::InvalidData,
            "its first line is not CLIENT PROCESS PID SIZE in columns",
        )
    })
}

/// Lines `CLIENT PROCESS PID SIZE` in columns as wide as those of the head, sizes in KiB with a K. A process may have several lines; the total
/// has no pid.
///
/// A process may have any bytes in its name, also the end of a line. So of a line only its end is read, where the columns PID and SIZE
/// are: together they are wider than a name, and no name can look like them.
fn parse(text: &[u8]) -> Option<BTreeMap<u32, u64>> {
    let mut lines = text.split(|byte| *byte == b'\n');
    let head = std::str::from_utf8(lines.next()?).ok()?;
    let width = head.len() - (head.find("PROCESS")? + "PROCESS".len());
    if width <= NAME_BYTES_MAX || head.split_whitespace().ne(["CLIENT", "PROCESS", "PID", "SIZE"]) {
        return None;
    }
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for line in lines {
        let Some((pid, size)) = line.len().checked_sub(width).and_then(|at| columns(&line[at..])) else {
            continue;
        };
        let process = bytes.entry(pid).or_default();
        *process = process.saturating_add(size.saturating_mul(KIB));
    }
    Some(bytes)
}

/// Process id and KiB.
fn columns(end: &[u8]) -> Option<(u32, u64)> {
    let end = std::str::from_utf8(end).ok()?.strip_prefix(' ')?;
    let mut words = end.split_whitespace();
    let (pid, size, None) = (words.next()?, words.next()?, words.next()) else {
        return None;
    };
    Some((pid.parse().ok()?, size.strip_suffix('K')?.parse().ok()?))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The file with these processes: name, pid and KiB.
    pub(crate) fn file(processes: &[(&str, u32, u64)]) -> String {
        let mut text = format!("{:<18} {:>18} {:>8} {:>11}\n", "CLIENT", "PROCESS", "PID", "SIZE");
        for (name, pid, kib) in processes {
            text.push_str(&format!("{:<18} {name:>18} {pid:>8} {kib:>10}K\n", "user"));
        }
        text + &format!("{:<18} {:>18} {:>8} {:>10}K\n", "total", "", "", 7)
    }

    fn parsed(text: &str) -> BTreeMap<u32, u64> {
        parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn sizes_are_summed_by_process() {
        let text = "\
CLIENT                        PROCESS      PID        SIZE
user                        nvargus-d     1234      30216K
user                       my program      981          4K
user                       my program      981         12K
total                                                30232K
";
        assert_eq!(parsed(text), [(981, 16 * KIB), (1234, 30_216 * KIB)].into());
        for text in ["", "user x 5 7K\n", "CLIENT PROCESS PID SIZE\n"] {
            assert_eq!(parse(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn a_name_hides_and_forges_nothing() {
        let honest = parsed(&file(&[("python3", 981, 4)]));
        for name in [
            "A\n",
            "\nu a 12 99K\n",
            "x\nu a 12 9K",
            "\n\n\n",
            "12 99K",
            "\n12      99K\n",
        ] {
            assert!(name.len() <= NAME_BYTES_MAX);
            assert_eq!(parsed(&file(&[(name, 981, 4)])), honest, "{name:?}");
        }
        // A name that is no text.
        let text = file(&[("QQ", 981, 4)]).into_bytes();
        let text: Vec<u8> = text
            .into_iter()
            .map(|byte| if byte == b'Q' { 0xff } else { byte })
            .collect();
        assert_eq!(parse(&text), Some(honest));
    }

    #[test]
    fn a_machine_without_the_file_says_so() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(&clients_file(dir.path())).is_err());
        std::fs::create_dir_all(dir.path().join("kernel/debug/nvmap/iovmm")).unwrap();
        std::fs::write(clients_file(dir.path()), file(&[("a", 1, 2)])).unwrap();
        assert_eq!(read(&clients_file(dir.path())).unwrap(), [(1, 2 * KIB)].into());
        std::fs::write(clients_file(dir.path()), "another format\n").unwrap();
        assert!(
            read(&clients_file(dir.path()))
                .unwrap_err()
                .to_string()
                .contains("CLIENT PROCESS")
        );
    }
}
