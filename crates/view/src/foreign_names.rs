//! Takes the names of workloads in other namespaces out of a text.
//!
//! All texts of the scheduler write a workload as `Job team-a/train`, and a pod or gang as `team-a/train`. A namespace has no dot, so
//! that resource names and labels such as `nvidia.com/gpu` are told apart. The node agent writes a container as
//! `team-a/train-0, container main`.

use std::borrow::Cow;
use std::collections::BTreeSet;

/// Stands for workloads of other namespaces.
pub const OTHER_WORK: &str = "other work";

/// Words with a slash in texts of the scheduler that name no object.
const NO_NAMES: [&str; 1] = ["affinity/selector"];
/// What may stand before a name besides a kind, which is one word with a capital.
const LEADS: [&str; 2] = ["pod group ", "pod "];

/// What stands between the name of a pod and that of its container.
const CONTAINER: &str = ", container ";

/// In place of a text with names that have no clear end.
const NOT_SHOWN: &str = "the reason names other work, which is not shown";

/// Takes foreign names out of texts.
#[derive(Debug)]
pub(crate) struct NameFilter<'a> {
    /// The namespaces whose names stay.
    pub(crate) namespaces: &'a BTreeSet<String>,
    /// Whether a foreign workload has a name that is none of a Kubernetes object, such as one with spaces: people can write any name
    /// into the annotation of a pod group. Nobody can say where such a name ends, so texts with foreign names are replaced as a whole.
    pub(crate) has_odd_names: bool,
}

impl NameFilter<'_> {
    /// The text without foreign names.
    pub(crate) fn clean<'t>(&self, text: &'t str) -> Cow<'t, str> {
        if !self.has_odd_names {
            return without_foreign_names(text, self.namespaces);
        }
        let names_foreign = text.match_indices('/').any(|(slash, _)| {
            let start = start_of_name(&text[..slash]);
            is_foreign(&text[start..slash], self.namespaces)
        });
        if names_foreign {
            Cow::Borrowed(NOT_SHOWN)
        } else {
            Cow::Borrowed(text)
        }
    }
}

/// Whether a name could be that of a Kubernetes object.
pub(crate) fn is_plain_name(name: &str) -> bool {
    !name.is_empty()
        && name
            .chars()
            .all(|character| is_name_character(character) && character != '/')
}

/// The text with [`OTHER_WORK`] in place of every name in a namespace other than these.
fn without_foreign_names<'a>(text: &'a str, namespaces: &BTreeSet<String>) -> Cow<'a, str> {
    let mut clean = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(slash) = text[at..].find('/').map(|found| at + found) {
        let start = start_of_name(&text[copied..slash]) + copied;
        let end = slash + 1 + end_of_name(&text[slash + 1..]);
        at = end.max(slash + 1);
        let is_name = end > slash + 1 && !NO_NAMES.contains(&&text[start..end]);
        if !is_name || !is_foreign(&text[start..slash], namespaces) {
            continue;
        }
        let before = without_kind(&text[copied..start]);
        clean.push_str(before);
        clean.push_str(OTHER_WORK);
        copied = end + container_after(&text[end..]);
        at = copied;
    }
    match copied {
        0 => Cow::Borrowed(text),
        _ => Cow::Owned(clean + &text[copied..]),
    }
}

fn is_name_character(character: char) -> bool {
    character.is_ascii_alphanumeric() || matches!(character, '-' | '_' | '.' | '/')
}

/// Where the name at the end of the text starts.
fn start_of_name(text: &str) -> usize {
    text.trim_end_matches(is_name_character).len()
}

/// The length of the name of a container at the start of the text, with what stands before it.
fn container_after(text: &str) -> usize {
    let container = text.strip_prefix(CONTAINER).map(end_of_name);
    container.map_or(0, |end| CONTAINER.len() + end)
}

/// Where the name at the start of the text ends. A full stop after the name is none of its characters.
fn end_of_name(text: &str) -> usize {
    let name = text.len() - text.trim_start_matches(is_name_character).len();
    text[..name].trim_end_matches(['.', '/']).len()
}

/// Whether the text can be a namespace and is none of these.
fn is_foreign(text: &str, namespaces: &BTreeSet<String>) -> bool {
    let mut characters = text.chars();
    let is_namespace = characters.all(|character| matches!(character, 'a'..='z' | '0'..='9' | '-'));
    is_namespace && !text.is_empty() && !namespaces.contains(text)
}

/// The text without the kind at its end.
fn without_kind(text: &str) -> &str {
    if let Some(rest) = LEADS.iter().find_map(|lead| text.strip_suffix(lead)) {
        return rest;
    }
    let Some(spaceless) = text.strip_suffix(' ') else {
        return text;
    };
    let rest = spaceless.trim_end_matches(|character: char| character.is_ascii_alphanumeric());
    let is_kind = spaceless[rest.len()..].starts_with(|first: char| first.is_ascii_uppercase());
    if is_kind { rest } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_names_become_other_work() {
        let own: BTreeSet<String> = ["mine".to_owned()].into();
        let check = |text: &str, expect: &str| assert_eq!(without_foreign_names(text, &own), expect);
        check("", "");
        check(
            "no nodes were found: 1 node(s) didn't have enough resources: GPUs; held by Job a/train (2 GPUs), Deployment mine/llm (1 \
             GPU), pod group b/x.y (0.5 GPUs)",
            "no nodes were found: 1 node(s) didn't have enough resources: GPUs; held by other work (2 GPUs), Deployment mine/llm (1 \
             GPU), other work (0.5 GPUs)",
        );
        check(
            "reclaimed for Job a/train (1 pod in all)",
            "reclaimed for other work (1 pod in all)",
        );
        check("a/train", "other work");
        check("delete pod a/train-0.", "delete other work.");
        check(
            "preempted by PyTorchJob a-1/t; it has",
            "preempted by other work; it has",
        );
        check("as \"a/b\" says", "as \"other work\" says");
        check(
            "2 container(s) are not held: a/train-0, container secret-model: gone; mine/llm-0, container main: gone; b/x, container y.",
            "2 container(s) are not held: other work: gone; mine/llm-0, container main: gone; other work.",
        );
        let kept = [
            "2 node(s) didn't have enough resources: nvidia.com/mig-1g.5gb or kubernetes.io/x",
            "node(s) didn't match Pod's node affinity/selector",
            "pod group mine/train does not exist",
            "/dev/nvidia0 is gone, N/A, 1/ 2, / and a/",
            "ä/ö",
        ];
        kept.iter().for_each(|text| check(text, text));
    }

    #[test]
    fn texts_with_names_of_unknown_end_are_not_shown() {
        let own: BTreeSet<String> = ["mine".to_owned()].into();
        let filter = NameFilter {
            namespaces: &own,
            has_odd_names: true,
        };
        assert_eq!(filter.clean("held by My thing a/the secret plan (1 GPU)"), NOT_SHOWN);
        assert_eq!(filter.clean("held by Job a/ü"), NOT_SHOWN);
        assert_eq!(filter.clean("held by Job mine/the plan"), "held by Job mine/the plan");
        assert!(is_plain_name("train-0.x") && !is_plain_name("a b") && !is_plain_name("a/b") && !is_plain_name(""));
    }
}
