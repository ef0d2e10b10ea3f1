//! Which pods are background pods: a selector of labels, the argument `labelSelector` of KAI's plugin `backgroundpods`.

use std::str::FromStr;

use kai_engine::model::Labels;

/// Labels that a background pod has. A selector without labels selects no pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackgroundSelector {
    /// Keys, each with its value; `None` = any value.
    labels: Vec<(String, Option<String>)>,
}

impl Default for BackgroundSelector {
    fn default() -> BackgroundSelector {
        BackgroundSelector {
            labels: vec![(kai_api::keys::BACKGROUND.to_owned(), Some("true".to_owned()))],
        }
    }
}

impl BackgroundSelector {
    /// A selector that selects no pod.
    pub fn none() -> BackgroundSelector {
        BackgroundSelector { labels: Vec::new() }
    }

    pub(crate) fn selects(&self, labels: &Labels) -> bool {
        let has = |(key, value): &(String, Option<String>)| match (labels.get(key), value) {
            (Some(found), Some(value)) => found == value,
            (found, None) => found.is_some(),
            (None, Some(_)) => false,
        };
        !self.labels.is_empty() && self.labels.iter().all(has)
    }
}

/// The text is not a list of labels.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a list of labels; write key=value or key, separated by commas, as in kai.scheduler/background=true"
)]
pub struct InvalidSelector(String);

impl FromStr for BackgroundSelector {
    type Err = InvalidSelector;

    fn from_str(text: &str) -> Result<BackgroundSelector, InvalidSelector> {
        let is_name = |part: &str| {
            let allowed = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
            part.chars().all(allowed)
        };
        let label = |part: &str| {
            let (key, value) = match part.split_once('=') {
                Some((key, value)) => (key.trim(), Some(value.trim_start_matches('=').trim())),
                None => (part.trim(), None),
            };
            let is_valid = !key.is_empty() && is_name(key) && value.is_none_or(is_name);
            is_valid.then(|| (key.to_owned(), value.map(str::to_owned)))
        };
        let labels: Option<Vec<_>> = text.split(',').map(label).collect();
        let labels = labels.ok_or_else(|| InvalidSelector(text.to_owned()))?;
        Ok(BackgroundSelector { labels })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_select_pods() {
        let labels = |pairs: &[(&str, &str)]| -> Labels {
            let pairs = pairs.iter();
            pairs
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        let check = |selector: &str, pairs: &[(&str, &str)], selected: bool| {
            let parsed: BackgroundSelector = selector.parse().unwrap();
            assert_eq!(parsed.selects(&labels(pairs)), selected, "{selector} {pairs:?}");
        };
        check("tier=spare", &[("tier", "spare")], true);
        check("tier==spare", &[("tier", "spare")], true);
        check("tier=spare", &[("tier", "main")], false);
        check("tier", &[("tier", "main")], true);
        check("tier, team=a", &[("tier", "main")], false);
        check("tier, team=a", &[("tier", "main"), ("team", "a")], true);
        let default = BackgroundSelector::default();
        assert!(default.selects(&labels(&[("kai.scheduler/background", "true")])));
        assert!(!default.selects(&labels(&[("kai.scheduler/background", "false")])));
        assert!(!BackgroundSelector::none().selects(&labels(&[])));
        for text in ["", "a,", "a in (b)", "!a", "a!=b"] {
            assert_eq!(
                text.parse::<BackgroundSelector>(),
                Err(InvalidSelector(text.to_owned()))
            );
        }
    }
}
