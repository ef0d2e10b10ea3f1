//! `--watch`: runs the scenarios again whenever one of their files changes, and prints what that changes. Ends with ctrl-c.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::Duration;

use kai_simulate::diff::OutcomeDiff;
use kai_simulate::outcome::Outcome;
use kai_simulate::scenario::{Change, Source};
use notify::{Event, EventKind, RecursiveMode, Watcher};

use super::report::Output;
use super::{Session, diff};
use crate::grid::printable;

/// An editor writes a file in several steps. A run waits until none has come for this long.
const QUIET: Duration = Duration::from_millis(100);
/// Clears the screen and the lines above it, and puts the cursor into the corner.
const CLEAR: &str = "\u{1b}[2J\u{1b}[3J\u{1b}[H";
/// Changed files that a message names.
const NAMES_MAX: usize = 3;

/// Runs the scenarios until the process is ended.
pub(super) fn run(session: &Session) -> anyhow::Result<ExitCode> {
    if session.wishes.output == Output::Junit {
        anyhow::bail!("--watch has no JUnit report; use -o table or -o json");
    }
    if session.paths.iter().any(|path| path.as_os_str() == "-") {
        anyhow::bail!("--watch can't watch standard input; name a file or folder");
    }
    let watched = Watched::of(session)?;
    // The watch begins before the first run, so that no change is missed.
    let (sender, events) = mpsc::channel();
    let mut watcher = notify::recommended_watcher(move |event| {
        // The receiver is gone when the program ends.
        let _ = sender.send(event);
    })?;
    for (folder, mode) in watched.folders() {
        let started = watcher.watch(&folder, mode);
        started.map_err(|error| anyhow::anyhow!("{}: can't be watched: {error}", folder.display()))?;
    }
    end_with_ctrl_c();
    let mut runs = Runs::default();
    runs.run(session)?;
    loop {
        eprintln!("watching; ctrl-c ends");
        let Some(changed) = next_change(&events, &watched) else {
            anyhow::bail!("the operating system stopped to report changes of files; start the command again");
        };
        if io::stdout().is_terminal() {
            crate::print(CLEAR)?;
        }
        if session.wishes.output == Output::Table {
            let names: Vec<String> = changed
                .iter()
                .take(NAMES_MAX)
                .map(|path| path.display().to_string())
                .collect();
            let more = if changed.len() > NAMES_MAX { ", ..." } else { "" };
            crate::print(&format!("changed: {}{more}\n", printable(&names.join(", "))))?;
        }
        runs.run(session)?;
    }
}

/// Ends the program with success on ctrl-c: it is how this command ends. Returns when that works.
fn end_with_ctrl_c() {
    let (ready, is_ready) = mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let pressed = async {
            let mut pressed = std::pin::pin!(tokio::signal::ctrl_c());
            // The handler is installed when the future is first polled.
            tokio::select! {
                biased;
                result = &mut pressed => return result,
                () = std::future::ready(()) => {}
            }
            let _ = ready.send(());
            pressed.await
        };
        if runtime.is_ok_and(|runtime| runtime.block_on(pressed).is_ok()) {
            std::process::exit(0);
        }
    });
    // Without a runtime, ctrl-c ends the program as it does by default.
    let _ = is_ready.recv();
}

/// The outcomes of the run before, by scenario.
#[derive(Default)]
struct Runs {
    last: BTreeMap<PathBuf, Outcome>,
}

impl Runs {
    /// Runs and prints the scenarios. A file that is broken for a moment keeps the outcome of its last run.
    fn run(&mut self, session: &Session) -> anyhow::Result<()> {
        let sources = match session.sources() {
            Ok(sources) => sources,
            Err(error) => {
                eprintln!("error: {error}");
                return Ok(());
            }
        };
        session.run(&sources, &mut |source, outcome| self.ran(session, source, outcome))?;
        Ok(())
    }

    fn ran(&mut self, session: &Session, source: &Source, outcome: &Outcome) -> io::Result<()> {
        let before = self.last.insert(source.path().to_owned(), outcome.clone());
        let Some(before) = before.filter(|_| session.wishes.output == Output::Table) else {
            return Ok(());
        };
        let diff = OutcomeDiff::new(Vec::new(), &before, outcome);
        // In a folder of cases only the changed ones are of interest.
        if session.wishes.check && diff.is_empty() {
            return Ok(());
        }
        let mut out = io::BufWriter::new(io::stdout().lock());
        writeln!(
            out,
            "\n{}: since the run before",
            printable(&source.path().display().to_string())
        )?;
        diff::write(&mut out, &diff, session.screen)?;
        out.flush()
    }
}

/// The files and folders of the command.
struct Watched {
    files: BTreeSet<PathBuf>,
    folders: BTreeSet<PathBuf>,
}

impl Watched {
    fn of(session: &Session) -> anyhow::Result<Watched> {
        let submitted = session.what_if.iter().filter_map(|change| match change {
            Change::Submit(file) => Some(file),
            _ => None,
        });
        let (mut files, mut folders) = (BTreeSet::new(), BTreeSet::new());
        for path in session.paths.iter().chain(submitted) {
            // Events have absolute paths.
            let path = std::path::absolute(path)?;
            match path.is_dir() {
                true => folders.insert(path),
                false => files.insert(path),
            };
        }
        Ok(Watched { files, folders })
    }

    /// What to watch. Of a file it is the folder: an editor may replace the file, and with it a watch on the file itself.
    fn folders(&self) -> BTreeMap<PathBuf, RecursiveMode> {
        let parents = self.files.iter().filter_map(|file| file.parent());
        let mut folders: BTreeMap<PathBuf, RecursiveMode> = parents
            .map(|folder| (folder.to_owned(), RecursiveMode::NonRecursive))
            .collect();
        folders.extend(
            self.folders
                .iter()
                .map(|folder| (folder.clone(), RecursiveMode::Recursive)),
        );
        folders
    }

    fn contains(&self, path: &Path) -> bool {
        let is_input = || {
            path.extension()
                .is_some_and(|end| ["json", "yaml", "yml"].iter().any(|known| end == *known))
        };
        self.files.contains(path) || (is_input() && self.folders.iter().any(|folder| path.starts_with(folder)))
    }

    /// The paths of an event that can change a run. Reading a file is an event, too.
    fn changed(&self, event: notify::Result<Event>) -> Vec<PathBuf> {
        let Ok(event) = event else { return Vec::new() };
        // The operating system dropped events: any file may have changed.
        if event.need_rescan() {
            return self.files.iter().chain(&self.folders).cloned().collect();
        }
        match event.kind {
            EventKind::Access(_) => Vec::new(),
            EventKind::Any | EventKind::Create(_) | EventKind::Modify(_) | EventKind::Remove(_) | EventKind::Other => {
                let mut paths = event.paths;
                paths.retain(|path| self.contains(path));
                paths
            }
        }
    }
}

/// Waits for a change and until the files are quiet. `None` if there will be no further events.
fn next_change(events: &Receiver<notify::Result<Event>>, watched: &Watched) -> Option<BTreeSet<PathBuf>> {
    let mut changed = BTreeSet::new();
    while changed.is_empty() {
        changed.extend(watched.changed(events.recv().ok()?));
    }
    loop {
        match events.recv_timeout(QUIET) {
            Ok(event) => changed.extend(watched.changed(event)),
            Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Some(changed),
        }
    }
}

#[cfg(test)]
mod tests {
    use notify::event::{AccessKind, CreateKind};

    use super::*;

    fn event(kind: EventKind, path: &str) -> notify::Result<Event> {
        Ok(Event::new(kind).add_path(path.into()))
    }

    #[test]
    fn only_changes_of_the_named_files_count() {
        let watched = Watched {
            files: BTreeSet::from(["/a/one.zip".into()]),
            folders: BTreeSet::from(["/b".into()]),
        };
        let is_change = |path: &str| {
            !watched
                .changed(event(EventKind::Create(CreateKind::File), path))
                .is_empty()
        };
        assert!(is_change("/a/one.zip") && is_change("/b/c/two.yaml") && is_change("/b/three.json"));
        assert!(!is_change("/a/other.yaml") && !is_change("/b/.two.yaml.swp") && !is_change("/c/x.yaml"));
        let read = event(EventKind::Access(AccessKind::Read), "/a/one.zip");
        assert!(watched.changed(read).is_empty(), "reading would make it run for ever");
    }

    #[test]
    fn steps_of_an_editor_are_one_change() {
        let watched = Watched {
            files: BTreeSet::from(["/a/one.yaml".into(), "/a/two.yaml".into()]),
            folders: BTreeSet::new(),
        };
        let (sender, events) = mpsc::channel();
        for path in ["/a/.one.swp", "/a/one.yaml", "/a/one.yaml", "/a/two.yaml"] {
            sender.send(event(EventKind::Create(CreateKind::File), path)).unwrap();
        }
        drop(sender);
        let changed = next_change(&events, &watched).unwrap();
        assert_eq!(changed.len(), 2);
        assert!(next_change(&events, &watched).is_none());
    }
}
