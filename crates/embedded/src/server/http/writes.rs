//! Writes over HTTP: plan under the lock, ask admission without it, commit under it; again if somebody was faster.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::field_validation::{FieldValidation, problems};
use super::json::Parsed;
use super::request::shown;
use super::resources::Subject;
use super::{Body, format, json_answer, scale, success, value_answer};
use crate::server::admission::{Attempt, Operation, admit};
use crate::server::kinds::Kind;
use crate::server::object::{Object, meta_text};
use crate::server::patch::Patch;
use crate::server::refusal::{Cause, Refusal};
use crate::server::store::{
    Author, DeleteOptions, Deleted, Part, Planned, Propagation, Writing, undecodable, unpatchable,
};
use crate::server::types;

/// Attempts of a write that somebody else outran, as many as Kubernetes makes.
const ATTEMPTS: usize = 5;

/// The forms in which an object can be sent; clients that name none send JSON.
const MEDIA: [&str; 4] = [
    "",
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

pub(super) async fn post(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    let target = subject.target;
    if !target.name.is_empty() {
        return match (subject.kind.is("", "pods"), target.subresource.as_str()) {
            (true, "binding") => bind(subject, warnings).await,
            (true, "eviction") => evict(subject, warnings).await,
            _ => Err(Refusal::no_such_method()),
        };
    }
    if subject.kind.namespaced() && target.namespace.is_empty() {
        return Err(Refusal::no_such_method());
    }
    let writing = writing(subject)?;
    let body = decoded(subject, warnings)?;
    let new = subject
        .server
        .lock()
        .plan_create(&subject.kind, &target.namespace, body)?;
    let object = create(subject, new, &writing, warnings).await?;
    answer(subject, StatusCode::CREATED, &object)
}

async fn create(
    subject: &Subject<'_>,
    new: Value,
    writing: &Writing,
    warnings: &mut Vec<String>,
) -> Result<Object, Refusal> {
    let name = meta_text(&new, "name").to_owned();
    let attempt = attempt(subject, Operation::Create, "", &name, None, Some(new));
    let new = admit(subject.server, attempt, warnings).await?.unwrap_or_default();
    subject.server.lock().commit_create(&subject.kind, new, writing)
}

pub(super) async fn put(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    let writing = writing(subject)?;
    if subject.target.subresource == "scale" {
        return scale::put(subject, &writing, warnings).await;
    }
    let body = decoded(subject, warnings)?;
    if meta_text(&body, "name").is_empty() {
        let message = format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            subject.target.name
        );
        return Err(Refusal::bad_request(message));
    }
    let object = write(subject, &writing, warnings, |subject, _| {
        subject
            .server
            .lock()
            .plan_update(&subject.kind, &subject.key(), body.clone(), writing.part)
    });
    let object = object.await?;
    answer(subject, StatusCode::OK, &object)
}

pub(super) async fn patch(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    let (patch, duplicates) = patch_of(subject)?;
    let mut writing = writing(subject)?;
    let validation = FieldValidation::of(subject.request)?;
    if subject.target.subresource == "scale" {
        return scale::patch(subject, &patch, &writing, warnings).await;
    }
    if let Patch::Apply { config, .. } = &patch {
        writing.author = Author::Apply(subject.request.query.text("fieldManager").to_owned());
        let missing = subject.server.lock().get(&subject.kind, &subject.key()).is_err();
        if missing && writing.part == Part::Main {
            let new = subject
                .server
                .lock()
                .plan_apply_create(&subject.kind, &subject.key(), config, &writing)?;
            let object = create(subject, new, &writing, warnings).await?;
            return answer(subject, StatusCode::CREATED, &object);
        }
    }
    let object = write(subject, &writing, warnings, |subject, warnings| {
        let planned = subject
            .server
            .lock()
            .plan_patch(&subject.kind, &subject.key(), &patch, &writing)?;
        validation
            .judge(&problems(&duplicates, &planned.unknown), warnings)
            .map_err(|why| unpatchable(&patch, &why))?;
        Ok(planned)
    });
    let object = object.await?;
    answer(subject, StatusCode::OK, &object)
}

/// Plans, asks, commits; from the start if the object changed meanwhile. A client that named a revision then gets its
/// conflict from the plan.
pub(super) async fn write(
    subject: &Subject<'_>,
    writing: &Writing,
    warnings: &mut Vec<String>,
    plan: impl Fn(&Subject<'_>, &mut Vec<String>) -> Result<Planned, Refusal>,
) -> Result<Object, Refusal> {
    let mut outrun = None;
    for _ in 0..ATTEMPTS {
        let Planned { old, new, unknown } = plan(subject, warnings)?;
        let attempt = attempt(
            subject,
            Operation::Update,
            &subject.target.subresource,
            old.name(),
            Some(&old),
            Some(new),
        );
        let new = admit(subject.server, attempt, warnings).await?.unwrap_or_default();
        let planned = Planned {
            old: old.clone(),
            new,
            unknown,
        };
        match subject.server.lock().commit_update(&subject.kind, planned, writing) {
            Err(refusal) if refusal.reason == "Conflict" => outrun = Some(refusal),
            other => return other,
        }
    }
    Err(outrun.unwrap_or_else(|| Refusal::outdated(subject.kind.about(&subject.target.name))))
}

async fn bind(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    let binding = types::decode("core.v1.Binding", subject.request.value()?, true)
        .map_err(|problem| undecodable("v1", "Binding", &problem))?;
    let binding = binding.value;
    let attempt = attempt(
        subject,
        Operation::Create,
        "binding",
        &subject.target.name,
        None,
        Some(binding),
    );
    let binding = admit(subject.server, attempt, warnings).await?.unwrap_or_default();
    let dry_run = subject.request.dry_run()?;
    subject
        .server
        .lock()
        .bind(&subject.target.namespace, &subject.target.name, &binding, dry_run)?;
    Ok(success(StatusCode::CREATED))
}

async fn evict(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    let eviction = subject.request.value()?;
    let mut options = delete_options(&eviction["deleteOptions"])?;
    options.dry_run |= subject.request.dry_run()?;
    let attempt = attempt(
        subject,
        Operation::Create,
        "eviction",
        &subject.target.name,
        None,
        Some(eviction),
    );
    admit(subject.server, attempt, warnings).await?;
    subject
        .server
        .lock()
        .evict(&subject.target.namespace, &subject.target.name, &options)?;
    Ok(success(StatusCode::CREATED))
}

pub(super) async fn delete(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    if !subject.target.subresource.is_empty() {
        return Err(Refusal::no_such_method());
    }
    let options = options_of(subject)?;
    let old = subject.server.lock().get(&subject.kind, &subject.key())?;
    let asked = attempt(subject, Operation::Delete, "", old.name(), Some(&old), None);
    admit(subject.server, asked, warnings).await?;
    let deleted = subject.server.lock().delete(&subject.kind, &subject.key(), &options)?;
    match deleted {
        Deleted::Going(object) => answer(subject, StatusCode::OK, &object),
        Deleted::Gone(object) if comes_back_whole(&subject.kind) => answer(subject, StatusCode::OK, &object),
        Deleted::Gone(object) => {
            let mut details = json!({"name": object.name(), "kind": subject.kind.plural, "uid": object.uid()});
            if !subject.kind.group.is_empty() {
                details["group"] = json!(subject.kind.group);
            }
            Ok(value_answer(&json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details
            })))
        }
    }
}

/// Objects of some kinds are answered whole even when they are gone, as in Kubernetes.
fn comes_back_whole(kind: &Kind) -> bool {
    let core = [
        "persistentvolumeclaims",
        "persistentvolumes",
        "pods",
        "podtemplates",
        "resourcequotas",
        "serviceaccounts",
        "services",
    ];
    kind.group == "storage.k8s.io" || kind.group.is_empty() && core.contains(&kind.plural.as_str())
}

pub(super) async fn delete_collection(
    subject: &Subject<'_>,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, Refusal> {
    let options = options_of(subject)?;
    let selector = subject.selector()?;
    let page = subject
        .server
        .lock()
        .list(&subject.kind, &subject.target.namespace, &selector);
    for object in &page.objects {
        let mut asked = attempt(subject, Operation::Delete, "", object.name(), Some(object), None);
        asked.namespace = object.namespace();
        admit(subject.server, asked, warnings).await?;
    }
    let mut store = subject.server.lock();
    if !options.dry_run {
        store.delete_all(&subject.kind, &page.objects, &options);
    }
    let now = store.clock.now();
    drop(store);
    Ok(json_answer(
        StatusCode::OK,
        format::list(&subject.kind, &page, subject.request.format()?, now),
    ))
}

fn writing(subject: &Subject<'_>) -> Result<Writing, Refusal> {
    let manager = subject.request.manager();
    let mut writing = Writing {
        dry_run: subject.request.dry_run()?,
        ..Writing::by(&manager)
    };
    match subject.target.subresource.as_str() {
        "" => {}
        "status" if subject.kind.status => writing = writing.of_status(),
        "scale" if subject.kind.scale.is_some() => writing.subresource = "scale",
        // These take a whole object and change a part that we don't guard.
        "finalize" if subject.kind.is("", "namespaces") => {}
        "ephemeralcontainers" | "resize" if subject.kind.is("", "pods") => {}
        _ => return Err(Refusal::no_such_path()),
    }
    Ok(writing)
}

/// The body of a request as an object, with its unknown fields seen to.
fn decoded(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Value, Refusal> {
    let validation = FieldValidation::of(subject.request)?;
    let media = subject.request.content_type.split(';').next().unwrap_or("").trim();
    if !MEDIA.contains(&media) {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            MEDIA[1..].join(", ")
        );
        return Err(Refusal::of_code(415, message));
    }
    let (kind, namespace) = (&subject.kind, &subject.target.namespace);
    let parsed = subject.request.parsed_as(&kind.kind)?;
    if kind.custom.is_some() && parsed.value["kind"].as_str().unwrap_or("").is_empty() {
        let body = parsed.value.to_string();
        return Err(Refusal::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{body}' ({})",
            kind.kind,
            shown(body.as_bytes())
        )));
    }
    let decoded = subject.server.lock().decode(kind, namespace, parsed.value)?;
    validation
        .judge(&problems(&parsed.duplicates, &decoded.unknown), warnings)
        .map_err(|why| undecodable(&kind.version, &kind.kind, &why))?;
    Ok(decoded.value)
}

/// The patch, and the fields that its body has twice.
fn patch_of(subject: &Subject<'_>) -> Result<(Patch, Vec<String>), Refusal> {
    let request = subject.request;
    let Parsed { value, duplicates } = request.parsed()?;
    let patch = match request.content_type.split(';').next().unwrap_or("").trim() {
        "application/json-patch+json" => Ok(Patch::Json(value)),
        "application/merge-patch+json" => Ok(Patch::Merge(value)),
        "application/strategic-merge-patch+json" => Ok(Patch::Strategic(value)),
        "application/apply-patch+yaml" => Ok(Patch::Apply {
            config: value,
            force: request.query.flag("force"),
        }),
        _ => Err(Refusal::of_code(415, "415: Unsupported Media Type").with_empty_details()),
    };
    patch.map(|patch| (patch, duplicates))
}

fn options_of(subject: &Subject<'_>) -> Result<DeleteOptions, Refusal> {
    let request = subject.request;
    let body = if request.body.is_empty() {
        Value::Null
    } else {
        request.value()?
    };
    let mut options = delete_options(&body)?;
    if let Ok(seconds) = request.query.text("gracePeriodSeconds").parse() {
        options.grace_seconds = Some(seconds);
    }
    let policy = request.query.text("propagationPolicy");
    if !policy.is_empty() {
        options.propagation = propagation(policy)?;
    }
    options.dry_run |= request.dry_run()?;
    Ok(options)
}

fn delete_options(body: &Value) -> Result<DeleteOptions, Refusal> {
    let text = |value: &Value| value.as_str().filter(|t| !t.is_empty()).map(str::to_owned);
    let policy = match body["propagationPolicy"].as_str() {
        Some(policy) => propagation(policy)?,
        None if body["orphanDependents"] == true => Propagation::Orphan,
        None => Propagation::Background,
    };
    Ok(DeleteOptions {
        grace_seconds: body["gracePeriodSeconds"].as_i64(),
        uid: text(&body["preconditions"]["uid"]),
        resource_version: text(&body["preconditions"]["resourceVersion"]),
        propagation: policy,
        dry_run: body["dryRun"].as_array().is_some_and(|d| d.iter().any(|v| v == "All")),
    })
}

fn propagation(text: &str) -> Result<Propagation, Refusal> {
    match text {
        "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => {
            let allowed = ["Foreground", "Background", "Orphan", "nil"];
            let cause = Cause::unsupported("propagationPolicy", &json!(other), &allowed);
            Err(Refusal::invalid_options("DeleteOptions", cause))
        }
    }
}

fn attempt<'a>(
    subject: &'a Subject<'_>,
    operation: Operation,
    subresource: &'a str,
    name: &'a str,
    old: Option<&'a Object>,
    new: Option<Value>,
) -> Attempt<'a> {
    Attempt {
        operation,
        kind: &subject.kind,
        subresource,
        namespace: &subject.target.namespace,
        name,
        user: &subject.request.user,
        dry_run: subject.request.dry_run().unwrap_or(false),
        old: old.map(|o| &**o),
        new,
    }
}

fn answer(subject: &Subject<'_>, code: StatusCode, object: &Object) -> Result<Response<Body>, Refusal> {
    let now = subject.server.clock().now();
    Ok(json_answer(
        code,
        format::one(&subject.kind, object, subject.request.format()?, now),
    ))
}
