//! Durations as Go and Kubernetes write them: `90s`, `1h30m`, `-1s`, `1.5h`, `0`.

use kai_engine::model::Millis;

use crate::Error;
use crate::decimal::read_decimal;
use crate::quantity::shorten;

/// Parses a duration, rounded down to milliseconds.
pub fn parse_duration(text: &str) -> Result<Millis, Error> {
    let invalid = || Error::NotADuration(shorten(text));
    let (negative, mut rest) = match text.as_bytes().first() {
        Some(b'-') => (true, &text[1..]),
        Some(b'+') => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Ok(Millis(0));
    }
    if rest.is_empty() {
        return Err(invalid());
    }
    let mut nanos: u128 = 0;
    while !rest.is_empty() {
        if rest.starts_with(['+', '-']) {
            return Err(invalid());
        }
        let (number, tail) = read_decimal(rest).ok_or_else(invalid)?;
        let end = tail
            .find(|letter: char| letter == '.' || letter.is_ascii_digit())
            .unwrap_or(tail.len());
        let factor: u128 = match &tail[..end] {
            "ns" => 1,
            "us" | "\u{b5}s" | "\u{3bc}s" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return Err(invalid()),
        };
        let part = number.scaled(factor).ok_or_else(invalid)?.whole;
        nanos = nanos.checked_add(part).ok_or_else(invalid)?;
        rest = &tail[end..];
    }
    let millis = i64::try_from(nanos / 1_000_000).map_err(|_| invalid())?;
    Ok(Millis(if negative { -millis } else { millis }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn durations() {
        for (text, millis) in [
            ("600s", 600_000),
            ("0s", 0),
            ("0", 0),
            ("1h30m", 5_400_000),
            ("-1s", -1000),
            ("1.5h", 5_400_000),
            ("2ms3us", 2),
        ] {
            assert_eq!(parse_duration(text), Ok(Millis(millis)), "{text}");
        }
        for text in ["", "-", "5", "1x", "s", "1h-5m", "NaN", "99999999999999999999h"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = parse_duration(&text);
        }
    }
}
