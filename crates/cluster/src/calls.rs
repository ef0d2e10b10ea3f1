//! The calls to the API that roles make, with plain values: read, list, create, patch, delete, bind. The error of each call names the
//! attempt. A client that has lost its leadership refuses all writes here.

use futures_util::future::BoxFuture;
use kai_api::{Metadata, Object, Resource, Scope};
use kube::api::{DeleteParams, GetParams, ListParams, Patch as KubePatch, PatchParams, PostParams, Preconditions};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::path::{self, requests};
use crate::{Client, Error};

/// Objects per page of a list, as client-go has it.
const PAGE_MAX: u32 = 500;

/// One object, by name.
#[derive(Clone, Copy, Debug)]
pub struct Target<'a> {
    /// Resource of the object.
    pub resource: &'a Resource,
    /// Namespace of the object; empty for cluster-scoped resources.
    pub namespace: &'a str,
    /// Name of the object.
    pub name: &'a str,
}

impl<'a> Target<'a> {
    /// The object of type `T` of this name.
    pub fn of<T: Object>(namespace: &'a str, name: &'a str) -> Target<'a> {
        Target {
            resource: const { &T::RESOURCE },
            namespace,
            name,
        }
    }
}

impl std::fmt::Display for Target<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = path::printable(self.name);
        match self.resource.scope {
            Scope::Namespaced => write!(f, "{} {}/{}", self.resource.kind, self.namespace, name),
            Scope::Cluster => write!(f, "{} {name}", self.resource.kind),
        }
    }
}

/// A change of an object.
#[derive(Clone, Debug)]
pub enum Patch {
    /// RFC 7386. Works for every resource.
    Merge(Value),
    /// Lists are merged by their keys. Built-in resources only.
    Strategic(Value),
    /// RFC 6902. `test` operations make the change conditional.
    Json(Vec<Value>),
    /// Server-side apply: the whole set of fields that this manager owns.
    Apply {
        /// Field manager.
        manager: &'static str,
        /// The fields; apiVersion and kind are added.
        fields: Value,
    },
}

/// Which part of an object a patch changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// Metadata and spec.
    Object,
    /// The status subresource. It also accepts labels and annotations of a pod, but no spec: an account with this right alone can't
    /// change an image.
    Status,
    /// Another subresource.
    Subresource(&'static str),
}

impl Part {
    fn subresource(self) -> Option<&'static str> {
        match self {
            Part::Object => None,
            Part::Status => Some("status"),
            Part::Subresource(name) => Some(name),
        }
    }
}

/// Which objects of a resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// Only objects of this namespace.
    pub namespace: Option<String>,
    /// Label selector; empty for all.
    pub labels: String,
    /// Field selector; empty for all.
    pub fields: String,
}

/// How to delete.
#[derive(Clone, Debug, Default)]
pub struct Deletion {
    /// Delete only the object with this UID, not a later object of the same name.
    pub uid: Option<String>,
    /// Delete only if the object still has this resource version.
    pub resource_version: Option<String>,
    /// Grace period; `None` for the object's own.
    pub grace_seconds: Option<u32>,
    /// When the objects go that the object owns.
    pub dependents: Dependents,
}

/// When the objects go that a deleted object owns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dependents {
    /// After the object.
    #[default]
    Later,
    /// Before the object, which exists until then.
    First,
}

#[derive(Deserialize)]
struct Page<T> {
    #[serde(default)]
    metadata: PageMetadata,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct PageMetadata {
    #[serde(rename = "continue")]
    next: Option<String>,
}

impl Client {
    /// Reads an object; `None` if it does not exist.
    pub async fn get<T: Object>(&self, namespace: &str, name: &str) -> Result<Option<T>, Error> {
        self.read(Target::of::<T>(namespace, name)).await
    }

    /// Reads an object with all its fields; `None` if it does not exist.
    pub async fn get_value(&self, target: Target<'_>) -> Result<Option<Value>, Error> {
        self.read(target).await
    }

    /// Reads the metadata of an object of any kind; `None` if it does not exist. The API server sends nothing else of the object.
    pub async fn get_metadata(&self, target: Target<'_>) -> Result<Option<Metadata>, Error> {
        #[derive(Deserialize)]
        struct Partial {
            metadata: Metadata,
        }
        let request =
            path::object(target).and_then(|(requests, name)| requests.get_metadata(&name, &GetParams::default()));
        match self.call::<Partial>(&format!("reading {target}"), request).await {
            Ok(object) => Ok(Some(object.metadata)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The answer to a GET of this path at a server that is no API server, such as the debug endpoints of the scheduler
    /// ([`crate::ClientConfig::Url`]).
    pub async fn get_text(&self, path: &str, query: &[(&str, &str)]) -> Result<String, Error> {
        let path = path::with_query(path, query);
        let request = http::Request::get(&path).body(Vec::new());
        let request = request.map_err(kube::core::request::Error::BuildRequest);
        self.call_text(&format!("asking for {path}"), request).await
    }

    async fn read<T: DeserializeOwned>(&self, target: Target<'_>) -> Result<Option<T>, Error> {
        let request = path::object(target).and_then(|(requests, name)| requests.get(&name, &GetParams::default()));
        match self.call(&format!("reading {target}"), request).await {
            Ok(object) => Ok(Some(object)),
            Err(error) if error.is_not_found() => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Lists all objects of the selection, page by page.
    pub async fn list<T: Object>(&self, selection: &Selection) -> Result<Vec<T>, Error> {
        self.list_of(&T::RESOURCE, selection).await
    }

    /// Lists all objects of the selection with all their fields.
    pub async fn list_values(&self, resource: &Resource, selection: &Selection) -> Result<Vec<Value>, Error> {
        self.list_of(resource, selection).await
    }

    /// Lists the metadata of all objects of the selection. The API server sends nothing else of the objects.
    pub async fn list_metadata(&self, resource: &Resource, selection: &Selection) -> Result<Vec<Value>, Error> {
        self.pages(resource, selection, kube::core::Request::list_metadata)
            .await
    }

    async fn list_of<T: DeserializeOwned>(&self, resource: &Resource, selection: &Selection) -> Result<Vec<T>, Error> {
        self.pages(resource, selection, kube::core::Request::list).await
    }

    async fn pages<T: DeserializeOwned>(
        &self,
        resource: &Resource,
        selection: &Selection,
        page_request: impl Fn(
            &kube::core::Request,
            &ListParams,
        ) -> Result<http::Request<Vec<u8>>, kube::core::request::Error>,
    ) -> Result<Vec<T>, Error> {
        let attempt = format!("listing {}", resource.plural);
        let namespace = selection.namespace.as_deref().unwrap_or_default();
        let mut parameters = ListParams::default()
            .labels(&selection.labels)
            .fields(&selection.fields)
            .limit(PAGE_MAX);
        let mut all = Vec::new();
        loop {
            let request = requests(resource, namespace).and_then(|requests| page_request(&requests, &parameters));
            let page: Page<T> = self.call(&attempt, request).await?;
            all.extend(page.items);
            match page.metadata.next.filter(|token| !token.is_empty()) {
                Some(token) => parameters = parameters.continue_token(&token),
                None => return Ok(all),
            }
        }
    }

    /// Creates an object and returns it as created. Fills in apiVersion, kind and namespace.
    pub async fn create(&self, resource: &Resource, namespace: &str, mut body: Value) -> Result<Value, Error> {
        body["apiVersion"] = resource.api_version().into();
        body["kind"] = (&*resource.kind).into();
        if resource.scope == Scope::Namespaced {
            body["metadata"]["namespace"] = namespace.into();
        }
        let name = body["metadata"]["name"].as_str().unwrap_or("(generated)").to_owned();
        let attempt = format!("creating {} {name} in {namespace}", resource.kind);
        let request = requests(resource, namespace)
            .and_then(|requests| requests.create(&PostParams::default(), body.to_string().into()));
        self.write(&attempt, request).await
    }

    /// Replaces an object as a whole, with a resourceVersion in the body. Only for kinds whose fields are all ours: objects of other
    /// kinds would lose fields that are newer than our types.
    pub async fn replace(&self, target: Target<'_>, body: &Value) -> Result<Value, Error> {
        let request = path::object(target)
            .and_then(|(requests, name)| requests.replace(&name, &PostParams::default(), body.to_string().into()));
        self.write(&format!("replacing {target}"), request).await
    }

    /// Patches an object and returns it as changed.
    pub async fn patch(&self, target: Target<'_>, part: Part, patch: Patch) -> Result<Value, Error> {
        let mut parameters = PatchParams::default();
        let patch = match patch {
            Patch::Merge(body) => KubePatch::Merge(body),
            Patch::Strategic(body) => KubePatch::Strategic(body),
            Patch::Json(operations) => {
                // kube's own type would check the operations; the API server does so, too, with better messages.
                return self.json_patch(target, part, &operations).await;
            }
            Patch::Apply { manager, mut fields } => {
                parameters = PatchParams::apply(manager).force();
                fields["apiVersion"] = target.resource.api_version().into();
                fields["kind"] = (&*target.resource.kind).into();
                KubePatch::Apply(fields)
            }
        };
        let request = path::object(target).and_then(|(requests, name)| match part.subresource() {
            None => requests.patch(&name, &parameters, &patch),
            Some(part) => requests.patch_subresource(part, &name, &parameters, &patch),
        });
        self.write(&format!("changing {target}"), request).await
    }

    async fn json_patch(&self, target: Target<'_>, part: Part, operations: &[Value]) -> Result<Value, Error> {
        let attempt = format!("changing {target}");
        let part = part.subresource().map(|part| format!("/{part}")).unwrap_or_default();
        let body = Value::from(operations).to_string().into_bytes();
        let request = path::object(target).and_then(|(requests, name)| {
            http::Request::patch(format!("{}/{name}{part}", requests.url_path))
                .header(http::header::CONTENT_TYPE, "application/json-patch+json")
                .header(http::header::ACCEPT, "application/json")
                .body(body)
                .map_err(kube::core::request::Error::BuildRequest)
        });
        self.write(&attempt, request).await
    }

    /// Deletes an object. An object that does not exist counts as deleted.
    pub async fn delete(&self, target: Target<'_>, deletion: &Deletion) -> Result<(), Error> {
        let propagation = match deletion.dependents {
            Dependents::Later => DeleteParams::background(),
            Dependents::First => DeleteParams::foreground(),
        };
        let parameters = DeleteParams {
            grace_period_seconds: deletion.grace_seconds,
            preconditions: (deletion.uid.is_some() || deletion.resource_version.is_some()).then(|| Preconditions {
                uid: deletion.uid.clone(),
                resource_version: deletion.resource_version.clone(),
            }),
            ..propagation
        };
        let request = path::object(target).and_then(|(requests, name)| requests.delete(&name, &parameters));
        match self.write_only(format!("deleting {target}"), request).await {
            Err(error) if !error.is_not_found() => Err(error),
            _ => Ok(()),
        }
    }

    /// Binds a pod to a node.
    pub async fn bind(&self, namespace: &str, name: &str, uid: &str, node: &str) -> Result<(), Error> {
        // The UID keeps the call from binding a later pod of the same name.
        let metadata = json!({ "name": name, "namespace": namespace, "uid": uid });
        self.post_binding(namespace, name, node, metadata).await
    }

    /// Binds a pod to a node, unless the pod has changed since `resource_version`. A Binding that timed out can therefore not take
    /// effect after a later change of the pod.
    pub async fn bind_unchanged(
        &self,
        pod: Target<'_>,
        uid: &str,
        resource_version: &str,
        node: &str,
    ) -> Result<(), Error> {
        let Target { namespace, name, .. } = pod;
        let metadata = json!({ "name": name, "namespace": namespace, "uid": uid, "resourceVersion": resource_version });
        self.post_binding(namespace, name, node, metadata).await
    }

    async fn post_binding(&self, namespace: &str, name: &str, node: &str, metadata: Value) -> Result<(), Error> {
        let body = json!({
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": metadata,
            "target": { "apiVersion": "v1", "kind": "Node", "name": node },
        });
        let attempt = format!("binding Pod {namespace}/{name} to node {node}");
        let target = Target::of::<kai_api::Pod>(namespace, name);
        self.write_only(attempt, post_part(target, "binding", &body)).await
    }

    /// Posts to a subresource of an object.
    pub async fn post_to(&self, target: Target<'_>, subresource: &'static str, body: &Value) -> Result<Value, Error> {
        let attempt = format!("posting to {subresource} of {target}");
        self.write(&attempt, post_part(target, subresource, body)).await
    }

    async fn write<T: DeserializeOwned>(&self, attempt: &str, request: Built) -> Result<T, Error> {
        decode(attempt, &self.write_text(attempt, request).await?)
    }

    /// A write whose response body is not needed.
    pub(crate) async fn write_only(&self, attempt: String, request: Built) -> Result<(), Error> {
        self.write_text(&attempt, request).await.map(drop)
    }

    pub(crate) async fn call<T: DeserializeOwned>(&self, attempt: &str, request: Built) -> Result<T, Error> {
        decode(attempt, &self.call_text(attempt, request).await?)
    }

    fn write_text<'a>(&'a self, attempt: &'a str, request: Built) -> BoxFuture<'a, Result<String, Error>> {
        let Some(leadership) = &self.leadership else {
            return self.call_text(attempt, request);
        };
        // A write that hangs or is being retried ends with the leadership: it must not take effect under another leader.
        Box::pin(async move {
            tokio::select! {
                biased;
                () = leadership.wait_until_lost() => Err(Error::NotLeader { attempt: attempt.to_owned() }),
                answer = self.call_text(attempt, request) => answer,
            }
        })
    }

    /// Sends the request and returns the body of the response. Boxed: otherwise every crate that awaits a call would compile the whole
    /// HTTP client again.
    pub(crate) fn call_text<'a>(&'a self, attempt: &'a str, request: Built) -> BoxFuture<'a, Result<String, Error>> {
        Box::pin(async move {
            let fail = |error| Error::call(attempt.to_owned(), error);
            let request = request.map_err(|error| fail(kube::Error::BuildRequest(error)))?;
            let (method, started) = (request.method().clone(), Instant::now());
            let answer = tokio::time::timeout(crate::client::CALL_SECONDS_MAX, self.kube.request_text(request)).await;
            let answer = match answer {
                Ok(answer) => answer.map_err(fail),
                Err(_) => Err(Error::Call {
                    attempt: attempt.to_owned(),
                    code: None,
                    message: "no answer in time".to_owned(),
                }),
            };
            self.call_metrics.record(&method, &answer, started.elapsed());
            answer
        })
    }
}

fn post_part(target: Target<'_>, subresource: &'static str, body: &Value) -> Built {
    path::object(target).and_then(|(requests, name)| {
        requests.create_subresource(subresource, &name, &PostParams::default(), body.to_string().into())
    })
}

fn decode<T: DeserializeOwned>(attempt: &str, text: &str) -> Result<T, Error> {
    serde_json::from_str(text).map_err(|error| Error::call(attempt.to_owned(), kube::Error::SerdeError(error)))
}

pub(crate) type Built = Result<http::Request<Vec<u8>>, kube::core::request::Error>;
