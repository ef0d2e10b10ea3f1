//! Prints the cost of driver calls. No time limit is checked.

use std::time::{Duration, Instant};

use kai_gpu::Driver;

use crate::stage::{bare_driver, scenario};

#[test]
fn asking_is_cheap() {
    scenario("cost::child_measures", "h100:8", &[]);
}

#[test]
#[ignore = "run by its parent"]
fn child_measures() {
    let ours = bare_driver();
    let begun = Instant::now();
    ours.devices().unwrap();
    println!(
        "measured: opening NVML and describing 8 GPUs took {:?}",
        begun.elapsed()
    );
    let begun = Instant::now();
    for _ in 0..100 {
        ours.devices().unwrap();
    }
    println!("measured: describing 8 GPUs again took {:?}", begun.elapsed() / 100);
    let begun = Instant::now();
    for _ in 0..100 {
        ours.samples().unwrap();
    }
    println!("measured: measuring 8 GPUs took {:?}", begun.elapsed() / 100);
    ours.wait_events(Duration::ZERO).unwrap();
    let before = cpu_ticks();
    ours.wait_events(Duration::from_secs(4)).unwrap();
    println!(
        "measured: watching 8 GPUs for 4 s took {} ms of CPU",
        (cpu_ticks() - before) * 10
    );
}

/// CPU time of this process in hundredths of a second.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let after_name = stat.rsplit_once(')').unwrap().1;
    after_name
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|field| field.parse::<u64>().unwrap())
        .sum()
}
