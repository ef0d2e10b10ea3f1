//! Writes over HTTP: plan under the lock, run admission without it, commit under it. A conflict with another write starts over.

use http::{Response, StatusCode};
use serde_json::{Value, json};

use super::field_validation::{FieldValidation, problems};
use super::json::Parsed;
use super::request::shown;
use super::resources::RequestContext;
use super::{Body, format, json_response, scale, success, value_response};
use crate::server::admission::{Attributes, Operation, admit};
use crate::server::kinds::Kind;
use crate::server::object::{Object, meta_text};
use crate::server::patch::Patch;
use crate::server::status_error::{Cause, StatusError};
use crate::server::store::{
    DeleteOptions, Deleted, ManagerOperation, Part, PlannedUpdate, Propagation, WriteOptions, decode_error, patch_error,
};
use crate::server::types;

/// Attempts of a write that conflicts with others, as in Kubernetes.
const ATTEMPTS_MAX: usize = 5;

/// The media types of object bodies; an empty one means JSON.
const BODY_MEDIA_TYPES: [&str; 4] = [
    "",
    "application/json",
    "application/yaml",
    "application/vnd.kubernetes.protobuf",
];

pub(super) async fn post(
    context: &RequestContext<'_>,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, StatusError> {
    let target = context.target;
    if !target.name.is_empty() {
        return match (context.kind.is("", "pods"), target.subresource.as_str()) {
            (true, "binding") => bind(context, warnings).await,
            (true, "eviction") => evict(context, warnings).await,
            _ => Err(StatusError::no_such_method()),
        };
    }
    if context.kind.namespaced() && target.namespace.is_empty() {
        return Err(StatusError::no_such_method());
    }
    let options = write_options(context)?;
    let body = decoded(context, warnings)?;
    let new = context
        .server
        .lock()
        .plan_create(&context.kind, &target.namespace, body)?;
    let object = create(context, new, &options, warnings).await?;
    object_response(context, StatusCode::CREATED, &object)
}

async fn create(
    context: &RequestContext<'_>,
    new: Value,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
) -> Result<Object, StatusError> {
    let name = meta_text(&new, "name").to_owned();
    let attributes = attributes(context, Operation::Create, "", &name, None, Some(new));
    let new = admit(context.server, attributes, warnings).await?.unwrap_or_default();
    context.server.lock().commit_create(&context.kind, new, options)
}

pub(super) async fn put(
    context: &RequestContext<'_>,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, StatusError> {
    let options = write_options(context)?;
    if context.target.subresource == "scale" {
        return scale::put(context, &options, warnings).await;
    }
    let body = decoded(context, warnings)?;
    if meta_text(&body, "name").is_empty() {
        let message = format!(
            "the name of the object ({} based on URL) was undeterminable: name must be provided",
            context.target.name
        );
        return Err(StatusError::bad_request(message));
    }
    let object = write(context, &options, warnings, |context, _| {
        context
            .server
            .lock()
            .plan_update(&context.kind, &context.key(), body.clone(), options.part)
    });
    let object = object.await?;
    object_response(context, StatusCode::OK, &object)
}

pub(super) async fn patch(
    context: &RequestContext<'_>,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, StatusError> {
    let (patch, duplicates) = patch_of(context)?;
    let mut options = write_options(context)?;
    let validation = FieldValidation::of(context.request)?;
    if context.target.subresource == "scale" {
        return scale::patch(context, &patch, &options, warnings).await;
    }
    if let Patch::Apply { config, .. } = &patch {
        options.operation = ManagerOperation::Apply(context.request.query.text("fieldManager").to_owned());
        let missing = context.server.lock().get(&context.kind, &context.key()).is_err();
        if missing && options.part == Part::Main {
            let new = context
                .server
                .lock()
                .plan_apply_create(&context.kind, &context.key(), config, &options)?;
            let object = create(context, new, &options, warnings).await?;
            return object_response(context, StatusCode::CREATED, &object);
        }
    }
    let object = write(context, &options, warnings, |context, warnings| {
        let planned = context
            .server
            .lock()
            .plan_patch(&context.kind, &context.key(), &patch, &options)?;
        validation
            .apply(&problems(&duplicates, &planned.unknown), warnings)
            .map_err(|why| patch_error(&patch, &why))?;
        Ok(planned)
    });
    let object = object.await?;
    object_response(context, StatusCode::OK, &object)
}

/// Plans, runs admission and commits; starts over if the object changed meanwhile. If the client stated a resourceVersion, the second
/// plan then fails with the conflict.
pub(super) async fn write(
    context: &RequestContext<'_>,
    options: &WriteOptions,
    warnings: &mut Vec<String>,
    plan: impl Fn(&RequestContext<'_>, &mut Vec<String>) -> Result<PlannedUpdate, StatusError>,
) -> Result<Object, StatusError> {
    let mut conflict = None;
    for _ in 0..ATTEMPTS_MAX {
        let PlannedUpdate { old, new, unknown } = plan(context, warnings)?;
        let attributes = attributes(
            context,
            Operation::Update,
            &context.target.subresource,
            old.name(),
            Some(&old),
            Some(new),
        );
        let new = admit(context.server, attributes, warnings).await?.unwrap_or_default();
        let planned = PlannedUpdate {
            old: old.clone(),
            new,
            unknown,
        };
        match context.server.lock().commit_update(&context.kind, planned, options) {
            Err(error) if error.reason == "Conflict" => conflict = Some(error),
            other => return other,
        }
    }
    Err(conflict.unwrap_or_else(|| StatusError::outdated(context.kind.object_ref(&context.target.name))))
}

async fn bind(context: &RequestContext<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, StatusError> {
    let binding = types::decode("core.v1.Binding", context.request.value()?, true)
        .map_err(|problem| decode_error("v1", "Binding", &problem))?;
    let binding = binding.value;
    let attributes = attributes(
        context,
        Operation::Create,
        "binding",
        &context.target.name,
        None,
        Some(binding),
    );
    let binding = admit(context.server, attributes, warnings).await?.unwrap_or_default();
    let dry_run = context.request.dry_run()?;
    context
        .server
        .lock()
        .bind(&context.target.namespace, &context.target.name, &binding, dry_run)?;
    Ok(success(StatusCode::CREATED))
}

async fn evict(context: &RequestContext<'_>, warnings: &mut Vec<String>) -> Result<Response<Body>, StatusError> {
    let eviction = context.request.value()?;
    let mut options = delete_options(&eviction["deleteOptions"])?;
    options.dry_run |= context.request.dry_run()?;
    let attributes = attributes(
        context,
        Operation::Create,
        "eviction",
        &context.target.name,
        None,
        Some(eviction),
    );
    admit(context.server, attributes, warnings).await?;
    context
        .server
        .lock()
        .evict(&context.target.namespace, &context.target.name, &options)?;
    Ok(success(StatusCode::CREATED))
}

pub(super) async fn delete(
    context: &RequestContext<'_>,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, StatusError> {
    if !context.target.subresource.is_empty() {
        return Err(StatusError::no_such_method());
    }
    let options = request_delete_options(context)?;
    let old = context.server.lock().get(&context.kind, &context.key())?;
    let asked = attributes(context, Operation::Delete, "", old.name(), Some(&old), None);
    admit(context.server, asked, warnings).await?;
    let deleted = context.server.lock().delete(&context.kind, &context.key(), &options)?;
    match deleted {
        Deleted::Terminating(object) => object_response(context, StatusCode::OK, &object),
        Deleted::Removed(object) if returns_deleted_object(&context.kind) => {
            object_response(context, StatusCode::OK, &object)
        }
        Deleted::Removed(object) => {
            let mut details = json!({"name": object.name(), "kind": context.kind.plural, "uid": object.uid()});
            if !context.kind.group.is_empty() {
                details["group"] = json!(context.kind.group);
            }
            Ok(value_response(&json!({
                "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details
            })))
        }
    }
}

/// Whether a deletion returns the removed object instead of a `Status`, as Kubernetes does for some kinds.
fn returns_deleted_object(kind: &Kind) -> bool {
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
    context: &RequestContext<'_>,
    warnings: &mut Vec<String>,
) -> Result<Response<Body>, StatusError> {
    let options = request_delete_options(context)?;
    let selector = context.selector()?;
    let page = context
        .server
        .lock()
        .list(&context.kind, &context.target.namespace, &selector);
    for object in &page.objects {
        let mut asked = attributes(context, Operation::Delete, "", object.name(), Some(object), None);
        asked.namespace = object.namespace();
        admit(context.server, asked, warnings).await?;
    }
    let mut store = context.server.lock();
    if !options.dry_run {
        store.delete_all(&context.kind, &page.objects, &options);
    }
    let now = store.clock.now();
    drop(store);
    Ok(json_response(
        StatusCode::OK,
        format::list(&context.kind, &page, context.request.format()?, now),
    ))
}

fn write_options(context: &RequestContext<'_>) -> Result<WriteOptions, StatusError> {
    let manager = context.request.manager();
    let mut options = WriteOptions {
        dry_run: context.request.dry_run()?,
        ..WriteOptions::by(&manager)
    };
    match context.target.subresource.as_str() {
        "" => {}
        "status" if context.kind.status => options = options.of_status(),
        "scale" if context.kind.scale.is_some() => options.subresource = "scale",
        // These subresources take the whole object; the server does not restrict which part changes.
        "finalize" if context.kind.is("", "namespaces") => {}
        "ephemeralcontainers" if context.kind.is("", "pods") => {}
        "resize" if context.kind.is("", "pods") => options.subresource = "resize",
        _ => return Err(StatusError::no_such_path()),
    }
    Ok(options)
}

/// The body of a request as an object, after the field validation.
fn decoded(context: &RequestContext<'_>, warnings: &mut Vec<String>) -> Result<Value, StatusError> {
    let validation = FieldValidation::of(context.request)?;
    let media = context.request.content_type.split(';').next().unwrap_or("").trim();
    if !BODY_MEDIA_TYPES.contains(&media) {
        let message = format!(
            "the body of the request was in an unknown format - accepted media types include: {}",
            BODY_MEDIA_TYPES[1..].join(", ")
        );
        return Err(StatusError::of_code(415, message));
    }
    let (kind, namespace) = (&context.kind, &context.target.namespace);
    let parsed = context.request.parsed_as(&kind.kind)?;
    if kind.custom.is_some() && parsed.value["kind"].as_str().unwrap_or("").is_empty() {
        let body = parsed.value.to_string();
        return Err(StatusError::bad_request(format!(
            "the object provided is unrecognized (must be of type {}): Object 'Kind' is missing in '{body}' ({})",
            kind.kind,
            shown(body.as_bytes())
        )));
    }
    let decoded = context.server.lock().decode(kind, namespace, parsed.value)?;
    validation
        .apply(&problems(&parsed.duplicates, &decoded.unknown), warnings)
        .map_err(|why| decode_error(&kind.version, &kind.kind, &why))?;
    Ok(decoded.value)
}

/// The patch, and the duplicate fields of its body.
fn patch_of(context: &RequestContext<'_>) -> Result<(Patch, Vec<String>), StatusError> {
    let request = context.request;
    let Parsed { value, duplicates } = request.parsed()?;
    let patch = match request.content_type.split(';').next().unwrap_or("").trim() {
        "application/json-patch+json" => Ok(Patch::Json(value)),
        "application/merge-patch+json" => Ok(Patch::Merge(value)),
        "application/strategic-merge-patch+json" => Ok(Patch::Strategic(value)),
        "application/apply-patch+yaml" => Ok(Patch::Apply {
            config: value,
            force: request.query.flag("force"),
        }),
        _ => Err(StatusError::of_code(415, "415: Unsupported Media Type").with_empty_details()),
    };
    patch.map(|patch| (patch, duplicates))
}

fn request_delete_options(context: &RequestContext<'_>) -> Result<DeleteOptions, StatusError> {
    let request = context.request;
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

fn delete_options(body: &Value) -> Result<DeleteOptions, StatusError> {
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

fn propagation(text: &str) -> Result<Propagation, StatusError> {
    match text {
        "Background" => Ok(Propagation::Background),
        "Foreground" => Ok(Propagation::Foreground),
        "Orphan" => Ok(Propagation::Orphan),
        other => {
            let allowed = ["Foreground", "Background", "Orphan", "nil"];
            let cause = Cause::unsupported("propagationPolicy", &json!(other), &allowed);
            Err(StatusError::invalid_options("DeleteOptions", cause))
        }
    }
}

fn attributes<'a>(
    context: &'a RequestContext<'_>,
    operation: Operation,
    subresource: &'a str,
    name: &'a str,
    old: Option<&'a Object>,
    new: Option<Value>,
) -> Attributes<'a> {
    Attributes {
        operation,
        kind: &context.kind,
        subresource,
        namespace: &context.target.namespace,
        name,
        user: &context.request.user,
        dry_run: context.request.dry_run().unwrap_or(false),
        old: old.map(|o| &**o),
        new,
    }
}

fn object_response(
    context: &RequestContext<'_>,
    code: StatusCode,
    object: &Object,
) -> Result<Response<Body>, StatusError> {
    let now = context.server.clock().now();
    Ok(json_response(
        code,
        format::one(&context.kind, object, context.request.format()?, now),
    ))
}
