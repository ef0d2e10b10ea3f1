//! Points in time, RFC 3339 as in every Kubernetes object.

use kai_engine::model::Millis;

use crate::Error;
use crate::quantity::shorten;

/// Parses a time as milliseconds since the Unix epoch.
pub fn parse_time(text: &str) -> Result<Millis, Error> {
    match text.parse::<jiff::Timestamp>() {
        Ok(timestamp) => Ok(Millis(timestamp.as_millisecond())),
        Err(_) => Err(Error::NotATime(shorten(text))),
    }
}

/// The time as text that [`parse_time`] reads. A time outside the calendar becomes the Unix epoch.
pub fn format_time(time: Millis) -> String {
    jiff::Timestamp::from_millisecond(time.0)
        .unwrap_or_default()
        .to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times() {
        assert_eq!(parse_time("1970-01-01T00:00:01Z"), Ok(Millis(1000)));
        assert_eq!(parse_time("2026-01-01T12:00:00.5+01:00"), Ok(Millis(1_767_265_200_500)));
        for text in ["1970-01-01T00:00:01Z", "2026-01-01T11:00:00.5Z"] {
            assert_eq!(parse_time(text).map(format_time).as_deref(), Ok(text));
        }
        assert!(parse_time("yesterday").is_err());
        assert!(parse_time("2026-13-01T00:00:00Z").is_err());
    }
}
