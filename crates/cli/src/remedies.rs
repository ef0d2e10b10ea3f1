//! What would let a waiting gang start, for a person.

use std::borrow::Cow;

use kai_mirror::ExplanationView;

use crate::grid::{Align, Grid, Screen};

/// Position, needs and room of a waiting gang, by name: rows for a table.
pub(crate) fn facts(explanation: &ExplanationView) -> impl Iterator<Item = (&'static str, Cow<'_, str>)> {
    let ExplanationView {
        position,
        needs,
        fits,
        no_remedy,
        cut,
        trials,
        ..
    } = explanation;
    let no_remedy = no_remedy.as_deref().map(|text| match cut {
        false => Cow::Borrowed(text),
        true => Cow::Owned(format!("{text}; {}", search_ended(*trials, "one"))),
    });
    let position = position.as_ref().map(|position| Cow::Borrowed(position.text.as_str()));
    [
        ("position", position),
        ("needs", needs.as_deref().map(Cow::Borrowed)),
        ("room", fits.as_deref().map(Cow::Borrowed)),
        ("remedy", no_remedy),
    ]
    .into_iter()
    .filter_map(|(name, text)| Some((name, text?)))
}

/// What the budget of the search leaves open.
fn search_ended(trials: u32, what: &str) -> String {
    format!("the search ended after {trials} trials; there may be {what}")
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
        lines.push(format!(" {}", search_ended(explanation.trials, "others")));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_that_ended_early_says_so() {
        let told = |cut: bool, remedies: serde_json::Value| {
            let explanation = serde_json::json!({
                "nearestNodes": [], "remedies": remedies, "noRemedy": "nothing that was tried starts the gang", "cut": cut, "trials": 64,
            });
            let explanation: ExplanationView = serde_json::from_value(explanation).unwrap();
            let screen = Screen {
                width_max: None,
                colours: false,
            };
            let facts = facts(&explanation).map(|(name, text)| format!("{name}: {text}"));
            facts.chain(lines(&explanation, screen)).collect::<Vec<_>>().join("\n")
        };
        let none = serde_json::json!([]);
        assert_eq!(
            told(false, none.clone()),
            "remedy: nothing that was tried starts the gang"
        );
        assert_eq!(
            told(true, none),
            "remedy: nothing that was tried starts the gang; the search ended after 64 trials; there may be one"
        );
        let one = serde_json::json!([{ "text": "wait", "tried": true, "steps": [] }]);
        assert!(told(true, one).ends_with("the search ended after 64 trials; there may be others"));
    }
}
