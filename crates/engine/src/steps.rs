//! Counts steps of work, so that tests can bound them: times differ between machines, steps do not.
//!
//! Loops over lists that a tenant can write count their iterations here. Only builds with debug assertions count.

#[cfg(debug_assertions)]
thread_local! {
    static STEPS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Adds to the steps of this thread.
#[inline(always)]
pub fn count(steps: usize) {
    #[cfg(debug_assertions)]
    STEPS.with(|counted| counted.set(counted.get().saturating_add(steps as u64)));
    #[cfg(not(debug_assertions))]
    let _ = steps;
}

/// The steps that this thread counts during `work`.
#[cfg(debug_assertions)]
pub fn of<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = STEPS.with(std::cell::Cell::get);
    let value = work();
    (value, STEPS.with(std::cell::Cell::get) - before)
}
