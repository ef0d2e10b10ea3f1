//! The window of the past that counts.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::TimeZone;
use jiff::{Timestamp, Zoned};
use kai_engine::model::Millis;

/// The longest window. Longer ones would overflow nothing, but keep queues in memory that nobody remembers.
pub const WINDOW_MAX: Millis = Millis::seconds(366 * 24 * 3600);

/// The window of the past that counts.
#[derive(Clone, Debug)]
pub enum Window {
    /// The last `size`.
    Sliding {
        /// Its length.
        size: Millis,
    },
    /// Windows of the same length one after the other: at the end of each, nothing is left of the past.
    Tumbling {
        /// The length of each.
        size: Millis,
        /// When the first one starts.
        first: Millis,
    },
    /// A window starts at each time of the schedule, in UTC.
    Cron(Box<Cron>),
}

impl Window {
    /// Reads a schedule: five fields, or six with seconds, in UTC.
    pub fn cron(schedule: &str) -> Result<Window, String> {
        let parser = CronParser::builder()
            .seconds(Seconds::Optional)
            .year(Year::Disallowed)
            .build();
        let cron = parser.parse(schedule).map_err(|error| error.to_string())?;
        Ok(Window::Cron(Box::new(cron)))
    }

    /// When the window that `now` is in began. A tumbling window that has not begun has no past.
    pub fn start(&self, now: Millis) -> Millis {
        let earliest = now - WINDOW_MAX;
        let start = match self {
            Window::Sliding { size } => now - *size,
            Window::Tumbling { first, .. } if now < *first => now,
            Window::Tumbling { size, first } => {
                let age = (now - *first).0;
                Millis(now.0.saturating_sub(age.rem_euclid(size.0.max(1))))
            }
            Window::Cron(cron) => last_time(cron, now).unwrap_or(earliest),
        };
        start.max(earliest).min(now)
    }

    /// The length of a part of the window that is forgotten at once, where the window moves with time.
    pub(crate) fn slides(&self) -> Option<Millis> {
        match self {
            Window::Sliding { size } => Some(*size),
            Window::Tumbling { .. } | Window::Cron(_) => None,
        }
    }
}

/// The last time of the schedule, `now` included; `None` = it never came.
fn last_time(cron: &Cron, now: Millis) -> Option<Millis> {
    let now = Timestamp::from_millisecond(now.0).ok()?;
    let now: Zoned = now.to_zoned(TimeZone::UTC);
    let last = cron.find_previous_occurrence(&now, true).ok()?;
    Some(Millis(last.timestamp().as_millisecond()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Millis {
        Millis(text.parse::<Timestamp>().unwrap().as_millisecond())
    }

    #[track_caller]
    fn check(window: &Window, now: &str, expect: &str) {
        assert_eq!(window.start(at(now)), at(expect), "at {now}");
    }

    #[test]
    fn a_sliding_window_ends_now() {
        let week = Window::Sliding {
            size: Millis::seconds(7 * 24 * 3600),
        };
        check(&week, "2026-03-10T12:00:00Z", "2026-03-03T12:00:00Z");
        let endless = Window::Sliding { size: Millis(i64::MAX) };
        assert_eq!(endless.start(Millis(0)), Millis(0) - WINDOW_MAX);
    }

    #[test]
    fn tumbling_windows_follow_each_other() {
        let days = Window::Tumbling {
            size: Millis::seconds(24 * 3600),
            first: at("2026-03-01T06:00:00Z"),
        };
        check(&days, "2026-03-03T05:59:59Z", "2026-03-02T06:00:00Z");
        check(&days, "2026-03-03T06:00:00Z", "2026-03-03T06:00:00Z");
        check(&days, "2026-02-01T00:00:00Z", "2026-02-01T00:00:00Z");
        let nothing = Window::Tumbling {
            size: Millis(0),
            first: Millis(0),
        };
        assert_eq!(nothing.start(Millis(5)), Millis(5));
    }

    #[test]
    fn a_schedule_starts_windows() {
        let mondays = Window::cron("0 8 * * 1").unwrap();
        check(&mondays, "2026-03-11T12:34:56Z", "2026-03-09T08:00:00Z");
        check(&mondays, "2026-03-09T08:00:00Z", "2026-03-09T08:00:00Z");
        check(&mondays, "2026-03-09T07:59:59Z", "2026-03-02T08:00:00Z");
        let seconds = Window::cron("30 0 0 1 * *").unwrap();
        check(&seconds, "2026-03-11T12:34:56Z", "2026-03-01T00:00:30Z");
        assert!(Window::cron("every day").is_err());
    }

    #[test]
    fn a_schedule_that_never_comes_is_bounded() {
        let never = Window::cron("0 0 30 2 *").unwrap();
        let now = at("2026-03-11T12:00:00Z");
        assert_eq!(never.start(now), now - WINDOW_MAX);
    }
}
