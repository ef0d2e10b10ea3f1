//! Injects faults into the calls and watches of kai's roles. Only the seed, the call and its count decide whether a call fails,
//! so that a plan with fewer steps keeps most of its faults.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use kai_api::ObjectKey;
use kai_embedded::invariants::PodsToLeave;
use kai_embedded::server::{Fault, Faults, RequestInfo, WatchFault};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::random::{SeededRandom, mix};

/// Accounts whose calls fail: those of kai. Calls of kubelets and users do not fail.
pub(crate) const ACCOUNTS: &str = "system:serviceaccount:kai-scheduler:";
/// The account of simulated kubelets.
const NODES: &str = "simulated-nodes";
/// An admission policy refuses to bind pods whose names have this suffix.
pub(crate) const REFUSED: &str = "-refused";

/// How often each kind of fault is injected, in thousandths of calls or deliveries.
#[derive(Clone, Debug)]
pub(crate) struct Rates {
    pub(crate) errors: u64,
    pub(crate) conflicts: u64,
    pub(crate) lost_answers: u64,
    pub(crate) delays: u64,
    pub(crate) ended_watches: u64,
    pub(crate) gone_watches: u64,
    pub(crate) lags: u64,
}

impl Rates {
    pub(crate) const NONE: Rates = Rates {
        errors: 0,
        conflicts: 0,
        lost_answers: 0,
        delays: 0,
        ended_watches: 0,
        gone_watches: 0,
        lags: 0,
    };

    pub(crate) fn drawn(random: &mut SeededRandom) -> Rates {
        // Some runs have no faults of some kinds: frequent faults hide rare ones.
        let mut rate = |worst: u64| match random.roll(3) {
            0 => 0,
            1 => random.roll(worst / 4 + 1),
            _ => random.roll(worst + 1),
        };
        Rates {
            errors: rate(80),
            conflicts: rate(60),
            lost_answers: rate(60),
            delays: rate(80),
            ended_watches: rate(30),
            gone_watches: rate(20),
            lags: rate(80),
        }
    }

    /// Each rate, so that shrinking can set it to zero.
    pub(crate) fn each(&mut self) -> [&mut u64; 7] {
        [
            &mut self.errors,
            &mut self.conflicts,
            &mut self.lost_answers,
            &mut self.delays,
            &mut self.ended_watches,
            &mut self.gone_watches,
            &mut self.lags,
        ]
    }
}

/// The faults of one run.
#[derive(Debug)]
pub(crate) struct FaultInjector {
    seed: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    rates: Rates,
    /// Whether the API server answers no call of the roles.
    outage: bool,
    /// Accounts whose tokens are revoked.
    revoked: BTreeSet<&'static str>,
    /// Whether the policy against some bindings is in force.
    refusing: bool,
    /// How often each call was made.
    calls: HashMap<u64, u64>,
    struck: BTreeMap<&'static str, u64>,
    requests: u64,
    /// The digest of the run so far.
    fingerprint: u64,
    /// Pods of users that the roles asked to delete.
    deleted: PodsToLeave,
    told: Option<Vec<String>>,
    since: Instant,
}

impl FaultInjector {
    pub(crate) fn new(seed: u64, rates: Rates, deleted: PodsToLeave, tell: bool) -> FaultInjector {
        let state = State {
            rates,
            outage: false,
            revoked: BTreeSet::new(),
            refusing: true,
            calls: HashMap::new(),
            struck: BTreeMap::new(),
            requests: 0,
            fingerprint: 0,
            deleted,
            told: tell.then(Vec::new),
            since: Instant::now(),
        };
        FaultInjector {
            seed,
            state: Mutex::new(state),
        }
    }

    /// Stops all faults but the policy against some bindings.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.rates = Rates::NONE;
        state.outage = false;
        state.revoked.clear();
    }

    /// Removes the policy against some bindings.
    pub(crate) fn lift_policy(&self) {
        self.state.lock().refusing = false;
    }

    /// Revokes or restores the token of an account.
    pub(crate) fn set_revoked(&self, account: &'static str, revoked: bool) {
        let mut state = self.state.lock();
        match revoked {
            true => state.revoked.insert(account),
            false => state.revoked.remove(account),
        };
    }

    /// Counts a fault.
    pub(crate) fn count(&self, kind: &'static str) {
        self.state.lock().count(kind);
    }

    /// Adds a text to the digest.
    pub(crate) fn note(&self, bytes: &[u8]) {
        self.state.lock().note(bytes);
    }

    pub(crate) fn set_outage(&self, outage: bool) {
        self.state.lock().outage = outage;
    }

    /// Adds a line to the log of the run.
    pub(crate) fn log(&self, line: impl FnOnce() -> String) {
        self.state.lock().log(line);
    }

    pub(crate) fn take_story(&self) -> Vec<String> {
        self.state.lock().told.take().unwrap_or_default()
    }

    /// Injected faults by kind.
    pub(crate) fn struck(&self) -> BTreeMap<&'static str, u64> {
        self.state.lock().struck.clone()
    }

    pub(crate) fn requests(&self) -> u64 {
        self.state.lock().requests
    }

    pub(crate) fn fingerprint(&self) -> u64 {
        self.state.lock().fingerprint
    }

    /// Whether the roles asked to delete this pod.
    pub(crate) fn was_deleted_by_roles(&self, pod: &str) -> bool {
        let deleted = &self.state.lock().deleted;
        deleted.lock().contains(&ObjectKey::new("default", pod))
    }
}

impl State {
    fn log(&mut self, line: impl FnOnce() -> String) {
        let at = self.since.elapsed();
        if let Some(told) = &mut self.told {
            told.push(format!("{:>9.3} {}", at.as_secs_f64(), line()));
        }
    }

    fn count(&mut self, kind: &'static str) {
        *self.struck.entry(kind).or_default() += 1;
    }

    fn note(&mut self, bytes: &[u8]) {
        self.fingerprint = mix(self.fingerprint ^ fnv(bytes));
    }

    /// Adds a call or a delivery to the digest: account, call and time.
    fn note_call(&mut self, request: &RequestInfo) {
        let moment = u64::try_from(self.since.elapsed().as_micros()).unwrap();
        self.note(&moment.to_le_bytes());
        for text in [&request.user, &request.verb, &request.path] {
            self.note(text.as_bytes());
        }
    }

    /// The random numbers of the next call of this kind.
    fn random(&mut self, seed: u64, what: [&str; 2]) -> SeededRandom {
        let hash = mix(fnv(what[0].as_bytes())) ^ fnv(what[1].as_bytes());
        let count = self.calls.entry(hash).or_default();
        *count += 1;
        SeededRandom::new(mix(seed ^ mix(hash)).wrapping_add(mix(*count)))
    }
}

/// FNV-1a.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// The fault whose rate a number below a thousand falls into.
fn band(roll: u64, rates: &[u64]) -> Option<usize> {
    let mut below = 0;
    rates.iter().position(|rate| {
        below += rate;
        roll < below
    })
}

/// The account of the call, if its calls may fail.
fn account(request: &RequestInfo) -> Option<&str> {
    let account = request.user.strip_prefix(ACCOUNTS)?;
    (account != NODES).then_some(account)
}

impl Faults for FaultInjector {
    fn request(&self, request: &RequestInfo) -> Fault {
        let mut state = self.state.lock();
        state.note_call(request);
        let Some(account) = account(request) else {
            return Fault::Pass;
        };
        state.requests += 1;
        let mut random = state.random(self.seed, [&request.verb, &request.path]);
        let rates = state.rates.clone();
        // Only writes can conflict.
        let conflicts = match request.verb.as_str() {
            "patch" | "update" => rates.conflicts,
            _ => 0,
        };
        let refused = state.refusing && request.subresource == "binding" && request.name.ends_with(REFUSED);
        let roll = band(
            random.roll(1000),
            &[rates.errors, conflicts, rates.lost_answers, rates.delays],
        );
        let (fault, kind) = match roll {
            _ if state.outage => (Fault::Fail(503), "calls in an outage"),
            _ if state.revoked.contains(account) => (Fault::Fail(401), "calls without credentials"),
            Some(0) => (Fault::Fail(random.of(&[500, 503, 429, 504])), "failed calls"),
            Some(1) => (Fault::Fail(409), "conflicts"),
            _ if refused => (Fault::Fail(403), "bindings refused by policy"),
            Some(2) if request.verb != "watch" => (Fault::DropResponse, "answers lost after the effect"),
            Some(3) => (
                Fault::Delay(Duration::from_millis(1 + random.roll(5000))),
                "delayed calls",
            ),
            _ => (Fault::Pass, ""),
        };
        if request.verb == "delete" && request.resource == "pods" && request.namespace == "default" {
            let pod = ObjectKey::new(&request.namespace, &request.name);
            state.deleted.lock().insert(pod);
        }
        if fault != Fault::Pass {
            state.count(kind);
        }
        if fault != Fault::Pass || !matches!(request.verb.as_str(), "get" | "list" | "watch") {
            state.log(|| format!("    {account}: {} {} {fault:?}", request.verb, request.path));
        }
        fault
    }

    fn watch(&self, watch: &RequestInfo, _: u64) -> WatchFault {
        let mut state = self.state.lock();
        state.note_call(watch);
        let Some(account) = account(watch) else {
            return WatchFault::Pass;
        };
        let mut random = state.random(self.seed, ["delivery", &watch.path]);
        let rates = state.rates.clone();
        let (fault, kind) = match band(
            random.roll(1000),
            &[rates.ended_watches, rates.gone_watches, rates.lags],
        ) {
            _ if state.outage => (WatchFault::End, "watches ended"),
            Some(0) => (WatchFault::End, "watches ended"),
            Some(1) => (WatchFault::Gone, "watches ended with 410"),
            Some(2) => (
                WatchFault::Lag(Duration::from_millis(1 + random.roll(5000))),
                "watches that lag",
            ),
            _ => (WatchFault::Pass, ""),
        };
        if fault != WatchFault::Pass {
            state.count(kind);
            state.log(|| format!("    {account}: watch of {} {fault:?}", watch.path));
        }
        fault
    }
}
