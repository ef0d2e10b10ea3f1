//! Admission of a new pod without an API server, for `kai simulate`.

use serde_json::Value;

use super::args::Settings;
use super::queue_lister::QueueLister;
use super::review::{Decision, Request};
use super::{gpu_share, pod_mutate, pod_validate};

/// The pod after mutation and validation, or the message of the denial. The request is that of the user who creates the pod.
pub fn admit_pod(mut request: Request, settings: &Settings, queues: &dyn QueueLister) -> Result<Value, String> {
    let changed = pod_mutate::mutate(&request, settings, &gpu_share::token(&request.uid), None);
    match changed.decision {
        Decision::Allowed => {}
        Decision::Denied { message, .. } => return Err(message),
        Decision::Patched(patch) => {
            json_patch::patch(&mut request.object, &patch).map_err(|error| error.to_string())?
        }
    }
    match pod_validate::validate(&request, settings, queues).decision {
        Decision::Allowed | Decision::Patched(_) => Ok(request.object),
        Decision::Denied { message, .. } => Err(message),
    }
}
