//! The fields that a redacted file keeps, per kind, and what their texts are. A field that is not listed here is left out: the scheduler
//! does not read it, and nobody knows what it tells.

use super::names::NameClass;

/// How to redact a value.
#[derive(Clone, Copy, Debug)]
pub(super) enum Rule {
    /// These fields; the others are left out.
    Fields(&'static [(&'static str, Rule)]),
    /// A list of such values.
    List(&'static Rule),
    /// A map by such names.
    Keyed(NameClass, &'static Rule),
    /// A number or boolean, or a text of the vocabulary; another text is replaced.
    Word,
    /// A name.
    Name(NameClass),
    /// The metadata of an object whose names are of this class.
    Metadata(NameClass),
    /// A value with a rule of its own.
    Special(Special),
}

/// Values with rules of their own.
#[derive(Clone, Copy, Debug)]
pub(super) enum Special {
    /// A map of labels, or a selector by labels.
    Labels,
    Annotations,
    /// A map of resources to amounts.
    Resources,
    /// `key`, `operator` and `values` of a selector by labels.
    LabelRequirement,
    /// The same by fields.
    FieldRequirement,
    /// `key`, `value` and `effect` of a taint or toleration.
    Taint,
    OwnerReference,
    Kind,
    ApiVersion,
    /// Only the existence counts.
    Presence,
    /// An environment variable.
    Variable,
    /// Words, separated by commas.
    WordList,
    /// The name of a ConfigMap. Those of GPU shares have a suffix that the scheduler reads.
    ConfigMap,
    /// `NodePoolLabelKey` and `NodePoolLabelValue`.
    Partition,
    /// The group of a case; only its beginning counts.
    CaseGroup,
    /// The expected pods of a case: `name` or `namespace/name`.
    ExpectedPods,
    /// A workload of a kind that only the pod grouper reads.
    Grouped,
}
