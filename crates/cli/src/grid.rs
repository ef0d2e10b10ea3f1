//! Tables for a terminal: columns side by side, long cells wrapped to the width of the terminal, colours that take no width.
//!
//! Colour is an attribute of each character and not part of the text, so that widths are those that a person sees.
//! Control characters are shown as escapes: a name in a file never reaches the terminal as a command to it.

use std::fmt::Write as _;

use unicode_width::UnicodeWidthChar;

/// A column that is too wide is never made narrower than this.
const WIDTH_MIN: usize = 12;
/// Spaces between two columns.
const GAP: usize = 2;

/// An SGR code of a terminal, such as `32` for green.
pub(crate) type Colour = &'static str;

/// Where the text of a column stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Align {
    /// Texts.
    Left,
    /// Numbers.
    Right,
}

/// Stands for what a short cell leaves out.
const CUT_MARK: char = '…';

/// Where a cell is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Sentences.
    End,
    /// Names.
    Middle,
}

/// One cell: characters, each with its colour.
#[derive(Clone, Debug, Default)]
pub(crate) struct Cell {
    characters: Vec<(char, Option<Colour>)>,
}

impl Cell {
    /// Appends text. Control characters become escapes.
    pub(crate) fn push(&mut self, text: &str, colour: Option<Colour>) {
        let shown = printable(text);
        self.characters
            .extend(shown.chars().map(|character| (character, colour)));
    }

    /// Whether it has no text.
    pub(crate) fn is_empty(&self) -> bool {
        self.characters.is_empty()
    }

    /// A cell of one colour.
    pub(crate) fn coloured(text: &str, colour: Colour) -> Cell {
        let mut cell = Cell::default();
        cell.push(text, Some(colour));
        cell
    }

    /// Its text, without colours.
    pub(crate) fn text(&self) -> String {
        self.characters.iter().map(|(character, _)| character).collect()
    }

    /// Columns of a terminal.
    pub(crate) fn width(&self) -> usize {
        width(&self.characters)
    }

    /// The cell in `max` columns at most, with a mark where something was left out.
    pub(crate) fn shortened(&self, max: usize, cut: Cut) -> Cell {
        if self.width() <= max {
            return self.clone();
        }
        let room = max.saturating_sub(CUT_MARK.width().unwrap_or(0));
        let head = match cut {
            Cut::End => room,
            // The end of a name tells more: kinds and namespaces are alike.
            Cut::Middle => room / 3,
        };
        let mut characters = fitting(self.characters.iter(), head);
        let tail = match cut {
            Cut::End => 0,
            Cut::Middle => room - width(&characters),
        };
        let mut tail = fitting(self.characters.iter().rev(), tail);
        tail.reverse();
        if max > 0 {
            characters.push((CUT_MARK, None));
        }
        characters.append(&mut tail);
        Cell { characters }
    }

    /// Appends another cell.
    pub(crate) fn append(&mut self, mut other: Cell) {
        self.characters.append(&mut other.characters);
    }

    /// Its text, in parts of one colour each.
    pub(crate) fn pieces(&self) -> impl Iterator<Item = (String, Option<Colour>)> {
        let parts = self.characters.chunk_by(|(_, a), (_, b)| a == b);
        parts.map(|part| (part.iter().map(|(character, _)| character).collect(), part[0].1))
    }

    /// The lines of the cell, none wider than `max`. Breaks are at spaces where there are any.
    fn lines(&self, max: usize) -> Vec<&[(char, Option<Colour>)]> {
        let mut lines = Vec::new();
        let mut rest = self.characters.as_slice();
        while width(rest) > max {
            let mut used = 0;
            let fitting = rest.iter().take_while(|(character, _)| {
                used += character.width().unwrap_or(0);
                used <= max
            });
            // At least one character per line, so that the loop ends.
            let fitting = fitting.count().max(1);
            let space = rest[..=fitting.min(rest.len() - 1)]
                .iter()
                .rposition(|(character, _)| *character == ' ')
                // A break within the indentation would give an empty line.
                .filter(|at| rest[..*at].iter().any(|(character, _)| *character != ' '));
            let (line, next) = match space {
                Some(at) => (&rest[..at], &rest[at + 1..]),
                None => rest.split_at(fitting),
            };
            lines.push(line);
            rest = next;
        }
        lines.push(rest);
        lines
    }
}

impl<T: AsRef<str>> From<T> for Cell {
    fn from(text: T) -> Cell {
        let mut cell = Cell::default();
        cell.push(text.as_ref(), None);
        cell
    }
}

/// A table in the making.
#[derive(Debug)]
pub(crate) struct Grid {
    columns: Vec<Align>,
    rows: Vec<Vec<Cell>>,
}

impl Grid {
    /// A table with these headings.
    pub(crate) fn new(columns: &[(&str, Align)]) -> Grid {
        Grid {
            columns: columns.iter().map(|(_, align)| *align).collect(),
            rows: vec![columns.iter().map(|(heading, _)| Cell::from(heading)).collect()],
        }
    }

    /// Whether it has only headings.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() <= 1
    }

    /// Adds a row: a cell per column.
    pub(crate) fn row(&mut self, cells: Vec<Cell>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a cell per column");
        self.rows.push(cells);
    }

    /// The lines of the table, without spaces at their ends. Where room is short, empty columns are left out.
    pub(crate) fn lines(&self, screen: Screen) -> Vec<String> {
        let natural = self.widths(None);
        match screen.width_max {
            Some(width_max) if total(&natural) > width_max => {
                let grid = self.without_empty_columns();
                grid.lines_of(&grid.widths(Some(width_max)), screen)
            }
            _ => self.lines_of(&natural, screen),
        }
    }

    fn without_empty_columns(&self) -> Grid {
        let is_empty = |at: usize| {
            let mut cells = self.rows.iter().skip(1).filter_map(|row| row.get(at));
            cells.all(|cell| cell.characters.is_empty())
        };
        let kept: Vec<usize> = (0..self.columns.len()).filter(|at| !is_empty(*at)).collect();
        Grid {
            columns: kept.iter().map(|at| self.columns[*at]).collect(),
            rows: self
                .rows
                .iter()
                .map(|row| kept.iter().filter_map(|at| row.get(*at)).cloned().collect())
                .collect(),
        }
    }

    fn lines_of(&self, widths: &[usize], screen: Screen) -> Vec<String> {
        let mut lines = Vec::new();
        for row in &self.rows {
            let cells: Vec<_> = row.iter().zip(widths).map(|(cell, width)| cell.lines(*width)).collect();
            let height = cells.iter().map(Vec::len).max().unwrap_or(0);
            for at in 0..height {
                let mut line = Line {
                    text: String::from(" "),
                    spaces: 0,
                    colours: screen.colours,
                };
                for ((cell, width), align) in cells.iter().zip(widths).zip(&self.columns) {
                    line.cell(cell.get(at).copied().unwrap_or_default(), *width, *align);
                    line.spaces += GAP;
                }
                lines.push(line.text);
            }
        }
        lines
    }

    /// Widths of the columns: those of their contents, the widest made narrower until all fit.
    fn widths(&self, width_max: Option<usize>) -> Vec<usize> {
        let content = |at: usize| self.rows.iter().filter_map(|row| row.get(at)).map(Cell::width).max();
        let mut widths: Vec<usize> = (0..self.columns.len()).map(|at| content(at).unwrap_or(0)).collect();
        let Some(width_max) = width_max else { return widths };
        while total(&widths) > width_max {
            match widths.iter_mut().max() {
                Some(widest) if *widest > WIDTH_MIN => *widest -= 1,
                _ => break,
            }
        }
        widths
    }
}

/// The width of a table: the space at the left, the columns and the gaps.
fn total(widths: &[usize]) -> usize {
    1 + widths.iter().sum::<usize>() + GAP * widths.len().saturating_sub(1)
}

/// What the output can show.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Screen {
    /// Columns of the terminal; `None` = any number, as in a file.
    pub(crate) width_max: Option<usize>,
    /// Whether colours are written.
    pub(crate) colours: bool,
}

impl Screen {
    /// What standard output is: a terminal of some width, or a file. `COLUMNS` gives a file a width.
    pub(crate) fn of_standard_output() -> Screen {
        use std::io::IsTerminal as _;
        let out = std::io::stdout();
        if !out.is_terminal() {
            let told = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
            return Screen {
                width_max: told.filter(|width| *width > 0),
                colours: false,
            };
        }
        let size = rustix::termios::tcgetwinsize(&out).ok();
        Screen {
            // A terminal that does not tell its size says 0.
            width_max: size.map(|size| usize::from(size.ws_col)).filter(|width| *width > 0),
            colours: !Screen::is_plain(),
        }
    }

    /// Whether a terminal shall show no colours: by `NO_COLOR` with any value but an empty one (no-color.org).
    pub(crate) fn is_plain() -> bool {
        std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
    }

    /// A text outside of tables, wrapped.
    pub(crate) fn lines(self, text: &Cell) -> Vec<String> {
        let lines = text.lines(self.width_max.unwrap_or(usize::MAX));
        let painted = lines.into_iter().map(|characters| {
            let mut line = Line {
                text: String::new(),
                spaces: 0,
                colours: self.colours,
            };
            line.cell(characters, 0, Align::Left);
            line.text
        });
        painted.collect()
    }
}

/// A line in the making. Spaces are written only before something else.
struct Line {
    text: String,
    spaces: usize,
    colours: bool,
}

impl Line {
    fn cell(&mut self, characters: &[(char, Option<Colour>)], width_of_column: usize, align: Align) {
        let missing = width_of_column.saturating_sub(width(characters));
        if align == Align::Right {
            self.spaces += missing;
        }
        let mut before = None;
        for (character, colour) in characters {
            if *character == ' ' && before.is_none() {
                self.spaces += 1;
                continue;
            }
            for _ in 0..std::mem::take(&mut self.spaces) {
                self.text.push(' ');
            }
            self.change(before, *colour);
            before = *colour;
            self.text.push(*character);
        }
        self.change(before, None);
        if align == Align::Left {
            self.spaces += missing;
        }
    }

    fn change(&mut self, before: Option<Colour>, after: Option<Colour>) {
        if !self.colours || before == after {
            return;
        }
        if before.is_some() {
            self.text.push_str("\u{1b}[0m");
        }
        if let Some(colour) = after {
            let _ = write!(self.text, "\u{1b}[{colour}m");
        }
    }
}

/// The first characters that fit into `max` columns.
fn fitting<'a>(
    characters: impl Iterator<Item = &'a (char, Option<Colour>)>,
    max: usize,
) -> Vec<(char, Option<Colour>)> {
    let mut used = 0;
    let fits = characters.take_while(|(character, _)| {
        used += character.width().unwrap_or(0);
        used <= max
    });
    fits.copied().collect()
}

fn width(characters: &[(char, Option<Colour>)]) -> usize {
    characters
        .iter()
        .map(|(character, _)| character.width().unwrap_or(0))
        .sum()
}

/// The text with control characters, and characters that change the direction of writing, as escapes.
pub(crate) fn printable(text: &str) -> std::borrow::Cow<'_, str> {
    let hides = |character: char| {
        character.is_control()
            || matches!(character, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    if !text.contains(hides) {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for character in text.chars() {
        match hides(character) {
            true => shown.extend(character.escape_default()),
            false => shown.push(character),
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TERMINAL: Screen = Screen {
        width_max: Some(40),
        colours: true,
    };

    fn without_colours(line: &str) -> String {
        let mut text = String::new();
        let mut rest = line;
        while let Some((before, after)) = rest.split_once('\u{1b}') {
            text.push_str(before);
            rest = after.split_once('m').unwrap().1;
        }
        text + rest
    }

    fn sample() -> Grid {
        let mut grid = Grid::new(&[
            ("POD", Align::Left),
            ("STATUS", Align::Left),
            ("GPUS", Align::Right),
            ("REASON", Align::Left),
        ]);
        grid.row(vec![
            "a".into(),
            Cell::coloured("Running", "32"),
            "1".into(),
            Cell::default(),
        ]);
        grid.row(vec![
            "b".into(),
            Cell::coloured("Pending", "36"),
            "12".into(),
            "no nodes with enough resources were found".into(),
        ]);
        grid
    }

    #[test]
    fn colours_take_no_width() {
        let coloured = sample().lines(TERMINAL);
        let plain = sample().lines(Screen {
            colours: false,
            ..TERMINAL
        });
        assert!(coloured[1].contains("\u{1b}[32mRunning\u{1b}[0m"), "{coloured:?}");
        assert_eq!(
            coloured.iter().map(|line| without_colours(line)).collect::<Vec<_>>(),
            plain
        );
    }

    #[test]
    fn long_cells_are_wrapped_to_the_terminal() {
        let lines = sample().lines(Screen {
            colours: false,
            ..TERMINAL
        });
        insta::assert_snapshot!(lines.join("\n"), @r"
        POD  STATUS   GPUS  REASON
        a    Running     1
        b    Pending    12  no nodes with
                            enough resources
                            were found
        ");
        let unbounded = sample().lines(Screen {
            width_max: None,
            colours: false,
        });
        assert_eq!(unbounded.len(), 3);
    }

    #[test]
    fn empty_columns_are_left_out_where_room_is_short() {
        let mut grid = Grid::new(&["POD", "GPU GROUPS", "REASON"].map(|heading| (heading, Align::Left)));
        grid.row(vec!["a".into(), Cell::default(), "a reason of many words".into()]);
        let lines = |width: usize| {
            grid.lines(Screen {
                width_max: Some(width),
                colours: false,
            })
        };
        assert_eq!(lines(30), [" POD  REASON", " a    a reason of many words"]);
        assert_eq!(lines(80)[0], " POD  GPU GROUPS  REASON");
    }

    #[test]
    fn a_long_name_without_spaces_is_broken() {
        let mut grid = Grid::new(&[("POD", Align::Left), ("NODE", Align::Left)]);
        grid.row(vec!["x".repeat(50).into(), "node".into()]);
        let lines = grid.lines(Screen {
            width_max: Some(30),
            colours: false,
        });
        assert!(lines.iter().all(|line| line.chars().count() <= 30), "{lines:?}");
        assert_eq!(lines.concat().matches('x').count(), 50);
    }

    #[test]
    fn a_short_cell_says_that_it_is_cut() {
        let check = |text: &str, max: usize, cut: Cut, expect: &str| {
            let shortened = Cell::from(text).shortened(max, cut);
            assert_eq!(shortened.text(), expect);
            assert!(shortened.width() <= max);
        };
        check("Job team/train", 14, Cut::Middle, "Job team/train");
        check("Deployment team/train", 14, Cut::Middle, "Depl…eam/train");
        check("no nodes with room", 9, Cut::End, "no nodes…");
        check("größe", 1, Cut::End, "…");
        check("größe", 0, Cut::Middle, "");
        check("名前名前", 5, Cut::Middle, "…名前");
    }

    #[test]
    fn control_characters_are_escaped() {
        assert_eq!(printable("a\u{1b}[31mb\u{202e}\n"), "a\\u{1b}[31mb\\u{202e}\\n");
        assert_eq!(printable("größe ░"), "größe ░");
        let mut grid = Grid::new(&[("POD", Align::Left)]);
        grid.row(vec!["evil\u{7}".into()]);
        assert_eq!(grid.lines(TERMINAL)[1], " evil\\u{7}");
    }
}
