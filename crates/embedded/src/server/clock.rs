//! The server's only source of time: a start time plus the time that tokio's clock has counted since. Under a paused tokio clock all
//! timestamps follow virtual time. The clock asks the operating system for the start time at most.

use std::time::Duration;

use jiff::Timestamp;
use tokio::time::Instant;

/// The server's clock.
#[derive(Debug, Clone)]
pub struct Clock {
    start: Timestamp,
    origin: Instant,
}

impl Clock {
    /// A clock that shows `start` now and runs with tokio's clock.
    pub fn starting_at(start: Timestamp) -> Self {
        Self {
            start,
            origin: Instant::now(),
        }
    }

    /// A clock that starts at the system time.
    pub fn starting_at_system_time() -> Self {
        Self::starting_at(Timestamp::now())
    }

    /// The present time.
    pub fn now(&self) -> Timestamp {
        self.start
            .saturating_add(self.origin.elapsed())
            .unwrap_or(Timestamp::MAX)
    }

    /// The present time as objects have it: whole seconds.
    pub fn now_text(&self) -> String {
        text(self.now())
    }

    /// The present time plus a duration, as objects have it.
    pub fn later_text(&self, after: Duration) -> String {
        text(self.now().saturating_add(after).unwrap_or(Timestamp::MAX))
    }
}

fn text(moment: Timestamp) -> String {
    let seconds = Timestamp::from_second(moment.as_second()).unwrap_or(moment);
    seconds.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn follows_virtual_time() {
        let clock = Clock::starting_at("2026-01-01T00:00:00.7Z".parse().unwrap());
        assert_eq!(clock.now_text(), "2026-01-01T00:00:00Z");
        tokio::time::advance(Duration::from_secs(90)).await;
        assert_eq!(clock.now_text(), "2026-01-01T00:01:30Z");
        assert_eq!(clock.later_text(Duration::from_secs(30)), "2026-01-01T00:02:00Z");
    }
}
