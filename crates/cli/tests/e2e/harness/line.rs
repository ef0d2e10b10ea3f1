//! A TCP proxy in this process whose connections can be interrupted and restored. With several servers it is also a load balancer.
//! Its connections to the server come from a given source address, so that the server can distinguish proxies.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;

/// How the proxy treats data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// It forwards data.
    Whole,
    /// It forwards no data and closes no connection.
    Silent,
    /// It closes all connections, and new ones too.
    Torn,
}

/// A proxy. It ends when dropped.
pub(crate) struct Line {
    /// The address that the proxy listens on.
    pub(crate) address: SocketAddr,
    state: watch::Sender<(State, u64)>,
    _carrying: JoinSet<()>,
}

impl Line {
    /// A proxy with the source address `source`, which distributes connections over the servers that answer.
    pub(crate) async fn new(source: IpAddr, servers: &[SocketAddr]) -> Line {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (state, seen) = watch::channel((State::Whole, 0));
        let servers: Arc<[SocketAddr]> = servers.into();
        let mut carrying = JoinSet::new();
        carrying.spawn(async move {
            let mut connections = JoinSet::new();
            for turn in 0.. {
                let Ok((near, _)) = listener.accept().await else { return };
                connections.spawn(connect(near, source, Arc::clone(&servers), turn, seen.clone()));
            }
        });
        Line {
            address,
            state,
            _carrying: carrying,
        }
    }

    /// Stops forwarding in both directions, without closing connections.
    pub(crate) fn cut(&self) {
        self.state.send_modify(|(state, _)| *state = State::Silent);
    }

    /// Resumes forwarding; data sent meanwhile arrives.
    pub(crate) fn release(&self) {
        self.state.send_modify(|(state, _)| *state = State::Whole);
    }

    /// Closes all connections from now on.
    pub(crate) fn tear(&self) {
        self.state.send_modify(|(state, _)| *state = State::Torn);
    }

    /// Accepts new connections. The old ones are closed and their data is lost, as after a long network failure.
    pub(crate) fn mend(&self) {
        self.state.send_modify(|(state, cuts)| {
            *state = State::Whole;
            *cuts += 1;
        });
    }
}

async fn connect(
    near: TcpStream,
    source: IpAddr,
    servers: Arc<[SocketAddr]>,
    turn: usize,
    mut seen: watch::Receiver<(State, u64)>,
) {
    let cuts = seen.borrow().1;
    let gone = {
        let mut seen = seen.clone();
        async move {
            seen.wait_for(|(state, now)| *state == State::Torn || *now != cuts)
                .await
                .map(drop)
        }
    };
    let carried = async {
        // Connections that were accepted during the interruption are closed too.
        let _ = seen.wait_for(|(state, _)| *state == State::Whole).await;
        for at in 0..servers.len() {
            let Ok(far) = dial(source, servers[(turn + at) % servers.len()]).await else {
                continue;
            };
            let ((near_read, near_write), (far_read, far_write)) = (near.into_split(), far.into_split());
            tokio::select! {
                () = carry(near_read, far_write, seen.clone()) => {}
                () = carry(far_read, near_write, seen.clone()) => {}
            }
            return;
        }
    };
    tokio::select! {
        biased;
        _ = gone => {}
        () = carried => {}
    }
}

async fn dial(source: IpAddr, server: SocketAddr) -> std::io::Result<TcpStream> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((source, 0).into())?;
    socket.connect(server).await
}

async fn carry(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut seen: watch::Receiver<(State, u64)>) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let Ok(count @ 1..) = from.read(&mut bytes).await else {
            return;
        };
        let _ = seen.wait_for(|(state, _)| *state == State::Whole).await;
        if to.write_all(&bytes[..count]).await.is_err() {
            return;
        }
    }
}
