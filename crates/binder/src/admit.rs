//! The last look before a pod is bound: is there really room on the GPU, and is it really this group's? Pure.

use crate::GroupKey;
use crate::books::Books;

/// The answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Admission {
    /// Bind it.
    Granted,
    /// Something is on its way out; look again in a while.
    Later,
    /// It must not be bound, for this reason.
    Refused(String),
}

/// A pod that wants a part of a group's GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Applicant<'a> {
    pub(crate) uid: &'a str,
    /// MiB on each of its GPUs.
    pub(crate) need_mib: i64,
    /// The GPU that the group's reservation holds.
    pub(crate) gpu: &'a str,
}

/// Whether the pod may have its part of the group's GPU.
pub(crate) fn admit(key: &GroupKey, books: &Books, applicant: Applicant<'_>) -> Admission {
    let GroupKey { node, group } = key;
    let gpu = applicant.gpu;
    match books.rival(group, gpu) {
        // Its pod is gone from the GPU, or the kubelet would not have given the GPU to us.
        Some(rival) if rival.terminating => return Admission::Later,
        Some(rival) => {
            return Admission::Refused(format!(
                "GPU {gpu} of node {node} is held for the groups {group} and {} alike",
                rival.group
            ));
        }
        None => {}
    }
    if let Some(user) = books.squatter(group, gpu) {
        return Admission::Refused(format!(
            "GPU {gpu} of node {node} is in use by pod {} of another group, whose reservation was lost",
            user.pod
        ));
    }
    if let Some(user) = books.stranger(group, gpu) {
        return Admission::Refused(format!(
            "group {group} of node {node} holds GPU {gpu} now, but its pod {} runs on {}",
            user.pod,
            user.gpus.join(",")
        ));
    }
    let (promised, need, memory) = (
        books.promised_mib(group, applicant.uid),
        applicant.need_mib,
        books.memory_mib,
    );
    if promised.saturating_add(need) > memory {
        return Admission::Refused(format!(
            "GPU group {group} of node {node} has no room: {promised} of {memory} MiB are promised, {need} MiB are asked for"
        ));
    }
    Admission::Granted
}

#[cfg(test)]
mod tests {

    use kai_api::ObjectKey;

    use super::*;
    use crate::books::User;
    use crate::reservation_name;
    use crate::step::Reservation;

    fn user(uid: &str, need_mib: i64) -> User {
        User {
            pod: ObjectKey::new("ns", uid),
            uid: uid.into(),
            groups: vec!["g".into()],
            in_order: true,
            need_mib,
            terminating: false,
            gpus: vec!["GPU-1".into()],
        }
    }

    fn reservation(group: &str, gpu: &str) -> Reservation {
        Reservation {
            uid: "1".into(),
            resource_version: "1".into(),
            node: "n".into(),
            group: group.into(),
            name: reservation_name(&GroupKey::new("n", group)),
            alive: true,
            terminating: false,
            gpu: Some(gpu.into()),
            short_of_room: false,
        }
    }

    fn books() -> Books {
        Books {
            memory_mib: 1000,
            bound: vec![user("a", 500)],
            reservations: vec![reservation("g", "GPU-1"), reservation("h", "GPU-2")],
            ..Books::default()
        }
    }

    fn answer(books: &Books, uid: &str, need_mib: i64, gpu: &str) -> Admission {
        admit(&GroupKey::new("n", "g"), books, Applicant { uid, need_mib, gpu })
    }

    fn refused(admission: &Admission) -> bool {
        matches!(admission, Admission::Refused(_))
    }

    #[test]
    fn no_gpu_is_promised_beyond_its_memory() {
        assert_eq!(answer(&books(), "b", 500, "GPU-1"), Admission::Granted);
        assert!(refused(&answer(&books(), "b", 501, "GPU-1")));
        assert_eq!(
            answer(&books(), "a", 1000, "GPU-1"),
            Admission::Granted,
            "its own share is not in its way"
        );
        let mut announced = books();
        announced.announced.push(user("c", 400));
        assert_eq!(answer(&announced, "b", 100, "GPU-1"), Admission::Granted);
        assert!(refused(&answer(&announced, "b", 101, "GPU-1")));
        let mut leaving = books();
        leaving.bound[0].terminating = true;
        assert!(
            refused(&answer(&leaving, "b", 501, "GPU-1")),
            "a pod holds its share until it is gone"
        );
    }

    #[test]
    fn a_gpu_belongs_to_one_group() {
        let mut both = books();
        both.bound.clear();
        assert!(refused(&answer(&both, "b", 1, "GPU-2")));
        both.reservations[1].terminating = true;
        assert_eq!(answer(&both, "b", 1, "GPU-2"), Admission::Later);
        both.reservations[1].alive = false;
        assert_eq!(answer(&both, "b", 1, "GPU-2"), Admission::Granted);
    }

    #[test]
    fn a_gpu_that_pods_of_another_group_run_on_is_not_free() {
        let mut lost = books();
        lost.bound[0].groups = vec!["x".into()];
        assert!(refused(&answer(&lost, "b", 1, "GPU-1")));
        assert_eq!(answer(&lost, "b", 1, "GPU-3"), Admission::Granted);
    }

    #[test]
    fn a_group_whose_gpu_changed_takes_nobody_in() {
        assert!(refused(&answer(&books(), "b", 1, "GPU-3")));
    }
}
