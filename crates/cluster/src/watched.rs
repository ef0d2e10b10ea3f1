//! The watch of one resource: slim objects out of kube's watcher, which lists, watches, resumes and starts over by itself.

use std::fmt;

use api::{Object, Scope};
use futures_core::Stream;
use futures_util::StreamExt;
use kube::Api;
use kube::core::ObjectMeta;
use kube::runtime::watcher::{self, Event};
use kube::runtime::{WatchStreamExt, watcher as watch};
use serde::{Deserialize, Deserializer};

use crate::{Client, Selection};

/// What a watch tells.
#[derive(Clone, Debug)]
pub(crate) enum Change<T> {
    /// A list begins.
    Restarted,
    /// This object is in the list.
    Listed(T),
    /// The list is complete: what was not in it is gone.
    Complete,
    /// The object is new or changed.
    Seen(T),
    /// The object is gone.
    Gone(T),
}

/// A slim object with as much of the metadata as the watcher needs.
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
    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }
    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

impl Client {
    /// Follows the selected objects for ever; failures are retried with growing pauses.
    pub(crate) fn changes<T: Object>(&self, selection: &Selection) -> impl Stream<Item = Change<T>> + Send + use<T> {
        let resource = T::RESOURCE;
        let api: Api<Watched<T>> = match (&selection.namespace, resource.scope) {
            (Some(namespace), Scope::Namespaced) => Api::namespaced_with(self.kube.clone(), namespace, &()),
            (None, _) | (_, Scope::Cluster) => Api::all_with(self.kube.clone(), &()),
        };
        let config = watcher::Config::default()
            .labels(&selection.labels)
            .fields(&selection.fields);
        let plural = resource.plural;
        let changes = watch(api, config).default_backoff().filter_map(move |event| {
            std::future::ready(match event {
                Ok(Event::Init) => Some(Change::Restarted),
                Ok(Event::InitApply(object)) => Some(Change::Listed(object.slim)),
                Ok(Event::InitDone) => Some(Change::Complete),
                Ok(Event::Apply(object)) => Some(Change::Seen(object.slim)),
                Ok(Event::Delete(object)) => Some(Change::Gone(object.slim)),
                Err(error) => {
                    tracing::warn!(%error, "watching {plural} failed; trying again");
                    None
                }
            })
        });
        changes.boxed()
    }
}
