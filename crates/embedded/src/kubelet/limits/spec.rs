//! The container spec that the node agent prepares: which hooks the runtime runs, and under which share device.

use kai_api::{EnforcementTier, ObjectKey};
use kai_node::driver_files::cdi::Hook;

/// What the agent has prepared for a container. It is on disk: the hook needs no agent.
#[derive(Clone, Debug)]
pub(in crate::kubelet) struct PreparedSpec {
    pub(super) pod: ObjectKey,
    /// UUIDs of the container's GPUs.
    pub(super) gpus: Vec<String>,
    /// The tier that the node owed its containers at that time.
    pub(super) tier: EnforcementTier,
    pub(super) hooks: Vec<Hook>,
}

/// The options of the hook's program in a command line of a CDI spec: the words behind the name of its subcommand.
pub(super) fn hook_options(hook: &Hook) -> impl Iterator<Item = &String> {
    let is_subcommand = |word: &&String| **word == kai_node::enforcement::hook::SUBCOMMAND;
    hook.args.iter().skip_while(move |word| !is_subcommand(word)).skip(1)
}
