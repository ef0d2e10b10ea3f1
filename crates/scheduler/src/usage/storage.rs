//! The history between two processes: a ConfigMap in kai's namespace, with a key per node pool. Only the leader reads and writes it.

use std::convert::Infallible;
use std::time::Duration;

use kai_api::ConfigMap;
use kai_cluster::{Error, Part, Patch, Target};
use serde_json::json;

use super::{Brought, UsageSource};

/// The name of the ConfigMap.
const NAME: &str = "kai-usage";
/// The field manager.
const MANAGER: &str = "kai-scheduler";
/// The time between two writes. A restart forgets less than this.
pub(super) const SAVE_PERIOD: Duration = Duration::from_secs(300);
/// The time before the first write: a missing right is told at once, not by a history that is gone after a restart.
pub(super) const FIRST_SAVE: Duration = Duration::from_secs(15);
/// The time between two attempts to load.
const RETRY_PERIOD: Duration = Duration::from_secs(10);
/// The size of the history of one node pool. An object of the API may have a MiB, and a cluster has a few node pools.
const BYTES_MAX: usize = 192 << 10;

impl UsageSource {
    /// Loads the history, then saves it as it comes. Nothing is saved before it was loaded: a failure must not overwrite the past.
    pub(super) async fn keep_history(&mut self) -> Infallible {
        loop {
            match self.load().await {
                Ok(text) => {
                    self.brings.send_replace(Brought::Saved(text.into()));
                    break;
                }
                Err(error) => {
                    self.metrics.usage().failed();
                    tracing::warn!(%error, "the saved history of usage was not read; it is tried again");
                    self.fail_first();
                }
            }
            tokio::time::sleep(RETRY_PERIOD).await;
        }
        loop {
            if self.saves.changed().await.is_err() {
                // The driver has ended, and this task ends with it.
                return std::future::pending().await;
            }
            let history = self.saves.borrow_and_update().clone();
            let Some(history) = history else { continue };
            // A long history takes a moment.
            let text = tokio::task::spawn_blocking(move || history.save(BYTES_MAX)).await;
            let Ok(text) = text else { continue };
            if let Err(error) = self.save(&text).await {
                self.metrics.usage().failed();
                tracing::warn!(%error, "the history of usage was not saved; it is tried again later");
            }
        }
    }

    fn target(&self) -> Target<'_> {
        Target::of::<ConfigMap>(&self.context.namespace, NAME)
    }

    /// The key of this scheduler.
    fn key(&self) -> &str {
        self.settings.partition.name()
    }

    async fn load(&self) -> Result<String, Error> {
        let found = self.context.client.get_value(self.target()).await?;
        let text = found.as_ref().and_then(|map| map["data"][self.key()].as_str());
        Ok(text.unwrap_or_default().to_owned())
    }

    async fn save(&self, text: &str) -> Result<(), Error> {
        let data = json!({ "data": { self.key(): text } });
        let client = &self.context.client;
        match client
            .patch(self.target(), Part::Object, Patch::Merge(data.clone()))
            .await
        {
            Err(error) if error.is_not_found() => {}
            saved => return saved.map(drop),
        }
        // Applied, not created: RBAC can restrict an apply to this name.
        let owner = client.lease_owner(&self.context.namespace).await?;
        // The API server takes the name of a new object from the body.
        let mut fields = json!({ "metadata": { "name": NAME } });
        if let Some(owner) = owner {
            fields["metadata"]["ownerReferences"] = json!([owner]);
        }
        let empty = Patch::Apply {
            manager: MANAGER,
            fields,
        };
        client.patch(self.target(), Part::Object, empty).await?;
        client
            .patch(self.target(), Part::Object, Patch::Merge(data))
            .await
            .map(drop)
    }
}
