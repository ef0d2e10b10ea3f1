//! The watch of one resource, as slim objects. kube's watcher lists, watches, resumes and restarts.

use std::fmt;
use std::time::Duration;

use futures_core::Stream;
use futures_util::StreamExt;
use kai_api::{Object, Resource, Scope};
use kube::Api;
use kube::core::ObjectMeta;
use kube::runtime::utils::{Backoff, ResetTimerBackoff};
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde::{Deserialize, Deserializer};

use crate::{Client, Selection};

/// An event of a watch.
#[derive(Clone, Debug)]
pub(crate) enum WatchEvent<T> {
    /// A new list begins.
    ListStarted,
    /// The list contains this object.
    Listed(T),
    /// The list is complete: objects that it did not contain are deleted.
    ListComplete,
    /// The object was created or changed.
    Applied(T),
    /// The object was deleted.
    Deleted(T),
}

/// A slim object with the metadata that kube's watcher reads.
#[derive(Clone)]
struct Watched<T> {
    slim: T,
    metadata: ObjectMeta,
}

impl<T: fmt::Debug> fmt::Debug for Watched<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.slim.fmt(f)
    }
}

impl<'de, T: Object> Deserialize<'de> for Watched<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let slim = T::deserialize(deserializer)?;
        let of = slim.metadata();
        let metadata = ObjectMeta {
            name: of.name.as_deref().map(str::to_owned),
            namespace: of.namespace.as_deref().map(str::to_owned),
            resource_version: of.resource_version.as_deref().map(str::to_owned),
            ..ObjectMeta::default()
        };
        Ok(Watched { slim, metadata })
    }
}

impl<T: Object> kube::Resource for Watched<T> {
    type DynamicType = ();
    type Scope = kube::core::DynamicResourceScope;

    fn kind(&(): &()) -> std::borrow::Cow<'_, str> {
        T::RESOURCE.kind
    }
    fn group(&(): &()) -> std::borrow::Cow<'_, str> {
        T::RESOURCE.group
    }
    fn version(&(): &()) -> std::borrow::Cow<'_, str> {
        T::RESOURCE.version
    }
    fn plural(&(): &()) -> std::borrow::Cow<'_, str> {
        T::RESOURCE.plural
    }
    fn metadata_api() -> bool {
        T::METADATA_ONLY
    }
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// The first pause after a failure; [`backoff_of`] adds an offset per resource.
const BACKOFF_FIRST: Duration = Duration::from_millis(700);
/// The longest pause.
const BACKOFF_LONGEST: Duration = Duration::from_secs(30);
/// After this long without a failure the next pause is the first again.
const BACKOFF_RESET_AFTER: Duration = Duration::from_secs(120);

/// Exponential backoff between attempts. An offset per resource spreads the restarts of watches that broke together. The offset comes
/// from the resource's name and not from a random number, so that fault runs replay.
struct WatchBackoff {
    first: Duration,
    next: Duration,
}

impl Iterator for WatchBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        let pause = self.next;
        self.next = (pause * 2).min(BACKOFF_LONGEST);
        Some(pause)
    }
}

impl Backoff for WatchBackoff {
    fn reset(&mut self) {
        self.next = self.first;
    }
}

fn backoff_of(plural: &str) -> ResetTimerBackoff<WatchBackoff> {
    let spread = plural
        .bytes()
        .fold(0_u64, |sum, byte| (sum * 31 + u64::from(byte)) % 300);
    let first = BACKOFF_FIRST + Duration::from_millis(spread);
    ResetTimerBackoff::new(WatchBackoff { first, next: first }, BACKOFF_RESET_AFTER)
}

/// The HTTP status of the API server's answer, if it answered.
fn http_status(error: &watcher::Error) -> Option<u16> {
    match error {
        watcher::Error::WatchError(status) => Some(status.code),
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status))
        | watcher::Error::WatchFailed(kube::Error::Api(status)) => Some(status.code),
        watcher::Error::InitialListFailed(_)
        | watcher::Error::WatchStartFailed(_)
        | watcher::Error::WatchFailed(_)
        | watcher::Error::NoResourceVersion => None,
    }
}

/// The CustomResourceDefinition that the API server lacks for one of our kinds, if that is why the watch failed.
fn missing_definition(error: &watcher::Error, resource: &Resource) -> Option<String> {
    let (watcher::Error::InitialListFailed(kube::Error::Api(status))
    | watcher::Error::WatchStartFailed(kube::Error::Api(status))) = error
    else {
        return None;
    };
    let is_ours = ["scheduling.run.ai", "kai.scheduler"].contains(&&*resource.group);
    (is_ours && status.code == 404).then(|| format!("{}.{}", resource.plural, resource.group))
}

impl Client {
    /// Watches the selected objects for ever. Failures are retried with backoff.
    pub(crate) fn changes<T: Object>(
        &self,
        selection: &Selection,
    ) -> impl Stream<Item = WatchEvent<T>> + Send + use<T> {
        let resource = T::RESOURCE;
        let api: Api<Watched<T>> = match (&selection.namespace, resource.scope) {
            (Some(namespace), Scope::Namespaced) => Api::namespaced_with(self.kube.clone(), namespace, &()),
            (None, _) | (_, Scope::Cluster) => Api::all_with(self.kube.clone(), &()),
        };
        let config = watcher::Config::default()
            .labels(&selection.labels)
            .fields(&selection.fields);
        let plural = resource.plural;
        let call_metrics = self.call_metrics.clone();
        let changes = watch(api, config)
            .backoff(backoff_of(&plural))
            .filter_map(move |event| {
                std::future::ready(match event {
                    Ok(Event::Init) => Some(WatchEvent::ListStarted),
                    Ok(Event::InitApply(object)) => Some(WatchEvent::Listed(object.slim)),
                    Ok(Event::InitDone) => Some(WatchEvent::ListComplete),
                    Ok(Event::Apply(object)) => Some(WatchEvent::Applied(object.slim)),
                    Ok(Event::Delete(object)) => Some(WatchEvent::Deleted(object.slim)),
                    Err(error) => {
                        call_metrics.watch_failed(http_status(&error));
                        match missing_definition(&error, &T::RESOURCE) {
                            Some(name) => tracing::warn!(
                                "the CustomResourceDefinition {name} does not exist; create it with `kai crds apply`. kai waits for it"
                            ),
                            None => tracing::warn!(%error, "watching {plural} failed; trying again"),
                        }
                        None
                    }
                })
            });
        changes.boxed()
    }
}
