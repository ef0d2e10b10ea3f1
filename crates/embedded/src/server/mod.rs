//! An embedded Kubernetes API server: in this process as a tower service, or on a port for `kubectl`.
//!
//! [`Server`] is the whole of it. Objects are JSON values in one store; a mutex guards it. One owner with a lock, instead
//! of a task with a queue, because every operation is synchronous and short, and because simulated kubelets and tests
//! then read and write without an await. The lock is never held across one.
//!
//! It serves what schedulers, controllers and people with a stock client need. It never enforces RBAC, never runs
//! controllers except garbage collection, and never keeps anything on disk.

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
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

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

use store::Store;

/// Changes remembered per resource. Enough for 500 nodes and 4,000 pods to start while a watcher reconnects.
const HISTORY_LEN: usize = 10_000;
/// Who asks when nobody says otherwise.
const ADMIN: &str = "system:admin";

/// How a server is made.
#[derive(Clone)]
pub struct Options {
    /// Its time; the machine's if not set.
    pub clock: Option<Clock>,
    /// Makes uids and generated names, always the same from the same seed.
    pub seed: u64,
    /// Changes remembered per resource, for watches that resume.
    pub history_len: usize,
    /// A token that clients have to bring; nobody has to if not set.
    pub token: Option<String>,
    /// What goes wrong.
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
    /// Who answers for a Service, by namespace and name: there is no network in here that would know.
    backends: RwLock<HashMap<(String, String), Backend>>,
}

impl Server {
    /// A server with nothing but the namespaces and priority classes that every cluster has.
    pub fn new(options: Options) -> Self {
        let clock = options.clock.unwrap_or_else(Clock::of_the_machine);
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

    /// Its HTTP side for a client in this process, as an administrator. Needs no token.
    pub fn service(&self) -> Service {
        self.service_as(ADMIN)
    }

    /// Its HTTP side for a client in this process, as the named user, e.g. `system:serviceaccount:ns:name`.
    pub fn service_as(&self, user: &str) -> Service {
        Service::in_process(self.clone(), user)
    }

    /// Serves plain HTTP. Only on loopback, unless clients need a token.
    pub async fn listen(&self, address: SocketAddr) -> Result<Listening, crate::Error> {
        http::listen(self.clone(), address).await
    }

    /// The store without HTTP, for kubelets and tests.
    pub fn store(&self) -> StoreHandle {
        StoreHandle::new(self.clone())
    }

    /// Its time.
    pub fn clock(&self) -> Clock {
        self.lock().clock.clone()
    }

    /// From now on, these things go wrong.
    pub fn set_faults(&self, faults: Arc<dyn Faults>) {
        *self.shared.faults.write().unwrap_or_else(PoisonError::into_inner) = faults;
    }

    /// From now on, webhooks that name this Service reach this backend.
    pub fn route_service(&self, namespace: &str, name: &str, backend: Backend) {
        let mut backends = self.shared.backends.write().unwrap_or_else(PoisonError::into_inner);
        backends.insert((namespace.to_owned(), name.to_owned()), backend);
    }

    /// From now on, nobody answers for this Service.
    pub fn unroute_service(&self, namespace: &str, name: &str) {
        let mut backends = self.shared.backends.write().unwrap_or_else(PoisonError::into_inner);
        backends.remove(&(namespace.to_owned(), name.to_owned()));
    }

    /// Forgets the history: every watch ends with 410 Gone, as after a compaction.
    pub fn compact_history(&self) {
        self.lock().compact_history();
    }

    fn faults(&self) -> Arc<dyn Faults> {
        self.shared
            .faults
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    fn backend(&self, namespace: &str, name: &str) -> Option<Backend> {
        let backends = self.shared.backends.read().unwrap_or_else(PoisonError::into_inner);
        backends.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    /// A panic while the lock was held is a bug; the store is still consistent enough to say so.
    fn lock(&self) -> MutexGuard<'_, Store> {
        self.shared.store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}
