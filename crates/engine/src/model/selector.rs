//! Labels and selectors.

use std::collections::BTreeMap;

use crate::steps;

/// Labels of a node, pod or namespace.
pub type Labels = BTreeMap<String, String>;

/// A requirement on one label.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Requirement {
    /// Label key; for node fields `metadata.name`.
    pub key: String,
    /// Comparison.
    pub operator: Operator,
    /// Operands.
    pub values: Vec<String>,
}

/// How a requirement compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operator {
    /// The value is one of the operands.
    In,
    /// The key is missing or the value is none of the operands.
    NotIn,
    /// The key is there.
    Exists,
    /// The key is missing.
    DoesNotExist,
    /// The value is an integer above the operand.
    Gt,
    /// The value is an integer below the operand.
    Lt,
}

impl Requirement {
    /// Whether these labels meet the requirement.
    pub fn matches(&self, labels: &Labels) -> bool {
        self.matches_value(labels.get(&self.key).map(String::as_str))
    }

    pub(crate) fn matches_value(&self, value: Option<&str>) -> bool {
        steps::count(1 + self.values.len());
        let listed = |value: &str| self.values.iter().any(|operand| operand == value);
        let compared = |accept: fn(i64, i64) -> bool| {
            let (Some(value), [operand]) = (value, self.values.as_slice()) else {
                return false;
            };
            let (Ok(value), Ok(operand)) = (value.parse(), operand.parse()) else {
                return false;
            };
            accept(value, operand)
        };
        match self.operator {
            Operator::In => value.is_some_and(listed),
            Operator::NotIn => !value.is_some_and(listed),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
            Operator::Gt => compared(|value, operand| value > operand),
            Operator::Lt => compared(|value, operand| value < operand),
        }
    }
}

/// Requirements that must all hold. An empty selector matches everything.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LabelSelector {
    /// The requirements; `matchLabels` are `In` requirements of one value.
    pub requirements: Vec<Requirement>,
}

impl LabelSelector {
    /// Whether all requirements hold; `label` returns the value of a label.
    #[cfg(test)]
    pub(crate) fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.requirements
            .iter()
            .all(|requirement| requirement.matches_value(label(&requirement.key)))
    }
}

/// One term of a node affinity: label and field requirements that must all hold. A term without any matches nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeSelectorTerm {
    /// On labels.
    pub labels: Vec<Requirement>,
    /// On `metadata.name`.
    pub fields: Vec<Requirement>,
}

impl NodeSelectorTerm {
    /// Whether the term matches a node of this name with these labels.
    pub fn matches(&self, name: &str, labels: &Labels) -> bool {
        steps::count(1);
        let some = !self.labels.is_empty() || !self.fields.is_empty();
        some && self.labels.iter().all(|requirement| requirement.matches(labels))
            && self
                .fields
                .iter()
                .all(|requirement| requirement.matches_value((requirement.key == "metadata.name").then_some(name)))
    }
}

/// A node preference.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct WeightedNodeTerm {
    /// 1 to 100.
    pub weight: i32,
    /// The preferred term.
    pub term: NodeSelectorTerm,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(operator: Operator, values: &[&str], value: Option<&str>, expect: bool) {
        let labels: Labels = value
            .map(|value| ("key".to_owned(), value.to_owned()))
            .into_iter()
            .collect();
        let values = values.iter().map(|value| (*value).to_owned()).collect();
        let requirement = Requirement {
            key: "key".to_owned(),
            operator,
            values,
        };
        assert_eq!(requirement.matches(&labels), expect, "{requirement:?} on {labels:?}");
    }

    #[test]
    fn operators() {
        check(Operator::In, &["a", "b"], Some("b"), true);
        check(Operator::In, &["a"], None, false);
        check(Operator::NotIn, &["a"], None, true);
        check(Operator::NotIn, &["a"], Some("a"), false);
        check(Operator::Exists, &[], Some(""), true);
        check(Operator::DoesNotExist, &[], Some(""), false);
        check(Operator::Gt, &["5"], Some("6"), true);
        check(Operator::Gt, &["5"], Some("six"), false);
        check(Operator::Lt, &["5"], Some("5"), false);
    }

    #[test]
    fn an_empty_term_matches_no_node_and_an_empty_selector_everything() {
        assert!(!NodeSelectorTerm::default().matches("node", &Labels::new()));
        assert!(LabelSelector::default().matches(|_| None));
    }
}
