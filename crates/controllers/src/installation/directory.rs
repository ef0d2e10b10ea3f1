//! Reads the installation directory: YAML files with objects that the program applies or creates. A chart can't contain these objects
//! itself, because their CustomResourceDefinitions do not exist when the chart is installed.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::Error;

/// How many bytes a file has at most: a ConfigMap, which the directory usually is, has no more.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// What happens to an object of the directory, by the name of its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rule {
    /// `apply-*`: applied at every start.
    Apply,
    /// `create-*`: created once per installation if it does not exist; never changed or deleted.
    Create,
}

/// An object of the directory.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct InstallationObject {
    /// The file, or another source, for messages.
    pub(super) source: String,
    pub(super) rule: Rule,
    pub(super) api_version: String,
    pub(super) kind: String,
    pub(super) namespace: String,
    pub(super) name: String,
    pub(super) object: Value,
}

impl InstallationObject {
    /// Checks the fields that every object has.
    pub(super) fn new(source: &str, rule: Rule, object: Value) -> Result<InstallationObject, Error> {
        let text = |path: &str| {
            object
                .pointer(path)
                .and_then(Value::as_str)
                .unwrap_or_default()
                .to_owned()
        };
        let (api_version, kind, name) = (text("/apiVersion"), text("/kind"), text("/metadata/name"));
        let namespace = text("/metadata/namespace");
        let fields = [
            ("apiVersion", &api_version, "kai.scheduler/v1"),
            ("kind", &kind, "Config"),
            ("metadata.name", &name, "kai-config"),
        ];
        for (field, value, example) in fields {
            if value.is_empty() {
                return Err(Error::Object {
                    source_name: source.to_owned(),
                    object: title(&kind, &namespace, &name),
                    problem: format!("{field} is missing; write one, such as {example}"),
                });
            }
        }
        Ok(InstallationObject {
            source: source.to_owned(),
            rule,
            api_version,
            kind,
            namespace,
            name,
            object,
        })
    }

    /// The object, for messages.
    pub(super) fn title(&self) -> String {
        title(&self.kind, &self.namespace, &self.name)
    }

    /// An error about this object.
    pub(super) fn problem(&self, problem: String) -> Error {
        Error::Object {
            source_name: self.source.clone(),
            object: self.title(),
            problem,
        }
    }
}

fn title(kind: &str, namespace: &str, name: &str) -> String {
    let kind = if kind.is_empty() { "object" } else { kind };
    match (namespace, name) {
        (_, "") => kind.to_owned(),
        ("", name) => format!("{kind} {name}"),
        (namespace, name) => format!("{kind} {namespace}/{name}"),
    }
}

/// All objects: those to apply first, each rule in the order of files and documents.
pub(super) fn read(directory: &Path) -> Result<Vec<InstallationObject>, Error> {
    let refused = |source| Error::Directory {
        path: directory.to_owned(),
        source,
    };
    let mut files = Vec::new();
    for entry in fs::read_dir(directory).map_err(refused)? {
        let path = entry.map_err(refused)?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // The kubelet's own entries of a mounted ConfigMap (`..data`), and folders, are no files of the installation.
        if !name.starts_with('.') && !path.is_dir() {
            files.push((rule_of(&name)?, name, path));
        }
    }
    files.sort();
    let mut objects = Vec::new();
    for (rule, name, path) in files {
        let size = fs::metadata(&path).map_err(refused)?.len();
        if size > FILE_BYTES_MAX {
            let problem = format!("it has {size} bytes; at most {FILE_BYTES_MAX} are read. Use several files");
            return Err(Error::File { name, problem });
        }
        let text = fs::read_to_string(&path).map_err(refused)?;
        objects.extend(parse(&name, rule, &text)?);
    }
    Ok(objects)
}

fn rule_of(name: &str) -> Result<Rule, Error> {
    let is_yaml = name.ends_with(".yaml") || name.ends_with(".yml");
    match (name.split_once('-').map(|(rule, _)| rule), is_yaml) {
        (Some("apply"), true) => Ok(Rule::Apply),
        (Some("create"), true) => Ok(Rule::Create),
        _ => Err(Error::File {
            name: name.to_owned(),
            problem: "the name does not say what to do; name it apply-NAME.yaml for objects that are applied at every start, or \
                      create-NAME.yaml for objects that are created once"
                .to_owned(),
        }),
    }
}

fn parse(name: &str, rule: Rule, text: &str) -> Result<Vec<InstallationObject>, Error> {
    let refused = |problem| Error::File {
        name: name.to_owned(),
        problem,
    };
    let documents: Vec<Value> = kai_yaml::from_documents(text).map_err(refused)?;
    // A template whose condition is false leaves an empty document.
    let documents = documents.into_iter().filter(|document| !document.is_null());
    documents
        .map(|document| InstallationObject::new(name, rule, document))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directory(files: &[(&str, &str)]) -> Result<Vec<InstallationObject>, Error> {
        let directory = tempfile::tempdir().unwrap();
        for (name, text) in files {
            fs::write(directory.path().join(name), text).unwrap();
        }
        fs::create_dir(directory.path().join("..2026_data")).unwrap();
        read(directory.path())
    }

    const CONFIG: &str = "apiVersion: kai.scheduler/v1\nkind: Config\nmetadata: {name: kai-config}\n";
    const QUEUES: &str = "apiVersion: scheduling.run.ai/v2\nkind: Queue\nmetadata: {name: parent}\n---\n---\napiVersion: \
                          scheduling.run.ai/v2\nkind: Queue\nmetadata: {name: child}\n";

    #[test]
    fn objects_to_apply_come_first_and_documents_keep_their_order() {
        let found = directory(&[
            ("create-b.yaml", QUEUES),
            ("apply-z.yml", CONFIG),
            ("create-a.yaml", "# nothing\n"),
        ]);
        let found: Vec<(Rule, String, String)> = found
            .unwrap()
            .into_iter()
            .map(|object| (object.rule, object.title(), object.source))
            .collect();
        let expect = |rule, title: &str, source: &str| (rule, title.to_owned(), source.to_owned());
        assert_eq!(
            found,
            [
                expect(Rule::Apply, "Config kai-config", "apply-z.yml"),
                expect(Rule::Create, "Queue parent", "create-b.yaml"),
                expect(Rule::Create, "Queue child", "create-b.yaml"),
            ]
        );
    }

    #[test]
    fn an_error_names_file_object_field_and_remedy() {
        let check = |name: &str, text: &str, expect: &[&str]| {
            let error = directory(&[(name, text)]).unwrap_err().to_string();
            assert!(expect.iter().all(|words| error.contains(words)), "{error}");
        };
        check("queues.yaml", QUEUES, &["queues.yaml", "create-NAME.yaml"]);
        check("apply-config.json", "{}", &["apply-config.json", "apply-NAME.yaml"]);
        check("apply-config.yaml", "a: [", &["apply-config.yaml", "line 1"]);
        check(
            "apply-config.yaml",
            "kind: Config\nmetadata: {name: x}",
            &[
                "apply-config.yaml",
                "Config x",
                "apiVersion is missing",
                "kai.scheduler/v1",
            ],
        );
        check("create-x.yaml", "[]", &["create-x.yaml", "apiVersion is missing"]);
        check(
            "create-x.yaml",
            "apiVersion: v1\nkind: ConfigMap\nmetadata: {namespace: a}",
            &["create-x.yaml", "ConfigMap", "metadata.name is missing"],
        );
        let missing = read(Path::new("/nonexistent")).unwrap_err().to_string();
        assert!(
            missing.contains("/nonexistent") && missing.contains("--installation"),
            "{missing}"
        );
    }
}
