//! One cycle on a cluster that the argument names, for a program that counts instructions. `.ci/instructions` compares the counts with
//! `instructions.txt`: unlike times they hardly change from run to run.

mod clusters;

use std::hint::black_box;

use clusters::{Case, NOW, fill, fractions, gangs, infeasible, reclaim_large, reclaim_many};

/// The name of a cluster, and the function that builds it.
type NamedCase = (&'static str, fn() -> Case);

/// Clusters that are large enough that the work of each node and pod is most of the count, and small enough for an emulated processor. Two
/// sizes of `fill` and `fractions` show growth.
const CASES: [NamedCase; 9] = [
    ("fill-500", || fill(500)),
    ("fill-2000", || fill(2000)),
    ("gangs-1000", || gangs(1000, 8, 0)),
    ("gangs-in-racks-1000", || gangs(1000, 4, 50)),
    ("fractions-100", || fractions(100)),
    ("fractions-400", || fractions(400)),
    ("reclaim-many-200", || reclaim_many(200)),
    ("reclaim-large-500", || reclaim_large(500)),
    ("infeasible-500", || infeasible(500)),
];

/// Runs the cluster that the first argument names. Without one, prints the names.
fn main() {
    let asked = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    for (name, case) in CASES {
        match &asked {
            Some(asked) if asked == name => measured_cycle(&mut case()),
            Some(_) => {}
            None => println!("{name}"),
        }
    }
}

/// The counted function, found by its name.
#[inline(never)]
fn measured_cycle(case: &mut Case) {
    black_box(case.cluster.cycle(NOW, &case.config));
}
