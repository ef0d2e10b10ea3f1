//! The table of the roles. A role is a file beside this one and a line in `roles!` below; a command of `kai` is a line in `lib.rs`.

use std::convert::Infallible;
use std::fmt::Debug;
use std::future::Future;
use std::net::SocketAddr;

use anyhow::{Context as _, anyhow};
use kai_cluster::Context;
use tokio::task::JoinSet;

use super::{PageSlot, admission, binder, controllers, readiness, scheduler};

/// A role of the cluster's side: flags in, a running controller out.
pub(super) trait Role {
    /// The role's flags.
    type Args: clap::Args;
    /// What the flags mean.
    type Settings: Clone + Debug + Send + 'static;

    /// The name of the subcommand.
    const NAME: &'static str;

    /// The settings of the role when it runs with the others in one process. `flags` are those that were typed.
    fn settings(args: Self::Args, flags: &[String]) -> anyhow::Result<Self::Settings>;

    /// The objects that the role watches, in one sentence for the log.
    fn watches(settings: &Self::Settings) -> String;

    /// Runs the role until it fails for good.
    fn run(
        context: Context,
        settings: Self::Settings,
        watched: Watched,
    ) -> impl Future<Output = anyhow::Result<Infallible>> + Send + 'static;
}

/// Where people look at the scheduler of a process.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    /// The address of its debug endpoints.
    pub(super) debug_address: Option<SocketAddr>,
    /// The page.
    pub(super) page: Option<PageSlot>,
}

macro_rules! roles {
    ($($(#[$doc:meta])+ $role:ident: $type:ty => $settings:ty,)+) => {
        /// The names of the roles.
        pub const ROLES: &[&str] = &[$(<$type>::NAME),+];

        /// The settings of each role in this process. A role that is `None` runs elsewhere, or not at all.
        #[derive(Clone, Debug, Default)]
        pub struct RoleSettings {
            $($(#[$doc])+ pub $role: Option<$settings>,)+
            /// Where the scheduler serves its debug endpoints. A loopback address: the answers show the whole cluster.
            pub debug_address: Option<SocketAddr>,
            /// The page of the process, which shows the scheduler.
            pub page: Option<PageSlot>,
        }

        impl RoleSettings {
            /// Every role with the flags that `flags` has for its name.
            pub fn of_flags(flags: impl Fn(&str) -> Vec<String>) -> anyhow::Result<RoleSettings> {
                Ok(RoleSettings {
                    $($role: Some(parse::<$type>(&flags(<$type>::NAME))?),)+
                    debug_address: None,
                    page: None,
                })
            }

            /// The names of the roles in this process.
            pub(super) fn names(&self) -> Vec<&'static str> {
                [$(self.$role.as_ref().map(|_| <$type>::NAME)),+].into_iter().flatten().collect()
            }

            /// The objects that each role watches: a line for each role.
            pub(super) fn watches(&self) -> Vec<String> {
                let sentences = [$(self.$role.as_ref().map(<$type>::watches)),+];
                self.names().iter().zip(sentences.into_iter().flatten()).map(|(role, sentence)| format!("{role}: {sentence}")).collect()
            }

            fn spawn(self, context: &Context) -> JoinSet<anyhow::Result<()>> {
                let mut running = JoinSet::new();
                let watched = Watched { debug_address: self.debug_address, page: self.page };
                $(if let Some(settings) = self.$role {
                    let role = <$type>::run(context.clone(), settings, watched.clone());
                    let start = context.health.hold(<$type>::NAME);
                    running.spawn(async move { readiness::begun(role, &start).await.map(drop).context(<$type>::NAME) });
                })+
                running
            }
        }
    };
}

roles! {
    /// The scheduler.
    scheduler: scheduler::Scheduler => kai_scheduler::Settings,
    /// The binder.
    binder: binder::Binder => kai_binder::Settings,
    /// Pod grouper and status controllers.
    controllers: controllers::Controllers => kai_controllers::Settings,
    /// Webhooks.
    admission: admission::Admission => kai_controllers::admission::Settings,
}

impl RoleSettings {
    /// Every role, as it is without flags.
    pub fn every_role() -> anyhow::Result<RoleSettings> {
        RoleSettings::of_flags(|_| Vec::new())
    }

    /// The roles one by one, each with the name of its lease: KAI's names, so that a role never leads beside KAI's. Admission has no
    /// leader.
    pub(super) fn parts(self) -> Vec<(Option<String>, RoleSettings)> {
        let (debug_address, page) = (self.debug_address, self.page.clone());
        let one = || RoleSettings {
            debug_address,
            page: page.clone(),
            ..RoleSettings::default()
        };
        let mut parts = Vec::new();
        if let Some(scheduler) = self.scheduler {
            let lease = scheduler.lease_name();
            let scheduler = Some(scheduler);
            parts.push((Some(lease), RoleSettings { scheduler, ..one() }));
        }
        if let binder @ Some(_) = self.binder {
            parts.push((Some(binder::LEASE.to_owned()), RoleSettings { binder, ..one() }));
        }
        for (lease, part) in self.controllers.into_iter().flat_map(controllers::parts) {
            let controllers = Some(part);
            parts.push((Some(lease.to_owned()), RoleSettings { controllers, ..one() }));
        }
        if let admission @ Some(_) = self.admission {
            parts.push((None, RoleSettings { admission, ..one() }));
        }
        parts
    }

    /// The leases of the roles.
    pub(super) fn leases(&self) -> Vec<String> {
        let parts = self.clone().parts().into_iter();
        parts.filter_map(|(lease, _)| lease).collect()
    }
}

/// Reads one role's flags as if they stood alone.
pub(super) fn parse<R: Role>(flags: &[String]) -> anyhow::Result<R::Settings> {
    let line = std::iter::once(R::NAME.to_owned()).chain(flags.iter().cloned());
    let command = <R::Args as clap::Args>::augment_args(clap::Command::new(R::NAME));
    let matches = command.try_get_matches_from(line)?;
    R::settings(<R::Args as clap::FromArgMatches>::from_arg_matches(&matches)?, flags)
}

/// Runs the roles in this process, on one set of watches, until one of them fails for good. Dropping the future stops them all.
pub async fn run(context: Context, settings: RoleSettings) -> anyhow::Result<Infallible> {
    let mut running = settings.spawn(&context);
    match running.join_next().await {
        Some(Ok(Err(error))) => Err(error),
        Some(Ok(Ok(()))) => Err(anyhow!("a role ended by itself")),
        Some(Err(error)) => Err(anyhow!("a role died: {error}")),
        None => Err(anyhow!("there is no role to run")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_hold_the_leases_of_kais_roles() {
        let flags = |role: &str| match role {
            "scheduler" => vec!["--partition-label-value=a100".to_owned()],
            _ => Vec::new(),
        };
        let leases = RoleSettings::of_flags(flags).unwrap().leases();
        let expect = [
            "kai-scheduler-a100",
            "2ad35f9c.kai.scheduler",
            "54dff599.kai.scheduler",
            "o1x22tjj.kai.scheduler",
            "ov3xj497.kai.scheduler",
        ];
        assert_eq!(leases, expect);
    }

    #[test]
    fn every_role_says_what_it_watches() {
        let settings = RoleSettings::every_role().unwrap();
        let lines = settings.watches();
        assert_eq!(lines.len(), ROLES.len());
        assert!(
            lines[0].contains("schedulerName kai-scheduler in all namespaces"),
            "{}",
            lines[0]
        );
        let flags = |role: &str| match role {
            "scheduler" => vec!["--partition-label-value=team-a".to_owned()],
            _ => Vec::new(),
        };
        let lines = RoleSettings::of_flags(flags).unwrap().watches();
        assert!(lines[0].contains("shard team-a"), "{}", lines[0]);
    }
}
