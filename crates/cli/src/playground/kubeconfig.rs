//! The playground's context in a kubeconfig: added to the file's other entries and removed at the end. Other entries are never
//! overwritten or deleted. The path is a regular file, a link to one, or absent: the playground refuses devices, pipes and directories.

use std::fs;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
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
    before: Before,
    /// The current context before the playground.
    previous: Option<String>,
    /// The text that the playground wrote.
    written: String,
}

/// The file before the playground.
#[derive(Debug, PartialEq, Eq)]
enum Before {
    /// There was no file, or one that a killed playground had left. It is deleted at the end.
    Nothing,
    /// The text of the user's file. It is written back, unless the file was changed meanwhile.
    Text(String),
    /// The user's file with the entries of a killed playground. It is written back without them.
    Leftovers,
}

/// Checks that the path is a kubeconfig or absent, and that it has no other entries by the playground's name. Called before the cluster
/// starts.
pub(super) fn check(path: &Path) -> anyhow::Result<()> {
    read(path).and_then(|file| refuse_entries_of_others(path, file.as_ref()))
}

impl Entry {
    /// Adds a cluster at this address to the file, and makes it the one that `kubectl` uses.
    pub(super) fn add(path: &Path, server: &str) -> anyhow::Result<Entry> {
        let file = read(path)?;
        refuse_entries_of_others(path, file.as_ref())?;
        let (before, mut config) = match file {
            None => (Before::Nothing, Map::new()),
            Some(file) if !has_playground(&file.config) => (Before::Text(file.text), file.config),
            // The deletion of a link would leave its target behind.
            Some(file) if !path.is_symlink() && has_only_playground(&file.config) => (Before::Nothing, file.config),
            Some(file) => (Before::Leftovers, file.config),
        };
        let previous = config.get(CURRENT).and_then(Value::as_str).map(str::to_owned);
        insert(&mut config, server);
        let written = render(&config)?;
        replace(path, &written)?;
        Ok(Entry {
            path: path.to_owned(),
            server: server.to_owned(),
            before,
            // A playground that was killed may have left its context as the current one; its server is gone.
            previous: previous.filter(|name| name != NAME),
            written,
        })
    }

    fn remove(&self) -> anyhow::Result<()> {
        let Some(mut file) = read(&self.path)? else {
            return Ok(());
        };
        if let Before::Text(before) = &self.before
            && file.text == self.written
        {
            return replace(&self.path, before);
        }
        if !take_out(&mut file.config, &self.server, self.previous.as_deref()) {
            return Ok(());
        }
        if self.before == Before::Nothing && !has_playground(&file.config) && has_only_playground(&file.config) {
            return fs::remove_file(&self.path).with_context(|| format!("removing {}", self.path.display()));
        }
        replace(&self.path, &render(&file.config)?)
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

/// A kubeconfig as read.
struct File {
    text: String,
    config: Map<String, Value>,
}

/// The file's content; `None` if there is no such file.
fn read(path: &Path) -> anyhow::Result<Option<File>> {
    let failed = |error: io::Error| {
        anyhow!(
            "reading the kubeconfig {}: {error}; name another file with --kubeconfig",
            path.display()
        )
    };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
        Ok(_) => {}
    }
    // Opening a pipe would wait for a writer, and replacing a device would take it from the whole machine.
    match fs::metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => bail!(
            "{} is a link to a file that does not exist; create the file, or name another with --kubeconfig",
            path.display()
        ),
        Err(error) => return Err(failed(error)),
        Ok(metadata) if !metadata.is_file() => bail!(
            "{} is {}; a kubeconfig is a regular file: name another with --kubeconfig",
            path.display(),
            kind(metadata.file_type())
        ),
        Ok(_) => {}
    }
    let text = fs::read_to_string(path).map_err(failed)?;
    let config = parse(path, &text)?;
    Ok(Some(File { text, config }))
}

/// The kind of a file that is not a regular one, for messages.
fn kind(file: fs::FileType) -> &'static str {
    match file {
        file if file.is_dir() => "a directory",
        file if file.is_fifo() => "a pipe",
        file if file.is_socket() => "a socket",
        _ => "a device",
    }
}

fn parse(path: &Path, text: &str) -> anyhow::Result<Map<String, Value>> {
    if text.trim().is_empty() {
        return Ok(Map::new());
    }
    let refuse = |problem: String| {
        anyhow!(
            "{} exists and is not a kubeconfig ({problem}); it is left as it is: name another file with --kubeconfig",
            path.display()
        )
    };
    let config: Value = serde_saphyr::from_str(text).map_err(|_| refuse("it is not YAML".to_owned()))?;
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
        None => Ok(config),
    }
}

/// Refuses a file with an entry by the playground's name that no playground has written.
fn refuse_entries_of_others(path: &Path, file: Option<&File>) -> anyhow::Result<()> {
    let Some(file) = file else { return Ok(()) };
    for list in LISTS {
        let named = entries(&file.config, list).iter().filter(|entry| entry["name"] == NAME);
        for entry in named {
            if !is_of_a_playground(list, entry) {
                bail!(
                    "{} has an entry {NAME} under {list} that is not of a playground; it is left as it is: name another file with \
                     --kubeconfig, or rename the entry",
                    path.display()
                );
            }
        }
    }
    Ok(())
}

/// Whether a playground may have written this entry: a server without TLS on a loopback address, a user without credentials, and a
/// context that joins the two.
fn is_of_a_playground(list: &str, entry: &Value) -> bool {
    let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    match list {
        "clusters" => {
            let cluster = entry["cluster"].as_object();
            let only_server = cluster.is_some_and(|cluster| cluster.keys().all(|key| key == "server"));
            let address = entry["cluster"]["server"].as_str().unwrap_or_default();
            let address = address.strip_prefix("http://").unwrap_or_default();
            only_server
                && address
                    .parse()
                    .is_ok_and(|address: SocketAddr| address.ip().is_loopback())
        }
        "users" => is_empty(&entry["user"]),
        _ => entry["context"]["cluster"] == NAME && entry["context"]["user"] == NAME,
    }
}

fn entries<'a>(config: &'a Map<String, Value>, list: &str) -> &'a [Value] {
    config.get(list).and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

fn has_playground(config: &Map<String, Value>) -> bool {
    let mut all = LISTS.iter().flat_map(|list| entries(config, list));
    all.any(|entry| entry["name"] == NAME)
}

/// Whether the file has nothing that a playground has not written.
fn has_only_playground(config: &Map<String, Value>) -> bool {
    let written = |key: &str| ["apiVersion", "kind", CURRENT].contains(&key) || LISTS.contains(&key);
    // `kubectl config` adds empty preferences.
    let is_empty = |value: &Value| value.is_null() || value.as_object().is_some_and(Map::is_empty);
    let mut all = LISTS.iter().flat_map(|list| entries(config, list));
    all.all(|entry| entry["name"] == NAME) && config.iter().all(|(key, value)| written(key) || is_empty(value))
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

/// Removes the playground's entries. False if another playground or the user has replaced its cluster. An entry that the user has
/// changed, for instance by credentials, stays.
fn take_out(config: &mut Map<String, Value>, server: &str, previous: Option<&str>) -> bool {
    let own = entries(config, "clusters").iter().find(|entry| entry["name"] == NAME);
    if own.is_none_or(|entry| entry["cluster"]["server"] != server) {
        return false;
    }
    for list in LISTS {
        let mut all: Vec<Value> = entries(config, list).to_vec();
        all.retain(|present| present["name"] != NAME || !is_of_a_playground(list, present));
        config.insert(list.to_owned(), all.into());
    }
    // The user may have chosen another context; it stays.
    if config.get(CURRENT).is_some_and(|current| current == NAME) {
        config.insert(CURRENT.to_owned(), previous.unwrap_or_default().into());
    }
    true
}

fn render(config: &Map<String, Value>) -> anyhow::Result<String> {
    let mut text = serde_saphyr::to_string(config).context("writing the kubeconfig as YAML")?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

/// Replaces the file atomically: a reader sees the old or the new content. Only the owner may read it: it may hold credentials.
fn replace(path: &Path, text: &str) -> anyhow::Result<()> {
    // A symbolic link stays; its target is replaced.
    let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
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
    written.map_err(|error| {
        anyhow!(
            "writing the kubeconfig {}: {error}; name another place with --kubeconfig",
            path.display()
        )
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    const USERS: &str = "apiVersion: v1\nkind: Config\nclusters:\n- name: work\n  cluster: {server: https://work}\n\
                         users:\n- name: me\n  user: {token: secret}\n\
                         contexts:\n- name: work\n  context: {cluster: work, user: me}\ncurrent-context: work\n\
                         preferences: {colors: true}\n";

    struct TestFile {
        _directory: tempfile::TempDir,
        path: PathBuf,
    }

    fn file(text: Option<&str>) -> TestFile {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("config");
        if let Some(text) = text {
            fs::write(&path, text).unwrap();
        }
        TestFile {
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
        let entry = Entry::add(&file.path, "http://127.0.0.1:1").unwrap();
        let during = content(&file.path);
        assert_eq!(during[CURRENT], NAME);
        assert_eq!(during["clusters"][0], before["clusters"][0]);
        assert_eq!(during["clusters"][1]["cluster"]["server"], "http://127.0.0.1:1");
        let mode = fs::metadata(&file.path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        drop(entry);
        assert_eq!(content(&file.path), before);
    }

    #[test]
    fn a_file_of_its_own_is_removed_at_the_end_unless_others_use_it() {
        let own = file(None);
        drop(Entry::add(&own.path, "http://127.0.0.1:1").unwrap());
        assert!(!own.path.exists());
        let shared = file(None);
        let entry = Entry::add(&shared.path, "http://127.0.0.1:1").unwrap();
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
        std::mem::forget(Entry::add(&file.path, "http://127.0.0.1:2").unwrap());
        drop(Entry::add(&file.path, "http://127.0.0.1:1").unwrap());
        assert!(!file.path.exists());
    }

    #[test]
    fn a_context_that_the_user_chose_meanwhile_stays() {
        let file = file(Some(USERS));
        let entry = Entry::add(&file.path, "http://127.0.0.1:1").unwrap();
        let mut during = content(&file.path);
        during[CURRENT] = "other".into();
        fs::write(&file.path, during.to_string()).unwrap();
        drop(entry);
        assert_eq!(content(&file.path)[CURRENT], "other");
    }

    #[test]
    fn the_entry_of_a_later_playground_stays() {
        let file = file(Some(USERS));
        let first = Entry::add(&file.path, "http://127.0.0.1:3").unwrap();
        let second = Entry::add(&file.path, "http://[::1]:4").unwrap();
        drop(first);
        assert_eq!(
            content(&file.path)["clusters"][1]["cluster"]["server"],
            "http://[::1]:4"
        );
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
            let error = Entry::add(&file.path, "http://127.0.0.1:1").unwrap_err().to_string();
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
        drop(Entry::add(&link, "http://127.0.0.1:1").unwrap());
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(content(&file.path)[CURRENT], "work");
    }

    #[test]
    fn devices_pipes_directories_and_links_to_nothing_are_refused_and_left_alone() {
        let place = file(None);
        let (pipe, link) = (place.path.with_file_name("pipe"), place.path.with_file_name("link"));
        let made = std::process::Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        std::os::unix::fs::symlink(&place.path, &link).unwrap();
        let directory = place.path.parent().unwrap();
        for (path, reason) in [
            (Path::new("/dev/null"), "is a device"),
            (&pipe, "is a pipe"),
            (directory, "is a directory"),
            (&link, "is a link to a file that does not exist"),
        ] {
            let error = check(path).unwrap_err().to_string();
            assert!(error.contains(reason) && error.contains("--kubeconfig"), "{error}");
        }
        assert!(Entry::add(&link, "http://127.0.0.1:1").is_err());
        assert!(link.is_symlink() && !place.path.exists());
    }

    #[test]
    fn entries_of_the_same_name_that_are_not_of_a_playground_are_refused_and_left_alone() {
        let own = |server: &str, user: &str| {
            format!(
                "kind: Config\nclusters: [{{name: kai-playground, cluster: {{server: '{server}'}}}}]\n\
                 users: [{{name: kai-playground, user: {user}}}]\ncurrent-context: kai-playground\n"
            )
        };
        let beside_others = USERS.replace("name: me", "name: kai-playground");
        for (text, list) in [
            (own("https://10.0.0.1:6443", "{token: secret}"), "clusters"),
            (own("http://10.0.0.1:8080", "{}"), "clusters"),
            (own("https://127.0.0.1:6443", "{}"), "clusters"),
            (own("http://127.0.0.1:8080', proxy-url: 'http://p", "{}"), "clusters"),
            (own("http://127.0.0.1:8080", "{token: secret}"), "users"),
            (beside_others, "users"),
            (
                "contexts: [{name: kai-playground, context: {cluster: work}}]".to_owned(),
                "contexts",
            ),
        ] {
            let file = file(Some(&text));
            for error in [
                check(&file.path).unwrap_err(),
                Entry::add(&file.path, "http://127.0.0.1:1").unwrap_err(),
            ] {
                let error = error.to_string();
                let words = format!("has an entry kai-playground under {list}");
                assert!(error.contains(&words) && error.contains("--kubeconfig"), "{error}");
            }
            assert_eq!(fs::read_to_string(&file.path).unwrap(), text);
        }
    }

    #[test]
    fn a_file_that_nobody_changed_is_given_back_to_the_byte_with_its_comments() {
        for text in [format!("# my clusters\n{USERS}"), String::new()] {
            let file = file(Some(&text));
            drop(Entry::add(&file.path, "http://127.0.0.1:1").unwrap());
            assert_eq!(fs::read_to_string(&file.path).unwrap(), text);
        }
    }

    #[test]
    fn credentials_that_the_user_added_meanwhile_stay() {
        let file = file(None);
        let entry = Entry::add(&file.path, "http://127.0.0.1:1").unwrap();
        let mut during = content(&file.path);
        during["users"][0]["user"]["token"] = "secret".into();
        fs::write(&file.path, during.to_string()).unwrap();
        drop(entry);
        assert_eq!(content(&file.path)["users"], during["users"]);
        assert_eq!(content(&file.path)["clusters"], json!([]));
    }

    #[test]
    fn what_a_killed_playground_left_behind_a_link_is_taken_out_of_its_target() {
        let file = file(None);
        std::mem::forget(Entry::add(&file.path, "http://127.0.0.1:1").unwrap());
        let link = file.path.with_file_name("link");
        std::os::unix::fs::symlink(&file.path, &link).unwrap();
        drop(Entry::add(&link, "http://127.0.0.1:2").unwrap());
        assert!(link.is_symlink());
        assert_eq!(content(&file.path)["clusters"], json!([]));
    }

    #[test]
    fn preferences_of_the_user_in_a_file_of_leftovers_stay() {
        let file = file(Some("kind: Config\npreferences: {colors: true}\n"));
        std::mem::forget(Entry::add(&file.path, "http://127.0.0.1:1").unwrap());
        drop(Entry::add(&file.path, "http://127.0.0.1:2").unwrap());
        assert_eq!(content(&file.path)["preferences"]["colors"], true);
    }
}
