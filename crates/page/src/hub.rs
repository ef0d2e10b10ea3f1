//! The state that requests share: the newest view of the cluster, and what was rendered from it.
//!
//! Nothing runs here while nobody looks. A request or an event stream asks for the view; the hub asks the source at most twice a second, and
//! drops what it has soon after the last one has left.

use std::collections::{BTreeSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use kai_view::{ClusterView, Time};
use parking_lot::Mutex;
use tokio::time::Instant;

use crate::blocks::{Blocks, Outline};
use crate::places::{Order, Places};
use crate::route::Route;
use crate::source::{Source, StoryStep, StorySteps};
use crate::views::{self, Input};

/// The source is asked at most this often.
pub(crate) const POLL_PERIOD: Duration = Duration::from_millis(500);
/// A source that does not answer counts as one without a view.
const SOURCE_TIMEOUT: Duration = Duration::from_secs(10);
/// How long the view is kept after the last reader has left: the time between two pages.
const KEEP: Duration = Duration::from_secs(10);
/// Renderings of one view of the cluster. Readers of the same view with the same rights share one.
const RENDERINGS_MAX: usize = 16;
/// Outlines that browsers may still show, for streams that begin or resume. Each is a few ten kilobytes in a large cluster.
const OUTLINES_MAX: usize = 16;

/// The namespaces that a reader may see; `None` = all.
pub(crate) type Scope = Option<Arc<BTreeSet<String>>>;

/// See the module.
pub(crate) struct Hub {
    source: Arc<dyn Source>,
    story: Option<Arc<dyn StorySteps>>,
    /// Held across the call to the source, so that concurrent requests make one call.
    newest: tokio::sync::Mutex<Newest>,
    recent: Mutex<VecDeque<(Scope, Route, Arc<Outline>)>>,
    readers: AtomicUsize,
    is_forgetting: Mutex<bool>,
}

#[derive(Default)]
struct Newest {
    asked: Option<Instant>,
    generation: u64,
    snapshot: Option<Arc<Snapshot>>,
    /// Of the last view, also when nobody looks any more.
    places: Places,
}

impl Hub {
    pub(crate) fn new(source: Arc<dyn Source>, story: Option<Arc<dyn StorySteps>>) -> Arc<Hub> {
        Arc::new(Hub {
            source,
            story,
            newest: tokio::sync::Mutex::default(),
            recent: Mutex::default(),
            readers: AtomicUsize::new(0),
            is_forgetting: Mutex::new(false),
        })
    }

    /// Counts a reader, until the value is dropped.
    pub(crate) fn reader(self: &Arc<Hub>) -> Reader {
        self.readers.fetch_add(1, Ordering::Relaxed);
        Reader(self.clone())
    }

    /// The view at present, at most [`POLL_PERIOD`] old.
    pub(crate) async fn current(&self) -> Arc<Snapshot> {
        let mut newest = self.newest.lock().await;
        let fresh = newest.asked.is_some_and(|asked| asked.elapsed() < POLL_PERIOD);
        if let Some(snapshot) = newest.snapshot.as_ref().filter(|_| fresh) {
            return snapshot.clone();
        }
        newest.asked = Some(Instant::now());
        // The old view goes before the new one comes: both would be some megabytes in a large cluster.
        let last = newest.snapshot.take().map(|snapshot| snapshot.trace());
        let view = tokio::time::timeout(SOURCE_TIMEOUT, self.source.view())
            .await
            .unwrap_or(None);
        let steps = self.story.as_ref().map_or_else(Vec::new, |story| story.steps());
        if !last.is_some_and(|last| last.is_of(view.as_ref(), &steps)) {
            newest.generation += 1;
        }
        // Also for an equal view: its order is that of the places, which stays.
        let nodes = view.as_ref().and_then(|view| view.nodes.as_deref());
        let order = nodes.map(|nodes| newest.places.update(nodes)).unwrap_or_default();
        let snapshot = Arc::new(Snapshot {
            generation: newest.generation,
            order,
            view,
            steps,
            restricted: Mutex::default(),
            renderings: Mutex::default(),
        });
        newest.snapshot = Some(snapshot.clone());
        snapshot
    }

    /// The next view that is not of this generation.
    pub(crate) async fn next(&self, generation: u64) -> Arc<Snapshot> {
        loop {
            let asked = self.newest.lock().await.asked;
            let due = asked.map_or_else(Instant::now, |asked| asked + POLL_PERIOD);
            tokio::time::sleep_until(due).await;
            let snapshot = self.current().await;
            if snapshot.generation != generation {
                return snapshot;
            }
        }
    }

    /// Remembers an outline that a browser has.
    pub(crate) fn remember(&self, scope: &Scope, route: &Route, outline: &Arc<Outline>) {
        let mut recent = self.recent.lock();
        let same = |(of, at, known): &(Scope, Route, Arc<Outline>)| {
            known.digest == outline.digest && of == scope && at == route
        };
        recent.retain(|known| !same(known));
        recent.push_back((scope.clone(), route.clone(), outline.clone()));
        if recent.len() > OUTLINES_MAX {
            recent.pop_front();
        }
    }

    /// The outline with this digest. A reader gets only outlines of its own rights: they have names.
    pub(crate) fn recall(&self, scope: &Scope, route: &Route, digest: &str) -> Option<Arc<Outline>> {
        let recent = self.recent.lock();
        let found = recent
            .iter()
            .find(|(of, at, known)| known.digest == digest && of == scope && at == route);
        found.map(|(_, _, outline)| outline.clone())
    }

    /// Drops everything, once nobody has read for a while.
    async fn forget(self: Arc<Hub>) {
        loop {
            tokio::time::sleep(KEEP).await;
            // The lock before the check: a reader that comes now starts another task when it leaves.
            let mut is_forgetting = self.is_forgetting.lock();
            if self.readers.load(Ordering::Relaxed) > 0 {
                *is_forgetting = false;
                return;
            }
            if let Ok(mut newest) = self.newest.try_lock() {
                newest.snapshot = None;
                self.recent.lock().clear();
                *is_forgetting = false;
                return;
            }
        }
    }
}

/// Somebody who looks at the page.
pub(crate) struct Reader(Arc<Hub>);

impl Drop for Reader {
    fn drop(&mut self) {
        if self.0.readers.fetch_sub(1, Ordering::Relaxed) > 1 {
            return;
        }
        let mut is_forgetting = self.0.is_forgetting.lock();
        // Without a runtime the process is ending.
        if let (false, Ok(runtime)) = (*is_forgetting, tokio::runtime::Handle::try_current()) {
            *is_forgetting = true;
            runtime.spawn(self.0.clone().forget());
        }
    }
}

/// Namespaces, and the cluster for those who may see no others.
type Restricted = (Arc<BTreeSet<String>>, Arc<ClusterView>);

/// The cluster at one time, and what was rendered from it.
pub(crate) struct Snapshot {
    pub(crate) generation: u64,
    pub(crate) view: Option<Arc<ClusterView>>,
    order: Order,
    pub(crate) steps: Vec<StoryStep>,
    restricted: Mutex<Vec<Restricted>>,
    /// Held while rendering, so that readers of the same view wait for one rendering.
    renderings: Mutex<Vec<(Scope, Route, Arc<Rendering>)>>,
}

/// A view of the page.
pub(crate) struct Rendering {
    pub(crate) blocks: Blocks,
    pub(crate) outline: Arc<Outline>,
}

/// What is remembered of a snapshot that is gone.
struct Trace {
    view: Option<Weak<ClusterView>>,
    steps: Vec<StoryStep>,
}

impl Trace {
    /// Whether a snapshot of this view would be the same.
    fn is_of(&self, view: Option<&Arc<ClusterView>>, steps: &[StoryStep]) -> bool {
        let same_view = match (&self.view, view) {
            (Some(mine), Some(other)) => mine.upgrade().is_some_and(|mine| Arc::ptr_eq(&mine, other)),
            (None, None) => true,
            (Some(_), None) | (None, Some(_)) => false,
        };
        same_view && self.steps == steps
    }
}

impl Snapshot {
    fn trace(&self) -> Trace {
        Trace {
            view: self.view.as_ref().map(Arc::downgrade),
            steps: self.steps.clone(),
        }
    }

    /// The time of the view.
    pub(crate) fn time(&self) -> Option<Time> {
        self.view.as_ref().map(|view| view.time)
    }

    /// The cluster as a reader with these rights may see it. Costs a copy of the view: call it on a thread that may block.
    pub(crate) fn view_for(&self, scope: &Scope) -> Option<Arc<ClusterView>> {
        let view = self.view.as_ref()?;
        let Some(namespaces) = scope else {
            return Some(view.clone());
        };
        let mut restricted = self.restricted.lock();
        if let Some((_, known)) = restricted.iter().find(|(of, _)| of == namespaces) {
            return Some(known.clone());
        }
        let view = Arc::new(view.restricted_to(namespaces));
        if restricted.len() == RENDERINGS_MAX {
            restricted.remove(0);
        }
        restricted.push((namespaces.clone(), view.clone()));
        Some(view)
    }

    /// A view of the page. Takes milliseconds in a large cluster: call it on a thread that may block.
    pub(crate) fn rendering(&self, scope: &Scope, route: &Route) -> Arc<Rendering> {
        let view = self.view_for(scope);
        let mut renderings = self.renderings.lock();
        if let Some((_, _, known)) = renderings.iter().find(|(of, at, _)| of == scope && at == route) {
            return known.clone();
        }
        let blocks = views::render(
            route,
            Input {
                view: view.as_deref(),
                order: Some(&self.order),
                namespaces: scope.as_deref(),
                steps: if scope.is_none() { &self.steps } else { &[] },
            },
        );
        let outline = Arc::new(blocks.outline());
        let rendering = Arc::new(Rendering { blocks, outline });
        if renderings.len() == RENDERINGS_MAX {
            renderings.remove(0);
        }
        renderings.push((scope.clone(), route.clone(), rendering.clone()));
        rendering
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::BoxFuture;

    /// Counts how often it is asked.
    #[derive(Default)]
    struct Counting(AtomicUsize);

    impl Source for Counting {
        fn view(&self) -> BoxFuture<'_, Option<Arc<ClusterView>>> {
            self.0.fetch_add(1, Ordering::Relaxed);
            Box::pin(async { Some(Arc::new(crate::synthetic::empty())) })
        }

        fn explain(&self, _: &str, _: &str) -> BoxFuture<'_, Option<kai_view::ExplanationView>> {
            Box::pin(async { None })
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_source_is_asked_twice_a_second_however_many_look() {
        let source = Arc::new(Counting::default());
        let hub = Hub::new(source.clone(), None);
        let mut streams = tokio::task::JoinSet::new();
        let begin = Instant::now();
        for _ in 0..10 {
            let hub = hub.clone();
            streams.spawn(async move {
                let _reader = hub.reader();
                let mut generation = hub.current().await.generation;
                while begin.elapsed() < Duration::from_secs(10) {
                    generation = hub.next(generation).await.generation;
                }
            });
        }
        streams.join_all().await;
        let asked = source.0.load(Ordering::Relaxed);
        assert!((20..=22).contains(&asked), "{asked}");
        // Nobody looks any more: no calls, and soon no memory.
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(source.0.load(Ordering::Relaxed), asked);
        assert!(hub.newest.lock().await.snapshot.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn outlines_are_recalled_with_the_same_rights_only() {
        let hub = Hub::new(Arc::new(Counting::default()), None);
        let outline = Arc::new(
            hub.current()
                .await
                .rendering(&None, &Route::Queues)
                .outline
                .as_ref()
                .clone(),
        );
        hub.remember(&None, &Route::Queues, &outline);
        let recalled = |scope: &Scope, route: &Route| hub.recall(scope, route, &outline.digest).is_some();
        assert!(recalled(&None, &Route::Queues));
        assert!(!recalled(&None, &Route::Nodes));
        assert!(!recalled(&Some(Arc::default()), &Route::Queues));
        for _ in 0..100 {
            hub.remember(&None, &Route::Queues, &outline);
        }
        assert_eq!(hub.recent.lock().len(), 1);
    }
}
