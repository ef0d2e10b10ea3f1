//! `kai mps-launch`: becomes a program of the host. The node agent starts the host's multi-process daemon by it.

use std::process::ExitCode;

use clap::Args;
use kai_node::enforcement::mps::launch::become_program;

/// The options of `kai mps-launch`.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// The program, as the host names it.
    program: String,
    /// Its arguments.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    arguments: Vec<String>,
}

/// Returns only if the program can't be run.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    let Arguments { program, arguments } = arguments;
    Err(become_program(&program, &arguments).into())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use kai_node::enforcement::mps::launch::{Launcher, THIS_PROGRAM};

    #[test]
    fn the_agents_words_are_understood() {
        let launcher = Launcher {
            host_root: "/host".into(),
            own_program: THIS_PROGRAM.into(),
            program: "/usr/bin/nvidia-cuda-mps-control".to_owned(),
        };
        let arguments = ["-p", "3", "-f", "--", "-a"].map(str::to_owned);
        let command = launcher.command(&arguments, &[]);
        assert_eq!(command.get_program(), THIS_PROGRAM);
        let words = ["kai".as_ref()].into_iter().chain(command.get_args());
        match crate::Arguments::try_parse_from(words).unwrap().command {
            crate::Command::MpsLaunch(read) => {
                assert_eq!((read.program, read.arguments), (launcher.program, arguments.into()))
            }
            other => panic!("{other:?}"),
        }
    }
}
