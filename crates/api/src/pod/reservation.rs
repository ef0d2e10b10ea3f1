//! Which pods are reservation pods.

use super::Pod;
use crate::keys;

/// How an installation recognizes its reservation pods: by their namespace and their label `app`. All roles of an installation have to agree.
///
/// KAI's scheduler looks at the label only, and KAI's binder at the namespace only. Neither suffices: a tenant can write labels, and a
/// reservation pod is not charged for its GPU; another pod in the reservation namespace holds no GPU for others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservationPods {
    /// Their namespace.
    pub namespace: String,
    /// The value of their label `app`.
    pub app_label: String,
}

impl Default for ReservationPods {
    fn default() -> ReservationPods {
        ReservationPods {
            namespace: keys::RESERVATION.to_owned(),
            app_label: keys::RESERVATION.to_owned(),
        }
    }
}

impl ReservationPods {
    /// Whether the pod is a reservation pod.
    pub fn contains(&self, pod: &Pod) -> bool {
        pod.metadata.namespace() == self.namespace
            && pod.metadata.labels.text(keys::APP) == Some(self.app_label.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_pod_has_both_the_namespace_and_the_label() {
        let check = |reservations: &ReservationPods, namespace: &str, app: &str, expect: bool| {
            let text = format!(r#"{{"metadata":{{"name":"p","namespace":"{namespace}","labels":{{"app":"{app}"}}}}}}"#);
            let pod: Pod = serde_json::from_str(&text).unwrap();
            assert_eq!(reservations.contains(&pod), expect, "{text}");
        };
        let preset = ReservationPods::default();
        check(&preset, "kai-resource-reservation", "kai-resource-reservation", true);
        check(&preset, "tenant", "kai-resource-reservation", false);
        check(&preset, "kai-resource-reservation", "debug", false);
        let custom = ReservationPods {
            namespace: "gpus".to_owned(),
            app_label: "holder".to_owned(),
        };
        check(&custom, "gpus", "holder", true);
        check(&custom, "holder", "gpus", false);
        check(&custom, "kai-resource-reservation", "kai-resource-reservation", false);
        check(&custom, "gpus", "kai-resource-reservation", false);
    }
}
