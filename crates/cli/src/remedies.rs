//! What would let a waiting gang start, for a person.

use kai_mirror::ExplanationView;

use crate::grid::{Align, Grid, Screen};

/// Position, needs and room of a waiting gang, by name: rows for a table.
pub(crate) fn facts(explanation: &ExplanationView) -> impl Iterator<Item = (&'static str, &str)> {
    let ExplanationView {
        position,
        needs,
        fits,
        no_remedy,
        ..
    } = explanation;
    let position = position.as_ref().map(|position| &position.text);
    [
        ("position", position),
        ("needs", needs.as_ref()),
        ("room", fits.as_ref()),
        ("remedy", no_remedy.as_ref()),
    ]
    .into_iter()
    .filter_map(|(name, text)| Some((name, text?.as_str())))
}

/// The remedies, after an empty line; nothing if there are none.
pub(crate) fn lines(explanation: &ExplanationView, screen: Screen) -> Vec<String> {
    let remedies = &explanation.remedies;
    let title = match remedies.len() {
        0 => return Vec::new(),
        1 => "WHAT WOULD HELP",
        _ => "WHAT WOULD HELP (any one of these)",
    };
    let mut grid = Grid::new(&[("", Align::Right), (title, Align::Left)]);
    for (at, remedy) in remedies.iter().enumerate() {
        grid.row(vec![(at + 1).to_string().into(), remedy.text.as_str().into()]);
    }
    let mut lines = vec![String::new()];
    lines.extend(grid.lines(screen));
    if explanation.cut {
        let trials = explanation.trials;
        lines.push(format!(" the search ended after {trials} trials; there may be others"));
    }
    lines
}
