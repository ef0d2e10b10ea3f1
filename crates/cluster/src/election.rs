//! Leader election: one replica of a role leads at a time, by a Lease object.
//!
//! [`Election::next_action`] is pure: it decides from the Lease as read and from this process's monotonic clock, and never compares
//! clocks of different machines. [`Client::run_election`] reads and writes the Lease. A [`Leadership`] expires: a replica that can't
//! renew its Lease stops writing before another replica may acquire it, however long its requests hang.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use kai_api::{Resource, Scope};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{Client, Clock, Error, Target};

const LEASE: Resource = Resource::new("coordination.k8s.io", "v1", "Lease", "leases", Scope::Namespaced);

/// The durations of an election. `renew` must be less than `lease`: the leader stops before another replica takes over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseTimes {
    /// Lease duration: other replicas may acquire the Lease once they have seen it unchanged for this long.
    pub lease: Duration,
    /// Renew deadline: the leader stops this long after its last successful renewal.
    pub renew: Duration,
    /// Retry period: the pause between attempts to acquire or renew.
    pub retry: Duration,
}

impl Default for LeaseTimes {
    /// KAI's durations.
    fn default() -> LeaseTimes {
        LeaseTimes {
            lease: Duration::from_secs(15),
            renew: Duration::from_secs(10),
            retry: Duration::from_secs(5),
        }
    }
}

/// The right of the leader to write. The election extends it with every renewal of the Lease; without renewals it expires. Cheap to
/// clone.
#[derive(Clone, Debug)]
pub struct Leadership {
    /// When it expires, in milliseconds since `origin`.
    until: Arc<AtomicU64>,
    /// Whether a round of the election has had a result.
    decided: Arc<AtomicBool>,
    origin: Instant,
}

impl Leadership {
    /// A leadership that is not held yet.
    pub fn none() -> Leadership {
        Leadership {
            until: Arc::new(AtomicU64::new(0)),
            decided: Arc::default(),
            origin: Instant::now(),
        }
    }

    /// Whether this replica leads now.
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
        self.decided.store(true, Ordering::SeqCst);
    }

    fn release(&self) {
        self.until.store(0, Ordering::SeqCst);
        self.decided.store(true, Ordering::SeqCst);
    }

    /// Waits until this replica knows whether it or another replica leads.
    pub async fn wait_until_decided(&self) {
        while !self.decided.load(Ordering::SeqCst) {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until this replica leads.
    pub async fn wait_until_held(&self) {
        while !self.is_held() {
            tokio::time::sleep(POLL).await;
        }
    }

    /// Waits until this replica no longer leads.
    pub async fn wait_until_lost(&self) {
        while self.is_held() {
            tokio::time::sleep_until(self.origin + self.held_for()).await;
        }
    }
}

/// How often a waiting role checks whether it leads.
const POLL: Duration = Duration::from_millis(100);

/// The fields of a Lease that decide an election.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct LeaseSpec {
    /// Identity of the leader; empty without one.
    pub holder_identity: Option<String>,
    /// When the holder last renewed the Lease, by the holder's clock. Only compared for equality.
    pub renew_time: Option<String>,
    /// How often the holder changed.
    pub lease_transitions: Option<i64>,
    acquire_time: Option<String>,
}

impl Client {
    /// The identity of the leader; `None` without a Lease of this name, or without a leader.
    pub async fn lease_holder(&self, namespace: &str, name: &str) -> Result<Option<String>, Error> {
        let target = Target {
            resource: &LEASE,
            namespace,
            name,
        };
        let lease = self.get_value(target).await?.unwrap_or_default();
        let holder = lease["spec"]["holderIdentity"].as_str();
        Ok(holder.filter(|holder| !holder.is_empty()).map(str::to_owned))
    }
}

/// What a replica does next about the Lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseAction {
    /// Write the Lease with our identity: we hold it, or it is free or expired.
    AcquireOrRenew,
    /// Another replica holds the Lease.
    Wait,
}

/// One replica's view of an election.
#[derive(Clone, Debug)]
pub struct Election {
    identity: String,
    times: LeaseTimes,
    /// The Lease as last read, and when this replica first read it with this content.
    seen: Option<(LeaseSpec, Instant)>,
}

impl Election {
    /// Takes part under this identity, which must be unique among the replicas.
    pub fn new(identity: String, times: LeaseTimes) -> Election {
        Election {
            identity,
            times,
            seen: None,
        }
    }

    /// Decides from the Lease as just read (`None` = it does not exist).
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

/// A replica that wants to lead, and the Lease that it competes for.
#[derive(Clone, Debug)]
pub struct Candidate {
    /// Namespace of the Lease.
    pub namespace: String,
    /// Name of the Lease.
    pub name: String,
    /// Identity of this replica; unique.
    pub identity: String,
    /// Durations of the election.
    pub times: LeaseTimes,
    /// For the times written into the Lease. They are for people: no decision depends on them.
    pub clock: Clock,
}

impl Client {
    /// Takes part in the election for ever and keeps `leadership` up to date. Cancel-safe: when the future is dropped, the leadership
    /// ends at once and the Lease expires.
    pub async fn run_election(&self, candidate: Candidate, leadership: Leadership) -> std::convert::Infallible {
        let guard = ReleaseOnDrop(leadership.clone());
        let mut election = Election::new(candidate.identity.clone(), candidate.times);
        let mut owner = LeaseOwner::Unknown;
        loop {
            let round = self.election_round(&candidate, &mut election, &mut owner, &leadership);
            // A hung request must not delay the next attempt beyond the renew deadline.
            match tokio::time::timeout(candidate.times.retry, round).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, lease = candidate.name, "taking part in the election failed"),
                Err(_) => tracing::warn!(lease = candidate.name, "no answer about the lease in time"),
            }
            tokio::time::sleep(candidate.times.retry / 2).await;
            let _ = &guard;
        }
    }

    /// Waits until this replica leads, then runs `lead` and returns its result. Cancels `lead` and returns `None` as soon as the
    /// leadership is lost. The process should then exit: its assumptions about pending writes may no longer hold.
    pub async fn while_leading<F, T>(&self, candidate: Candidate, lead: impl FnOnce(Leadership) -> F) -> Option<T>
    where
        F: Future<Output = T>,
    {
        self.while_leading_with(&Leadership::none(), candidate, lead).await
    }

    /// Like [`Client::while_leading`], with a leadership that the caller can observe meanwhile.
    pub async fn while_leading_with<F, T>(
        &self,
        leadership: &Leadership,
        candidate: Candidate,
        lead: impl FnOnce(Leadership) -> F,
    ) -> Option<T>
    where
        F: Future<Output = T>,
    {
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
        owner: &mut LeaseOwner,
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
        if let LeaseOwner::Unknown = owner {
            // Read once per process: after an uninstallation the reference is stale, and the garbage collector deletes a Lease that this
            // replica writes once more. A failed read must not delay the election; the next round reads again.
            if let Ok(found) = self.lease_owner(&candidate.namespace).await {
                *owner = LeaseOwner::Known(found);
            }
        }
        let mut body = lease_body(candidate, found.as_ref(), spec.as_ref());
        owner.add_to(&mut body);
        let before = Instant::now();
        let written = match found {
            Some(_) => self.replace(target, &body).await,
            None => self.create(&LEASE, &candidate.namespace, body).await,
        };
        match written {
            Ok(_) => {
                // From the time before the request: the API server may have stored the Lease right then.
                leadership.extend_until(before + candidate.times.renew);
                Ok(())
            }
            Err(error) if error.is_conflict() => {
                // Another replica wrote the Lease since it was read, so this replica does not lead.
                leadership.release();
                Ok(())
            }
            Err(error) => Err(error),
        }
    }
}

/// The owner of the Lease, if its installation has one.
enum LeaseOwner {
    Unknown,
    Known(Option<Value>),
}

impl LeaseOwner {
    /// Adds the owner reference unless the Lease has it.
    fn add_to(&self, lease: &mut Value) {
        let LeaseOwner::Known(Some(owner)) = self else { return };
        let references = &mut lease["metadata"]["ownerReferences"];
        match references.as_array_mut() {
            Some(list) if list.iter().any(|reference| reference["uid"] == owner["uid"]) => {}
            Some(list) => list.push(owner.clone()),
            None => *references = json!([owner]),
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
    // Times of a Lease are MicroTime: always six decimal digits.
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
