//! The annotations by which a pod asks for a part of a GPU, with a limit above its request: those of the pod, and KAI's for one container.
//!
//! The scheduler counts requests; limits have no effect on placement. A pod that is bound has annotations of the binder, too, under keys
//! that a user may write at creation. So only [`GpuShareAnnotations::check_created`] refuses combinations that the binder writes.

use kai_engine::model::{GpuFraction, GpuRequest};
use kai_engine::reasons::GpuShareError;

use crate::decimal::read_decimal;
use crate::error::FieldError;
use crate::gpu_enforcement::{ComputeMode, Enforcement};
use crate::gpu_request::{MEMORY_MIB_MAX, parse_fraction, parse_memory};
use crate::keys::{self, ContainerKey};
use crate::quantity::{Quantity, shorten};
use crate::text::TextMap;
use crate::{Error, Text};

const BYTES_PER_MIB: i64 = 1 << 20;
/// KAI's bound on the digits after the point of a limit.
const PORTION_DIGITS_MAX: usize = 5;
const MODES: &str = "time-slicing and sm-sharing";
const ENFORCEMENTS: &str = "required and preferred";

/// The most GPU memory that a container may use on each of its GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuMemoryLimit {
    /// MiB.
    Mib(i64),
    /// A part of the GPU's memory.
    Portion(GpuFraction),
}

/// What a pod asks of its GPU share besides the amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuShareTerms {
    /// The limit; `None`: the request is the limit.
    pub limit: Option<GpuMemoryLimit>,
    /// How the container uses the multiprocessors.
    pub compute_mode: ComputeMode,
    /// Whether the pod requires a node that limits GPU memory.
    pub enforcement: Enforcement,
}

/// An annotation for one container, as written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OfContainer<'a> {
    key: &'a str,
    container: &'a str,
    value: &'a str,
}

/// The annotations of a GPU share, as written. If several containers have one of the annotations, the container whose name comes first
/// counts, and reading the request is an error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuShareAnnotations<'a> {
    pub(crate) fraction: Option<&'a str>,
    pub(crate) memory: Option<&'a str>,
    fraction_limit: Option<&'a str>,
    memory_limit: Option<&'a str>,
    enforcement: Option<&'a str>,
    container_name: Option<&'a str>,
    request: Option<OfContainer<'a>>,
    limit: Option<OfContainer<'a>>,
    compute_mode: Option<OfContainer<'a>>,
    portion_limit: Option<OfContainer<'a>>,
    /// The first and the last annotation for one container, by the name of the container.
    first: Option<OfContainer<'a>>,
    last: Option<OfContainer<'a>>,
}

impl<'a> GpuShareAnnotations<'a> {
    /// The annotations of a pod, in one pass.
    pub fn of(annotations: &'a TextMap) -> GpuShareAnnotations<'a> {
        GpuShareAnnotations::collect(annotations.iter().map(|(key, value)| (key, &**value)))
    }

    /// The same from keys and values.
    pub fn collect(annotations: impl Iterator<Item = (&'a str, &'a str)>) -> GpuShareAnnotations<'a> {
        let mut found = GpuShareAnnotations::default();
        for (key, value) in annotations {
            match key {
                keys::GPU_FRACTION => found.fraction = Some(value),
                keys::GPU_MEMORY => found.memory = Some(value),
                keys::GPU_FRACTION_LIMIT => found.fraction_limit = Some(value),
                keys::GPU_MEMORY_LIMIT => found.memory_limit = Some(value),
                keys::GPU_ENFORCEMENT => found.enforcement = Some(value),
                keys::GPU_FRACTION_CONTAINER => found.container_name = Some(value),
                _ => found.add_of_container(key, value),
            }
        }
        found
    }

    fn add_of_container(&mut self, key: &'a str, value: &'a str) {
        let fields: [(ContainerKey, &mut Option<OfContainer<'a>>); 4] = [
            (keys::CONTAINER_MEMORY_REQUEST, &mut self.request),
            (keys::CONTAINER_MEMORY_LIMIT, &mut self.limit),
            (keys::CONTAINER_COMPUTE_MODE, &mut self.compute_mode),
            (keys::CONTAINER_PORTION_LIMIT, &mut self.portion_limit),
        ];
        for (pattern, field) in fields {
            let Some(container) = pattern.container(key) else {
                continue;
            };
            let found = OfContainer { key, container, value };
            let rank = |one: &OfContainer<'a>| (one.container, one.key);
            if field.is_none_or(|known| rank(&found) <= rank(&known)) {
                *field = Some(found);
            }
            if self.first.is_none_or(|known| rank(&found) < rank(&known)) {
                self.first = Some(found);
            }
            if self.last.is_none_or(|known| rank(&found) > rank(&known)) {
                self.last = Some(found);
            }
        }
    }

    /// The key of the annotation that makes the pod one with a GPU share, whatever its value.
    pub fn share_key(&self) -> Option<&'a str> {
        let of_pod = |value: Option<&'a str>, key| value.map(|_| key);
        of_pod(self.fraction, keys::GPU_FRACTION)
            .or_else(|| of_pod(self.memory, keys::GPU_MEMORY))
            .or_else(|| self.memory_key())
    }

    /// The key of the annotation that requests memory for one container, in a pod without `gpu-fraction` and `gpu-memory`.
    pub(crate) fn memory_key(&self) -> Option<&'a str> {
        if self.fraction.is_some() || self.memory.is_some() {
            return None;
        }
        let of_container = self.request.or(self.limit).map(|found| found.key);
        of_container.or_else(|| self.memory_limit.map(|_| keys::GPU_MEMORY_LIMIT))
    }

    /// The requested memory in MiB of a pod for which [`Self::memory_key`] has a key.
    pub(crate) fn requested_memory(&self) -> Result<Option<i64>, FieldError> {
        let Some(key) = self.memory_key() else {
            return Ok(None);
        };
        match (self.request.or(self.limit), self.memory_limit) {
            (Some(found), _) => parse_quantity(found.value).map(Some).map_err(|error| at(key, error)),
            (None, Some(text)) => parse_memory_limit(text).map(Some).map_err(|error| at(key, error)),
            (None, None) => Ok(None),
        }
    }

    /// What the pod asks besides the amount, `request`. An error names the annotation.
    pub fn terms(&self, request: &GpuRequest) -> Result<GpuShareTerms, (String, Error)> {
        self.read_terms(request).map_err(|error| (error.field, error.error))
    }

    pub(crate) fn read_terms(&self, request: &GpuRequest) -> Result<GpuShareTerms, FieldError> {
        match request {
            GpuRequest::Fraction { .. } | GpuRequest::Memory { .. } => self.one_container()?,
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => {}
        }
        let enforcement = match self.enforcement {
            Some(text) => Enforcement::from_name(text)
                .ok_or_else(|| FieldError::new(field(keys::GPU_ENFORCEMENT), unknown(text, ENFORCEMENTS)))?,
            None => Enforcement::default(),
        };
        let compute_mode = match self.compute_mode {
            Some(found) => ComputeMode::from_name(found.value)
                .ok_or_else(|| FieldError::new(field(found.key), unknown(found.value, MODES)))?,
            None => ComputeMode::default(),
        };
        let limit = match request {
            GpuRequest::Fraction { fraction, .. } => self.limit_of_fraction(*fraction)?.map(GpuMemoryLimit::Portion),
            GpuRequest::Memory { mib, .. } => self.limit_of_memory(*mib)?.map(GpuMemoryLimit::Mib),
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => None,
        };
        Ok(GpuShareTerms {
            limit,
            compute_mode,
            enforcement,
        })
    }

    /// The error if annotations name several containers.
    fn one_container(&self) -> Result<(), FieldError> {
        match (self.first, self.last) {
            (Some(first), Some(last)) if first.container != last.container => {
                let (container, share) = (shorten(last.container), shorten(first.container));
                Err(at(last.key, GpuShareError::OtherContainer { container, share }))
            }
            (Some(_) | None, _) => Ok(()),
        }
    }

    fn limit_of_fraction(&self, fraction: GpuFraction) -> Result<Option<GpuFraction>, FieldError> {
        let of_pod = self.fraction_limit.map(|text| (keys::GPU_FRACTION_LIMIT, text));
        let of_container = self.portion_limit.map(|found| (found.key, found.value));
        let read = |(key, text): (&str, &str)| {
            let limit = parse_portion_limit(text).map_err(|error| at(key, error))?;
            if limit > fraction {
                return Ok(limit);
            }
            let (limit, request) = (shorten(text), fraction.to_string());
            Err(at(key, GpuShareError::LimitNotAbove { limit, request }))
        };
        same_limit(of_pod.map(|of_pod| (of_pod, read(of_pod))), of_container, read)
    }

    fn limit_of_memory(&self, request_mib: i64) -> Result<Option<i64>, FieldError> {
        let enough = |key: &str, text: &str, limit_mib: i64| match limit_mib >= request_mib {
            true => Ok(limit_mib),
            false => {
                let (limit, request) = (shorten(text), format!("{request_mib}Mi"));
                Err(at(key, GpuShareError::LimitBelow { limit, request }))
            }
        };
        let of_pod = self.memory_limit.map(|text| (keys::GPU_MEMORY_LIMIT, text));
        let short = of_pod.map(|(key, text)| {
            let limit = parse_memory_limit(text).map_err(|error| at(key, error));
            ((key, text), limit.and_then(|mib| enough(key, text, mib)))
        });
        // Beside `gpu-memory` the limit of the container is the binder's, or a translation of the pod's.
        let of_container = self.limit.filter(|_| self.memory.is_none() || short.is_some());
        let of_container = of_container.map(|found| (found.key, found.value));
        same_limit(short, of_container, |(key, text)| {
            let limit = parse_quantity(text).map_err(|error| at(key, error))?;
            enough(key, text, limit)
        })
    }

    /// The error in a pod that is created with these annotations; `request` is its valid request.
    pub fn check_created(&self, request: &GpuRequest) -> Result<(), (String, Error)> {
        self.created(request).map_err(|error| (error.field, error.error))
    }

    fn created(&self, request: &GpuRequest) -> Result<(), FieldError> {
        self.read_terms(request)?;
        match request {
            GpuRequest::Fraction { .. } => self.created_with_fraction(),
            GpuRequest::Memory { mib, .. } => self.created_with_memory(*mib),
            GpuRequest::None | GpuRequest::Whole { .. } | GpuRequest::Mig { .. } => {
                let portion = self.portion_key();
                portion.map_or(Ok(()), |key| Err(at(key, GpuShareError::PortionWithoutFraction)))
            }
        }
    }

    fn portion_key(&self) -> Option<&'a str> {
        let of_container = self.portion_limit.map(|found| found.key);
        of_container.or_else(|| self.fraction_limit.map(|_| keys::GPU_FRACTION_LIMIT))
    }

    fn created_with_fraction(&self) -> Result<(), FieldError> {
        if self.memory_limit.is_some() {
            return Err(at(keys::GPU_MEMORY_LIMIT, GpuShareError::MemoryLimitOfFraction));
        }
        let beside = |instead| GpuShareError::Beside {
            other: keys::GPU_FRACTION,
            instead,
        };
        if let Some(request) = self.request {
            return Err(at(request.key, beside("it without gpu-fraction")));
        }
        let limit = self.limit.map(|found| found.key);
        limit.map_or(Ok(()), |key| Err(at(key, beside(keys::GPU_FRACTION_LIMIT))))
    }

    fn created_with_memory(&self, request_mib: i64) -> Result<(), FieldError> {
        if let Some(key) = self.portion_key() {
            return Err(at(key, GpuShareError::PortionWithoutFraction));
        }
        let Some(memory) = self.memory else { return Ok(()) };
        if let Some(request) = self.request {
            let mib = parse_quantity(request.value).map_err(|error| at(request.key, error))?;
            if mib != request_mib {
                let (from, value) = (keys::GPU_MEMORY, shorten(memory));
                return Err(at(request.key, GpuShareError::Differs { from, value }));
            }
        }
        match (self.limit, self.memory_limit) {
            (Some(limit), None) => Err(at(
                limit.key,
                GpuShareError::Beside {
                    other: keys::GPU_MEMORY,
                    instead: keys::GPU_MEMORY_LIMIT,
                },
            )),
            _ => Ok(()),
        }
    }

    /// The key of a compute mode in a pod without a GPU share, where it has no effect. KAI admits it, too.
    pub(crate) fn idle_mode(&self) -> Option<&'a str> {
        let mode = self.compute_mode.filter(|_| self.share_key().is_none());
        mode.map(|found| found.key)
    }

    /// The name in `gpu-fraction-container-name`.
    pub(crate) fn container_name(&self) -> Option<&'a str> {
        self.container_name
    }

    /// The containers that annotations of containers name, with one of the keys of each: the first and the last by name.
    pub(crate) fn named_containers(&self) -> impl Iterator<Item = (&'a str, &'a str)> {
        let found = self.first.into_iter().chain(self.last);
        found.map(|found| (found.key, found.container))
    }

    /// The annotations of the container by which KAI's tools know the request of the pod, which has only annotations of the pod.
    pub fn translated(&self, container: &str) -> Vec<(String, Text)> {
        let mut translated = Vec::new();
        let mut add = |pattern: ContainerKey, present: Option<OfContainer<'_>>, value: Option<String>| {
            let absent = present.is_none_or(|found| found.container != container);
            if let (true, Some(key), Some(value)) = (absent, pattern.of(container), value) {
                translated.push((key, Text::from(value)));
            }
        };
        let memory = self.memory.filter(|_| self.fraction.is_none());
        let request = memory.and_then(|text| parse_memory(text).ok()).map(quantity_of_mib);
        add(keys::CONTAINER_MEMORY_REQUEST, self.request, request);
        // An invalid one would be reported at a key that the user did not write.
        let limit = self
            .memory_limit
            .filter(|text| self.fraction.is_none() && parse_memory_limit(text).is_ok());
        add(keys::CONTAINER_MEMORY_LIMIT, self.limit, limit.map(str::to_owned));
        let portion = self.fraction_limit.filter(|_| self.fraction.is_some());
        add(
            keys::CONTAINER_PORTION_LIMIT,
            self.portion_limit,
            portion.map(str::to_owned),
        );
        translated
    }
}

/// The quantity of an amount in MiB.
pub fn quantity_of_mib(mib: i64) -> String {
    format!("{mib}Mi")
}

/// A limit in the short form: key and value of the annotation, and its meaning.
type ShortLimit<'a, T> = ((&'static str, &'a str), Result<T, FieldError>);

/// The limit in the annotation of the pod or of the container, which must be equal if both are there.
fn same_limit<'a, T: PartialEq>(
    of_pod: Option<ShortLimit<'a, T>>,
    of_container: Option<(&'a str, &'a str)>,
    read: impl Fn((&'a str, &'a str)) -> Result<T, FieldError>,
) -> Result<Option<T>, FieldError> {
    match (of_pod, of_container) {
        (None, None) => Ok(None),
        (Some((_, limit)), None) => limit.map(Some),
        (None, Some(found)) => read(found).map(Some),
        (Some(((from, value), limit)), Some(found)) => {
            let limit = limit?;
            if read(found)? == limit {
                return Ok(Some(limit));
            }
            let value = shorten(value);
            Err(at(found.0, GpuShareError::Differs { from, value }))
        }
    }
}

fn field(key: &str) -> String {
    format!("metadata.annotations.{key}")
}

fn at(key: &str, error: impl Into<ShareOrValue>) -> FieldError {
    let ShareOrValue(error) = error.into();
    FieldError::new(field(key), error)
}

/// An error of a value, or of an annotation of a GPU share.
struct ShareOrValue(Error);

impl From<GpuShareError> for ShareOrValue {
    fn from(error: GpuShareError) -> ShareOrValue {
        ShareOrValue(Error::GpuShare(error))
    }
}

impl From<Error> for ShareOrValue {
    fn from(error: Error) -> ShareOrValue {
        ShareOrValue(error)
    }
}

fn unknown(text: &str, known: &'static str) -> Error {
    Error::Unknown {
        text: shorten(text),
        known,
    }
}

/// MiB, rounded up.
fn parse_quantity(text: &str) -> Result<i64, Error> {
    let not_memory = || Error::GpuShare(GpuShareError::NotMemory(shorten(text)));
    let too_large = || Error::TooLarge {
        text: shorten(text),
        max: MEMORY_MIB_MAX,
    };
    let bytes = match Quantity::parse(text) {
        Ok(quantity) => quantity.units_up(),
        Err(Error::TooLarge { .. }) => return Err(too_large()),
        Err(_) => return Err(not_memory()),
    };
    if bytes < BYTES_PER_MIB {
        return Err(not_memory());
    }
    let mib = bytes / BYTES_PER_MIB + i64::from(bytes % BYTES_PER_MIB > 0);
    if mib > MEMORY_MIB_MAX {
        Err(too_large())
    } else {
        Ok(mib)
    }
}

/// The short form: `gpu-memory` is in MiB and a quantity without a unit is in bytes, so the unit must be there.
fn parse_memory_limit(text: &str) -> Result<i64, Error> {
    match read_decimal(text) {
        Some((_, "")) => Err(Error::GpuShare(GpuShareError::NoUnit(shorten(text)))),
        _ => parse_quantity(text),
    }
}

fn parse_portion_limit(text: &str) -> Result<GpuFraction, Error> {
    let not_a_portion = || Error::GpuShare(GpuShareError::NotAPortion(shorten(text)));
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let digits = text.split_once('.').map_or(0, |(_, digits)| digits.len());
    if !is_plain || digits > PORTION_DIGITS_MAX {
        return Err(not_a_portion());
    }
    match parse_fraction(text) {
        Ok(portion) if portion < GpuFraction::WHOLE => Ok(portion),
        Ok(_) | Err(_) => Err(not_a_portion()),
    }
}

#[cfg(test)]
mod tests;
