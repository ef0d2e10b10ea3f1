//! Which selectors can match a label set, and how many affinity terms they may have.
//!
//! A selector is in one bucket for each `key=value` of which a matching pod must have one, or in the bucket for selectors
//! that name no value: those are compared with every label set. Buckets are separate for each namespace whose pods select
//! among themselves, so that a tenant can't fill the bucket of another.

use rustc_hash::FxHashMap;

use crate::affinity::label_sets::LabelSet;
use crate::ids::{SelectorId, Symbol};
use crate::reasons::AffinityTermBound;

/// How many terms the pods of one namespace may have in a bucket. A pod is counted in every term that matches it, so that
/// this bounds the work of its placement. JobSet's exclusive placement needs one term for each job.
pub(crate) const TERMS_OF_NAMESPACE_MAX: u32 = 256;

/// How many terms all namespaces together may have in a bucket of terms that select pods of other namespaces.
pub(crate) const TERMS_OF_ALL_MAX: u32 = 1024;

/// Stands for all values in the buckets of selectors that name none.
const ANY_VALUE: &str = "";

#[derive(Clone, Debug, Default)]
pub(crate) struct Buckets {
    /// By the namespace of all pods that can match, `None` = other namespaces than the owner's, and by `key=value`.
    scopes: FxHashMap<Option<Symbol>, FxHashMap<Box<str>, Bucket>>,
}

#[derive(Clone, Debug, Default)]
struct Bucket {
    /// Selectors with the number of their terms.
    selectors: FxHashMap<SelectorId, u32>,
    terms: u32,
    terms_by_owner: FxHashMap<Symbol, u32>,
}

impl Bucket {
    fn add(&mut self, id: SelectorId, owner: Symbol) -> Result<(), AffinityTermBound> {
        let of_owner = self.terms_by_owner.entry(owner).or_default();
        *of_owner += 1;
        self.terms += 1;
        *self.selectors.entry(id).or_default() += 1;
        if *of_owner > TERMS_OF_NAMESPACE_MAX {
            Err(AffinityTermBound::Namespace)
        } else if self.terms > TERMS_OF_ALL_MAX {
            Err(AffinityTermBound::Cluster)
        } else {
            Ok(())
        }
    }

    fn remove(&mut self, id: SelectorId, owner: Symbol) {
        self.terms -= 1;
        subtract_one(&mut self.terms_by_owner, owner);
        subtract_one(&mut self.selectors, id);
    }
}

fn subtract_one<K: std::hash::Hash + Eq>(counts: &mut FxHashMap<K, u32>, key: K) {
    let count = counts.get_mut(&key).expect("a term is in the buckets of its selector");
    *count -= 1;
    if *count == 0 {
        counts.remove(&key);
    }
}

fn names(pairs: Option<Vec<String>>) -> Vec<String> {
    pairs.unwrap_or_else(|| vec![ANY_VALUE.to_owned()])
}

impl Buckets {
    /// Adds a term of a selector, and says whether the bounds allow it.
    pub(crate) fn add(
        &mut self,
        id: SelectorId,
        owner: Symbol,
        scope: Option<Symbol>,
        pairs: Option<Vec<String>>,
    ) -> Result<(), AffinityTermBound> {
        let buckets = self.scopes.entry(scope).or_default();
        let mut result = Ok(());
        for name in names(pairs) {
            let bucket = buckets.entry(name.into_boxed_str()).or_default();
            result = result.and(bucket.add(id, owner));
        }
        result
    }

    /// Removes a term of a selector.
    pub(crate) fn remove(&mut self, id: SelectorId, owner: Symbol, scope: Option<Symbol>, pairs: Option<Vec<String>>) {
        let Some(buckets) = self.scopes.get_mut(&scope) else {
            return;
        };
        for name in names(pairs) {
            if let Some(bucket) = buckets.get_mut(name.as_str()) {
                bucket.remove(id, owner);
                if bucket.terms == 0 {
                    buckets.remove(name.as_str());
                }
            }
        }
        if buckets.is_empty() {
            self.scopes.remove(&scope);
        }
    }

    /// The selectors that can match a label set; some of them more than once.
    pub(crate) fn of(&self, set: &LabelSet) -> Vec<SelectorId> {
        let mut found = Vec::new();
        for scope in [Some(set.namespace), None] {
            let Some(buckets) = self.scopes.get(&scope) else {
                continue;
            };
            for pair in set.labels.pairs().chain([ANY_VALUE]) {
                if let Some(bucket) = buckets.get(pair) {
                    found.extend(bucket.selectors.keys().copied());
                }
            }
        }
        found
    }
}
