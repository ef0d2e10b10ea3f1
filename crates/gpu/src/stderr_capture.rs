//! Captures stderr during calls into NVIDIA's Tegra libraries. They print messages at every call if a device node is missing or forbidden
//! (`NvRmMemInitNvmap failed ...`); each message is shown once, as a note. Other lines, such as our own logs from other threads, are passed
//! on.

use std::collections::BTreeSet;
use std::io::{Read, Seek, Write};

use parking_lot::Mutex;
use rustix::fs::MemfdFlags;

/// stderr belongs to the whole process, so only one capture may run at a time.
static STDERR: Mutex<()> = Mutex::new(());

/// Upper bound on captured lines. A library that prints more repeats itself with other addresses.
const LINES_MAX: usize = 20;

/// Runs `work` while stderr goes to memory. Returns its result and the distinct messages of Tegra's libraries.
///
/// If stderr can't be redirected (closed, no memory), `work` runs and no line is captured.
pub(crate) fn capture<T>(work: impl FnOnce() -> T) -> (T, Vec<String>) {
    let _only_one = STDERR.lock();
    let Some(redirected) = Redirected::begin() else {
        return (work(), Vec::new());
    };
    let result = work();
    let text = redirected.end();
    let (captured, other): (Vec<&str>, Vec<&str>) = text.lines().partition(|line| is_tegra_message(line));
    for line in other {
        let _ = writeln!(std::io::stderr(), "{line}");
    }
    let distinct: BTreeSet<&str> = captured.into_iter().map(str::trim).collect();
    (
        result,
        distinct.into_iter().take(LINES_MAX).map(str::to_owned).collect(),
    )
}

/// Whether a line has a prefix of NVIDIA's resource manager or memory libraries on Tegra.
fn is_tegra_message(line: &str) -> bool {
    let line = line.trim_start();
    let prefixes = [
        "NvRm", "NvMap", "Nvmap", "NVMAP", "nvmap", "NVRM", "libnvrm", "NvSci", "NvOs", "NvTegra", "nvgpu", "****NvRm",
    ];
    prefixes.iter().any(|prefix| line.starts_with(prefix)) || line.contains("/dev/nvmap") || line.contains("NvRm")
}

/// Redirects stderr to memory. Restores it when dropped, also after a panic.
struct Redirected {
    original: rustix::fd::OwnedFd,
    memory: std::fs::File,
}

impl Redirected {
    fn begin() -> Option<Self> {
        let memory = rustix::fs::memfd_create("kai-stderr", MemfdFlags::CLOEXEC).ok()?;
        let original = rustix::io::fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3).ok()?;
        rustix::stdio::dup2_stderr(&memory).ok()?;
        Some(Self {
            original,
            memory: memory.into(),
        })
    }

    fn end(mut self) -> String {
        self.restore();
        let mut bytes = Vec::new();
        let read = self.memory.rewind().and_then(|()| self.memory.read_to_end(&mut bytes));
        read.map(|_| String::from_utf8_lossy(&bytes).into_owned())
            .unwrap_or_default()
    }

    fn restore(&self) {
        let _ = rustix::stdio::dup2_stderr(&self.original);
    }
}

impl Drop for Redirected {
    fn drop(&mut self) {
        self.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Raw, as a C library does it: the test harness intercepts `eprintln!`.
    fn print(text: &str) {
        rustix::io::write(rustix::stdio::stderr(), text.as_bytes()).unwrap();
    }

    #[test]
    fn noise_is_kept_once_and_the_rest_passes() {
        let ((), outer) = capture_nested();
        assert_eq!(
            outer,
            [
                "NvRmMemInitNvmap failed with Permission denied",
                "NvRmMemMgrInit failed"
            ]
        );
    }

    fn capture_nested() -> ((), Vec<String>) {
        capture(|| {
            for _ in 0..3 {
                print("NvRmMemInitNvmap failed with Permission denied\n");
            }
            print("NvRmMemMgrInit failed\n");
        })
    }

    #[test]
    fn stderr_returns_after_a_panic() {
        // The lock: another test may capture at the same time.
        let stderr_file = || {
            let _only_one = STDERR.lock();
            let stat = rustix::fs::fstat(rustix::stdio::stderr()).unwrap();
            (stat.st_dev, stat.st_ino)
        };
        let before = stderr_file();
        let result = std::panic::catch_unwind(|| capture(|| panic!("on purpose")));
        assert!(result.is_err());
        assert_eq!(before, stderr_file());
    }

    #[test]
    fn our_own_lines_are_no_noise() {
        assert!(is_tegra_message("NvRmMemInitNvmap failed with Permission denied"));
        assert!(is_tegra_message("Can't open /dev/nvmap: Permission denied"));
        assert!(is_tegra_message("****NvRmMemMgrInit failed**** error type: 196626"));
        assert!(!is_tegra_message("2026-01-01T00:00:00Z INFO node: registered"));
    }
}
