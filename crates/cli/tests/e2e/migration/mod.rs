//! kai takes a cluster over from KAI-Scheduler 0.17, and leaves it in a state that KAI can take over.

mod fixture;
mod kai_schema;
mod takeover;
mod way_back;
