//! The rules for pods without an API server: for manifests that are simulated.

use serde_json::Value;

use super::args::Settings;
use super::directory::Directory;
use super::review::{Outcome, Request};
use super::{pod_mutate, pod_validate, share};

/// What a new pod becomes, or why it is refused. The request is that of the user who creates it.
pub fn create_pod(mut request: Request, settings: &Settings, queues: &dyn Directory) -> Result<Value, String> {
    let changed = pod_mutate::mutate(&request, settings, &share::token(&request.uid), None);
    match changed.outcome {
        Outcome::Allowed => {}
        Outcome::Denied { message, .. } => return Err(message),
        Outcome::Patched(patch) => json_patch::patch(&mut request.object, &patch).map_err(|error| error.to_string())?,
    }
    match pod_validate::validate(&request, settings, queues).outcome {
        Outcome::Allowed | Outcome::Patched(_) => Ok(request.object),
        Outcome::Denied { message, .. } => Err(message),
    }
}
