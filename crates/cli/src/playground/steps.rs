//! The steps of the story, which the page can submit one by one.

use std::sync::atomic::{AtomicUsize, Ordering};

use kai_cluster::Client;
use kai_page::{BoxFuture, StoryStep, StorySteps};
use serde_json::Value;
use tokio::sync::Mutex;

use super::story::CHAPTERS;

/// The story in a cluster: how far it has got. Each step is submitted once, in order, by the playground or from the page.
pub(super) struct Steps {
    client: Client,
    submitted: AtomicUsize,
    /// Held while a step is submitted.
    submitting: Mutex<()>,
}

impl Steps {
    pub(super) fn new(client: &Client) -> Steps {
        Steps {
            client: client.clone(),
            submitted: AtomicUsize::new(0),
            submitting: Mutex::new(()),
        }
    }

    /// Submits the step, unless it has been submitted already.
    pub(super) async fn ensure(&self, step: usize) -> anyhow::Result<()> {
        let _guard = self.submitting.lock().await;
        if step < self.submitted.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.create(step).await
    }

    async fn create(&self, step: usize) -> anyhow::Result<()> {
        let manifests = CHAPTERS.get(step).map_or("", |chapter| chapter.manifests);
        for object in serde_saphyr::from_multiple::<Value>(manifests)? {
            submit(&self.client, object).await?;
        }
        self.submitted.store(step + 1, Ordering::Relaxed);
        Ok(())
    }

    async fn submit_next(&self, step: usize) -> Result<(), String> {
        let _guard = self.submitting.lock().await;
        let submitted = self.submitted.load(Ordering::Relaxed);
        if step >= CHAPTERS.len() {
            return Err(format!("the story has {} steps", CHAPTERS.len()));
        }
        if step < submitted {
            return Err("this step has been submitted already".to_owned());
        }
        if step > submitted {
            return Err("submit the steps before it first".to_owned());
        }
        self.create(step).await.map_err(|error| error.to_string())
    }
}

impl StorySteps for Steps {
    fn steps(&self) -> Vec<StoryStep> {
        let submitted = self.submitted.load(Ordering::Relaxed);
        let chapters = CHAPTERS.iter().enumerate();
        chapters
            .map(|(at, chapter)| StoryStep {
                title: chapter.title.to_owned(),
                submitted: at < submitted,
            })
            .collect()
    }

    fn submit(&self, step: usize) -> BoxFuture<'_, Result<(), String>> {
        Box::pin(self.submit_next(step))
    }
}

/// Creates the object, or as many copies as its annotation `copies` says. Objects that exist stay as they are.
async fn submit(client: &Client, object: Value) -> anyhow::Result<()> {
    let text = |field: &str| object[field].as_str().unwrap_or_default().to_owned();
    let resource = client.resource_of(&text("apiVersion"), &text("kind")).await?;
    let resource = resource.ok_or_else(|| anyhow::anyhow!("the cluster has no {}", text("kind")))?;
    let copies = object["metadata"]["annotations"]["copies"]
        .as_str()
        .and_then(|text| text.parse::<u32>().ok());
    let objects: Vec<Value> = match copies {
        None => vec![object],
        Some(copies) => (0..copies).map(|number| copy(&object, number)).collect(),
    };
    for object in objects {
        match client.create(&resource, "default", object).await {
            Err(error) if !error.is_conflict() => return Err(error.into()),
            Ok(_) | Err(_) => {}
        }
    }
    Ok(())
}

fn copy(object: &Value, number: u32) -> Value {
    let name = object["metadata"]["name"].as_str().unwrap_or_default();
    let mut copy = object.clone();
    copy["metadata"]["name"] = format!("{name}-{number}").into();
    if let Some(annotations) = copy["metadata"]["annotations"].as_object_mut() {
        annotations.remove("copies");
    }
    copy
}
