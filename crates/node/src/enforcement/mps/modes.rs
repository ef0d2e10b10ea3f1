//! The compute modes of the GPUs. The mode `EXCLUSIVE_PROCESS` is the fence of the tier and outlives the agent, so a file notes the GPUs that
//! have it from here: an agent that starts with another tier gives them their usual mode back.

use std::path::{Path, PathBuf};

use kai_gpu::{Driver, GpuComputeMode};

use super::plan::base_dir;

/// The UUIDs of the GPUs whose mode was changed, one in each line.
fn file(state_dir: &Path) -> PathBuf {
    base_dir(state_dir).join("exclusive-gpus")
}

/// Keeps processes that do not find the daemon away from the GPUs. Anybody with root on the host may change the mode, so this is called again
/// and again.
pub fn fence(driver: &dyn Driver, state_dir: &Path, gpus: &[String]) -> Result<(), String> {
    for gpu in gpus {
        let mode = driver.compute_mode(gpu).map_err(|error| error.with_remedy())?;
        if mode != Some(GpuComputeMode::ExclusiveProcess) {
            note(state_dir, gpu)?;
            let set = driver.set_compute_mode(gpu, GpuComputeMode::ExclusiveProcess);
            set.map_err(|error| error.with_remedy())?;
        }
    }
    Ok(())
}

fn noted(state_dir: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(file(state_dir)).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

fn note(state_dir: &Path, gpu: &str) -> Result<(), String> {
    let (path, mut gpus) = (file(state_dir), noted(state_dir));
    if gpus.iter().any(|known| known == gpu) {
        return Ok(());
    }
    gpus.push(gpu.to_owned());
    let written =
        std::fs::create_dir_all(base_dir(state_dir)).and_then(|()| std::fs::write(&path, gpus.join("\n") + "\n"));
    written.map_err(|error| format!("writing {}: {error}", path.display()))
}

/// Gives the noted GPUs their usual mode. The error names those that keep the mode.
pub fn give_back(driver: &dyn Driver, state_dir: &Path) -> Result<(), String> {
    let mut kept = Vec::new();
    for gpu in noted(state_dir) {
        if let Err(error) = driver.set_compute_mode(&gpu, GpuComputeMode::Default) {
            kept.push(format!("{gpu} ({error})"));
        }
    }
    match kept.is_empty() {
        true => {
            // Without the file nothing is noted, and there was nothing to do.
            let _ = std::fs::remove_file(file(state_dir));
            Ok(())
        }
        false => Err(format!(
            "GPU {} keeps the compute mode EXCLUSIVE_PROCESS of tier mps; run nvidia-smi -c DEFAULT",
            kept.join(", ")
        )),
    }
}

#[cfg(test)]
mod tests {
    use kai_gpu::fake::{FakeDriver, Settings};

    use super::*;

    #[test]
    fn an_agent_that_was_killed_leaves_a_note_of_the_gpus() {
        let dir = tempfile::tempdir().unwrap();
        let driver = FakeDriver::new(&Settings::of("h100", 3)).unwrap();
        let gpus: Vec<String> = driver
            .devices()
            .unwrap()
            .devices
            .into_iter()
            .map(|gpu| gpu.uuid)
            .collect();
        let modes = || {
            gpus.iter()
                .map(|gpu| driver.compute_mode(gpu).unwrap().unwrap())
                .collect::<Vec<_>>()
        };
        use GpuComputeMode::{Default, ExclusiveProcess};
        // The mode of the last GPU is the operator's.
        driver.set_compute_mode(&gpus[2], ExclusiveProcess).unwrap();
        fence(&driver, dir.path(), &gpus).unwrap();
        fence(&driver, dir.path(), &gpus).unwrap();
        assert_eq!(modes(), [ExclusiveProcess; 3]);
        give_back(&driver, dir.path()).unwrap();
        assert_eq!(modes(), [Default, Default, ExclusiveProcess]);
        driver.set_compute_mode(&gpus[0], ExclusiveProcess).unwrap();
        give_back(&driver, dir.path()).unwrap();
        assert_eq!(modes()[0], ExclusiveProcess, "nothing is noted any more");

        fence(&driver, dir.path(), &gpus[1..2]).unwrap();
        note(dir.path(), "GPU-gone").unwrap();
        let problem = give_back(&driver, dir.path()).unwrap_err();
        assert!(
            problem.contains("GPU-gone") && problem.contains("nvidia-smi -c DEFAULT"),
            "{problem}"
        );
        assert_eq!(modes()[1], Default, "a GPU that is gone holds up no other");
    }
}
