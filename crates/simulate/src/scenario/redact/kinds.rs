//! The fields of each kind that a redacted file keeps.

use super::names::NameClass;
use super::rules::Rule::{self, Fields, List, Metadata, Name, Word};
use super::rules::Special as S;

/// The rule of a kind; `None` for kinds that the scheduler does not read.
pub(super) fn of_kind(kind: &str) -> Option<Rule> {
    Some(match kind {
        "Node" => NODE,
        "Queue" => QUEUE,
        "PodGroup" => POD_GROUP,
        "Pod" => POD,
        "PriorityClass" => PRIORITY_CLASS,
        "BindRequest" => BIND_REQUEST,
        "Topology" => TOPOLOGY,
        "PersistentVolume" => VOLUME,
        "PersistentVolumeClaim" => VOLUME_CLAIM,
        "StorageClass" => STORAGE_CLASS,
        "CSINode" => CSI_NODE,
        "CSIDriver" => CSI_DRIVER,
        "CSIStorageCapacity" => STORAGE_CAPACITY,
        "ConfigMap" => CONFIG_MAP,
        "Deployment" | "ReplicaSet" | "StatefulSet" | "DaemonSet" | "Job" => WORKLOAD,
        _ => return None,
    })
}

const KIND: (&str, Rule) = ("kind", Rule::Special(S::Kind));
const API_VERSION: (&str, Rule) = ("apiVersion", Rule::Special(S::ApiVersion));
const RESOURCES: Rule = Rule::Special(S::Resources);
const REQUIREMENTS: Rule = List(&Rule::Special(S::LabelRequirement));
const TAINTS: Rule = List(&Rule::Special(S::Taint));

const CONDITIONS: Rule = List(&Fields(&[
    ("type", Word),
    ("status", Word),
    ("reason", Word),
    ("lastTransitionTime", Word),
    ("lastHeartbeatTime", Word),
]));

pub(super) const NODE: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Node)),
    ("spec", Fields(&[("unschedulable", Word), ("taints", TAINTS)])),
    (
        "status",
        Fields(&[
            ("allocatable", RESOURCES),
            ("capacity", RESOURCES),
            ("conditions", CONDITIONS),
        ]),
    ),
]);

const QUEUE_RESOURCE: Rule = Fields(&[("quota", Word), ("limit", Word), ("overQuotaWeight", Word)]);

pub(super) const QUEUE: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Queue)),
    (
        "spec",
        Fields(&[
            ("parentQueue", Name(NameClass::Queue)),
            ("priority", Word),
            ("preemptMinRuntime", Word),
            ("reclaimMinRuntime", Word),
            (
                "resources",
                Fields(&[
                    ("gpu", QUEUE_RESOURCE),
                    ("cpu", QUEUE_RESOURCE),
                    ("memory", QUEUE_RESOURCE),
                ]),
            ),
        ]),
    ),
]);

const TOPOLOGY_CONSTRAINT: Rule = Fields(&[
    ("topology", Name(NameClass::Topology)),
    ("requiredTopologyLevel", Name(NameClass::LabelKey)),
    ("preferredTopologyLevel", Name(NameClass::LabelKey)),
]);

pub(super) const POD_GROUP: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::PodGroup)),
    (
        "spec",
        Fields(&[
            ("minMember", Word),
            ("minSubGroup", Word),
            ("queue", Name(NameClass::Queue)),
            ("priorityClassName", Name(NameClass::PriorityClass)),
            ("preemptibility", Word),
            ("topologyConstraint", TOPOLOGY_CONSTRAINT),
            (
                "subGroups",
                List(&Fields(&[
                    ("name", Name(NameClass::SubGroup)),
                    ("parent", Name(NameClass::SubGroup)),
                    ("minMember", Word),
                    ("minSubGroup", Word),
                    ("topologyConstraint", TOPOLOGY_CONSTRAINT),
                ])),
            ),
            ("markUnschedulable", Word),
            ("schedulingBackoff", Word),
            ("preemptionDelay", Word),
            ("stalenessGracePeriod", Word),
        ]),
    ),
    (
        "status",
        Fields(&[
            ("phase", Word),
            ("running", Word),
            ("pending", Word),
            (
                "schedulingConditions",
                List(&Fields(&[
                    ("type", Word),
                    ("nodePool", Name(NameClass::NodePool)),
                    ("status", Word),
                    ("transitionID", Word),
                    ("lastTransitionTime", Word),
                ])),
            ),
            (
                "resourcesStatus",
                Fields(&[
                    ("allocated", RESOURCES),
                    ("allocatedNonPreemptible", RESOURCES),
                    ("requested", RESOURCES),
                ]),
            ),
        ]),
    ),
]);

const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

const NODE_TERM: Rule = Fields(&[
    ("matchExpressions", REQUIREMENTS),
    ("matchFields", List(&Rule::Special(S::FieldRequirement))),
]);
const NODE_SELECTOR: Rule = Fields(&[("nodeSelectorTerms", List(&NODE_TERM))]);
const LABEL_SELECTOR: Rule = Fields(&[
    ("matchLabels", Rule::Special(S::Labels)),
    ("matchExpressions", REQUIREMENTS),
]);
const POD_TERM: Rule = Fields(&[
    ("labelSelector", LABEL_SELECTOR),
    ("namespaceSelector", LABEL_SELECTOR),
    ("namespaces", List(&Name(NameClass::Namespace))),
    ("topologyKey", Name(NameClass::LabelKey)),
]);
const POD_AFFINITY: Rule = Fields(&[
    (REQUIRED, List(&POD_TERM)),
    (
        PREFERRED,
        List(&Fields(&[("weight", Word), ("podAffinityTerm", POD_TERM)])),
    ),
]);
const AFFINITY: Rule = Fields(&[
    (
        "nodeAffinity",
        Fields(&[
            (REQUIRED, NODE_SELECTOR),
            (PREFERRED, List(&Fields(&[("weight", Word), ("preference", NODE_TERM)]))),
        ]),
    ),
    ("podAffinity", POD_AFFINITY),
    ("podAntiAffinity", POD_AFFINITY),
]);

const CONFIG_MAP_REFERENCE: Rule = Fields(&[("name", Rule::Special(S::ConfigMap)), ("optional", Word)]);
const REQUESTS: Rule = Fields(&[("requests", RESOURCES), ("limits", RESOURCES)]);

const CONTAINERS: Rule = List(&Fields(&[
    ("name", Name(NameClass::Container)),
    ("resources", REQUESTS),
    ("restartPolicy", Word),
    (
        "ports",
        List(&Fields(&[
            ("containerPort", Word),
            ("hostPort", Word),
            ("hostIP", Name(NameClass::Address)),
            ("protocol", Word),
        ])),
    ),
    ("env", List(&Rule::Special(S::Variable))),
    ("envFrom", List(&Fields(&[("configMapRef", CONFIG_MAP_REFERENCE)]))),
    ("volumeMounts", List(&Fields(&[("name", Name(NameClass::PodVolume))]))),
]));

/// What the kubelet reports about resizes.
const CONTAINER_STATUSES: Rule = List(&Fields(&[
    ("name", Name(NameClass::Container)),
    ("allocatedResources", RESOURCES),
    ("resources", REQUESTS),
]));

/// The source of a variable that the scheduler reads.
pub(super) const VARIABLE_SOURCE: Rule = Fields(&[("configMapKeyRef", CONFIG_MAP_REFERENCE)]);

const VOLUMES: Rule = List(&Fields(&[
    ("name", Name(NameClass::PodVolume)),
    (
        "persistentVolumeClaim",
        Fields(&[("claimName", Name(NameClass::VolumeClaim))]),
    ),
    ("ephemeral", Rule::Special(S::Presence)),
    ("configMap", CONFIG_MAP_REFERENCE),
    (
        "projected",
        Fields(&[("sources", List(&Fields(&[("configMap", CONFIG_MAP_REFERENCE)])))]),
    ),
]));

const POD_SPEC: Rule = Fields(&[
    ("schedulerName", Name(NameClass::Scheduler)),
    ("nodeName", Name(NameClass::Node)),
    ("priorityClassName", Name(NameClass::PriorityClass)),
    ("priority", Word),
    ("restartPolicy", Word),
    ("runtimeClassName", Word),
    ("hostNetwork", Word),
    ("containers", CONTAINERS),
    ("initContainers", CONTAINERS),
    ("overhead", RESOURCES),
    ("resources", REQUESTS),
    ("schedulingGates", List(&Rule::Special(S::Presence))),
    ("resourceClaims", List(&Rule::Special(S::Presence))),
    ("nodeSelector", Rule::Special(S::Labels)),
    ("affinity", AFFINITY),
    ("tolerations", TAINTS),
    ("volumes", VOLUMES),
]);

pub(super) const POD: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Pod)),
    ("spec", POD_SPEC),
    (
        "status",
        Fields(&[
            ("phase", Word),
            ("nominatedNodeName", Name(NameClass::Node)),
            ("startTime", Word),
            ("conditions", CONDITIONS),
            ("containerStatuses", CONTAINER_STATUSES),
            ("initContainerStatuses", CONTAINER_STATUSES),
            ("allocatedResources", RESOURCES),
            ("resources", REQUESTS),
        ]),
    ),
]);

/// Pods of a template have the namespace of the workload.
const TEMPLATE_METADATA: Rule = Fields(&[
    ("labels", Rule::Special(S::Labels)),
    ("annotations", Rule::Special(S::Annotations)),
]);

const WORKLOAD: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Workload)),
    (
        "spec",
        Fields(&[
            ("replicas", Word),
            ("parallelism", Word),
            ("completions", Word),
            ("completionMode", Word),
            ("backoffLimit", Word),
            ("suspend", Word),
            ("minReadySeconds", Word),
            ("podManagementPolicy", Word),
            ("selector", LABEL_SELECTOR),
            (
                "template",
                Fields(&[("metadata", TEMPLATE_METADATA), ("spec", POD_SPEC)]),
            ),
            (
                "volumeClaimTemplates",
                List(&Fields(&[("metadata", Metadata(NameClass::PodVolume))])),
            ),
        ]),
    ),
    (
        "status",
        Fields(&[
            ("succeeded", Word),
            ("failed", Word),
            ("active", Word),
            ("startTime", Word),
            ("completionTime", Word),
            ("conditions", CONDITIONS),
        ]),
    ),
]);

pub(super) const PRIORITY_CLASS: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::PriorityClass)),
    ("value", Word),
    ("globalDefault", Word),
]);

pub(super) const BIND_REQUEST: Rule = Fields(&[
    API_VERSION,
    KIND,
    // A bind request without an owner is for the pod of its name.
    ("metadata", Metadata(NameClass::Pod)),
    (
        "spec",
        Fields(&[
            ("podName", Name(NameClass::Pod)),
            ("selectedNode", Name(NameClass::Node)),
            ("selectedGPUGroups", List(&Name(NameClass::GpuGroup))),
            (
                "selectedFractionalGpuGroups",
                List(&Fields(&[
                    ("id", Name(NameClass::GpuGroup)),
                    ("computeSharingMode", Word),
                ])),
            ),
            ("backoffLimit", Word),
            ("receivedResourceType", Word),
            ("receivedGPU", Fields(&[("count", Word), ("portion", Word)])),
        ]),
    ),
    ("status", Fields(&[("phase", Word), ("failedAttempts", Word)])),
]);

pub(super) const TOPOLOGY: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Topology)),
    (
        "spec",
        Fields(&[(
            "levels",
            List(&Fields(&[
                ("nodeLabel", Name(NameClass::LabelKey)),
                ("alias", Name(NameClass::LabelKey)),
            ])),
        )]),
    ),
]);

pub(super) const VOLUME: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Volume)),
    (
        "spec",
        Fields(&[
            ("storageClassName", Name(NameClass::StorageClass)),
            ("nodeAffinity", Fields(&[("required", NODE_SELECTOR)])),
            (
                "claimRef",
                Fields(&[
                    ("namespace", Name(NameClass::Namespace)),
                    ("name", Name(NameClass::VolumeClaim)),
                ]),
            ),
            ("capacity", RESOURCES),
            ("accessModes", List(&Word)),
            ("volumeMode", Word),
            (
                "csi",
                Fields(&[("driver", Word), ("volumeHandle", Name(NameClass::Volume))]),
            ),
        ]),
    ),
    ("status", Fields(&[("phase", Word)])),
]);

pub(super) const STORAGE_CLASS: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::StorageClass)),
    ("provisioner", Word),
    ("volumeBindingMode", Word),
    (
        "allowedTopologies",
        List(&Fields(&[("matchLabelExpressions", REQUIREMENTS)])),
    ),
]);

pub(super) const VOLUME_CLAIM: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::VolumeClaim)),
    (
        "spec",
        Fields(&[
            ("volumeName", Name(NameClass::Volume)),
            ("storageClassName", Name(NameClass::StorageClass)),
            ("accessModes", List(&Word)),
            ("volumeMode", Word),
            ("resources", REQUESTS),
            ("selector", LABEL_SELECTOR),
        ]),
    ),
    ("status", Fields(&[("phase", Word)])),
]);

pub(super) const CSI_NODE: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Node)),
    (
        "spec",
        Fields(&[(
            "drivers",
            List(&Fields(&[("name", Word), ("allocatable", Fields(&[("count", Word)]))])),
        )]),
    ),
]);

/// Classes name drivers by a word.
pub(super) const CSI_DRIVER: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Value)),
    ("spec", Fields(&[("storageCapacity", Word)])),
]);

pub(super) const STORAGE_CAPACITY: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Workload)),
    ("storageClassName", Name(NameClass::StorageClass)),
    ("nodeTopology", LABEL_SELECTOR),
    ("capacity", Word),
    ("maximumVolumeSize", Word),
]);

pub(super) const CONFIG_MAP: Rule = Fields(&[API_VERSION, KIND, ("metadata", Metadata(NameClass::ConfigMap))]);

/// An object of a kind that the scheduler does not read. The pod grouper may read it as the owner of pods.
pub(super) const OTHER: Rule = Fields(&[
    API_VERSION,
    KIND,
    ("metadata", Metadata(NameClass::Workload)),
    ("spec", Rule::Special(S::Grouped)),
    ("status", Rule::Special(S::Grouped)),
]);
