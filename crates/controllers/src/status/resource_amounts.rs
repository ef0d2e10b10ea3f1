//! Sums of resource amounts by name, exact to a billionth, and their text form.

use std::collections::BTreeMap;

use kai_api::crd::ResourceList;
use kai_api::{Quantity, QuantityText, keys};

const NANO_PER_MILLI: i128 = 1_000_000;
/// Billionths in one unit.
pub(super) const NANO_PER_UNIT: i128 = 1_000_000_000;

/// ResourceAmounts in billionths by resource name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ResourceAmounts {
    nano: BTreeMap<String, i128>,
}

impl ResourceAmounts {
    pub(super) fn add_nano(&mut self, name: &str, nano: i128) {
        match self.nano.get_mut(name) {
            Some(sum) => *sum = sum.saturating_add(nano),
            None => drop(self.nano.insert(name.to_owned(), nano)),
        }
    }

    pub(super) fn add_milli(&mut self, name: &str, milli: i64) {
        self.add_nano(name, i128::from(milli) * NANO_PER_MILLI);
    }

    pub(super) fn add(&mut self, other: &ResourceAmounts) {
        other.nano.iter().for_each(|(name, nano)| self.add_nano(name, *nano));
    }

    /// Subtracts amounts that were added before.
    pub(super) fn subtract(&mut self, other: &ResourceAmounts) {
        other.nano.iter().for_each(|(name, nano)| self.add_nano(name, -*nano));
    }

    /// Removes names with a zero amount.
    pub(super) fn drop_zeros(&mut self) {
        self.nano.retain(|_, nano| *nano != 0);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nano.is_empty()
    }

    /// Adds the resource list of an object. Quantities that can't be parsed are ignored.
    pub(super) fn add_list(&mut self, list: &ResourceList) {
        for (name, text) in list {
            if let Some(nano) = parse_nano(text.as_str()) {
                self.add_nano(name, nano);
            }
        }
    }

    /// The resource list for an object.
    pub(super) fn to_list(&self) -> ResourceList {
        self.nano
            .iter()
            .map(|(name, nano)| (name.clone(), QuantityText::from(text(name, *nano))))
            .collect()
    }

    /// The amount in units.
    pub(super) fn units(&self, name: &str) -> f64 {
        self.nano
            .get(name)
            .map_or(0.0, |nano| *nano as f64 / NANO_PER_UNIT as f64)
    }

    /// The names of the resources, sorted.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.nano.keys().map(String::as_str)
    }
}

/// `Quantity` is precise to a thousandth and rounds up. The suffixes `n` and `u`, which this file writes, are parsed exactly: a hundred
/// pods with a third of a GPU must not add up to more than they have. An amount is far below the bound of a sum, so subtraction is
/// exact.
fn parse_nano(text: &str) -> Option<i128> {
    let fine = |suffix: char, nano: i128| {
        let digits = text.strip_suffix(suffix)?;
        digits.parse::<i64>().ok().map(|digits| i128::from(digits) * nano)
    };
    fine('n', 1)
        .or_else(|| fine('u', 1_000))
        .or_else(|| Some(i128::from(Quantity::parse(text).ok()?.milli()) * NANO_PER_MILLI))
}

/// Writes bytes with a binary suffix if it is exact, other resources in units or thousandths. Finer parts are rounded; an amount above
/// zero is never written as zero.
fn text(name: &str, nano: i128) -> String {
    if is_bytes(name) {
        let mut amount = rounded(nano, NANO_PER_UNIT);
        let mut suffixes = ["", "Ki", "Mi", "Gi", "Ti", "Pi"].into_iter();
        let mut suffix = suffixes.next().unwrap_or_default();
        while amount != 0 && amount % 1024 == 0 {
            let Some(next) = suffixes.next() else { break };
            (amount, suffix) = (amount / 1024, next);
        }
        return format!("{amount}{suffix}");
    }
    QuantityText::of_milli(rounded(nano, NANO_PER_MILLI)).to_string()
}

/// Rounds to the nearest number of units, and up to one for an amount above zero.
fn rounded(nano: i128, unit: i128) -> i128 {
    match (nano + unit / 2).div_euclid(unit) {
        0 if nano > 0 => 1,
        units => units,
    }
}

/// The text of an amount in thousandths.
pub(crate) fn amount_text(name: &str, milli: i128) -> String {
    text(name, milli.saturating_mul(NANO_PER_MILLI))
}

fn is_bytes(name: &str) -> bool {
    name == keys::RESOURCE_MEMORY || name == "ephemeral-storage" || name.starts_with("hugepages-")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, terms: &[&str], expect: &str) {
        let mut amounts = ResourceAmounts::default();
        for term in terms {
            amounts.add_list(&ResourceList::from([(name.to_owned(), QuantityText::from(*term))]));
        }
        assert_eq!(amounts.to_list()[name].as_str(), expect, "{name}: {terms:?}");
    }

    #[test]
    fn sums_are_written_in_whole_units_or_thousandths() {
        check("cpu", &["1", "500m"], "1500m");
        check("cpu", &["1500m", "500m"], "2");
        check("memory", &["1Gi", "1073741824"], "2Gi");
        check("memory", &["1Ki", "1"], "1025");
        check("memory", &["0"], "0");
        check("nvidia.com/gpu", &["333300u", "333300u", "333400u"], "1");
        check("nvidia.com/gpu", &["333333333n"], "333m");
        check("nvidia.com/gpu", &["1847130848n"], "1847m");
        check("nvidia.com/gpu", &["666666667n"], "667m");
        check("nvidia.com/gpu", &["1n"], "1m");
        check("nvidia.com/gpu", &["1999999999n"], "2");
        check("memory", &["1500m"], "2");
        check("nvidia.com/gpu", &["1", "nonsense"], "1");
    }
}
