//! A view for people who may see only some namespaces.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::ClusterView;

/// Stands for the pods of other namespaces on a GPU or on slices.
pub const OTHER_WORK: &str = "other work";

/// How much a restricted view leaves out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Hidden {
    /// Gangs of other namespaces.
    pub gangs: u32,
    /// Pods of other namespaces.
    pub pods: u32,
}

impl ClusterView {
    /// The view without the names of pods, gangs and workloads in other namespaces.
    pub fn restricted_to(&self, namespaces: &BTreeSet<String>) -> ClusterView {
        let mut view = self.clone();
        let mut hidden = Hidden::default();
        if let Some(gangs) = &mut view.gangs {
            let all = gangs.len();
            gangs.retain(|gang| namespaces.contains(&gang.namespace));
            hidden.gangs = (all - gangs.len()) as u32;
        }
        view.hidden = Some(hidden);
        view
    }
}
