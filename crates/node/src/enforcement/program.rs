//! The hook's program on the host. The agent's image is `kai` with a C library; the host may have another C library, or none where a runtime
//! looks. So the agent copies `kai`, its loader and its libraries to `<state-dir>/hook/<digest>/`, and the CDI specs name the loader as the
//! hook's path. A copy is made beside and renamed, so a hook never runs from half a copy; copies of earlier versions stay while a spec
//! names them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use kai_gpu::linker::{elf, search::Search};
use ring::digest::{Context, SHA256};
use serde::{Deserialize, Serialize};

use super::hook::SUBCOMMAND;

/// Name of the program in its directory.
const PROGRAM: &str = "kai";

/// Libraries that NVML needs and `kai` may not. Newer C libraries have some of them as empty files, others contain them.
const ALSO_NEEDED: [&str; 4] = ["libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"];

/// Read at a time from the program's files.
const READ_BYTES: usize = 1 << 18;

/// A hook program that needs longer to start is no use: the kubelet waits for it.
const PROBE_SECONDS_MAX: Duration = Duration::from_secs(10);

/// Why the hook's program is not on the host.
#[derive(Debug, thiserror::Error)]
pub enum ProgramError {
    /// This process has no loader that could be copied.
    #[error("this kai is not linked dynamically ({0}); use the image of a release")]
    NoLoader(String),
    /// A library is missing.
    #[error("library {0} of this kai was not found; use the image of a release")]
    NoLibrary(String),
    /// A file could not be read or written.
    #[error("copying the hook's program to {}: {source}; mount the directory writable and keep space on it", path.display())]
    Copy {
        /// The file.
        path: PathBuf,
        /// The operating system's error.
        source: io::Error,
    },
    /// The copy does not run.
    #[error("running the hook's program {}: {problem}; mount the file system of the state directory without noexec, or point --state-dir elsewhere (chart value nodeAgent.stateDir)", path.display())]
    DoesNotRun {
        /// The program.
        path: PathBuf,
        /// What happened.
        problem: String,
    },
}

/// The files that make up the hook's program, where this process has them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProgramFiles {
    /// The program.
    pub program: PathBuf,
    /// The dynamic loader.
    pub loader: PathBuf,
    /// The libraries by the name under which the loader looks for them.
    pub libraries: BTreeMap<String, PathBuf>,
}

impl ProgramFiles {
    /// Those of this process.
    pub fn of_this_process() -> Result<Self, ProgramError> {
        let program = std::env::current_exe().map_err(|error| ProgramError::NoLoader(error.to_string()))?;
        Self::of(program)
    }

    /// Those of a program for this machine, with the loader and the libraries of this process.
    pub fn of(program: PathBuf) -> Result<Self, ProgramError> {
        let maps = fs::read_to_string("/proc/self/maps").map_err(|error| ProgramError::NoLoader(error.to_string()))?;
        let loader = loader_in(&maps).ok_or_else(|| ProgramError::NoLoader("no loader is mapped".to_owned()))?;
        let libraries = libraries_of(&program, &loader, &Search::of_this_process())?;
        Ok(Self {
            program,
            loader,
            libraries,
        })
    }

    /// Names in the directory, with the files that they are copied from. Sorted, so that the digest is one of the contents alone.
    fn named(&self) -> BTreeMap<String, &Path> {
        let mut named: BTreeMap<String, &Path> = BTreeMap::new();
        for (name, path) in &self.libraries {
            named.insert(name.clone(), path);
        }
        named.insert(file_name(&self.loader), &self.loader);
        named.insert(PROGRAM.to_owned(), &self.program);
        named
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// The loader among the mapped files of a process.
fn loader_in(maps: &str) -> Option<PathBuf> {
    let paths = maps.lines().filter_map(|line| Some(&line[line.find('/')?..]));
    paths
        .map(Path::new)
        .find(|path| file_name(path).starts_with("ld-"))
        .map(Path::to_owned)
}

/// The program's libraries, their libraries, and those of NVML. The loader itself is left out.
fn libraries_of(program: &Path, loader: &Path, search: &Search) -> Result<BTreeMap<String, PathBuf>, ProgramError> {
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ProgramError::Copy { path, source }
    };
    let needed = |path: &Path| -> Result<Vec<String>, ProgramError> {
        Ok(elf::read(path)
            .map_err(failed(path))?
            .map(|elf| elf.needed)
            .unwrap_or_default())
    };
    let mut found = BTreeMap::new();
    let mut names: VecDeque<String> = needed(program)?.into();
    while let Some(name) = names.pop_front() {
        if name == file_name(loader) || found.contains_key(&name) {
            continue;
        }
        let path = search
            .find(&name)
            .ok_or_else(|| ProgramError::NoLibrary(name.clone()))?;
        names.extend(needed(&path)?);
        found.insert(name, path);
    }
    for name in ALSO_NEEDED {
        if let (false, Some(path)) = (found.contains_key(name), search.find(name)) {
            found.insert(name.to_owned(), path);
        }
    }
    Ok(found)
}

/// The hook's program on the host.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HookProgram {
    /// Its directory: the same path here and on the host.
    pub directory: PathBuf,
    /// File name of the loader.
    pub loader: String,
}

impl HookProgram {
    /// The file that the runtime executes.
    pub fn path(&self) -> PathBuf {
        self.directory.join(&self.loader)
    }

    /// The command line that runs the hook with these options. The first word is the name of the executed file, as in execve(2).
    pub fn command(&self, options: impl IntoIterator<Item = String>) -> Vec<String> {
        let shown = |path: PathBuf| path.display().to_string();
        let fixed = [
            shown(self.path()),
            // The host's own libraries are of another C library.
            "--inhibit-cache".to_owned(),
            "--library-path".to_owned(),
            shown(self.directory.clone()),
            shown(self.directory.join(PROGRAM)),
            SUBCOMMAND.to_owned(),
        ];
        fixed.into_iter().chain(options).collect()
    }

    /// Runs the program without a task. `library` is the path of NVML here: the program then loads it and looks for the calls. `Err` of the
    /// inner result is the reason why the library can't set limits.
    pub fn probe(&self, library: Option<&Path>, environment: &[String]) -> Result<Result<(), String>, ProgramError> {
        let problem = |problem: String| ProgramError::DoesNotRun {
            path: self.path(),
            problem,
        };
        let mut options = vec!["--probe".to_owned()];
        if let Some(library) = library {
            options.extend(["--nvml-library".to_owned(), library.display().to_string()]);
        }
        let words = self.command(options);
        let mut child = Command::new(&words[0])
            .args(&words[1..])
            .env_clear()
            .envs(environment.iter().filter_map(|variable| variable.split_once('=')))
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| problem(error.to_string()))?;
        let begun = Instant::now();
        let status = loop {
            match child.try_wait().map_err(|error| problem(error.to_string()))? {
                Some(status) => break status,
                None if begun.elapsed() > PROBE_SECONDS_MAX => {
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(problem(format!(
                        "no answer within {} seconds",
                        PROBE_SECONDS_MAX.as_secs()
                    )));
                }
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let mut said = String::new();
        if let Some(mut pipe) = child.stderr.take() {
            let _ = pipe.read_to_string(&mut said);
        }
        let line = said.lines().last().unwrap_or_default().to_owned();
        match status.code() {
            Some(0) => Ok(Ok(())),
            Some(1) if library.is_some() && !line.is_empty() => Ok(Err(line)),
            Some(_) | None => Err(problem(format!("{status}: {line}"))),
        }
    }
}

/// A program whose copies were whole when it was installed, and their sizes.
#[derive(Debug, Clone)]
pub struct InstalledProgram {
    program: HookProgram,
    sizes: BTreeMap<PathBuf, u64>,
}

impl InstalledProgram {
    /// Notes the sizes.
    pub fn of(program: HookProgram) -> Result<Self, ProgramError> {
        let sizes = fs::read_dir(&program.directory).and_then(|entries| {
            entries
                .map(|entry| entry.and_then(|entry| Ok((entry.path(), entry.metadata()?.len()))))
                .collect()
        });
        match sizes {
            Ok(sizes) => Ok(Self { program, sizes }),
            Err(source) => Err(ProgramError::Copy {
                path: program.directory,
                source,
            }),
        }
    }

    /// The program.
    pub fn program(&self) -> &HookProgram {
        &self.program
    }

    /// Whether all copies are there with their sizes. Their contents are not read: they are large, and only root writes them.
    pub fn is_whole(&self) -> bool {
        let has_size = |(path, size): (&PathBuf, &u64)| fs::metadata(path).is_ok_and(|facts| facts.len() == *size);
        self.sizes.iter().all(has_size)
    }
}

/// The directory of the copies.
#[derive(Debug, Clone)]
pub struct ProgramDir {
    directory: PathBuf,
}

impl ProgramDir {
    /// Below the agent's state directory.
    pub fn new(state_dir: &Path) -> Self {
        Self {
            directory: state_dir.join("hook"),
        }
    }

    /// Copies the program, unless a copy with the same content is there.
    pub fn install(&self, files: &ProgramFiles) -> Result<HookProgram, ProgramError> {
        let named = files.named();
        let digest = digest(&named)?;
        let program = HookProgram {
            directory: self.directory.join(&digest),
            loader: file_name(&files.loader),
        };
        let copies: BTreeMap<String, PathBuf> = named
            .keys()
            .map(|name| (name.clone(), program.directory.join(name)))
            .collect();
        // A copy on a disk that lost power, or that somebody changed, is made anew.
        let copies = copies
            .iter()
            .map(|(name, path)| (name.clone(), path.as_path()))
            .collect();
        if self::digest(&copies).is_ok_and(|present| present == digest) {
            return Ok(program);
        }
        self.copy(&named, &program.directory)?;
        Ok(program)
    }

    fn copy(&self, named: &BTreeMap<String, &Path>, to: &Path) -> Result<(), ProgramError> {
        let fresh = self.directory.join(format!(".new.{}", std::process::id()));
        let old = self.directory.join(format!(".old.{}", std::process::id()));
        let copied = copy_all(named, &fresh).and_then(|()| {
            let failed = |source| ProgramError::Copy {
                path: to.to_owned(),
                source,
            };
            remove_tree(&old).map_err(failed)?;
            match fs::rename(to, &old) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
                Ok(()) | Err(_) => {}
            }
            fs::rename(&fresh, to).map_err(failed)
        });
        let _ = remove_tree(&fresh);
        let _ = remove_tree(&old);
        copied
    }

    /// The copies on disk.
    pub fn copies(&self) -> BTreeSet<PathBuf> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }

    /// Removes copies that are not in `needed`, and what an interrupted copy left.
    pub fn remove_except(&self, needed: &BTreeSet<PathBuf>) {
        for entry in fs::read_dir(&self.directory).into_iter().flatten().flatten() {
            let path = entry.path();
            if !needed.contains(&path)
                && let Err(error) = remove_tree(&path)
            {
                tracing::warn!(path = %path.display(), %error, "could not remove an old copy of the hook's program");
            }
        }
    }

    /// The copy to which a hook's path in a CDI spec belongs.
    pub fn copy_of(&self, hook: &str) -> Option<PathBuf> {
        let inside = Path::new(hook).strip_prefix(&self.directory).ok()?;
        Some(self.directory.join(inside.components().next()?))
    }
}

fn remove_tree(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(facts) if facts.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
    }
}

fn copy_all(named: &BTreeMap<String, &Path>, to: &Path) -> Result<(), ProgramError> {
    use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
    let failed = |path: &Path| {
        let path = path.to_owned();
        move |source| ProgramError::Copy { path, source }
    };
    remove_tree(to).map_err(failed(to))?;
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true).mode(0o755);
    builder.create(to).map_err(failed(to))?;
    for (name, from) in named {
        let path = to.join(name);
        let copied = File::open(from).and_then(|mut source| {
            let mut options = fs::OpenOptions::new();
            let mut target = options.write(true).create_new(true).mode(0o755).open(&path)?;
            io::copy(&mut source, &mut target)?;
            target.sync_all()
        });
        copied.map_err(failed(&path))?;
    }
    Ok(())
}

/// Digest of names and contents: equal programs share a copy, whatever version they say they are.
fn digest(named: &BTreeMap<String, &Path>) -> Result<String, ProgramError> {
    let mut all = Context::new(&SHA256);
    let mut buffer = vec![0; READ_BYTES];
    for (name, path) in named {
        let failed = |source| ProgramError::Copy {
            path: (*path).to_owned(),
            source,
        };
        let mut file = File::open(path).map_err(failed)?;
        let length = file.metadata().map_err(failed)?.len();
        all.update(name.as_bytes());
        all.update(&[0]);
        all.update(&length.to_le_bytes());
        loop {
            match file.read(&mut buffer).map_err(failed)? {
                0 => break,
                count => all.update(&buffer[..count]),
            }
        }
    }
    let digest = all.finish();
    Ok(digest
        .as_ref()
        .iter()
        .take(16)
        .map(|byte| format!("{byte:02x}"))
        .collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_loader_is_among_the_mapped_files() {
        let maps = "55e0-55e1 r--p 00000000 08:01 1 /usr/bin/kai\n7f00-7f01 rw-p 0 00:00 0\n\
                    7f10-7f11 r-xp 00000000 08:01 2 /usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2\n7ff0-7ff1 r-xp 0 00:00 0 [vdso]\n";
        assert_eq!(
            loader_in(maps).unwrap(),
            Path::new("/usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2")
        );
        assert_eq!(loader_in("55e0-55e1 r--p 00000000 08:01 1 /usr/bin/kai\n"), None);
    }

    #[test]
    fn a_process_knows_its_loader_and_libraries() {
        let files = ProgramFiles::of_this_process().unwrap();
        assert!(files.libraries.contains_key("libc.so.6"), "{files:?}");
        assert!(!files.libraries.contains_key(&file_name(&files.loader)));
        assert!(files.loader.is_file() && files.program.is_file());
    }

    fn fake_files(place: &Path, content: &str) -> ProgramFiles {
        let file = |name: &str| {
            let path = place.join(name);
            fs::write(&path, format!("{name} {content}")).unwrap();
            path
        };
        ProgramFiles {
            program: file("own-name-of-kai"),
            loader: file("ld-linux.so.2"),
            libraries: BTreeMap::from([("libc.so.6".to_owned(), file("libc-2.36.so"))]),
        }
    }

    #[test]
    fn a_copy_is_made_once_and_repaired_and_removed_when_no_spec_names_it() {
        let (source, state) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directory = ProgramDir::new(state.path());
        let first = directory.install(&fake_files(source.path(), "1")).unwrap();
        let loader = first.path();
        assert_eq!(fs::read_to_string(&loader).unwrap(), "ld-linux.so.2 1");
        assert_eq!(fs::metadata(&loader).unwrap().permissions().mode() & 0o777, 0o755);
        assert_eq!(
            fs::read_to_string(first.directory.join("kai")).unwrap(),
            "own-name-of-kai 1"
        );
        assert_eq!(
            fs::read_to_string(first.directory.join("libc.so.6")).unwrap(),
            "libc-2.36.so 1"
        );

        fs::write(first.directory.join("kai"), "half").unwrap();
        assert_eq!(directory.install(&fake_files(source.path(), "1")).unwrap(), first);
        assert_eq!(
            fs::read_to_string(first.directory.join("kai")).unwrap(),
            "own-name-of-kai 1"
        );

        let second = directory.install(&fake_files(source.path(), "2")).unwrap();
        assert_ne!(second.directory, first.directory);
        assert_eq!(
            directory.copy_of(&first.path().display().to_string()),
            Some(first.directory.clone())
        );
        assert_eq!(directory.copy_of("/usr/bin/nvidia-cdi-hook"), None);
        let needed = BTreeSet::from([first.directory.clone(), second.directory.clone()]);
        directory.remove_except(&needed);
        assert!(first.directory.is_dir() && second.directory.is_dir());
        directory.remove_except(&BTreeSet::from([second.directory.clone()]));
        assert!(!first.directory.exists() && second.directory.is_dir());
        let left: Vec<_> = fs::read_dir(state.path().join("hook")).unwrap().collect();
        assert_eq!(left.len(), 1, "no half copy stays: {left:?}");
    }

    #[test]
    fn copies_that_are_gone_or_cut_off_are_noticed() {
        let (source, place) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let directory = ProgramDir::new(place.path());
        let install = || InstalledProgram::of(directory.install(&fake_files(source.path(), "1")).unwrap()).unwrap();
        let installed = install();
        assert!(installed.is_whole());
        let program = installed.program().directory.join(PROGRAM);
        fs::write(&program, "").unwrap();
        assert!(!installed.is_whole());
        assert!(install().is_whole());
        fs::remove_dir_all(&installed.program().directory).unwrap();
        assert!(!installed.is_whole());
        assert!(install().is_whole());
    }

    #[test]
    fn the_command_names_the_loader_and_its_libraries() {
        let program = HookProgram {
            directory: "/var/lib/kai/hook/abc".into(),
            loader: "ld-linux.so.2".to_owned(),
        };
        let words = program.command(["--policy".to_owned(), "open".to_owned()]);
        let expect = "/var/lib/kai/hook/abc/ld-linux.so.2 --inhibit-cache --library-path /var/lib/kai/hook/abc \
                      /var/lib/kai/hook/abc/kai gpu-limit-hook --policy open";
        assert_eq!(words.join(" "), expect);
    }

    #[test]
    fn a_program_that_does_not_run_is_told_with_the_remedy() {
        let place = tempfile::tempdir().unwrap();
        let program = ProgramDir::new(place.path())
            .install(&fake_files(place.path(), "1"))
            .unwrap();
        let error = program.probe(None, &[]).unwrap_err().to_string();
        assert!(error.contains("noexec") && error.contains("hook"), "{error}");
    }
}
