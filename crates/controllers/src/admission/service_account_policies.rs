//! The ValidatingAdmissionPolicies that restrict our own service accounts. RBAC can't express "only its own node", "only its own pod"
//! or "not the spec". A token that a kubelet mounts into a pod names the pod and its node (Kubernetes 1.30 and later, like these
//! policies). A node's account is denied if its token has no such claims: no kubelet mounted that token into one of our pods.

use kai_api::keys;
use serde_json::Value;

use super::admission_policies::{
    binding_rule, condition, deny_unless, key_list, keys_unchanged_or_absent, pod_rule, policy, rule,
};
use super::args::Settings;
use super::protected_keys;
use super::trusted_users::UserMatcher;

/// Names of the policies of this file.
pub(super) const NAMES: [&str; 8] = [
    "kai-own-specs",
    "kai-own-pod-status",
    "kai-binder-keys",
    "kai-binder-volumes",
    "kai-binder-volume-claims",
    "kai-node-agent-nodes",
    "kai-node-agent-pods",
    "kai-reservation-pods",
];

/// Service accounts of the system namespace, as `deploy/rbac.yaml` creates them.
const NODE_AGENT: &str = "kai-node-agent";
const CONTROLLERS: [&str; 2] = ["controllers", "kai-all"];
/// The accounts that bind pods.
const BINDERS: [&str; 2] = ["binder", "kai-all"];
const ROLES: [&str; 5] = ["scheduler", "binder", "controllers", "admission", "kai-all"];
/// The service account of reservation pods, in the reservation namespace.
const RESERVATION_ACCOUNT: &str = keys::RESERVATION;

/// Claims of a mounted token, as the API server passes them on.
const NODE_CLAIM: &str = "authentication.kubernetes.io/node-name";
const POD_NAME_CLAIM: &str = "authentication.kubernetes.io/pod-name";
const POD_UID_CLAIM: &str = "authentication.kubernetes.io/pod-uid";

/// Fields of a pod's status that only its kubelet writes. Our accounts write conditions.
const KUBELET_STATUS_FIELDS: [&str; 11] = [
    "phase",
    "reason",
    "message",
    "hostIP",
    "hostIPs",
    "podIP",
    "podIPs",
    "startTime",
    "containerStatuses",
    "initContainerStatuses",
    "ephemeralContainerStatuses",
];

/// Fields of a volume that can be changed after its creation, apart from `claimRef`.
const VOLUME_FIELDS: [&str; 9] = [
    "capacity",
    "accessModes",
    "persistentVolumeReclaimPolicy",
    "storageClassName",
    "mountOptions",
    "volumeMode",
    "nodeAffinity",
    "volumeAttributesClassName",
    "csi",
];

const VOLUME_CHANGED: &str = "PersistentVolume: the binder's account writes spec.claimRef and its annotation \
                              pv.kubernetes.io/bound-by-controller, and nothing else; use another account";
const VOLUME_TAKEN: &str = "PersistentVolume: spec.claimRef: the binder's account gives a volume to a claim only if it has none, and takes \
                            none away that is bound; use another account";
const CLAIM_CHANGED: &str = "PersistentVolumeClaim: the binder's account writes the annotation \
                             volume.kubernetes.io/selected-node, and nothing else; use another account";
const SPEC_CHANGED: &str = "spec: this account of the scheduler does not change specs; use another account";
const METADATA_CHANGED: &str = "metadata: the scheduler's accounts do not change owner references or finalizers of pods and nodes; use \
                                another account";
const STATUS_CHANGED: &str =
    "Pod: status: the scheduler's accounts write conditions, and the pod's kubelet writes the rest; leave it alone";
const OTHER_NODE: &str = "Node: the account of the node agents writes the node that its token names (claim \
                          authentication.kubernetes.io/node-name) and no other; use the token that the kubelet mounts into the agent's pod";
const POD_OF_OTHER_NODE: &str = "Pod: the account of the node agents writes pods of the node that its token names (claim \
                                 authentication.kubernetes.io/node-name) and no others; use the token that the kubelet mounts into the \
                                 agent's pod";
const OTHER_POD: &str = "Pod: the account of reservation pods writes the pod that its token names (claims \
                         authentication.kubernetes.io/pod-name and pod-uid) and no other; use the token that the kubelet mounts into \
                         the pod";

/// All policies, without bindings.
pub(super) fn policies(settings: &Settings) -> Vec<Value> {
    let [
        specs,
        status,
        binder_keys,
        volumes,
        volume_claims,
        agent_nodes,
        agent_pods,
        reservation_pods,
    ] = NAMES;
    let of_binders = [by_one_of("binder", &binders(settings))];
    let of_all = [by_one_of("ours", &all_accounts(settings))];
    let of_agents = [by_one_of("node-agent", &[agent(settings)])];
    let of_reservations = [by_one_of("reservation", &[reservation(settings)])];
    let pods = [rule("", &["pods", "pods/status"], &["UPDATE"], "Namespaced")];
    vec![
        policy(specs, &spec_rules(), &of_all, &spec_validations(settings)),
        policy(
            status,
            &[rule("", &["pods/status"], &["UPDATE"], "Namespaced")],
            &of_all,
            &[deny_unless(
                &unchanged_fields("status", &KUBELET_STATUS_FIELDS),
                STATUS_CHANGED,
            )],
        ),
        policy(
            binder_keys,
            &[pod_rule(), binding_rule()],
            &[of_installation(settings), not_binder(settings)],
            &[binder_validation()],
        ),
        policy(
            volumes,
            &[rule(
                "",
                &["persistentvolumes", "persistentvolumes/status"],
                &["UPDATE"],
                "Cluster",
            )],
            &of_binders,
            &volume_validations(),
        ),
        policy(
            volume_claims,
            &[rule(
                "",
                &["persistentvolumeclaims", "persistentvolumeclaims/status"],
                &["UPDATE"],
                "Namespaced",
            )],
            &of_binders,
            &[
                deny_unless(
                    &format!("({}) && ({})", unchanged("spec"), unchanged("status")),
                    CLAIM_CHANGED,
                ),
                deny_unless(&metadata_unchanged_but(keys::VOLUME_SELECTED_NODE), CLAIM_CHANGED),
            ],
        ),
        policy(
            agent_nodes,
            &[rule("", &["nodes", "nodes/status"], &["UPDATE"], "Cluster")],
            &of_agents,
            &[deny_unless(&claims(NODE_CLAIM, "object.metadata.name"), OTHER_NODE)],
        ),
        policy(
            agent_pods,
            &pods,
            &of_agents,
            &[deny_unless(
                &format!(
                    "has(oldObject.spec.nodeName) && {}",
                    claims(NODE_CLAIM, "oldObject.spec.nodeName")
                ),
                POD_OF_OTHER_NODE,
            )],
        ),
        policy(
            reservation_pods,
            &pods,
            &of_reservations,
            &[deny_unless(
                &format!(
                    "{} && {}",
                    claims(POD_NAME_CLAIM, "object.metadata.name"),
                    claims(POD_UID_CLAIM, "object.metadata.uid")
                ),
                OTHER_POD,
            )],
        ),
    ]
}

fn account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

fn agent(settings: &Settings) -> String {
    account(&settings.system_namespace, NODE_AGENT)
}

fn reservation(settings: &Settings) -> String {
    account(&settings.reservation_pods.namespace, RESERVATION_ACCOUNT)
}

fn all_accounts(settings: &Settings) -> Vec<String> {
    let roles = ROLES.iter().map(|role| account(&settings.system_namespace, role));
    roles.chain([agent(settings), reservation(settings)]).collect()
}

fn is_one_of(accounts: &[String]) -> String {
    let quoted: Vec<String> = accounts.iter().map(|account| format!("'{account}'")).collect();
    format!("request.userInfo.username in [{}]", quoted.join(", "))
}

fn by_one_of(name: &str, accounts: &[String]) -> Value {
    condition(name, is_one_of(accounts))
}

fn spec_rules() -> [Value; 3] {
    [
        rule(
            "",
            &["pods", "pods/ephemeralcontainers", "pods/resize"],
            &["UPDATE"],
            "Namespaced",
        ),
        rule("", &["nodes"], &["UPDATE"], "Cluster"),
        rule("scheduling.run.ai", &["podgroups"], &["UPDATE"], "Namespaced"),
    ]
}

/// The controllers may write the spec of pod groups; no account may write any other spec.
fn spec_validations(settings: &Settings) -> Vec<Value> {
    let controllers = CONTROLLERS.map(|role| account(&settings.system_namespace, role));
    let by_controllers = format!(
        "(request.resource.resource == 'podgroups' && {})",
        is_one_of(&controllers)
    );
    vec![
        deny_unless(&format!("{by_controllers} || ({})", unchanged("spec")), SPEC_CHANGED),
        deny_unless(
            &format!(
                "request.resource.resource == 'podgroups' || ({} && {})",
                unchanged("metadata.ownerReferences"),
                unchanged("metadata.finalizers")
            ),
            METADATA_CHANGED,
        ),
    ]
}

/// All accounts of the two namespaces, which are trusted by their prefix: also those that no role has.
fn of_installation(settings: &Settings) -> Value {
    let namespaces = [&settings.system_namespace, &settings.reservation_pods.namespace];
    let prefixes = namespaces.map(|namespace| UserMatcher::accounts_of(namespace).cel());
    condition("ours", prefixes.join(" || "))
}

fn binders(settings: &Settings) -> Vec<String> {
    let binders = BINDERS.iter().map(|role| account(&settings.system_namespace, role));
    binders.collect()
}

fn not_binder(settings: &Settings) -> Value {
    condition("not-binder", format!("!({})", is_one_of(&binders(settings))))
}

/// The binder gives a volume without a claim to one, or takes it back while the claim is not bound to it.
fn volume_validations() -> Vec<Value> {
    let claim = "spec.claimRef";
    let is_bound = "has(oldObject.status) && has(oldObject.status.phase) && oldObject.status.phase == 'Bound'";
    let same = |field: &str| unchanged(&format!("{claim}.{field}"));
    let of_same_claim = format!(
        "!has(object.{claim}) || !has(oldObject.{claim}) || (({}) && ({}))",
        same("namespace"),
        same("name")
    );
    vec![
        deny_unless(
            &format!(
                "({}) && ({})",
                unchanged_fields("spec", &VOLUME_FIELDS),
                unchanged("status")
            ),
            VOLUME_CHANGED,
        ),
        deny_unless(
            &metadata_unchanged_but(keys::VOLUME_BOUND_BY_CONTROLLER),
            VOLUME_CHANGED,
        ),
        deny_unless(
            &format!("({}) || (!({is_bound}) && ({of_same_claim}))", unchanged(claim)),
            VOLUME_TAKEN,
        ),
    ]
}

/// Whether labels, owner references, finalizers and all annotations but one are unchanged, as a CEL expression.
fn metadata_unchanged_but(annotation: &str) -> String {
    let (new, old) = ("object.metadata.annotations", "oldObject.metadata.annotations");
    let others = ["labels", "ownerReferences", "finalizers"]
        .map(|field| format!("({})", unchanged(&format!("metadata.{field}"))));
    format!(
        "{} && (!has({new}) || {new}.all(key, key == '{annotation}' || (has({old}) && key in {old} && {old}[key] == {new}[key]))) && \
         (!has({old}) || {old}.all(key, key == '{annotation}' || (has({new}) && key in {new})))",
        others.join(" && ")
    )
}

/// No account but the binder's writes the GPUs and limits of a pod, on the pod or by way of a Binding.
fn binder_validation() -> Value {
    let table = &protected_keys::BINDER_ANNOTATIONS;
    let message = format!(
        "Pod: {}: {}: {}",
        table.map.path(),
        key_list(table),
        protected_keys::BINDER_KEY_CHANGED
    );
    deny_unless(&keys_unchanged_or_absent(table), &message)
}

/// Whether the field is unchanged, as a CEL expression.
pub(super) fn unchanged(field: &str) -> String {
    format!(
        "has(object.{field}) == has(oldObject.{field}) && (!has(object.{field}) || object.{field} == oldObject.{field})"
    )
}

fn unchanged_fields(parent: &str, fields: &[&str]) -> String {
    let present = format!("has(object.{parent}) == has(oldObject.{parent})");
    let fields = fields
        .iter()
        .map(|field| format!("({})", unchanged(&format!("{parent}.{field}"))));
    let fields: Vec<String> = fields.collect();
    format!("{present} && (!has(object.{parent}) || ({}))", fields.join(" && "))
}

/// Whether the user's token has a claim with this value, as a CEL expression.
fn claims(claim: &str, value: &str) -> String {
    format!(
        "has(request.userInfo.extra) && '{claim}' in request.userInfo.extra && {value} in request.userInfo.extra['{claim}']"
    )
}
