//! Warnings for the user. Bounded, so that a file with a hundred thousand invalid pods prints few lines.

use std::fmt;
use std::path::Path;

/// The lines that are kept; further ones are counted.
const LINES_MAX: usize = 50;

/// Warnings about one scenario.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Warnings {
    lines: Vec<String>,
    more: usize,
}

impl Warnings {
    /// Adds a line.
    pub fn push(&mut self, line: impl fmt::Display) {
        if self.lines.len() < LINES_MAX {
            self.lines.push(line.to_string());
        } else {
            self.more += 1;
        }
    }

    /// All kept lines, and a line with the number of further ones.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let more = (self.more > 0).then(|| format!("... and {} more warnings", self.more));
        self.lines.iter().cloned().chain(more)
    }

    /// Adds a line about a file.
    pub fn push_about(&mut self, file: &Path, line: impl fmt::Display) {
        self.push(format_args!("{}: {line}", file.display()));
    }

    /// The number of warnings.
    pub fn count(&self) -> usize {
        self.lines.len() + self.more
    }

    /// Appends the warnings of another list.
    pub fn extend(&mut self, other: Warnings) {
        self.more += other.more;
        other.lines.into_iter().for_each(|line| self.push(line));
    }

    /// Appends the warnings of another list, with the file.
    pub fn extend_about(&mut self, file: &Path, other: Warnings) {
        self.more += other.more;
        for line in other.lines {
            self.push_about(file, line);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_bounded() {
        let mut warnings = Warnings::default();
        for number in 0..60 {
            warnings.push(number);
        }
        assert_eq!(warnings.lines().count(), LINES_MAX + 1);
        assert_eq!(warnings.lines().last().as_deref(), Some("... and 10 more warnings"));
    }
}
