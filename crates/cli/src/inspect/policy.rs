//! The policy to look at a cluster with: that of its Config and of the SchedulingShard of the node pool, with typed flags in their place.

use kai_cluster::Client;
use kai_controllers::operator::read_policy;

use super::Connection;
use super::load::plain;
use crate::roles::{ShardPolicy, shard_policy};

impl Connection {
    /// The settings of the scheduler as which the cluster is looked at. Where they can't be read, a warning says so on standard error, and the
    /// defaults are used.
    pub(super) async fn settings(&self, client: &Client) -> anyhow::Result<kai_scheduler::Settings> {
        let policy = self.policy(client).await.unwrap_or_else(|reason| {
            if let Some(warning) = self.warning(&reason) {
                eprintln!("warning: {warning}");
            }
            ShardPolicy::default()
        });
        self.apply_flags(policy).settings()
    }

    /// The name of the lease of the scheduler that the flags mean.
    pub(super) async fn lease_name(&self, client: &Client) -> anyhow::Result<String> {
        // The name of the scheduler is the default one, unless the Config can be read and says otherwise.
        let policy = self.policy(client).await.unwrap_or_default();
        Ok(self.apply_flags(policy).settings()?.lease_name())
    }

    async fn policy(&self, client: &Client) -> Result<ShardPolicy, String> {
        match read_policy(client).await {
            Ok(policy) => shard_policy(&policy, &self.node_pool),
            Err(error) => Err(plain(&error)),
        }
    }

    /// What is told when the policy of the cluster is unknown. A typed configuration file is the policy.
    fn warning(&self, reason: &str) -> Option<String> {
        self.scheduler_conf.is_none().then(|| {
            format!(
                "the scheduler's policy is unknown ({reason}); reasons and order are those of the default policy\n  \
                 give the scheduler's configuration file with --scheduler-conf, and its name with --scheduler-name"
            )
        })
    }

    /// Typed flags come before the policy of the cluster.
    fn apply_flags(&self, mut policy: ShardPolicy) -> ShardPolicy {
        policy.set("partition-label-value", &self.node_pool);
        if let Some(name) = &self.scheduler_name {
            policy.set("scheduler-name", name);
        }
        if let Some(path) = &self.scheduler_conf {
            policy.set_config_file(path);
        }
        policy
    }
}

#[cfg(test)]
mod tests {
    use axum::Json;
    use axum::http::{StatusCode, Uri};
    use axum::response::{IntoResponse, Response};
    use clap::Parser;
    use kai_engine::model::Config;
    use serde_json::json;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        connection: Connection,
    }

    fn connection(flags: &[&str]) -> Connection {
        let line = std::iter::once("kai").chain(flags.iter().copied());
        Line::parse_from(line).connection
    }

    /// Refuses the Config.
    async fn refuse(uri: Uri) -> Response {
        let refusal = json!({ "kind": "Status", "status": "Failure", "code": 403, "reason": "Forbidden", "message": "no configs for you" });
        match uri.path().ends_with("/configs") {
            true => (StatusCode::FORBIDDEN, Json(refusal)).into_response(),
            false => Json(json!({ "kind": "List", "metadata": {}, "items": [] })).into_response(),
        }
    }

    #[tokio::test]
    async fn without_the_right_to_read_it_the_policy_is_the_default_and_a_warning_says_so() {
        let client = Client::in_process(axum::Router::new().fallback(refuse));
        let settings = connection(&["--node-pool", "a100"]).settings(&client).await.unwrap();
        assert_eq!(
            (settings.config, settings.partition.name()),
            (Config::default(), "a100")
        );
        let error = read_policy(&client).await.unwrap_err();
        assert_eq!(plain(&error), "no configs for you");
        let warning = connection(&[]).warning(&plain(&error)).unwrap();
        assert!(
            warning.contains("(no configs for you)") && warning.contains("--scheduler-conf"),
            "{warning}"
        );
        assert_eq!(connection(&["--scheduler-conf", "c.yaml"]).warning("no"), None);
    }
}
