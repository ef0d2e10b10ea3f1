//! Victims grouped by their gang.

use rustc_hash::FxHashMap;

use crate::ids::{GangId, PodId};
use crate::ledger::Ledger;

/// Victims by gang. The gangs are in the order of their first victim, and the pods of each gang in that of the victims.
#[derive(Debug)]
pub(crate) struct VictimsByGang {
    pods: Vec<PodId>,
    /// Each gang, and where its pods end.
    gangs: Vec<(GangId, usize)>,
}

impl VictimsByGang {
    /// Groups the victims that are of a gang.
    pub(crate) fn new(ledger: &Ledger, victims: &[PodId]) -> VictimsByGang {
        let mut known = FxHashMap::with_capacity_and_hasher(victims.len(), rustc_hash::FxBuildHasher);
        // First how many pods each gang has, then where they end.
        let mut gangs: Vec<(GangId, usize)> = Vec::with_capacity(victims.len());
        let mut of_gangs: Vec<(usize, PodId)> = Vec::with_capacity(victims.len());
        for pod in victims {
            let Some(gang) = ledger.pod(*pod).gang else { continue };
            let at = match gangs.last() {
                Some((last, _)) if *last == gang => gangs.len() - 1,
                Some(_) | None => *known.entry(gang).or_insert_with(|| {
                    gangs.push((gang, 0));
                    gangs.len() - 1
                }),
            };
            gangs[at].1 += 1;
            of_gangs.push((at, *pod));
        }
        // A stable sort, which only compares neighbours if the gangs are in order already.
        of_gangs.sort_by_key(|(at, _)| *at);
        let mut end = 0;
        for (_, count) in &mut gangs {
            end += *count;
            *count = end;
        }
        VictimsByGang {
            pods: of_gangs.into_iter().map(|(_, pod)| pod).collect(),
            gangs,
        }
    }

    /// Each gang with its victims.
    pub(crate) fn iter(&self) -> impl DoubleEndedIterator<Item = (GangId, &[PodId])> {
        self.gangs.iter().enumerate().map(|(at, (gang, end))| {
            let start = at.checked_sub(1).map_or(0, |before| self.gangs[before].1);
            (*gang, &self.pods[start..*end])
        })
    }
}
