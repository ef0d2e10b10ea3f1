//! Our own NVML and Tegra drivers on the fake library, through the real `dlopen`. The library reads its settings from the environment,
//! which belongs to a whole process; so every scenario runs in a child: this same program, asked for one ignored test.

// Test code: a failed step should stop right there.
#![allow(clippy::unwrap_used)]

mod boards;
mod cost;
mod facts;
mod garbage;
mod health;
mod limits;
mod loading;
mod stage;
