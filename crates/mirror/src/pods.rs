//! Pods on their way into the engine: as observed, with what was decided since, what failed lately and what their volumes ask for.

use std::sync::Arc;

use kai_api::{BindPhase, Object, ObjectKey, ObjectReference, Pod};
use kai_engine::model::{Event, GpuRequest, NodeSelectorTerm, Operator, PodKind, PodPhase, PodSpec, Requirement};

use super::ClusterMirror;
use super::assumed::Assumed;
use super::reservations::Ties;

/// A pod that is known.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) object: Arc<Pod>,
    pub(super) key: ObjectKey,
    pub(super) uid: Arc<str>,
    /// The name of its gang, which is in the same namespace, if it is ours to place.
    gang: Option<Arc<str>>,
    standing: Standing,
    ties: Ties,
    applied: bool,
}

impl Entry {
    pub(super) fn new(key: &ObjectKey, uid: Arc<str>, object: &Arc<Pod>) -> Entry {
        Entry {
            object: Arc::clone(object),
            key: key.clone(),
            uid,
            gang: None,
            standing: Standing::Other,
            ties: Ties::None,
            applied: false,
        }
    }

    fn gang(&self) -> Option<ObjectKey> {
        self.gang.as_ref().map(|name| self.key.beside(name))
    }
}

/// How a pod stands, as its gang's condition counts it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// For a place, or held by gates.
    Waiting,
    /// Decided, not bound yet.
    Starting,
    /// Bound or running.
    Active,
    /// Leaving, or none of ours.
    Other,
}

impl Standing {
    pub(super) const COUNT: usize = 4;

    fn of(spec: &PodSpec) -> Standing {
        let ended = matches!(spec.phase, PodPhase::Succeeded | PodPhase::Failed | PodPhase::Unknown);
        match (&spec.node, &spec.bind_in_flight) {
            _ if spec.kind != PodKind::Workload || spec.deletion.is_some() || ended => Standing::Other,
            (Some(_), _) => Standing::Active,
            (None, Some(_)) => Standing::Starting,
            (None, None) => Standing::Waiting,
        }
    }
}

impl ClusterMirror {
    /// The pod was added or changed.
    pub fn apply_pod(&mut self, key: &ObjectKey, pod: &Arc<Pod>) {
        if pod.is_of_no_interest() {
            return self.remove_pod(key);
        }
        let uid: Arc<str> = match &pod.metadata().uid {
            Some(uid) if !uid.is_empty() => uid.shared(),
            // As the engine names pods without one.
            Some(_) | None => key.to_string().into(),
        };
        if self.pods.get(key).is_some_and(|known| *known.uid != *uid) {
            self.remove_pod(key);
        }
        match self.pods.get_mut(key) {
            Some(entry) => {
                let before = std::mem::replace(&mut entry.object, Arc::clone(pod));
                if entry.applied && pod.says_the_same(&before) {
                    return;
                }
            }
            None => self.pods.add(Entry::new(key, uid, pod)),
        }
        self.refresh_pod(key);
    }

    /// The pod was deleted.
    pub fn remove_pod(&mut self, key: &ObjectKey) {
        let Some(entry) = self.pods.remove(key) else { return };
        let cut_short = self.request_for(key, &entry.uid).cloned();
        self.assumptions.forget(&entry.uid);
        self.leave_volumes(key, &entry.object);
        self.leave_config_maps(key, &entry.object);
        self.count(entry.gang().as_ref(), entry.standing, -1);
        if entry.applied {
            self.outbox.events.push(Event::PodGone(entry.uid.to_string()));
        }
        self.tie(key, &entry.ties, &Ties::None);
        if let Some(request) = cut_short.filter(|request| request.phase() == BindPhase::Pending) {
            self.presume_held(&request);
        }
    }

    /// Tells the engine how the pod is now.
    pub(super) fn refresh_pod(&mut self, key: &ObjectKey) {
        let Some(entry) = self.pods.get(key) else { return };
        let (object, uid) = (Arc::clone(&entry.object), entry.uid.clone());
        let read = match object.read(&self.identity, self.now) {
            Ok(read) => read,
            Err(problem) => {
                self.tell(|| ObjectReference::of(&*object), &uid, problem);
                return self.withdraw(key);
            }
        };
        // The spec of another scheduler's pod is that scheduler's matter.
        if read.value.kind == PodKind::Workload {
            for problem in read.problems {
                self.tell(|| ObjectReference::of(&*object), &uid, problem);
            }
        }
        let mut spec = read.value;
        self.overlay(key, &object, &mut spec);
        self.restand(key, &spec);
        let ties = Ties::of(&spec, &object);
        self.show_unused(&mut spec);
        self.outbox.events.push(Event::Pod(spec));
        self.retie(key, ties);
    }

    fn retie(&mut self, key: &ObjectKey, ties: Ties) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        let before = std::mem::replace(&mut entry.ties, ties.clone());
        self.tie(key, &before, &ties);
    }

    fn overlay(&mut self, key: &ObjectKey, pod: &Pod, spec: &mut PodSpec) {
        let uid = spec.uid.clone();
        if let Some(request) = self.request_for(key, &uid) {
            let request = Arc::clone(request);
            request.attach(spec);
        }
        self.check_assumption(spec);
        if spec.kind != PodKind::Workload {
            return;
        }
        if spec.node.is_some() {
            self.assumptions.forgive(&uid);
            self.leave_volumes(key, pod);
            self.leave_config_maps(key, pod);
            return;
        }
        self.follow_volumes(key, pod, spec);
        self.need_config_maps(key, pod, spec);
        if let Some(labels) = &self.restrict_nodes {
            let label = match spec.requests.gpu {
                GpuRequest::None => &labels.cpu,
                GpuRequest::Whole { .. }
                | GpuRequest::Fraction { .. }
                | GpuRequest::Memory { .. }
                | GpuRequest::Mig { .. } => &labels.gpu,
            };
            require(spec, On::Label, label, Operator::Exists, &[]);
        }
        let Some(failure) = self.assumptions.failure(&uid) else {
            return;
        };
        if failure.held_until > self.now {
            spec.refused.get_or_insert(format!(
                "binding to node {} failed and is tried again in a while: {}",
                failure.node, failure.message
            ));
        } else if failure.avoided_until > self.now {
            require(spec, On::Name, "metadata.name", Operator::NotIn, &[&failure.node]);
        }
    }

    /// What was decided and is not to be seen yet counts; what is to be seen is no assumption any more.
    fn check_assumption(&mut self, spec: &mut PodSpec) {
        match self.assumptions.of(&spec.uid) {
            Some(Assumed::Bound(bind)) => {
                if spec.node.is_some() || spec.bind_in_flight.is_some() || spec.deletion.is_some() {
                    self.assumptions.drop_assumption(&spec.uid);
                } else {
                    spec.bind_in_flight = Some(bind.clone());
                }
            }
            Some(Assumed::Leaving(since)) => {
                if spec.deletion.is_some() {
                    self.assumptions.drop_assumption(&spec.uid);
                } else {
                    spec.deletion = Some(*since);
                }
            }
            None => {}
        }
    }

    /// The engine decided it, and has it in its books.
    pub fn assume(&mut self, uid: &str, what: Assumed) {
        let Some(key) = self.key_of(uid) else { return };
        let standing = match &what {
            Assumed::Bound(bind) => {
                self.retie(&key, Ties::sharing(bind.gpu_groups.iter()));
                Standing::Starting
            }
            Assumed::Leaving(_) => Standing::Other,
        };
        self.assumptions.assume(uid, what);
        self.set_standing(&key, standing);
    }

    /// The write of a decision went well.
    pub fn written(&mut self, uid: &str) {
        self.assumptions.written(uid, self.now);
    }

    /// The write of a decision failed: the pod is as observed. `node` if it was a binding, with what went wrong.
    pub fn failed(&mut self, uid: &str, binding: Option<(&str, String)>) {
        // Of a pod that is gone nothing is remembered: nobody would ever forget it.
        let Some(key) = self.key_of(uid) else { return };
        self.assumptions.drop_assumption(uid);
        if let Some((node, message)) = binding {
            self.assumptions.failed(uid, node, message, self.now);
        }
        self.refresh_pod(&key);
    }

    /// The node that the pod is kept away from after failed bindings, and until when.
    pub fn avoided(&self, uid: &str) -> Option<(&str, kai_engine::model::Millis)> {
        let failure = self.assumptions.failure(uid)?;
        let avoids = failure.held_until <= self.now && failure.avoided_until > self.now;
        avoids.then_some((failure.node.as_str(), failure.avoided_until))
    }

    /// The gang of a pod that is ours to place.
    pub fn gang_of(&self, uid: &str) -> Option<ObjectKey> {
        self.pods.by_uid(uid)?.gang()
    }

    /// Whether the pod waits for a node.
    pub fn is_waiting(&self, uid: &str) -> bool {
        let entry = self.pods.by_uid(uid);
        entry.is_some_and(|entry| entry.standing == Standing::Waiting)
    }

    fn withdraw(&mut self, key: &ObjectKey) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        let (gang, standing) = (entry.gang(), entry.standing);
        entry.gang = None;
        let ties = std::mem::take(&mut entry.ties);
        entry.standing = Standing::Other;
        if std::mem::take(&mut entry.applied) {
            self.outbox.events.push(Event::PodGone(entry.uid.to_string()));
        }
        self.tie(key, &ties, &Ties::None);
        self.count(gang.as_ref(), standing, -1);
    }

    fn restand(&mut self, key: &ObjectKey, spec: &PodSpec) {
        let ours = spec.kind == PodKind::Workload;
        let gang = spec.gang.as_ref().filter(|_| ours);
        debug_assert!(gang.is_none_or(|gang| *gang.namespace == *key.namespace));
        let standing = Standing::of(spec);
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.applied = true;
        let name = gang.map(|gang| gang.name.as_str());
        if (entry.gang.as_deref(), entry.standing) == (name, standing) {
            return;
        }
        // One name for all members.
        let gang = gang.map(super::group_key);
        let gang = gang.map(|gang| self.members.get_key_value(&gang).map_or(gang, |(kept, _)| kept.clone()));
        let before = entry.gang();
        entry.gang = gang.as_ref().map(|gang| Arc::clone(&gang.name));
        let stood = std::mem::replace(&mut entry.standing, standing);
        if standing == Standing::Waiting {
            self.outbox.waiting.push(entry.uid.clone());
        }
        self.count(before.as_ref(), stood, -1);
        self.count(gang.as_ref(), standing, 1);
    }

    fn set_standing(&mut self, key: &ObjectKey, standing: Standing) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        let stood = std::mem::replace(&mut entry.standing, standing);
        let gang = entry.gang();
        self.count(gang.as_ref(), stood, -1);
        self.count(gang.as_ref(), standing, 1);
    }

    fn count(&mut self, gang: Option<&ObjectKey>, standing: Standing, change: i32) {
        let Some(gang) = gang else { return };
        // Pods without a gang and those that only pass through don't count, so that the map holds live gangs only.
        let members = self.members.entry(gang.clone()).or_default();
        members.add(standing, change);
        if members.is_empty() {
            self.members.remove(gang);
        }
        self.outbox.touched_gangs.insert(gang.clone());
    }
}

/// What a requirement is on.
#[derive(Clone, Copy)]
enum On {
    Label,
    Name,
}

/// Adds a requirement on the pod's node to all that it has.
fn require(spec: &mut PodSpec, on: On, key: &str, operator: Operator, values: &[&str]) {
    let requirement = Requirement {
        key: key.to_owned(),
        operator,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let mut terms = match spec.constraints.required_nodes.take() {
        None => return spec.constraints.required_nodes = Some(vec![term_of(on, requirement)]),
        Some(terms) => terms,
    };
    // A term without requirements matches nothing, and must go on to do so.
    for term in terms
        .iter_mut()
        .filter(|term| !term.labels.is_empty() || !term.fields.is_empty())
    {
        match on {
            On::Label => term.labels.push(requirement.clone()),
            On::Name => term.fields.push(requirement.clone()),
        }
    }
    spec.constraints.required_nodes = Some(terms);
}

fn term_of(on: On, requirement: Requirement) -> NodeSelectorTerm {
    let (labels, fields) = match on {
        On::Label => (vec![requirement], Vec::new()),
        On::Name => (Vec::new(), vec![requirement]),
    };
    NodeSelectorTerm { labels, fields }
}
