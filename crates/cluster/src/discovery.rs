//! API discovery: from apiVersion and kind, as in owner references, to the resource that the API server serves. Results are cached.

use kai_api::{Resource, Scope};
use serde::Deserialize;

use crate::calls::Built;
use crate::path::{is_group, is_version};
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
    /// The version of the API server. Every authenticated user may read it.
    pub async fn server_version(&self) -> Result<String, Error> {
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Version {
            git_version: String,
        }
        let asking = "asking for the API server's version";
        let version: Version = self.call(asking, get("/version")).await?;
        Ok(version.git_version)
    }

    /// The resource of a kind; `None` if the API server does not serve it (any more).
    pub async fn resource_of(&self, api_version: &str, kind: &str) -> Result<Option<Resource>, Error> {
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        // Tenants write owner references. No API serves a malformed apiVersion, so it never becomes part of a request path.
        let is_core = !api_version.contains('/');
        if !(is_core || is_group(group)) || !is_version(version) {
            return Ok(None);
        }
        let key = (api_version.to_owned(), kind.to_owned());
        if let Some(known) = self.resources.lock().get(&key) {
            return Ok(Some(known.clone()));
        }
        let path = match group {
            "" => format!("/api/{version}"),
            group => format!("/apis/{group}/{version}"),
        };
        let asking = format!("asking what {api_version} serves");
        let served: Served = match self.call(&asking, get(&path)).await {
            Ok(served) => served,
            Err(error) if error.is_not_found() => return Ok(None),
            Err(error) => return Err(error),
        };
        // A subresource has a slash in its name, and the kind of its response.
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
        self.resources.lock().insert(key, resource.clone());
        Ok(Some(resource))
    }
}

fn get(path: &str) -> Built {
    http::Request::get(path)
        .header(http::header::ACCEPT, "application/json")
        .body(Vec::new())
        .map_err(kube::core::request::Error::BuildRequest)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kube::client::Body;
    use parking_lot::Mutex;

    use super::*;
    use crate::Target;

    /// An API server with one kind, and a log of the requested paths.
    fn server() -> (Client, Arc<Mutex<Vec<String>>>) {
        let asked: Arc<Mutex<Vec<String>>> = Arc::default();
        let log = Arc::clone(&asked);
        let service = tower::service_fn(move |request: http::Request<Body>| {
            log.lock().push(request.uri().to_string());
            let body =
                r#"{"resources": [{"name": "jobs", "kind": "Job", "namespaced": true}], "metadata": {"name": "x"}}"#;
            async { Ok::<_, std::convert::Infallible>(http::Response::new(Body::from(body.as_bytes().to_vec()))) }
        });
        (Client::in_process(service), asked)
    }

    #[tokio::test]
    async fn the_api_version_of_an_owner_reference_stays_within_its_path() {
        let (client, asked) = server();
        let long = ["v".repeat(10_000), format!("{}/v1", "g".repeat(10_000))];
        for version in [
            "../../api/v1",
            "..",
            "../v1",
            "v1?x=",
            "?x=",
            "%2e%2e",
            "%2e%2e/v1",
            "apps/v1/../../../api/v1/secrets?",
            "apps/v1#",
            "/v1",
            "apps/",
            "",
            "v1\n",
            &long[0],
            &long[1],
        ] {
            let found = client.resource_of(version, "Job").await.unwrap();
            assert_eq!(found, None, "{}", crate::path::printable(version));
        }
        assert_eq!(*asked.lock(), Vec::<String>::new(), "nothing was asked for");
        let job = client.resource_of("batch/v1", "Job").await.unwrap().unwrap();
        for name in ["../../../v1/secrets/x", "..", "%2e%2e", "", &long[0]] {
            let target = Target {
                resource: &job,
                namespace: "a",
                name,
            };
            assert!(client.get_metadata(target).await.unwrap().is_none());
            let refused = client.delete(target, &crate::Deletion::default()).await;
            assert!(refused.is_ok(), "what can't be there is gone");
            let patch = crate::Patch::Merge(serde_json::json!({}));
            let refused = client.patch(target, crate::Part::Status, patch).await.unwrap_err();
            assert!(refused.is_not_found() && refused.to_string().len() < 400, "{refused}");
        }
        let target = Target {
            resource: &job,
            namespace: "a",
            name: "x?y=#z",
        };
        client.get_metadata(target).await.unwrap();
        let expect = ["/apis/batch/v1", "/apis/batch/v1/namespaces/a/jobs/x%3Fy%3D%23z"];
        assert_eq!(*asked.lock(), expect);
    }
}
