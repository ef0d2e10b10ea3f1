//! Finds the version of containerd in a program file without running it: Go stores the modules of a program in it as text. k3s contains
//! containerd in its own program, so no package database has the version.

use std::fs::File;
use std::io::Read;
use std::path::Path;

/// Programs are read in pieces of this size, because k3s has 70 MB and more.
const PIECE_BYTES: usize = 1 << 20;
/// Overlap of two pieces: the longest line that is searched for.
const LINE_BYTES_MAX: usize = 512;

/// Text before a version, the most reliable first: the fork that k3s and RKE2 use, the linker's flag, the module itself.
const BEFORE_VERSION: [&[u8]; 6] = [
    b"=>\tgithub.com/k3s-io/containerd/v2\t",
    b"=>\tgithub.com/k3s-io/containerd\t",
    b"github.com/containerd/containerd/v2/version.Version=",
    b"github.com/containerd/containerd/version.Version=",
    b"\tgithub.com/containerd/containerd/v2\t",
    b"\tgithub.com/containerd/containerd\t",
];

/// The version of containerd (`2.1.4-k3s1`) in a program, if it has one.
pub(crate) fn containerd_version(program: &Path) -> Option<String> {
    let file = File::open(program).ok()?;
    let mut found: Option<(usize, String)> = None;
    let mut buffer = Vec::with_capacity(PIECE_BYTES + LINE_BYTES_MAX);
    let mut file = std::io::BufReader::with_capacity(PIECE_BYTES, file);
    loop {
        let read = file.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut buffer).ok()?;
        for (rank, before) in BEFORE_VERSION.iter().enumerate() {
            if found.as_ref().is_none_or(|(best, _)| rank < *best)
                && let Some(version) = version_after(&buffer, before)
            {
                found = Some((rank, version));
            }
        }
        if read == 0 || found.as_ref().is_some_and(|(rank, _)| *rank == 0) {
            return found.map(|(_, version)| version);
        }
        let keep = buffer.len().saturating_sub(LINE_BYTES_MAX);
        buffer.drain(..keep);
    }
}

/// The first version (`v1.2.3...`) right after `before`.
fn version_after(bytes: &[u8], before: &[u8]) -> Option<String> {
    let mut rest = bytes;
    // Comparing the first byte first keeps the search fast on a program of many megabytes.
    while let Some(at) = rest.iter().position(|byte| *byte == before[0]) {
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix(before)
            && let Some(version) = version(after)
        {
            return Some(version);
        }
        rest = &rest[1..];
    }
    None
}

fn version(bytes: &[u8]) -> Option<String> {
    let digits = bytes.strip_prefix(b"v")?;
    let legal = |byte: &u8| byte.is_ascii_alphanumeric() || b".-+".contains(byte);
    let length = digits.iter().take_while(|byte| legal(byte)).count();
    // A version that the end of a piece cuts off is complete in the next piece.
    let whole = length < digits.len();
    let text = String::from_utf8(digits[..length].to_vec()).ok()?;
    (whole && text.starts_with(|first: char| first.is_ascii_digit())).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, padding: usize) -> Option<String> {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("program");
        let mut bytes = vec![b'.'; padding];
        bytes.extend(text.as_bytes());
        bytes.extend([0; 64]);
        std::fs::write(&path, bytes).unwrap();
        containerd_version(&path)
    }

    #[test]
    fn versions_are_read_from_what_go_wrote_into_a_program() {
        let k3s = "path\tgithub.com/k3s-io/k3s/cmd/server\ndep\tgithub.com/containerd/containerd/api\tv1.9.0\n\
                   dep\tgithub.com/containerd/containerd/v2\tv2.0.0\n=>\tgithub.com/k3s-io/containerd/v2\tv2.1.4-k3s1.33\th1:x=\n";
        assert_eq!(check(k3s, 0).as_deref(), Some("2.1.4-k3s1.33"));
        // Across the border of two pieces, wherever it falls.
        for padding in ((PIECE_BYTES - 260)..=PIECE_BYTES).step_by(20) {
            assert_eq!(check(k3s, padding).as_deref(), Some("2.1.4-k3s1.33"), "{padding}");
        }
        let old =
            "dep\tgithub.com/containerd/containerd\tv1.7.11\n=>\tgithub.com/k3s-io/containerd\tv1.7.11-k3s2\th1:y=\n";
        assert_eq!(check(old, 9).as_deref(), Some("1.7.11-k3s2"));
        let plain = "mod\tgithub.com/containerd/containerd\t(devel)\nbuild\t-ldflags=\"-X github.com/containerd/containerd/version.Version=v1.7.27 -s\"\n";
        assert_eq!(check(plain, 0).as_deref(), Some("1.7.27"));
        assert_eq!(check("dep\tgithub.com/containerd/containerd/api\tv1.9.0\n", 0), None);
        assert_eq!(containerd_version(Path::new("/nonexistent")), None);
    }
}
