//! A bar on a terminal during long runs. Nothing is written where standard error is no terminal.

use std::io::{self, IsTerminal as _, Write as _};
use std::sync::atomic::{AtomicUsize, Ordering};

/// Letters of the bar.
const WIDTH: usize = 40;

/// The progress of all runs together.
pub(super) struct Progress {
    all: usize,
    /// What is counted.
    what: &'static str,
    arrived: AtomicUsize,
    is_shown: bool,
}

/// The progress of one run.
pub(super) struct RunProgress<'p> {
    all: &'p Progress,
    arrived: usize,
}

impl Progress {
    /// The progress of runs with so many of something in all.
    pub(super) fn new(all: usize, what: &'static str) -> Progress {
        Progress {
            all,
            what,
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
        let filled = WIDTH * arrived / self.all.max(1);
        let (done, rest) = ("\u{2588}".repeat(filled), "\u{2591}".repeat(WIDTH - filled.min(WIDTH)));
        // A terminal that can't be written to shows no bar.
        let _ = write!(io::stderr(), "\r{done}{rest} {arrived} of {} {}", self.all, self.what);
    }
}

impl RunProgress<'_> {
    /// So many of this run are done.
    pub(super) fn at(&mut self, arrived: usize) {
        let added = arrived - std::mem::replace(&mut self.arrived, arrived);
        let sum = self.all.arrived.fetch_add(added, Ordering::Relaxed) + added;
        if self.all.is_shown {
            self.all.show(sum);
        }
    }
}
