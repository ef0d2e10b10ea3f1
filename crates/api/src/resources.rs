//! Resource lists: amounts by resource name in the engine's units.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use kai_engine::steps;
use serde::Deserialize;

use crate::error::FieldError;
use crate::quantity::{Quantity, QuantityText, shorten};
use crate::text::TextMap;
use crate::{Error, keys};

/// Bounds per object. They are far above any machine, and low enough that sums over a cluster fit an `i64`.
pub(crate) const CPU_MILLI_MAX: i64 = 1_000_000_000_000;
pub(crate) const AMOUNT_MAX: i64 = 1 << 50;
pub(crate) const GPUS_MAX: i64 = 1_000_000;
pub(crate) const POD_SLOTS_MAX: i64 = 10_000_000;

pub(crate) const CPU: &str = "cpu";
pub(crate) const MEMORY: &str = "memory";
pub(crate) const PODS: &str = "pods";

/// A resource list as written.
pub(crate) type RawResources = TextMap<QuantityText>;

/// `resources` of a container or pod.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ResourceRequirements {
    pub(crate) requests: RawResources,
    pub(crate) limits: RawResources,
}

/// The direction of rounding: requests are rounded up, offers of nodes are rounded down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rounding {
    Asked,
    Offered,
}

/// One amount in the engine's unit: milli-cores for CPU, whole units for the rest.
pub(crate) fn amount(name: &str, raw: &str, rounding: Rounding) -> Result<i64, Error> {
    let quantity = Quantity::parse(raw)?;
    if quantity.is_negative() {
        return Err(Error::Negative(shorten(raw)));
    }
    let device = keys::is_gpu_resource(name) || name.starts_with(keys::MIG_PREFIX);
    if device && !quantity.is_whole() {
        return Err(Error::PartOfDevice(shorten(raw)));
    }
    let (amount, max) = match name {
        CPU => (quantity.milli(), CPU_MILLI_MAX),
        PODS => (quantity.units_down(), POD_SLOTS_MAX),
        _ if device => (quantity.units_down(), GPUS_MAX),
        _ => match rounding {
            Rounding::Asked => (quantity.units_up(), AMOUNT_MAX),
            Rounding::Offered => (quantity.units_down(), AMOUNT_MAX),
        },
    };
    if amount > max {
        let max = if name == CPU { max / 1000 } else { max };
        return Err(Error::TooLarge {
            text: shorten(raw),
            max,
        });
    }
    Ok(amount)
}

/// Amounts by resource name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amounts<'a> {
    entries: BTreeMap<Cow<'a, str>, i64>,
}

impl<'a> Amounts<'a> {
    /// The amount of a resource.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, i64)> {
        self.entries.iter().map(|(name, amount)| (&**name, *amount))
    }

    pub(crate) fn set(&mut self, name: Cow<'a, str>, amount: i64) {
        steps::count(1);
        self.entries.insert(name, amount);
    }

    fn combine(&mut self, other: &Amounts<'a>, with: impl Fn(i64, i64) -> i64) {
        for (name, amount) in &other.entries {
            steps::count(1);
            let present = self.entries.entry(name.clone()).or_default();
            *present = with(*present, *amount);
        }
    }

    pub(crate) fn add(&mut self, other: &Amounts<'a>) {
        self.combine(other, i64::saturating_add);
    }

    pub(crate) fn raise_to(&mut self, other: &Amounts<'a>) {
        self.combine(other, i64::max);
    }

    /// Subtracts `other`, down to zero.
    pub(crate) fn lower_by(&mut self, other: &Amounts<'a>) {
        for (name, amount) in &mut self.entries {
            steps::count(1);
            *amount = (*amount - other.entries.get(name).copied().unwrap_or(0)).max(0);
        }
    }

    /// The sums with `other`, restricted to the resources of `other`.
    pub(crate) fn with(&self, other: &Amounts<'a>) -> Amounts<'a> {
        let sum = |(name, amount): (&Cow<'a, str>, &i64)| {
            steps::count(1);
            let own = self.entries.get(name).copied().unwrap_or(0);
            (name.clone(), own.saturating_add(*amount))
        };
        Amounts {
            entries: other.entries.iter().map(sum).collect(),
        }
    }

    /// The requests of a container or pod. A limit without a request counts as the request, as in the API server.
    pub(crate) fn asked(
        resources: &'a ResourceRequirements,
        field: impl Fn() -> String,
        errors: &mut Vec<FieldError>,
    ) -> Amounts<'a> {
        let mut amounts = Amounts::default();
        let mut unreadable = BTreeSet::new();
        for (name, raw) in resources.requests.iter() {
            match amount(name, &raw.0, Rounding::Asked) {
                Ok(amount) => amounts.set(Cow::Borrowed(name), amount),
                Err(error) => {
                    unreadable.insert(name);
                    errors.push(FieldError::new(format!("{}.requests.{name}", field()), error));
                }
            }
        }
        for (name, raw) in resources.limits.iter() {
            steps::count(1);
            // A request takes precedence, so an invalid limit beside it has no effect.
            if !(amounts.entries.contains_key(name) || unreadable.contains(name)) {
                match amount(name, &raw.0, Rounding::Asked) {
                    Ok(amount) => amounts.set(Cow::Borrowed(name), amount),
                    Err(error) => errors.push(FieldError::new(format!("{}.limits.{name}", field()), error)),
                }
            }
        }
        amounts
    }

    /// Parses a plain list, such as the overhead of a pod.
    pub(crate) fn listed(list: &'a RawResources, field: &str, errors: &mut Vec<FieldError>) -> Amounts<'a> {
        let mut amounts = Amounts::default();
        for (name, raw) in list.iter() {
            match amount(name, &raw.0, Rounding::Asked) {
                Ok(amount) => amounts.set(Cow::Borrowed(name), amount),
                Err(error) => errors.push(FieldError::new(format!("{field}.{name}"), error)),
            }
        }
        amounts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &str, raw: &str, expect: Result<i64, Error>) {
        assert_eq!(amount(name, raw, Rounding::Asked), expect, "{name}: {raw}");
    }

    #[test]
    fn amounts_come_in_the_engine_s_units() {
        check("cpu", "1500m", Ok(1500));
        check("cpu", "20000", Ok(20_000_000));
        check("memory", "1Ki", Ok(1024));
        check("memory", "100m", Ok(1));
        check("nvidia.com/gpu", "2", Ok(2));
        assert_eq!(amount("memory", "1500m", Rounding::Offered), Ok(1));
    }

    #[test]
    fn nonsense_is_refused() {
        check("cpu", "-1", Err(Error::Negative("-1".to_owned())));
        check("nvidia.com/gpu", "500m", Err(Error::PartOfDevice("500m".to_owned())));
        check(
            "nvidia.com/mig-1g.5gb",
            "0.5",
            Err(Error::PartOfDevice("0.5".to_owned())),
        );
        check(
            "memory",
            "5Ei",
            Err(Error::TooLarge {
                text: "5Ei".to_owned(),
                max: AMOUNT_MAX,
            }),
        );
        check(
            "cpu",
            "10G",
            Err(Error::TooLarge {
                text: "10G".to_owned(),
                max: 1_000_000_000,
            }),
        );
        check("memory", "lots", Err(Error::NotAQuantity("lots".to_owned())));
    }
}
