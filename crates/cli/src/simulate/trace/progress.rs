//! A bar on a terminal while traces are replayed. Nothing is written where standard error is no terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Letters of the bar.
const WIDTH: usize = 40;

/// The progress of all runs together.
pub(super) struct Progress {
    pods: usize,
    arrived: AtomicUsize,
    is_shown: bool,
}

/// The progress of one run.
pub(super) struct RunProgress<'p> {
    all: &'p Progress,
    arrived: usize,
}

impl Progress {
    /// The progress of runs with so many pods in all.
    pub(super) fn new(pods: usize) -> Progress {
        Progress {
            pods,
            arrived: AtomicUsize::new(0),
            is_shown: io::stderr().is_terminal(),
        }
    }

    /// A run that begins.
    pub(super) fn run(&self) -> RunProgress<'_> {
        RunProgress { all: self, arrived: 0 }
    }

    /// Removes the bar.
    pub(super) fn clear(&self) {
        if self.is_shown {
            let _ = write!(io::stderr(), "\r\u{1b}[K");
        }
    }

    fn show(&self, arrived: usize) {
        let filled = WIDTH * arrived / self.pods.max(1);
        let (done, rest) = ("\u{2588}".repeat(filled), "\u{2591}".repeat(WIDTH - filled.min(WIDTH)));
        // A terminal that can't be written to shows no bar.
        let _ = write!(io::stderr(), "\r{done}{rest} {arrived} of {} pods", self.pods);
    }
}

impl RunProgress<'_> {
    /// So many pods of this run have arrived.
    pub(super) fn at(&mut self, arrived: usize) {
        let added = arrived - std::mem::replace(&mut self.arrived, arrived);
        let sum = self.all.arrived.fetch_add(added, Ordering::Relaxed) + added;
        if self.all.is_shown {
            self.all.show(sum);
        }
    }
}
