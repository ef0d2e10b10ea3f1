//! Making room for a gang by evicting or moving others.
//!
//! Victims are taken one unit at a time in the order in which queues and gangs lose. After each, the sets worth trying
//! are simulated: evict them, let them and the gang compete for the room in fair order, and see whether the outcome is
//! allowed. Victims whose place nobody needs in the end are spared. A gang of many pods is solved for 1, 2, 4, ... pods
//! first, so that victims found for few serve for many.

mod infeasibility;
mod min_runtime;
mod scenario;
mod search_state;
mod simulate;
mod solve;
mod unneeded;
mod validate;
mod victim_iterator;

pub(crate) use search_state::SearchState;
pub(crate) use solve::{Budget, Search, Solution};
