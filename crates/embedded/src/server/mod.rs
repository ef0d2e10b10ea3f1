//! An embedded Kubernetes API server: in this process as a tower service, or on a port for `kubectl`.
//!
//! | module | content |
//! |---|---|
//! | `store` | all objects, their history, revisions, garbage collection; synchronous, without HTTP |
//! | [`StoreHandle`] | the store for kubelets, controllers and tests in this process |
//! | `http` | requests, responses and watch streams |
//! | `admission` | webhooks and validating admission policies |
//! | `kinds`, `types` | the served resources; the fields of their Go types |
//! | `rules` | defaulting and validation per kind |
//! | `patch` | JSON patch, merge patch, strategic merge patch, server-side apply |
//! | `faults` | the hook by which tests make requests and watches fail |
//!
//! A mutex guards the store. A lock is enough, and a task with a queue is not needed, because every operation is synchronous and
//! short. Simulated kubelets and tests then read and write without an await; no code holds the lock across an await.
//!
//! The server serves what schedulers, controllers and stock clients need. It never enforces RBAC, runs no controller except
//! garbage collection, and keeps nothing on disk.

mod admission;
mod clock;
mod expressions;
mod faults;
mod http;
mod kinds;
mod object;
mod patch;
mod random;
mod rules;
mod selector;
mod status_error;
mod store;
mod store_handle;
mod types;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;

pub use admission::Backend;
pub use clock::Clock;
pub use faults::{Fault, Faults, NoFaults, RequestInfo, WatchFault};
pub use http::{Body, ConnectionLost, Listening, Service};
pub use kinds::{Kind, Scope};
pub use object::{Key, Object};
pub use patch::Patch;
pub use selector::Selector;
pub use status_error::{Cause, StatusError};
pub use store::{ContinueToken, DeleteOptions, EventType, Page, Propagation, WatchEvent};
pub use store_handle::{StoreHandle, Watch};
pub use types::check::{WrongType, wrong_type};

pub(crate) use rules::names::{check_label_key, check_label_value};

use parking_lot::{Mutex, MutexGuard, RwLock};
use store::Store;

/// Changes kept per resource. Enough for 500 nodes and 4,000 pods to start while a watcher reconnects.
const HISTORY_LEN: usize = 10_000;
/// The user of in-process clients that name no user, and of clients that present the token.
const ADMIN: &str = "system:admin";

/// Options of a new server.
#[derive(Clone)]
pub struct Options {
    /// The clock of all timestamps; the system clock if not set.
    pub clock: Option<Clock>,
    /// The seed of uids and generated names. Equal seeds give equal names.
    pub seed: u64,
    /// Changes kept per resource, for watches that resume.
    pub history_len: usize,
    /// The bearer token of clients on the port; clients need none if not set.
    pub token: Option<String>,
    /// The fault policy; [`Server::set_faults`] replaces it.
    pub faults: Arc<dyn Faults>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: None,
            seed: 0,
            history_len: HISTORY_LEN,
            token: None,
            faults: Arc::new(NoFaults),
        }
    }
}

/// An API server. Clones are the same server.
#[derive(Clone)]
pub struct Server {
    shared: Arc<Shared>,
}

struct Shared {
    store: Mutex<Store>,
    token: Option<String>,
    faults: RwLock<Arc<dyn Faults>>,
    /// The backends of Services, by namespace and name: the embedded cluster has no Service network.
    backends: RwLock<HashMap<(String, String), Backend>>,
}

impl Server {
    /// A server with the namespaces, service accounts and priority classes that every cluster has.
    pub fn new(options: Options) -> Self {
        let clock = options.clock.unwrap_or_else(Clock::starting_at_system_time);
        let store = Store::new(clock, options.seed, options.history_len.max(1));
        let shared = Shared {
            store: Mutex::new(store),
            token: options.token,
            faults: RwLock::new(options.faults),
            backends: RwLock::default(),
        };
        Self {
            shared: Arc::new(shared),
        }
    }

    /// The HTTP service for a client in this process that acts as an administrator. It needs no token.
    pub fn service(&self) -> Service {
        self.service_as(ADMIN)
    }

    /// The HTTP service for a client in this process that acts as this user, e.g. `system:serviceaccount:ns:name`.
    pub fn service_as(&self, user: &str) -> Service {
        Service::in_process(self.clone(), user)
    }

    /// Serves plain HTTP. Without a token the address must be a loopback address.
    pub async fn listen(&self, address: SocketAddr) -> Result<Listening, crate::Error> {
        http::listen(self.clone(), address).await
    }

    /// Direct access to the store, for kubelets and tests.
    pub fn store(&self) -> StoreHandle {
        StoreHandle::new(self.clone())
    }

    /// The clock of all timestamps.
    pub fn clock(&self) -> Clock {
        self.lock().clock.clone()
    }

    /// Replaces the fault policy.
    pub fn set_faults(&self, faults: Arc<dyn Faults>) {
        *self.shared.faults.write() = faults;
    }

    /// Sends the calls of webhooks that name this Service to this backend.
    pub fn route_service(&self, namespace: &str, name: &str, backend: Backend) {
        let mut backends = self.shared.backends.write();
        backends.insert((namespace.to_owned(), name.to_owned()), backend);
    }

    /// Removes the backend of this Service; calls of its webhooks then fail.
    pub fn unroute_service(&self, namespace: &str, name: &str) {
        let mut backends = self.shared.backends.write();
        backends.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Drops the history: every watch ends with 410 Gone, as after a compaction of etcd.
    pub fn compact_history(&self) {
        self.lock().compact_history();
    }

    fn faults(&self) -> Arc<dyn Faults> {
        self.shared.faults.read().clone()
    }

    fn backend(&self, namespace: &str, name: &str) -> Option<Backend> {
        let backends = self.shared.backends.read();
        backends.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// The store, locked. The lock is never poisoned, so that a panic of one caller does not cause panics of all others.
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.shared.store.lock()
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
