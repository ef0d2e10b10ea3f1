//! Quantities as Kubernetes reads and writes them: exact, in billionths, with their canonical text.

/// Billionths per unit.
const NANO: i128 = 1_000_000_000;
/// The largest amount of Kubernetes.
const UNITS_MAX: i128 = i64::MAX as i128;

/// The error of a text that is no quantity.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    /// The text has not the form of a quantity.
    #[error("quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'")]
    Form,
    /// The suffix is unknown.
    #[error("unable to parse quantity's suffix")]
    Suffix,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Binary,
    Decimal,
    Exponent,
}

/// An exact amount.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Quantity {
    nanos: i128,
    format: Format,
}

impl Quantity {
    pub(crate) fn parse(text: &str) -> Result<Self, Error> {
        let (negative, body) = match text.strip_prefix(['+', '-']) {
            Some(body) => (text.starts_with('-'), body),
            None => (false, text),
        };
        let end = body
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(body.len());
        let (number, suffix) = body.split_at(end);
        if number.is_empty() || number == "." || number.matches('.').count() > 1 {
            return Err(Error::Form);
        }
        let (multiplier, divisor, format) = scale(suffix)?;
        let nanos = in_nanos(number, multiplier, divisor);
        let nanos = nanos.min(UNITS_MAX * NANO);
        Ok(Self {
            nanos: if negative { -nanos } else { nanos },
            format,
        })
    }

    pub(crate) fn is_negative(self) -> bool {
        self.nanos < 0
    }

    pub(crate) fn is_whole(self) -> bool {
        self.nanos % NANO == 0
    }

    /// In billionths.
    pub(crate) fn nanos(self) -> i128 {
        self.nanos
    }

    /// The canonical text.
    fn canonical(self) -> String {
        if self.nanos == 0 {
            return "0".to_owned();
        }
        let binary = self.format == Format::Binary && self.nanos.abs() >= 1024 * NANO;
        if binary {
            // Fractions of a byte are rounded up.
            let mut units = self.nanos.div_euclid(NANO) + i128::from(!self.is_whole());
            let mut power = 0;
            while units % 1024 == 0 && power < 6 {
                units /= 1024;
                power += 1;
            }
            let suffix = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"][power];
            return format!("{units}{suffix}");
        }
        let (mut mantissa, mut exponent) = (self.nanos, -9);
        while mantissa % 1000 == 0 && exponent < 18 {
            mantissa /= 1000;
            exponent += 3;
        }
        if self.format == Format::Exponent {
            return if exponent == 0 {
                mantissa.to_string()
            } else {
                format!("{mantissa}e{exponent}")
            };
        }
        let suffix = ["n", "u", "m", "", "k", "M", "G", "T", "P", "E"][((exponent + 9) / 3) as usize];
        format!("{mantissa}{suffix}")
    }
}

/// The canonical text of a quantity.
pub(crate) fn canonical(text: &str) -> Result<String, Error> {
    Quantity::parse(text).map(Quantity::canonical)
}

/// Multiplier, divisor and format of a suffix.
fn scale(suffix: &str) -> Result<(i128, i128, Format), Error> {
    let decimal = |multiplier, divisor| Ok((multiplier, divisor, Format::Decimal));
    let binary = |power: u32| Ok((1024_i128.pow(power), 1, Format::Binary));
    match suffix {
        "" => decimal(1, 1),
        "n" => decimal(1, NANO),
        "u" => decimal(1, 1_000_000),
        "m" => decimal(1, 1_000),
        "k" => decimal(1_000, 1),
        "M" => decimal(1_000_000, 1),
        "G" => decimal(NANO, 1),
        "T" => decimal(NANO * 1_000, 1),
        "P" => decimal(NANO * 1_000_000, 1),
        "E" => decimal(NANO * NANO, 1),
        "Ki" => binary(1),
        "Mi" => binary(2),
        "Gi" => binary(3),
        "Ti" => binary(4),
        "Pi" => binary(5),
        "Ei" => binary(6),
        _ => exponent(suffix),
    }
}

fn exponent(suffix: &str) -> Result<(i128, i128, Format), Error> {
    let legal = |c: char| "eEinumkKMGTP+-0123456789".contains(c);
    if !suffix.chars().all(legal) {
        return Err(Error::Form);
    }
    let power = suffix.strip_prefix(['e', 'E']).ok_or(Error::Suffix)?;
    let power: i32 = power.parse().map_err(|_| Error::Suffix)?;
    // Beyond these powers every amount is the largest or the smallest one.
    let magnitude = |power_max: u32| 10_i128.pow(power.unsigned_abs().min(power_max));
    Ok(if power < 0 {
        (1, magnitude(18), Format::Exponent)
    } else {
        (magnitude(30), 1, Format::Exponent)
    })
}

/// A decimal number times a scale, in billionths, rounded up as Kubernetes does.
fn in_nanos(number: &str, multiplier: i128, divisor: i128) -> i128 {
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    // Further digits change nothing: amounts are bounded, and parts of a billionth are rounded up.
    let whole = whole.trim_start_matches('0');
    if whole.len() > 28 {
        return UNITS_MAX * NANO;
    }
    let whole: i128 = whole.parse().unwrap_or(0);
    let kept = &fraction[..fraction.len().min(18)];
    let beyond = fraction[kept.len()..].bytes().any(|digit| digit != b'0');
    let scale = 10_i128.pow(kept.len() as u32);
    let part: i128 = kept.parse().unwrap_or(0);
    let up = |numerator: i128, divisor: i128| numerator.div_euclid(divisor) + i128::from(numerator % divisor != 0);
    let of_whole = whole
        .checked_mul(multiplier)
        .and_then(|n| n.checked_mul(NANO))
        .map_or(UNITS_MAX * NANO, |n| up(n, divisor));
    let of_part = part.checked_mul(multiplier).map(|n| {
        if n < i128::MAX / NANO {
            up(n * NANO, scale * divisor)
        } else {
            (n / scale).saturating_mul(NANO) / divisor
        }
    });
    of_whole
        .saturating_add(of_part.unwrap_or(UNITS_MAX * NANO))
        .saturating_add(i128::from(beyond))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_become_canonical() {
        for (text, expect) in [
            ("1", "1"),
            ("1000m", "1"),
            ("0.5", "500m"),
            ("1.5", "1500m"),
            ("1024Mi", "1Gi"),
            ("1000Mi", "1000Mi"),
            ("1.5Gi", "1536Mi"),
            ("0.5Ki", "512"),
            ("1e3", "1e3"),
            ("12e6", "12e6"),
            ("1E", "1E"),
            ("100", "100"),
            ("1000", "1k"),
            ("0", "0"),
            ("0Gi", "0"),
            ("-1", "-1"),
            ("0.1n", "1n"),
            (".5", "500m"),
            ("5.", "5"),
            ("99999999999999999999", "9223372036854775807"),
            ("1e30", "9223372036854775807"),
            ("0.5e40", "9223372036854775807"),
            ("1e-40", "1e-9"),
        ] {
            assert_eq!(canonical(text).as_deref(), Ok(expect), "{text}");
        }
    }

    proptest::proptest! {
        #[test]
        fn a_canonical_text_stays_as_it_is(text in "[+-]?[0-9]{0,30}[.]?[0-9]{0,30}[eEinumkKMGTP]{0,2}[-+]?[0-9]{0,12}") {
            if let Ok(once) = canonical(&text) {
                proptest::prop_assert_eq!(canonical(&once), Ok(once.clone()), "{}", text);
            }
        }
    }

    #[test]
    fn what_is_no_quantity() {
        for text in ["", "x", "1 Gi", "1,5", "--1", "1.2.3"] {
            assert_eq!(Quantity::parse(text), Err(Error::Form), "{text:?}");
        }
        for text in ["1Gii", "1K", "1e", "5mm"] {
            assert_eq!(Quantity::parse(text), Err(Error::Suffix), "{text:?}");
        }
    }
}
