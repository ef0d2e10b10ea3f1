//! Bounds on answers: a view of a large cluster is megabytes for a client that takes no compression, and stays in memory until the client
//! has read it. So only a few are made and sent at a time, and none takes longer than a while to be sent.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::Response;
use http::StatusCode;
use http_body::{Frame, SizeHint};
use parking_lot::Mutex;
use tokio::sync::OwnedSemaphorePermit;
use tokio::task::AbortHandle;

use super::App;
use super::respond::{busy, plain};

/// Answers that are made or sent at a time. All of them together are some tens of megabytes in the largest clusters.
pub(crate) const ANSWERS_MAX: usize = 8;
/// How long a request waits for those before it.
pub(crate) const WAIT: Duration = Duration::from_secs(10);
/// How long sending a large answer may take.
pub(crate) const SEND: Duration = Duration::from_secs(30);
/// A smaller answer needs no permit to be sent: it is hardly more than the connection itself. Compressed views are smaller.
const LARGE_BYTES: usize = 256 * 1_024;
/// What the connection gets at a time. The rest can be taken back.
const CHUNK_BYTES: usize = 64 * 1_024;

/// Makes the answer once there is a permit for it, and keeps the permit while a large one is sent.
pub(super) async fn bound(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let Ok(Ok(permit)) = tokio::time::timeout(WAIT, app.answers.clone().acquire_owned()).await else {
        return busy("too many answers are on their way; try again");
    };
    let response = next.run(request).await;
    let is_large = |bytes: &u64| usize::try_from(*bytes).unwrap_or(usize::MAX) > LARGE_BYTES;
    if response.body().size_hint().exact().filter(is_large).is_none() {
        return response;
    }
    let (parts, body) = response.into_parts();
    match axum::body::to_bytes(body, usize::MAX).await {
        Ok(bytes) => Response::from_parts(parts, Body::new(Sending::new(bytes, permit))),
        Err(_) => plain(StatusCode::INTERNAL_SERVER_ERROR, "the answer could not be made"),
    }
}

/// An answer on its way. It goes, with its permit, when it is sent, when its connection ends, or when its time is over.
struct Sending {
    left: Arc<Mutex<Option<Left>>>,
    timer: AbortHandle,
}

struct Left {
    bytes: Bytes,
    _permit: OwnedSemaphorePermit,
}

impl Sending {
    fn new(bytes: Bytes, permit: OwnedSemaphorePermit) -> Sending {
        let left = Left { bytes, _permit: permit };
        let left = Arc::new(Mutex::new(Some(left)));
        let late = Arc::clone(&left);
        // A connection whose client reads nothing does not ask for more, so the time is not looked at there.
        let timer = tokio::spawn(async move {
            tokio::time::sleep(SEND).await;
            *late.lock() = None;
        });
        Sending {
            left,
            timer: timer.abort_handle(),
        }
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        self.timer.abort();
        *self.left.lock() = None;
    }
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let mut left = self.left.lock();
        let Some(Left { bytes, .. }) = left.as_mut() else {
            let late = io::Error::new(io::ErrorKind::TimedOut, "the client took too long to read the answer");
            return Poll::Ready(Some(Err(late)));
        };
        if bytes.is_empty() {
            return Poll::Ready(None);
        }
        let size = bytes.len().min(CHUNK_BYTES);
        // A copy: a slice would keep the whole answer in memory.
        let chunk = Bytes::copy_from_slice(&bytes.split_to(size));
        Poll::Ready(Some(Ok(Frame::data(chunk))))
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.left.lock();
        SizeHint::with_exact(left.as_ref().map_or(0, |left| left.bytes.len() as u64))
    }
}
