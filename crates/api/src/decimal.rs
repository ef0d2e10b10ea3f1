//! Exact decimal numbers, for quantities and GPU fractions. No floats.

/// Exponents beyond this have no effect on any amount in use.
const EXPONENT_MAX: i32 = 64;

/// `±digits × 10^exponent`, exactly as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decimal {
    pub(crate) negative: bool,
    digits: u128,
    exponent: i32,
    /// Whether non-zero digits were dropped because `digits` was full.
    inexact: bool,
}

/// Reads `[+-]digits[.digits]` and returns it with the rest of the text. `None` without any digit.
pub(crate) fn read_decimal(text: &str) -> Option<(Decimal, &str)> {
    let (negative, unsigned) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let mut decimal = Decimal {
        negative,
        digits: 0,
        exponent: 0,
        inexact: false,
    };
    let (mut seen_digit, mut seen_point, mut end) = (false, false, unsigned.len());
    for (at, byte) in unsigned.bytes().enumerate() {
        match byte {
            b'0'..=b'9' => {
                seen_digit = true;
                decimal.push(byte - b'0', seen_point);
            }
            b'.' if !seen_point => seen_point = true,
            _ => {
                end = at;
                break;
            }
        }
    }
    seen_digit.then(|| (decimal, &unsigned[end..]))
}

/// Reads `e5`, `E-3`: the exponent of a decimal. `None` if the text is anything else.
pub(crate) fn read_exponent(text: &str) -> Option<i32> {
    let digits = text.strip_prefix(['e', 'E'])?;
    let number: i32 = digits.parse().ok()?;
    Some(number.clamp(-EXPONENT_MAX, EXPONENT_MAX))
}

impl Decimal {
    fn push(&mut self, digit: u8, after_point: bool) {
        match self
            .digits
            .checked_mul(10)
            .and_then(|digits| digits.checked_add(u128::from(digit)))
        {
            // One decimal digit of head-room keeps later steps simple; 10^37 is beyond any amount in use.
            Some(digits) if digits < u128::MAX / 10 => {
                self.digits = digits;
                self.exponent -= i32::from(after_point);
            }
            _ => {
                self.inexact |= digit != 0;
                self.exponent += i32::from(!after_point);
            }
        }
    }

    /// Multiplies by a power of ten: `times_ten_to(3)` is a thousand times as much.
    pub(crate) fn times_ten_to(self, power: i32) -> Decimal {
        Decimal {
            exponent: self.exponent.saturating_add(power),
            ..self
        }
    }

    /// The magnitude times `factor` as an integer, and its remainder. `None` if too large.
    pub(crate) fn scaled(self, factor: u128) -> Option<Scaled> {
        if self.digits == 0 {
            return Some(Scaled {
                whole: 0,
                remainder: Remainder::None,
            });
        }
        if self.exponent >= 0 {
            let ten = 10u128.checked_pow(self.exponent.unsigned_abs())?;
            let whole = self.digits.checked_mul(ten)?.checked_mul(factor)?;
            let remainder = if self.inexact {
                Remainder::Below
            } else {
                Remainder::None
            };
            return Some(Scaled { whole, remainder });
        }
        let below = self.exponent.unsigned_abs();
        // If the product overflows, drop trailing digits first, so that long decimals of small numbers still work.
        let (mut digits, mut left, mut lost) = (self.digits, below, self.inexact);
        let mut product = digits.checked_mul(factor);
        while product.is_none() && left > 0 {
            lost |= digits % 10 != 0;
            digits /= 10;
            left -= 1;
            product = digits.checked_mul(factor);
        }
        let product = product?;
        let Some(ten) = 10u128.checked_pow(left) else {
            return Some(Scaled {
                whole: 0,
                remainder: Remainder::Below,
            });
        };
        let rest = product % ten;
        let remainder = match () {
            () if rest >= ten - rest && rest != 0 => Remainder::HalfOrAbove,
            () if rest != 0 || lost => Remainder::Below,
            () => Remainder::None,
        };
        Some(Scaled {
            whole: product / ten,
            remainder,
        })
    }
}

/// A decimal scaled to an integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scaled {
    pub(crate) whole: u128,
    pub(crate) remainder: Remainder,
}

/// The fraction below the integer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Remainder {
    None,
    Below,
    HalfOrAbove,
}

impl Scaled {
    pub(crate) fn up(self) -> u128 {
        self.whole.saturating_add(u128::from(self.remainder != Remainder::None))
    }
    pub(crate) fn nearest(self) -> u128 {
        self.whole
            .saturating_add(u128::from(self.remainder == Remainder::HalfOrAbove))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, factor: u128, expect: Option<(u128, Remainder)>) {
        let (decimal, rest) = read_decimal(text).unwrap();
        assert_eq!(rest, "", "{text}");
        assert_eq!(
            decimal.scaled(factor).map(|scaled| (scaled.whole, scaled.remainder)),
            expect,
            "{text}"
        );
    }

    #[test]
    fn decimals_scale_exactly() {
        check("0.5", 1_000_000_000, Some((500_000_000, Remainder::None)));
        check(".1", 10, Some((1, Remainder::None)));
        check("12.", 10, Some((120, Remainder::None)));
        check("0.0015", 1000, Some((1, Remainder::HalfOrAbove)));
        check("0.0014", 1000, Some((1, Remainder::Below)));
        check(
            "0.33333333333333333333333333333333333333333333",
            1000,
            Some((333, Remainder::Below)),
        );
        check("99999999999999999999999999999999999999999999", 1, None);
        check(
            "0.00000000000000000000000000000000000000000000000001",
            1,
            Some((0, Remainder::Below)),
        );
    }

    #[test]
    fn what_is_no_decimal_is_none() {
        for text in ["", "-", ".", "NaN", "inf", "x1"] {
            assert_eq!(read_decimal(text), None, "{text}");
        }
        assert_eq!(read_exponent("e-3"), Some(-3));
        assert_eq!(read_exponent("e"), None);
        assert_eq!(read_exponent("e99999999999"), None);
    }
}
