//! Registers the webhook configurations and admission policies with the API server, and removes them. Every write is a server-side
//! apply of the complete object, so repeating it changes nothing.

use std::collections::BTreeSet;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use kai_api::{Resource, Scope};
use kai_cluster::{CLUSTER_ROLE, Client, Deletion, InstallationOwner, Part, Patch, Target};
use serde_json::{Value, json};

use super::args::Settings;
use super::ca_bundle::{self, CaCertificate};
use super::{admission_policies, webhook_configurations};

const FIELD_MANAGER: &str = "kai-admission";
/// Attempts to write one configuration. After as many conflicts with other replicas, the next round tries again.
const CONFLICTS_MAX: usize = 5;

static POLICY: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    Scope::Cluster,
);
static POLICY_BINDING: Resource = Resource::new(
    "admissionregistration.k8s.io",
    "v1",
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    Scope::Cluster,
);
/// The ClusterRole that owns the registered objects of an installation without the anchor: manifests of older versions.
const OLDER_OWNER: &str = "kai-admission";

/// The CA certificates that the API server shall trust for the webhooks.
#[derive(Clone, Debug)]
pub(crate) enum CaSource {
    /// This bundle for all replicas, as an operator gave it.
    Fixed(String),
    /// This replica's certificates, merged into the bundle that the replicas share.
    Replica(Vec<CaCertificate>),
}

/// Whether a webhook configuration is applied although its CA bundle is current.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApplyMode {
    /// Always: other fields of the object may differ from ours.
    Always,
    /// Only if the CA bundle differs.
    IfCaBundleDiffers,
}

/// Applies all policies and their bindings. An API server without ValidatingAdmissionPolicies answers with an error for which
/// `is_not_found` holds.
pub(crate) async fn apply_policies(client: &Client, settings: &Settings) -> Result<(), kai_cluster::Error> {
    let Registration::Allowed(owner) = registration(client).await? else {
        return Ok(());
    };
    for policy in admission_policies::admission_policies(settings) {
        let resource = match policy["kind"].as_str() {
            Some("ValidatingAdmissionPolicy") => &POLICY,
            _ => &POLICY_BINDING,
        };
        let name = policy["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let mut fields = policy;
        set_owner(&mut fields, owner.as_ref());
        apply(client, resource, &name, fields).await?;
    }
    Ok(())
}

/// Applies all webhook configurations.
pub(crate) async fn apply_webhooks(
    client: &Client,
    settings: &Settings,
    ca: &CaSource,
    mode: ApplyMode,
    now: Timestamp,
) -> Result<(), kai_cluster::Error> {
    let Registration::Allowed(owner) = registration(client).await? else {
        return Ok(());
    };
    for (at, (resource, name)) in webhook_configurations::ALL.into_iter().enumerate() {
        for attempt in 1..=CONFLICTS_MAX {
            let present = client.get_value(target(resource, name)).await?;
            let bundle = STANDARD.encode(merged(ca, present.as_ref(), now));
            if mode == ApplyMode::IfCaBundleDiffers
                && present.as_ref().is_some_and(|present| has_bundle(present, &bundle))
            {
                break;
            }
            let mut configurations = webhook_configurations::webhook_configurations(settings, &bundle);
            let mut fields = configurations[at].take();
            set_owner(&mut fields, owner.as_ref());
            // With the resource version, a CA certificate that another replica adds between our read and our write is not lost.
            if let Some(version) = present
                .as_ref()
                .and_then(|present| present["metadata"]["resourceVersion"].as_str())
            {
                fields["metadata"]["resourceVersion"] = version.into();
            }
            let written = match present.as_ref().is_some_and(is_of_another_program) {
                true => take_over(client, resource, name, fields).await,
                false => apply(client, resource, name, fields).await,
            };
            match written {
                Ok(()) => break,
                Err(error) if error.is_conflict() && attempt < CONFLICTS_MAX => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// Deletes all webhook configurations, policies and bindings. Afterwards the API server admits requests without KAI.
pub async fn uninstall(client: &Client) -> Result<(), kai_cluster::Error> {
    let configurations = webhook_configurations::ALL.into_iter();
    let bindings = admission_policies::names().map(|name| (&POLICY_BINDING, name));
    let policies = admission_policies::names().map(|name| (&POLICY, name));
    for (resource, name) in configurations.chain(bindings).chain(policies) {
        client.delete(target(resource, name), &Deletion::default()).await?;
    }
    Ok(())
}

fn target<'a>(resource: &'a Resource, name: &'a str) -> Target<'a> {
    Target {
        resource,
        namespace: "",
        name,
    }
}

async fn apply(client: &Client, resource: &Resource, name: &str, fields: Value) -> Result<(), kai_cluster::Error> {
    let patch = Patch::Apply {
        manager: FIELD_MANAGER,
        fields,
    };
    client
        .patch(target(resource, name), Part::Object, patch)
        .await
        .map(|_| ())
}

/// Whether another program made the configuration, and it has not been taken over yet. KAI's operator uses the same names, and its Config
/// owns the configuration: left so, the configuration would stay after an uninstallation.
fn is_of_another_program(present: &Value) -> bool {
    let list = |path| super::unstructured::list(present, path).iter();
    let text = |value, path| super::unstructured::text(value, path).unwrap_or_default();
    let mut managers = list("/metadata/managedFields");
    let mut owners = list("/metadata/ownerReferences");
    !managers.any(|entry| text(entry, "/manager") == FIELD_MANAGER)
        || owners.any(|owner| text(owner, "/apiVersion").starts_with("kai.scheduler/"))
}

/// Replaces the webhooks and owners of a configuration in one write, and applies it. Server-side apply alone would keep the fields that the
/// other program set and ours does not: selectors, conditions, a second server.
async fn take_over(
    client: &Client,
    resource: &Resource,
    name: &str,
    mut fields: Value,
) -> Result<(), kai_cluster::Error> {
    let replaced = json!({
        "metadata": {
            "resourceVersion": fields["metadata"]["resourceVersion"],
            "ownerReferences": fields["metadata"]["ownerReferences"],
        },
        "webhooks": fields["webhooks"],
    });
    let target = target(resource, name);
    let written = client.patch(target, Part::Object, Patch::Merge(replaced)).await?;
    tracing::info!("{} {name} is taken over from another program", resource.kind);
    fields["metadata"]["resourceVersion"] = written["metadata"]["resourceVersion"].clone();
    apply(client, resource, name, fields).await
}

/// Whether objects are registered, and their owner.
enum Registration {
    /// They are registered with this owner. Without one, an uninstallation deletes them by `kai uninstall` only.
    Allowed(Option<Value>),
    /// kai is being uninstalled. A webhook that is registered now would have no server in a moment.
    Withheld,
}

async fn registration(client: &Client) -> Result<Registration, kai_cluster::Error> {
    Ok(match client.installation_owner().await? {
        InstallationOwner::Present(owner) => Registration::Allowed(Some(owner)),
        InstallationOwner::Absent => Registration::Allowed(older_owner(client).await),
        InstallationOwner::Deleted(_) => {
            tracing::info!("kai is being uninstalled: webhooks and policies are not registered any more");
            Registration::Withheld
        }
    })
}

async fn older_owner(client: &Client) -> Option<Value> {
    let role = client.get_value(target(&CLUSTER_ROLE, OLDER_OWNER)).await.ok()??;
    let uid = role["metadata"]["uid"].as_str()?;
    Some(json!({"apiVersion": CLUSTER_ROLE.api_version(), "kind": CLUSTER_ROLE.kind, "name": OLDER_OWNER, "uid": uid}))
}

fn set_owner(fields: &mut Value, owner: Option<&Value>) {
    if let Some(owner) = owner {
        fields["metadata"]["ownerReferences"] = json!([owner]);
    }
}

fn merged(ca: &CaSource, present: Option<&Value>, now: Timestamp) -> String {
    match ca {
        CaSource::Fixed(bundle) => bundle.clone(),
        CaSource::Replica(own) => {
            let bundles = present.map(bundles).unwrap_or_default();
            let text = bundles.iter().next().copied().unwrap_or_default();
            let decoded = STANDARD.decode(text).unwrap_or_default();
            ca_bundle::merge(&String::from_utf8_lossy(&decoded), own, now)
        }
    }
}

fn bundles(configuration: &Value) -> BTreeSet<&str> {
    let hooks = super::unstructured::list(configuration, "/webhooks").iter();
    hooks
        .map(|hook| super::unstructured::text(hook, "/clientConfig/caBundle").unwrap_or_default())
        .collect()
}

/// Whether all webhooks of a configuration have this bundle.
fn has_bundle(configuration: &Value, bundle: &str) -> bool {
    bundles(configuration) == BTreeSet::from([bundle])
}
