//! When the prices are computed: with the first pods, and again after the mix of pods or the nodes have changed enough.

use crate::cluster::Cluster;
use crate::ledger::Ledger;
use crate::model::{Config, PlacementStrategy};
use crate::place::frag::Prices;
use crate::place::frag::mix::{Mix, NodeKind, known_pods, node_kinds};

/// The mix is counted again after so many pods came or went, as a part of those that were counted last.
const COUNT_AGAIN_PART: usize = 8;
/// And after so many at least: in a small cluster every pod changes the mix.
const COUNT_AGAIN_MIN: usize = 16;
/// The prices are computed again if this part of the pods is of other types now, or of the GPUs on other kinds of nodes.
const CHANGED_PART: f64 = 0.1;

/// The prices of a cluster, and what they were computed from.
#[derive(Clone, Debug, Default)]
pub(crate) struct PriceState {
    prices: Option<Box<Prices>>,
    kinds: Vec<NodeKind>,
    mix: Mix,
    /// Pods that were counted last.
    counted: usize,
    /// Pods that came or went since.
    pub(crate) pods_changed: usize,
    pub(crate) nodes_changed: bool,
}

impl PriceState {
    pub(crate) fn prices(&self) -> Option<&Prices> {
        self.prices.as_deref()
    }

    /// Prices that stay until the nodes change, for the replay of traces whose mix is known.
    pub(crate) fn fixed(prices: Option<Prices>) -> PriceState {
        PriceState {
            prices: prices.map(Box::new),
            ..PriceState::default()
        }
    }

    /// Brings the prices up to date; whether they changed.
    fn refresh(&mut self, ledger: &Ledger) -> bool {
        // The first prices should not wait for more pods.
        let least = if self.prices.is_some() { COUNT_AGAIN_MIN } else { 1 };
        let is_due = self.pods_changed >= (self.counted / COUNT_AGAIN_PART).max(least);
        if !self.nodes_changed && !is_due {
            return false;
        }
        let (kinds, kind_of) = node_kinds(ledger);
        let pods = known_pods(ledger);
        let mix = Mix::of(ledger, &kinds, &pods);
        (self.counted, self.pods_changed, self.nodes_changed) = (ledger.pods.len(), 0, false);
        let is_similar = same_kinds(&kinds, &self.kinds) && mix.distance(&self.mix) < CHANGED_PART;
        match &mut self.prices {
            Some(prices) if is_similar => {
                // A node may have other resources than before.
                prices.profiles.take();
                if prices.kind_of == kind_of {
                    return false;
                }
                prices.kind_of = kind_of;
            }
            prices => {
                *prices = Prices::of_mix(ledger, &mix, &kinds, kind_of).map(Box::new);
                (self.kinds, self.mix) = (kinds, mix);
            }
        }
        true
    }
}

/// Whether both are the same kinds in the same order, and few GPUs of one are on other kinds in the other.
fn same_kinds(now: &[NodeKind], before: &[NodeKind]) -> bool {
    let pairs = || now.iter().zip(before);
    let moved: i64 = pairs().map(|(now, before)| (now.gpus() - before.gpus()).abs()).sum();
    let gpus: i64 = before.iter().map(NodeKind::gpus).sum();
    now.len() == before.len()
        && pairs().all(|(now, before)| now.key == before.key)
        && moved as f64 <= CHANGED_PART * gpus as f64
}

impl Cluster {
    /// Brings the prices of strategy `frag` up to date, or drops them if the configuration does not use it.
    pub(crate) fn refresh_prices(&mut self, config: &Config) {
        let placement = config.placement;
        if ![placement.gpu, placement.cpu].contains(&PlacementStrategy::Frag) {
            if self.prices.prices.is_some() {
                self.prices = PriceState {
                    nodes_changed: true,
                    ..PriceState::default()
                };
            }
            return;
        }
        if self.prices.refresh(&self.ledger) {
            self.indexes.clear();
        }
    }
}
