//! The most valuable pods for one GPU.

use crate::place::frag::STEPS;

/// A pod that a GPU can hold, or the part of it on one GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct Item {
    /// Steps of the GPU that the pod takes; at least 1.
    pub(super) steps: u8,
    pub(super) value: f64,
}

/// By free steps of a GPU: the value of the best pods for it, and the item to begin with.
pub(super) struct BestFill {
    values: Vec<f64>,
    first: Vec<Option<usize>>,
}

impl BestFill {
    /// The best fills from the items, each any number of times.
    pub(super) fn of(items: &[Item]) -> BestFill {
        let mut values = vec![0.0f64; usize::from(STEPS) + 1];
        let mut first = vec![None; usize::from(STEPS) + 1];
        for free in 1..=usize::from(STEPS) {
            (values[free], first[free]) = (values[free - 1], None);
            for (at, item) in items.iter().enumerate() {
                let Some(rest) = free.checked_sub(usize::from(item.steps)) else {
                    continue;
                };
                let value = item.value + values[rest];
                if value > values[free] + 1e-12 {
                    (values[free], first[free]) = (value, Some(at));
                }
            }
        }
        BestFill { values, first }
    }

    /// The value by free steps.
    pub(super) fn values(&self) -> &[f64] {
        &self.values
    }

    /// The value of a free GPU.
    pub(super) fn value(&self) -> f64 {
        self.values[usize::from(STEPS)]
    }

    /// The items of the best fill of a free GPU, each with its number.
    pub(super) fn items(&self, items: &[Item]) -> Vec<(usize, u32)> {
        let mut chosen: Vec<(usize, u32)> = Vec::new();
        let mut free = usize::from(STEPS);
        while free > 0 {
            let Some(at) = self.first[free] else {
                free -= 1;
                continue;
            };
            match chosen.iter_mut().find(|(item, _)| *item == at) {
                Some((_, times)) => *times += 1,
                None => chosen.push((at, 1)),
            }
            free -= usize::from(items[at].steps);
        }
        chosen
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The best value by trying everything.
    fn by_trial(items: &[Item], free: u8) -> f64 {
        let fills = items.iter().filter_map(|item| {
            let rest = free.checked_sub(item.steps)?;
            Some(item.value + by_trial(items, rest))
        });
        fills.fold(0.0, f64::max)
    }

    proptest! {
        #[test]
        fn the_best_fill_is_the_best_of_all(items in prop::collection::vec((15u8..=100, 0u8..50), 0..5)) {
            let items: Vec<Item> = items.iter().map(|(steps, value)| Item { steps: *steps, value: f64::from(*value) }).collect();
            let best = BestFill::of(&items);
            prop_assert_eq!(best.value(), by_trial(&items, STEPS));
            let chosen = best.items(&items);
            let worth: f64 = chosen.iter().map(|(at, times)| items[*at].value * f64::from(*times)).sum();
            prop_assert_eq!(worth, best.value());
            let taken: u32 = chosen.iter().map(|(at, times)| u32::from(items[*at].steps) * times).sum();
            prop_assert!(taken <= u32::from(STEPS));
        }
    }
}
