//! Lives a plan, and judges it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kai_api::Object;
use kai_embedded::server::{DeleteOptions, Faults, Selector, StoreHandle};
use serde_json::{Value, json};

use crate::harness::manifest::PodManifest;
use crate::harness::{Choice, Cluster};
use crate::others::OtherScheduler;
use crate::plan::{Plan, Step};
use crate::pods::may_be_evicted;
use crate::processes::Processes;
use crate::trouble::{REFUSED, Trouble};

/// Within this time, once the faults stopped, a cluster comes to rest.
const REST: Duration = Duration::from_secs(600);
/// A cluster in which nothing changed for so long has come to rest. Longer than what any role waits for, stale gangs included.
const QUIET: Duration = Duration::from_secs(80);
/// Within this time somebody who fits runs.
const SOON: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(500);
const RESERVATIONS: &str = kai_api::keys::RESERVATION;

/// What a life was like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Told {
    pub(crate) steps: u64,
    /// What went wrong how often.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) requests: u64,
    /// Equal for equal lives.
    pub(crate) fingerprint: u64,
}

/// Lives a plan. `Err` says which law was broken, with the story if it was asked for.
pub(crate) fn live(plan: &Plan, tell: bool) -> Result<Told, String> {
    let choice = Choice::Embedded;
    let lived = std::panic::catch_unwind(|| {
        choice.runtime().block_on(async {
            let cluster = Cluster::without_roles(choice.start().await, &plan.nodes).await;
            let trouble = Arc::new(Trouble::new(plan.seed, plan.rates.clone(), tell));
            let mut life = Life::new(plan, cluster, &trouble);
            let judged = life.run().await;
            let story = trouble.take_story().join("\n");
            if tell {
                println!("{story}");
            }
            judged.map_err(|problem| format!("{problem}\n{}", life.cluster.picture()))?;
            Ok(Told {
                steps: plan.steps.len() as u64,
                faults: trouble.struck(),
                requests: trouble.requests(),
                fingerprint: trouble.fingerprint(),
            })
        })
    });
    lived.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

struct Life<'a> {
    plan: &'a Plan,
    cluster: Cluster,
    store: StoreHandle,
    trouble: Arc<Trouble>,
    processes: Processes,
    /// Pods that users created.
    pods: BTreeMap<String, Fate>,
    /// Nodes that are there.
    present: Vec<bool>,
    /// Nodes that were less than they said for a while; they may reject pods.
    shaken: Vec<bool>,
    others: OtherScheduler,
}

/// What may have become of a pod.
#[derive(Clone, Copy, Debug)]
struct Fate {
    /// Why it may be gone.
    excuse: Option<&'static str>,
    /// Others may take its place.
    may_be_evicted: bool,
}

impl<'a> Life<'a> {
    fn new(plan: &'a Plan, cluster: Cluster, trouble: &Arc<Trouble>) -> Life<'a> {
        let server = cluster.server().expect("faults are those of the embedded server");
        Life {
            plan,
            store: server.store(),
            processes: Processes::start(server, cluster.clock(), plan.layout, trouble),
            trouble: Arc::clone(trouble),
            pods: BTreeMap::new(),
            present: vec![true; plan.nodes.len()],
            shaken: vec![false; plan.nodes.len()],
            others: OtherScheduler::default(),
            cluster,
        }
    }

    async fn run(&mut self) -> Result<(), String> {
        self.cluster.until_installed().await;
        for queue in &self.plan.queues {
            self.cluster.create(queue.clone()).await;
        }
        let faults = Arc::clone(&self.trouble) as Arc<dyn Faults>;
        self.cluster.server().unwrap().set_faults(faults);
        for (step, pause) in &self.plan.steps {
            self.trouble.tell(|| describe(step));
            self.happen(step).await;
            tokio::time::sleep(Duration::from_millis(*pause)).await;
            self.collect_pods_of_lost_nodes();
            none(self.found(), "at once")?;
        }
        self.heal().await;
        self.trouble.tell(|| "-- the faults stop".to_owned());
        if self.pods.keys().any(|name| name.ends_with(REFUSED)) {
            self.one_more_runs("bystander").await?;
        }
        self.trouble.lift_policy();
        self.rest("after the faults").await?;
        self.note_state();
        self.nobody_is_lost()?;
        self.one_more_runs("newcomer").await?;
        self.everybody_leaves().await?;
        self.all_gpus_can_be_had().await?;
        self.note_state();
        Ok(())
    }

    /// Laws of every instant that were broken.
    fn found(&self) -> Vec<String> {
        self.cluster.found().into_iter().chain(self.processes.ended()).collect()
    }

    /// Laws of a settled cluster that are broken.
    fn found_when_settled(&self) -> Vec<String> {
        let found = self.cluster.found_when_settled().into_iter();
        found.chain(self.processes.ended()).collect()
    }

    /// Equal lives come to equal objects, to the last byte.
    fn note_state(&self) {
        for resource in [
            "pods",
            "bindrequests.scheduling.run.ai",
            "podgroups.scheduling.run.ai",
            "configmaps",
            "events",
        ] {
            let page = self.store.list(resource, "", &Selector::everything()).unwrap();
            page.objects.iter().for_each(|object| self.trouble.note(&object.json()));
        }
    }

    async fn happen(&mut self, step: &Step) {
        if let Some(kind) = step.fault() {
            self.trouble.count(kind);
        }
        match step {
            Step::Create { objects, .. } => self.create(objects).await,
            Step::Delete(pick) => {
                if let Some(pod) = self.pick("default", *pick) {
                    self.excuse(&pod, "deleted by its user");
                    let _ = self.cluster.delete::<kai_api::Pod>("default", &pod).await;
                }
            }
            Step::End(pick) => {
                if let Some(pod) = self.pick("default", *pick) {
                    let _ = self.cluster.kubelets.end_pod("default", &pod, 0).await;
                }
            }
            Step::Gpu { node, index, healthy } => {
                self.shaken[*node] = true;
                let name = &self.plan.nodes[*node].name;
                let _ = self.cluster.kubelets.set_gpu_health(name, *index, *healthy).await;
            }
            Step::RemoveNode(node) => self.remove(*node).await,
            Step::AddNode(node) => self.add(*node).await,
            Step::Cordon(node, on) => self.cordon(*node, *on).await,
            Step::Ready(node, ready) => {
                let name = &self.plan.nodes[*node].name;
                let _ = self.cluster.kubelets.set_ready(name, *ready).await;
            }
            Step::LoseReservation(pick) => {
                if let Some(pod) = self.pick(RESERVATIONS, *pick) {
                    let _ = self.cluster.delete::<kai_api::Pod>(RESERVATIONS, &pod).await;
                }
            }
            Step::EvictReservation(pick) => {
                if let Some(pod) = self.pick(RESERVATIONS, *pick) {
                    let _ = self.cluster.kubelets.evict(RESERVATIONS, &pod).await;
                }
            }
            Step::PreemptReservation(pick) => {
                if let Some(pod) = self.pick(RESERVATIONS, *pick) {
                    self.others.preempt(&self.cluster, &pod).await;
                }
            }
            Step::Pressure(node) => {
                self.shaken[*node] = true;
                let _ = self
                    .cluster
                    .kubelets
                    .evict_for_memory_pressure(&self.plan.nodes[*node].name)
                    .await;
            }
            Step::Restart { process, pause } => {
                self.processes.restart(*process, Duration::from_millis(*pause)).await;
            }
            Step::RestartAll(pause) => self.processes.restart_all(Duration::from_millis(*pause)).await,
            Step::Double(process) => self.processes.double(*process).await,
            Step::EndDoubles => self.processes.kill_doubles().await,
            Step::Revoke { process, revoked } => {
                self.trouble.set_revoked(self.processes.name(*process), *revoked);
            }
            Step::Reject { node, count } => {
                self.shaken[*node] = true;
                self.cluster.kubelets.reject_next(&self.plan.nodes[*node].name, *count);
            }
            Step::Outage(on) => self.trouble.set_outage(*on),
            Step::Forget => self.cluster.server().unwrap().compact_history(),
        }
    }

    async fn create(&mut self, objects: &[Value]) {
        for object in objects {
            // Refused while the webhooks are away, or because it is odd: its user's matter.
            let created = self.cluster.try_create(object.clone()).await;
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            match created {
                Ok(_) if object["kind"] == "Pod" => {
                    let fate = Fate {
                        excuse: None,
                        may_be_evicted: may_be_evicted(object),
                    };
                    self.pods.insert(name, fate);
                }
                Ok(_) => {}
                Err(error) => self.trouble.tell(|| format!("  {name} is refused: {error}")),
            }
        }
    }

    async fn remove(&mut self, node: usize) {
        if !std::mem::replace(&mut self.present[node], false) {
            return;
        }
        self.shaken[node] = true;
        let before = self.names("default");
        let _ = self.cluster.kubelets.remove(&self.plan.nodes[node].name).await;
        let after = self.names("default");
        for pod in before.into_iter().filter(|pod| !after.contains(pod)) {
            self.excuse(&pod, "left with its node");
        }
        self.collect_pods_of_lost_nodes();
    }

    async fn add(&mut self, node: usize) {
        if std::mem::replace(&mut self.present[node], true) {
            return;
        }
        self.collect_pods_of_lost_nodes();
        self.cluster.kubelets.add(&self.plan.nodes[node]).await.unwrap();
    }

    async fn cordon(&self, node: usize, on: bool) {
        let change = json!({ "spec": { "unschedulable": on } });
        let name = &self.plan.nodes[node].name;
        // It may be gone.
        let _ = self.cluster.patch(&kai_api::Node::RESOURCE, "", name, change).await;
    }

    /// What the garbage collector of pods does.
    fn collect_pods_of_lost_nodes(&mut self) {
        for pod in self.list() {
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            let lost = self
                .plan
                .nodes
                .iter()
                .zip(&self.present)
                .any(|(template, present)| template.name == node && !present);
            if lost {
                let text = |key: &str| pod["metadata"][key].as_str().unwrap_or_default();
                let _ = self
                    .store
                    .delete("pods", text("namespace"), text("name"), &DeleteOptions::now());
                self.excuse(text("name"), "left with its node");
            }
        }
    }

    fn excuse(&mut self, pod: &str, why: &'static str) {
        if let Some(fate) = self.pods.get_mut(pod) {
            fate.excuse.get_or_insert(why);
        }
    }

    /// Everything works again.
    async fn heal(&mut self) {
        self.trouble.stop();
        self.processes.kill_doubles().await;
        self.others.leave(&self.cluster).await;
        for node in 0..self.plan.nodes.len() {
            self.add(node).await;
            self.cordon(node, false).await;
            let name = &self.plan.nodes[node].name;
            self.cluster.kubelets.reject_next(name, 0);
            self.cluster.kubelets.set_ready(name, true).await.unwrap();
            for index in 0..self.cluster.kubelets.gpus_on(name).len() {
                self.cluster.kubelets.set_gpu_health(name, index, true).await.unwrap();
            }
        }
    }

    /// Waits until nothing changes any more; all laws hold then.
    async fn rest(&mut self, when: &str) -> Result<(), String> {
        let resting = async {
            let mut before = String::new();
            loop {
                let now = self.state();
                if now == before {
                    return;
                }
                before = now;
                tokio::time::sleep(QUIET).await;
            }
        };
        if tokio::time::timeout(REST, resting).await.is_err() {
            return Err(format!("{when} the cluster does not come to rest"));
        }
        none(self.found_when_settled(), when)
    }

    /// Versions of what moves while work is under way.
    fn state(&self) -> String {
        let requests = self
            .store
            .list("bindrequests.scheduling.run.ai", "", &Selector::everything());
        let requests = requests.map(|page| page.objects).unwrap_or_default();
        let requests = requests.iter().map(|object| object.to_value());
        let moving = self.list().into_iter().chain(requests).map(|object| {
            let metadata = &object["metadata"];
            // A reason to wait may be worded anew for ever; where a pod is may not.
            format!(
                "{} {} {} {}",
                metadata["uid"], metadata["labels"], object["spec"]["nodeName"], object["status"]["phase"]
            )
        });
        moving.collect::<Vec<_>>().join("\n")
    }

    fn nobody_is_lost(&self) -> Result<(), String> {
        let pods = self.list();
        for (name, fate) in &self.pods {
            let pod = pods
                .iter()
                .find(|pod| pod["metadata"]["name"] == **name && pod["metadata"]["namespace"] == "default");
            let Some(pod) = pod else {
                let evicted = self.trouble.was_deleted_by_roles(name);
                match fate.excuse {
                    None if !evicted => return Err(format!("pod {name} is gone, and nobody deleted it")),
                    None if !fate.may_be_evicted => return Err(format!("pod {name} was evicted, and may not be")),
                    _ => continue,
                }
            };
            let node = pod["spec"]["nodeName"].as_str().unwrap_or_default();
            let at = self.plan.nodes.iter().position(|template| template.name == node);
            let shaken = at.is_some_and(|at| self.shaken[at]);
            if pod["status"]["phase"] == "Failed" && !shaken {
                return Err(format!("pod {name} on node {node} failed: {}", pod["status"]));
            }
        }
        Ok(())
    }

    /// Nobody who waits for ever keeps others from running.
    async fn one_more_runs(&mut self, name: &str) -> Result<(), String> {
        // The webhooks may be on their way back.
        self.cluster.create_soon(PodManifest::new(name).build()).await;
        // One that had its place may have made room for somebody with a better right to it.
        self.soon(&format!("{name} runs"), |life| {
            life.cluster.runs(name) || life.trouble.was_deleted_by_roles(name)
        })
        .await
    }

    /// When all users have gone, nothing of ours is left.
    async fn everybody_leaves(&mut self) -> Result<(), String> {
        for pod in self.names("default") {
            let _ = self.cluster.delete::<kai_api::Pod>("default", &pod).await;
        }
        let gone = self
            .soon("all pods are gone, reservations too", |life| life.list().is_empty())
            .await;
        gone.map_err(|error| {
            let left = self.list().into_iter().map(|pod| pod.to_string());
            format!("{error}\nleft: {}", left.collect::<Vec<_>>().join("\n"))
        })?;
        self.soon("no bind request is left", |life| {
            life.cluster.informers().bind_requests().is_empty()
        })
        .await
    }

    /// No GPU was forgotten.
    async fn all_gpus_can_be_had(&mut self) -> Result<(), String> {
        let plain = self
            .plan
            .nodes
            .iter()
            .filter(|node| node.replicas.is_none() && node.mig_strategy.is_none());
        let count: usize = plain.map(|node| self.cluster.kubelets.gpus_on(&node.name).len()).sum();
        for number in 0..count {
            self.cluster
                .create(PodManifest::new(&format!("last-{number}")).gpus(1).build())
                .await;
        }
        self.soon("every GPU can be had", |life| life.cluster.running().len() == count)
            .await?;
        self.rest("in the end").await
    }

    async fn soon(&self, what: &str, holds: impl Fn(&Life<'_>) -> bool) -> Result<(), String> {
        let waited = async {
            while !holds(self) {
                tokio::time::sleep(GLANCE).await;
            }
        };
        let timed = tokio::time::timeout(SOON, waited).await;
        timed.map_err(|_| format!("it does not come to this: {what}"))
    }

    fn list(&self) -> Vec<Value> {
        let page = self.store.list("pods", "", &Selector::everything()).unwrap();
        page.objects.iter().map(|object| object.to_value()).collect()
    }

    fn names(&self, namespace: &str) -> Vec<String> {
        let pods = self
            .list()
            .into_iter()
            .filter(|pod| pod["metadata"]["namespace"] == namespace);
        pods.map(|pod| pod["metadata"]["name"].as_str().unwrap().to_owned())
            .collect()
    }

    fn pick(&self, namespace: &str, pick: u64) -> Option<String> {
        let mut names = self.names(namespace);
        names.sort();
        let at = pick.checked_rem(names.len() as u64)?;
        Some(names.swap_remove(usize::try_from(at).unwrap()))
    }
}

fn describe(step: &Step) -> String {
    match step {
        Step::Create { words, .. } => format!("create {words}"),
        other => format!("{other:?}"),
    }
}

fn none(found: Vec<String>, when: &str) -> Result<(), String> {
    match found.is_empty() {
        true => Ok(()),
        false => Err(format!("{when}: {}", found.join("\n"))),
    }
}
