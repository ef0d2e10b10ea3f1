//! The rules of an installation: those of its administrators, and those that kai ships. A mistake in a rule concerns that rule only.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use super::super::kinds;
use super::super::workload::Owner;
use super::form::Mistake;
use super::rule::{Rule, kinds_of};

/// Rules of an installation. A ConfigMap has no room for many more.
const RULES_MAX: usize = 256;
/// The longest rule.
const RULE_BYTES_MAX: usize = 64 << 10;

/// The rules that kai ships, by name.
const SHIPPED: [(&str, &str); 2] = [
    ("grove.yaml", include_str!("shipped/grove.yaml")),
    ("volcano-job.yaml", include_str!("shipped/volcano-job.yaml")),
];

/// A valid rule with its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRule {
    name: String,
    shipped: bool,
    pub(super) rule: Rule,
}

impl NamedRule {
    /// For people, after the word rule.
    pub(super) fn words(&self) -> String {
        match self.shipped {
            true => format!("{} (shipped with kai)", self.name),
            false => self.name.clone(),
        }
    }

    /// For people.
    pub(super) fn title(&self) -> String {
        match self.shipped {
            true => format!("shipped rule {}", self.name),
            false => format!("rule {}", self.name),
        }
    }
}

/// A rule that has no effect, or keeps that of its last valid version.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RuleProblem {
    /// The name of the rule: the key of the ConfigMap, or the file.
    pub rule: String,
    /// The path of the field; empty for the rule as a whole.
    pub field: String,
    /// The problem and the remedy.
    pub problem: String,
    /// Whether the last valid version still holds.
    pub keeps_last: bool,
}

impl fmt::Display for RuleProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rule {}: ", self.rule)?;
        if !self.field.is_empty() {
            write!(f, "{}: ", self.field)?;
        }
        f.write_str(&self.problem)?;
        match self.keeps_last {
            true => f.write_str(" (its last valid version holds)"),
            false => Ok(()),
        }
    }
}

/// The rule of a kind.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleOfKind<'r> {
    /// The rule is valid.
    Valid(&'r NamedRule),
    /// The rule has mistakes, and no valid version is known: its pods wait.
    Broken(&'r RuleProblem),
}

/// All rules, by kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuleSet {
    rules: Vec<Arc<NamedRule>>,
    /// Group and kind, then the version (`None` for all), to the place in `rules`.
    by_kind: BTreeMap<(String, String), BTreeMap<Option<String>, usize>>,
    problems: Vec<RuleProblem>,
    /// Kinds of broken rules, to the place in `problems`.
    broken: BTreeMap<(String, String), BTreeMap<Option<String>, usize>>,
}

impl RuleSet {
    /// The rules that kai ships, and no others.
    pub fn shipped() -> RuleSet {
        RuleSet::load(std::iter::empty(), &RuleSet::default())
    }

    /// The rules of these texts by name, and the shipped ones for kinds that they do not group. A broken rule keeps the last valid
    /// version that `before` has.
    pub fn load<'t>(texts: impl IntoIterator<Item = (&'t str, &'t str)>, before: &RuleSet) -> RuleSet {
        let mut set = RuleSet::default();
        for (at, (name, text)) in texts.into_iter().enumerate() {
            let mistake = match set.add(name, text, at) {
                Ok(()) => continue,
                Err(mistake) => mistake,
            };
            let last = before
                .rules
                .iter()
                .find(|rule| rule.name == name && !rule.shipped)
                .cloned();
            let keeps_last = last.is_some_and(|last| set.insert(last).is_ok());
            if !keeps_last && let Some(kinds) = kinds_of(text) {
                let at = set.problems.len();
                for kind in &kinds.names {
                    let of_kind = set.broken.entry((kinds.group.clone(), kind.clone())).or_default();
                    of_kind.entry(kinds.version.clone()).or_insert(at);
                }
            }
            set.problems.push(RuleProblem {
                rule: name.to_owned(),
                field: mistake.field,
                problem: mistake.problem,
                keeps_last,
            });
        }
        for (name, text) in SHIPPED {
            let mut rule = Rule::parse(text).expect("a test parses the shipped rules");
            // An administrator's rule for the same kind replaces the shipped one, also while it is broken.
            let (group, version) = (rule.kinds.group.clone(), rule.kinds.version.clone());
            rule.kinds
                .names
                .retain(|kind| !set.has_entry(&group, version.as_deref(), kind));
            let name = name.to_owned();
            let shipped = NamedRule {
                name,
                shipped: true,
                rule,
            };
            set.insert(Arc::new(shipped)).expect("no other rule has its kinds");
        }
        set
    }

    /// Mistakes in rules.
    pub fn problems(&self) -> &[RuleProblem] {
        &self.problems
    }

    /// The names of the administrators' valid rules, with their kinds.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let own = self.rules.iter().filter(|rule| !rule.shipped);
        own.map(|rule| {
            let kinds = &rule.rule.kinds;
            format!("{} ({} {})", rule.name, kinds.api_version(), kinds.names.join(", "))
        })
    }

    /// The rule for an owner's kind, unless the code's own rule comes first.
    pub fn rule_of(&self, owner: &Owner) -> Option<RuleOfKind<'_>> {
        self.rule_of_kind(&owner.api_version, &owner.kind)
    }

    /// The rule for a kind.
    pub fn rule_of_kind(&self, api_version: &str, kind: &str) -> Option<RuleOfKind<'_>> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let key = (group.to_owned(), kind.to_owned());
        let of = |table: &BTreeMap<(String, String), BTreeMap<Option<String>, usize>>| {
            let versions = table.get(&key)?;
            versions
                .get(&Some(version.to_owned()))
                .or_else(|| versions.get(&None))
                .copied()
        };
        if let Some(at) = of(&self.by_kind) {
            return Some(RuleOfKind::Valid(&self.rules[at]));
        }
        of(&self.broken).map(|at| RuleOfKind::Broken(&self.problems[at]))
    }

    fn has_entry(&self, group: &str, version: Option<&str>, kind: &str) -> bool {
        let key = (group.to_owned(), kind.to_owned());
        let holds = |versions: &BTreeMap<Option<String>, usize>| {
            let mut versions = versions.keys();
            versions.any(|own| own.is_none() || own.as_deref() == version)
        };
        [&self.by_kind, &self.broken]
            .iter()
            .any(|table| table.get(&key).is_some_and(holds))
    }

    fn add(&mut self, name: &str, text: &str, at: usize) -> Result<(), Mistake> {
        let whole = |problem: String| Mistake {
            field: String::new(),
            problem,
        };
        if at >= RULES_MAX {
            return Err(whole(format!(
                "there are more than {RULES_MAX} rules; join some, which may have several kinds"
            )));
        }
        if text.len() > RULE_BYTES_MAX {
            let length = text.len();
            return Err(whole(format!(
                "it has {length} bytes; a rule may have {RULE_BYTES_MAX}"
            )));
        }
        let rule = Rule::parse(text)?;
        for kind in &rule.kinds.names {
            if !rule.overrides_code && kinds::groups_in_code(&rule.kinds.group, rule.kinds.version.as_deref(), kind) {
                return Err(Mistake {
                    field: "override".to_owned(),
                    problem: format!(
                        "kai groups {kind} of {} by its own rule; write override: true to replace it, or delete this one",
                        rule.kinds.api_version()
                    ),
                });
            }
        }
        self.insert(Arc::new(NamedRule {
            name: name.to_owned(),
            shipped: false,
            rule,
        }))
    }

    fn insert(&mut self, rule: Arc<NamedRule>) -> Result<(), Mistake> {
        let kinds = &rule.rule.kinds;
        for kind in &kinds.names {
            let key = (kinds.group.clone(), kind.clone());
            let other = self.by_kind.get(&key).and_then(|versions| versions.get(&kinds.version));
            if let Some(other) = other {
                return Err(Mistake {
                    field: "kind".to_owned(),
                    problem: format!(
                        "rule {} groups {kind} of {} already; delete one",
                        self.rules[*other].name,
                        kinds.api_version()
                    ),
                });
            }
        }
        let at = self.rules.len();
        for kind in &kinds.names {
            let versions = self.by_kind.entry((kinds.group.clone(), kind.clone())).or_default();
            versions.insert(kinds.version.clone(), at);
        }
        self.rules.push(rule);
        Ok(())
    }
}
