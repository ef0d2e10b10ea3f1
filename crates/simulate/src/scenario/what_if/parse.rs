//! Reads a change from words. An error has the column, the words that are expected there, and the nearest of them.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use super::{Change, ObjectName, QueueField, ShareField};
use kai_yaml::suggestion;

/// More nodes than any cluster has. Keeps a typo from filling the memory.
const NODES_MAX: u32 = 10_000;
/// The largest amount of a queue; larger numbers are typos.
const AMOUNT_MAX: f64 = 1e12;
/// The resources of a queue.
const RESOURCES: [&str; 3] = ["gpu", "cpu", "memory"];
/// The forms of a change, by their first words.
const FORMS: [(&str, &str); 7] = [
    ("add", "add COUNT nodes like NODE"),
    ("remove", "remove node NODE"),
    ("cordon", "cordon node NODE"),
    ("uncordon", "uncordon node NODE"),
    ("queue", "queue QUEUE gpu.quota=NUMBER"),
    ("delete", "delete pod NAMESPACE/NAME"),
    ("submit", "submit FILE"),
];

/// Words that are no change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// The column of the wrong word, from 1.
    pub column: usize,
    problem: String,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.problem)
    }
}

impl std::error::Error for ParseError {}

impl FromStr for Change {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Change, ParseError> {
        let mut words = Words { text, at: 0 };
        let form = words.one_of(&FORMS.map(|(word, _)| word), "")?;
        let (_, example) = FORMS[FORMS.iter().position(|(word, _)| *word == form).unwrap_or_default()];
        let change = match form {
            "add" => {
                let count = words.count(example)?;
                words.one_of(&["nodes", "node"], example)?;
                words.one_of(&["like"], example)?;
                Change::AddNodes {
                    count,
                    like: words.name("the name of a node", example)?,
                }
            }
            "queue" => {
                let queue = words.name("the name of a queue", example)?;
                let (field, value) = words.setting(example)?;
                Change::SetQueue { queue, field, value }
            }
            "delete" => {
                let kind = words.one_of(&["pod", "podgroup"], example)?;
                let name = words.object_name(example)?;
                match kind {
                    "podgroup" => Change::DeletePodGroup(name),
                    _ => Change::DeletePod(name),
                }
            }
            // The name of a file may have spaces.
            "submit" => return words.file(example),
            _ => {
                words.one_of(&["node"], example)?;
                let node = words.name("the name of a node", example)?;
                match form {
                    "cordon" => Change::CordonNode { node },
                    "uncordon" => Change::UncordonNode { node },
                    _ => Change::RemoveNode { node },
                }
            }
        };
        words.end()?;
        Ok(change)
    }
}

/// The words that were not read yet.
struct Words<'t> {
    text: &'t str,
    /// The first byte that was not read.
    at: usize,
}

impl<'t> Words<'t> {
    /// The start of the next word, or the end of the text.
    fn next_start(&self) -> usize {
        let rest = &self.text[self.at..];
        self.at + (rest.len() - rest.trim_start().len())
    }

    /// The next word and its start. The word is empty at the end of the text.
    fn next(&mut self) -> (usize, &'t str) {
        let start = self.next_start();
        let rest = &self.text[start..];
        let word = &rest[..rest.find(char::is_whitespace).unwrap_or(rest.len())];
        self.at = start + word.len();
        (start, word)
    }

    fn error<T>(&self, start: usize, problem: String) -> Result<T, ParseError> {
        Err(ParseError {
            column: self.text[..start].chars().count() + 1,
            problem,
        })
    }

    fn one_of(&mut self, known: &[&'static str], example: &str) -> Result<&'static str, ParseError> {
        let (start, word) = self.next();
        if let Some(word) = known.iter().find(|known| **known == word) {
            return Ok(word);
        }
        let expected = match known {
            [one] => format!("expected {one}"),
            several => format!("expected one of {}", several.join(", ")),
        };
        let found = match word {
            "" => "the words end here".to_owned(),
            word => format!("{word:?} is unknown here"),
        };
        let near = match known {
            [_] => String::new(),
            several => suggestion(word, several.iter().copied()),
        };
        self.error(start, format!("{found}; {expected}{}{near}", as_in(example)))
    }

    fn name(&mut self, what: &str, example: &str) -> Result<String, ParseError> {
        match self.next() {
            (start, "") => self.error(start, format!("the words end here; expected {what}{}", as_in(example))),
            (_, word) => Ok(word.to_owned()),
        }
    }

    fn count(&mut self, example: &str) -> Result<u32, ParseError> {
        let (start, word) = self.next();
        match word.parse::<u32>() {
            Ok(count) if (1..=NODES_MAX).contains(&count) => Ok(count),
            _ => {
                let problem = format!(
                    "{word:?} is not a number of nodes from 1 to {NODES_MAX}{}",
                    as_in(example)
                );
                self.error(start, problem)
            }
        }
    }

    fn object_name(&mut self, example: &str) -> Result<ObjectName, ParseError> {
        let start = self.next_start();
        let word = self.name("NAMESPACE/NAME", example)?;
        let (namespace, name) = word.split_once('/').unwrap_or(("default", &word));
        if namespace.is_empty() || name.is_empty() || name.contains('/') {
            return self.error(start, format!("{word:?} is not NAMESPACE/NAME{}", as_in(example)));
        }
        Ok(ObjectName {
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        })
    }

    fn setting(&mut self, example: &str) -> Result<(QueueField, f64), ParseError> {
        let (start, word) = self.next();
        let Some((field, value)) = word.split_once('=') else {
            return self.error(start, format!("{word:?} is not FIELD=VALUE{}", as_in(example)));
        };
        let fields: Vec<(String, QueueField)> = RESOURCES
            .iter()
            .flat_map(|resource| ShareField::ALL.map(|field| QueueField::Share(resource, field)))
            .chain([QueueField::Priority])
            .map(|field| (field.to_string(), field))
            .collect();
        let Some((_, read)) = fields.iter().find(|(name, _)| name == field) else {
            let near = suggestion(field, fields.iter().map(|(name, _)| name.as_str()));
            let known = "RESOURCE.quota, RESOURCE.limit or RESOURCE.overQuotaWeight, with gpu, cpu or memory as the resource, or priority";
            return self.error(
                start,
                format!("{field:?} is no field of a queue; expected {known}{near}"),
            );
        };
        let number = value
            .parse::<f64>()
            .ok()
            .filter(|number| number.is_finite() && number.abs() <= AMOUNT_MAX);
        let (is_valid, expected) = match read {
            QueueField::Priority => (
                number.is_some_and(|number| number.fract() == 0.0 && number.abs() <= f64::from(i32::MAX)),
                "a whole number",
            ),
            QueueField::Share(_, ShareField::Quota | ShareField::Limit) => (
                number.is_some_and(|number| number >= 0.0 || number == -1.0),
                "a number of 0 or more, or -1 for unlimited",
            ),
            QueueField::Share(_, ShareField::OverQuotaWeight) => {
                (number.is_some_and(|number| number >= 0.0), "a number of 0 or more")
            }
        };
        match number.filter(|_| is_valid) {
            Some(number) => Ok((*read, number)),
            None => self.error(
                start + field.len() + 1,
                format!("{value:?} is no value of {field}; write {expected}"),
            ),
        }
    }

    fn file(&mut self, example: &str) -> Result<Change, ParseError> {
        let start = self.next_start();
        match self.text[start..].trim_end() {
            "" => self.error(
                start,
                format!("the words end here; expected the name of a file{}", as_in(example)),
            ),
            "-" => self.error(start, "standard input can't be submitted; name a file".to_owned()),
            file => Ok(Change::Submit(PathBuf::from(file))),
        }
    }

    fn end(&mut self) -> Result<(), ParseError> {
        match self.next() {
            (_, "") => Ok(()),
            (start, word) => self.error(
                start,
                format!("{word:?} is one word too many; give --what-if again for another change"),
            ),
        }
    }
}

/// `, as in: add COUNT nodes like NODE`, or nothing.
fn as_in(example: &str) -> String {
    match example {
        "" => String::new(),
        example => format!(", as in: {example}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_is_written_again() {
        for words in [
            "add 4 nodes like node-3",
            "add 1 node like node-3",
            "remove node a",
            "cordon node a",
            "uncordon node a",
            "queue team-a gpu.quota=16",
            "queue team-a gpu.limit=-1",
            "queue team-a memory.overQuotaWeight=0.5",
            "queue team-a priority=-7",
            "delete pod ns/x",
            "delete podgroup ns/x",
            "submit a file.yaml",
        ] {
            assert_eq!(words.parse::<Change>().unwrap().to_string(), words);
        }
        let change: Change = "  delete  pod x ".parse().unwrap();
        assert_eq!(change.to_string(), "delete pod default/x");
    }

    #[test]
    fn errors_name_the_column_the_expected_words_and_the_nearest() {
        let check = |words: &str, told: &str| assert_eq!(words.parse::<Change>().unwrap_err().to_string(), told);
        check(
            "",
            "column 1: the words end here; expected one of add, remove, cordon, uncordon, queue, delete, submit",
        );
        check(
            "remvoe node a",
            "column 1: \"remvoe\" is unknown here; expected one of add, remove, cordon, uncordon, queue, delete, submit; did you mean remove?",
        );
        check(
            "add four nodes like a",
            "column 5: \"four\" is not a number of nodes from 1 to 10000, as in: add COUNT nodes like NODE",
        );
        check(
            "add 4 nodes liek a",
            "column 13: \"liek\" is unknown here; expected like, as in: add COUNT nodes like NODE",
        );
        check(
            "add 4 nodes like",
            "column 17: the words end here; expected the name of a node, as in: add COUNT nodes like NODE",
        );
        check(
            "queue a gpu.qouta=1",
            "column 9: \"gpu.qouta\" is no field of a queue; expected RESOURCE.quota, RESOURCE.limit or RESOURCE.overQuotaWeight, with \
             gpu, cpu or memory as the resource, or priority; did you mean gpu.quota?",
        );
        check(
            "queue ä gpu.quota=-2",
            "column 19: \"-2\" is no value of gpu.quota; write a number of 0 or more, or -1 for unlimited",
        );
        check(
            "queue a priority=1.5",
            "column 18: \"1.5\" is no value of priority; write a whole number",
        );
        check(
            "queue a gpu.quota=nan",
            "column 19: \"nan\" is no value of gpu.quota; write a number of 0 or more, or -1 for unlimited",
        );
        check(
            "queue a gpu.quota",
            "column 9: \"gpu.quota\" is not FIELD=VALUE, as in: queue QUEUE gpu.quota=NUMBER",
        );
        check(
            "delete pod a/b/c",
            "column 12: \"a/b/c\" is not NAMESPACE/NAME, as in: delete pod NAMESPACE/NAME",
        );
        check(
            "remove node a b",
            "column 15: \"b\" is one word too many; give --what-if again for another change",
        );
        check(
            "submit ",
            "column 8: the words end here; expected the name of a file, as in: submit FILE",
        );
        check("submit -", "column 8: standard input can't be submitted; name a file");
    }

    #[test]
    fn mutated_words_never_panic() {
        let corpus = [
            "add 4 nodes like a",
            "queue q gpu.quota=1",
            "delete pod ns/x",
            "submit f",
        ];
        kai_fuzz::Fuzz::short("what-if").texts(&corpus, &["=", "/", "-1", "1e999", "\u{a0}", "podgroup"], |text| {
            if let Ok(change) = text.parse::<Change>() {
                assert_eq!(change.to_string().parse::<Change>().unwrap(), change);
            }
        });
    }
}
