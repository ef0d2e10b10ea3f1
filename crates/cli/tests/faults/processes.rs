//! kai's roles as processes: one for all roles, or one for each role with its own account. A process that ends is restarted, as a
//! kubelet does. The end of a process counts as a failure unless its token was revoked.

use std::sync::Arc;
use std::time::Duration;

use kai_cli::embedded;
use kai_cli::roles::RoleSettings;
use kai_cluster::{Client, Clock, Context};
use kai_embedded::server::Server;
use parking_lot::Mutex;
use tokio::task::JoinSet;

use crate::injector::{ACCOUNTS, FaultInjector};
use crate::volumes;

/// The pause before a process that ended is started again.
const RESTART_PAUSE: Duration = Duration::from_secs(10);

/// The distribution of roles over processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Layout {
    /// `kai all`.
    Together,
    /// A process for each role.
    Apart,
}

impl Layout {
    fn shapes(self) -> Vec<Shape> {
        let mut all = RoleSettings::every_role().unwrap();
        if let Some(binder) = &mut all.binder {
            binder.volume_binding_timeout = volumes::BINDING_TIMEOUT;
        }
        let one = RoleSettings::default;
        match self {
            Layout::Together => vec![("kai-all", all)],
            Layout::Apart => vec![
                (
                    "scheduler",
                    RoleSettings {
                        scheduler: all.scheduler,
                        ..one()
                    },
                ),
                (
                    "binder",
                    RoleSettings {
                        binder: all.binder,
                        ..one()
                    },
                ),
                (
                    "controllers",
                    RoleSettings {
                        controllers: all.controllers,
                        ..one()
                    },
                ),
                (
                    "admission",
                    RoleSettings {
                        admission: all.admission,
                        ..one()
                    },
                ),
            ],
        }
    }
}

/// The name of a process, which is the name of its account too, and the settings of its roles.
type Shape = (&'static str, RoleSettings);

/// The processes of one run.
pub(crate) struct Processes {
    server: Server,
    clock: Clock,
    injector: Arc<FaultInjector>,
    shapes: Vec<Shape>,
    running: Vec<JoinSet<()>>,
    /// Second replicas of processes.
    doubles: Vec<JoinSet<()>>,
    ended: Arc<Mutex<Vec<String>>>,
}

impl Processes {
    /// Starts all processes.
    pub(crate) fn start(server: &Server, clock: Clock, layout: Layout, injector: &Arc<FaultInjector>) -> Processes {
        let shapes = layout.shapes();
        let mut processes = Processes {
            server: server.clone(),
            clock,
            injector: Arc::clone(injector),
            running: shapes.iter().map(|_| JoinSet::new()).collect(),
            doubles: shapes.iter().map(|_| JoinSet::new()).collect(),
            shapes,
            ended: Arc::default(),
        };
        for at in 0..processes.shapes.len() {
            processes.running[at] = processes.spawned(processes.shapes[at].clone());
        }
        processes
    }

    /// The name of one of the processes.
    pub(crate) fn name(&self, pick: u64) -> &'static str {
        self.shapes[self.at(pick)].0
    }

    /// Kills one of the processes, and restarts it after a pause.
    pub(crate) async fn restart(&mut self, pick: u64, pause: Duration) {
        let at = self.at(pick);
        self.running[at].shutdown().await;
        tokio::time::sleep(pause).await;
        self.running[at] = self.spawned(self.shapes[at].clone());
    }

    /// Kills all processes at once, and restarts them after a pause.
    pub(crate) async fn restart_all(&mut self, pause: Duration) {
        for process in &mut self.running {
            process.shutdown().await;
        }
        tokio::time::sleep(pause).await;
        for at in 0..self.shapes.len() {
            self.running[at] = self.spawned(self.shapes[at].clone());
        }
    }

    /// Starts a second replica of one of the processes, without scheduler and webhooks. Leader election keeps two schedulers from writing at
    /// once, and replicas of webhooks do not conflict.
    pub(crate) async fn double(&mut self, pick: u64) {
        let at = self.at(pick);
        self.doubles[at].shutdown().await;
        let (name, settings) = self.shapes[at].clone();
        let settings = RoleSettings {
            scheduler: None,
            admission: None,
            ..settings
        };
        if settings.binder.is_some() || settings.controllers.is_some() {
            self.doubles[at] = self.spawned((name, settings));
        }
    }

    /// Ends all second replicas.
    pub(crate) async fn kill_doubles(&mut self) {
        for double in &mut self.doubles {
            double.shutdown().await;
        }
    }

    /// Errors of processes that ended unexpectedly.
    pub(crate) fn ended(&self) -> Vec<String> {
        self.ended.lock().clone()
    }

    fn at(&self, pick: u64) -> usize {
        usize::try_from(pick % self.shapes.len() as u64).unwrap()
    }

    fn spawned(&self, (name, settings): Shape) -> JoinSet<()> {
        let (server, clock) = (self.server.clone(), self.clock);
        let (injector, ended) = (Arc::clone(&self.injector), Arc::clone(&self.ended));
        let mut process = JoinSet::new();
        process.spawn(async move {
            loop {
                let client = Client::in_process(server.service_as(&format!("{ACCOUNTS}{name}")));
                let running = embedded::run(server.clone(), Context::new(client, clock), settings.clone());
                let Err(error) = running.await;
                injector.log(|| format!("  process {name} ends: {error:#}"));
                let rejected = error.downcast_ref::<kai_scheduler::Error>();
                if !matches!(rejected, Some(kai_scheduler::Error::Unauthorized(_))) {
                    ended.lock().push(format!("process {name} ended: {error:#}"));
                }
                tokio::time::sleep(RESTART_PAUSE).await;
            }
        });
        process
    }
}
