//! Points in time.

use std::cmp::Ordering;
use std::fmt;
use std::num::NonZeroI64;
use std::str::FromStr;

use kai_engine::model::Millis;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A point in time. In JSON a text in RFC 3339, exact to a millisecond.
///
/// Views have many times that are not known. The Unix epoch is stored as [`NonZeroI64::MIN`], which is in no calendar, so that an
/// `Option<Time>` needs no more memory than a `Time`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Time(NonZeroI64);

impl Time {
    /// The time with these milliseconds since the Unix epoch.
    pub fn from_millis(millis: i64) -> Time {
        NonZeroI64::new(millis).map_or_else(Time::default, Time)
    }

    /// Milliseconds since the Unix epoch.
    pub fn millis(self) -> i64 {
        match self.0 {
            NonZeroI64::MIN => 0,
            millis => millis.get(),
        }
    }
}

impl Default for Time {
    /// The Unix epoch.
    fn default() -> Time {
        Time(NonZeroI64::MIN)
    }
}

impl From<Millis> for Time {
    fn from(time: Millis) -> Time {
        Time::from_millis(time.0)
    }
}

impl FromStr for Time {
    type Err = kai_api::Error;

    /// Reads RFC 3339.
    fn from_str(text: &str) -> Result<Time, kai_api::Error> {
        kai_api::parse_time(text).map(Time::from)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Time) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Time {
    fn cmp(&self, other: &Time) -> Ordering {
        self.millis().cmp(&other.millis())
    }
}

impl fmt::Display for Time {
    /// RFC 3339.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&kai_api::format_time(Millis(self.millis())))
    }
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&kai_api::format_time(Millis(self.millis())))
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Time, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_texts_in_json() {
        for text in ["1970-01-01T00:00:00Z", "2026-01-01T11:00:00.5Z", "1969-12-31T23:59:59Z"] {
            let json = format!("\"{text}\"");
            let time: Time = serde_json::from_str(&json).unwrap();
            assert_eq!(time.to_string(), text);
            assert_eq!(serde_json::to_string(&time).unwrap(), json);
        }
        assert!(serde_json::from_str::<Time>("\"\"").is_err());
        assert_eq!(size_of::<Option<Time>>(), 8);
    }

    #[test]
    fn the_epoch_is_in_order() {
        let [before, epoch, after] = [-1, 0, 1].map(Time::from_millis);
        assert!(before < epoch && epoch < after);
        assert_eq!(epoch.millis(), 0);
    }
}
