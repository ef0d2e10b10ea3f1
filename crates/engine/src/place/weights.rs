//! The weights of node scores, from the strongest to the weakest. The score of a node is their sum; nodes with equal sums are
//! compared by packing (or spreading), then by name. Users of KAI rely on this order, so the numbers are KAI's. docs/scheduling.md
//! explains it.
//!
//! | weight | when | why it ranks above the next one |
//! |---|---|---|
//! | [`NOMINATED`] | the node was promised to the pod | Other pods were evicted for the promise. More than ten points of pod affinity outweigh it: points add up |
//! | [`AFFINITY_POINT`] | per point of preferred pod (anti-)affinity | The user named these pods; a topology level says less |
//! | [`DOMAIN_TENTH`] | per tenth of the rank of the node's domain at the preferred topology level | A gang that is spread over domains is slow as long as it runs |
//! | [`SHARES_GPU`] | the pod can join a GPU in use (binpack only) | A GPU that is opened is lost for whole requests; a wait ends soon |
//! | [`AVAILABLE_NOW`] | the pod fits without waiting for a release | A pod that starts now is worth more than a preference |
//! | [`PREFERENCE_POINT`] | per point of preferred node affinity, less `PreferNoSchedule` taints | The user named these nodes; the kind of node is a rule of thumb |
//! | [`CPU_NODE`] | a node without GPUs, for a pod that requests none | Packing must not fill GPU nodes with pods that need no GPU |

/// The node that an earlier decision promised to the pod.
pub(crate) const NOMINATED: i64 = 10_000_000;
/// One point of preferred pod (anti-)affinity.
pub(crate) const AFFINITY_POINT: i64 = 1_000_000;
/// One tenth of the rank of a domain at the preferred topology level.
pub(crate) const DOMAIN_TENTH: i64 = 100_000;
/// A node with a GPU group that the pod can join.
pub(crate) const SHARES_GPU: i64 = 10_000;
/// A node on which the pod fits without waiting for a release.
pub(crate) const AVAILABLE_NOW: i64 = 1_000;
/// One point of preferred node affinity.
pub(crate) const PREFERENCE_POINT: i64 = 9;
/// A node without GPUs, for a pod that requests none.
pub(crate) const CPU_NODE: i64 = 10;

/// Bound on the points of preferred pod affinity, so that the sum fits into a score.
pub(crate) const AFFINITY_POINTS_MAX: i64 = 100_000;
/// Bound on the points of preferred node affinity, so that they stay below availability.
pub(crate) const PREFERENCE_POINTS_MAX: i64 = 100;

/// The largest sum of weights, and the smallest with a minus sign.
pub(crate) const SUM_MAX: i64 = AFFINITY_POINTS_MAX * AFFINITY_POINT + 2 * NOMINATED;

// Each weight outranks all weights below it together; points of pod affinity are not bounded in this way.
const _: () = {
    assert!(AVAILABLE_NOW > PREFERENCE_POINTS_MAX * PREFERENCE_POINT + CPU_NODE);
    assert!(SHARES_GPU > AVAILABLE_NOW + PREFERENCE_POINTS_MAX * PREFERENCE_POINT + CPU_NODE);
    assert!(DOMAIN_TENTH > 2 * SHARES_GPU);
    assert!(AFFINITY_POINT >= 10 * DOMAIN_TENTH);
    assert!(NOMINATED > AFFINITY_POINT + 10 * DOMAIN_TENTH + 2 * SHARES_GPU);
};
