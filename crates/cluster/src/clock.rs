//! The time of day. Roles read it from a [`Clock`], so that tests run hours in milliseconds under a paused runtime.

use jiff::{SignedDuration, Timestamp};
use tokio::time::Instant;

/// The source of the time of day. Cheap to clone.
#[derive(Clone, Copy, Debug, Default)]
pub enum Clock {
    /// The system clock.
    #[default]
    System,
    /// A start time plus the time that tokio's clock has measured since. In a paused runtime it advances only when all tasks wait.
    Runtime {
        /// The time of day at `since`.
        start: Timestamp,
        /// The runtime's time at the start.
        since: Instant,
    },
}

impl Clock {
    /// A clock that starts now at `start` and follows the runtime.
    pub fn runtime(start: Timestamp) -> Clock {
        Clock::Runtime {
            start,
            since: Instant::now(),
        }
    }

    /// The time of day.
    pub fn now(&self) -> Timestamp {
        match self {
            Clock::System => Timestamp::now(),
            Clock::Runtime { start, since } => {
                let passed = SignedDuration::try_from(since.elapsed()).unwrap_or(SignedDuration::MAX);
                start.saturating_add(passed).unwrap_or(Timestamp::MAX)
            }
        }
    }

    /// The time of day in the format of most Kubernetes fields: RFC 3339 in whole seconds.
    pub fn now_text(&self) -> String {
        whole_seconds(self.now())
    }
}

/// The time as RFC 3339 in whole seconds.
pub fn whole_seconds(time: Timestamp) -> String {
    let seconds = Timestamp::from_second(time.as_second()).unwrap_or(time);
    seconds.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_runtime_clock_moves_with_the_runtime() {
        let clock = Clock::runtime("2026-01-01T00:00:00Z".parse().unwrap());
        tokio::time::sleep(std::time::Duration::from_millis(90_500)).await;
        assert_eq!(clock.now_text(), "2026-01-01T00:01:30Z");
    }
}
