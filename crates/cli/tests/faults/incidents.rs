//! Incidents, by name.
