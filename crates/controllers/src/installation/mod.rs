//! The installation step: the CustomResourceDefinitions, kai's namespace as the owner of the installation's anchor, the objects of the
//! installation directory, and the Topologies of Kueue. It runs before the roles start; it can be repeated and run by several replicas at
//! once. And the way out: [`uninstall`].
//!
//! The API server calls kai's own webhooks for some kinds. Objects of these kinds are [`RemainingObjects`]: they are created once the
//! roles have started, because a webhook of an earlier installation may wait for them.

mod anchor;
mod args;
pub mod crds;
mod directory;
mod error;
mod kai_programs;
mod objects;
mod topologies;
mod uninstall;
mod version;

use std::time::Duration;

use kai_cluster::Client;

pub use args::{InstallationArgs, Settings};
use directory::InstallationObject;
pub use error::Error;
pub use kai_programs::KaiPrograms;
use objects::Pass;
pub use uninstall::{Installation, ReservationPods, uninstall};

/// The first pause after a failure; each further one is twice as long.
const PAUSE_FIRST: Duration = Duration::from_millis(500);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(15);
/// How often the API server may reject one step as invalid. A definition that was just applied takes a moment until it is effective.
const REJECTIONS_MAX: u32 = 4;

/// The objects that are left to create after the roles have started.
#[derive(Debug, Default)]
pub struct RemainingObjects {
    objects: Vec<InstallationObject>,
    migrate_topologies: bool,
}

/// Carries the step out, as far as it needs no webhook of kai's. Waits for an API server that does not answer, and while programs of KAI run. Fails if an object or file
/// is invalid.
pub async fn run(client: &Client, settings: &Settings) -> Result<RemainingObjects, Error> {
    let objects = match &settings.directory {
        Some(directory) => directory::read(directory)?,
        None => Vec::new(),
    };
    match settings.kai_programs {
        KaiPrograms::WaitFor => {
            retry("looking for programs of KAI-Scheduler", async || {
                kai_programs::wait_until_gone(client, &settings.namespace).await
            })
            .await?;
        }
        KaiPrograms::Replace => {}
    }
    if settings.apply_crds {
        let applied = retry("applying the CustomResourceDefinitions", async || {
            crds::apply(client, crds::NewerCrds::Keep).await
        })
        .await?;
        tracing::info!(applied = applied.len(), "the CustomResourceDefinitions are there");
    }
    retry("giving the installation its owner", async || {
        match anchor::attach_to_namespace(client, &settings.namespace).await {
            // The installation works without it.
            Err(error) if error.is_forbidden() => {
                tracing::warn!(%error, "deleting kai's namespace will not delete its webhooks; uninstall kai by its chart or `kai uninstall`");
                Ok(())
            }
            attached => Ok(attached?),
        }
    })
    .await?;
    let (with_webhooks, others): (Vec<_>, Vec<_>) = objects.into_iter().partition(objects::has_webhook);
    create_and_apply(client, &others).await?;
    Ok(RemainingObjects {
        objects: with_webhooks,
        migrate_topologies: settings.migrate_topologies && settings.directory.is_some(),
    })
}

impl RemainingObjects {
    /// Creates the objects. Waits while a webhook does not answer. Fails if an object is invalid.
    pub async fn finish(self, client: &Client) -> Result<(), Error> {
        let mut objects = self.objects;
        if self.migrate_topologies {
            objects.extend(
                retry("reading the Topologies of Kueue", async || {
                    topologies::of_kueue(client).await
                })
                .await?,
            );
        }
        create_and_apply(client, &objects).await?;
        tracing::info!("the installation step is complete");
        Ok(())
    }
}

async fn create_and_apply(client: &Client, objects: &[InstallationObject]) -> Result<(), Error> {
    if objects.is_empty() {
        return Ok(());
    }
    let done = retry("installing objects", async || Pass::run(client, objects).await).await?;
    for title in &done.created {
        tracing::info!("created {title}");
    }
    for title in &done.applied {
        tracing::info!("applied {title}");
    }
    Ok(())
}

/// Repeats a step, with growing pauses, until it succeeds or its input turns out to be invalid. Logs each new error once.
async fn retry<T>(step: &str, attempt: impl AsyncFn() -> Result<T, Error>) -> Result<T, Error> {
    let mut pause = PAUSE_FIRST;
    let mut rejections = 0;
    let mut logged = String::new();
    loop {
        let error = match attempt().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        rejections += u32::from(error.is_rejection());
        if error.is_permanent() || rejections >= REJECTIONS_MAX {
            return Err(error);
        }
        let text = error.to_string();
        if text != logged {
            tracing::warn!(error = text, "{step} failed; trying again");
            logged = text;
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(PAUSE_MAX);
    }
}
