//! What a group's reservation needs when no bind is at work on it: to be removed, made anew, or left alone. Pure.
//!
//! A workload is never ended for the sake of its reservation.

use crate::GroupKey;
use crate::books::Books;
use crate::step::Reservation;

/// What to do about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Care {
    /// All is well, or somebody else is at it.
    Nothing,
    /// Nobody uses it, or it is of no use: remove it. `again` if there are pods that need another.
    Remove {
        /// Whether to look again at once.
        again: bool,
    },
    /// Pods run on the GPU and nothing holds it for them: make a reservation.
    Restore,
    /// The old one is on its way out, or the new one does not know its GPU yet; look again in a while.
    Watch,
    /// It holds another GPU than the one that the pods use: say so, remove it, try again later.
    Mismatch {
        /// The GPU that it holds.
        gpu: String,
    },
}

/// What the group needs. `cached_use` is what watches say: they can't prove that nobody needs a group, but they may know of
/// somebody.
pub(crate) fn care(key: &GroupKey, found: Option<&Reservation>, books: &Books, cached_use: bool) -> Care {
    let stays = books.staying(&key.group).next().is_some();
    let needed = books.is_used(&key.group) || books.is_awaited(&key.group, None) || cached_use;
    let Some(found) = found else {
        return if stays { Care::Restore } else { Care::Nothing };
    };
    if found.terminating {
        return if stays { Care::Watch } else { Care::Nothing };
    }
    // A bind that waits for it learns from the ended pod itself that the node refused; not where pods run, which only care provides for.
    if !found.alive && !stays && books.is_awaited(&key.group, None) {
        return Care::Watch;
    }
    if !found.alive || found.key() != *key {
        return Care::Remove { again: stays };
    }
    if !needed {
        return Care::Remove { again: false };
    }
    match &found.gpu {
        Some(gpu) if books.stranger(&key.group, gpu).is_some() => Care::Mismatch { gpu: gpu.clone() },
        None if stays => Care::Watch,
        Some(_) | None => Care::Nothing,
    }
}

#[cfg(test)]
mod tests {

    use kai_api::ObjectKey;

    use super::*;
    use crate::books::User;
    use crate::reservation_name;

    fn user(terminating: bool, gpus: &[&str]) -> User {
        User {
            pod: ObjectKey::new("ns", "p"),
            uid: "u".into(),
            groups: vec!["g".into()],
            in_order: true,
            need_mib: 1,
            terminating,
            gpus: gpus.iter().map(|gpu| (*gpu).to_owned()).collect(),
        }
    }

    fn live() -> Reservation {
        Reservation {
            uid: "1".into(),
            resource_version: "1".into(),
            node: "n".into(),
            group: "g".into(),
            name: reservation_name(&GroupKey::new("n", "g")),
            alive: true,
            terminating: false,
            gpu: Some("GPU-1".into()),
            short_of_room: false,
        }
    }

    fn check(found: Option<Reservation>, bound: Vec<User>, awaited: bool, cached: bool, expect: Care) {
        let active = if awaited {
            vec![(ObjectKey::new("ns", "q"), vec!["g".to_owned()])]
        } else {
            vec![]
        };
        let books = Books {
            memory_mib: 100,
            bound,
            active,
            ..Books::default()
        };
        let told = format!("{found:?} {books:?}");
        assert_eq!(
            care(&GroupKey::new("n", "g"), found.as_ref(), &books, cached),
            expect,
            "{told}"
        );
    }

    #[test]
    fn every_state_has_its_care() {
        check(None, vec![], false, false, Care::Nothing);
        check(None, vec![], true, true, Care::Nothing);
        check(None, vec![user(false, &[])], false, false, Care::Restore);
        check(None, vec![user(true, &[])], false, false, Care::Nothing);
        check(Some(live()), vec![], false, false, Care::Remove { again: false });
        check(Some(live()), vec![], true, false, Care::Nothing);
        check(Some(live()), vec![], false, true, Care::Nothing);
        check(Some(live()), vec![user(true, &["GPU-1"])], false, false, Care::Nothing);
        check(Some(live()), vec![user(false, &["GPU-1"])], false, false, Care::Nothing);
        check(Some(live()), vec![user(false, &[])], false, false, Care::Nothing);
        check(
            Some(live()),
            vec![user(false, &["GPU-2"])],
            false,
            false,
            Care::Mismatch { gpu: "GPU-1".into() },
        );
        let unknown = Reservation { gpu: None, ..live() };
        check(
            Some(unknown.clone()),
            vec![user(false, &["GPU-2"])],
            false,
            false,
            Care::Watch,
        );
        check(Some(unknown), vec![], true, false, Care::Nothing);
        let ending = Reservation {
            terminating: true,
            ..live()
        };
        check(Some(ending.clone()), vec![user(false, &[])], false, false, Care::Watch);
        check(Some(ending), vec![], false, false, Care::Nothing);
        let ended = Reservation { alive: false, ..live() };
        check(Some(ended.clone()), vec![], false, false, Care::Remove { again: false });
        check(
            Some(ended.clone()),
            vec![user(false, &[])],
            false,
            false,
            Care::Remove { again: true },
        );
        check(
            Some(ended.clone()),
            vec![user(false, &[])],
            true,
            false,
            Care::Remove { again: true },
        );
        check(Some(ended), vec![], true, false, Care::Watch);
        let elsewhere = Reservation {
            node: "m".into(),
            ..live()
        };
        check(
            Some(elsewhere),
            vec![user(false, &[])],
            false,
            false,
            Care::Remove { again: true },
        );
    }
}
