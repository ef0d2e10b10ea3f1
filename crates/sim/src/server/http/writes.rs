//! Writes over HTTP: plan under the lock, ask admission without it, commit under it; again if somebody was faster.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::resources::Subject;
use super::{Body, format, json_answer, value_answer};
use crate::server::admission::{Attempt, Operation, admit};
use crate::server::kinds::Kind;
use crate::server::object::{Key, Object, map_mut, meta_text};
use crate::server::patch::Patch;
use crate::server::patch::patched;
use crate::server::patch::shape::Shape;
use crate::server::refusal::Refusal;
use crate::server::store::{Author, DeleteOptions, Deleted, Part, Planned, Propagation, Writing};

/// Attempts of a write that somebody else outran, as many as Kubernetes makes.
const ATTEMPTS: usize = 5;

pub(super) async fn post(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    let target = subject.target;
    if !target.name.is_empty() {
        return match (subject.kind.is("", "pods"), target.subresource.as_str()) {
            (true, "binding") => bind(subject, warnings).await,
            (true, "eviction") => evict(subject, warnings).await,
            _ => Err(Refusal::of_code(
                405,
                "the server does not allow this method on the requested resource",
            )),
        };
    }
    if subject.kind.namespaced() && target.namespace.is_empty() {
        return Err(Refusal::of_code(
            405,
            "the server does not allow this method on the requested resource",
        ));
    }
    let body = subject.request.value()?;
    // The old way of binding names the pod in the body.
    let writing = writing(subject)?;
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
    let body = subject.request.value()?;
    let writing = writing(subject)?;
    if subject.target.subresource == "scale" {
        let object = write(subject, &writing, warnings, |subject| {
            let old = subject.server.lock().get(&subject.kind, &subject.key())?;
            rescaled(subject, &old, &body)
        });
        let object = object.await?;
        return Ok(value_answer(&scale_of(&subject.kind, &object)));
    }
    let object = write(subject, &writing, warnings, |subject| {
        subject
            .server
            .lock()
            .plan_update(&subject.kind, &subject.key(), body.clone(), writing.part)
    });
    let object = object.await?;
    answer(subject, StatusCode::OK, &object)
}

pub(super) async fn patch(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    let patch = patch_of(subject)?;
    let mut writing = writing(subject)?;
    if subject.target.subresource == "scale" {
        let object = write(subject, &writing, warnings, |subject| {
            let old = subject.server.lock().get(&subject.kind, &subject.key())?;
            let scale = patched(&scale_of(&subject.kind, &old), &patch, Shape::Untyped)?;
            rescaled(subject, &old, &scale)
        });
        let object = object.await?;
        return Ok(value_answer(&scale_of(&subject.kind, &object)));
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
    let object = write(subject, &writing, warnings, |subject| {
        subject
            .server
            .lock()
            .plan_patch(&subject.kind, &subject.key(), &patch, &writing)
    });
    let object = object.await?;
    answer(subject, StatusCode::OK, &object)
}

/// Plans, asks, commits; from the start if the object changed meanwhile. A client that named a revision then gets its
/// conflict from the plan.
async fn write(
    subject: &Subject<'_>,
    writing: &Writing,
    warnings: &mut Vec<String>,
    plan: impl Fn(&Subject<'_>) -> Result<Planned, Refusal>,
) -> Result<Object, Refusal> {
    let mut outrun = None;
    for _ in 0..ATTEMPTS {
        let Planned { old, new } = plan(subject)?;
        let attempt = attempt(
            subject,
            Operation::Update,
            &subject.target.subresource,
            old.name(),
            Some(&old),
            Some(new),
        );
        let new = admit(subject.server, attempt, warnings).await?.unwrap_or_default();
        let planned = Planned { old: old.clone(), new };
        match subject.server.lock().commit_update(&subject.kind, planned, writing) {
            Err(refusal) if refusal.reason == "Conflict" => outrun = Some(refusal),
            other => return other,
        }
    }
    Err(outrun.unwrap_or_else(|| Refusal::outdated(subject.kind.about(&subject.target.name))))
}

async fn bind(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    let binding = subject.request.value()?;
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
    Ok(json_answer(StatusCode::CREATED, success(&json!({})).to_string()))
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
    Ok(json_answer(StatusCode::CREATED, success(&json!({})).to_string()))
}

pub(super) async fn delete(subject: &Subject<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, Refusal> {
    if !subject.target.subresource.is_empty() {
        return Err(Refusal::of_code(
            405,
            "the server does not allow this method on the requested resource",
        ));
    }
    let options = options_of(subject)?;
    let old = subject.server.lock().get(&subject.kind, &subject.key())?;
    let asked = attempt(subject, Operation::Delete, "", old.name(), Some(&old), None);
    admit(subject.server, asked, warnings).await?;
    let deleted = subject.server.lock().delete(&subject.kind, &subject.key(), &options)?;
    match deleted {
        Deleted::Going(object) => answer(subject, StatusCode::OK, &object),
        // Pods come back whole even when they are gone, as in Kubernetes.
        Deleted::Gone(object) if subject.kind.is("", "pods") => answer(subject, StatusCode::OK, &object),
        Deleted::Gone(object) => {
            let details = json!({
                "name": object.name(), "kind": subject.kind.plural, "group": subject.kind.group, "uid": object.uid()
            });
            Ok(value_answer(&success(&details)))
        }
    }
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
        format::list(&subject.kind, &page, subject.request.format, now),
    ))
}

/// An object's `Scale`.
pub(super) fn scale_of(kind: &Kind, object: &Object) -> Value {
    let Some(scale) = &kind.scale else { return Value::Null };
    let at = |path: &str| at_path(object, path).as_i64().unwrap_or(0);
    let selector = match &scale.selector {
        Some(path) => at_path(object, path).as_str().unwrap_or("").to_owned(),
        None => selector_text(&object["spec"]["selector"]),
    };
    let metadata = &object["metadata"];
    json!({
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {
            "name": metadata["name"], "namespace": metadata["namespace"], "uid": metadata["uid"],
            "resourceVersion": metadata["resourceVersion"], "creationTimestamp": metadata["creationTimestamp"],
        },
        "spec": {"replicas": at(&scale.spec_replicas)},
        "status": {"replicas": at(&scale.status_replicas), "selector": selector},
    })
}

fn rescaled(subject: &Subject<'_>, old: &Object, scale: &Value) -> Result<Planned, Refusal> {
    let Some(paths) = &subject.kind.scale else {
        return Err(Refusal::no_such_path());
    };
    let Some(replicas) = scale["spec"]["replicas"].as_i64().filter(|n| *n >= 0) else {
        return Err(Refusal::bad_request(
            "spec.replicas must be a number that is not negative",
        ));
    };
    let mut body = old.to_value();
    let mut place = &mut body;
    for name in paths.spec_replicas.split('.').filter(|p| !p.is_empty()) {
        place = map_mut(place).entry(name).or_insert(Value::Null);
    }
    *place = json!(replicas);
    let revision = meta_text(scale, "resourceVersion");
    if !revision.is_empty() {
        body["metadata"]["resourceVersion"] = json!(revision);
    }
    subject
        .server
        .lock()
        .plan_update(&subject.kind, &Key::of(old), body, Part::Main)
}

fn at_path<'v>(object: &'v Value, path: &str) -> &'v Value {
    path.split('.')
        .filter(|p| !p.is_empty())
        .fold(object, |value, name| &value[name])
}

fn selector_text(selector: &Value) -> String {
    let labels = selector["matchLabels"].as_object().or_else(|| selector.as_object());
    let pairs = labels
        .into_iter()
        .flatten()
        .filter_map(|(k, v)| Some(format!("{k}={}", v.as_str()?)));
    pairs.collect::<Vec<_>>().join(",")
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

fn patch_of(subject: &Subject<'_>) -> Result<Patch, Refusal> {
    let request = subject.request;
    let value = request.value()?;
    match request.content_type.split(';').next().unwrap_or("").trim() {
        "application/json-patch+json" => Ok(Patch::Json(value)),
        "application/merge-patch+json" => Ok(Patch::Merge(value)),
        "application/strategic-merge-patch+json" => Ok(Patch::Strategic(value)),
        "application/apply-patch+yaml" => Ok(Patch::Apply {
            config: value,
            force: request.query.flag("force"),
        }),
        other => Err(Refusal::of_code(
            415,
            format!(
                "the body of the request was in an unknown format ({other}) - accepted media types include: \
                 application/json-patch+json, application/merge-patch+json, application/strategic-merge-patch+json, \
                 application/apply-patch+yaml"
            ),
        )),
    }
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
        other => Err(Refusal::bad_request(format!(
            "propagationPolicy: Unsupported value: {other:?}"
        ))),
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

fn success(details: &Value) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details})
}

fn answer(subject: &Subject<'_>, code: StatusCode, object: &Object) -> Result<Response<Body>, Refusal> {
    let now = subject.server.clock().now();
    Ok(json_answer(
        code,
        format::one(&subject.kind, object, subject.request.format, now),
    ))
}
