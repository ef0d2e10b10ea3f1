//! The structured reasons in a pod group's condition: KAI's reason codes, with the numbers of the queue whose limit or quota is exceeded.

use kai_api::QuantityText;
use kai_api::crd::{QueueDetails, ReasonDetails, ResourceList, UnschedulableReason};
use kai_engine::reasons::{QueueBound, Reason, Refusal, Resource, domain_text};

/// Reason code of a topology domain that is too small.
const DOMAIN_TOO_SMALL: &str = "Not enough resources for the workload";
/// Heading of a message with several reasons.
const SEVERAL: &str = "Unable to schedule podgroup";
/// Domains that a condition lists.
const DOMAINS_MAX: usize = 16;

/// The entries of `reasons[]`. `text` is the reason's text.
pub(super) fn reasons(reason: &Reason, text: &str) -> Vec<UnschedulableReason> {
    let entry = |code: &str, details| UnschedulableReason {
        reason: code.to_owned(),
        message: text.to_owned(),
        details,
    };
    match reason {
        Reason::OverLimit(bound) => vec![entry(UnschedulableReason::OVER_LIMIT, Some(over_limit(bound)))],
        Reason::OverQuota(bound) | Reason::CoreOverQuota(bound) => {
            vec![entry(
                UnschedulableReason::NON_PREEMPTIBLE_OVER_QUOTA,
                Some(over_quota(bound)),
            )]
        }
        Reason::QueueMissing(_) | Reason::QueueDisconnected { .. } | Reason::QueueNotLeaf(_) => {
            vec![entry(UnschedulableReason::QUEUE_DOES_NOT_EXIST, None)]
        }
        Reason::Refused(refusal) => vec![entry(refusal_code(refusal), None)],
        Reason::PreemptionDelay { .. } => vec![entry(UnschedulableReason::PREEMPTION_DELAY_NOT_ELAPSED, None)],
        Reason::NoDomain { domains, required, .. } if !domains.is_empty() => {
            let of = |domain: &(String, u32)| UnschedulableReason {
                reason: DOMAIN_TOO_SMALL.to_owned(),
                message: domain_text(domain, *required),
                details: None,
            };
            domains.iter().take(DOMAINS_MAX).map(of).collect()
        }
        Reason::GangMissing(_)
        | Reason::UnknownSubGroup(_)
        | Reason::SubGroupsExceeded(_)
        | Reason::Gated
        | Reason::AffinityTermsExceeded(_)
        | Reason::GangNotReady { .. }
        | Reason::NoNode(_)
        | Reason::GangShort { .. }
        | Reason::NoDomain { .. }
        | Reason::TopologyUnknown { .. }
        | Reason::WaitsForRelease { .. }
        | Reason::Evicted(_)
        | Reason::CutShort
        | Reason::NotTried => vec![entry(UnschedulableReason::POD_SCHEDULING_ERRORS, None)],
    }
}

/// KAI has no code for an invalid object; its code for pods without a node covers all refusals but that of a queue.
fn refusal_code(refusal: &Refusal) -> &'static str {
    match refusal {
        Refusal::QueueForbidden { .. } => UnschedulableReason::QUEUE_DOES_NOT_EXIST,
        Refusal::InvalidField { .. }
        | Refusal::AffinityTermsExceeded(_)
        | Refusal::VolumeClaimMissing { .. }
        | Refusal::VolumeClaimLost { .. }
        | Refusal::VolumeClaimUnbound { .. }
        | Refusal::VolumeClaimDeleted { .. }
        | Refusal::EphemeralClaimMissing { .. }
        | Refusal::EphemeralClaimForeign { .. }
        | Refusal::StorageClassMissing { .. }
        | Refusal::UnboundClaimsExceeded { .. }
        | Refusal::VolumeRequestsExceeded { .. }
        | Refusal::VolumeMissing { .. }
        | Refusal::VolumeInvalid(_)
        | Refusal::VolumeTermsExceeded { .. }
        | Refusal::ConfigMapsMissing { .. }
        | Refusal::BindFailed { .. }
        | Refusal::AsTheConditionSays(_)
        | Refusal::GpuSharingDisabled
        | Refusal::PriorityForbidden { .. } => UnschedulableReason::POD_SCHEDULING_ERRORS,
    }
}

/// The condition's message: a heading and the messages of all reasons.
pub(super) fn message(reasons: &[UnschedulableReason]) -> String {
    let heading = match reasons {
        [one] => one.reason.as_str(),
        _ => SEVERAL,
    };
    let messages: Vec<&str> = reasons.iter().map(|reason| reason.message.as_str()).collect();
    format!("{heading}: {}", messages.join(".\n"))
}

fn over_limit(bound: &QueueBound) -> ReasonDetails {
    details(QueueDetails {
        name: bound.queue.clone(),
        queue_resource_limits: amount(bound.resource, bound.bound),
        queue_allocated_resources: amount(bound.resource, bound.used),
        pod_group_requested_resources: amount(bound.resource, bound.requested),
        ..QueueDetails::default()
    })
}

fn over_quota(bound: &QueueBound) -> ReasonDetails {
    details(QueueDetails {
        name: bound.queue.clone(),
        queue_deserved_resources: amount(bound.resource, bound.bound),
        queue_allocated_non_preemptible_resources: amount(bound.resource, bound.used),
        pod_group_requested_non_preemptible_resources: amount(bound.resource, bound.requested),
        ..QueueDetails::default()
    })
}

fn details(queue: QueueDetails) -> ReasonDetails {
    ReasonDetails {
        queue_details: Some(queue),
    }
}

/// In the units of the API.
fn amount(resource: Resource, amount: i64) -> ResourceList {
    let (name, text) = match resource {
        Resource::Cpu => (kai_api::keys::RESOURCE_CPU, QuantityText::of_milli(amount.into())),
        Resource::Memory => (kai_api::keys::RESOURCE_MEMORY, amount.to_string().into()),
        Resource::Gpu => {
            let milli = (amount + 500).div_euclid(1_000);
            (kai_api::keys::RESOURCE_GPU, QuantityText::of_milli(milli.into()))
        }
    };
    ResourceList::from([(name.to_owned(), text)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_in_the_way_is_named_with_its_numbers() {
        let bound = QueueBound {
            queue: "team".to_owned(),
            resource: Resource::Gpu,
            bound: 2_000_000,
            used: 1_500_000,
            requested: 1_000_000,
        };
        let entries = reasons(&Reason::OverLimit(bound), "too much");
        assert_eq!(message(&entries), "OverLimit: too much");
        let json = serde_json::to_value(&entries[0].details).unwrap();
        let expect = serde_json::json!({ "queueDetails": {
            "name": "team",
            "queueResourceLimits": { "nvidia.com/gpu": "2" },
            "queueAllocatedResources": { "nvidia.com/gpu": "1500m" },
            "podGroupRequestedResources": { "nvidia.com/gpu": "1" },
        }});
        assert_eq!(json, expect);
    }

    #[test]
    fn each_domain_has_its_entry() {
        let reason = Reason::NoDomain {
            topology: "t".to_owned(),
            level: "rack".to_owned(),
            domains: vec![("r1".to_owned(), 3), ("r2".to_owned(), 1)],
            required: 4,
        };
        let entries = reasons(&reason, "no rack fits");
        assert_eq!(
            message(&entries),
            "Unable to schedule podgroup: r1: room for 3 of 4 pods.\nr2: room for 1 of 4 pods"
        );
    }
}
