//! The output device: its width, and whether it has colours.

use std::io::IsTerminal;

/// Columns of a file or pipe.
const WIDTH_OF_FILES: u16 = 120;
/// A narrower terminal gets tables of this width.
const WIDTH_MIN: u16 = 40;

/// A terminal, a file or a pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Screen {
    /// Columns of tables.
    pub(super) width: u16,
    /// Whether sentences are wrapped to the width. In files they are not, so that programs find them.
    pub(super) wraps: bool,
    pub(super) colour: bool,
}

impl Screen {
    pub(super) fn of_stdout() -> Screen {
        let out = std::io::stdout();
        let is_terminal = out.is_terminal();
        let size = is_terminal.then(|| rustix::termios::tcgetwinsize(&out).ok()).flatten();
        let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
        let width = size.map(|size| size.ws_col).filter(|width| *width > 0).or(told);
        Screen {
            width: width.unwrap_or(WIDTH_OF_FILES).max(WIDTH_MIN),
            wraps: is_terminal,
            colour: is_terminal && !crate::grid::Screen::is_plain(),
        }
    }

    /// Wraps the text to the width. `first` precedes it and is `first_width` columns wide; further lines are indented by as much.
    pub(super) fn sentence(self, first: &str, first_width: usize, text: &str) -> String {
        if !self.wraps {
            return format!("{first}{text}");
        }
        let width = usize::from(self.width);
        let mut lines = first.to_owned();
        let mut column = first_width;
        for word in text.split(' ') {
            let length = word.chars().count();
            let at_start = column == first_width;
            if !at_start && column + 1 + length > width {
                lines.push('\n');
                lines.push_str(&" ".repeat(first_width));
                column = first_width;
            } else if !at_start {
                lines.push(' ');
                column += 1;
            }
            lines.push_str(word);
            column += length;
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sentences_are_wrapped_on_terminals_only() {
        let mut screen = Screen {
            width: 20,
            wraps: true,
            colour: false,
        };
        let text = "no node has as much memory as that";
        assert_eq!(
            screen.sentence("  ok ", 5, text),
            "  ok no node has as\n     much memory as\n     that"
        );
        screen.wraps = false;
        assert_eq!(screen.sentence("  ok ", 5, text), format!("  ok {text}"));
    }
}
