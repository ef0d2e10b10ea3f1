//! The reconciler of the grouper: reads the objects that the grouping rules need, writes the pod group and the pod.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kai_api::{ConfigMap, Object, ObjectKey, ObjectReference, Pod, PodGroup, keys};
use kai_cluster::{Client, Context, EventRecorder, Informers, ObjectEvent, Part, Patch, Severity, Target, WorkResult};
use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};

use super::desired_pod_group::{DesiredPodGroup, OwnerRef};
use super::grouped_pods::GroupedPod;
use super::ignored_values::{IgnoredValue, ignored_values};
use super::owners::{OwnerError, missing_right, owners_of};
use super::rules::RuleSet;
use super::workload::{GroupingError, GroupingOptions, ObjectRef, Objects, Owner, PodOrigin, Refusal, Workload};
use super::{KindDefaults, NAME, RETRY_SOON, Settings, TYPES_KEY, default_rules, desired_pod_group, kinds, patches};
use crate::admission::core_of_pod_group::RaisedMinimum;
use crate::reconciles::Reconciles;

const WARNING: &str = "PodGrouperWarning";
const RULES_READ: &str = "GroupingRulesRead";
const RULE_INVALID: &str = "GroupingRuleInvalid";
/// Events about mistakes in one version of the rules; the log has as many.
const RULE_EVENTS_MAX: usize = 32;
/// Remembered reports of ignored values and kept minima; beyond this number the set is cleared and reports repeat.
const REPORTED_MAX: usize = 4_096;
/// Raised minima that one report names.
const MINIMA_NAMED_MAX: usize = 4;
/// Objects read for one pod. No rule needs more than the top owner and one more object.
const READS_MAX: usize = 4;

pub(super) struct Grouper {
    client: Client,
    informers: Arc<Informers>,
    events: EventRecorder,
    reconciles: Reconciles,
    settings: Settings,
    /// Held for map operations only, never across an await.
    state: Mutex<State>,
}

struct State {
    grouped: FxHashMap<ObjectKey, GroupedPod>,
    kind_defaults: Option<KindDefaults>,
    rules: Arc<RuleSet>,
    /// The resource version of the ConfigMap that `rules` were read from; `None` if there is none.
    rules_version: Option<String>,
    /// What was reported once: uid of the object, text.
    reported: FxHashSet<(String, String)>,
}

impl Default for State {
    fn default() -> State {
        State {
            grouped: FxHashMap::default(),
            kind_defaults: None,
            rules: Arc::new(RuleSet::shipped()),
            rules_version: None,
            reported: FxHashSet::default(),
        }
    }
}

/// The result of reading the declared rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RulesRead {
    Unchanged,
    Changed,
    /// The rules of before hold.
    Failed,
}

/// The result of a successful reconciliation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PodResult {
    Skipped,
    Grouped,
}

#[derive(Debug, thiserror::Error)]
enum ReconcileError {
    #[error(transparent)]
    Owner(#[from] OwnerError),
    #[error(transparent)]
    Refused(#[from] Refusal),
    #[error(transparent)]
    Cluster(#[from] kai_cluster::Error),
}

impl Grouper {
    pub(super) fn new(context: &Context, settings: Settings) -> Grouper {
        Grouper {
            client: context.client.clone(),
            informers: Arc::clone(&context.informers),
            events: EventRecorder::new(&context.client, NAME, context.clock),
            reconciles: Reconciles::registered(
                &context.metrics,
                "pod_grouper",
                &["left", "grouped", "conflict", "failed"],
            ),
            settings,
            state: Mutex::default(),
        }
    }

    pub(super) fn workers_max(&self) -> usize {
        self.settings.workers_max
    }

    /// Whether a changed pod has to be reconciled.
    pub(super) fn has_work(&self, key: &ObjectKey, pod: Option<&Pod>) -> bool {
        let mut state = self.state.lock();
        let Some(pod) = pod else {
            state.grouped.remove(key);
            return false;
        };
        pod.scheduler_name() == self.settings.scheduler_name
            && !state.grouped.get(key).is_some_and(|grouped| grouped.holds_for(pod))
    }

    /// The pods of deleted pod groups.
    pub(super) fn members_of(&self, groups: BTreeSet<ObjectKey>) -> Vec<ObjectKey> {
        if groups.is_empty() {
            return Vec::new();
        }
        let named = |pod: &Pod| Some(ObjectKey::new(pod.metadata.namespace(), pod.pod_group()?));
        let is_member = |pod: &Arc<Pod>| {
            pod.scheduler_name() == self.settings.scheduler_name
                && named(pod).is_some_and(|group| groups.contains(&group))
        };
        let pods = self.informers.pods().all().into_iter().filter(is_member);
        pods.map(|pod| ObjectKey::of(&*pod)).collect()
    }

    /// Reads the administrator's kind defaults, if configured. After a failure the previous ones stay.
    pub(super) async fn read_kind_defaults(&self) {
        let Some((namespace, name)) = &self.settings.kind_defaults else {
            return;
        };
        let target = Target::of::<ConfigMap>(namespace, name);
        let found = match self.client.get_value(target).await {
            Ok(found) => found,
            Err(error) => return tracing::warn!(%error, "reading the kind defaults failed"),
        };
        let text = found.as_ref().and_then(|map| map["data"][TYPES_KEY].as_str());
        match text.map(KindDefaults::parse) {
            Some(Ok(defaults)) => self.state.lock().kind_defaults = Some(defaults),
            Some(Err(error)) => {
                tracing::warn!(%error, "ConfigMap {namespace}/{name}: data.{TYPES_KEY}: it is no list of kinds; write a JSON list of objects with typeName, group, priorityName and preemptibility");
            }
            None => tracing::warn!("ConfigMap {namespace}/{name}: data.{TYPES_KEY}: it is missing"),
        }
    }

    /// Reads the declared rules, and reports mistakes in them to the log and as events of the ConfigMap.
    pub(super) async fn read_rules(&self) -> RulesRead {
        let Some((namespace, name)) = &self.settings.rules else {
            return RulesRead::Unchanged;
        };
        let map = match self.client.get_value(Target::of::<ConfigMap>(namespace, name)).await {
            Ok(map) => map,
            Err(error) => {
                tracing::warn!(%error, "reading the grouping rules failed");
                // An installation may take the right away; the shipped rules hold then.
                return match error.is_forbidden() {
                    true => RulesRead::Unchanged,
                    false => RulesRead::Failed,
                };
            }
        };
        let version = map.as_ref().and_then(|map| map["metadata"]["resourceVersion"].as_str());
        let before = {
            let state = self.state.lock();
            if state.rules_version.as_deref() == version {
                return RulesRead::Unchanged;
            }
            Arc::clone(&state.rules)
        };
        let texts = map.iter().filter_map(|map| map["data"].as_object()).flatten();
        let texts = texts.filter_map(|(key, text)| Some((key.as_str(), text.as_str()?)));
        let rules = Arc::new(RuleSet::load(texts, &before));
        let names: Vec<String> = rules.names().collect();
        tracing::info!(
            "grouping rules in effect: {}, and those that kai ships",
            names.join(", ")
        );
        {
            let mut state = self.state.lock();
            state.rules = Arc::clone(&rules);
            state.rules_version = version.map(str::to_owned);
        }
        if let Some(map) = &map {
            self.report_rules(namespace, map, &rules).await;
        }
        RulesRead::Changed
    }

    async fn report_rules(&self, namespace: &str, map: &serde_json::Value, rules: &RuleSet) {
        let text = |field: &str| map["metadata"][field].as_str().unwrap_or_default().to_owned();
        let about = Owner {
            api_version: "v1".to_owned(),
            kind: "ConfigMap".to_owned(),
            name: text("name"),
            uid: text("uid"),
            ..Owner::default()
        };
        for problem in rules.problems().iter().take(RULE_EVENTS_MAX) {
            tracing::warn!("ConfigMap {namespace}/{}: {problem}", about.name);
            self.record(namespace, &about, RULE_INVALID, problem.to_string()).await;
        }
        let names: Vec<String> = rules.names().collect();
        let text = match names.len() {
            0 => "no rule is in effect but those that kai ships".to_owned(),
            _ => format!("rules in effect: {}", names.join(", ")),
        };
        self.events
            .record(event(namespace, &about, Severity::Normal, RULES_READ, text))
            .await;
    }

    /// The pods that changed rules may group differently: those that wait, and those whose pod group is of no kind that the code knows.
    pub(super) fn pods_to_group_again(&self) -> Vec<ObjectKey> {
        let is_of_code = |pod: &Pod| {
            let group = ObjectKey::new(pod.metadata.namespace(), pod.pod_group().unwrap_or_default());
            let group = self.informers.pod_groups().get(&group);
            let owner = group.as_ref().and_then(|group| group.metadata.owner_references.first());
            owner.is_some_and(|owner| {
                let (group, version) = owner.api_version.split_once('/').unwrap_or(("", &owner.api_version));
                kinds::groups_in_code(group, Some(version), &owner.kind)
            })
        };
        let concerned = |pod: &Arc<Pod>| {
            pod.scheduler_name() == self.settings.scheduler_name
                && !pod.is_terminating()
                && (pod.node_name().is_none() || !is_of_code(pod))
        };
        let pods = self.informers.pods().all().into_iter().filter(concerned);
        let keys: Vec<ObjectKey> = pods.map(|pod| ObjectKey::of(&*pod)).collect();
        let mut state = self.state.lock();
        for key in &keys {
            state.grouped.remove(key);
        }
        keys
    }

    /// Reconciles one pod.
    pub(super) async fn reconcile(&self, key: &ObjectKey) -> WorkResult {
        let Some(pod) = self.informers.pods().get(key) else {
            return WorkResult::Done;
        };
        match self.group_pod(key, &pod).await {
            Ok(PodResult::Skipped) => {
                self.reconciles.count("left");
                WorkResult::Done
            }
            Ok(PodResult::Grouped) => {
                self.reconciles.count("grouped");
                WorkResult::Done
            }
            Err(ReconcileError::Cluster(error)) if error.is_conflict() || error.is_not_found() => {
                self.reconciles.count("conflict");
                RETRY_SOON
            }
            Err(ReconcileError::Cluster(error @ kai_cluster::Error::NotLeader { .. })) => {
                tracing::debug!(%error);
                WorkResult::Retry
            }
            Err(ReconcileError::Owner(OwnerError::NotFound { .. })) if pod.is_terminating() => WorkResult::Done,
            Err(error) => {
                self.reconciles.count("failed");
                self.report_failure(&pod, &error).await;
                WorkResult::Retry
            }
        }
    }

    async fn group_pod(&self, key: &ObjectKey, pod: &Pod) -> Result<PodResult, ReconcileError> {
        let desired = match self.is_skipped(pod).await? {
            true => None,
            false => self.desired(pod).await?,
        };
        let Some((desired, ignored)) = desired else {
            self.remember(key, GroupedPod::skipped(pod));
            return Ok(PodResult::Skipped);
        };
        self.write_group(&desired, pod).await?;
        if let Some(change) = patches::pod_patch(&desired, pod) {
            let target = Target::of::<Pod>(pod.metadata.namespace(), &key.name);
            self.client.patch(target, Part::Status, Patch::Merge(change)).await?;
            tracing::info!(pod = %key, %desired, "grouped");
            for ignored in &ignored {
                self.report_ignored_value(pod.metadata.namespace(), ignored).await;
            }
        }
        self.remember(key, GroupedPod::assigned(pod, &desired));
        Ok(PodResult::Grouped)
    }

    fn remember(&self, key: &ObjectKey, grouped: GroupedPod) {
        let mut state = self.state.lock();
        state.grouped.insert(key.clone(), grouped);
        // The pod may have been deleted meanwhile, and the informer reports the deletion once only.
        if self.informers.pods().get(key).is_none() {
            state.grouped.remove(key);
        }
    }

    async fn is_skipped(&self, pod: &Pod) -> Result<bool, kai_cluster::Error> {
        let metadata = &pod.metadata;
        let labels = |wanted: &[(String, String)], labels: &kai_api::TextMap| {
            wanted
                .iter()
                .all(|(key, value)| labels.text(key) == Some(value.as_str()))
        };
        if metadata.annotations.text(keys::SKIP_POD_GROUPER) == Some("true")
            || !labels(&self.settings.pod_labels, &metadata.labels)
        {
            return Ok(true);
        }
        // A bare pod that names another pod group was assigned by its author. A bare pod that names its own generated group gets that
        // group again if the group is lost.
        if metadata.owner_references.is_empty()
            && let Some(name) = pod.pod_group()
        {
            let is_ours = name == default_rules::name_of(&Owner::of_pod(pod));
            let is_there = self
                .informers
                .pod_groups()
                .get(&ObjectKey::new(metadata.namespace(), name))
                .is_some();
            // The garbage collector deletes the group of a deleted pod. If the pod informer lags, the grouper would create the group
            // again and again.
            if !is_ours || is_there || !self.still_exists(metadata).await? {
                return Ok(true);
            }
        }
        if self.settings.namespace_labels.is_empty() {
            return Ok(false);
        }
        let namespace: Option<kai_api::Namespace> = self.client.get("", metadata.namespace()).await?;
        Ok(!namespace.is_some_and(|namespace| labels(&self.settings.namespace_labels, &namespace.metadata().labels)))
    }

    /// Whether the API server still has the pod with this uid.
    async fn still_exists(&self, pod: &kai_api::Metadata) -> Result<bool, kai_cluster::Error> {
        let target = Target::of::<Pod>(pod.namespace(), pod.plain_name());
        let present = self.client.get_metadata(target).await?;
        Ok(present.is_some_and(|present| present.uid == pod.uid))
    }

    /// The desired pod group and the values that have no effect on it; `None` if an owner opts out of grouping.
    async fn desired(&self, pod: &Pod) -> Result<Option<(DesiredPodGroup, Vec<IgnoredValue>)>, ReconcileError> {
        let options = {
            let state = self.state.lock();
            GroupingOptions {
                kind_defaults: state.kind_defaults.clone().unwrap_or_default(),
                rules: Arc::clone(&state.rules),
                ..self.settings.options.clone()
            }
        };
        let owners = owners_of(&self.client, &options.rules, pod).await?;
        if owners.iter().any(Owner::opts_out) {
            return Ok(None);
        }
        let mut objects: Objects = BTreeMap::new();
        loop {
            let workload = Workload {
                pod,
                pod_origin: PodOrigin::Pod,
                owners: &owners,
                objects: &objects,
                cluster: &*self.informers,
                options: &options,
            };
            match desired_pod_group(&workload) {
                Ok(desired) => return Ok(Some((desired, ignored_values(&workload)))),
                Err(GroupingError::Refused(refusal)) => return Err(refusal.into()),
                Err(GroupingError::NeedsObject(reference)) => {
                    assert!(objects.len() < READS_MAX, "a grouper asks for objects without end");
                    let object = match self.read(pod, &reference).await {
                        Err(error) if error.is_forbidden() => return Err(without_right(pod, &reference).into()),
                        read => read?,
                    };
                    objects.insert(reference, object);
                }
            }
        }
    }

    async fn read(&self, pod: &Pod, reference: &ObjectRef) -> Result<Option<serde_json::Value>, kai_cluster::Error> {
        let resource = self.client.resource_of(&reference.api_version, &reference.kind).await?;
        let Some(resource) = resource else { return Ok(None) };
        let target = Target {
            resource: &resource,
            namespace: pod.metadata.namespace(),
            name: &reference.name,
        };
        self.client.get_value(target).await
    }

    async fn write_group(&self, desired: &DesiredPodGroup, pod: &Pod) -> Result<(), kai_cluster::Error> {
        let key = ObjectKey::new(&desired.namespace, &desired.name);
        let mut present = self.informers.pod_groups().get(&key);
        if present.is_none() {
            match self
                .client
                .create(
                    &PodGroup::RESOURCE,
                    &desired.namespace,
                    patches::pod_group_body(desired),
                )
                .await
            {
                Ok(_) => return Ok(()),
                // The reconciliation of another pod created the group; the informer does not have it yet.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(error),
            }
            present = self.client.get(&desired.namespace, &desired.name).await?.map(Arc::new);
        }
        // At the end of a rolling update the last pod of the old template would undo what the pods of the new template changed.
        if pod.is_terminating() {
            return Ok(());
        }
        let Some(present) = present else { return Ok(()) };
        let raised = patches::raised_core(desired, &present);
        let change = match raised.is_empty() {
            true => patches::pod_group_patch(desired, &present, &self.settings.options),
            // A change that admission refuses would leave all further pods of the workload without a pod group.
            false => {
                self.report_kept_core(desired, &raised).await;
                let kept = patches::with_old_core(desired.clone(), &raised);
                patches::pod_group_patch(&kept, &present, &self.settings.options)
            }
        };
        let Some(change) = change else { return Ok(()) };
        let target = Target::of::<PodGroup>(&desired.namespace, &desired.name);
        self.client.patch(target, Part::Object, Patch::Merge(change)).await?;
        Ok(())
    }

    async fn report_failure(&self, pod: &Pod, error: &ReconcileError) {
        tracing::warn!(pod = pod.metadata.qualified_name(), %error, "grouping a pod failed");
        let namespace = pod.metadata.namespace();
        self.record(namespace, &Owner::of_pod(pod), WARNING, error.to_string())
            .await;
    }

    async fn report_ignored_value(&self, namespace: &str, ignored: &IgnoredValue) {
        self.report_once(namespace, &ignored.owner, ignored.problem.to_string())
            .await;
    }

    async fn report_kept_core(&self, desired: &DesiredPodGroup, raised: &[RaisedMinimum]) {
        let OwnerRef {
            api_version,
            kind,
            name,
            uid,
        } = desired.owner.clone();
        let stays = |minimum: &RaisedMinimum| {
            let RaisedMinimum { from, to, .. } = minimum;
            format!("{} stays {from} and does not become {to}", minimum.field())
        };
        let mut kept: Vec<String> = raised.iter().take(MINIMA_NAMED_MAX).map(stays).collect();
        if raised.len() > MINIMA_NAMED_MAX {
            kept.push(format!("and {} more", raised.len() - MINIMA_NAMED_MAX));
        }
        let text = format!(
            "{kind} {}/{name}: pod group {}: {}: the core of a semi-preemptible pod group does not grow while it exists; delete the pod \
             group, and it is created with the new minimum, or undo the change",
            desired.namespace,
            desired.name,
            kept.join(", ")
        );
        let owner = Owner {
            api_version,
            kind,
            name,
            uid,
            ..Owner::default()
        };
        self.report_once(&desired.namespace, &owner, text).await;
    }

    /// Reports each text once per object: a workload has many pods.
    async fn report_once(&self, namespace: &str, about: &Owner, text: String) {
        let is_new = {
            let reported = &mut self.state.lock().reported;
            if reported.len() >= REPORTED_MAX {
                reported.clear();
            }
            reported.insert((about.uid.clone(), text.clone()))
        };
        if is_new {
            tracing::warn!("{text}");
            self.record(namespace, about, WARNING, text).await;
        }
    }

    async fn record(&self, namespace: &str, about: &Owner, reason: &'static str, message: String) {
        let note = event(namespace, about, Severity::Warning, reason, message);
        self.events.record(note).await;
    }
}

fn event(namespace: &str, about: &Owner, severity: Severity, reason: &'static str, message: String) -> ObjectEvent {
    ObjectEvent {
        about: ObjectReference {
            api_version: about.api_version.clone(),
            kind: about.kind.clone(),
            namespace: namespace.to_owned(),
            name: about.name.clone(),
            uid: about.uid.clone(),
        },
        severity,
        reason,
        message,
        annotations: Vec::new(),
    }
}

fn without_right(pod: &Pod, reference: &ObjectRef) -> Refusal {
    let ObjectRef {
        api_version,
        kind,
        name,
    } = reference;
    Refusal {
        object: format!("Pod {}", pod.metadata.qualified_name()),
        field: "metadata.ownerReferences".to_owned(),
        reason: missing_right(api_version, kind, name),
    }
}
