//! Records an event for pods whose `schedulerName` names a scheduler that does not run in this cluster.

use std::sync::Arc;

use futures_util::future::BoxFuture;
use kai_api::ObjectReference;
use kai_cluster::{Context, EventRecorder, ObjectEvent, Severity};

/// Watches for pods of missing schedulers.
#[derive(Debug)]
pub struct OtherSchedulers {
    context: Context,
    events: EventRecorder,
    /// The schedulers of this cluster.
    present: Vec<String>,
}

impl OtherSchedulers {
    /// For a cluster in which only these schedulers run.
    pub fn new(context: &Context, present: &[&str]) -> OtherSchedulers {
        OtherSchedulers {
            events: EventRecorder::new(&context.client, "kai-playground", context.clock),
            context: context.clone(),
            present: present.iter().map(|name| (*name).to_owned()).collect(),
        }
    }

    /// Runs until dropped.
    pub fn run(&self) -> BoxFuture<'_, ()> {
        // Boxed, so that this crate compiles it, and not every crate that awaits it.
        Box::pin(self.report_unschedulable())
    }

    async fn report_unschedulable(&self) {
        let pods = self.context.informers.pods().subscribe(&Arc::default());
        let mut reported = rustc_hash::FxHashSet::default();
        loop {
            for (key, pod) in pods.changed().await {
                let Some(pod) = pod else {
                    reported.remove(&key);
                    continue;
                };
                let Some(message) = self.problem(&pod) else { continue };
                if !reported.insert(key) {
                    continue;
                }
                let note = ObjectEvent {
                    about: ObjectReference {
                        api_version: "v1".to_owned(),
                        kind: "Pod".to_owned(),
                        namespace: pod.metadata.namespace().to_owned(),
                        name: pod.metadata.plain_name().to_owned(),
                        uid: pod.metadata.uid.as_deref().unwrap_or_default().to_owned(),
                    },
                    severity: Severity::Warning,
                    reason: "FailedScheduling",
                    message,
                    annotations: Vec::new(),
                };
                self.events.record(note).await;
            }
        }
    }

    /// Why no scheduler will place the pod.
    fn problem(&self, pod: &kai_api::Pod) -> Option<String> {
        let name = pod.scheduler_name();
        if pod.node_name().is_some() || self.present.iter().any(|present| present == name) {
            return None;
        }
        let present = self.present.join(", ");
        Some(format!(
            "no scheduler named {name:?} runs in this cluster, so the pod stays pending; set spec.schedulerName to {present}"
        ))
    }
}

#[cfg(test)]
mod tests {
    use kai_cluster::{Client, Clock};
    use serde_json::json;

    use super::*;
    use crate::server::{Options, Selector, Server};

    #[tokio::test(start_paused = true)]
    async fn a_pod_of_another_scheduler_gets_an_event_that_names_the_remedy() {
        let server = Server::new(Options::default());
        let context = Context::new(Client::in_process(server.service()), Clock::System);
        let others = OtherSchedulers::new(&context, &["kai-scheduler"]);
        tokio::spawn(async move { others.run().await });
        for (name, scheduler) in [("theirs", "default-scheduler"), ("ours", "kai-scheduler")] {
            let containers = json!([{ "name": "main", "image": "x" }]);
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": { "name": name },
                "spec": { "schedulerName": scheduler, "containers": containers } });
            server.store().create(pod).unwrap();
        }
        let events = || {
            server
                .store()
                .list("events", "default", &Selector::everything())
                .unwrap()
                .objects
        };
        while events().is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        let found = events();
        let [event] = &found[..] else { panic!("{found:?}") };
        assert_eq!(event["involvedObject"]["name"], "theirs");
        assert_eq!(event["reason"], "FailedScheduling");
        let message = event["message"].as_str().unwrap();
        assert!(
            message.contains("\"default-scheduler\"") && message.contains("kai-scheduler"),
            "{message}"
        );
    }
}
