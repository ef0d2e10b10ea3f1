//! Reads what a plan depends on from the API server.

use kai_api::{Config, SchedulingShard, gpu_operator_uses_cdi};
use kai_cluster::{Client, Error, Selection};

use super::inputs::ClusterFacts;

/// The Config, the shards and the facts of a cluster at one time.
#[derive(Clone, Debug, Default)]
pub struct State {
    /// The Config that has an effect.
    pub config: Option<Config>,
    /// All shards.
    pub shards: Vec<SchedulingShard>,
    /// What the plan has to know about the cluster.
    pub facts: ClusterFacts,
}

/// Reads the state. An API server without the CRDs, and an account without permission to read them, result in no Config and no shards.
pub async fn read_state(client: &Client) -> Result<State, Error> {
    let configs: Vec<Config> = none_if_unserved(client.list(&Selection::default()).await)?;
    let shards = none_if_unserved(client.list(&Selection::default()).await)?;
    Ok(State {
        config: configs.into_iter().find(Config::is_the_one),
        shards,
        facts: ClusterFacts {
            serves_vpa: serves_vpa(client).await?,
            gpu_operator_cdi: gpu_operator_cdi(client).await?,
        },
    })
}

async fn serves_vpa(client: &Client) -> Result<bool, Error> {
    let resource = client
        .resource_of("autoscaling.k8s.io/v1", "VerticalPodAutoscaler")
        .await?;
    Ok(resource.is_some())
}

/// Read again for every plan: the CRD of the GPU operator may appear and disappear at any time.
async fn gpu_operator_cdi(client: &Client) -> Result<bool, Error> {
    let Some(resource) = client.resource_of("nvidia.com/v1", "ClusterPolicy").await? else {
        return Ok(false);
    };
    let policies = none_if_unserved(client.list_values(&resource, &Selection::default()).await)?;
    Ok(gpu_operator_uses_cdi(&policies))
}

fn none_if_unserved<T>(listed: Result<Vec<T>, Error>) -> Result<Vec<T>, Error> {
    match listed {
        Err(error) if error.is_not_found() => Ok(Vec::new()),
        Err(error) if error.is_forbidden() => {
            tracing::warn!(%error, "working without them");
            Ok(Vec::new())
        }
        listed => listed,
    }
}
