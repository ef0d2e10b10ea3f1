//! Checks the scheduling labels and annotations of pods and their owners, and the priority class of pods, for values without effect. Such a value is ignored, as in KAI; the
//! webhook, an event of the pod grouper or a warning of `kai simulate` reports it.

use crate::crd::Preemptibility;
use crate::duration::parse_duration;
use crate::error::FieldError;
use crate::gpu_share_annotations::GpuShareAnnotations;
use crate::pod::Pod;
use crate::{Error, Problem, keys};
use kai_engine::reasons::GpuShareError;

pub(crate) const IGNORED: &str = "the value is ignored";
/// The effect of a topology without a level. The engine looks up the topology all the same.
pub(crate) const PLACED_ANYWHERE: &str = "the pods are placed anywhere, and wait if the topology does not exist";
/// Unknown annotations for containers that are reported of one pod: each becomes a warning of the API server.
const UNKNOWN_KEYS_MAX: usize = 4;
/// The effect of an unknown priority class in the spec of a pod. A pod that exists is older than the deletion of its class.
const CLASS_OF_SPEC: &str = "the value is ignored; an API server refuses new pods with it";

/// The values of a workload's labels and annotations that have no effect. `has_class` says whether a priority class exists.
pub fn ignored_values<'a>(
    object: &str,
    label: impl Fn(&str) -> Option<&'a str>,
    annotation: impl Fn(&str) -> Option<&'a str>,
    has_class: impl Fn(&str) -> bool,
) -> Vec<Problem> {
    let given = |text: Option<&'a str>| text.filter(|text| !text.is_empty());
    let (label, annotation) = (|key: &str| given(label(key)), |key: &str| given(annotation(key)));
    let mut problems = Vec::new();
    let mut add = |error: FieldError, effect| problems.push(error.of(object.to_owned(), effect));
    if let Some(class) = label(keys::PRIORITY_CLASS_NAME).filter(|class| !has_class(class)) {
        let error = Error::NoPriorityClass(class.to_owned());
        add(in_labels(keys::PRIORITY_CLASS_NAME, error), IGNORED);
    }
    if let Some(text) = label(keys::PREEMPTIBILITY)
        && let Some(error) = wrong_preemptibility(text)
    {
        add(in_labels(keys::PREEMPTIBILITY, error), IGNORED);
    }
    for (key, wrong) in [
        (keys::PREEMPTION_DELAY, wrong_delay as fn(&str) -> Option<Error>),
        (keys::STALENESS_GRACE_PERIOD, |text| parse_duration(text).err()),
    ] {
        if let Some(error) = annotation(key).and_then(wrong) {
            add(in_annotations(key, error), IGNORED);
        }
    }
    let levels = [keys::TOPOLOGY_REQUIRED, keys::TOPOLOGY_PREFERRED];
    let level = levels.into_iter().find(|key| annotation(key).is_some());
    match (annotation(keys::TOPOLOGY), level) {
        (Some(_), None) => add(
            in_annotations(keys::TOPOLOGY, Error::TopologyWithoutLevel),
            PLACED_ANYWHERE,
        ),
        (None, Some(level)) => add(in_annotations(level, Error::LevelWithoutTopology), IGNORED),
        (Some(_), Some(_)) | (None, None) => {}
    }
    problems
}

impl Pod {
    /// The values of the pod's labels and annotations that have no effect, and an unknown priority class in its spec.
    pub fn ignored_values(&self, has_class: impl Fn(&str) -> bool) -> Vec<Problem> {
        let (labels, annotations) = (&self.metadata.labels, &self.metadata.annotations);
        let mut problems = ignored_values(
            &self.named(),
            |key| labels.text(key),
            |key| annotations.text(key),
            &has_class,
        );
        if let Some(class) = self.priority_class_name().filter(|class| !has_class(class)) {
            let error = Error::NoPriorityClass(class.to_owned());
            problems.push(FieldError::new("spec.priorityClassName", error).of(self.named(), CLASS_OF_SPEC));
        }
        problems
    }

    /// The problem of an invalid task priority. [`Pod::read`] reports it too.
    pub fn ignored_task_priority(&self) -> Option<Problem> {
        let text = self.metadata.labels.text(keys::TASK_PRIORITY)?;
        let error = text
            .parse::<i64>()
            .err()
            .map(|_| Error::NotAnInteger(text.to_owned()))?;
        Some(in_labels(keys::TASK_PRIORITY, error).of(self.named(), IGNORED))
    }

    /// Annotations of a GPU share that have no effect: misspelt keys for a container, and a compute mode without a share.
    pub fn ignored_share_annotations(&self) -> Vec<Problem> {
        let annotations = &self.metadata.annotations;
        let unknown = annotations
            .iter()
            .map(|(key, _)| key)
            .filter(|key| keys::is_unknown_of_container(key));
        let unknown = unknown
            .take(UNKNOWN_KEYS_MAX)
            .map(|key| (key, GpuShareError::UnknownKey));
        let idle = GpuShareAnnotations::of(annotations).idle_mode();
        unknown
            .chain(idle.map(|key| (key, GpuShareError::WithoutShare)))
            .map(|(key, error)| in_annotations(key, Error::GpuShare(error)).of(self.named(), IGNORED))
            .collect()
    }

    fn named(&self) -> String {
        format!("Pod {}", self.metadata.qualified_name())
    }
}

/// The error of an unknown preemptibility.
pub(crate) fn wrong_preemptibility(text: &str) -> Option<Error> {
    Preemptibility::parse(text).is_none().then(|| Error::Unknown {
        text: text.to_owned(),
        known: "preemptible, semi-preemptible and non-preemptible",
    })
}

/// The error of an invalid or negative duration.
pub(crate) fn wrong_delay(text: &str) -> Option<Error> {
    match parse_duration(text) {
        Ok(delay) if delay.0 < 0 => Some(Error::NegativeDuration(text.to_owned())),
        Ok(_) => None,
        Err(error) => Some(error),
    }
}

fn in_labels(key: &str, error: Error) -> FieldError {
    FieldError::new(format!("metadata.labels.{key}"), error)
}

fn in_annotations(key: &str, error: Error) -> FieldError {
    FieldError::new(format!("metadata.annotations.{key}"), error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PriorityClasses;

    fn told(labels: &str, annotations: &str) -> Vec<String> {
        let text =
            format!(r#"{{"metadata":{{"name":"p","namespace":"a","labels":{labels},"annotations":{annotations}}}}}"#);
        let pod: Pod = serde_json::from_str(&text).unwrap();
        let problems = pod.ignored_values(|class| class == "train").into_iter();
        problems
            .chain(pod.ignored_task_priority())
            .chain(pod.ignored_share_annotations())
            .map(|problem| problem.to_string())
            .collect()
    }

    #[test]
    fn every_value_without_effect_is_told() {
        for (labels, annotations, expect) in [
            (
                r#"{"priorityClassName":"hgih"}"#,
                "{}",
                "Pod a/p: metadata.labels.priorityClassName: there is no priority class \"hgih\"; create it, or name one that exists \
                 (the value is ignored)",
            ),
            (
                r#"{"kai.scheduler/preemptibility":"maybe"}"#,
                "{}",
                "Pod a/p: metadata.labels.kai.scheduler/preemptibility: \"maybe\" is unknown; known are preemptible, \
                 semi-preemptible and non-preemptible (the value is ignored)",
            ),
            (
                r#"{"kai.scheduler/task-priority":"first"}"#,
                "{}",
                "Pod a/p: metadata.labels.kai.scheduler/task-priority: \"first\" is not a whole number; write one, as in 3 (the value \
                 is ignored)",
            ),
            (
                "{}",
                r#"{"kai.scheduler/preemption-delay":"soon"}"#,
                "Pod a/p: metadata.annotations.kai.scheduler/preemption-delay: \"soon\" is not a duration; write it as in 90s, 5m or \
                 1h30m (the value is ignored)",
            ),
            (
                "{}",
                r#"{"kai.scheduler/preemption-delay":"-5m"}"#,
                "Pod a/p: metadata.annotations.kai.scheduler/preemption-delay: \"-5m\" is negative; write a duration of zero or more, \
                 as in 5m (the value is ignored)",
            ),
            (
                "{}",
                r#"{"kai.scheduler/staleness-grace-period":"later"}"#,
                "Pod a/p: metadata.annotations.kai.scheduler/staleness-grace-period: \"later\" is not a duration; write it as in 90s, \
                 5m or 1h30m (the value is ignored)",
            ),
            (
                "{}",
                r#"{"kai.scheduler/topology":"racks"}"#,
                "Pod a/p: metadata.annotations.kai.scheduler/topology: a topology is named without a level; name a required or a \
                 preferred level beside it (the pods are placed anywhere, and wait if the topology does not exist)",
            ),
            (
                "{}",
                r#"{"kai.scheduler/topology-required-placement":"rack"}"#,
                "Pod a/p: metadata.annotations.kai.scheduler/topology-required-placement: a level is named without a topology; name \
                 the topology beside it (the value is ignored)",
            ),
            (
                "{}",
                r#"{"gpu-fraction":"0.5","nvidia.com/container.main.gpu-memory.limits":"8Gi"}"#,
                "Pod a/p: metadata.annotations.nvidia.com/container.main.gpu-memory.limits: nothing reads this key; known for CONTAINER \
                 are nvidia.com/container.CONTAINER.gpu-memory.request, .gpu-memory.limit and .gpu-compute.mode, and \
                 kai.scheduler/container.CONTAINER.gpu-memory.portion.limit (the value is ignored)",
            ),
            (
                "{}",
                r#"{"nvidia.com/container.main.gpu-compute.mode":"sm-sharing"}"#,
                "Pod a/p: metadata.annotations.nvidia.com/container.main.gpu-compute.mode: it is for pods that share a GPU; remove it, or \
                 add gpu-fraction or gpu-memory (the value is ignored)",
            ),
        ] {
            assert_eq!(told(labels, annotations), [expect]);
        }
    }

    #[test]
    fn a_few_misspelt_keys_are_told() {
        let known = r#"{"nvidia.com/container.main.gpu-memory.request":"4Gi","nvidia.com/container.main.gpu-memory.limit":"8Gi",
            "nvidia.com/container.main.gpu-compute.mode":"time-slicing","nvidia.com/container.main.gpus.devices":"GPU-1",
            "nvidia.com/gpu.deploy.driver":"x","kai.scheduler/container":"y"}"#;
        assert_eq!(told("{}", known), [""; 0]);
        let unknown: Vec<String> = (0..9)
            .map(|number| format!(r#""kai.scheduler/container.c{number}.gpu":"1""#))
            .collect();
        let all = told("{}", &format!("{{{}}}", unknown.join(",")));
        assert_eq!(all.len(), UNKNOWN_KEYS_MAX);
    }

    #[test]
    fn an_unknown_priority_class_in_the_spec_is_told() {
        let told = |labels: &str, class: &str| -> Vec<String> {
            let text = format!(
                r#"{{"metadata":{{"name":"p","namespace":"a","labels":{labels}}},"spec":{{"priorityClassName":"{class}"}}}}"#
            );
            let pod: Pod = serde_json::from_str(&text).unwrap();
            let problems = pod.ignored_values(|class| PriorityClasses::installed().contains(class));
            problems.iter().map(Problem::to_string).collect()
        };
        for labels in ["{}", r#"{"priorityClassName":"train"}"#] {
            assert_eq!(
                told(labels, "hgih"),
                [
                    "Pod a/p: spec.priorityClassName: there is no priority class \"hgih\"; create it, or name one that exists (the value \
                 is ignored; an API server refuses new pods with it)"
                ]
            );
        }
        for known in ["train", "", "system-node-critical", "system-cluster-critical"] {
            assert_eq!(told("{}", known), [""; 0]);
        }
    }

    #[test]
    fn values_that_mean_something_are_not() {
        let labels = r#"{"priorityClassName":"train","kai.scheduler/preemptibility":"preemptible","kai.scheduler/task-priority":"-3"}"#;
        let annotations = r#"{"kai.scheduler/preemption-delay":"5m","kai.scheduler/staleness-grace-period":"-1s",
            "kai.scheduler/topology":"racks","kai.scheduler/topology-preferred-placement":"rack"}"#;
        assert_eq!(told(labels, annotations), [""; 0]);
        assert_eq!(
            told(r#"{"priorityClassName":""}"#, r#"{"kai.scheduler/topology":""}"#),
            [""; 0]
        );
    }
}
