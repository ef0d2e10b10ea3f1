//! The picture of `kai top` in the README: a screen of the test back end as SVG.

use std::fmt::Write as _;

use ratatui::buffer::{Buffer, Cell};
use ratatui::style::{Color, Modifier};

const COLUMN: usize = 9;
const LINE: usize = 20;
const MARGIN: usize = 12;
const BACKGROUND: &str = "#12161c";
const FOREGROUND: &str = "#d7dde5";

/// The screen as SVG. Cells of one style are one text, stretched to their columns: fonts differ in width.
pub(super) fn svg(buffer: &Buffer) -> String {
    let (columns, lines) = (usize::from(buffer.area.width), usize::from(buffer.area.height));
    let (width, height) = (columns * COLUMN + 2 * MARGIN, lines * LINE + 2 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" font-size=\"15\" role=\"img\" \
         aria-label=\"kai top: the GPUs of a cluster in a terminal\">\n\
         <rect width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n"
    );
    for (line, cells) in buffer.content.chunks(columns).enumerate() {
        let mut at = 0;
        while at < columns {
            let style = Style::of(&cells[at]);
            let end = (at..columns)
                .find(|next| Style::of(&cells[*next]) != style)
                .unwrap_or(columns);
            let text: String = cells[at..end].iter().map(Cell::symbol).collect();
            style.run(&mut svg, &text, at, end - at, line);
            at = end;
        }
    }
    svg.push_str("</svg>\n");
    svg
}

#[derive(Clone, Copy, PartialEq, Eq)]
struct Style {
    foreground: &'static str,
    background: &'static str,
    bold: bool,
    dim: bool,
}

impl Style {
    fn of(cell: &Cell) -> Style {
        let (mut foreground, mut background) = (colour(cell.fg, FOREGROUND), colour(cell.bg, BACKGROUND));
        if cell.modifier.contains(Modifier::REVERSED) {
            std::mem::swap(&mut foreground, &mut background);
        }
        Style {
            foreground,
            background,
            bold: cell.modifier.contains(Modifier::BOLD),
            dim: cell.modifier.contains(Modifier::DIM),
        }
    }

    fn run(self, svg: &mut String, text: &str, column: usize, columns: usize, line: usize) {
        let (left, top) = (MARGIN + column * COLUMN, MARGIN + line * LINE);
        if self.background != BACKGROUND {
            let _ = writeln!(
                svg,
                "<rect x=\"{left}\" y=\"{top}\" width=\"{}\" height=\"{LINE}\" fill=\"{}\"/>",
                columns * COLUMN,
                self.background
            );
        }
        if text.trim().is_empty() {
            return;
        }
        let weight = if self.bold { " font-weight=\"bold\"" } else { "" };
        let opacity = if self.dim { " opacity=\"0.65\"" } else { "" };
        let escaped = text.replace('&', "&amp;").replace('<', "&lt;");
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{}\" textLength=\"{}\" lengthAdjust=\"spacingAndGlyphs\" xml:space=\"preserve\" fill=\"{}\"{weight}{opacity}>{escaped}</text>",
            top + LINE - 5,
            columns * COLUMN,
            self.foreground
        );
    }
}

/// The colours of a usual dark terminal.
fn colour(colour: Color, reset: &'static str) -> &'static str {
    match colour {
        Color::Black => "#000000",
        Color::Red | Color::LightRed => "#ff7b72",
        Color::Green | Color::LightGreen => "#7ee787",
        Color::Yellow | Color::LightYellow => "#e3b341",
        Color::Blue | Color::LightBlue => "#79c0ff",
        Color::Magenta | Color::LightMagenta => "#d2a8ff",
        Color::Cyan | Color::LightCyan => "#76e3ea",
        Color::DarkGray => "#7d8590",
        Color::Gray | Color::White => "#ffffff",
        _ => reset,
    }
}
