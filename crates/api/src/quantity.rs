//! Kubernetes quantities: `500m`, `1.5`, `16Gi`, `2e3`.

use std::fmt;

use serde::de::{Deserialize, Deserializer, Visitor};

use crate::Error;
use crate::decimal::{read_decimal, read_exponent};
use crate::text::Text;

/// Thousandths in one unit.
const MILLI: i128 = 1_000;
/// The largest quantity: `8Ei`, the bound of Kubernetes' integers.
const UNITS_MAX: i128 = 1 << 63;

/// An amount in thousandths. Parsing rounds finer parts away from zero, as Kubernetes does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quantity {
    milli: i128,
}

impl Quantity {
    /// Parses a quantity.
    pub fn parse(text: &str) -> Result<Quantity, Error> {
        let invalid = || Error::NotAQuantity(shorten(text));
        let (decimal, suffix) = read_decimal(text).ok_or_else(invalid)?;
        let (power, factor) = match suffix {
            "n" => (-9, 1),
            "u" => (-6, 1),
            "m" => (-3, 1),
            "" => (0, 1),
            "k" => (3, 1),
            "M" => (6, 1),
            "G" => (9, 1),
            "T" => (12, 1),
            "P" => (15, 1),
            "E" => (18, 1),
            "Ki" => (0, 1u128 << 10),
            "Mi" => (0, 1 << 20),
            "Gi" => (0, 1 << 30),
            "Ti" => (0, 1 << 40),
            "Pi" => (0, 1 << 50),
            "Ei" => (0, 1 << 60),
            _ => (read_exponent(suffix).ok_or_else(invalid)?, 1),
        };
        let too_large = || Error::TooLarge {
            text: shorten(text),
            max: i64::MAX,
        };
        let magnitude = decimal
            .times_ten_to(power + 3)
            .scaled(factor)
            .ok_or_else(too_large)?
            .up();
        let magnitude = i128::try_from(magnitude)
            .ok()
            .filter(|milli| *milli <= UNITS_MAX * MILLI)
            .ok_or_else(too_large)?;
        Ok(Quantity {
            milli: if decimal.negative { -magnitude } else { magnitude },
        })
    }

    /// Thousandths, saturated to an `i64`.
    pub fn milli(self) -> i64 {
        saturate(self.milli)
    }

    /// Whole units, rounded away from zero.
    pub fn units_up(self) -> i64 {
        let up = self.milli / MILLI + (self.milli % MILLI).signum();
        saturate(up)
    }

    /// Whole units, rounded towards zero.
    pub fn units_down(self) -> i64 {
        saturate(self.milli / MILLI)
    }

    /// Whether the amount is a whole number of units.
    pub fn is_whole(self) -> bool {
        self.milli % MILLI == 0
    }

    /// Whether the amount is negative.
    pub fn is_negative(self) -> bool {
        self.milli < 0
    }
}

fn saturate(amount: i128) -> i64 {
    i64::try_from(amount).unwrap_or(if amount < 0 { i64::MIN } else { i64::MAX })
}

/// Cuts long input for messages, which are one line.
pub(crate) fn shorten(text: &str) -> String {
    const SHOWN_MAX: usize = 60;
    match text.char_indices().nth(SHOWN_MAX) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

/// A quantity as written, as a text or a number. The reader of the object parses it, since an error names the field.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QuantityText(pub(crate) Text);

impl QuantityText {
    /// The text of an amount in thousandths, in Kubernetes' canonical form.
    pub fn of_milli(milli: i128) -> QuantityText {
        let text = match milli % MILLI {
            0 => (milli / MILLI).to_string(),
            _ => format!("{milli}m"),
        };
        QuantityText(text.into())
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for QuantityText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl<T: Into<Text>> From<T> for QuantityText {
    fn from(text: T) -> QuantityText {
        QuantityText(text.into())
    }
}

impl serde::Serialize for QuantityText {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

struct RawVisitor;

impl Visitor<'_> for RawVisitor {
    type Value = QuantityText;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a quantity")
    }
    fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
        Ok(QuantityText(Text::common(text)))
    }
    fn visit_i64<E>(self, number: i64) -> Result<Self::Value, E> {
        Ok(QuantityText(Text::from(number.to_string())))
    }
    fn visit_u64<E>(self, number: u64) -> Result<Self::Value, E> {
        Ok(QuantityText(Text::from(number.to_string())))
    }
    fn visit_f64<E>(self, number: f64) -> Result<Self::Value, E> {
        Ok(QuantityText(Text::from(number.to_string())))
    }
}

impl<'de> Deserialize<'de> for QuantityText {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(RawVisitor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(text: &str, milli: i128) {
        assert_eq!(
            Quantity::parse(text).map(|quantity| quantity.milli),
            Ok(milli),
            "{text}"
        );
    }

    #[test]
    fn suffixes() {
        check("0", 0);
        check("1", 1000);
        check("+1.5", 1500);
        check("-2", -2000);
        check(".5", 500);
        check("5.", 5000);
        check("100m", 100);
        check("1500u", 2);
        check("1n", 1);
        check("-1n", -1);
        check("2k", 2_000_000);
        check("1Ki", 1_024_000);
        check("0.5Gi", 536_870_912_000);
        check("1.1Ki", 1_126_400);
        check("20T", 20_000_000_000_000_000);
        check("1E", 1_000_000_000_000_000_000_000);
        check("1Ei", 1_152_921_504_606_846_976_000);
        check("8Ei", 9_223_372_036_854_775_808_000);
        check("9223372036854775807", 9_223_372_036_854_775_807_000);
        check("1e3", 1_000_000);
        check("12E-1", 1200);
        check("1E2", 100_000);
        check("0.0001", 1);
    }

    #[test]
    fn refused() {
        for text in [
            "", " 1", "1 ", "1Gb", "1gi", "NaN", "inf", "0x10", "1e", "1e1.5", "--1", "1.2.3", "GPU", "1_000",
        ] {
            assert!(matches!(Quantity::parse(text), Err(Error::NotAQuantity(_))), "{text}");
        }
        for text in ["9Ei", "100E", "1e60", "99999999999999999999999999999999999999999"] {
            assert!(matches!(Quantity::parse(text), Err(Error::TooLarge { .. })), "{text}");
        }
    }

    #[test]
    fn units_round_as_asked() {
        let quantity = Quantity::parse("1500m").unwrap();
        assert_eq!(
            (quantity.units_up(), quantity.units_down(), quantity.is_whole()),
            (2, 1, false)
        );
        assert_eq!(Quantity::parse("-1500m").unwrap().units_up(), -2);
        assert_eq!(Quantity::parse("8Ei").unwrap().units_up(), i64::MAX);
    }

    #[test]
    fn thousandths_are_written_as_whole_units_where_they_are() {
        let text = |milli| QuantityText::of_milli(milli).to_string();
        assert_eq!(
            [text(0), text(1500), text(2000), text(-500)],
            ["0", "1500m", "2", "-500m"]
        );
    }

    #[test]
    fn numbers_are_quantities_too() {
        let raw: Vec<QuantityText> = serde_json::from_str(r#"[1, "2", 0.5, 1e3]"#).unwrap();
        let texts: Vec<&str> = raw.iter().map(|raw| &*raw.0).collect();
        assert_eq!(texts, ["1", "2", "0.5", "1000"]);
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = Quantity::parse(&text);
        }

        #[test]
        fn integers_are_exact(number in any::<i64>()) {
            let quantity = Quantity::parse(&number.to_string()).unwrap();
            prop_assert_eq!(quantity.units_up(), number);
            prop_assert_eq!(quantity.units_down(), number);
        }

        #[test]
        fn a_decimal_rounds_away_from_zero(whole in 0i64..1_000_000, nanos in 0u32..1_000_000_000) {
            let quantity = Quantity::parse(&format!("{whole}.{nanos:09}")).unwrap();
            let expect = i128::from(whole) * 1000 + i128::from(nanos.div_ceil(1_000_000));
            prop_assert_eq!(quantity.milli, expect);
        }

        #[test]
        fn suffixes_agree_with_their_factor(number in 0i64..1_000_000) {
            for (suffix, factor) in [("k", 1_000), ("M", 1_000_000), ("Ki", 1 << 10), ("Mi", 1 << 20), ("Gi", 1 << 30)] {
                let quantity = Quantity::parse(&format!("{number}{suffix}")).unwrap();
                prop_assert_eq!(quantity.units_up(), number * factor);
            }
        }
    }
}
