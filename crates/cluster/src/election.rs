//! Who leads: one replica of a role at a time, by a Lease object.
//!
//! [`Election::step`] decides what to do from what was read and a stopwatch of this process; clocks of different machines are never
//! compared. The shell does it. A leader's claim ends by itself: a replica that can't renew stops writing before another may start,
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
pub struct Times {
    /// How long a lease holds without being renewed.
    pub lease: Duration,
    /// How long a leader goes on without having renewed.
    pub renew: Duration,
    /// How often to try.
    pub retry: Duration,
}

impl Default for Times {
    /// KAI's.
    fn default() -> Times {
        Times {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(5),
        }
    }
}

/// The right to write, which ends by itself. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Claim {
    /// Milliseconds since `origin` until which it holds.
    until: Arc<AtomicU64>,
    origin: Instant,
}

impl Claim {
    /// A claim that nobody holds yet.
    pub fn none() -> Claim {
        Claim {
            until: Arc::new(AtomicU64::new(0)),
            origin: Instant::now(),
        }
    }

    /// Whether it holds now.
    pub fn is_held(&self) -> bool {
        self.origin.elapsed() < self.holds_for()
    }

    fn holds_for(&self) -> Duration {
        Duration::from_millis(self.until.load(Ordering::SeqCst))
    }

    fn hold_until(&self, until: Instant) {
        let millis = until.saturating_duration_since(self.origin).as_millis();
        self.until
            .store(u64::try_from(millis).unwrap_or(u64::MAX), Ordering::SeqCst);
    }

    fn give_up(&self) {
        self.until.store(0, Ordering::SeqCst);
    }

    /// Waits until it is held.
    pub async fn held(&self) {
        while !self.is_held() {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until it is held no more.
    pub async fn lost(&self) {
        while self.is_held() {
            tokio::time::sleep_until(self.origin + self.holds_for()).await;
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
pub enum Step {
    /// Write the lease with our name: we lead, or it is free.
    Take,
    /// Another leads.
    Wait,
}

/// One replica's view of an election.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    times: Times,
    /// The lease as last seen, and when it was first seen like that.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Election {
    /// Takes part under this name, which no other replica may have.
    pub fn new(identity: String, times: Times) -> Election {
        Election {
            identity,
            times,
            seen: None,
        }
    }

    /// Decides from the lease as read just now (`None` = there is none).
    pub fn step(&mut self, lease: Option<&LeaseSpec>, now: Instant) -> Step {
        let Some(lease) = lease else { return Step::Take };
        match &self.seen {
            Some((seen, _)) if seen == lease => {}
            _ => self.seen = Some((lease.clone(), now)),
        }
        let holder = lease.holder_identity.as_deref().unwrap_or_default();
        if holder.is_empty() || holder == self.identity {
            return Step::Take;
        }
        match &self.seen {
            Some((_, since)) if now.duration_since(*since) > self.times.lease => Step::Take,
            _ => Step::Wait,
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
    pub times: Times,
    /// For the times written into the lease, which people read and nobody decides by.
    pub clock: Clock,
}

impl Client {
    /// Takes part in an election for ever, keeping `claim` up to date. Cancel-safe: when dropped, the claim ends at once and the lease
    /// runs out.
    pub async fn run_election(&self, candidate: Candidate, claim: Claim) -> std::convert::Infallible {
        let guard = GiveUp(claim.clone());
        let mut election = Election::new(candidate.identity.clone(), candidate.times);
        loop {
            let round = self.election_round(&candidate, &mut election, &claim);
            // A hung request must not outlive the claim, or the next try would come too late.
            match tokio::time::timeout(candidate.times.retry, round).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, lease = candidate.name, "taking part in the election failed"),
                Err(_) => tracing::warn!(lease = candidate.name, "no answer about the lease in time"),
            }
            tokio::time::sleep(candidate.times.retry / 2).await;
            let _ = &guard;
        }
    }

    /// Waits until the election is won, then does `lead`. Ends with what that returns; or with `None` as soon as the claim ends, and what
    /// was being done is cancelled. A process that lost its claim should end: what it assumed may not be true any more.
    pub async fn while_leading<F, T>(&self, candidate: Candidate, lead: impl FnOnce(Claim) -> F) -> Option<T>
    where
        F: Future<Output = T>,
    {
        let claim = Claim::none();
        let contest = self.run_election(candidate.clone(), claim.clone());
        let work = async {
            claim.held().await;
            tracing::info!(lease = candidate.name, identity = candidate.identity, "leading");
            tokio::select! {
                result = lead(claim.clone()) => Some(result),
                () = claim.lost() => None,
            }
        };
        tokio::select! {
            result = work => result,
            never = contest => match never {},
        }
    }

    async fn election_round(&self, candidate: &Candidate, election: &mut Election, claim: &Claim) -> Result<(), Error> {
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
        if election.step(spec.as_ref(), before) == Step::Wait {
            claim.give_up();
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
                claim.hold_until(before + candidate.times.renew);
                Ok(())
            }
            Err(error) if error.is_conflict() => {
                // Another was faster: we do not lead, whatever we thought.
                claim.give_up();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

struct GiveUp(Claim);

impl Drop for GiveUp {
    fn drop(&mut self) {
        self.0.give_up();
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
        let mut election = Election::new("me".to_owned(), Times::default());
        let start = Instant::now();
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(election.step(None, start), Step::Take);
        assert_eq!(election.step(Some(&lease("", "")), start), Step::Take);
        assert_eq!(election.step(Some(&lease("me", "1")), start), Step::Take);
        assert_eq!(election.step(Some(&lease("other", "1")), after(1)), Step::Wait);
        assert_eq!(election.step(Some(&lease("other", "1")), after(16)), Step::Wait);
        assert_eq!(
            election.step(Some(&lease("other", "2")), after(17)),
            Step::Wait,
            "renewed"
        );
        assert_eq!(election.step(Some(&lease("other", "2")), after(32)), Step::Wait);
        assert_eq!(election.step(Some(&lease("other", "2")), after(33)), Step::Take);
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_hangs_is_given_up_with_the_claim() {
        let hangs = tower::service_fn(|_: http::Request<kube::client::Body>| {
            std::future::pending::<Result<http::Response<kube::client::Body>, std::io::Error>>()
        });
        let claim = Claim::none();
        let client = Client::in_process(hangs).guarded(&claim);
        let write = async || {
            let target = Target {
                resource: &LEASE,
                namespace: "a",
                name: "b",
            };
            client.delete(target, &crate::Deletion::default()).await
        };
        assert!(matches!(write().await, Err(Error::NotLeader { .. })), "no claim yet");
        let start = Instant::now();
        claim.hold_until(start + Duration::from_secs(3));
        assert!(matches!(write().await, Err(Error::NotLeader { .. })));
        assert!(start.elapsed() < crate::client::CALL_SECONDS_MAX && !claim.is_held());
    }

    #[tokio::test(start_paused = true)]
    async fn a_claim_ends_by_itself() {
        let claim = Claim::none();
        assert!(!claim.is_held());
        claim.hold_until(Instant::now() + Duration::from_secs(10));
        assert!(claim.is_held());
        claim.lost().await;
        assert!(!claim.is_held());
    }
}
