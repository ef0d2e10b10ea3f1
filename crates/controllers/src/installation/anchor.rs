//! The anchor of the installation, a ClusterRole without rules: its owner is kai's namespace, and an annotation records the objects that
//! were created once for this installation.

use std::collections::BTreeSet;

use kai_api::{Resource, Scope, keys};
use kai_cluster::{ANCHOR, CLUSTER_ROLE, Client, Part, Patch, Target};
use serde_json::{Value, json};

static NAMESPACE: Resource = Resource::new("", "v1", "Namespace", "namespaces", Scope::Cluster);
const FIELD_MANAGER: &str = "kai-installation";
/// The longest record. Objects beyond it are created again after a deletion; an annotation has a size limit.
const RECORDED_MAX: usize = 1_000;

/// Makes kai's namespace the owner of the anchor, so that the deletion of the namespace deletes the anchor and all that it owns.
pub(super) async fn attach_to_namespace(client: &Client, namespace: &str) -> Result<(), kai_cluster::Error> {
    let Some(anchor) = read(client).await? else {
        tracing::info!(
            "there is no ClusterRole {ANCHOR}: this installation is removed with `kai uninstall`, and not by deleting its namespace"
        );
        return Ok(());
    };
    let kai = Target {
        resource: &NAMESPACE,
        namespace: "",
        name: namespace,
    };
    let Some(owner) = client.get_metadata(kai).await?.and_then(|namespace| namespace.uid) else {
        return Ok(());
    };
    let owners = anchor["metadata"]["ownerReferences"].as_array();
    if owners.into_iter().flatten().any(|reference| reference["uid"] == *owner) {
        return Ok(());
    }
    let reference = json!({ "apiVersion": "v1", "kind": "Namespace", "name": namespace, "uid": &*owner });
    // With the uid, a deleted anchor is not created again.
    let fields =
        json!({ "metadata": { "name": ANCHOR, "uid": anchor["metadata"]["uid"], "ownerReferences": [reference] } });
    let patch = Patch::Apply {
        manager: FIELD_MANAGER,
        fields,
    };
    client.patch(target(), Part::Object, patch).await?;
    Ok(())
}

/// The record of objects that were created once; empty without an anchor.
#[derive(Debug, Default)]
pub(super) struct CreatedObjects {
    anchor: Option<Value>,
    recorded: BTreeSet<String>,
    added: bool,
}

impl CreatedObjects {
    pub(super) async fn read(client: &Client) -> Result<CreatedObjects, kai_cluster::Error> {
        let anchor = match read(client).await {
            Err(error) if error.is_forbidden() => None,
            found => found?,
        };
        let text = anchor
            .as_ref()
            .map(|anchor| &anchor["metadata"]["annotations"][keys::CREATED_OBJECTS]);
        let recorded = text.and_then(Value::as_str).unwrap_or_default().split(' ');
        let recorded = recorded.filter(|id| !id.is_empty()).map(str::to_owned).collect();
        Ok(CreatedObjects {
            anchor,
            recorded,
            added: false,
        })
    }

    /// Whether the object was created before.
    pub(super) fn contains(&self, id: &str) -> bool {
        self.recorded.contains(id)
    }

    /// The object exists.
    pub(super) fn add(&mut self, id: String) {
        if self.recorded.len() < RECORDED_MAX {
            self.added |= self.recorded.insert(id);
        }
    }

    /// Writes the record. Fails with a conflict if another replica wrote it since.
    pub(super) async fn write(self, client: &Client) -> Result<(), kai_cluster::Error> {
        let Some(anchor) = self.anchor.filter(|_| self.added) else {
            return Ok(());
        };
        let ids: Vec<String> = self.recorded.into_iter().collect();
        let metadata = json!({
            "resourceVersion": anchor["metadata"]["resourceVersion"],
            "annotations": { keys::CREATED_OBJECTS: ids.join(" ") },
        });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        client.patch(target(), Part::Object, patch).await?;
        Ok(())
    }
}

async fn read(client: &Client) -> Result<Option<Value>, kai_cluster::Error> {
    client.get_value(target()).await
}

fn target() -> Target<'static> {
    Target {
        resource: const { &CLUSTER_ROLE },
        namespace: "",
        name: ANCHOR,
    }
}
