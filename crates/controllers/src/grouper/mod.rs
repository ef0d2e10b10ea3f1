//! The pod grouper: every pod of ours gets a pod group.
