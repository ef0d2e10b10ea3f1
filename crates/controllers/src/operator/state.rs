//! Reads what a plan depends on from the API server.

use kai_api::{Config, SchedulingShard, gpu_operator_uses_cdi};
use kai_cluster::{Client, Error, Selection};
use serde_json::Value;

use super::inputs::ClusterFacts;

/// The Config, the shards and the facts of a cluster at one time.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The Config that has an effect.
    pub config: Option<Config>,
    /// All shards.
    pub shards: Vec<SchedulingShard>,
    /// Whether ClusterPolicies can be read and so watched.
    pub serves_cluster_policies: bool,
    /// What the plan has to know about the cluster.
    pub facts: ClusterFacts,
}

/// What the schedulers of a cluster do: the Config that has an effect, and all shards.
#[derive(Clone, Debug, Default)]
pub struct Policy {
    /// The Config that has an effect.
    pub config: Option<Config>,
    /// All shards.
    pub shards: Vec<SchedulingShard>,
}

/// Reads Config and shards. An API server without the CRDs has none; without the permission to read them, they are unknown: that is an error.
pub async fn read_policy(client: &Client) -> Result<Policy, Error> {
    let configs: Vec<Config> = none_if_absent(client.list(&Selection::default()).await)?;
    Ok(Policy {
        config: configs.into_iter().find(Config::is_the_one),
        shards: none_if_absent(client.list(&Selection::default()).await)?,
    })
}

/// Reads the state. An API server without the CRDs, and an account without permission to read them, result in no Config and no shards.
pub async fn read_state(client: &Client) -> Result<State, Error> {
    let configs: Vec<Config> = none_if_unserved(client.list(&Selection::default()).await)?;
    let shards = none_if_unserved(client.list(&Selection::default()).await)?;
    let cluster_policies = cluster_policies(client).await?;
    Ok(State {
        config: configs.into_iter().find(Config::is_the_one),
        shards,
        serves_cluster_policies: cluster_policies.is_some(),
        facts: ClusterFacts {
            serves_vpa: serves_vpa(client).await?,
            gpu_operator_cdi: gpu_operator_uses_cdi(&cluster_policies.unwrap_or_default()),
        },
    })
}

async fn serves_vpa(client: &Client) -> Result<bool, Error> {
    let resource = client
        .resource_of("autoscaling.k8s.io/v1", "VerticalPodAutoscaler")
        .await?;
    Ok(resource.is_some())
}

/// The GPU operator's ClusterPolicies; `None` without the GPU operator's CRD, and for an account that may not read them.
async fn cluster_policies(client: &Client) -> Result<Option<Vec<Value>>, Error> {
    let Some(resource) = client.resource_of("nvidia.com/v1", "ClusterPolicy").await? else {
        return Ok(None);
    };
    served(client.list_values(&resource, &Selection::default()).await)
}

fn none_if_absent<T>(listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    match listed {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        listed => listed,
    }
}

fn none_if_unserved<T>(listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    Ok(served(listed)?.unwrap_or_default())
}

/// The list; `None` if the API server does not serve the kind, or not to this account.
fn served<T>(listed: Result<Vec<T>, Error>) -> Result<Option<Vec<T>>, Error> {
    match listed {
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) if error.is_forbidden() => {
            tracing::warn!(%error, "working without them");
            Ok(None)
        }
        listed => listed.map(Some),
    }
}
