//! Carries requests of API servers to the rules and verdicts back. Decides nothing.

use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::extract::DefaultBodyLimit;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;

use super::args::Settings;
use super::queue::Directory;
use super::review::{Answered, Asked, Outcome, Request, Verdict};
use super::webhooks::{MUTATE_POD, VALIDATE_POD, VALIDATE_POD_GROUP, VALIDATE_QUEUE, VALIDATE_TOPOLOGY};
use super::{pod_group, pod_mutate, pod_validate, queue, share, topology};

/// The API server takes objects of 3 MiB; a review has two of them and little else.
const BODY_BYTES_MAX: usize = 8 << 20;

/// What answers are made from. Cheap to clone.
#[derive(Clone)]
pub struct State {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    queues: Box<dyn Directory>,
    has_runtime_class: Box<dyn Fn(&str) -> bool + Send + Sync>,
    requests: Family<[(&'static str, &'static str); 2], Counter>,
}

impl std::fmt::Debug for State {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("State").finish_non_exhaustive()
    }
}

impl State {
    /// In a cluster with these queues and runtime classes, and counted in these metrics.
    pub fn new(
        settings: Settings,
        queues: impl Directory + 'static,
        has_runtime_class: impl Fn(&str) -> bool + Send + Sync + 'static,
        metrics: &cluster::Metrics,
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
            }),
        }
    }

    /// In the cluster of a role.
    pub fn of(settings: Settings, context: &cluster::Context) -> State {
        let classes = context.feeds.runtime_classes().clone();
        let has_runtime_class = move |name: &str| classes.get(&cluster::Key::new("", name)).is_some();
        State::new(
            settings,
            context.feeds.queues().clone(),
            has_runtime_class,
            &context.metrics,
        )
    }

    fn counted(&self, rule: Rule, result: &'static str) {
        self.inner
            .requests
            .get_or_create(&[("path", rule.path()), ("result", result)])
            .inc();
    }
}

/// What can be asked.
#[derive(Clone, Copy, Debug)]
enum Rule {
    MutatePod,
    ValidatePod,
    ValidateQueue,
    ValidatePodGroup,
    ValidateTopology,
}

impl Rule {
    const ALL: [Rule; 5] = [
        Rule::MutatePod,
        Rule::ValidatePod,
        Rule::ValidateQueue,
        Rule::ValidatePodGroup,
        Rule::ValidateTopology,
    ];

    fn path(self) -> &'static str {
        match self {
            Rule::MutatePod => MUTATE_POD,
            Rule::ValidatePod => VALIDATE_POD,
            Rule::ValidateQueue => VALIDATE_QUEUE,
            Rule::ValidatePodGroup => VALIDATE_POD_GROUP,
            Rule::ValidateTopology => VALIDATE_TOPOLOGY,
        }
    }

    fn decide(self, request: &Request, state: &Inner) -> Verdict {
        let (settings, queues) = (&state.settings, &*state.queues);
        match self {
            // The API server's uid is random, which makes the names that come from it so.
            Rule::MutatePod => {
                let runtime_class = settings.runtime_class.name(&state.has_runtime_class);
                pod_mutate::mutate(request, settings, &share::token(&request.uid), runtime_class)
            }
            Rule::ValidatePod => pod_validate::validate(request, settings, queues),
            Rule::ValidateQueue => queue::validate(request, settings, queues),
            Rule::ValidatePodGroup => pod_group::validate(request, settings, queues),
            Rule::ValidateTopology => topology::validate(request),
        }
    }
}

/// All webhooks, without TLS.
pub fn router(state: State) -> Router {
    let mut router = Router::new();
    for rule in Rule::ALL {
        let state = state.clone();
        let handler = move |body: Bytes| {
            let answer = answer(rule, &state, &body);
            async move { answer }
        };
        router = router.route(rule.path(), post(handler));
    }
    router.layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
}

fn answer(rule: Rule, state: &State, body: &[u8]) -> Response {
    let asked: Asked = match serde_json::from_slice(body) {
        Ok(asked) => asked,
        Err(error) => {
            state.counted(rule, "unreadable");
            return (StatusCode::BAD_REQUEST, format!("this is no AdmissionReview: {error}")).into_response();
        }
    };
    let verdict = rule.decide(&asked.request, &state.inner);
    let result = match &verdict.outcome {
        Outcome::Allowed => "allowed",
        Outcome::Patched(_) => "changed",
        Outcome::Denied { .. } => "denied",
    };
    if let Outcome::Denied { message, .. } = &verdict.outcome {
        tracing::info!(
            path = rule.path(),
            user = asked.request.user_info.username,
            message,
            "refused"
        );
    }
    state.counted(rule, result);
    axum::Json(Answered::new(asked.request.uid, verdict)).into_response()
}
