//! Where a rule takes a value from: a path, a label, a constant, a sum. The first source that gives a value counts.

use super::super::field::Field;
use super::super::workload::{GroupingError, Owner, Refusal, Workload};
use super::form::{Form, Mistake};
use super::path::Path;

/// Sources of one value: more alternatives than any kind has.
const SOURCES_MAX: usize = 8;
/// Excluded values of one source.
const EXCEPTIONS_MAX: usize = 16;
/// Sums and products may contain each other this deep. It bounds the work per element of a list.
const DEPTH_MAX: usize = 3;

const KEYS: [&str; 11] = [
    "path",
    "value",
    "label",
    "annotation",
    "podLabel",
    "podAnnotation",
    "sum",
    "of",
    "count",
    "times",
    "except",
];
/// The keys of which a source has one.
const KINDS: [&str; 8] = [
    "path",
    "value",
    "label",
    "annotation",
    "podLabel",
    "podAnnotation",
    "sum",
    "count",
];

/// The sources of one value, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Values(Vec<Source>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Source {
    kind: SourceKind,
    /// The value is multiplied by this one; a missing factor is 1.
    times: Option<Values>,
    /// These values count as missing.
    except: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum SourceKind {
    Constant(String),
    Path(Path),
    Label(String),
    Annotation(String),
    PodLabel(String),
    PodAnnotation(String),
    /// The sum of the selected values, or of a value of each selected element.
    Sum {
        path: Path,
        of: Option<Values>,
    },
    /// The number of selected values.
    Count(Path),
}

/// What sources read.
#[derive(Clone, Copy)]
pub(super) struct Scope<'s, 'a> {
    pub(super) workload: &'s Workload<'a>,
    /// The metadata of the object that the rule reads.
    pub(super) base: &'s Owner,
    /// Where paths begin: the object, or an element of its list of subgroups.
    pub(super) root: &'s Field<'a>,
}

/// A value, and where it was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found<T> {
    pub(super) value: T,
    /// For people: `spec.minAvailable`, `label x of the pod`.
    pub(super) origin: String,
    object: String,
    field: String,
}

impl<T> Found<T> {
    /// The error that the value can't be used.
    pub(super) fn refuse(&self, reason: String) -> GroupingError {
        GroupingError::Refused(Refusal {
            object: self.object.clone(),
            field: self.field.clone(),
            reason,
        })
    }

    fn with<U>(self, value: U) -> Found<U> {
        let Found {
            origin, object, field, ..
        } = self;
        Found {
            value,
            origin,
            object,
            field,
        }
    }
}

impl Found<String> {
    fn count(self) -> Result<Found<i32>, GroupingError> {
        match self.value.parse::<i32>() {
            Ok(count) if count >= 0 => Ok(self.with(count)),
            _ => Err(self.refuse(format!(
                "{:?} is not a number of pods; write a whole number of zero or more",
                kai_yaml::shortened(&self.value, 60)
            ))),
        }
    }
}

impl Values {
    /// Reads the sources of a rule: one of them, or a list.
    pub(super) fn read(form: &Form<'_>) -> Result<Values, Mistake> {
        Values::read_nested(form, 0)
    }

    fn read_nested(form: &Form<'_>, depth: usize) -> Result<Values, Mistake> {
        if depth > DEPTH_MAX {
            return Err(form.wrong(format!(
                "sums are nested more than {DEPTH_MAX} levels deep; write fewer"
            )));
        }
        let sources = form.one_or_more(SOURCES_MAX)?;
        let sources: Result<_, Mistake> = sources.iter().map(|form| Source::read(form, depth)).collect();
        Ok(Values(sources?))
    }

    /// The first value, as text.
    pub(super) fn text(&self, scope: Scope<'_, '_>) -> Result<Option<Found<String>>, GroupingError> {
        self.first(scope, |_| true)
    }

    /// The first value that is accepted, as text.
    pub(super) fn first(
        &self,
        scope: Scope<'_, '_>,
        accepts: impl Fn(&str) -> bool,
    ) -> Result<Option<Found<String>>, GroupingError> {
        for source in &self.0 {
            if let Some(found) = source.value(scope)?
                && accepts(&found.value)
            {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The first value, as a number of pods.
    pub(super) fn count(&self, scope: Scope<'_, '_>) -> Result<Option<Found<i32>>, GroupingError> {
        self.text(scope)?.map(Found::count).transpose()
    }
}

impl Values {
    /// Whether a source is a path.
    pub(super) fn reads_object(&self) -> bool {
        self.0.iter().any(|source| {
            matches!(
                source.kind,
                SourceKind::Path(_) | SourceKind::Sum { .. } | SourceKind::Count(_)
            )
        })
    }

    /// For people: `label x of the pod, else spec.name`.
    pub(super) fn words(&self) -> String {
        let sources: Vec<String> = self.0.iter().map(|source| source.kind.words()).collect();
        sources.join(", else ")
    }
}

impl Source {
    fn read(form: &Form<'_>, depth: usize) -> Result<Source, Mistake> {
        let plain = |kind| Source {
            kind,
            times: None,
            except: Vec::new(),
        };
        match form.value {
            serde_json::Value::String(_) => return Ok(plain(SourceKind::Path(one_value(form)?))),
            serde_json::Value::Number(number) => return Ok(plain(SourceKind::Constant(number.to_string()))),
            _ => {}
        }
        let fields = form.fields(&KEYS)?;
        let mut given = KINDS.into_iter().filter_map(|key| Some((key, fields.get(key)?)));
        let (Some((key, value)), None) = (given.next(), given.next()) else {
            return Err(form.wrong(format!("a source has exactly one of {}", KINDS.join(", "))));
        };
        let nested = |form: &Form<'_>| Values::read_nested(form, depth + 1);
        let of = fields.read("of", nested)?;
        if of.is_some() && key != "sum" {
            return Err(form.wrong("of is for sum only; leave it out"));
        }
        let kind = match key {
            "path" => SourceKind::Path(one_value(&value)?),
            "value" => SourceKind::Constant(constant(&value)?),
            "label" => SourceKind::Label(value.text()?.to_owned()),
            "annotation" => SourceKind::Annotation(value.text()?.to_owned()),
            "podLabel" => SourceKind::PodLabel(value.text()?.to_owned()),
            "podAnnotation" => SourceKind::PodAnnotation(value.text()?.to_owned()),
            "sum" => SourceKind::Sum {
                path: path(&value)?,
                of,
            },
            _ => SourceKind::Count(path(&value)?),
        };
        let except = fields.read("except", |form| {
            let values = form.one_or_more(EXCEPTIONS_MAX)?;
            values.iter().map(constant).collect::<Result<Vec<_>, _>>()
        })?;
        Ok(Source {
            kind,
            times: fields.read("times", nested)?,
            except: except.unwrap_or_default(),
        })
    }

    fn value(&self, scope: Scope<'_, '_>) -> Result<Option<Found<String>>, GroupingError> {
        let Some(found) = self
            .kind
            .value(scope)?
            .filter(|found| !self.except.contains(&found.value))
        else {
            return Ok(None);
        };
        let factor = match &self.times {
            Some(times) => times.count(scope)?,
            None => None,
        };
        let Some(factor) = factor else {
            return Ok(Some(found));
        };
        let count = found.count()?;
        let origin = format!("{} times {}", count.origin, factor.origin);
        match count.value.checked_mul(factor.value) {
            Some(product) => Ok(Some(Found {
                origin,
                ..count.with(product.to_string())
            })),
            None => Err(factor.refuse("so many pods are no workload".to_owned())),
        }
    }
}

impl SourceKind {
    fn words(&self) -> String {
        match self {
            SourceKind::Constant(value) => value.clone(),
            SourceKind::Path(path) => path.to_string(),
            SourceKind::Label(key) => format!("label {key}"),
            SourceKind::Annotation(key) => format!("annotation {key}"),
            SourceKind::PodLabel(key) => format!("label {key} of the pod"),
            SourceKind::PodAnnotation(key) => format!("annotation {key} of the pod"),
            SourceKind::Sum { path, .. } => format!("sum of {path}"),
            SourceKind::Count(path) => format!("number of {path}"),
        }
    }

    fn value(&self, scope: Scope<'_, '_>) -> Result<Option<Found<String>>, GroupingError> {
        let Scope { workload, base, root } = scope;
        let of_object = |what: &str, key: &str, value: Option<&str>| {
            let value = value.filter(|value| !value.is_empty())?;
            Some(Found {
                value: value.to_owned(),
                origin: format!("{what} {key} of {} {}", base.kind, base.name),
                object: format!("{} {}/{}", base.kind, workload.namespace(), base.name),
                field: format!("metadata.{what}s.{key}"),
            })
        };
        let of_pod = |what: &str, key: &str, value: Option<&str>| {
            let value = value.filter(|value| !value.is_empty())?;
            Some(Found {
                value: value.to_owned(),
                origin: format!("{what} {key} of the pod"),
                object: format!("Pod {}/{}", workload.namespace(), workload.pod_name()),
                field: format!("metadata.{what}s.{key}"),
            })
        };
        Ok(match self {
            SourceKind::Constant(value) => Some(Found {
                value: value.clone(),
                origin: "constant of the rule".to_owned(),
                object: root.object().to_owned(),
                field: root.path().to_owned(),
            }),
            SourceKind::Path(path) => match path.value(root)? {
                None => None,
                Some(field) => field.scalar()?.map(|value| found(value, path.to_string(), &field)),
            },
            SourceKind::Label(key) => of_object("label", key, base.labels.get(key).map(String::as_str)),
            SourceKind::Annotation(key) => of_object("annotation", key, base.annotations.get(key).map(String::as_str)),
            SourceKind::PodLabel(key) => of_pod("label", key, workload.label(key)),
            SourceKind::PodAnnotation(key) => of_pod("annotation", key, workload.annotation(key)),
            SourceKind::Count(path) => match path.values(root)?.len() {
                0 => None,
                count => Some(found(count.to_string(), format!("number of {path}"), root)),
            },
            SourceKind::Sum { path, of } => sum(scope, path, of.as_ref())?,
        })
    }
}

/// `None` if the path selects nothing. An element without a value counts as zero.
fn sum(scope: Scope<'_, '_>, path: &Path, of: Option<&Values>) -> Result<Option<Found<String>>, GroupingError> {
    let selected = path.values(scope.root)?;
    let mut total = 0_i32;
    for element in &selected {
        let count = match of {
            None => element.count()?.unwrap_or(0),
            Some(of) => {
                let scope = Scope { root: element, ..scope };
                of.count(scope)?.map_or(0, |found| found.value)
            }
        };
        total = total
            .checked_add(count)
            .ok_or_else(|| element.refuse("so many pods are no workload"))?;
    }
    let origin = match of {
        None => format!("sum of {path}"),
        Some(_) => format!("sum over {path}"),
    };
    Ok((!selected.is_empty()).then(|| found(total.to_string(), origin, scope.root)))
}

fn found(value: String, origin: String, field: &Field<'_>) -> Found<String> {
    Found {
        value,
        origin,
        object: field.object().to_owned(),
        field: field.path().to_owned(),
    }
}

/// A path of a rule.
pub(super) fn path(form: &Form<'_>) -> Result<Path, Mistake> {
    Path::parse(form.text()?).map_err(|problem| form.wrong(problem))
}

/// A path that selects at most one value.
fn one_value(form: &Form<'_>) -> Result<Path, Mistake> {
    let path = path(form)?;
    match path.selects_many() {
        false => Ok(path),
        true => Err(form.wrong(format!(
            "{path} selects several values; write {{sum: ...}} or {{count: ...}}, or one element such as [0]"
        ))),
    }
}

fn constant(form: &Form<'_>) -> Result<String, Mistake> {
    match form.value {
        serde_json::Value::Number(number) => Ok(number.to_string()),
        serde_json::Value::Bool(flag) => Ok(flag.to_string()),
        _ => form.text().map(str::to_owned),
    }
}
