//! The HTTP server of the webhooks: passes admission reviews to the rules and their verdicts back. It decides nothing.
//!
//! A review is as large as the objects that a tenant writes. Large reviews run on blocking threads, a few at a time, so that the
//! runtime's threads stay free and small reviews never wait for large ones.

use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures_util::FutureExt as _;
use futures_util::future::{self, BoxFuture};
use kai_api::PodGroup;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use tokio::sync::Semaphore;

use super::args::Settings;
use super::queue_lister::{InformerLister, QueueLister};
use super::review::{AdmissionReview, AdmissionReviewResponse, Decision, Request, Verdict};
use super::webhook_configurations::{
    MUTATE_POD, VALIDATE_POD, VALIDATE_POD_GROUP, VALIDATE_POD_RESIZE, VALIDATE_QUEUE, VALIDATE_TOPOLOGY,
};
use super::{gpu_share, pod_group, pod_mutate, pod_resize, pod_validate, queue, topology};

/// The API server accepts objects of 3 MiB; a review has two of them.
const BODY_BYTES_MAX: usize = 8 << 20;

/// A review of this size takes less than a millisecond, so the runtime's thread handles it. Nearly all reviews are smaller.
const SMALL_BYTES_MAX: usize = 64 << 10;

/// Large reviews handled at a time. Each takes up to a hundred megabytes of memory.
const CONCURRENT_LARGE_MAX: usize = 2;

/// Time to read the pod group of a pod that is resized. The API server waits for a review for 5 s.
const POD_GROUP_TIMEOUT: Duration = Duration::from_secs(2);

/// Reads a pod group by namespace and name. Pods are seldom resized, so that admission does not watch pod groups.
type PodGroupReader = dyn Fn(String, String) -> BoxFuture<'static, Option<PodGroup>> + Send + Sync;

/// The state of the webhook server: settings, listers and metrics. Cheap to clone.
#[derive(Clone)]
pub struct State {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    queues: Box<dyn QueueLister>,
    has_runtime_class: Box<dyn Fn(&str) -> bool + Send + Sync>,
    requests: Family<[(&'static str, &'static str); 2], Counter>,
    large: Arc<Semaphore>,
    pod_group: Box<PodGroupReader>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl State {
    /// The state for a given lister of queues and a given set of runtime classes, without pod groups.
    pub fn new(
        settings: Settings,
        queues: impl QueueLister + 'static,
        has_runtime_class: impl Fn(&str) -> bool + Send + Sync + 'static,
        metrics: &kai_cluster::Metrics,
    ) -> State {
        let no_pod_group = |_, _| future::ready(None).boxed();
        State::with_pod_groups(settings, queues, has_runtime_class, Box::new(no_pod_group), metrics)
    }

    fn with_pod_groups(
        settings: Settings,
        queues: impl QueueLister + 'static,
        has_runtime_class: impl Fn(&str) -> bool + Send + Sync + 'static,
        pod_group: Box<PodGroupReader>,
        metrics: &kai_cluster::Metrics,
    ) -> State {
        let requests = Family::default();
        metrics.registry().register(
            "kai_admission_requests",
            "Admission requests by path and result",
            Family::clone(&requests),
        );
        State {
            inner: Arc::new(Inner {
                settings,
                queues: Box::new(queues),
                has_runtime_class: Box::new(has_runtime_class),
                requests,
                large: Arc::new(Semaphore::new(CONCURRENT_LARGE_MAX)),
                pod_group,
            }),
        }
    }

    /// The state on the informers of a role.
    pub fn of(settings: Settings, context: &kai_cluster::Context) -> State {
        let classes = context.informers.runtime_classes().clone();
        let has_runtime_class = move |name: &str| classes.get(&kai_api::ObjectKey::new("", name)).is_some();
        let client = context.client.clone();
        let pod_group = move |namespace: String, name: String| {
            let client = client.clone();
            async move { read_pod_group(&client, &namespace, &name).await }.boxed()
        };
        State::with_pod_groups(
            settings,
            InformerLister {
                queues: context.informers.queues().clone(),
                classes: context.informers.priority_classes().clone(),
            },
            has_runtime_class,
            Box::new(pod_group),
            &context.metrics,
        )
    }

    /// Reviews a request. Only the review of a resize needs the pod group.
    pub(super) fn review(&self, webhook: Webhook, request: &Request, pod_group: Option<&PodGroup>) -> Verdict {
        webhook.review(request, pod_group, &self.inner)
    }

    /// The pod group that the review needs.
    async fn pod_group_for(&self, webhook: Webhook, request: &Request) -> Option<PodGroup> {
        match webhook {
            Webhook::ValidatePodResize => {
                let (namespace, name) = pod_resize::pod_group_of(request, &self.inner.settings)?;
                (self.inner.pod_group)(namespace, name).await
            }
            Webhook::MutatePod
            | Webhook::ValidatePod
            | Webhook::ValidateQueue
            | Webhook::ValidatePodGroup
            | Webhook::ValidateTopology => None,
        }
    }

    fn count_request(&self, webhook: Webhook, result: &'static str) {
        self.inner
            .requests
            .get_or_create(&[("path", webhook.path()), ("result", result)])
            .inc();
    }
}

async fn read_pod_group(client: &kai_cluster::Client, namespace: &str, name: &str) -> Option<PodGroup> {
    let read = tokio::time::timeout(POD_GROUP_TIMEOUT, client.get::<PodGroup>(namespace, name)).await;
    let problem = match read {
        Ok(Ok(group)) => return group,
        Ok(Err(error)) => error.to_string(),
        Err(_) => "the API server did not answer in time".to_owned(),
    };
    tracing::warn!(
        namespace,
        name,
        problem,
        "reading the pod group of a resized pod failed; the resize is admitted"
    );
    None
}

/// The webhooks, each with its own path.
#[derive(Clone, Copy, Debug)]
pub(super) enum Webhook {
    MutatePod,
    ValidatePod,
    ValidatePodResize,
    ValidateQueue,
    ValidatePodGroup,
    ValidateTopology,
}

impl Webhook {
    const ALL: [Webhook; 6] = [
        Webhook::MutatePod,
        Webhook::ValidatePod,
        Webhook::ValidatePodResize,
        Webhook::ValidateQueue,
        Webhook::ValidatePodGroup,
        Webhook::ValidateTopology,
    ];

    fn path(self) -> &'static str {
        match self {
            Webhook::MutatePod => MUTATE_POD,
            Webhook::ValidatePod => VALIDATE_POD,
            Webhook::ValidatePodResize => VALIDATE_POD_RESIZE,
            Webhook::ValidateQueue => VALIDATE_QUEUE,
            Webhook::ValidatePodGroup => VALIDATE_POD_GROUP,
            Webhook::ValidateTopology => VALIDATE_TOPOLOGY,
        }
    }

    fn review(self, request: &Request, pod_group: Option<&PodGroup>, state: &Inner) -> Verdict {
        let (settings, queues) = (&state.settings, &*state.queues);
        match self {
            // The request's uid is random, and so is the token that is derived from it for names of ConfigMaps.
            Webhook::MutatePod => {
                let runtime_class = settings.runtime_class.name(&state.has_runtime_class);
                pod_mutate::mutate(request, settings, &gpu_share::token(&request.uid), runtime_class)
            }
            Webhook::ValidatePod => pod_validate::validate(request, settings, queues),
            Webhook::ValidatePodResize => pod_resize::validate(request, settings, queues, pod_group),
            Webhook::ValidateQueue => queue::validate(request, settings, queues),
            Webhook::ValidatePodGroup => pod_group::validate(request, settings, queues),
            Webhook::ValidateTopology => topology::validate(request),
        }
    }
}

/// The HTTP routes of all webhooks, without TLS.
pub fn router(state: State) -> Router {
    let mut router = Router::new();
    for webhook in Webhook::ALL {
        let state = state.clone();
        let handler = move |body: Bytes| handle(webhook, state.clone(), body);
        router = router.route(webhook.path(), post(handler));
    }
    router.layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

async fn handle(webhook: Webhook, state: State, body: Bytes) -> Response {
    let permit = match body.len() <= SMALL_BYTES_MAX {
        true => None,
        false => Some(Arc::clone(&state.inner.large).acquire_owned().await),
    };
    let read = work(permit, move || serde_json::from_slice::<AdmissionReview>(&body)).await;
    let (review, permit) = match read {
        Ok(read) => read,
        Err(failed) => return failed,
    };
    let request = match review {
        Ok(review) => review.request,
        Err(error) => {
            state.count_request(webhook, "unreadable");
            return (StatusCode::BAD_REQUEST, format!("this is no AdmissionReview: {error}")).into_response();
        }
    };
    let pod_group = state.pod_group_for(webhook, &request).await;
    let answered = work(permit, move || answer(webhook, &state, request, pod_group.as_ref())).await;
    answered.map_or_else(|failed| failed, |(response, _)| response)
}

/// Runs work on a large review, which has a permit, on a blocking thread. The permit is held until the work is done, even if the API
/// server has closed the connection.
async fn work<P: Send + 'static, T: Send + 'static>(
    permit: Option<P>,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<(T, Option<P>), Response> {
    if permit.is_none() {
        return Ok((work(), permit));
    }
    let done = tokio::task::spawn_blocking(move || (work(), permit)).await;
    done.map_err(|error| {
        let text = format!("reviewing the request failed: {error}");
        (StatusCode::INTERNAL_SERVER_ERROR, text).into_response()
    })
}

fn answer(webhook: Webhook, state: &State, request: Request, pod_group: Option<&PodGroup>) -> Response {
    let verdict = state.review(webhook, &request, pod_group);
    let result = match &verdict.decision {
        Decision::Allowed => "allowed",
        Decision::Patched(_) => "changed",
        Decision::Denied { .. } => "denied",
    };
    if let Decision::Denied { message, .. } = &verdict.decision {
        tracing::info!(
            path = webhook.path(),
            user = request.user_info.username,
            message,
            "refused"
        );
    }
    state.count_request(webhook, result);
    axum::Json(AdmissionReviewResponse::new(request.uid, verdict)).into_response()
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::time::Duration;

    use parking_lot::Mutex;
    use serde_json::json;

    use super::*;

    fn state(has_runtime_class: impl Fn(&str) -> bool + Send + Sync + 'static) -> State {
        let metrics = kai_cluster::Metrics::default();
        State::new(Settings::default(), Vec::new(), has_runtime_class, &metrics)
    }

    fn body(padding: usize) -> Bytes {
        let object = json!({"metadata": {"name": "x", "annotations": {"padding": "x".repeat(padding)}}});
        let review = json!({"request": {"uid": "u", "operation": "CREATE", "object": object}});
        Bytes::from(review.to_string())
    }

    #[tokio::test]
    async fn a_large_review_does_not_hold_up_the_runtime() {
        let (go, wait): (Sender<()>, Receiver<()>) = channel();
        let wait = Mutex::new(wait);
        // The runtime has one thread: if the large review blocked it, this wait would time out.
        let state = state(move |_| wait.lock().recv_timeout(Duration::from_secs(10)).is_ok());
        let large = tokio::spawn(handle(Webhook::MutatePod, state.clone(), body(SMALL_BYTES_MAX)));
        tokio::task::yield_now().await;
        let small = handle(Webhook::ValidateQueue, state, body(0)).await;
        assert_eq!(small.status(), StatusCode::OK);
        assert!(!large.is_finished(), "the large review waited on the runtime's thread");
        go.send(()).unwrap();
        assert_eq!(large.await.unwrap().status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_small_review_is_not_queued_behind_large_ones() {
        let state = state(|_| false);
        let all = u32::try_from(CONCURRENT_LARGE_MAX).unwrap();
        let busy = Arc::clone(&state.inner.large).acquire_many_owned(all).await.unwrap();
        let large = tokio::spawn(handle(Webhook::ValidatePod, state.clone(), body(SMALL_BYTES_MAX)));
        let small = handle(Webhook::ValidatePod, state, body(0)).await;
        assert_eq!((small.status(), large.is_finished()), (StatusCode::OK, false));
        drop(busy);
        assert_eq!(large.await.unwrap().status(), StatusCode::OK);
    }

    #[tokio::test]
    async fn a_review_nested_deeper_than_objects_are_is_refused() {
        for depth in [200, 1_000_000] {
            let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            let body = format!(r#"{{"request": {{"uid": "u", "operation": "CREATE", "object": {nested}}}}}"#);
            let response = handle(Webhook::ValidatePodGroup, state(|_| false), body.into()).await;
            assert_eq!(response.status(), StatusCode::BAD_REQUEST);
        }
    }

    #[tokio::test]
    async fn a_body_larger_than_two_objects_is_refused() {
        use axum::body::Body;
        use tower::ServiceExt as _;
        let request = axum::http::Request::post(VALIDATE_POD_GROUP).body(Body::from(body(BODY_BYTES_MAX)));
        let response = router(state(|_| false)).oneshot(request.unwrap()).await.unwrap();
        assert_eq!(response.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }
}
