//! Applies the rules of an installation to manifests: default queues, admission of new pods, pod grouping. The rules are those of the
//! roles; only their inputs come from files.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use kai_api::{Pod, Queue, keys};
use kai_controllers::admission::{self, Operation, Request};
use kai_controllers::grouper::rules::{RuleProblem, RuleSet};
use kai_controllers::grouper::{
    self, ClusterReader as _, DesiredPodGroup, GroupingError, GroupingOptions, IgnoredValue, Objects, Owner, PodOrigin,
    Refusal, Workload,
};
use kai_simulate::scenario::{
    Author, Document, Installation, Manifests, SchedulerPolicy, SnapshotSettings, is_synthetic_uid, synthetic_uid,
};
use serde_json::{Map, Value};

use super::files::{Files, all_of, read};
use crate::roles;

/// Further objects that a grouper may read for one pod; no kind needs more than two.
const READS_MAX: usize = 4;

/// The roles with their default settings.
pub(crate) struct Installed {
    admission: admission::Settings,
    grouper: grouper::Settings,
}

impl Installed {
    pub(crate) fn new() -> anyhow::Result<Installed> {
        let roles = roles::RoleSettings::every_role()?;
        Ok(Installed {
            admission: roles.admission.unwrap_or_default(),
            grouper: roles
                .controllers
                .and_then(|controllers| controllers.grouper)
                .unwrap_or_default(),
        })
    }
}

impl Installation for Installed {
    fn prepare(&self, manifests: &mut Manifests) {
        let has_queues = |document: &Document| document.kind == "Queue" || document.author == Author::Cluster;
        if !manifests.documents.iter().any(has_queues) {
            add_default_queues(&mut manifests.documents);
        }
        self.admit(manifests);
        self.group(manifests);
    }

    fn policy(&self, written: &SnapshotSettings) -> Result<SchedulerPolicy, String> {
        let SnapshotSettings {
            config,
            scheduler_params,
            extensions,
        } = written;
        let settings = kai_scheduler::Settings::of_snapshot(config, scheduler_params, extensions);
        let settings = settings.map_err(|error| error.to_string())?;
        Ok(SchedulerPolicy {
            mirror: settings.mirror(),
            config: settings.config,
            warnings: settings.warnings,
        })
    }
}

impl Installed {
    /// Removes the pods that admission refuses. A pod that comes from a cluster was admitted there.
    fn admit(&self, manifests: &mut Manifests) {
        let queues: Vec<Arc<Queue>> = all_of(&manifests.documents, "Queue").map(Arc::new).collect();
        let Manifests {
            documents,
            warnings,
            refused_pods,
        } = manifests;
        documents.retain_mut(|document| {
            if document.kind != "Pod" || document.author == Author::Cluster || was_in_a_cluster(&document.object) {
                return true;
            }
            let request = Request {
                uid: document.name(),
                operation: Operation::Create,
                namespace: document.namespace().to_owned(),
                object: document.object.clone(),
                ..Request::default()
            };
            match admission::admit_pod(request, &self.admission, &queues) {
                Ok(pod) => document.object = pod,
                Err(message) => {
                    let told = message.lines().next().unwrap_or_default();
                    warnings.push_about(&document.file, format_args!("{told} (admission refuses the pod)"));
                    *refused_pods += 1;
                    return false;
                }
            }
            true
        });
    }

    /// Creates the pod groups and labels the pods with them.
    fn group(&self, manifests: &mut Manifests) {
        let Manifests {
            documents, warnings, ..
        } = manifests;
        let rules = RuleSource::of_documents(documents);
        let options = self.options(&rules.load(&mut |problem| warnings.push(format_args!("{problem}"))));
        let files = Files::new(documents);
        let mut changes: Vec<(usize, Value)> = Vec::new();
        let mut groups: Vec<Document> = Vec::new();
        let (mut names, mut told) = (BTreeSet::new(), BTreeSet::new());
        let mut short_names = ShortNames::default();
        for (at, document) in documents.iter().enumerate() {
            let Some(pod) = self.pod_without_group(document, &files) else {
                continue;
            };
            let owners = files.owners_of(&pod);
            let (plan, ignored) = match plan(
                &Grouped {
                    pod: &pod,
                    origin: PodOrigin::Pod,
                    owners: &owners,
                },
                &files,
                &options,
            ) {
                Ok(Some((plan, ignored))) => (short_names.shortened(plan), ignored),
                Ok(None) => continue,
                Err(refusal) => {
                    warnings.push_about(&document.file, format_args!("{refusal} (the pod waits)"));
                    continue;
                }
            };
            for IgnoredValue { problem, .. } in ignored {
                // All pods of a workload give the same warning.
                if told.insert(problem.to_string()) {
                    warnings.push_about(&document.file, problem);
                }
            }
            changes.extend(grouper::pod_patch(&plan, &pod).map(|change| (at, change)));
            if !names.insert((plan.namespace.clone(), plan.name.clone()))
                || files.pod_group(&plan.namespace, &plan.name).is_some()
            {
                continue;
            }
            let queue = plan.spec.queue.as_deref().unwrap_or_default();
            if let Some(line) = files.missing_queue(queue, &pod, &owners)
                && told.insert(line.clone())
            {
                warnings.push_about(&document.file, line);
            }
            groups.push(document.made("PodGroup", group_of(&plan, &pod)));
        }
        for (at, mut change) in changes {
            // The precondition of a patch; pods of files keep their uid.
            change["metadata"]["uid"].take();
            merge(&mut documents[at].object, change);
        }
        documents.append(&mut groups);
    }

    /// The pod, if the grouper handles it.
    fn pod_without_group(&self, document: &Document, files: &Files<'_>) -> Option<Pod> {
        if document.kind != "Pod" || document.author == Author::Cluster {
            return None;
        }
        let mut pod: Pod = read(&document.object)?;
        let metadata = &pod.metadata;
        let left_alone = metadata.annotations.text(keys::SKIP_POD_GROUPER) == Some("true");
        let named = pod.pod_group();
        // The author of a bare pod chose the group that it names. A pod whose group is in the files is grouped already.
        let has_group = named.is_some_and(|name| {
            metadata.owner_references.is_empty() || files.pod_group(metadata.namespace(), name).is_some()
        });
        if pod.scheduler_name() != self.grouper.scheduler_name || left_alone || has_group {
            return None;
        }
        if pod.metadata.uid.is_none() {
            // The name of the pod group contains the uid. Objects that were never in a cluster have none.
            pod.metadata.uid = Some(synthetic_uid(&document.name()).as_str().into());
        }
        Some(pod)
    }

    /// The options of grouping, with these rules.
    pub(crate) fn options(&self, rules: &Arc<RuleSet>) -> GroupingOptions {
        GroupingOptions {
            rules: Arc::clone(rules),
            ..self.grouper.options.clone()
        }
    }

    /// The `schedulerName` of the pods that are grouped.
    pub(crate) fn scheduler_name(&self) -> &str {
        &self.grouper.scheduler_name
    }
}

/// The texts of declared rules by name, as in an installation's ConfigMap.
#[derive(Default)]
pub(crate) struct RuleSource(pub(crate) Vec<(String, String)>);

impl RuleSource {
    /// The rules in the ConfigMaps of these objects that have the usual name.
    pub(crate) fn of_documents(documents: &[Document]) -> RuleSource {
        let mut rules = RuleSource::default();
        for document in documents.iter().filter(|document| document.kind == "ConfigMap") {
            if document.object.pointer("/metadata/name").and_then(Value::as_str) == Some(grouper::RULES_CONFIG_MAP) {
                rules.add_config_map(&document.object);
            }
        }
        rules
    }

    pub(crate) fn add_config_map(&mut self, map: &Value) {
        let data = map.get("data").and_then(Value::as_object).into_iter().flatten();
        let texts = data.filter_map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned())));
        self.0.extend(texts);
    }

    pub(crate) fn load(&self, tell: &mut dyn FnMut(&RuleProblem)) -> Arc<RuleSet> {
        let texts = self.0.iter().map(|(name, text)| (name.as_str(), text.as_str()));
        let rules = RuleSet::load(texts, &RuleSet::default());
        rules.problems().iter().for_each(tell);
        Arc::new(rules)
    }
}

/// A pod with its owners.
pub(crate) struct Grouped<'p> {
    pub(crate) pod: &'p Pod,
    pub(crate) origin: PodOrigin,
    pub(crate) owners: &'p [Owner],
}

/// The pod group, and values that have no effect on it. `None` if the pod's owners opt out of grouping.
pub(crate) fn plan(
    grouped: &Grouped<'_>,
    files: &Files<'_>,
    options: &GroupingOptions,
) -> Result<Option<(DesiredPodGroup, Vec<IgnoredValue>)>, Refusal> {
    let Grouped { pod, origin, owners } = *grouped;
    if owners.iter().any(Owner::opts_out) {
        return Ok(None);
    }
    let mut objects = Objects::new();
    loop {
        let workload = Workload {
            pod,
            pod_origin: origin,
            owners,
            objects: &objects,
            cluster: files,
            options,
        };
        match grouper::desired_pod_group(&workload) {
            Ok(plan) => return Ok(Some((plan, grouper::ignored_values(&workload)))),
            Err(GroupingError::Refused(refusal)) => return Err(refusal),
            Err(GroupingError::NeedsObject(reference)) => {
                assert!(objects.len() < READS_MAX, "a grouper asks for objects without end");
                let object = files.object(pod.metadata.namespace(), &reference).cloned();
                objects.insert(reference, object);
            }
        }
    }
}

/// Short names of pod groups. The full name ends in the uid of the owner, and a uid that was made up here says nothing to a reader.
#[derive(Default)]
pub(crate) struct ShortNames {
    /// Namespace and short name, with the name that it stands for.
    taken: BTreeMap<(String, String), String>,
}

impl ShortNames {
    pub(crate) fn shortened(&mut self, mut plan: DesiredPodGroup) -> DesiredPodGroup {
        if !is_synthetic_uid(&plan.owner.uid) {
            return plan;
        }
        let short = plan.name.replace(&format!("-{}", plan.owner.uid), "");
        let key = (plan.namespace.clone(), short.clone());
        // A Job and a pod of one name have groups of their own.
        if *self.taken.entry(key).or_insert_with(|| plan.name.clone()) == plan.name {
            plan.name = short;
        }
        plan
    }
}

fn add_default_queues(documents: &mut Vec<Document>) {
    let file: Arc<Path> = Arc::from(Path::new("default queues"));
    documents.extend(kai_controllers::default_queues().map(|object| Document {
        file: Arc::clone(&file),
        kind: "Queue".to_owned(),
        object,
        author: Author::Controller,
    }));
}

/// Whether the object comes from an API server: it has a uid, or it is a pod with a node.
fn was_in_a_cluster(pod: &Value) -> bool {
    ["/metadata/uid", "/spec/nodeName", "/status/phase"]
        .iter()
        .any(|field| pod.pointer(field).is_some())
}

fn group_of(plan: &DesiredPodGroup, pod: &Pod) -> Value {
    let mut group = grouper::pod_group_body(plan);
    group["metadata"]["namespace"] = plan.namespace.as_str().into();
    if let Some(created) = pod.metadata.creation_timestamp.as_deref() {
        group["metadata"]["creationTimestamp"] = created.into();
    }
    group
}

/// Applies a merge patch that only adds; a null changes nothing.
fn merge(into: &mut Value, change: Value) {
    match (into, change) {
        (_, Value::Null) => {}
        (into @ Value::Object(_), Value::Object(change)) => {
            for (field, value) in change {
                merge(&mut into[field], value);
            }
        }
        (into @ Value::Null, Value::Object(change)) => {
            *into = Value::Object(Map::new());
            merge(into, Value::Object(change));
        }
        (into, value) => *into = value,
    }
}

#[cfg(test)]
mod tests {
    use kai_api::PriorityClasses;
    use kai_engine::model::Preemptibility;
    use kai_simulate::run::Options;
    use kai_simulate::scenario::{Scenario, load_manifests};

    use super::*;

    fn load(text: &str) -> Scenario {
        load_manifests(Path::new("m.yaml"), text, &Installed::new().unwrap()).unwrap()
    }

    fn told(scenario: &Scenario) -> Vec<String> {
        let outcome = kai_simulate::run::run(scenario.clone(), &Options::default());
        outcome.warnings.lines().collect()
    }

    /// Queue, minimum and number of pods of each gang.
    fn gangs(scenario: &Scenario) -> Vec<(&str, i32, usize)> {
        let pods = |name: &str| {
            let pods = scenario.objects.pods.iter();
            pods.filter(|pod| pod.pod_group() == Some(name)).count()
        };
        let groups = scenario.objects.pod_groups.iter();
        groups
            .map(|group| {
                let minimum = group.as_written().min_member.unwrap_or(1);
                (group.queue(), minimum, pods(group.metadata.plain_name()))
            })
            .collect()
    }

    #[test]
    fn a_bare_pod_gets_a_pod_group_and_the_default_queue() {
        let scenario = load("kind: Pod\nmetadata: { name: a }\nspec: { schedulerName: kai-scheduler }\n");
        assert_eq!(told(&scenario), Vec::<String>::new());
        assert_eq!(gangs(&scenario), [("default-queue", 1, 1)]);
        let rank = scenario.objects.pod_groups[0].rank(&PriorityClasses::installed());
        assert_eq!(rank, (50, Preemptibility::Preemptible));
        assert_eq!(scenario.objects.queues.len(), 2);
    }

    #[test]
    fn pod_groups_are_named_after_their_workloads() {
        let spec = "spec: { schedulerName: kai-scheduler }";
        let scenario = load(&format!(
            "kind: Pod\nmetadata: {{ name: x }}\n{spec}\n---\nkind: Job\nmetadata: {{ name: x }}\nspec: {{ template: {{ {spec} }} }}\n"
        ));
        let groups = scenario.objects.pod_groups.iter();
        let mut names: Vec<&str> = groups.map(|group| group.metadata.plain_name()).collect();
        names.sort();
        assert_eq!(names[0], "pg-x");
        assert!(
            names[1].starts_with("pg-x-made-up-"),
            "two workloads, two groups: {names:?}"
        );
    }

    #[test]
    fn workloads_are_grouped_as_in_a_cluster() {
        let spec = "template: { spec: { schedulerName: kai-scheduler, containers: [{ name: main }] } }";
        let scenario = load(&format!(
            "kind: Queue\nmetadata: {{ name: q }}\nspec: {{}}\n---\n\
             kind: Job\nmetadata: {{ name: train, labels: {{ kai.scheduler/queue: q }}, annotations: {{ kai.scheduler/batch-min-member: '3' }} }}\n\
             spec: {{ parallelism: 3, {spec} }}\n---\n\
             kind: Deployment\nmetadata: {{ name: web, labels: {{ kai.scheduler/queue: q }} }}\nspec: {{ replicas: 2, {spec} }}\n"
        ));
        assert_eq!(told(&scenario), Vec::<String>::new());
        // The job is one gang of three; the deployment is one of the class for inference, with a minimum of one pod.
        let mut found = gangs(&scenario);
        found.sort();
        assert_eq!(found, [("q", 1, 2), ("q", 3, 3)]);
        let classes = PriorityClasses::installed();
        let groups = scenario.objects.pod_groups.iter();
        assert_eq!(groups.filter(|group| group.rank(&classes).0 == 125).count(), 1);
    }

    /// Volcano's Job has the name of a kind of Kubernetes; the rule of the other is in the files.
    #[test]
    fn kinds_with_declared_rules_are_grouped_as_in_a_cluster() {
        let pod = |name: &str, api_version: &str, kind: &str, labels: &str| {
            format!(
                "---\nkind: Pod\nmetadata: {{ name: {name}, labels: {{ {labels} }}, ownerReferences: [{{ apiVersion: {api_version}, \
                 kind: {kind}, name: x, uid: u-{name} }}] }}\nspec: {{ schedulerName: kai-scheduler, containers: [{{ name: main }}] }}\n"
            )
        };
        let rule = "apiVersion: example.com/v1\\nkind: Farm\\nminimum: spec.size\\n";
        let scenario = load(&format!(
            "apiVersion: batch.volcano.sh/v1alpha1\nkind: Job\nmetadata: {{ name: x, uid: u-p }}\n\
             spec: {{ minAvailable: 3, tasks: [{{ name: a, replicas: 3 }}] }}\n{}---\n\
             apiVersion: example.com/v1\nkind: Farm\nmetadata: {{ name: x, uid: u-q }}\nspec: {{ size: 2 }}\n{}---\n\
             apiVersion: v1\nkind: ConfigMap\nmetadata: {{ name: kai-grouping-rules }}\ndata: {{ farm.yaml: \"{rule}\" }}\n",
            pod("p", "batch.volcano.sh/v1alpha1", "Job", "volcano.sh/task-spec: a"),
            pod("q", "example.com/v1", "Farm", ""),
        ));
        let groups = scenario.objects.pod_groups.iter();
        let mut minimums: Vec<_> = groups.map(|group| group.as_written().min_member).collect();
        minimums.sort();
        assert_eq!(minimums, [Some(2), Some(3)]);
    }

    #[test]
    fn a_deployment_may_be_semi_preemptible() {
        let scenario = load(
            "kind: Deployment\nmetadata: { name: web, annotations: { kai.scheduler/batch-min-member: '2' } }\n\
             spec: { replicas: 4, template: { metadata: { labels: { kai.scheduler/preemptibility: semi-preemptible } },\n\
             \x20 spec: { schedulerName: kai-scheduler, containers: [{ name: main }] } } }\n",
        );
        assert_eq!(told(&scenario), Vec::<String>::new());
        assert_eq!(gangs(&scenario), [("default-queue", 2, 4)]);
        let rank = scenario.objects.pod_groups[0].rank(&PriorityClasses::installed());
        assert_eq!(rank, (125, Preemptibility::SemiPreemptible));
    }

    #[test]
    fn a_new_pod_that_admission_refuses_takes_no_part() {
        let pod = |metadata: &str, rest: &str| {
            format!(
                "kind: Pod\nmetadata: {{ name: p, namespace: ns, {metadata} }}\nspec: {{ schedulerName: kai-scheduler{rest} }}\n"
            )
        };
        let refused = load(&pod("annotations: { gpu-fraction: '7' }", ""));
        assert_eq!((refused.objects.pods.len(), refused.refused_pods), (0, 1));
        let told = told(&refused);
        assert!(
            told[0].starts_with("m.yaml: Pod ns/p: metadata.annotations.gpu-fraction: ")
                && told[0].ends_with("(admission refuses the pod)"),
            "{told:?}"
        );
        // A pod that runs has the scheduler's labels, which no user may write.
        let label = "labels: { runai-gpu-group: g }, annotations: { gpu-fraction: '0.5' }";
        assert_eq!(load(&pod(label, "")).refused_pods, 1);
        assert_eq!(load(&pod(label, ", nodeName: n")).refused_pods, 0);
    }

    #[test]
    fn a_queue_that_does_not_exist_is_told_once_per_workload() {
        let scenario = load(
            "kind: Queue\nmetadata: { name: q }\nspec: {}\n---\n\
             kind: Deployment\nmetadata: { name: web, labels: { kai.scheduler/queue: gone } }\n\
             spec: { replicas: 3, template: { spec: { schedulerName: kai-scheduler } } }\n",
        );
        assert_eq!(
            told(&scenario),
            [
                "m.yaml: Deployment default/web: metadata.labels.kai.scheduler/queue: queue \"gone\" does not exist; create it or \
              correct the name (its pods wait)"
            ]
        );
    }

    #[test]
    fn pods_of_a_cluster_that_was_written_to_files_keep_their_groups() {
        let scenario = load(
            "kind: Queue\nmetadata: { name: q }\nspec: {}\n---\n\
             kind: PodGroup\nmetadata: { name: pg-train-u, namespace: ns }\nspec: { queue: q, minMember: 2 }\n---\n\
             kind: Job\nmetadata: { name: train, namespace: ns, uid: u }\nspec: { parallelism: 2, template: { spec: { schedulerName: kai-scheduler } } }\n---\n\
             kind: Pod\nmetadata: { name: train-x, namespace: ns, uid: v, annotations: { pod-group-name: pg-train-u }, \
             ownerReferences: [{ apiVersion: batch/v1, kind: Job, name: train, uid: u }] }\n\
             spec: { schedulerName: kai-scheduler, nodeName: n }\nstatus: { phase: Running }\n---\n\
             kind: Node\nmetadata: { name: n }\n",
        );
        // One pod is there and one is missing; both are in the group that is there.
        assert_eq!(gangs(&scenario), [("q", 2, 2)]);
    }

    /// As in a cluster, where the webhook and events warn.
    #[test]
    fn values_without_effect_are_warned_of_in_files_too() {
        let text = r#"
kind: Queue
metadata: { name: company }
spec: { resources: { gpu: { quota: 4 } } }
---
kind: Queue
metadata: { name: default-queue }
spec: { parentQueue: company, preemptMinRuntime: -5m, resources: { gpu: { quota: 8 } } }
---
kind: Pod
metadata:
  name: p
  labels: { priorityClassName: hgih, kai.scheduler/preemptibility: maybe, kai.scheduler/task-priority: first }
  annotations: { kai.scheduler/preemption-delay: soon, kai.scheduler/staleness-grace-period: later, kai.scheduler/topology: racks }
spec: { schedulerName: kai-scheduler }
---
kind: PodGroup
metadata: { name: g }
spec: { queue: default-queue, priorityClassName: lwo, topologyConstraint: { requiredTopologyLevel: rack } }
"#;
        let scenario = load(text);
        let mut fields: Vec<String> = told(&scenario)
            .iter()
            .map(|line| line.split(": ").skip(1).take(2).collect::<Vec<_>>().join(": "))
            .collect();
        fields.sort();
        assert_eq!(
            fields,
            [
                "Pod default/p: metadata.annotations.kai.scheduler/preemption-delay",
                "Pod default/p: metadata.annotations.kai.scheduler/staleness-grace-period",
                "Pod default/p: metadata.annotations.kai.scheduler/topology",
                "Pod default/p: metadata.labels.kai.scheduler/preemptibility",
                "Pod default/p: metadata.labels.kai.scheduler/task-priority",
                "Pod default/p: metadata.labels.priorityClassName",
                "PodGroup default/g: spec.priorityClassName",
                "PodGroup default/g: spec.topologyConstraint",
                "Queue default-queue: spec.preemptMinRuntime",
                "Queue default-queue: spec.resources",
            ]
        );
    }
}
