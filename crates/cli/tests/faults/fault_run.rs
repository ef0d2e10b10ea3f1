//! Runs a plan on an embedded cluster and checks the run.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kai_api::Object;
use kai_embedded::kubelet::{AUDIT_PERIOD, EVENT_MISSING, LimitedContainer};
use kai_embedded::server::{DeleteOptions, Faults, Selector, StoreHandle};
use serde_json::{Value, json};

use crate::harness::manifest::PodManifest;
use crate::harness::{Choice, Cluster};
use crate::injector::{FaultInjector, REFUSED};
use crate::other_scheduler::OtherScheduler;
use crate::plan::{Plan, Step};
use crate::pods::may_be_evicted;
use crate::processes::Processes;
use crate::volumes;

/// The time in which a cluster becomes stable after the faults stop.
const REST: Duration = Duration::from_secs(600);
/// A cluster without changes for this time is stable. It is longer than any pause of a role, including the grace period of stale gangs.
const QUIET: Duration = Duration::from_secs(80);
/// The time between two looks at a cluster that becomes stable.
const SAMPLE: Duration = Duration::from_secs(5);
/// A pod that fits runs within this time.
const SOON: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(500);
/// An audit takes this long at most, and its event another moment.
const AUDIT_SLACK: Duration = Duration::from_secs(5);
const RESERVATIONS: &str = kai_api::keys::RESERVATION;

/// The summary of one run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct RunSummary {
    pub(crate) steps: u64,
    /// Injected faults by kind.
    pub(crate) faults: BTreeMap<&'static str, u64>,
    pub(crate) requests: u64,
    /// A digest of all calls, deliveries and final objects. Equal plans have equal ones.
    pub(crate) fingerprint: u64,
}

/// Runs a plan. `Err` names the invariant that was broken; with `tell` the run prints its log.
pub(crate) fn run_plan(plan: &Plan, tell: bool) -> Result<RunSummary, String> {
    let choice = Choice::Embedded;
    let result = std::panic::catch_unwind(|| {
        choice.runtime().block_on(async {
            let cluster = Cluster::without_roles(choice.start().await, &plan.nodes).await;
            let injector = Arc::new(FaultInjector::new(
                plan.seed,
                plan.rates.clone(),
                cluster.pods_to_leave(),
                tell,
            ));
            let mut run = FaultRun::new(plan, cluster, &injector);
            let judged = run.run().await;
            let story = injector.take_story().join("\n");
            if tell {
                println!("{story}");
            }
            judged.map_err(|problem| format!("{problem}\n{}", run.cluster.picture()))?;
            Ok(RunSummary {
                steps: plan.steps.len() as u64,
                faults: injector.struck(),
                requests: injector.requests(),
                fingerprint: injector.fingerprint(),
            })
        })
    });
    result.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        let text = text.or_else(|| panic.downcast_ref::<&str>().map(|text| (*text).to_owned()));
        Err(format!("a panic: {}", text.unwrap_or_default()))
    })
}

struct FaultRun<'a> {
    plan: &'a Plan,
    cluster: Cluster,
    store: StoreHandle,
    injector: Arc<FaultInjector>,
    processes: Processes,
    /// Pods that users created.
    pods: BTreeMap<String, Fate>,
    /// Whether each node exists now.
    present: Vec<bool>,
    /// Whether a node lost GPUs or memory for a while; its kubelet may reject pods.
    shaken: Vec<bool>,
    others: OtherScheduler,
}

/// What may happen to a pod.
#[derive(Clone, Copy, Debug)]
struct Fate {
    /// The reason why the pod may be deleted.
    excuse: Option<&'static str>,
    /// Whether the scheduler may evict the pod for another one.
    may_be_evicted: bool,
}

impl<'a> FaultRun<'a> {
    fn new(plan: &'a Plan, cluster: Cluster, injector: &Arc<FaultInjector>) -> FaultRun<'a> {
        let server = cluster.server().expect("faults are those of the embedded server");
        FaultRun {
            plan,
            store: server.store(),
            processes: Processes::start(server, cluster.clock(), plan.layout, injector),
            injector: Arc::clone(injector),
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
        let faults = Arc::clone(&self.injector) as Arc<dyn Faults>;
        self.cluster.server().unwrap().set_faults(faults);
        for (step, pause) in &self.plan.steps {
            self.injector.log(|| describe(step));
            self.happen(step).await;
            tokio::time::sleep(Duration::from_millis(*pause)).await;
            self.collect_pods_of_lost_nodes();
            none(self.found(), "at once")?;
        }
        self.heal().await;
        self.injector.log(|| "-- the faults stop".to_owned());
        if self.pods.keys().any(|name| name.ends_with(REFUSED)) {
            self.one_more_runs("bystander").await?;
        }
        self.injector.lift_policy();
        self.rest("after the faults").await?;
        self.note_state();
        self.nobody_is_lost()?;
        self.one_more_runs("newcomer").await?;
        self.everybody_leaves().await?;
        self.all_gpus_can_be_had().await?;
        self.note_state();
        Ok(())
    }

    /// Broken invariants of those that hold at every moment.
    fn found(&self) -> Vec<String> {
        let found = self.cluster.found().into_iter().chain(self.processes.ended());
        let found = found.chain(self.lost_limits_without_event());
        found.chain(volumes::found(&self.store)).collect()
    }

    /// A container whose limit is lost is reported within the period of the agent's audit.
    fn lost_limits_without_event(&self) -> Vec<String> {
        let is_due = |container: &LimitedContainer| {
            let noticeable = container
                .noticeable_for
                .is_some_and(|time| time > AUDIT_PERIOD + AUDIT_SLACK);
            noticeable && container.tier == kai_api::EnforcementTier::Driver
        };
        let mut containers = self.cluster.kubelets.gpu_facts().containers;
        containers.retain(is_due);
        if containers.is_empty() {
            return Vec::new();
        }
        let events = self.store.list("events", "", &Selector::everything()).unwrap().objects;
        let is_told = |container: &LimitedContainer| {
            let about = |event: &Value| event["involvedObject"]["uid"] == *container.uid;
            let mut events = events.iter().map(|event| event.to_value());
            events.any(|event| event["reason"] == EVENT_MISSING && about(&event))
        };
        containers.retain(|container| !is_told(container));
        let words = containers.iter();
        words
            .map(|container| format!("pod {} lost its limit, and no event says so", container.pod))
            .collect()
    }

    /// Broken invariants of those that hold in a stable cluster.
    fn found_when_settled(&self) -> Vec<String> {
        let found = self.cluster.found_when_settled().into_iter();
        let found = found.chain(self.processes.ended());
        let found = found.chain(self.lost_limits_without_event());
        let of_volumes = volumes::found(&self.store)
            .into_iter()
            .chain(volumes::left_behind(&self.store));
        found.chain(of_volumes).collect()
    }

    /// Adds all objects to the digest: equal plans end with equal objects, byte by byte.
    fn note_state(&self) {
        for resource in [
            "pods",
            "bindrequests.scheduling.run.ai",
            "podgroups.scheduling.run.ai",
            "configmaps",
            "persistentvolumes",
            "persistentvolumeclaims",
            "events",
        ] {
            let page = self.store.list(resource, "", &Selector::everything()).unwrap();
            page.objects
                .iter()
                .for_each(|object| self.injector.note(&object.json()));
        }
    }

    async fn happen(&mut self, step: &Step) {
        if let Some(kind) = step.fault() {
            self.injector.count(kind);
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
                self.injector.set_revoked(self.processes.name(*process), *revoked);
            }
            Step::Reject { node, count } => {
                self.shaken[*node] = true;
                self.cluster.kubelets.reject_next(&self.plan.nodes[*node].name, *count);
            }
            Step::Outage(on) => self.injector.set_outage(*on),
            Step::Forget => self.cluster.server().unwrap().compact_history(),
            Step::Limits { node, fault } => {
                let name = &self.plan.nodes[*node].name;
                // The node may be deleted.
                let _ = self.cluster.kubelets.inject(name, fault).await;
            }
            Step::TakeVolume(pick) => {
                if let Some(volume) = volumes::free(&self.store, *pick) {
                    let kind = &kai_api::PersistentVolume::RESOURCE;
                    let _ = self.cluster.patch(kind, "", &volume, volumes::taken()).await;
                }
            }
            Step::RestartContainers(pick) => {
                if let Some(pod) = self.pick("default", *pick) {
                    self.cluster.kubelets.restart_containers("default", &pod);
                }
            }
        }
    }

    async fn create(&mut self, objects: &[Value]) {
        for object in objects {
            // Admission may refuse the object, or be down. Users see the error and continue.
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
                Err(error) => self.injector.log(|| format!("  {name} is refused: {error}")),
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
        // The node may be deleted.
        let _ = self.cluster.patch(&kai_api::Node::RESOURCE, "", name, change).await;
    }

    /// Deletes pods of deleted nodes, as the pod garbage collector of Kubernetes does.
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

    /// Stops all faults and repairs the nodes.
    async fn heal(&mut self) {
        self.injector.stop();
        self.processes.kill_doubles().await;
        self.others.leave(&self.cluster).await;
        for volume in volumes::by_hand(&self.store) {
            self.cluster.create(volume).await;
        }
        for node in 0..self.plan.nodes.len() {
            self.add(node).await;
            self.cordon(node, false).await;
            let name = &self.plan.nodes[node].name;
            self.cluster.kubelets.reject_next(name, 0);
            self.cluster.kubelets.set_ready(name, true).await.unwrap();
            self.cluster.kubelets.heal_limits(name).await.unwrap();
            for index in 0..self.cluster.kubelets.gpus_on(name).len() {
                self.cluster.kubelets.set_gpu_health(name, index, true).await.unwrap();
            }
        }
    }

    /// Waits until the cluster is stable, and checks all invariants.
    async fn rest(&mut self, when: &str) -> Result<(), String> {
        let resting = async {
            // Samples that are far apart could miss a change that is undone in between.
            let (mut before, mut since) = (self.state(), tokio::time::Instant::now());
            while since.elapsed() < QUIET {
                tokio::time::sleep(SAMPLE).await;
                let now = self.state();
                if now != before {
                    (before, since) = (now, tokio::time::Instant::now());
                }
            }
        };
        if tokio::time::timeout(REST, resting).await.is_err() {
            return Err(format!("{when} the cluster does not come to rest"));
        }
        none(self.found_when_settled(), when)
    }

    /// The fields of pods and bind requests that change until a cluster is stable.
    fn state(&self) -> String {
        let requests = self
            .store
            .list("bindrequests.scheduling.run.ai", "", &Selector::everything());
        let requests = requests.map(|page| page.objects).unwrap_or_default();
        let requests = requests.iter().map(|object| object.to_value());
        let moving = self.list().into_iter().chain(requests).map(|object| {
            let metadata = &object["metadata"];
            // Texts of conditions may keep changing; nodes and phases may not.
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
                let evicted = self.injector.was_deleted_by_roles(name);
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

    /// A pod that never fits does not keep another one from running.
    async fn one_more_runs(&mut self, name: &str) -> Result<(), String> {
        // The webhooks may still be starting.
        self.cluster.create_soon(PodManifest::new(name).build()).await;
        // The scheduler may have evicted the pod for one with a higher priority or for a queue below its fair share.
        self.soon(&format!("{name} runs"), |run| {
            run.cluster.runs(name) || run.injector.was_deleted_by_roles(name)
        })
        .await
    }

    /// Once all pods of users are deleted, no object of kai is left.
    async fn everybody_leaves(&mut self) -> Result<(), String> {
        for pod in self.names("default") {
            let _ = self.cluster.delete::<kai_api::Pod>("default", &pod).await;
        }
        let gone = self
            .soon("all pods are gone, reservations too", |run| run.list().is_empty())
            .await;
        gone.map_err(|error| {
            let left = self.list().into_iter().map(|pod| pod.to_string());
            format!("{error}\nleft: {}", left.collect::<Vec<_>>().join("\n"))
        })?;
        self.soon("no bind request is left", |run| {
            run.cluster.informers().bind_requests().is_empty()
        })
        .await
    }

    /// Every GPU can be allocated again.
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
        self.soon("every GPU can be had", |run| run.cluster.running().len() == count)
            .await?;
        self.rest("in the end").await
    }

    async fn soon(&self, what: &str, holds: impl Fn(&FaultRun<'_>) -> bool) -> Result<(), String> {
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
