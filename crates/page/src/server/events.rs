//! Event streams: what changes in a view, as long as a browser shows it.
//!
//! A stream remembers the outline of what the browser has, and sends the blocks that differ. A browser that reads slowly gets fewer and
//! larger steps, since the next step is computed when the last one is taken; one that takes none for a while is dropped.

use std::convert::Infallible;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use axum::extract::{Extension, State};
use axum::response::Response;
use bytes::Bytes;
use http::header::{self, HeaderMap, HeaderValue};
use http::{Method, StatusCode, Uri};
use kai_view::Time;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_stream::wrappers::ReceiverStream;

use super::App;
use super::access::Caller;
use super::respond::{busy, plain};
use crate::blocks::{Outline, changes};
use crate::hub::Snapshot;
use crate::route::{Route, parameter};

/// How often a stream says the time of the view, so that both sides notice a broken connection.
const HEARTBEAT: Duration = Duration::from_secs(10);
/// How often the access of a stream is judged again.
const JUDGE_PERIOD: Duration = Duration::from_secs(30);
/// A client that takes nothing for this long is dropped.
const SLOW_CLIENT: Duration = Duration::from_secs(20);
/// Events between the stream and the connection.
const EVENTS_WAITING_MAX: usize = 1;

/// `GET /events?view=<path and query>&seen=<digest>`
pub(super) async fn events(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
) -> Response {
    let query = uri.query().unwrap_or_default();
    let Some(route) = parameter(query, "view").as_deref().and_then(Route::parse_address) else {
        return plain(StatusCode::BAD_REQUEST, "`view` has to be the path and query of a view");
    };
    let Ok(permit) = app.streams.clone().try_acquire_owned() else {
        return busy("too many pages are open");
    };
    // The module asks whether it may come, since a browser does not tell it why a stream was refused.
    if method == Method::HEAD {
        return plain(StatusCode::OK, "there is a place");
    }
    // A browser that lost its connection says by itself what it has; a new page by its address.
    let last = headers
        .get("last-event-id")
        .and_then(|id| id.to_str().ok())
        .map(str::to_owned);
    let seen = last.or_else(|| parameter(query, "seen")).unwrap_or_default();
    let (sender, receiver) = mpsc::channel(EVENTS_WAITING_MAX);
    let stream = Stream {
        seen: app.hub.recall(&caller.scope, &route, &seen),
        app,
        caller,
        route,
        sender,
    };
    tokio::spawn(async move {
        let sender = stream.sender.clone();
        tokio::select! {
            () = stream.run() => {}
            () = sender.closed() => {}
        }
        drop(permit);
    });
    let mut response = Response::new(Body::from_stream(ReceiverStream::new(receiver)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    // Proxies must not hold events back.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

struct Stream {
    app: Arc<App>,
    caller: Caller,
    route: Route,
    /// What the browser has; `None` = not known.
    seen: Option<Arc<Outline>>,
    sender: mpsc::Sender<Result<Bytes, Infallible>>,
}

/// What the caller of a stream may see now, beside what it could see when the stream began.
enum Judgement {
    Same,
    Other,
    /// Nobody can tell: the API server does not answer.
    Unknown,
}

impl Stream {
    async fn run(mut self) {
        let _reader = self.app.hub.reader();
        let mut next = self.app.hub.current().await;
        let (mut heartbeat, mut judged) = (Instant::now(), Instant::now());
        if self.send("retry: 2000\n\n".to_owned()).await.is_none() {
            return;
        }
        loop {
            if self.step(&next).await.is_none() {
                return;
            }
            let (generation, time, has_view) = (next.generation, next.time(), next.view.is_some());
            // A stream that waits holds no view.
            drop(next);
            next = loop {
                if heartbeat <= Instant::now() {
                    heartbeat = Instant::now() + HEARTBEAT;
                    if self.send(time_event(time)).await.is_none() {
                        return;
                    }
                }
                if judged + JUDGE_PERIOD <= Instant::now() {
                    judged = Instant::now();
                    // Another replica may lead by now: the next connection finds it.
                    if !has_view {
                        return;
                    }
                    match self.judge_again().await {
                        Judgement::Same => {}
                        // The page loads itself again, with the access that it has now.
                        Judgement::Other => {
                            let _ = self.send("event: access\ndata:\n\n".to_owned()).await;
                            return;
                        }
                        // The browser keeps what it has, and tries again.
                        Judgement::Unknown => return,
                    }
                }
                let due = heartbeat.min(judged + JUDGE_PERIOD);
                if let Ok(changed) = tokio::time::timeout_at(due, self.app.hub.next(generation)).await {
                    break changed;
                }
            };
        }
    }

    async fn judge_again(&self) -> Judgement {
        let Caller { peer, token, scope } = &self.caller;
        match Caller::judge(&self.app, *peer, token.clone()).await {
            Ok(now) if now.scope == *scope => Judgement::Same,
            Err((status, _)) if status.is_server_error() => Judgement::Unknown,
            Ok(_) | Err(_) => Judgement::Other,
        }
    }

    /// Sends what differs from what the browser has. `None` = the browser is gone.
    async fn step(&mut self, snapshot: &Arc<Snapshot>) -> Option<()> {
        let (snapshot, scope, route, seen) = (
            snapshot.clone(),
            self.caller.scope.clone(),
            self.route.clone(),
            self.seen.clone(),
        );
        let (event, outline) = tokio::task::spawn_blocking(move || {
            let rendering = snapshot.rendering(&scope, &route);
            let nothing = Outline::default();
            let old = seen.as_deref().unwrap_or(&nothing);
            let changes = changes(old, &rendering.blocks, &rendering.outline);
            let event = (!changes.is_empty() || seen.is_none()).then(|| {
                let json = serde_json::to_string(&changes).unwrap_or_default();
                let mut event = String::with_capacity(json.len() + 64);
                // A browser whose state is not known begins with an empty view.
                let name = if seen.is_none() { "reset" } else { "change" };
                let _ = write!(
                    event,
                    "id: {}\nevent: {name}\ndata: {json}\n\n",
                    rendering.outline.digest
                );
                event
            });
            (event, rendering.outline.clone())
        })
        .await
        .ok()?;
        self.app.hub.remember(&self.caller.scope, &self.route, &outline);
        self.seen = Some(outline);
        match event {
            Some(event) => self.send(event).await,
            None => Some(()),
        }
    }

    async fn send(&self, event: String) -> Option<()> {
        let sent = tokio::time::timeout(SLOW_CLIENT, self.sender.send(Ok(event.into()))).await;
        sent.ok()?.ok()
    }
}

fn time_event(time: Option<Time>) -> String {
    let time = time.map(|time| time.to_string()).unwrap_or_default();
    format!("event: time\ndata: {time}\n\n")
}
