//! Who leads: one replica of a role at a time, by a Lease object.
//!
//! [`Election::step`] decides what to do from what was read and a stopwatch of this process; clocks of different machines are never
//! compared. The shell does it. A leader's leadership ends by itself: a replica that can't renew stops writing before another may start,
//! however long its requests hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kai_api::{Resource, Scope};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Client, Clock, Error, Target};

const LEASE: Resource = Resource::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced);

/// The times of an election. Others may take over `lease` after they last saw a change; a leader gives up `renew` after its last
/// success, which has to be less.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// How long a lease holds without being renewed.
    pub lease: Duration,
    /// How long a leader goes on without having renewed.
    pub renew: Duration,
    /// How often to try.
    pub retry: Duration,
}

impl Default for LeaseTimes {
    /// KAI's.
    fn default() -> LeaseTimes {
        LeaseTimes {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(5),
        }
    }
}

/// The right to write, which ends by itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// Milliseconds since `origin` until which it holds.
    until: Arc<AtomicU64>,
    origin: Instant,
}

impl Leadership {
    /// A leadership that nobody holds yet.
    pub fn none() -> Leadership {
        Leadership {
            until: Arc::new(AtomicU64::new(0)),
            origin: Instant::now(),
        }
    }

    /// Whether it holds now.
    pub fn is_held(&self) -> bool {
        self.origin.elapsed() < self.held_for()
    }

    fn held_for(&self) -> Duration {
        Duration::from_millis(self.until.load(Ordering::SeqCst))
    }

    fn extend_until(&self, until: Instant) {
        let millis = until.saturating_duration_since(self.origin).as_millis();
        self.until
            .store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    fn release(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    /// Waits until it is held.
    pub async fn wait_until_held(&self) {
        while !self.is_held() {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until it is held no more.
    pub async fn wait_until_lost(&self) {
        while self.is_held() {
            tokio::time::sleep_until(self.origin + self.held_for()).await;
        }
    }
}

/// How often a waiting role looks whether it leads now.
const POLL: Duration = Duration::from_millis(100);

/// What the lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LeaseSpec {
    /// Who leads; empty if nobody.
    pub holder_identity: Option<String>,
    /// When that was last confirmed, in the holder's words.
    pub renew_time: Option<String>,
    /// How often the lease changed hands.
    pub lease_transitions: Option<i64>,
    acquire_time: Option<String>,
}

/// What to do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Write the lease with our name: we lead, or it is free.
    AcquireOrRenew,
    /// Another leads.
    Wait,
}

/// One replica's view of an election.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    times: LeaseTimes,
    /// The lease as last seen, and when it was first seen like that.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Election {
    /// Takes part under this name, which no other replica may have.
    pub fn new(identity: String, times: LeaseTimes) -> Election {
        Election {
            identity,
            times,
            seen: None,
        }
    }

    /// Decides from the lease as read just now (`None` = there is none).
    pub fn next_action(&mut self, lease: Option<&LeaseSpec>, now: Instant) -> LeaseAction {
        let Some(lease) = lease else {
            return LeaseAction::AcquireOrRenew;
        };
        match &self.seen {
            Some((seen, _)) if seen == lease => {}
            _ => self.seen = Some((lease.clone(), now)),
        }
        let holder = lease.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return LeaseAction::AcquireOrRenew;
        }
        match &self.seen {
            Some((_, since)) if now.duration_since(*since) > self.times.lease => LeaseAction::AcquireOrRenew,
            _ => LeaseAction::Wait,
        }
    }
}

/// Which lease, and who asks for it.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Namespace of the lease.
    pub namespace: String,
    /// Name of the lease.
    pub name: String,
    /// Name of this replica; unique.
    pub identity: String,
    /// Times.
    pub times: LeaseTimes,
    /// For the times written into the lease, which people read and nobody decides by.
    pub clock: Clock,
}

impl Client {
    /// Takes part in an election for ever, keeping `leadership` up to date. Cancel-safe: when dropped, the leadership ends at once and the lease
    /// runs out.
    pub async fn run_election(&self, candidate: Candidate, leadership: Leadership) -> std::convert::Infallible {
        let guard = ReleaseOnDrop(leadership.clone());
        let mut election = Election::new(candidate.identity.clone(), candidate.times);
        loop {
            let round = self.election_round(&candidate, &mut election, &leadership);
            // A hung request must not outlive the leadership, or the next try would come too late.
            match tokio::time::timeout(candidate.times.retry, round).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, lease = candidate.name, "taking part in the election failed"),
                Err(_) => tracing::warn!(lease = candidate.name, "no answer about the lease in time"),
            }
            tokio::time::sleep(candidate.times.retry / 2).await;
            let _ = &guard;
        }
    }

    /// Waits until the election is won, then does `lead`. Ends with what that returns; or with `None` as soon as the leadership ends, and what
    /// was being done is cancelled. A process that lost its leadership should end: what it assumed may not be true any more.
    pub async fn while_leading<F, T>(&self, candidate: Candidate, lead: impl FnOnce(Leadership) -> F) -> Option<T>
    where
        F: Future<Output = T>,
    {
        let leadership = Leadership::none();
        let contest = self.run_election(candidate.clone(), leadership.clone());
        let work = async {
            leadership.wait_until_held().await;
            tracing::info!(lease = candidate.name, identity = candidate.identity, "leading");
            tokio::select! {
                result = lead(leadership.clone()) => Some(result),
                () = leadership.wait_until_lost() => None,
            }
        };
        tokio::select! {
            result = work => result,
            never = contest => match never {},
        }
    }

    async fn election_round(
        &self,
        candidate: &Candidate,
        election: &mut Election,
        leadership: &Leadership,
    ) -> Result<(), Error> {
        let target = Target {
            resource: &LEASE,
            namespace: &candidate.namespace,
            name: &candidate.name,
        };
        let found = self.get_value(target).await?;
        let spec: Option<LeaseSpec> = found
            .as_ref()
            .map(|lease| serde_json::from_value(lease["spec"].clone()).unwrap_or_default());
        let before = Instant::now();
        if election.next_action(spec.as_ref(), before) == LeaseAction::Wait {
            leadership.release();
            return Ok(());
        }
        let body = lease_body(candidate, found.as_ref(), spec.as_ref());
        let written = match found {
            Some(_) => self.replace(target, &body).await,
            None => self.create(&LEASE, &candidate.namespace, body).await,
        };
        match written {
            Ok(_) => {
                // Counted from before the request: the server may have taken it then.
                leadership.extend_until(before + candidate.times.renew);
                Ok(())
            }
            Err(error) if error.is_conflict() => {
                // Another was faster: we do not lead, whatever we thought.
                leadership.release();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

struct ReleaseOnDrop(Leadership);

impl Drop for ReleaseOnDrop {
    fn drop(&mut self) {
        self.0.release();
    }
}

fn lease_body(candidate: &Candidate, found: Option<&Value>, spec: Option<&LeaseSpec>) -> Value {
    // Lease times have microseconds, always six digits.
    let now = format!("{:.6}", candidate.clock.now());
    let ours = spec.is_some_and(|spec| spec.holder_identity.as_deref() == Some(&candidate.identity));
    let acquired = spec.and_then(|spec| spec.acquire_time.clone()).filter(|_| ours);
    let transitions = spec.and_then(|spec| spec.lease_transitions).unwrap_or(0) + i64::from(spec.is_some() && !ours);
    let mut body = found
        .cloned()
        .unwrap_or_else(|| json!({ "metadata": { "name": candidate.name } }));
    body["spec"] = json!({
        "holderIdentity": candidate.identity,
        "leaseDurationSeconds": candidate.times.lease.as_secs(),
        "acquireTime": acquired.unwrap_or_else(|| now.clone()),
        "renewTime": now,
        "leaseTransitions": transitions,
    });
    body
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lease(holder: &str, renewed: &str) -> LeaseSpec {
        LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            renew_time: Some(renewed.to_owned()),
            ..LeaseSpec::default()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_taken_when_free_ours_or_unchanged_for_too_long() {
        let mut election = Election::new("me".to_owned(), LeaseTimes::default());
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(election.next_action(None, start), LeaseAction::AcquireOrRenew);
        assert_eq!(
            election.next_action(Some(&lease("", "")), start),
            LeaseAction::AcquireOrRenew
        );
        assert_eq!(
            election.next_action(Some(&lease("me", "1")), start),
            LeaseAction::AcquireOrRenew
        );
        assert_eq!(
            election.next_action(Some(&lease("other", "1")), after(1)),
            LeaseAction::Wait
        );
        assert_eq!(
            election.next_action(Some(&lease("other", "1")), after(16)),
            LeaseAction::Wait
        );
        assert_eq!(
            election.next_action(Some(&lease("other", "2")), after(17)),
            LeaseAction::Wait,
            "renewed"
        );
        assert_eq!(
            election.next_action(Some(&lease("other", "2")), after(32)),
            LeaseAction::Wait
        );
        assert_eq!(
            election.next_action(Some(&lease("other", "2")), after(33)),
            LeaseAction::AcquireOrRenew
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_hangs_is_given_up_with_the_claim() {
        let hangs = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let leadership = Leadership::none();
        let client = Client::in_process(hangs).guarded(&leadership);
        let write = async || {
            let target = Target {
                resource: &LEASE,
                namespace: "a",
                name: "b",
            };
            client.delete(target, &crate::Deletion::default()).await
        };
        assert!(
            matches!(write().await, Err(Error::NotLeader { .. })),
            "no leadership yet"
        );
        let start = Instant::now();
        leadership.extend_until(start + Duration::from_secs(3));
        assert!(matches!(write().await, Err(Error::NotLeader { .. })));
        assert!(start.elapsed() < crate::client::CALL_SECONDS_MAX && !leadership.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_ends_by_itself() {
        let leadership = Leadership::none();
        assert!(!leadership.is_held());
        leadership.extend_until(Instant::now() + Duration::from_secs(10));
        assert!(leadership.is_held());
        leadership.wait_until_lost().await;
        assert!(!leadership.is_held());
    }
}
