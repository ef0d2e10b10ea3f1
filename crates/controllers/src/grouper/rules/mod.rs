//! Declared grouping rules, for kinds that the code does not know: docs/grouping-rules.md. A rule is data, and applying it a pure
//! function; `reconcile` reads the rules from a ConfigMap of kai's namespace, where tenants have no rights.
//!
//! | module | content |
//! |---|---|
//! | `form`, `rule` | a rule as written; the schema |
//! | `path`, `values` | what a rule reads of an object |
//! | `group` | a rule applied to a workload |
//! | `set` | all rules; mistakes in them; the shipped rules |

mod form;
mod group;
mod path;
mod rule;
mod set;
mod values;

pub use form::Mistake;
pub use rule::Rule;
pub use set::{NamedRule, RuleOfKind, RuleProblem, RuleSet};

pub(super) use group::desired;
