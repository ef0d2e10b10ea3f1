//! The state machine of one supervised daemon. Pure: each step gets the time and what was seen, and says what to do.

use std::time::Duration;

use std::time::Instant;

/// Pause after the first failure; it doubles up to [`BACK_OFF_MAX`].
pub const BACK_OFF_MIN: Duration = Duration::from_secs(5);
/// Longest pause between two starts.
pub const BACK_OFF_MAX: Duration = Duration::from_secs(60);
/// Until a daemon that was started has to serve.
pub const START_MAX: Duration = Duration::from_secs(20);
/// Probes in a row that may fail before a daemon is started anew. One may fail because the machine is busy.
pub const FAILED_PROBES_MAX: u32 = 3;
/// A daemon that served this long begins anew with the shortest pause.
pub const STABLE_AFTER: Duration = Duration::from_secs(60);

/// What was seen of the daemon.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Seen {
    /// No process runs.
    NoProcess,
    /// The process has ended, or could not be started.
    Ended(String),
    /// It runs and serves.
    Serves,
    /// It runs and does not serve, for this reason.
    Silent(String),
}

/// What to do next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Order {
    /// Start the daemon.
    Start,
    /// Kill the daemon; the next step sees that it has ended.
    Kill,
    /// Nothing.
    Wait,
}

/// What the daemon is good for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Health {
    /// It has not served yet.
    Starting,
    /// It serves.
    Serves,
    /// It does not, for this reason.
    Fails(String),
}

#[derive(Debug, Clone)]
enum Phase {
    /// No process; the next start is at this time.
    Down { start_at: Instant },
    /// Started, and has not served yet.
    Starting { since: Instant },
    /// Serves, or did so a moment ago.
    Up { since: Instant, failed_probes: u32 },
}

/// One daemon.
#[derive(Debug, Clone)]
pub struct Supervisor {
    phase: Phase,
    back_off: Duration,
    health: Health,
}

impl Supervisor {
    /// A daemon that is to be started at once.
    pub fn new(now: Instant) -> Self {
        Self {
            phase: Phase::Down { start_at: now },
            back_off: BACK_OFF_MIN,
            health: Health::Starting,
        }
    }

    /// What the daemon is good for.
    pub fn health(&self) -> &Health {
        &self.health
    }

    /// Applies what was seen.
    pub fn step(&mut self, now: Instant, seen: Seen) -> Order {
        match (self.phase.clone(), seen) {
            (Phase::Down { start_at }, Seen::NoProcess | Seen::Ended(_)) => {
                if now < start_at {
                    return Order::Wait;
                }
                self.phase = Phase::Starting { since: now };
                Order::Start
            }
            // A process that was killed has not ended yet.
            (Phase::Down { .. }, Seen::Serves | Seen::Silent(_)) => Order::Kill,
            (Phase::Starting { .. } | Phase::Up { .. }, Seen::NoProcess) => {
                self.fail(now, "the daemon is gone".to_owned())
            }
            (Phase::Starting { .. } | Phase::Up { .. }, Seen::Ended(reason)) => self.fail(now, reason),
            (Phase::Starting { .. }, Seen::Serves) => {
                self.phase = Phase::Up {
                    since: now,
                    failed_probes: 0,
                };
                self.health = Health::Serves;
                Order::Wait
            }
            (Phase::Starting { since }, Seen::Silent(reason)) => match now.duration_since(since) >= START_MAX {
                true => {
                    let seconds = START_MAX.as_secs();
                    self.fail(
                        now,
                        format!("it does not serve {seconds} seconds after its start: {reason}"),
                    );
                    Order::Kill
                }
                false => Order::Wait,
            },
            (Phase::Up { since, .. }, Seen::Serves) => {
                if now.duration_since(since) >= STABLE_AFTER {
                    self.back_off = BACK_OFF_MIN;
                }
                self.phase = Phase::Up {
                    since,
                    failed_probes: 0,
                };
                Order::Wait
            }
            (Phase::Up { since, failed_probes }, Seen::Silent(reason)) => {
                let failed_probes = failed_probes + 1;
                if failed_probes >= FAILED_PROBES_MAX {
                    self.fail(now, reason);
                    return Order::Kill;
                }
                self.phase = Phase::Up { since, failed_probes };
                Order::Wait
            }
        }
    }

    fn fail(&mut self, now: Instant, reason: String) -> Order {
        self.phase = Phase::Down {
            start_at: now + self.back_off,
        };
        self.back_off = (self.back_off * 2).min(BACK_OFF_MAX);
        self.health = Health::Fails(reason);
        Order::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended() -> Seen {
        Seen::Ended("exit status: 1".to_owned())
    }

    fn silent() -> Seen {
        Seen::Silent("no answer".to_owned())
    }

    /// Sightings at these seconds, and the order after each.
    #[track_caller]
    fn check(steps: &[(u64, Seen, Order)]) -> Supervisor {
        let start = Instant::now();
        let mut supervisor = Supervisor::new(start);
        for (second, seen, order) in steps {
            let given = supervisor.step(start + Duration::from_secs(*second), seen.clone());
            assert_eq!(given, *order, "after {second} s with {seen:?}");
        }
        supervisor
    }

    #[test]
    fn a_daemon_that_dies_is_started_again_after_longer_and_longer_pauses() {
        use Order::{Start, Wait};
        let supervisor = check(&[
            (0, Seen::NoProcess, Start),
            (1, ended(), Wait),
            (5, Seen::NoProcess, Wait),
            (6, Seen::NoProcess, Start),
            (7, ended(), Wait),
            (16, Seen::NoProcess, Wait),
            (17, Seen::NoProcess, Start),
            (18, ended(), Wait),
            (38, Seen::NoProcess, Start),
            (39, ended(), Wait),
            (79, Seen::NoProcess, Start),
            (80, ended(), Wait),
            (139, Seen::NoProcess, Wait),
            (140, Seen::NoProcess, Start),
            (141, ended(), Wait),
            (200, Seen::NoProcess, Wait),
            (201, Seen::NoProcess, Start),
        ]);
        assert_eq!(*supervisor.health(), Health::Fails("exit status: 1".to_owned()));
    }

    #[test]
    fn a_daemon_that_served_for_a_while_begins_with_the_shortest_pause() {
        use Order::{Start, Wait};
        let supervisor = check(&[
            (0, Seen::NoProcess, Start),
            (1, ended(), Wait),
            (6, Seen::NoProcess, Start),
            (7, Seen::Serves, Wait),
            (70, Seen::Serves, Wait),
            (71, ended(), Wait),
            (75, Seen::NoProcess, Wait),
            (76, Seen::NoProcess, Start),
            (77, Seen::Serves, Wait),
        ]);
        assert_eq!(*supervisor.health(), Health::Serves);
    }

    #[test]
    fn a_daemon_that_hangs_is_killed() {
        use Order::{Kill, Start, Wait};
        let supervisor = check(&[
            (0, Seen::NoProcess, Start),
            (1, silent(), Wait),
            (19, silent(), Wait),
            (20, silent(), Kill),
            (21, silent(), Kill),
            (22, Seen::NoProcess, Wait),
            (25, Seen::NoProcess, Start),
            (26, Seen::Serves, Wait),
            (27, silent(), Wait),
            (28, silent(), Wait),
            (29, Seen::Serves, Wait),
            (30, silent(), Wait),
            (31, silent(), Wait),
            (32, silent(), Kill),
        ]);
        assert_eq!(*supervisor.health(), Health::Fails("no answer".to_owned()));
    }
}
