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

/// Bytes by process id.
pub fn read(file: &Path) -> io::Result<BTreeMap<u32, u64>> {
    Ok(parse(&std::fs::read_to_string(file)?))
}

/// Lines `CLIENT PROCESS PID SIZE`, sizes in KiB with a K. A process may have several lines; the head and the total have no pid.
fn parse(text: &str) -> BTreeMap<u32, u64> {
    let mut bytes: BTreeMap<u32, u64> = BTreeMap::new();
    for line in text.lines() {
        let mut words = line.split_whitespace().rev();
        let size = words.next().and_then(|word| word.strip_suffix('K'));
        let size: Option<u64> = size.and_then(|digits| digits.parse().ok());
        // A process name may contain spaces, so the line is read from its end. The total has neither name nor pid.
        let pid: Option<u32> = words.next().and_then(|word| word.parse().ok());
        let has_names = words.count() >= 2;
        if let (Some(size), Some(pid), true) = (size, pid, has_names) {
            *bytes.entry(pid).or_default() += size * KIB;
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_summed_by_process() {
        let text = "\
CLIENT                        PROCESS      PID        SIZE
user                         nvargus-d     1234      30216K
user                         my program     981          4K
user                         my program     981         12K
total                                                30232K
";
        assert_eq!(parse(text), [(981, 16 * KIB), (1234, 30_216 * KIB)].into());
        assert_eq!(parse(""), BTreeMap::new());
        assert_eq!(parse("user x 5 7M\nuser x y 7K\n5 7K\n"), BTreeMap::new());
    }

    #[test]
    fn a_machine_without_the_file_says_so() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(&clients_file(dir.path())).is_err());
        std::fs::create_dir_all(dir.path().join("kernel/debug/nvmap/iovmm")).unwrap();
        std::fs::write(clients_file(dir.path()), "user a 1 2K\n").unwrap();
        assert_eq!(read(&clients_file(dir.path())).unwrap(), [(1, 2 * KIB)].into());
    }
}
