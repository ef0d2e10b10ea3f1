//! Watch streams: initial events, changes, bookmarks, timeout. A state machine over the store's cursor that buffers one batch at most.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, header};
use http_body::Frame;
use http_body_util::{BodyExt, StreamBody};
use serde_json::{Value, json};
use tokio::time::Instant;

use super::Body;
use super::format::{self, Format};
use super::resources::{RequestContext, revision_of};
use super::table;
use crate::server::Server;
use crate::server::faults::{RequestInfo, WatchFault};
use crate::server::kinds::Kind;
use crate::server::status_error::{Cause, StatusError};
use crate::server::store::{Cursor, EventType, ListOptions, WatchEvent};

/// The timeout of watches without `timeoutSeconds`.
const WATCH_SECONDS_DEFAULT: u64 = 3_600;
/// The pause between bookmarks.
const BOOKMARK_INTERVAL: Duration = Duration::from_secs(60);
/// Annotation of the bookmark after the initial events.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

struct WatchStream {
    server: Server,
    kind: Arc<Kind>,
    info: RequestInfo,
    format: Format,
    cursor: Cursor,
    frames: VecDeque<Bytes>,
    bookmarks: bool,
    next_bookmark: Instant,
    deadline: Instant,
    delivered: u64,
    /// Whether a table has had column definitions: only the first one does.
    columns_sent: bool,
    over: bool,
}

pub(super) fn watch(context: &RequestContext<'_>) -> Result<Response<Body>, StatusError> {
    let selector = context.selector()?;
    let query = &context.request.query;
    let asked = query.text("resourceVersion");
    let since = revision_of(asked).map_err(|why| StatusError::without_reason(500, why))?;
    let initial = query.flag("sendInitialEvents");
    if initial && query.text("resourceVersionMatch") != "NotOlderThan" {
        let why = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan";
        let cause = Cause::forbidden("resourceVersionMatch", why);
        return Err(StatusError::invalid_options("ListOptions", cause));
    }
    let seconds = query
        .number("timeoutSeconds")
        .filter(|s| *s > 0)
        .unwrap_or(WATCH_SECONDS_DEFAULT);
    let bookmarks = query.flag("allowWatchBookmarks");

    let store = context.server.lock();
    let with_state = initial || since == 0;
    let state = with_state.then(|| {
        store.page(
            &context.kind,
            &context.target.namespace,
            &selector,
            &ListOptions::default(),
        )
    });
    let state = state.transpose()?;
    let from = state.as_ref().map_or(since, |page| page.revision);
    let cursor = store.cursor(&context.kind, &context.target.namespace, selector, from);
    drop(store);

    let mut stream = WatchStream {
        server: context.server.clone(),
        kind: context.kind.clone(),
        info: context.request.info(),
        format: context.request.format()?,
        cursor,
        frames: VecDeque::new(),
        bookmarks,
        next_bookmark: Instant::now() + BOOKMARK_INTERVAL,
        deadline: Instant::now() + Duration::from_secs(seconds),
        delivered: 0,
        columns_sent: false,
        over: false,
    };
    for object in state.into_iter().flat_map(|page| page.objects) {
        stream.push(&WatchEvent {
            event_type: EventType::Added,
            object,
        });
    }
    if initial && bookmarks {
        stream.push_bookmark(true);
    }
    Ok(stream.into_response())
}

impl WatchStream {
    fn into_response(self) -> Response<Body> {
        let frames = futures_util::stream::unfold(self, |mut stream| async move {
            let frame = stream.next_frame().await?;
            Some((Ok::<_, Infallible>(Frame::data(frame)), stream))
        });
        let mut response = Response::new(StreamBody::new(frames).boxed_unsync());
        response
            .headers_mut()
            .insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        response
    }

    async fn next_frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(frame) = self.frames.pop_front() {
                self.delivered += 1;
                return Some(frame);
            }
            if self.over {
                return None;
            }
            // Read before the batch, so that a change in between wakes this task.
            let head = self.cursor.head.value();
            self.read();
            if !self.frames.is_empty() {
                self.inject_faults().await;
                continue;
            }
            let bookmark_at = if self.bookmarks {
                self.next_bookmark
            } else {
                self.deadline
            };
            tokio::select! {
                biased;
                () = self.cursor.head.wait_above(head) => {}
                () = tokio::time::sleep_until(self.deadline.min(bookmark_at)) => {
                    if self.bookmarks {
                        self.push_bookmark(false);
                    }
                    self.next_bookmark = Instant::now() + BOOKMARK_INTERVAL;
                    self.over |= Instant::now() >= self.deadline;
                }
            }
        }
    }

    /// Reads the next batch of changes.
    fn read(&mut self) {
        let batch = self.server.lock().batch(&self.cursor);
        match batch {
            Ok(batch) => {
                self.cursor.seen = batch.seen;
                for event in &batch.events {
                    self.push(event);
                }
            }
            Err(error) => self.fail(&error),
        }
    }

    async fn inject_faults(&mut self) {
        let fault = self.server.faults().watch(&self.info, self.delivered);
        match fault {
            WatchFault::Pass => {}
            WatchFault::Lag(time) => tokio::time::sleep(time).await,
            WatchFault::End => {
                self.frames.clear();
                self.over = true;
            }
            WatchFault::Gone => {
                self.frames.clear();
                self.fail(&StatusError::expired("a fault that was asked for"));
            }
        }
    }

    fn fail(&mut self, error: &StatusError) {
        self.frames
            .push_back(frame("ERROR", error.status().to_string().as_bytes()));
        self.over = true;
    }

    fn push(&mut self, event: &WatchEvent) {
        let object = match self.format {
            Format::Object => format::in_version(&self.kind, &event.object),
            Format::Metadata => Bytes::from(format::metadata_only(&event.object).to_string()),
            Format::Table(rows) => {
                let now = self.server.clock().now();
                let metadata = json!({"resourceVersion": event.object["metadata"]["resourceVersion"]});
                let objects = std::slice::from_ref(&event.object);
                let table = table::table(
                    &self.kind,
                    objects,
                    metadata,
                    rows.with_columns(!self.columns_sent),
                    now,
                );
                self.columns_sent = true;
                Bytes::from(table.to_string())
            }
        };
        self.frames.push_back(frame(event.event_type.as_str(), &object));
    }

    fn push_bookmark(&mut self, initial_end: bool) {
        let mut metadata = json!({"resourceVersion": self.cursor.seen.to_string(), "creationTimestamp": null});
        if initial_end {
            metadata["annotations"] = json!({INITIAL_EVENTS_END: "true"});
        }
        let object: Value = match self.format {
            Format::Object => {
                json!({"kind": self.kind.kind, "apiVersion": self.kind.api_version(), "metadata": metadata})
            }
            Format::Metadata => format::metadata_only(&json!({"metadata": metadata})),
            Format::Table(rows) => table::table(
                &self.kind,
                &[],
                metadata,
                rows.with_columns(false),
                self.server.clock().now(),
            ),
        };
        self.frames.push_back(frame("BOOKMARK", object.to_string().as_bytes()));
    }
}

fn frame(event_type: &str, object: &[u8]) -> Bytes {
    let mut text = Vec::with_capacity(object.len() + 40);
    text.extend_from_slice(b"{\"type\":\"");
    text.extend_from_slice(event_type.as_bytes());
    text.extend_from_slice(b"\",\"object\":");
    text.extend_from_slice(object);
    text.extend_from_slice(b"}\n");
    Bytes::from(text)
}
