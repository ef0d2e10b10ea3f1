//! The search for victims: which pods to evict or move so that a pending gang can be placed.
//!
//! The victim iterator yields eviction units in the order in which queues and gangs lose. After each unit the search builds
//! sets of the victims so far and simulates those that free enough capacity: it evicts the set, places the victims and the
//! gang again in fair order, and checks whether the outcome is allowed. Victims that the outcome does not need stay where
//! they are. A gang of many pods is solved for 1, 2, 4, ... pods first; each solution starts from the victims of the one
//! before.

mod by_gang;
mod capacity;
mod fairness;
mod infeasibility;
mod min_runtime;
mod recorded;
mod search_state;
mod simulate;
mod solve;
mod unneeded;
mod validate;
mod victim_iterator;
mod victim_sets;

pub(crate) use fairness::FairnessOfVictims;
pub(crate) use search_state::SearchState;
pub(crate) use solve::{Search, SimulationBudget, Solution};
