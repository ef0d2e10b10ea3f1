//! How nodes hold containers to their part of a GPU, and what pods were promised. The view says what is promised: whether the driver has the
//! limit is in the pod's events and in the node agent's metrics, which the scheduler does not read.

use kai_api::{EnforcementTier, GpuLimits, keys};
use kai_engine::model::Labels;
use kai_engine::report::PodGpus as EngineGpus;
use kai_mirror::ClusterMirror;
use serde::{Deserialize, Deserializer, Serialize};

use crate::Text;
use crate::interner::Interner;

/// The value of the pod's annotation that makes it wait for a node that limits GPU memory.
const REQUIRED: &str = "required";

/// What a node enforces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct NodeEnforcement {
    /// The tier that the node agent decided; `None` = unknown: the node has no agent, or one of another version.
    #[serde(deserialize_with = "known_tier")]
    pub tier: Option<EnforcementTier>,
    /// By what containers are held, and why not by more, in the words of the node agent.
    pub message: Option<Text>,
}

impl NodeEnforcement {
    /// The tier and what it means, for people.
    pub fn words(&self) -> String {
        let Some(tier) = self.tier else {
            return "unknown".to_owned();
        };
        let message = self.message.as_deref().unwrap_or(match tier {
            EnforcementTier::Driver => "the driver limits the GPU memory of each container",
            EnforcementTier::Mps => "MPS limits the multiprocessors of each container, and the memory of each process",
            EnforcementTier::Watch => "nothing is limited; containers above their share are reported",
            EnforcementTier::None => "nothing is limited",
        });
        let tier = format!("tier {}", tier.name());
        match message.contains(&tier) {
            true => message.to_owned(),
            false => format!("{tier}: {message}"),
        }
    }
}

/// What a pod with a GPU share asks for and was promised.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodLimit {
    /// Whether the pod waits for a node that limits GPU memory.
    pub required: bool,
    /// The tier of its node when it was bound; `None` = not bound, or unknown.
    #[serde(deserialize_with = "known_tier")]
    pub tier: Option<EnforcementTier>,
    /// The most MiB that its container may allocate on each of its GPUs; `None` = not bound, or not promised.
    pub memory_mib: Option<u64>,
}

impl PodLimit {
    /// What the pod was promised and by what it is held, for people; `None` if there is nothing to say: a pod without a node that takes any.
    pub fn words(&self) -> Option<String> {
        let by = match self.tier {
            Some(EnforcementTier::Driver) => "held by the driver (tier driver)",
            Some(EnforcementTier::Mps) => "each process is held by MPS (tier mps)",
            Some(EnforcementTier::Watch) => "more is reported, not prevented (tier watch)",
            Some(EnforcementTier::None) => "nothing holds the pod to it (tier none)",
            None => "whether something holds the pod to it is unknown",
        };
        match (self.memory_mib, self.tier, self.required) {
            (Some(mib), _, _) => Some(format!("{} MiB of each GPU; {by}", grouped(mib))),
            (None, None, true) => Some("required: only nodes that limit GPU memory will do".to_owned()),
            (None, None, false) => None,
            (None, Some(tier), _) => Some(format!("unknown (tier {})", tier.name())),
        }
    }
}

/// A number with commas between thousands.
fn grouped(amount: u64) -> String {
    let digits = amount.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// The tier; `None` for one of a later version.
fn known_tier<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<EnforcementTier>, D::Error> {
    let name = Option::<String>::deserialize(deserializer)?;
    Ok(name.and_then(|name| EnforcementTier::from_name(&name)))
}

/// What the node's label and condition say.
pub(crate) fn of_node(name: &str, labels: &Labels, mirror: &ClusterMirror, texts: &mut Interner) -> NodeEnforcement {
    let mut conditions = mirror.node_conditions(name).iter();
    let condition = conditions.find(|condition| condition.kind() == keys::NODE_GPU_LIMITS);
    NodeEnforcement {
        tier: labels
            .get(keys::GPU_ENFORCEMENT)
            .and_then(|name| EnforcementTier::from_name(name)),
        message: condition
            .and_then(|condition| condition.message.as_deref())
            .map(|message| texts.text(message)),
    }
}

/// What the pod's annotations say; `None` for a pod without a GPU share, and if the mirror does not have the pod.
pub(crate) fn of_pod(gpus: &EngineGpus<'_>, metadata: Option<&kai_api::Metadata>) -> Option<PodLimit> {
    match gpus {
        EngineGpus::Share { .. } => {}
        EngineGpus::None | EngineGpus::Whole { .. } | EngineGpus::Mig(_) => return None,
    }
    let metadata = metadata?;
    let annotations = &metadata.annotations;
    Some(PodLimit {
        required: annotations.text(keys::GPU_ENFORCEMENT) == Some(REQUIRED),
        tier: annotations
            .text(keys::GPU_ENFORCEMENT_TIER)
            .and_then(EnforcementTier::from_name),
        memory_mib: promised_mib(metadata),
    })
}

/// The limit that the binder promised to the pod, in MiB of each GPU.
pub(crate) fn promised_mib(metadata: &kai_api::Metadata) -> Option<u64> {
    let limits = GpuLimits::parse(metadata.annotations.text(keys::GPU_LIMITS)?).ok()?;
    Some(limits.memory_mib)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tier_of_a_later_version_is_unknown() {
        let read = |json: &str| serde_json::from_str::<NodeEnforcement>(json).unwrap().tier;
        assert_eq!(
            read(r#"{"tier":"driver","message":null}"#),
            Some(EnforcementTier::Driver)
        );
        assert_eq!(read(r#"{"tier":"quantum"}"#), None);
        assert_eq!(read("{}"), None);
    }

    #[test]
    fn a_node_says_its_tier_and_why_not_more() {
        let words = |tier, message: Option<&str>| {
            let message = message.map(Text::from);
            NodeEnforcement { tier, message }.words()
        };
        assert_eq!(words(None, Some("stale")), "unknown");
        assert_eq!(
            words(Some(EnforcementTier::None), None),
            "tier none: nothing is limited"
        );
        let why = "the driver is 570.133.20; limits of GPU memory need 615";
        assert_eq!(
            words(Some(EnforcementTier::Watch), Some(why)),
            format!("tier watch: {why}")
        );
        let of_agent = "1 container(s) are not held: team/llm: gone. tier driver: the driver holds the others";
        assert_eq!(words(Some(EnforcementTier::Driver), Some(of_agent)), of_agent);
    }

    #[test]
    fn a_promise_is_not_called_held_where_nothing_holds_it() {
        let words = |memory_mib, tier, required| {
            PodLimit {
                required,
                tier,
                memory_mib,
            }
            .words()
        };
        let driver = words(Some(40_960), Some(EnforcementTier::Driver), true).unwrap();
        assert_eq!(driver, "40,960 MiB of each GPU; held by the driver (tier driver)");
        let nothing = words(Some(999), Some(EnforcementTier::None), false).unwrap();
        assert_eq!(nothing, "999 MiB of each GPU; nothing holds the pod to it (tier none)");
        assert!(words(Some(1), None, false).unwrap().ends_with("is unknown"));
        assert!(words(None, None, true).unwrap().starts_with("required"));
        assert_eq!(words(None, None, false), None);
        assert_eq!(
            words(None, Some(EnforcementTier::Mps), false).unwrap(),
            "unknown (tier mps)"
        );
    }
}
