//! Every exported function, called with null and with handles that it never gave.

use crate::stage::scenario;

#[test]
fn null_and_garbage_never_crash_a_client() {
    scenario("garbage::child_calls_everything_with_nothing", "a100-40/1g.5gb,t4", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_calls_everything_with_nothing() {
    type Call = unsafe extern "C" fn(usize, usize, usize, usize, usize, usize) -> u32;
    let path = std::env::var_os("KAI_NVML_LIBRARY").unwrap();
    // SAFETY: our own library; loading it runs no initialiser.
    let library = unsafe { libloading::Library::new(path) }.unwrap();
    // SAFETY: all arguments are integers; the library must treat null and unknown handles as errors, which is what is tested.
    let call =
        |name: &str, first: usize| unsafe { library.get::<Call>(name.as_bytes()).unwrap()(first, 0, 0, 0, 0, 0) };
    let names: Vec<&str> = include_str!("../../symbols.txt").lines().collect();
    let starts = |name: &str| name.starts_with("nvmlInit") || name == "nvmlShutdown" || name == "nvmlErrorString";
    for name in names.iter().filter(|name| !starts(name)) {
        assert_ne!(call(name, 0), 0, "{name} before the start");
    }
    assert_eq!(call("nvmlInit_v2", 0), 0);
    let takes_handle = |name: &str| {
        let takes_pointer = [
            "nvmlSystem",
            "nvmlDeviceGetCount",
            "nvmlDeviceGetHandleBy",
            "nvmlEventSetCreate",
        ];
        !takes_pointer.iter().any(|prefix| name.starts_with(prefix))
    };
    // Null, garbage handles, and the handle of the first GPU with nowhere to put the answer.
    for first in [0, 1, usize::MAX, 0x1000_0008, 0x1000_0000] {
        for name in names
            .iter()
            .filter(|name| !starts(name) && (first == 0 || takes_handle(name)))
        {
            let code = call(name, first);
            // Zero is the default mode.
            let without_answer = ["nvmlDeviceGetMPSComputeRunningProcesses_v3", "nvmlDeviceSetComputeMode"];
            assert!(
                code != 0 || without_answer.contains(name),
                "{name}({first:#x}) succeeded without an argument"
            );
        }
    }
    assert_eq!(call("nvmlShutdown", 0), 0);
}
