//! The connections of an address, with bounds: a client that sends half a request, reads nothing or connects again and again takes neither
//! memory nor file descriptors from the process, which also schedules.

use std::collections::BTreeMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::Router;
use axum::extract::ConnectInfo;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::Sleep;

/// What clients may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    /// Connections. Further ones are closed at once.
    connections: usize,
    /// Connections of one client. One machine must not take all of them: probes of the kubelet use the same port as metrics.
    connections_of_client: usize,
    /// How long a client may take to send the head of a request, and how long a connection is kept without one.
    head_timeout: Duration,
    /// A client that reads nothing of its answer for this long is disconnected.
    write_timeout: Duration,
}

impl Default for Limits {
    /// Enough for 64 open pages with a few connections each, also where a proxy or the node stands for all their readers.
    fn default() -> Limits {
        Limits {
            connections: 512,
            connections_of_client: 192,
            head_timeout: Duration::from_secs(10),
            write_timeout: Duration::from_secs(20),
        }
    }
}

/// The largest head: a token and a few cookies. hyper's default is 400 KB for each connection.
const HEAD_BYTES_MAX: usize = 64 * 1_024;
/// The pause after a failed accept: a process without free file descriptors then neither spins nor stops serving.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves connections, without end.
pub(super) async fn serve(listener: TcpListener, router: Router, limits: Limits) -> io::Result<()> {
    let open = Arc::new(Mutex::new(Open::default()));
    loop {
        let (stream, peer) = match listener.accept().await {
            Ok(accepted) => accepted,
            Err(error) => {
                let is_of_client = matches!(
                    error.kind(),
                    io::ErrorKind::ConnectionAborted
                        | io::ErrorKind::ConnectionReset
                        | io::ErrorKind::ConnectionRefused
                );
                if !is_of_client {
                    tracing::warn!(%error, "a connection can't be accepted");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
                continue;
            }
        };
        if let Some(place) = Place::take(&open, peer.ip(), limits) {
            tokio::spawn(connection(stream, peer, router.clone(), place, limits));
        }
    }
}

async fn connection(stream: TcpStream, peer: SocketAddr, router: Router, place: Place, limits: Limits) {
    let service = router.layer(axum::Extension(ConnectInfo(peer)));
    let mut server = http1::Builder::new();
    server
        .timer(TokioTimer::new())
        .header_read_timeout(limits.head_timeout)
        .max_buf_size(HEAD_BYTES_MAX);
    let stream = TokioIo::new(Impatient::new(stream, limits.write_timeout));
    // An error is that of a client that went, or that took too long.
    let _ = server.serve_connection(stream, TowerToHyperService::new(service)).await;
    drop(place);
}

/// The number of open connections, by client.
#[derive(Debug, Default)]
struct Open {
    all: usize,
    by_client: BTreeMap<IpAddr, usize>,
}

/// The place of an open connection.
#[derive(Debug)]
struct Place {
    /// A plain lock: held for a few additions.
    open: Arc<Mutex<Open>>,
    client: IpAddr,
}

impl Place {
    /// `None` if all places are taken.
    fn take(open: &Arc<Mutex<Open>>, client: IpAddr, limits: Limits) -> Option<Place> {
        let mut counts = open.lock().unwrap_or_else(PoisonError::into_inner);
        let of_client = counts.by_client.get(&client).copied().unwrap_or(0);
        if counts.all >= limits.connections || of_client >= limits.connections_of_client {
            return None;
        }
        counts.all += 1;
        counts.by_client.insert(client, of_client + 1);
        let open = Arc::clone(open);
        Some(Place { open, client })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        counts.all -= 1;
        let of_client = counts.by_client.get(&self.client).copied().unwrap_or(0);
        match of_client {
            0 | 1 => counts.by_client.remove(&self.client),
            _ => counts.by_client.insert(self.client, of_client - 1),
        };
    }
}

/// A connection that fails once its client has taken nothing for a while, though there was something to send.
struct Impatient {
    stream: TcpStream,
    write_timeout: Duration,
    /// Runs while a write waits.
    timer: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn new(stream: TcpStream, write_timeout: Duration) -> Impatient {
        Impatient {
            stream,
            write_timeout,
            timer: None,
        }
    }

    /// The result of a write; an error if it has waited for too long.
    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.timer = None;
            return written;
        }
        let timer = self
            .timer
            .get_or_insert_with(|| Box::pin(tokio::time::sleep(self.write_timeout)));
        ready!(timer.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Impatient {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bytes);
        self.judge(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::{Body, Bytes};
    use axum::routing::get;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::sync::mpsc;
    use tokio_stream::wrappers::ReceiverStream;

    use super::*;

    /// Short times, so that the tests need not wait for long.
    const LIMITS: Limits = Limits {
        connections: 30,
        connections_of_client: 20,
        head_timeout: Duration::from_millis(500),
        write_timeout: Duration::from_millis(500),
    };
    const PATIENCE: Duration = Duration::from_secs(60);

    async fn start(router: Router, limits: Limits) -> SocketAddr {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, router, limits));
        address
    }

    async fn send(address: SocketAddr, text: &str) -> TcpStream {
        let mut stream = TcpStream::connect(address).await.unwrap();
        // The server may have closed the connection already.
        let _ = stream.write_all(text.as_bytes()).await;
        stream
    }

    /// Reads until the server closes the connection.
    async fn rest(mut stream: TcpStream) -> String {
        let mut answer = Vec::new();
        let read = stream.read_to_end(&mut answer);
        // A closed connection with unread bytes of the client is reset.
        let _ = tokio::time::timeout(PATIENCE, read)
            .await
            .expect("the server closes it");
        String::from_utf8_lossy(&answer).into_owned()
    }

    const HALF: &str = "GET / HTTP/1.1\r\nhost: kai\r\nx-never: ";
    const WHOLE: &str = "GET / HTTP/1.1\r\nhost: kai\r\n\r\n";

    #[tokio::test]
    async fn half_open_requests_and_idle_connections_are_ended() {
        let router = Router::new().route("/", get(|| async { "well" }));
        let address = start(router, LIMITS).await;
        for text in ["", HALF] {
            let mut streams = Vec::new();
            for _ in 0..100 {
                streams.push(send(address, text).await);
            }
            // Every one is ended: those within the bounds after a while, the others at once.
            for stream in streams {
                let answer = rest(stream).await;
                assert!(!answer.contains("200 OK"), "{answer}");
            }
        }
        // Their places are free again; a connection without further requests ends by itself.
        let answer = rest(send(address, WHOLE).await).await;
        assert!(answer.contains("200 OK") && answer.ends_with("well"), "{answer}");
    }

    #[tokio::test]
    async fn one_client_does_not_take_all_places() {
        let open = Arc::new(Mutex::new(Open::default()));
        let take = |last: u8| Place::take(&open, IpAddr::from([10, 0, 0, last]), LIMITS);
        let places: Vec<Place> = (0..100).map_while(|_| take(1)).collect();
        assert_eq!(places.len(), LIMITS.connections_of_client);
        let others: Vec<Place> = (0..100).map_while(|_| take(2)).collect();
        assert_eq!(places.len() + others.len(), LIMITS.connections);
        assert!(take(3).is_none());
        drop(places);
        assert!(take(3).is_some() && take(1).is_some());
        drop(others);
        let counts = open.lock().unwrap();
        assert_eq!((counts.all, counts.by_client.len()), (0, 0));
    }

    /// A body of chunks, and a sender that is closed when nobody holds the body any more.
    fn endless() -> (mpsc::Sender<Result<Bytes, Infallible>>, Body) {
        let (sender, receiver) = mpsc::channel(1);
        (sender, Body::from_stream(ReceiverStream::new(receiver)))
    }

    #[tokio::test]
    async fn a_reader_that_stalls_is_disconnected_and_one_that_waits_is_not() {
        let (held, mut holders) = mpsc::unbounded_channel();
        let router = Router::new().route(
            "/",
            get(move || {
                let (sender, body) = endless();
                held.send(sender).unwrap();
                async { body }
            }),
        );
        let address = start(router, LIMITS).await;

        // The client reads nothing: the system's buffers fill up, and then the connection ends.
        let stalled = send(address, WHOLE).await;
        let sender = holders.recv().await.unwrap();
        let chunk = Bytes::from(vec![b'x'; 64 * 1_024]);
        let sent = async { while sender.send(Ok(chunk.clone())).await.is_ok() {} };
        tokio::time::timeout(PATIENCE, sent).await.expect("the connection ends");
        drop(stalled);

        // A client that waits for the next part, such as an open page, stays: nothing was to be sent.
        let waits = send(address, WHOLE).await;
        let sender = holders.recv().await.unwrap();
        tokio::time::sleep(3 * LIMITS.head_timeout.max(LIMITS.write_timeout)).await;
        sender.send(Ok(Bytes::from_static(b"news"))).await.unwrap();
        drop(sender);
        assert!(rest(waits).await.contains("news"));
    }
}
