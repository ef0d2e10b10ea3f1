//! The explanation of one pod or pod group after a run: why it waits, and what would let it start.

use kai_engine::model::{Config, GangKey};
use kai_engine::remedies::ExplainBudget;
use kai_engine::report::PodView;
pub use kai_mirror::ExplanationView;
use serde::Serialize;

use crate::SimulatedCluster;

/// How many pods a message about a name lists.
const NAMES_MAX: usize = 8;

/// The explanation of one pod.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct PodExplanation {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// The workload of the pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Status.
    pub status: &'static str,
    /// Why the pod waits or was evicted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What would help.
    #[serde(flatten)]
    pub explanation: ExplanationView,
}

/// Explains the pod or pod group that `wanted` names: `NAMESPACE/POD`, `NAMESPACE/PODGROUP`, or the last part of one of them. The error says
/// which names there are.
pub(crate) fn explain(simulated: &SimulatedCluster, config: &Config, wanted: &str) -> Result<PodExplanation, String> {
    let engine = simulated.engine();
    let views = engine.pods();
    let uid = find(engine, &views, wanted)?;
    let view = views.iter().find(|view| view.uid == uid);
    let view = view.ok_or_else(|| format!("there is no pod {wanted}"))?;
    let explained = engine.explain(uid, config, ExplainBudget::default());
    let explained = explained.ok_or_else(|| format!("there is no pod {wanted}"))?;
    let workload = |gang: &GangKey| simulated.mirror().workload(gang);
    Ok(PodExplanation {
        namespace: view.namespace.to_owned(),
        name: view.name.to_owned(),
        workload: view.gang.map(workload),
        status: view.status.name(),
        reason: explained
            .reason
            .as_ref()
            .map(|reason| reason.with_names(&workload).to_string()),
        explanation: ExplanationView::new(&explained, &workload),
    })
}

/// The uid of the pod that a name means. Pods come before pod groups.
fn find<'c>(engine: &'c kai_engine::Cluster, views: &[PodView<'c>], wanted: &str) -> Result<&'c str, String> {
    let means = |namespace: &str, name: &str| match wanted.split_once('/') {
        Some(parts) => parts == (namespace, name),
        None => name == wanted,
    };
    let pods: Vec<&PodView<'c>> = views.iter().filter(|view| means(view.namespace, view.name)).collect();
    let several = |names: &[String]| {
        let shown = names.iter().take(NAMES_MAX).cloned().collect::<Vec<_>>().join(", ");
        format!("{wanted} is the name of several: {shown}; write NAMESPACE/NAME")
    };
    match pods.as_slice() {
        [pod] => return Ok(pod.uid),
        [] => {}
        pods => {
            let names: Vec<String> = pods
                .iter()
                .map(|pod| format!("{}/{}", pod.namespace, pod.name))
                .collect();
            return Err(several(&names));
        }
    }
    let gangs = views.iter().filter_map(|view| view.gang);
    let mut gangs: Vec<&GangKey> = gangs.filter(|gang| means(&gang.namespace, &gang.name)).collect();
    gangs.sort();
    gangs.dedup();
    match gangs.as_slice() {
        [gang] => engine
            .pod_to_explain(gang)
            .ok_or_else(|| format!("pod group {wanted} has no pods")),
        [] => Err(not_found(views, wanted)),
        gangs => Err(several(&gangs.iter().map(ToString::to_string).collect::<Vec<_>>())),
    }
}

fn not_found(views: &[PodView<'_>], wanted: &str) -> String {
    let waiting = views.iter().filter(|view| view.reason.is_some());
    let names: Vec<String> = waiting
        .take(NAMES_MAX)
        .map(|view| format!("{}/{}", view.namespace, view.name))
        .collect();
    match names.is_empty() {
        true => format!("there is no pod or pod group {wanted}; no pod waits"),
        false => format!(
            "there is no pod or pod group {wanted}; pods that wait: {}",
            names.join(", ")
        ),
    }
}
