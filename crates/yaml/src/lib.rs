//! Reads YAML files that users write. An error is one line with the problem and the position: the author of a file knows neither the
//! parser's options nor its types.

mod suggestion;

use std::borrow::Cow;

use serde::de::DeserializeOwned;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Error, MessageFormatter, UserMessageFormatter};

pub use suggestion::{nearest, suggestion};

/// The longest excerpt of a file in a message.
const EXCERPT_CHARS_MAX: usize = 160;

/// Reads one document.
pub fn from_str<T: DeserializeOwned>(text: &str) -> Result<T, String> {
    serde_saphyr::from_str(text).map_err(|error| problem(&error))
}

/// Reads all documents.
pub fn from_documents<T: DeserializeOwned>(text: &str) -> Result<Vec<T>, String> {
    serde_saphyr::from_multiple(text).map_err(|error| problem(&error))
}

/// The problem and its position in one line.
pub fn problem(error: &Error) -> String {
    let message = error.without_snippet().render_with_formatter(&Words);
    // Further lines have an excerpt of the source.
    shortened(message.lines().next().unwrap_or_default(), EXCERPT_CHARS_MAX)
}

/// Shortens a text, so that a message never shows a whole file.
pub fn shortened(text: &str, chars_max: usize) -> String {
    match text.char_indices().nth(chars_max) {
        Some((end, _)) => format!("{}... ({} characters)", &text[..end], text.chars().count()),
        None => text.to_owned(),
    }
}

/// The parser's messages for users, with words instead of the names of its options.
struct Words;

impl MessageFormatter for Words {
    fn format_message<'a>(&self, error: &'a Error) -> Cow<'a, str> {
        match error {
            Error::WithSnippet { error, .. } => self.format_message(error),
            Error::DuplicateMappingKey { key: Some(key), .. } => {
                format!("duplicate key: {} is there twice; keep one", shortened(key, 40)).into()
            }
            Error::DuplicateMappingKey { key: None, .. } => "duplicate key: it is there twice; keep one".into(),
            Error::NonFiniteFloat { value, .. } => format!("`{value}` is not a finite number; write one").into(),
            Error::MergeKeyNotAllowed { .. } => "a merge key (<<) is not allowed here".into(),
            Error::Budget { breach, .. } => limit(breach).into(),
            Error::AliasReplayCounterOverflow { .. }
            | Error::AliasReplayLimitExceeded { .. }
            | Error::AliasExpansionLimitExceeded { .. } => REPEATED.into(),
            Error::AliasReplayStackDepthExceeded { max_depth, .. } => {
                format!("aliases are nested more than {max_depth} levels deep; write some of them out").into()
            }
            other => UserMessageFormatter.format_message(other),
        }
    }
}

const REPEATED: &str = "the document is too large with all its aliases written out; use fewer aliases, or smaller ones";

/// A limit of the parser in words.
fn limit(breach: &BudgetBreach) -> String {
    match breach {
        BudgetBreach::Depth { depth } => {
            format!("it is nested {depth} levels deep, which is too deep; leave out levels")
        }
        BudgetBreach::Documents { documents } => {
            format!("it has {documents} documents or more, which are too many; use several files")
        }
        BudgetBreach::Anchors { anchors } => format!("it has {anchors} anchors or more, which are too many"),
        BudgetBreach::MergeKeys { merge_keys } => {
            format!("it has {merge_keys} merge keys (<<) or more, which are too many")
        }
        BudgetBreach::InputBytes { input_bytes } => format!("it has more than {input_bytes} bytes, which is too large"),
        BudgetBreach::SequenceUnbalanced => "a list or map ends where none began".to_owned(),
        _ => REPEATED.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn told(text: &str) -> String {
        from_str::<Value>(text).unwrap_err()
    }

    #[test]
    fn messages_name_the_position_and_no_option_of_the_parser() {
        let many = |aliases: &str| format!("a: &a [1, 2]\nb: [{}]\n", vec![aliases; 200].join(", "));
        let nested = format!("a: {}{}\n", "[".repeat(100), "]".repeat(100));
        for (text, words) in [
            ("a: 1\na: 2\n", "duplicate key: a is there twice"),
            ("a: .nan\n", "not a finite number"),
            (many("*a").as_str(), "aliases"),
            (nested.as_str(), ""),
            ("a: [1\n", ""),
            ("a: *b\n", ""),
        ] {
            let told = told(text);
            assert!(told.contains(words) && told.lines().count() == 1, "{told}");
            for internal in [
                "Policy",
                "policy",
                "Options",
                "limits breached",
                "{",
                "struct",
                "Budget",
            ] {
                assert!(!told.contains(internal), "{told}");
            }
        }
        assert!(told("a: 1\na: 2\n").contains("line 2"));
    }
}
