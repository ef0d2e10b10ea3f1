//! From apiVersion and kind, as owner references have them, to the resource that the API serves. Answers are kept.

use std::collections::BTreeMap;

use api::{Resource, Scope};
use serde::Deserialize;

use crate::{Client, Error};

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Served {
    resources: Vec<ServedResource>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct ServedResource {
    name: String,
    kind: String,
    namespaced: bool,
}

impl Client {
    /// The resource of a kind; `None` if the API does not serve it (any more).
    pub async fn resource_of(&self, api_version: &str, kind: &str) -> Result<Option<Resource>, Error> {
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(known) = self.lock_resources().get(&key) {
            return Ok(Some(known.clone()));
        }
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        let path = match group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, "application/json")
            .body(Vec::new())
            .map_err(kube::core::request::Error::BuildRequest);
        let served: Served = match self.call(&format!("asking what {api_version} serves"), request).await {
            Ok(served) => served,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        // Subresources have a slash in their name and the kind of what they answer with.
        let found = served
            .resources
            .into_iter()
            .find(|resource| resource.kind == kind && !resource.name.contains('/'));
        let Some(found) = found else { return Ok(None) };
        let resource = Resource {
            group: group.to_owned().into(),
            version: version.to_owned().into(),
            kind: kind.to_owned().into(),
            plural: found.name.into(),
            scope: if found.namespaced {
                Scope::Namespaced
            } else {
                Scope::Cluster
            },
        };
        self.lock_resources().insert(key, resource.clone());
        Ok(Some(resource))
    }

    fn lock_resources(&self) -> std::sync::MutexGuard<'_, BTreeMap<(String, String), Resource>> {
        self.resources.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}
