//! Commands to the control daemon, and what its answers mean. Pure.

use super::plan::{Namespace, SERVER};

/// The arguments of one call of the control program.
pub type Command = Vec<String>;

fn command(words: &[&str]) -> Command {
    ["-p", "3"].iter().chain(words).map(|word| (*word).to_owned()).collect()
}

/// Asks whether the daemon serves. The daemon's tables cut long values off, its comma-separated lists do not.
pub fn probe() -> Command {
    command(&["server", "list", SERVER, "--format=csv,noheader"])
}

/// Whether the answer to [`probe`] shows a daemon that serves; the error says what it shows. A daemon whose configuration names an absent GPU
/// answers, but has no server.
pub fn serves(answer: &str) -> Result<(), String> {
    let row = answer
        .lines()
        .map(|line| line.split(',').map(str::trim).collect::<Vec<_>>())
        .find(|row| row.first() == Some(&SERVER));
    match row.as_deref() {
        None => Err(format!(
            "the daemon answers, but has no server {SERVER}: see its log for GPUs that it does not find"
        )),
        // Name, user, pid, status: a server without a pid has ended.
        Some([_, _, pid, ..]) if pid.parse::<u32>().is_ok_and(|pid| pid > 0) => Ok(()),
        Some(row) => Err(format!("server {SERVER} does not run: {}", row.join(","))),
    }
}

/// The commands that make a namespace.
pub fn create(namespace: &Namespace) -> Vec<Command> {
    let server = format!("--server={SERVER}");
    vec![
        command(&["namespace", "create", &namespace.name, &server]),
        command(&[
            "namespace",
            "set",
            &namespace.name,
            &server,
            &format!("--active-thread-percentage={}", namespace.percent),
            &format!("--pinned-memory-limit={}M", namespace.memory_mib),
        ]),
    ]
}

/// The command that removes a namespace.
pub fn delete(namespace: &str) -> Command {
    let server = format!("--server={SERVER}");
    command(&["namespace", "delete", namespace, &server, "--force"])
}

/// Lists the clients.
pub fn clients() -> Command {
    command(&["client", "list", "--all", "--format=csv,noheader"])
}

/// The pids in a list: the first column of each line.
pub fn pids(answer: &str) -> Vec<u32> {
    let first = |line: &str| line.split(',').next()?.trim().parse().ok();
    answer.lines().filter_map(first).filter(|pid| *pid > 0).collect()
}

/// Ends a client after its work on the GPU is done. A client that is killed inside of a kernel can block the server for all others.
pub fn terminate(client: u32) -> Command {
    command(&["client", "terminate", &client.to_string()])
}

/// Ends the daemon and its servers.
pub fn quit() -> Command {
    command(&["-q"])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_is_created_and_then_limited() {
        let namespace = Namespace {
            name: "p_share_1".to_owned(),
            percent: 25,
            memory_mib: 3000,
        };
        let lines: Vec<String> = create(&namespace).iter().map(|command| command.join(" ")).collect();
        assert_eq!(
            lines,
            [
                "-p 3 namespace create p_share_1 --server=kai",
                "-p 3 namespace set p_share_1 --server=kai --active-thread-percentage=25 --pinned-memory-limit=3000M"
            ]
        );
        assert_eq!(quit(), ["-p", "3", "-q"]);
    }

    #[test]
    fn only_a_server_that_runs_counts() {
        for (answer, words) in [
            ("kai,0,48201,Ready,/run/nvidia-mps/kai,GPU-0,-\n", None),
            ("", Some("has no server kai")),
            ("other,0,4,Ready,/x,all,-", Some("has no server kai")),
            ("kai,0,-,Stopped,/x,all,-", Some("does not run: kai,0,-,Stopped")),
            ("kai", Some("does not run")),
        ] {
            let found = serves(answer).err();
            assert_eq!(found.is_some(), words.is_some(), "{answer}: {found:?}");
            if let (Some(found), Some(words)) = (found, words) {
                assert!(found.contains(words), "{found}");
            }
        }
    }

    #[test]
    fn pids_are_read_whole() {
        let answer = "3165259,kai,0,p_share_1,python train.py\n51087,kai,0,default,a,b\nno clients\n0,kai\n";
        assert_eq!(pids(answer), [3_165_259, 51_087]);
    }
}
