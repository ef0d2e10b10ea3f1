//! A user of the cluster, with the rights of that user.

use kai_api::Object;
use kai_cluster::{Client, Deletion, Error, Part, Patch, Target};
use serde_json::Value;

/// A user.
#[derive(Clone)]
pub(crate) struct User(pub(crate) Client);

impl User {
    /// Creates an object, in namespace `default` unless it has a namespace.
    pub(crate) async fn create(&self, object: Value) -> Result<Value, Error> {
        let (version, kind) = (object["apiVersion"].as_str().unwrap(), object["kind"].as_str().unwrap());
        let resource = self.0.resource_of(version, kind).await?;
        let resource = resource.unwrap_or_else(|| panic!("no {kind} in {version}"));
        let namespace = object["metadata"]["namespace"].as_str().unwrap_or("default").to_owned();
        self.0.create(&resource, &namespace, object).await
    }

    /// Changes an object.
    pub(crate) async fn patch(&self, target: Target<'_>, change: Value) -> Result<Value, Error> {
        self.0.patch(target, Part::Object, Patch::Merge(change)).await
    }

    /// Changes a pod of namespace `default`.
    pub(crate) async fn patch_pod(&self, name: &str, change: Value) -> Result<Value, Error> {
        self.patch(Target::of::<kai_api::Pod>("default", name), change).await
    }

    /// Changes a subresource of a pod of namespace `default`.
    pub(crate) async fn patch_pod_part(&self, name: &str, part: &'static str, change: Value) -> Result<Value, Error> {
        let target = Target::of::<kai_api::Pod>("default", name);
        self.0
            .patch(target, Part::Subresource(part), Patch::Merge(change))
            .await
    }

    /// Changes the status of an object.
    pub(crate) async fn patch_status(&self, target: Target<'_>, change: Value) -> Result<Value, Error> {
        self.0.patch(target, Part::Status, Patch::Merge(change)).await
    }

    /// Posts to a subresource of a pod of namespace `default`.
    pub(crate) async fn post_to_pod(
        &self,
        pod: &str,
        part: &'static str,
        kind: &str,
        mut body: Value,
    ) -> Result<Value, Error> {
        body["apiVersion"] = "v1".into();
        body["kind"] = kind.into();
        let target = Target::of::<kai_api::Pod>("default", pod);
        self.0.post_to(target, part, &body).await
    }

    /// Deletes an object.
    pub(crate) async fn delete<T: Object>(&self, namespace: &str, name: &str) -> Result<(), Error> {
        self.0
            .delete(Target::of::<T>(namespace, name), &Deletion::default())
            .await
    }
}

/// Asserts that the call was refused, not just failed, and that the message contains the text.
pub(crate) fn refused<T>(attempt: &str, outcome: Result<T, Error>, words: &str) {
    match outcome {
        Err(error) => assert!(
            error.is_refused() && error.to_string().contains(words),
            "{attempt}: expected {words:?} in: {error}"
        ),
        Ok(_) => panic!("{attempt} was not refused"),
    }
}
