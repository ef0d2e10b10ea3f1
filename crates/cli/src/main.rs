//! The `kai` program. All of it is in the library, so that tests can run roles in their own process.

fn main() -> std::process::ExitCode {
    kai_cli::main()
}
