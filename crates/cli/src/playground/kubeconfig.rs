//! The playground's context in a kubeconfig: added to the file's other entries and removed at the end. Other entries are never
//! overwritten or deleted.

use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, anyhow, bail};
use serde_json::{Map, Value, json};

/// The name of the playground's cluster, user and context.
pub(super) const NAME: &str = "kai-playground";
const CURRENT: &str = "current-context";
/// The lists of a kubeconfig that get an entry.
const LISTS: [&str; 3] = ["clusters", "users", "contexts"];

/// The playground's entries in a kubeconfig. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Entry {
    path: PathBuf,
    server: String,
    /// Whether the file has no entries but those of playgrounds.
    created: bool,
    /// The current context before the playground.
    previous: Option<String>,
}

/// Checks that the file can be written, before the cluster starts.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    read(path).map(drop)
}

impl Entry {
    /// Adds a cluster at this address to the file, and makes it the one that `kubectl` uses.
    pub(super) fn add(path: &Path, server: &str) -> anyhow::Result<Entry> {
        let before = read(path)?;
        // A playground that was killed may have left a file with its own entries only.
        let created = before.as_ref().is_none_or(|config| {
            let mut all = LISTS.iter().flat_map(|list| entries(config, list)).peekable();
            all.peek().is_some() && all.all(|entry| entry["name"] == NAME)
        });
        let mut config = before.unwrap_or_default();
        let previous = config.get(CURRENT).and_then(Value::as_str).map(str::to_owned);
        insert(&mut config, server);
        write(path, &config)?;
        Ok(Entry {
            path: path.to_owned(),
            server: server.to_owned(),
            created,
            // A playground that was killed may have left its context as the current one; its server is gone.
            previous: previous.filter(|name| name != NAME),
        })
    }

    fn remove(&self) -> anyhow::Result<()> {
        let Some(mut config) = read(&self.path)? else {
            return Ok(());
        };
        if !take_out(&mut config, &self.server, self.previous.as_deref()) {
            return Ok(());
        }
        let empty = LISTS.iter().all(|list| entries(&config, list).is_empty());
        if self.created && empty {
            return fs::remove_file(&self.path).with_context(|| format!("removing {}", self.path.display()));
        }
        write(&self.path, &config)
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            eprintln!(
                "warning: the kubeconfig {} still names the playground ({error:#}); kubectl config delete-context {NAME} removes it",
                self.path.display()
            );
        }
    }
}

/// The file's content; `None` if there is no such file.
fn read(path: &Path) -> anyhow::Result<Option<Map<String, Value>>> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => {
            bail!(
                "reading the kubeconfig {}: {error}; name another file with --kubeconfig",
                path.display()
            )
        }
    };
    if text.trim().is_empty() {
        return Ok(Some(Map::new()));
    }
    let refuse = |problem: String| {
        anyhow!(
            "{} exists and is not a kubeconfig ({problem}); it is left as it is: name another file with --kubeconfig",
            path.display()
        )
    };
    let config: Value = serde_saphyr::from_str(&text).map_err(|_| refuse("it is not YAML".to_owned()))?;
    let Value::Object(config) = config else {
        return Err(refuse("it holds no fields".to_owned()));
    };
    match config.get("kind").and_then(Value::as_str) {
        Some("Config") => {}
        None if LISTS.iter().any(|list| config.contains_key(*list)) => {}
        Some(kind) => return Err(refuse(format!("its kind is {kind}"))),
        None => return Err(refuse("it has neither kind nor clusters".to_owned())),
    }
    let wrong = LISTS
        .iter()
        .find(|list| !matches!(config.get(**list), None | Some(Value::Null | Value::Array(_))));
    match wrong {
        Some(list) => Err(refuse(format!("{list} is not a list"))),
        None => Ok(Some(config)),
    }
}

fn entries<'a>(config: &'a Map<String, Value>, list: &str) -> &'a [Value] {
    config.get(list).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Replaces entries of the same name by the playground's.
fn insert(config: &mut Map<String, Value>, server: &str) {
    config.entry("apiVersion").or_insert("v1".into());
    config.entry("kind").or_insert("Config".into());
    let own = [
        json!({ "name": NAME, "cluster": { "server": server } }),
        json!({ "name": NAME, "user": {} }),
        json!({ "name": NAME, "context": { "cluster": NAME, "user": NAME } }),
    ];
    for (list, entry) in LISTS.into_iter().zip(own) {
        let mut all: Vec<Value> = entries(config, list).to_vec();
        all.retain(|present| present["name"] != NAME);
        all.push(entry);
        config.insert(list.to_owned(), all.into());
    }
    config.insert(CURRENT.to_owned(), NAME.into());
}

/// Removes the playground's entries. False if another playground has replaced them; it removes its own.
fn take_out(config: &mut Map<String, Value>, server: &str, previous: Option<&str>) -> bool {
    let own = entries(config, "clusters").iter().find(|entry| entry["name"] == NAME);
    if own.is_none_or(|entry| entry["cluster"]["server"] != server) {
        return false;
    }
    for list in LISTS {
        let mut all: Vec<Value> = entries(config, list).to_vec();
        all.retain(|present| present["name"] != NAME);
        config.insert(list.to_owned(), all.into());
    }
    // The user may have chosen another context; it stays.
    if config.get(CURRENT).is_some_and(|current| current == NAME) {
        config.insert(CURRENT.to_owned(), previous.unwrap_or_default().into());
    }
    true
}

/// Replaces the file atomically: a reader sees the old or the new content. Only the owner may read it: it may hold credentials.
fn write(path: &Path, config: &Map<String, Value>) -> anyhow::Result<()> {
    // A symbolic link stays; its target is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let attempt = || {
        format!(
            "writing the kubeconfig {}; name another place with --kubeconfig",
            path.display()
        )
    };
    let mut text = serde_saphyr::to_string(config).with_context(attempt)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let mut beside = path.clone().into_os_string();
    beside.push(format!(".{}", std::process::id()));
    let beside = PathBuf::from(beside);
    let written = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .and_then(|mut file| file.write_all(text.as_bytes()).and_then(|()| file.sync_all()))
        .and_then(|()| fs::rename(&beside, &path));
    if written.is_err() {
        let _ = fs::remove_file(&beside);
    }
    written.with_context(attempt)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const USERS: &str = "apiVersion: v1\nkind: Config\nclusters:\n- name: work\n  cluster: {server: https://work}\n\
                         users:\n- name: me\n  user: {token: secret}\n\
                         contexts:\n- name: work\n  context: {cluster: work, user: me}\ncurrent-context: work\n\
                         preferences: {colors: true}\n";

    struct File {
        _directory: tempfile::TempDir,
        path: PathBuf,
    }

    fn file(text: Option<&str>) -> File {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        File {
            _directory: directory,
            path,
        }
    }

    fn content(path: &Path) -> Value {
        serde_saphyr::from_str(&fs::read_to_string(path).unwrap()).unwrap()
    }

    #[test]
    fn a_users_kubeconfig_gets_the_playground_and_is_given_back() {
        let file = file(Some(USERS));
        let before = content(&file.path);
        let entry = Entry::add(&file.path, "http://here").unwrap();
        let during = content(&file.path);
        assert_eq!(during[CURRENT], NAME);
        assert_eq!(during["clusters"][0], before["clusters"][0]);
        assert_eq!(during["clusters"][1]["cluster"]["server"], "http://here");
        let mode = fs::metadata(&file.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(entry);
        assert_eq!(content(&file.path), before);
    }

    #[test]
    fn a_file_of_its_own_is_removed_at_the_end_unless_others_use_it() {
        let own = file(None);
        drop(Entry::add(&own.path, "http://here").unwrap());
        assert!(!own.path.exists());
        let shared = file(None);
        let entry = Entry::add(&shared.path, "http://here").unwrap();
        let mut during = content(&shared.path);
        during["clusters"]
            .as_array_mut()
            .unwrap()
            .push(json!({ "name": "work", "cluster": {} }));
        fs::write(&shared.path, during.to_string()).unwrap();
        drop(entry);
        assert_eq!(
            content(&shared.path)["clusters"],
            json!([{ "name": "work", "cluster": {} }])
        );
    }

    #[test]
    fn what_a_killed_playground_left_is_taken_over() {
        let file = file(None);
        std::mem::forget(Entry::add(&file.path, "http://killed").unwrap());
        drop(Entry::add(&file.path, "http://here").unwrap());
        assert!(!file.path.exists());
    }

    #[test]
    fn a_context_that_the_user_chose_meanwhile_stays() {
        let file = file(Some(USERS));
        let entry = Entry::add(&file.path, "http://here").unwrap();
        let mut during = content(&file.path);
        during[CURRENT] = "other".into();
        fs::write(&file.path, during.to_string()).unwrap();
        drop(entry);
        assert_eq!(content(&file.path)[CURRENT], "other");
    }

    #[test]
    fn the_entry_of_a_later_playground_stays() {
        let file = file(Some(USERS));
        let first = Entry::add(&file.path, "http://first").unwrap();
        let second = Entry::add(&file.path, "http://second").unwrap();
        drop(first);
        assert_eq!(content(&file.path)["clusters"][1]["cluster"]["server"], "http://second");
        drop(second);
        assert_eq!(content(&file.path)["clusters"].as_array().unwrap().len(), 1);
    }

    #[test]
    fn a_file_that_is_no_kubeconfig_is_refused_and_left_alone() {
        for text in [
            "shopping: [milk]\n",
            "kind: Pod\n",
            "just words\n",
            "kind: Config\nclusters: 7\n",
            "a: b: c\n",
        ] {
            let file = file(Some(text));
            let error = Entry::add(&file.path, "http://here").unwrap_err().to_string();
            assert!(
                error.contains("--kubeconfig") && error.contains("left as it is"),
                "{error}"
            );
            assert_eq!(fs::read_to_string(&file.path).unwrap(), text);
        }
    }

    #[test]
    fn a_link_stays_a_link() {
        let file = file(Some(USERS));
        let link = file.path.with_file_name("link");
        std::os::unix::fs::symlink(&file.path, &link).unwrap();
        drop(Entry::add(&link, "http://here").unwrap());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(content(&file.path)[CURRENT], "work");
    }
}
