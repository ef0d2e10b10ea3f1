//! Translates pods into engine events. The engine sees the observed pod plus assumed decisions, recent bind failures, and the constraints
//! of its volumes and ConfigMaps.

use std::sync::Arc;

use kai_api::{BindPhase, Object, ObjectKey, ObjectReference, Pod};
use kai_engine::model::{
    Event, GangKey, GpuRequest, NodeSelectorTerm, Operator, PodKind, PodPhase, PodSpec, Requirement,
};
use kai_engine::reasons::{AvoidedNode, Reason, Refusal};
use kai_engine::report::PodView;

use super::ClusterMirror;
use super::assumed::Assumed;
use super::reservations::GpuGroupRole;

/// A pod that has not ended, or that has succeeded as a member of a gang.
#[derive(Debug)]
pub(super) struct PodEntry {
    pub(super) object: Arc<Pod>,
    pub(super) key: ObjectKey,
    pub(super) uid: Arc<str>,
    /// The name of the gang, which is in the pod's namespace; `None` for pods of other schedulers.
    gang: Option<Arc<str>>,
    progress: PodProgress,
    role: GpuGroupRole,
    /// Whether the engine has the pod.
    applied: bool,
}

impl PodEntry {
    pub(super) fn new(key: &ObjectKey, uid: Arc<str>, object: &Arc<Pod>) -> PodEntry {
        PodEntry {
            object: Arc::clone(object),
            key: key.clone(),
            uid,
            gang: None,
            progress: PodProgress::Other,
            role: GpuGroupRole::None,
            applied: false,
        }
    }

    fn gang(&self) -> Option<ObjectKey> {
        self.gang.as_ref().map(|name| self.key.beside(name))
    }
}

/// How far scheduling of a pod has come. The mirror counts the pods of a gang by progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PodProgress {
    /// The pod has no node, or has scheduling gates.
    Pending,
    /// The engine has chosen a node; the pod is not bound yet.
    Binding,
    /// The pod is bound or running.
    Bound,
    /// The pod is terminating, or is not a workload pod of this scheduler.
    Other,
}

impl PodProgress {
    pub(super) const COUNT: usize = 4;

    fn of(spec: &PodSpec) -> PodProgress {
        let ended = matches!(spec.phase, PodPhase::Succeeded | PodPhase::Failed | PodPhase::Unknown);
        match (&spec.node, &spec.bind_in_flight) {
            _ if spec.kind != PodKind::Workload || spec.deletion.is_some() || ended => PodProgress::Other,
            (Some(_), _) => PodProgress::Bound,
            (None, Some(_)) => PodProgress::Binding,
            (None, None) => PodProgress::Pending,
        }
    }
}

impl ClusterMirror {
    /// The pod was added or changed.
    pub fn apply_pod(&mut self, key: &ObjectKey, pod: &Arc<Pod>) {
        if pod.is_terminal() && !self.finishes_gang(pod) {
            return self.remove_pod(key);
        }
        let uid: Arc<str> = match &pod.metadata().uid {
            Some(uid) if !uid.is_empty() => uid.shared(),
            // The uid that `Pod::read` gives to pods without one.
            Some(_) | None => key.to_string().into(),
        };
        if self.pods.get(key).is_some_and(|known| *known.uid != *uid) {
            self.remove_pod(key);
        }
        match self.pods.get_mut(key) {
            Some(entry) => {
                let before = std::mem::replace(&mut entry.object, Arc::clone(pod));
                if entry.applied && pod.same_content(&before) {
                    return;
                }
            }
            None => self.pods.add(PodEntry::new(key, uid, pod)),
        }
        self.refresh_pod(key);
    }

    /// Whether the pod has succeeded as a member of a gang. Such a gang is finishing: the engine has to know the pod, or it would evict the
    /// other members for being fewer than the minimum.
    fn finishes_gang(&self, pod: &Pod) -> bool {
        pod.matters_when_terminal() && pod.kind(&self.identity) == PodKind::Workload
    }

    /// The pod was deleted.
    pub fn remove_pod(&mut self, key: &ObjectKey) {
        let Some(entry) = self.pods.remove(key) else { return };
        let request = self.active_request(key, &entry.uid).cloned();
        self.assumptions.forget(&entry.uid);
        self.forget_volume_user(key, &entry.object);
        self.forget_used_volumes(key, &entry.object);
        self.forget_config_map_user(key, &entry.object);
        self.count_member(entry.gang().as_ref(), entry.progress, -1);
        if entry.applied {
            self.outbox.events.push(Event::PodGone(entry.uid.to_string()));
        }
        self.update_role(key, &entry.role, &GpuGroupRole::None);
        if let Some(request) = request.filter(|request| request.phase() == BindPhase::Pending) {
            self.suspect_reservations(&request);
        }
    }

    /// Sends the pod to the engine as it is now.
    pub(super) fn refresh_pod(&mut self, key: &ObjectKey) {
        let Some(entry) = self.pods.get(key) else { return };
        let (object, uid) = (Arc::clone(&entry.object), entry.uid.clone());
        let read = match object.read(&self.identity, self.now) {
            Ok(read) => read,
            Err(problem) => {
                self.report_problem(|| ObjectReference::of(&*object), &uid, problem);
                return self.withdraw_pod(key);
            }
        };
        // Problems of another scheduler's pods are not reported here.
        if read.value.kind == PodKind::Workload {
            for problem in read.problems {
                self.report_problem(|| ObjectReference::of(&*object), &uid, problem);
            }
        }
        let mut spec = read.value;
        self.add_local_state(key, &object, &mut spec);
        self.update_progress(key, &spec);
        let role = GpuGroupRole::of(&spec, &object);
        self.show_unused_reservation(&mut spec);
        self.outbox.events.push(Event::Pod(spec));
        self.set_role(key, role);
    }

    fn set_role(&mut self, key: &ObjectKey, role: GpuGroupRole) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        let before = std::mem::replace(&mut entry.role, role.clone());
        self.update_role(key, &before, &role);
    }

    /// Adds to the observed pod what the mirror knows beyond it: the bind request, assumptions, volumes, ConfigMaps and bind failures.
    fn add_local_state(&mut self, key: &ObjectKey, pod: &Pod, spec: &mut PodSpec) {
        if spec.phase == PodPhase::Succeeded {
            spec.background = self.background.selects(&spec.labels);
            return;
        }
        let uid = spec.uid.clone();
        if let Some(request) = self.active_request(key, &uid) {
            let request = Arc::clone(request);
            request.attach(spec);
        }
        self.apply_assumption(spec);
        self.add_used_volumes(key, pod, spec);
        if spec.kind != PodKind::Workload {
            return;
        }
        spec.background = self.background.selects(&spec.labels);
        if spec.node.is_some() {
            self.assumptions.clear_failures(&uid);
            self.forget_volume_user(key, pod);
            self.forget_config_map_user(key, pod);
            return;
        }
        self.apply_volume_constraints(key, pod, spec);
        self.require_config_maps(key, pod, spec);
        self.require_worker_node(spec);
        self.refuse_disabled_share(spec);
        self.avoid_failed_node(spec);
    }

    fn require_worker_node(&self, spec: &mut PodSpec) {
        let Some(labels) = &self.restrict_nodes else { return };
        let label = match spec.requests.gpu {
            GpuRequest::None => &labels.cpu,
            GpuRequest::Whole { .. }
            | GpuRequest::Fraction { .. }
            | GpuRequest::Memory { .. }
            | GpuRequest::Mig { .. } => &labels.gpu,
        };
        require(spec, NodeProperty::Label, label, Operator::Exists, &[]);
    }

    /// After a failed binding, refuses the pod during the pause and then keeps it off the node for a while.
    fn avoid_failed_node(&self, spec: &mut PodSpec) {
        let Some(failure) = self.assumptions.bind_failure(&spec.uid) else {
            return;
        };
        if failure.retry_at > self.now {
            spec.refused.get_or_insert_with(|| Refusal::BindFailed {
                node: failure.node.clone(),
                message: failure.message.clone(),
            });
        } else if failure.avoid_node_until > self.now {
            require(
                spec,
                NodeProperty::Field,
                "metadata.name",
                Operator::NotIn,
                &[&failure.node],
            );
        }
    }

    /// Adds the assumed decision to the pod, or drops the assumption once the pod shows the decision.
    fn apply_assumption(&mut self, spec: &mut PodSpec) {
        match self.assumptions.get(&spec.uid) {
            Some(Assumed::Bound(bind)) => {
                if spec.node.is_some() || spec.bind_in_flight.is_some() || spec.deletion.is_some() {
                    self.assumptions.drop_assumption(&spec.uid);
                } else {
                    spec.bind_in_flight = Some(bind.clone());
                }
            }
            Some(Assumed::Evicting(since)) => {
                if spec.deletion.is_some() {
                    self.assumptions.drop_assumption(&spec.uid);
                } else {
                    spec.deletion = Some(*since);
                }
            }
            None => {}
        }
    }

    /// The engine made this decision about the pod, and its own tables have it already. The decision counts as carried out until a watch
    /// shows it, its write fails or it expires.
    pub fn assume(&mut self, uid: &str, decision: Assumed) {
        let Some(key) = self.pod_key(uid) else { return };
        let progress = match &decision {
            Assumed::Bound(bind) => {
                self.set_role(&key, GpuGroupRole::member_of(bind.gpu_groups.iter()));
                PodProgress::Binding
            }
            Assumed::Evicting(_) => PodProgress::Other,
        };
        self.assumptions.assume(uid, decision);
        self.set_progress(&key, progress);
    }

    /// The API server has accepted the write of the pod's decision. From now on the watch has to show it in time.
    pub fn write_succeeded(&mut self, uid: &str) {
        self.assumptions.write_succeeded(uid, self.now);
    }

    /// The write of the pod's decision failed: the engine sees the pod as observed again. `binding` has node and error of a failed binding.
    pub fn write_failed(&mut self, uid: &str, binding: Option<(&str, String)>) {
        // The failure of a pod that is gone would stay in the table for ever.
        let Some(key) = self.pod_key(uid) else { return };
        self.assumptions.drop_assumption(uid);
        if let Some((node, message)) = binding {
            self.assumptions.record_bind_failure(uid, node, message, self.now);
        }
        self.refresh_pod(&key);
    }

    /// The node that the pod avoids after a failed binding, and until when.
    pub fn avoided_node(&self, uid: &str) -> Option<AvoidedNode> {
        let failure = self.assumptions.bind_failure(uid)?;
        let avoids = failure.retry_at <= self.now && failure.avoid_node_until > self.now;
        avoids.then(|| AvoidedNode {
            node: failure.node.clone(),
            until: failure.avoid_node_until,
        })
    }

    /// The text of the engine's reason, with the names of workloads and the node that the pod avoids, which only the mirror knows.
    /// Conditions, events, debug endpoints and views all show this text.
    pub fn reason_text(&self, view: &PodView<'_>, reason: &Reason) -> String {
        self.with_avoided_node(view.uid, self.shared_reason_text(reason))
    }

    /// The part of [`ClusterMirror::reason_text`] that is the same for all pods with this reason. It looks up the names of many gangs: who
    /// needs the texts of many pods makes it once.
    pub fn shared_reason_text(&self, reason: &Reason) -> String {
        let name = |gang: &GangKey| self.workload(gang);
        reason.with_names(&name).to_string()
    }

    /// Adds the node that the pod avoids to the text of its reason.
    pub fn with_avoided_node(&self, uid: &str, reason: String) -> String {
        match self.avoided_node(uid) {
            Some(avoided) => format!("{reason}; {avoided}"),
            None => reason,
        }
    }

    /// The pod group of a workload pod of this scheduler.
    pub fn gang_of(&self, uid: &str) -> Option<ObjectKey> {
        self.pods.by_uid(uid)?.gang()
    }

    /// Whether the pod has no node and the engine has not chosen one.
    pub fn is_pending(&self, uid: &str) -> bool {
        let entry = self.pods.by_uid(uid);
        entry.is_some_and(|entry| entry.progress == PodProgress::Pending)
    }

    /// Removes the pod from the engine: its object can't be read.
    fn withdraw_pod(&mut self, key: &ObjectKey) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        let (gang, progress) = (entry.gang(), entry.progress);
        entry.gang = None;
        let role = std::mem::take(&mut entry.role);
        entry.progress = PodProgress::Other;
        if std::mem::take(&mut entry.applied) {
            self.outbox.events.push(Event::PodGone(entry.uid.to_string()));
        }
        self.update_role(key, &role, &GpuGroupRole::None);
        self.count_member(gang.as_ref(), progress, -1);
    }

    fn update_progress(&mut self, key: &ObjectKey, spec: &PodSpec) {
        let is_workload = spec.kind == PodKind::Workload;
        let gang = spec.gang.as_ref().filter(|_| is_workload);
        debug_assert!(gang.is_none_or(|gang| *gang.namespace == *key.namespace));
        let progress = PodProgress::of(spec);
        let Some(entry) = self.pods.get_mut(key) else { return };
        entry.applied = true;
        let name = gang.map(|gang| gang.name.as_str());
        if (entry.gang.as_deref(), entry.progress) == (name, progress) {
            return;
        }
        // All members share one allocation of the name.
        let gang = gang.map(super::pod_group_key);
        let gang = gang.map(|gang| {
            self.member_counts
                .get_key_value(&gang)
                .map_or(gang, |(kept, _)| kept.clone())
        });
        let before = entry.gang();
        entry.gang = gang.as_ref().map(|gang| Arc::clone(&gang.name));
        let previous = std::mem::replace(&mut entry.progress, progress);
        if progress == PodProgress::Pending {
            self.outbox.pending_pods.push(entry.uid.clone());
        }
        self.count_member(before.as_ref(), previous, -1);
        self.count_member(gang.as_ref(), progress, 1);
    }

    fn set_progress(&mut self, key: &ObjectKey, progress: PodProgress) {
        let Some(entry) = self.pods.get_mut(key) else { return };
        let previous = std::mem::replace(&mut entry.progress, progress);
        let gang = entry.gang();
        self.count_member(gang.as_ref(), previous, -1);
        self.count_member(gang.as_ref(), progress, 1);
    }

    fn count_member(&mut self, gang: Option<&ObjectKey>, progress: PodProgress, change: i32) {
        let Some(gang) = gang else { return };
        // Entries without pods are removed, so that the map holds live gangs only.
        let members = self.member_counts.entry(gang.clone()).or_default();
        members.add(progress, change);
        if members.is_empty() {
            self.member_counts.remove(gang);
        }
        self.outbox.changed_pod_groups.insert(gang.clone());
    }
}

/// The property of a node that a requirement is about.
#[derive(Clone, Copy)]
enum NodeProperty {
    Label,
    Field,
}

/// Adds a requirement to all terms of the pod's required node affinity.
fn require(spec: &mut PodSpec, property: NodeProperty, key: &str, operator: Operator, values: &[&str]) {
    let requirement = Requirement {
        key: key.to_owned(),
        operator,
        values: values.iter().map(|value| (*value).to_owned()).collect(),
    };
    let mut terms = match spec.constraints.required_nodes.take() {
        None => return spec.constraints.required_nodes = Some(vec![term_of(property, requirement)]),
        Some(terms) => terms,
    };
    // A term without requirements matches no node; with one it would match some.
    for term in terms
        .iter_mut()
        .filter(|term| !term.labels.is_empty() || !term.fields.is_empty())
    {
        match property {
            NodeProperty::Label => term.labels.push(requirement.clone()),
            NodeProperty::Field => term.fields.push(requirement.clone()),
        }
    }
    spec.constraints.required_nodes = Some(terms);
}

fn term_of(property: NodeProperty, requirement: Requirement) -> NodeSelectorTerm {
    let (labels, fields) = match property {
        NodeProperty::Label => (vec![requirement], Vec::new()),
        NodeProperty::Field => (Vec::new(), vec![requirement]),
    };
    NodeSelectorTerm { labels, fields }
}
