//! Commands to a control daemon, and what its answers mean. Pure.

use super::plan::{Namespace, Protocol, SERVER};

/// One call of the control program.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Command {
    /// Its arguments.
    pub arguments: Vec<String>,
    /// What it reads on stdin: the older protocol takes commands there.
    pub input: String,
}

fn arguments(words: &[&str]) -> Command {
    let all = ["-p", "3"].iter().chain(words);
    Command {
        arguments: all.map(|word| (*word).to_owned()).collect(),
        input: String::new(),
    }
}

fn input(line: &str) -> Command {
    Command {
        arguments: Vec::new(),
        input: format!("{line}\n"),
    }
}

/// Asks whether the daemon serves. The tables of the newer protocol cut long values off, its comma-separated lists do not.
pub fn probe(protocol: Protocol) -> Command {
    match protocol {
        Protocol::Namespaces => arguments(&["server", "list", SERVER, "--format=csv,noheader"]),
        Protocol::Legacy => input("get_default_active_thread_percentage"),
    }
}

/// Whether the answer to [`probe`] shows a daemon that serves; the error says what it shows. A daemon whose configuration names an absent GPU
/// answers, but has no server.
pub fn serves(protocol: Protocol, answer: &str) -> Result<(), String> {
    let answer = answer.trim();
    match protocol {
        Protocol::Namespaces => {
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
        Protocol::Legacy if answer.parse::<f64>().is_ok() => Ok(()),
        Protocol::Legacy => Err(format!("the daemon answers {answer:?} instead of a percentage")),
    }
}

/// The commands that make a namespace; none with the older protocol, which has none.
pub fn create(protocol: Protocol, namespace: &Namespace) -> Vec<Command> {
    let server = format!("--server={SERVER}");
    match protocol {
        Protocol::Namespaces => vec![
            arguments(&["namespace", "create", &namespace.name, &server]),
            arguments(&[
                "namespace",
                "set",
                &namespace.name,
                &server,
                &format!("--active-thread-percentage={}", namespace.percent),
                &format!("--pinned-memory-limit={}M", namespace.memory_mib),
            ]),
        ],
        Protocol::Legacy => Vec::new(),
    }
}

/// The command that removes a namespace.
pub fn delete(protocol: Protocol, namespace: &str) -> Option<Command> {
    match protocol {
        Protocol::Namespaces => Some(arguments(&[
            "namespace",
            "delete",
            namespace,
            &format!("--server={SERVER}"),
            "--force",
        ])),
        Protocol::Legacy => None,
    }
}

/// Lists the clients. With the older protocol the list needs the server's pid, which [`servers`] asks for.
pub fn clients(protocol: Protocol, server_pid: Option<u32>) -> Option<Command> {
    match (protocol, server_pid) {
        (Protocol::Namespaces, _) => Some(arguments(&["client", "list", "--all", "--format=csv,noheader"])),
        (Protocol::Legacy, Some(pid)) => Some(input(&format!("get_client_list {pid}"))),
        (Protocol::Legacy, None) => None,
    }
}

/// Lists the servers of the older protocol by pid.
pub fn servers(protocol: Protocol) -> Option<Command> {
    match protocol {
        Protocol::Namespaces => None,
        Protocol::Legacy => Some(input("get_server_list")),
    }
}

/// The pids in a list: the first column of each line.
pub fn pids(answer: &str) -> Vec<u32> {
    let first = |line: &str| line.split(',').next()?.trim().parse().ok();
    answer.lines().filter_map(first).filter(|pid| *pid > 0).collect()
}

/// Ends a client after its work on the GPU is done. A client that is killed inside of a kernel can block the server for all others.
pub fn terminate(protocol: Protocol, server_pid: Option<u32>, client: u32) -> Option<Command> {
    match (protocol, server_pid) {
        (Protocol::Namespaces, _) => Some(arguments(&["client", "terminate", &client.to_string()])),
        (Protocol::Legacy, Some(server)) => Some(input(&format!("terminate_client {server} {client}"))),
        (Protocol::Legacy, None) => None,
    }
}

/// Ends the daemon and its servers.
pub fn quit(protocol: Protocol) -> Command {
    match protocol {
        Protocol::Namespaces => arguments(&["-q"]),
        Protocol::Legacy => input("quit"),
    }
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
        let lines: Vec<String> = create(Protocol::Namespaces, &namespace)
            .iter()
            .map(|command| command.arguments.join(" "))
            .collect();
        assert_eq!(
            lines,
            [
                "-p 3 namespace create p_share_1 --server=kai",
                "-p 3 namespace set p_share_1 --server=kai --active-thread-percentage=25 --pinned-memory-limit=3000M"
            ]
        );
        assert_eq!(create(Protocol::Legacy, &namespace), []);
        assert_eq!(delete(Protocol::Legacy, "p"), None);
    }

    #[test]
    fn only_a_server_that_runs_counts() {
        use Protocol::{Legacy, Namespaces};
        for (protocol, answer, words) in [
            (Namespaces, "kai,0,48201,Ready,/run/nvidia-mps/kai,GPU-0,-\n", None),
            (Namespaces, "", Some("has no server kai")),
            (Namespaces, "other,0,4,Ready,/x,all,-", Some("has no server kai")),
            (
                Namespaces,
                "kai,0,-,Stopped,/x,all,-",
                Some("does not run: kai,0,-,Stopped"),
            ),
            (Namespaces, "kai", Some("does not run")),
            (Legacy, "100.0\n", None),
            (Legacy, "", Some("instead of a percentage")),
            (Legacy, "Cannot find MPS control daemon process", Some("Cannot find")),
        ] {
            let found = serves(protocol, answer).err();
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
        assert_eq!(pids("4711\n4712\n"), [4711, 4712]);
    }

    #[test]
    fn the_older_protocol_needs_the_servers_pid() {
        assert_eq!(clients(Protocol::Legacy, None), None);
        assert_eq!(clients(Protocol::Legacy, Some(5)), Some(input("get_client_list 5")));
        assert_eq!(
            terminate(Protocol::Legacy, Some(5), 9),
            Some(input("terminate_client 5 9"))
        );
        assert_eq!(quit(Protocol::Namespaces).arguments, ["-p", "3", "-q"]);
    }
}
