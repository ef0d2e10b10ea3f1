//! `kai all` with a Config: the roles run with the flags of the plan, one scheduler per shard. A change of the Config or of a shard
//! restarts the roles whose flags change, and no others.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use kai_cluster::Context;
use kai_controllers::operator::{
    self, Component, Conditions, Installation, Plan, Role, Runner, ShardScheduler, State, read_state,
};
use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinHandle;

use super::run::{Replica, lead, lead_one};
use super::scheduler::Scheduler;
use super::shard_check::ShardCheck;
use super::table::{RoleSettings, parse};
use super::{PageSlot, admission, binder, controllers, readiness};

/// The Config and the shards are read again after this time: no watch tells that the GPU operator's CRD has appeared.
const RESYNC: Duration = Duration::from_secs(30);
/// Changes within this time are handled together.
const GATHER: Duration = Duration::from_millis(500);
/// Pause after a failure to read the Config.
const RETRY: Duration = Duration::from_secs(5);

/// Time for the tasks of an aborted role to end, so that its ports are free.
const LINGER: Duration = Duration::from_millis(200);

/// The flags of `kai all` for its roles.
#[derive(Clone, Debug)]
pub(super) struct RoleFlags {
    /// Flags of `--role`, as role and flag.
    pub(super) typed: Vec<(String, String)>,
    /// Whether webhooks run.
    pub(super) with_admission: bool,
    pub(super) debug_address: Option<SocketAddr>,
    /// The page of the process.
    pub(super) page: Option<PageSlot>,
    /// Whether the controllers create the default queues.
    pub(super) create_default_queues: bool,
}

impl RoleFlags {
    /// The flags of a role: those of the plan, and the typed ones in their place.
    fn merged(&self, role: &str, planned: Vec<String>) -> Vec<String> {
        let typed = self.typed.iter().filter(|(of, _)| of == role);
        let typed: Vec<&String> = typed.map(|(_, flag)| flag).collect();
        let name = |flag: &str| flag.split('=').next().unwrap_or_default().to_owned();
        let is_typed = |flag: &String| typed.iter().any(|typed| name(typed) == name(flag));
        let planned = planned.into_iter().filter(|flag| !is_typed(flag));
        planned.chain(typed.iter().map(|flag| (*flag).clone())).collect()
    }
}

/// A role that runs, or shall run.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Instance {
    role: Role,
    shard: Option<String>,
    flags: Vec<String>,
    config: Option<String>,
    debug_address: Option<SocketAddr>,
    /// Whether the page shows it.
    is_shown: bool,
    create_default_queues: bool,
}

impl Instance {
    fn of(component: &Component, shard: Option<&str>, flags: &RoleFlags) -> Instance {
        Instance {
            role: component.role,
            shard: shard.map(str::to_owned),
            flags: flags.merged(component.role.command(), component.role_flags.arguments()),
            config: component.config_file.clone(),
            debug_address: None,
            is_shown: false,
            create_default_queues: flags.create_default_queues,
        }
    }

    fn settings(&self) -> anyhow::Result<RoleSettings> {
        let one = RoleSettings::default;
        Ok(match self.role {
            Role::Scheduler => RoleSettings {
                scheduler: Some(match &self.config {
                    Some(config) => ShardCheck::of(Runner::Process).settings(&self.flags, config)?,
                    None => parse::<Scheduler>(&self.flags)?,
                }),
                debug_address: self.debug_address,
                ..one()
            },
            Role::Binder => RoleSettings {
                binder: Some(parse::<binder::Binder>(&self.flags)?),
                ..one()
            },
            Role::Admission => RoleSettings {
                admission: Some(parse::<admission::Admission>(&self.flags)?),
                ..one()
            },
            Role::PodGrouper | Role::PodGroupController | Role::QueueController | Role::NodeScaleAdjuster => {
                RoleSettings {
                    controllers: Some(kai_controllers::Settings {
                        create_default_queues: self.create_default_queues,
                        ..parse::<controllers::Controllers>(&self.flags)?
                    }),
                    ..one()
                }
            }
        })
    }
}

/// The roles of a plan, by name. A shard with invalid settings keeps the scheduler that runs.
fn instances(plan: &Plan, flags: &RoleFlags, running: &BTreeMap<String, Running>) -> BTreeMap<String, Instance> {
    let mut wanted = BTreeMap::new();
    for component in &plan.components {
        if component.role != Role::Admission || flags.with_admission {
            wanted.insert(component.name.clone(), Instance::of(component, None, flags));
        }
    }
    for shard in &plan.shards {
        let name = format!("scheduler {}", shard.shard);
        match &shard.scheduler {
            ShardScheduler::Run(component) => {
                wanted.insert(name, Instance::of(component, Some(&shard.shard), flags));
            }
            ShardScheduler::Invalid(_) => {
                if let Some(running) = running.get(&name) {
                    wanted.insert(name, running.instance.clone());
                }
            }
            ShardScheduler::Disabled => {}
        }
    }
    // One port and one page: the scheduler of the objects without a node pool has them, else the first one.
    let schedulers = wanted.iter().filter(|(_, instance)| instance.role == Role::Scheduler);
    let is_default = |instance: &Instance| {
        !instance
            .flags
            .iter()
            .any(|flag| flag.starts_with("--partition-label-value="))
    };
    let debugged = schedulers
        .min_by_key(|(_, instance)| !is_default(instance))
        .map(|(name, _)| name.clone());
    for (name, instance) in &mut wanted {
        instance.is_shown = Some(name) == debugged.as_ref();
        instance.debug_address = flags.debug_address.filter(|_| instance.is_shown);
    }
    wanted
}

/// A role that runs. Dropping it does not stop the role.
struct Running {
    instance: Instance,
    task: JoinHandle<()>,
}

/// Runs the roles as the Config says; without a Config, as `settings` says. Ends when a role fails for good.
pub(super) async fn supervise(
    context: Context,
    replica: Option<Replica>,
    settings: RoleSettings,
    flags: RoleFlags,
    installation: Installation,
) -> anyhow::Result<Infallible> {
    let wake = Arc::new(Notify::new());
    let mut watches = operator::Watches::start(&context.client, None, &wake);
    let (failed, mut failures) = mpsc::channel(1);
    let (told, conditions) = watch::channel(Conditions::default());
    let mut supervisor = Supervisor {
        context: context.clone(),
        replica: replica.clone(),
        settings,
        flags,
        installation,
        failed,
        running: BTreeMap::new(),
        without_config: None,
    };
    let start = context.health.hold("reading the Config");
    let work = async {
        loop {
            watches.clear();
            let pause = match read_state(&context.client).await {
                Ok(state) => {
                    watches.follow(&state);
                    told.send_replace(supervisor.follow(&state).await);
                    start.release();
                    RESYNC
                }
                Err(error) => {
                    tracing::warn!(%error, "reading the Config failed");
                    RETRY
                }
            };
            let _ = tokio::time::timeout(pause, wake.notified()).await;
            tokio::time::sleep(GATHER).await;
        }
    };
    tokio::select! {
        never = work => never,
        failure = failures.recv() => Err(failure.unwrap_or_else(|| anyhow::anyhow!("all roles ended"))),
        failure = write_conditions(context.clone(), replica, conditions) => failure,
    }
}

/// Writes the conditions of Config and shards while this replica holds the operator's lease.
async fn write_conditions(
    context: Context,
    replica: Option<Replica>,
    conditions: watch::Receiver<Conditions>,
) -> anyhow::Result<Infallible> {
    let work = async |context: Context| -> anyhow::Result<Infallible> {
        Ok(operator::keep_conditions(context, conditions).await)
    };
    match replica {
        Some(replica) => {
            let start = context.health.hold("conditions");
            lead_one(&replica, super::operator::LEASE, &start, context, work).await
        }
        None => work(context).await,
    }
}

struct Supervisor {
    context: Context,
    replica: Option<Replica>,
    /// Without a Config.
    settings: RoleSettings,
    flags: RoleFlags,
    installation: Installation,
    failed: mpsc::Sender<anyhow::Error>,
    running: BTreeMap<String, Running>,
    without_config: Option<JoinHandle<()>>,
}

impl Supervisor {
    /// Starts and stops roles; returns the conditions of Config and shards.
    async fn follow(&mut self, state: &State) -> Conditions {
        let Some(config) = &state.config else {
            self.stop(|_, _| true).await;
            if self.without_config.is_none() {
                tracing::info!("there is no Config kai-config: the roles run with the flags of this process");
                let settings = self.settings.clone();
                self.without_config = Some(self.spawn(self.context.part(&[]), settings));
            }
            return Conditions::without_config(&state.shards);
        };
        if let Some(task) = self.without_config.take() {
            ended(task).await;
        }
        let check = ShardCheck::of(Runner::Process);
        let plan = operator::plan(&config.spec, &state.shards, &self.installation, state.facts, &check);
        let mut conditions = Conditions::of(&plan);
        let wanted = instances(&plan, &self.flags, &self.running);
        self.stop(|name, running| wanted.get(name) != Some(&running.instance))
            .await;
        for (name, instance) in wanted {
            if self.running.contains_key(&name) {
                continue;
            }
            match instance.settings() {
                Ok(mut settings) => {
                    settings.page = self.flags.page.clone().filter(|_| instance.is_shown);
                    tracing::info!(role = name, flags = instance.flags.join(" "), "starting");
                    let labels: Vec<_> = instance.shard.iter().map(|shard| ("shard", shard.clone())).collect();
                    let task = self.spawn(self.context.part(&labels), settings);
                    self.running.insert(name, Running { instance, task });
                }
                Err(error) => conditions.fail(instance.shard.as_deref(), format!("{name}: {error}")),
            }
        }
        conditions
    }

    fn spawn(&self, context: Context, settings: RoleSettings) -> JoinHandle<()> {
        let (replica, failed) = (self.replica.clone(), self.failed.clone());
        let start = context.health.hold("start of the roles");
        tokio::spawn(async move {
            let Err(error) = readiness::begun(lead(replica, context, settings), &start).await;
            // Another failure may have ended the process already.
            let _ = failed.try_send(error);
        })
    }

    /// Stops roles and waits until they have released their ports.
    async fn stop(&mut self, is_meant: impl Fn(&str, &Running) -> bool) {
        let meant = self.running.iter().filter(|(name, running)| is_meant(name, running));
        let names: Vec<String> = meant.map(|(name, _)| name.clone()).collect();
        for name in names {
            if let Some(running) = self.running.remove(&name) {
                tracing::info!(role = name, "stopping: its settings changed");
                ended(running.task).await;
            }
        }
    }
}

/// Aborts a role and waits for its end.
async fn ended(task: JoinHandle<()>) {
    task.abort();
    // A cancelled task is the expected end.
    let _ = task.await;
    // The tasks that the role has started are aborted with it, and end a moment later.
    tokio::time::sleep(LINGER).await;
}

#[cfg(test)]
mod tests {
    use kai_cluster::{Client, Clock};
    use kai_embedded::server::{DeleteOptions, Options, Patch, Server, StoreHandle};
    use serde_json::{Value, json};

    use super::*;

    struct World {
        store: StoreHandle,
        context: Context,
    }

    impl World {
        /// A cluster with the roles of `kai all`, without webhooks.
        fn start() -> World {
            let start = "2026-01-01T00:00:00Z".parse().unwrap();
            let clock = Some(kai_embedded::server::Clock::starting_at(start));
            let server = Server::new(Options {
                clock,
                ..Options::default()
            });
            crate::embedded::install(&server).unwrap();
            let client = Client::in_process(crate::embedded::service_of_roles(&server));
            let context = Context::new(client, Clock::runtime(start));
            let settings = RoleSettings {
                admission: None,
                ..RoleSettings::every_role().unwrap()
            };
            let flags = RoleFlags {
                typed: vec![("scheduler".to_owned(), "--schedule-period=2s".to_owned())],
                with_admission: false,
                debug_address: None,
                page: None,
                create_default_queues: true,
            };
            let installation = Installation {
                namespace: "kai-scheduler".to_owned(),
                image: "registry/kai:1".parse().unwrap(),
                pull_policy: "IfNotPresent".to_owned(),
                pull_secrets: Vec::new(),
                runner: Runner::Process,
            };
            tokio::spawn({
                let context = context.clone();
                async move {
                    let Err(error) = supervise(context, None, settings, flags, installation).await;
                    panic!("the roles ended: {error}");
                }
            });
            let store = server.store();
            World { store, context }
        }

        fn create(&self, kind: &str, name: &str, spec: Value) {
            let metadata = json!({ "name": name });
            let object = json!({ "apiVersion": "kai.scheduler/v1", "kind": kind, "metadata": metadata, "spec": spec });
            self.store.create(object).unwrap();
        }

        fn ready(&self, resource: &str, name: &str) -> Value {
            let object = self.store.get(resource, "", name).unwrap().to_value();
            let conditions = object["status"]["conditions"].as_array().cloned().unwrap_or_default();
            let ready = conditions.into_iter().find(|condition| condition["type"] == "Ready");
            ready.unwrap_or_default()
        }

        /// Whether a scheduler of this shard runs.
        fn runs(&self, shard: &str) -> bool {
            self.context.metrics.text().contains(&format!("shard=\"{shard}\""))
        }

        async fn until(&self, what: &str, holds: impl Fn(&World) -> bool) {
            let waiting = async {
                while !holds(self) {
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            };
            let done = tokio::time::timeout(Duration::from_secs(300), waiting).await;
            assert!(done.is_ok(), "never: {what}");
        }
    }

    const CONFIGS: &str = "configs.kai.scheduler";
    const SHARDS: &str = "schedulingshards.kai.scheduler";

    #[tokio::test(start_paused = true)]
    async fn roles_in_one_process_follow_the_config_and_the_shards() {
        let world = World::start();
        world
            .until("the roles run with flags", |world| {
                world.context.metrics.text().contains("kai_")
            })
            .await;
        assert!(!world.runs("default"));
        world.create("SchedulingShard", "default", json!({}));
        let message = |world: &World| world.ready(SHARDS, "default")["message"].clone();
        world
            .until("the shard waits", |world| {
                message(world) == "there is no Config kai-config"
            })
            .await;
        world.create("Config", "kai-config", json!({ "global": { "replicaCount": 3 } }));
        world
            .until("the shard runs", |world| {
                world.runs("default") && message(world) == "all roles run"
            })
            .await;
        let told = "all roles run; without effect: global.replicaCount (the Deployment of kai all has it)";
        world
            .until("the Config says", |world| {
                world.ready(CONFIGS, "kai-config")["message"] == told
            })
            .await;
        world.create("SchedulingShard", "a100", json!({ "partitionLabelValue": "a100" }));
        world
            .until("two schedulers run", |world| {
                world.runs("a100") && world.runs("default")
            })
            .await;
        let dance = Patch::Merge(json!({ "spec": { "actions": { "dance": {} } } }));
        world.store.patch(SHARDS, "", "a100", &dance).unwrap();
        world
            .until("the shard is invalid", |world| {
                world.ready(SHARDS, "a100")["status"] == "False"
            })
            .await;
        assert!(world.runs("a100"), "an invalid shard keeps its scheduler");
        world.store.delete(SHARDS, "", "a100", &DeleteOptions::now()).unwrap();
        world
            .until("one scheduler runs", |world| {
                !world.runs("a100") && world.runs("default")
            })
            .await;
    }

    #[test]
    fn typed_flags_come_before_those_of_the_plan() {
        let typed = |role: &str, flag: &str| (role.to_owned(), flag.to_owned());
        let flags = RoleFlags {
            typed: vec![
                typed("binder", "--tegra=never"),
                typed("scheduler", "--schedule-period=2s"),
            ],
            with_admission: true,
            debug_address: None,
            page: None,
            create_default_queues: true,
        };
        let planned = vec!["--schedule-period=1s".to_owned(), "--qps=1".to_owned()];
        assert_eq!(flags.merged("scheduler", planned), ["--qps=1", "--schedule-period=2s"]);
    }
}
