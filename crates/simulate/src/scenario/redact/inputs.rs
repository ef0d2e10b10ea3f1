//! The fields of snapshots and cases that a redacted file keeps.

use super::kinds;
use super::names::NameClass;
use super::rules::Rule::{self, Fields, Keyed, List, Name, Word};
use super::rules::Special as S;

/// The lists of objects in cases and snapshots.
const OBJECT_LISTS: Rule = Fields(&[
    ("nodes", List(&kinds::NODE)),
    ("queues", List(&kinds::QUEUE)),
    ("topologies", List(&kinds::TOPOLOGY)),
    ("podGroups", List(&kinds::POD_GROUP)),
    ("pods", List(&kinds::POD)),
    ("priorityClasses", List(&kinds::PRIORITY_CLASS)),
    ("bindRequests", List(&kinds::BIND_REQUEST)),
    ("persistentVolumes", List(&kinds::VOLUME)),
    ("persistentVolumeClaims", List(&kinds::VOLUME_CLAIM)),
    ("storageClasses", List(&kinds::STORAGE_CLASS)),
    ("csiNodes", List(&kinds::CSI_NODE)),
    ("csiDrivers", List(&kinds::CSI_DRIVER)),
    ("csiStorageCapacities", List(&kinds::STORAGE_CAPACITY)),
    ("configMaps", List(&kinds::CONFIG_MAP)),
]);

const QUEUE_DEPTH: Rule = Fields(&[
    ("allocate", Word),
    ("consolidation", Word),
    ("reclaim", Word),
    ("preempt", Word),
    ("stalegangeviction", Word),
]);

const PLUGIN_ARGUMENTS: Rule = Fields(&[
    ("kValue", Word),
    ("relcaimerSaturationMultiplier", Word),
    ("defaultReclaimMinRuntime", Word),
    ("defaultPreemptMinRuntime", Word),
    ("reclaimResolveMethod", Word),
    ("mode", Word),
    ("gpu", Word),
    ("cpu", Word),
]);

/// A snapshot of a scheduler.
pub(super) const SNAPSHOT: Rule = Fields(&[
    (
        "config",
        Fields(&[
            ("actions", Rule::Special(S::WordList)),
            (
                "tiers",
                List(&Fields(&[(
                    "plugins",
                    List(&Fields(&[("name", Word), ("arguments", PLUGIN_ARGUMENTS)])),
                )])),
            ),
            ("queueDepthPerAction", QUEUE_DEPTH),
        ]),
    ),
    (
        "schedulerParams",
        Fields(&[
            ("schedulerName", Name(NameClass::Scheduler)),
            ("restrictSchedulingNodes", Word),
            ("partitionParams", Rule::Special(S::Partition)),
            ("maxNumberConsolidationPreemptees", Word),
            ("scheduleCSIStorage", Word),
            ("useSchedulingSignatures", Word),
            ("fullHierarchyFairness", Word),
            ("allowConsolidatingReclaim", Word),
            ("numOfStatusRecordingWorkers", Word),
            ("globalDefaultStalenessGracePeriod", Word),
            ("schedulePeriod", Word),
            ("stuckInReleasingThreshold", Word),
            ("detailedFitErrors", Word),
            ("updatePodEvictionCondition", Word),
            ("queueLabelKey", Name(NameClass::LabelKey)),
        ]),
    ),
    ("rawObjects", OBJECT_LISTS),
    (
        "kai-rs",
        Fields(&[
            ("takenAt", Word),
            ("resourceReservationNamespace", Name(NameClass::Namespace)),
            ("resourceReservationAppLabel", Word),
            ("migWorkerNodeLabelKey", Name(NameClass::LabelKey)),
            ("gpuSharingMode", Word),
            ("gpuWorkerNodeLabelKey", Name(NameClass::LabelKey)),
            ("cpuWorkerNodeLabelKey", Name(NameClass::LabelKey)),
        ]),
    ),
]);

/// A case, with its expectation.
pub(super) const CASE: Rule = Fields(&[
    ("group", Rule::Special(S::CaseGroup)),
    ("now", Word),
    ("actions", List(&Word)),
    ("cycles", Word),
    ("settleCycles", Word),
    (
        "params",
        Fields(&[
            ("gpuSharingMode", Word),
            ("useSchedulingSignatures", Word),
            ("allowConsolidatingReclaim", Word),
            ("maxNumberConsolidationPreemptees", Word),
            ("defaultStalenessGracePeriod", Word),
            ("stuckInReleasingThreshold", Word),
            ("defaultPreemptMinRuntime", Word),
            ("defaultReclaimMinRuntime", Word),
            ("reclaimResolveMethod", Word),
            ("gpuJobOrder", Word),
            ("placementStrategy", Fields(&[("gpu", Word), ("cpu", Word)])),
            ("kValue", Word),
            ("reclaimerSaturationMultiplier", Word),
            ("relcaimerSaturationMultiplier", Word),
            ("queueDepthPerAction", QUEUE_DEPTH),
            (
                "queueUsage",
                Keyed(
                    NameClass::Queue,
                    &Fields(&[("cpu", Word), ("memory", Word), ("gpu", Word)]),
                ),
            ),
        ]),
    ),
    ("holdReleasing", List(&Name(NameClass::PodGroup))),
    ("objects", OBJECT_LISTS),
    (
        "expect",
        Fields(&[
            ("pods", Rule::Special(S::ExpectedPods)),
            (
                "nodes",
                Keyed(NameClass::Node, &Fields(&[("idleGPUs", Word), ("releasingGPUs", Word)])),
            ),
        ]),
    ),
    (
        "expectTotals",
        Fields(&[
            ("bound", Word),
            ("pipelined", Word),
            ("evicted", Word),
            ("boundMax", Word),
            ("gangAtomic", Word),
        ]),
    ),
]);
