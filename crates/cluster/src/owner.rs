//! The owners of objects that kai creates at run time. An owner is deleted with the installation, and the garbage collector then deletes
//! the objects: an uninstallation leaves no webhook, policy, reservation pod or lease behind.

use kai_api::{Resource, Scope};
use serde_json::{Value, json};

use crate::{Client, Error, Target};

const RBAC: &str = "rbac.authorization.k8s.io";
const ROLE: Resource = Resource::new(RBAC, "v1", "Role", "roles", Scope::Namespaced);
/// The resource of [`ANCHOR`].
pub const CLUSTER_ROLE: Resource = Resource::new(RBAC, "v1", "ClusterRole", "clusterroles", Scope::Cluster);
/// The anchor of an installation: a ClusterRole without rules, which owns cluster-scoped objects and reservation pods. Any kind of
/// object would do; a ClusterRole is small, cluster-scoped, and part of every installation.
pub const ANCHOR: &str = "kai-installation";
/// The Role in kai's namespace that owns the leases.
const LEASE_OWNER: &str = "kai-leader-election";

/// The anchor of the installation, as the owner of another object.
#[derive(Clone, Debug, PartialEq)]
pub enum InstallationOwner {
    /// The anchor exists; its owner reference.
    Present(Value),
    /// The anchor does not exist, or this account may not read it: an installation by older manifests.
    Absent,
    /// The anchor existed and is deleted: kai is being uninstalled. The garbage collector deletes new objects with this reference.
    Deleted(Value),
}

impl Client {
    /// Reads the anchor of the installation.
    pub async fn installation_owner(&self) -> Result<InstallationOwner, Error> {
        let anchor = Target {
            resource: &CLUSTER_ROLE,
            namespace: "",
            name: ANCHOR,
        };
        let found = match self.owner_reference(anchor).await {
            // The permission to read the anchor is deleted with the installation, too.
            Err(error) if error.is_forbidden() => None,
            found => found?,
        };
        let mut seen = self.anchor_seen.lock();
        Ok(match found {
            Some(reference) => InstallationOwner::Present(seen.insert(reference).clone()),
            None => seen
                .clone()
                .map_or(InstallationOwner::Absent, InstallationOwner::Deleted),
        })
    }

    /// The owner of the leases and of other objects that kai creates in its namespace; `None` if it does not exist or this account may not read it.
    pub async fn lease_owner(&self, namespace: &str) -> Result<Option<Value>, Error> {
        let role = Target {
            resource: &ROLE,
            namespace,
            name: LEASE_OWNER,
        };
        match self.owner_reference(role).await {
            Err(error) if error.is_forbidden() => Ok(None),
            found => found,
        }
    }

    /// A reference to the object as an owner; `None` if the object does not exist or is being deleted.
    async fn owner_reference(&self, target: Target<'_>) -> Result<Option<Value>, Error> {
        let found = self.get_metadata(target).await?;
        let uid = found
            .filter(|metadata| !metadata.is_terminating())
            .and_then(|metadata| metadata.uid);
        Ok(uid.map(|uid| reference(target.resource, target.name, &uid)))
    }
}

/// An owner reference. It never blocks the deletion of the owner.
fn reference(resource: &Resource, name: &str, uid: &str) -> Value {
    json!({ "apiVersion": resource.api_version(), "kind": &*resource.kind, "name": name, "uid": uid })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use kube::client::Body;

    use super::*;

    /// A client of a server that gives each answer once, then repeats the last one.
    fn client(answers: &'static [(u16, &'static str)]) -> Client {
        let next = Arc::new(Mutex::new(0));
        Client::in_process(tower::service_fn(move |_: http::Request<Body>| {
            let mut next = next.lock().unwrap();
            let (code, body) = answers[(*next).min(answers.len() - 1)];
            *next += 1;
            let response = http::Response::builder().status(code);
            let response = response.body(Body::from(body.as_bytes().to_vec())).unwrap();
            async move { Ok::<_, std::convert::Infallible>(response) }
        }))
    }

    const PRESENT: (u16, &str) = (200, r#"{"metadata": {"name": "kai-installation", "uid": "u"}}"#);
    const TERMINATING: (u16, &str) = (
        200,
        r#"{"metadata": {"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"}}"#,
    );
    const MISSING: (u16, &str) = (
        404,
        r#"{"status": "Failure", "code": 404, "message": "not found", "reason": "NotFound"}"#,
    );
    const FORBIDDEN: (u16, &str) = (
        403,
        r#"{"status": "Failure", "code": 403, "message": "no", "reason": "Forbidden"}"#,
    );
    const BROKEN: (u16, &str) = (
        500,
        r#"{"status": "Failure", "code": 500, "message": "no", "reason": "InternalError"}"#,
    );

    #[tokio::test]
    async fn an_anchor_that_was_there_and_is_gone_counts_as_deleted() {
        let reference = json!({
            "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "name": "kai-installation", "uid": "u",
        });
        let present = InstallationOwner::Present(reference.clone());
        for gone in [&[PRESENT, MISSING], &[PRESENT, TERMINATING], &[PRESENT, FORBIDDEN]] {
            let client = client(gone);
            assert_eq!(client.installation_owner().await.unwrap(), present);
            let deleted = InstallationOwner::Deleted(reference.clone());
            assert_eq!(client.clone().installation_owner().await.unwrap(), deleted);
        }
    }

    #[tokio::test]
    async fn without_an_anchor_or_the_right_to_read_it_objects_have_no_owner() {
        for never in [&[MISSING], &[FORBIDDEN]] {
            assert_eq!(
                client(never).installation_owner().await.unwrap(),
                InstallationOwner::Absent
            );
            assert_eq!(client(never).lease_owner("a").await.unwrap(), None);
        }
        assert!(client(&[BROKEN]).installation_owner().await.is_err());
        assert!(client(&[BROKEN]).lease_owner("a").await.is_err());
    }
}
