//! CEL expressions over JSON values. A cache keeps the compiled programs. Expressions read the given variables only.

use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use cel::extractors::This;
use cel::{Context, Program};
use parking_lot::Mutex;
use serde_json::Value;

/// Programs in the cache. A full cache is cleared: a cluster has few expressions, and compiling one is cheap.
const PROGRAMS_MAX: usize = 1_000;

/// The CEL variable by which policies check permissions.
const AUTHORIZER: &str = "authorizer";

/// The value of a boolean expression.
pub(crate) fn truth(text: &str, variables: &[(&str, &Value)]) -> Result<bool, String> {
    match evaluate(text, variables)? {
        cel::Value::Bool(truth) => Ok(truth),
        other => Err(format!("expected a truth value, got {:?}", other.type_of())),
    }
}

/// The value of a string expression.
pub(crate) fn text(text: &str, variables: &[(&str, &Value)]) -> Result<String, String> {
    match evaluate(text, variables)? {
        cel::Value::String(text) => Ok(text.to_string()),
        other => Err(format!("expected a string, got {:?}", other.type_of())),
    }
}

/// The value of an expression as JSON.
pub(crate) fn value(text: &str, variables: &[(&str, &Value)]) -> Result<Value, String> {
    let value = evaluate(text, variables)?;
    value.json().map_err(|e| e.to_string())
}

fn evaluate(text: &str, variables: &[(&str, &Value)]) -> Result<cel::Value, String> {
    let program = compiled(text)?;
    let mut context = Context::default();
    // Added only where the text names it: few expressions do, and the others run for every write.
    if text.contains(AUTHORIZER) {
        authorizer(&mut context).map_err(|e| e.to_string())?;
    }
    for (name, value) in variables {
        context.add_variable_from_value(*name, to_cel(value));
    }
    program.execute(&context).map_err(|e| e.to_string())
}

/// Declares an authorizer that allows everything, because this server has no RBAC.
fn authorizer(context: &mut Context<'_, '_>) -> Result<(), cel::DeclarationError> {
    context.add_variable_from_value(AUTHORIZER, cel::Value::Null);
    for narrowing in ["group", "resource", "subresource", "namespace", "name", "check"] {
        context.add_function(narrowing, |This(of): This<cel::Value>, _: cel::Value| of)?;
    }
    context.add_function("allowed", |This(_): This<cel::Value>| true)
}

/// The compiled program of a text. The lock guards the cache and is held for a lookup only.
fn compiled(text: &str) -> Result<Arc<Program>, String> {
    static PROGRAMS: OnceLock<Mutex<HashMap<String, Arc<Program>>>> = OnceLock::new();
    let programs = PROGRAMS.get_or_init(Mutex::default);
    let known = programs.lock().get(text).cloned();
    if let Some(program) = known {
        return Ok(program);
    }
    let program = Arc::new(Program::compile(text).map_err(|e| e.to_string())?);
    let mut programs = programs.lock();
    if programs.len() >= PROGRAMS_MAX {
        programs.clear();
    }
    programs.insert(text.to_owned(), program.clone());
    Ok(program)
}

/// JSON numbers without a fraction are CEL's signed integers, as in Kubernetes.
fn to_cel(value: &Value) -> cel::Value {
    match value {
        Value::Null => cel::Value::Null,
        Value::Bool(truth) => cel::Value::Bool(*truth),
        Value::Number(number) => match number.as_i64() {
            Some(integer) => cel::Value::Int(integer),
            None => cel::Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Value::String(text) => cel::Value::from(text.as_str()),
        Value::Array(items) => cel::Value::List(Arc::new(items.iter().map(to_cel).collect())),
        Value::Object(fields) => {
            let map: HashMap<String, cel::Value> = fields.iter().map(|(k, v)| (k.clone(), to_cel(v))).collect();
            cel::Value::from(map)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn what_policies_use() {
        let object = json!({"metadata": {"labels": {"a": "1"}}, "spec": {"schedulerName": "kai-scheduler", "n": 3}});
        let check = |expression: &str| truth(expression, &[("object", &object)]);
        for (expression, expect) in [
            ("object.spec.schedulerName == 'kai-scheduler'", true),
            (
                "has(object.metadata.annotations) && 'x' in object.metadata.annotations",
                false,
            ),
            (
                "!has(object.metadata.labels) || !object.metadata.labels.exists(k, k.startsWith('runai-gpu-group'))",
                true,
            ),
            ("object.metadata.labels.all(k, k in ['a', 'b'])", true),
            ("object.spec.n > 2 && object.spec.n % 2 == 1", true),
            ("object.spec.schedulerName.matches('^kai.*')", true),
            ("size(object.metadata.labels) == 1", true),
            ("has(object.spec.other) ? object.spec.other : true", true),
            (
                "authorizer.group('').resource('pods').subresource('binding').check('create').allowed()",
                true,
            ),
        ] {
            assert_eq!(check(expression), Ok(expect), "{expression}");
        }
        assert!(check("object.spec.missing == 1").is_err());
        assert!(check("object.spec.(").is_err());
        assert_eq!(
            text("'n is ' + string(object.spec.n)", &[("object", &object)]).unwrap(),
            "n is 3"
        );
    }
}
