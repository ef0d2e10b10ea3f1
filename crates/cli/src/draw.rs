//! Bars, colours and amounts in tables.

use crate::grid::{Cell, Colour};

/// Faint: what is of less interest.
pub(crate) const DIM: Colour = "2";
/// In use as it should be.
pub(crate) const GREEN: Colour = "32";
/// Partly in use, or to be looked at.
pub(crate) const YELLOW: Colour = "33";
/// Not working.
pub(crate) const RED: Colour = "31";

const EIGHTHS: [&str; 8] = [
    "", "\u{258f}", "\u{258e}", "\u{258d}", "\u{258c}", "\u{258b}", "\u{258a}", "\u{2589}",
];

/// Appends a bar of `letters` letters, of which `eighths` eighths of a letter are filled.
pub(crate) fn bar(cell: &mut Cell, eighths: usize, letters: usize, colour: Colour) {
    let eighths = eighths.min(letters * 8);
    cell.push(&"\u{2588}".repeat(eighths / 8), Some(colour));
    cell.push(EIGHTHS[eighths % 8], Some(colour));
    cell.push(&"\u{2591}".repeat(letters - eighths.div_ceil(8)), Some(DIM));
}

/// A bar of `part` of `whole`: never drawn as empty while something is taken.
pub(crate) fn bar_of(part: i64, whole: i64, letters: usize, colour: Colour) -> Cell {
    let all = letters as i64 * 8;
    let eighths = match part {
        ..=0 => 0,
        _ => (part.saturating_mul(all) / whole.max(1)).clamp(1, all),
    };
    let mut cell = Cell::default();
    bar(&mut cell, usize::try_from(eighths).unwrap_or(0), letters, colour);
    cell
}

/// Two decimals at most, none that are zero.
pub(crate) fn number(amount: f64) -> String {
    let text = format!("{amount:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Bytes with a binary unit.
pub(crate) fn bytes(amount: i64) -> String {
    let units = [("Ti", 1i64 << 40), ("Gi", 1 << 30), ("Mi", 1 << 20), ("Ki", 1 << 10)];
    match units.into_iter().find(|(_, unit)| amount.abs() >= *unit) {
        Some((name, unit)) => format!("{}{name}", number((amount as f64 / unit as f64 * 10.0).round() / 10.0)),
        None => amount.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let texts = [
            number(2.0),
            number(0.5),
            number(1.255),
            bytes(0),
            bytes(1536 << 20),
            bytes(20_000_000_000_000),
        ];
        assert_eq!(texts, ["2", "0.5", "1.25", "0", "1.5Gi", "18.2Ti"]);
    }

    #[test]
    fn a_bar_is_empty_only_if_nothing_is_taken() {
        let text = |part, whole| bar_of(part, whole, 4, GREEN).text();
        assert_eq!(text(0, 100), "░░░░");
        assert_eq!(text(1, 1_000_000), "▏░░░");
        assert_eq!(text(50, 100), "██░░");
        assert_eq!(text(200, 100), "████");
        assert_eq!(text(1, 0), "████");
    }
}
