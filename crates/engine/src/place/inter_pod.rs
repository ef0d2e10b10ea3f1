//! Rules between a pod and the pods on nodes: pod affinity, anti-affinity in both directions, host ports. The parts that
//! are the same for all nodes are computed once per pod; the counts of the affinity index are read per node.

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::affinity::TermCount;
use crate::ids::{NodeId, PodId, Symbol, TermId, TopologyKeyId};
use crate::ledger::Ledger;
use crate::place::host_ports::HostPorts;
use crate::reasons::Check;

/// Weight of one point of preferred pod affinity.
const AFFINITY_WEIGHT: i64 = 1_000_000;
/// Bound on the points of preferred pod affinity.
const SCORE_MAX: i64 = 100_000;

/// The rules between one pod and the pods that are on nodes.
#[derive(Debug)]
pub(crate) struct InterPodRules<'a> {
    ledger: &'a Ledger,
    /// Required affinity terms of the pod.
    affinity: &'a [TermId],
    /// The pod matches its own affinity terms and no other pod does: as in kube-scheduler, it may be placed first.
    is_first: bool,
    /// Required anti-affinity terms of the pod.
    anti_affinity: &'a [TermId],
    /// Required anti-affinity terms of pods on nodes that match the pod.
    others_anti_affinity: SmallVec<[TermId; 4]>,
    /// Preferred terms of the pod with their weights.
    own_preferred: &'a [(TermId, i64)],
    /// Preferred terms of pods on nodes that match the pod.
    others_preferred: SmallVec<[TermId; 4]>,
    /// All anti-affinity terms, merged if there are more than [`UNMERGED_MAX`].
    excluded: Option<MergedTerms>,
    /// All preferred terms, merged if there are more than [`UNMERGED_MAX`].
    scores: Option<MergedTerms>,
    ports: HostPorts<'a>,
    /// The nodes that the pod itself occupies: the counts of the index include it there.
    own_nodes: SmallVec<[NodeId; 2]>,
    pod: PodId,
}

/// Sums over terms by the values of their topology keys, so that a check of a node reads one value per key instead of one
/// per term.
#[derive(Debug, Default)]
struct MergedTerms {
    keys: Vec<TopologyKeyId>,
    values: FxHashMap<(TopologyKeyId, Symbol), i64>,
}

/// Up to this many terms are checked one by one.
const UNMERGED_MAX: usize = 4;

impl MergedTerms {
    fn add(&mut self, key: TopologyKeyId, value: Symbol, amount: i64) {
        if !self.keys.contains(&key) {
            self.keys.push(key);
        }
        *self.values.entry((key, value)).or_default() += amount;
    }

    /// The sum for a node over all keys.
    fn sum_at(&self, ledger: &Ledger, node: NodeId) -> i64 {
        ledger.note_work(self.keys.len());
        let of_key = |key: &TopologyKeyId| {
            let value = ledger.affinity.value_on(*key, node)?;
            self.values.get(&(*key, value)).copied()
        };
        self.keys.iter().filter_map(of_key).sum()
    }
}

impl<'a> InterPodRules<'a> {
    /// Whether no rule concerns the pod.
    pub(crate) fn are_not_needed(ledger: &Ledger, pod: PodId) -> bool {
        ledger.terms_matching(pod).is_empty() && !ledger.shape_of(pod).depends_on_other_pods()
    }

    /// `score` = include preferred terms.
    pub(crate) fn of(ledger: &'a Ledger, pod: PodId, score: bool) -> InterPodRules<'a> {
        let (shape, matching) = (ledger.shape_of(pod), ledger.terms_matching(pod));
        let mut rules = InterPodRules {
            ledger,
            affinity: &[],
            is_first: false,
            anti_affinity: &[],
            others_anti_affinity: SmallVec::new(),
            own_preferred: &[],
            others_preferred: SmallVec::new(),
            excluded: None,
            scores: None,
            ports: HostPorts::new(&shape.constraints.host_ports),
            own_nodes: ledger.pod(pod).nodes_in_use().collect(),
            pod,
        };
        if let Some(terms) = &shape.terms {
            (rules.affinity, rules.anti_affinity) = (&terms.required_affinity, &terms.required_anti_affinity);
            if score {
                rules.own_preferred = &terms.preferred;
            }
        }
        let total = |term: TermId| rules.count_of_others(term, None);
        let is_first = rules
            .affinity
            .iter()
            .all(|term| matching.contains(term) && total(*term).matching == 0);
        let avoiding = matching.iter().copied().filter(|term| total(*term).avoiding > 0);
        let avoiding: SmallVec<[TermId; 4]> = avoiding.collect();
        let preferring = matching.iter().copied().filter(|term| total(*term).preferring > 0);
        let preferring: SmallVec<[TermId; 4]> = if score { preferring.collect() } else { SmallVec::new() };
        ledger.note_work(matching.len());
        (rules.is_first, rules.others_anti_affinity, rules.others_preferred) = (is_first, avoiding, preferring);
        if rules.anti_affinity.len() + rules.others_anti_affinity.len() > UNMERGED_MAX {
            let anti_affinity = rules.anti_affinity.iter().map(|term| (*term, true));
            let avoiding = rules.others_anti_affinity.iter().map(|term| (*term, false));
            let counted = |at: TermCount, own: bool| i64::from(if own { at.matching > 0 } else { at.avoiding > 0 });
            rules.excluded = Some(rules.merge(anti_affinity.chain(avoiding), counted));
        }
        if rules.own_preferred.len() + rules.others_preferred.len() > UNMERGED_MAX {
            let own = rules.own_preferred.iter().map(|(term, weight)| (*term, *weight));
            let others = rules.others_preferred.iter().map(|term| (*term, 0));
            let own = rules.merge(own, |at, weight| at.matching * weight);
            let mut scores = rules.merge(others, |at, _| at.weight);
            for ((key, value), amount) in own.values {
                scores.add(key, value, amount);
            }
            rules.scores = Some(scores);
        }
        rules
    }

    fn merge<T: Copy>(
        &self,
        terms: impl Iterator<Item = (TermId, T)>,
        counted: impl Fn(TermCount, T) -> i64,
    ) -> MergedTerms {
        let index = &self.ledger.affinity;
        let mut merged = MergedTerms::default();
        for (term, which) in terms {
            self.ledger.note_work(index.term(term).value_count());
            for (value, _) in index.term(term).values() {
                let amount = counted(self.count_of_others(term, Some(value)), which);
                if amount != 0 {
                    merged.add(index.key_id(term), value, amount);
                }
            }
        }
        merged
    }

    /// Counts of a term at one value of its topology key, or at all values, without the pod itself.
    fn count_of_others(&self, term: TermId, value: Option<Symbol>) -> TermCount {
        let index = &self.ledger.affinity;
        let row = index.term(term);
        let mut count = value.map_or(row.total, |value| row.at(value));
        if self.own_nodes.is_empty() {
            return count;
        }
        let key = index.key_of(term);
        let at_value = |node: &&NodeId| {
            key.value(**node)
                .is_some_and(|own| value.is_none_or(|value| own == value))
        };
        let times = self.own_nodes.iter().filter(at_value).count() as i64;
        if self.ledger.terms_matching(self.pod).contains(&term) {
            count.matching -= times;
        }
        if let Some(terms) = &self.ledger.shape_of(self.pod).terms {
            count.avoiding -= times * i64::from(terms.required_anti_affinity.contains(&term));
            for (_, weight) in terms.preferred.iter().filter(|(own, _)| *own == term) {
                count.preferring -= times;
                count.weight -= times * weight;
            }
        }
        count
    }

    /// Counts of a term at the node's value of its topology key; `None` = the node lacks the label.
    fn count_at_node(&self, term: TermId, node: NodeId) -> Option<TermCount> {
        let value = self.ledger.affinity.key_of(term).value(node)?;
        Some(self.count_of_others(term, Some(value)))
    }

    /// Whether a required rule rejects the node.
    pub(crate) fn check(&self, node: NodeId) -> Result<(), Check> {
        self.ledger.note_work(self.affinity.len());
        if self.has_port_conflict(node) {
            return Err(Check::HostPorts);
        }
        let meets = |term: &TermId, counted: fn(TermCount) -> i64| {
            self.count_at_node(*term, node).is_some_and(|at| counted(at) > 0)
        };
        let is_excluded = match &self.excluded {
            Some(excluded) => excluded.sum_at(self.ledger, node) > 0,
            None => {
                self.ledger
                    .note_work(self.anti_affinity.len() + self.others_anti_affinity.len());
                self.anti_affinity.iter().any(|term| meets(term, |at| at.matching))
                    || self
                        .others_anti_affinity
                        .iter()
                        .any(|term| meets(term, |at| at.avoiding))
            }
        };
        if is_excluded {
            return Err(Check::PodAntiAffinity);
        }
        // A node without the label never satisfies the term, as in kube-scheduler.
        let is_near = |term: &TermId| match self.count_at_node(*term, node) {
            Some(count) => self.is_first || count.matching > 0,
            None => false,
        };
        if !self.affinity.iter().all(is_near) {
            return Err(Check::PodAffinity);
        }
        Ok(())
    }

    fn has_port_conflict(&self, node: NodeId) -> bool {
        if self.ports.is_empty() {
            return false;
        }
        let ports = |pod: &PodId| &self.ledger.shape_of(*pod).constraints.host_ports;
        let pods = &self.ledger.node(node).pods;
        let taken = || pods.iter().flat_map(ports);
        self.ledger
            .note_work(pods.len() + pods.iter().map(|pod| ports(pod).len()).sum::<usize>());
        taken().any(|taken| self.ports.conflict_with(taken))
    }

    /// Whether anti-affinity excludes every value of some topology key, so that no node accepts the pod.
    pub(crate) fn rule_out_all_nodes(&self) -> bool {
        let index = &self.ledger.affinity;
        let present = self.ledger.present_nodes;
        let everywhere = |term: &TermId, counted: fn(TermCount) -> i64| {
            let (row, key) = (index.term(*term), index.key_of(*term));
            row.value_count() >= key.value_count() && key.labelled_nodes() == present && {
                self.ledger.note_work(row.value_count());
                let met = row
                    .values()
                    .filter(|(value, _)| counted(self.count_of_others(*term, Some(*value))) > 0);
                met.count() == key.value_count()
            }
        };
        present > 0
            && (self.anti_affinity.iter().any(|term| everywhere(term, |at| at.matching))
                || self
                    .others_anti_affinity
                    .iter()
                    .any(|term| everywhere(term, |at| at.avoiding)))
    }

    /// The nodes that satisfy a required affinity term, if they are few.
    pub(crate) fn candidates(&self) -> Option<Vec<NodeId>> {
        /// They are few if they are at most one in this many nodes.
        const FEW_DIVISOR: usize = 8;
        if self.is_first {
            return None;
        }
        let index = &self.ledger.affinity;
        let most = self.ledger.nodes.len() / FEW_DIVISOR;
        let few = |term: &&TermId| {
            let (row, key) = (index.term(**term), index.key_of(**term));
            row.value_count() <= most && row.values().map(|(value, _)| key.nodes(value).len()).sum::<usize>() <= most
        };
        let term = self.affinity.iter().find(few)?;
        let (row, key) = (index.term(*term), index.key_of(*term));
        let matching = row.values().filter(|(_, count)| count.matching > 0);
        Some(matching.flat_map(|(value, _)| key.nodes(value)).copied().collect())
    }

    /// Whether preferred terms can give nodes different scores.
    pub(crate) fn has_scores(&self) -> bool {
        let counts = |(term, _): &(TermId, i64)| self.count_of_others(*term, None).matching > 0;
        !self.others_preferred.is_empty() || self.own_preferred.iter().any(counts)
    }

    /// The score of the node by preferred pod affinity.
    pub(crate) fn score(&self, node: NodeId) -> i64 {
        if let Some(scores) = &self.scores {
            return scores.sum_at(self.ledger, node).clamp(-SCORE_MAX, SCORE_MAX) * AFFINITY_WEIGHT;
        }
        self.ledger
            .note_work(self.own_preferred.len() + self.others_preferred.len());
        let own = self.own_preferred.iter().filter_map(|(term, weight)| {
            let count = self.count_at_node(*term, node)?;
            Some(count.matching * weight)
        });
        let others = self
            .others_preferred
            .iter()
            .filter_map(|term| Some(self.count_at_node(*term, node)?.weight));
        own.chain(others).sum::<i64>().clamp(-SCORE_MAX, SCORE_MAX) * AFFINITY_WEIGHT
    }
}
