//! Applies and creates the objects of an installation. A pass can be repeated: it applies the same fields, and creates no object twice.

use kai_api::{Resource, Scope};
use kai_cluster::{Client, Part, Patch, Target};

use super::Error;
use super::anchor::CreatedObjects;
use super::directory::{InstallationObject, Rule};

/// KAI's name, so that its applied fields become ours.
const FIELD_MANAGER: &str = "kai-config-deployer";

/// Kinds whose objects the API server sends to kai's webhooks.
const KINDS_WITH_WEBHOOK: [(&str, &str); 3] = [
    ("scheduling.run.ai", "Queue"),
    ("scheduling.run.ai", "PodGroup"),
    ("kai.scheduler", "Topology"),
];

/// Whether the API server sends the object to a webhook of kai's.
pub(super) fn has_webhook(object: &InstallationObject) -> bool {
    let group = object.api_version.split('/').next().unwrap_or_default();
    KINDS_WITH_WEBHOOK.contains(&(group, &object.kind))
}

/// What a pass over the objects changed.
#[derive(Debug, Default)]
pub(super) struct Pass {
    pub(super) applied: Vec<String>,
    pub(super) created: Vec<String>,
}

impl Pass {
    /// Applies and creates all objects, up to the first error. The record of created objects is written in any case.
    pub(super) async fn run(client: &Client, objects: &[InstallationObject]) -> Result<Pass, Error> {
        let mut pass = Pass::default();
        let mut record = CreatedObjects::read(client).await?;
        let mut result = Ok(());
        for object in objects {
            result = pass.install(client, object, &mut record).await;
            if result.is_err() {
                break;
            }
        }
        let written = record.write(client).await;
        result?;
        match written {
            // Without the permission, deleted objects are created again at the next start.
            Err(error) if error.is_forbidden() => tracing::warn!(%error, "the created objects can't be recorded"),
            written => written?,
        }
        Ok(pass)
    }

    async fn install(
        &mut self,
        client: &Client,
        object: &InstallationObject,
        record: &mut CreatedObjects,
    ) -> Result<(), Error> {
        let resource = client.resource_of(&object.api_version, &object.kind).await?;
        let resource = resource.ok_or_else(|| Error::NotServed {
            source_name: object.source.clone(),
            object: object.title(),
            kind: format!("{} {}", object.api_version, object.kind),
        })?;
        match (resource.scope, object.namespace.as_str()) {
            (Scope::Namespaced, "") => {
                return Err(
                    object.problem("metadata.namespace is missing; write the namespace of the object".to_owned())
                );
            }
            (Scope::Cluster, namespace) if !namespace.is_empty() => {
                let problem = "metadata.namespace is set, but the kind has no namespaces; leave it out";
                return Err(object.problem(problem.to_owned()));
            }
            (Scope::Namespaced | Scope::Cluster, _) => {}
        }
        match object.rule {
            Rule::Apply => self.apply(client, &resource, object).await,
            Rule::Create => self.create(client, &resource, object, record).await,
        }
    }

    async fn apply(&mut self, client: &Client, resource: &Resource, object: &InstallationObject) -> Result<(), Error> {
        let patch = Patch::Apply {
            manager: FIELD_MANAGER,
            fields: object.object.clone(),
        };
        let applied = client.patch(target(resource, object), Part::Object, patch).await;
        applied.map_err(|error| rejected(object, error))?;
        self.applied.push(object.title());
        Ok(())
    }

    /// Creates the object unless it exists, or was created for this installation before and deleted since.
    async fn create(
        &mut self,
        client: &Client,
        resource: &Resource,
        object: &InstallationObject,
        record: &mut CreatedObjects,
    ) -> Result<(), Error> {
        let id = match object.namespace.as_str() {
            "" => format!("{}.{}/{}", resource.plural, resource.group, object.name),
            namespace => format!("{}.{}/{namespace}/{}", resource.plural, resource.group, object.name),
        };
        if record.contains(&id) {
            return Ok(());
        }
        if client.get_metadata(target(resource, object)).await?.is_none() {
            match client.create(resource, &object.namespace, object.object.clone()).await {
                Ok(_) => self.created.push(object.title()),
                // Another replica was faster.
                Err(error) if error.is_conflict() => {}
                Err(error) => return Err(rejected(object, error)),
            }
        }
        record.add(id);
        Ok(())
    }
}

/// The error, with the file and object if the API server rejects the object as invalid.
fn rejected(object: &InstallationObject, error: kai_cluster::Error) -> Error {
    match error {
        kai_cluster::Error::Call {
            code: Some(400 | 422),
            message,
            ..
        } => Error::Rejected {
            source_name: object.source.clone(),
            object: object.title(),
            message,
        },
        other => Error::Cluster(other),
    }
}

fn target<'a>(resource: &'a Resource, object: &'a InstallationObject) -> Target<'a> {
    Target {
        resource,
        namespace: &object.namespace,
        name: &object.name,
    }
}
