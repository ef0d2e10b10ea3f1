//! Admission: what pods, queues, pod groups and topologies are made to look like, and which of them are refused.
