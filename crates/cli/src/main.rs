//! The `kai` program. All of it is in the library, so that tests can run roles in their own process.

// Smaller and faster than the system's allocator in a process that runs for months: docs/performance.md. `.cargo/config.toml` has its
// settings.
#[cfg(target_os = "linux")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> std::process::ExitCode {
    kai_cli::main()
}
