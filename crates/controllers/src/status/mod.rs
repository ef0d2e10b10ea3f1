//! The status of pod groups and of queues.
