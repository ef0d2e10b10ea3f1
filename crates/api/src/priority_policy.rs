//! The priorities that pod groups may have. The webhook and the scheduler share these rules: the webhook rejects new pod groups, the scheduler
//! also checks pod groups that are older than a rule.
//!
//! The priority classes `system-*` are for the system's own namespaces. A queue may set a priority ceiling for its pod groups and those of
//! all its descendants.

use std::collections::BTreeSet;

use kai_engine::model::GangSpec;
use kai_engine::reasons::{PriorityRefusal, Refusal};

use crate::keys;
use crate::pod_group::PodGroup;
use crate::priority_class::PriorityClasses;

/// The prefix of Kubernetes' own priority classes. The API server rejects other classes with this prefix.
const SYSTEM_CLASS_PREFIX: &str = "system-";
/// Namespaces whose pod groups may name a system class.
const SYSTEM_NAMESPACES: [&str; 3] = ["kube-system", keys::SYSTEM_NAMESPACE, keys::RESERVATION];

/// The highest priority in a queue, from the queue's annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorityCeiling {
    /// The highest allowed priority.
    At(i32),
    /// The annotation is not a whole number.
    Unreadable(String),
}

impl PriorityCeiling {
    /// Parses the annotation's value.
    pub fn parse(text: &str) -> PriorityCeiling {
        match text.trim().parse() {
            Ok(max) => PriorityCeiling::At(max),
            Err(_) => PriorityCeiling::Unreadable(crate::quantity::shorten(text)),
        }
    }
}

/// The parts of a queue that the rules need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QueueCeiling {
    /// The parent queue.
    pub parent: Option<Box<str>>,
    /// Its own ceiling.
    pub ceiling: Option<PriorityCeiling>,
}

/// The parts of a pod group that the rules need.
#[derive(Clone, Copy, Debug)]
pub struct PriorityClaim<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its queue.
    pub queue: &'a str,
    /// Its priority class.
    pub class: Option<&'a str>,
}

impl PriorityClaim<'_> {
    /// Why the priority is refused, if it is. `queue` looks up a queue by name.
    pub fn refusal(
        &self,
        classes: &PriorityClasses,
        queue: impl Fn(&str) -> Option<QueueCeiling>,
    ) -> Option<PriorityRefusal> {
        if let Some(refusal) = self.system_class() {
            return Some(refusal);
        }
        let (queue, ceiling) = lowest_ceiling(self.queue, queue)?;
        let priority = classes.priority(self.class);
        match ceiling {
            PriorityCeiling::Unreadable(text) => Some(PriorityRefusal::UnreadableCeiling { queue, text }),
            PriorityCeiling::At(max) if priority > max => Some(PriorityRefusal::AboveCeiling {
                class: self.class.map(str::to_owned),
                priority,
                queue,
                max,
            }),
            PriorityCeiling::At(_) => None,
        }
    }

    /// The refusal of a system class. It does not depend on queues.
    pub fn system_class(&self) -> Option<PriorityRefusal> {
        let class = self.class.filter(|class| class.starts_with(SYSTEM_CLASS_PREFIX))?;
        if SYSTEM_NAMESPACES.contains(&self.namespace) {
            return None;
        }
        Some(PriorityRefusal::SystemClass {
            class: class.to_owned(),
            namespace: self.namespace.to_owned(),
        })
    }
}

/// The priority of running pods of a refused pod group: the highest that the rules allow.
fn granted(refusal: &PriorityRefusal, classes: &PriorityClasses) -> i32 {
    match refusal {
        PriorityRefusal::AboveCeiling { max, .. } => *max,
        PriorityRefusal::SystemClass { .. } | PriorityRefusal::UnreadableCeiling { .. } => classes.priority(None),
    }
}

impl PodGroup {
    pub(crate) fn priority_claim(&self) -> PriorityClaim<'_> {
        PriorityClaim {
            namespace: self.metadata.namespace(),
            queue: self.queue(),
            class: self.priority_class(),
        }
    }

    /// Limits the gang's priority to the highest allowed one. A gang whose priority was above that is refused.
    pub fn bound_priority(
        &self,
        gang: &mut GangSpec,
        classes: &PriorityClasses,
        queue: impl Fn(&str) -> Option<QueueCeiling>,
    ) {
        if let Some(refusal) = self.priority_claim().refusal(classes, queue) {
            gang.priority = granted(&refusal, classes);
            gang.preemptibility = self.preemptibility_at(gang.priority);
            gang.refused = Some(Refusal::PriorityForbidden {
                gang: gang.key.clone(),
                refusal,
            });
        }
    }
}

/// The lowest ceiling from the queue up to its root, and the queue that has it. An invalid ceiling is lower than all others.
fn lowest_ceiling(queue: &str, look_up: impl Fn(&str) -> Option<QueueCeiling>) -> Option<(String, PriorityCeiling)> {
    let mut lowest: Option<(String, i32)> = None;
    let mut seen = BTreeSet::new();
    let mut next = Some(Box::<str>::from(queue));
    while let Some(name) = next {
        // Queues may form a cycle while a user rearranges them.
        if !seen.insert(name.clone()) {
            break;
        }
        let Some(found) = look_up(&name) else { break };
        match found.ceiling {
            Some(PriorityCeiling::At(max)) if lowest.as_ref().is_none_or(|(_, lowest)| max < *lowest) => {
                lowest = Some((name.into(), max));
            }
            Some(unreadable @ PriorityCeiling::Unreadable(_)) => return Some((name.into(), unreadable)),
            Some(PriorityCeiling::At(_)) | None => {}
        }
        next = found.parent;
    }
    lowest.map(|(name, max)| (name, PriorityCeiling::At(max)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(namespace: &str, queue: &str, class: Option<&str>) -> String {
        let queues = |name: &str| {
            let (parent, ceiling) = match name {
                "root" => (None, Some("100")),
                "team" => (Some("root"), Some("75")),
                "loose" => (Some("team"), Some("1000")),
                "open" => (None, None),
                "round" => (Some("trip"), None),
                "trip" => (Some("round"), Some("60")),
                "odd" => (Some("root"), Some("high")),
                "below-odd" => (Some("odd"), Some("10")),
                _ => return None,
            };
            Some(QueueCeiling {
                parent: parent.map(Into::into),
                ceiling: ceiling.map(PriorityCeiling::parse),
            })
        };
        let claim = PriorityClaim {
            namespace,
            queue,
            class,
        };
        let refusal = claim.refusal(&PriorityClasses::installed(), queues);
        refusal.map(|refusal| refusal.to_string()).unwrap_or_default()
    }

    #[test]
    fn system_classes_are_for_system_namespaces() {
        for class in ["system-node-critical", "system-cluster-critical", "system-anything"] {
            let text = refusal("team-a", "open", Some(class));
            assert_eq!(
                text,
                format!(
                    "priority class {class} is for the system's own namespaces, and team-a is none of them; name another priority \
                     class, for instance train"
                )
            );
            for namespace in SYSTEM_NAMESPACES {
                assert_eq!(refusal(namespace, "open", Some(class)), "");
            }
        }
        assert_eq!(refusal("team-a", "open", Some("systematic")), "");
    }

    #[test]
    fn the_lowest_ceiling_on_the_path_counts() {
        assert_eq!(refusal("a", "root", Some("build")), "");
        assert_eq!(refusal("a", "team", Some("build-preemptible")), "");
        assert_eq!(refusal("a", "missing", Some("inference")), "");
        for queue in ["team", "loose"] {
            assert_eq!(
                refusal("a", queue, Some("build")),
                "priority class build has priority 100, and queue team allows 75 at most; name a class of at most 75, or ask an \
                 administrator to raise the queue's annotation kai.scheduler/max-priority"
            );
        }
        assert!(refusal("a", "round", Some("build")).contains("queue trip allows 60 at most"));
    }

    #[test]
    fn the_default_priority_is_bounded_too() {
        assert_eq!(refusal("a", "round", None), "");
        assert!(refusal("a", "below-odd", None).contains("\"high\" is not a whole number"));
    }

    #[test]
    fn a_refused_group_keeps_a_priority_that_it_could_have_had() {
        let above = PriorityRefusal::AboveCeiling {
            class: None,
            priority: 9,
            queue: "q".to_owned(),
            max: 3,
        };
        assert_eq!(granted(&above, &PriorityClasses::installed()), 3);
        let system = PriorityRefusal::SystemClass {
            class: "system-x".to_owned(),
            namespace: "a".to_owned(),
        };
        assert_eq!(granted(&system, &PriorityClasses::installed()), 50);
    }

    /// The engine's texts name keys that it does not know.
    #[test]
    fn texts_name_the_keys_of_the_api() {
        assert!(refusal("a", "open", Some("system-x")).ends_with(keys::DEFAULT_PRIORITY_CLASS));
        assert!(refusal("a", "team", Some("build")).ends_with(keys::QUEUE_MAX_PRIORITY));
        assert!(refusal("a", "odd", None).contains(keys::QUEUE_MAX_PRIORITY));
        let forbidden = Refusal::QueueForbidden {
            queue: "q".to_owned(),
            namespace: "a".to_owned(),
        };
        assert!(forbidden.to_string().ends_with(keys::QUEUE_ALLOWED_NAMESPACES));
    }
}
