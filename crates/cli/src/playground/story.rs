//! The playground's story: a few chapters, each with the objects that a user submits and the expected outcome.

use std::io::Write;
use std::time::Duration;

use kai_api::ObjectKey;
use kai_engine::model::PodPhase;

use super::screen::Screen;
use super::steps::Steps;
use super::world::World;

/// How long a chapter may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often a chapter polls.
const GLANCE: Duration = Duration::from_millis(50);

/// A chapter: a sentence, manifests, and the expected outcome.
pub(super) struct Chapter {
    pub(super) title: &'static str,
    pub(super) manifests: &'static str,
    expect: &'static [Expect],
}

/// An expected outcome.
pub(super) enum Expect {
    /// This many pods with the name prefix run.
    Running(&'static str, usize),
    /// This many pods with the name prefix wait, with this text in the reason.
    Waiting(&'static str, usize, &'static str),
    /// The pods with the name prefix share this many GPUs.
    SharedGpus(&'static str, usize),
}

pub(super) const CHAPTERS: &[Chapter] = &[
    Chapter {
        title: "Eight pods of half a GPU pack onto four GPUs.",
        manifests: include_str!("story/fractions.yaml"),
        expect: &[Expect::Running("notebook", 8), Expect::SharedGpus("notebook", 4)],
    },
    Chapter {
        title: "A gang of four pods with two GPUs each starts together.",
        manifests: include_str!("story/gang.yaml"),
        expect: &[Expect::Running("train", 4)],
    },
    Chapter {
        title: "Team blue takes all that is free, beyond its quota of two GPUs...",
        manifests: include_str!("story/blue.yaml"),
        expect: &[Expect::Running("blue", 4)],
    },
    Chapter {
        title: "...and team red gets its quota back as soon as it asks.",
        manifests: include_str!("story/red.yaml"),
        expect: &[Expect::Running("red", 2), Expect::Running("blue", 2)],
    },
    Chapter {
        title: "MIG slices and replicas of a time-sliced GPU are handed out by name and by memory.",
        manifests: include_str!("story/slices.yaml"),
        expect: &[Expect::Running("slice", 3), Expect::Running("sliced", 2)],
    },
    Chapter {
        title: "Five models of 30 GiB on a Jetson Thor: its GPU and its CPU share 128 GiB, so four of them run.",
        manifests: include_str!("story/thor.yaml"),
        expect: &[Expect::Running("llm", 4), Expect::Waiting("llm", 1, "memory")],
    },
];

/// Runs the story; true if every outcome is as expected.
pub(super) async fn run(world: &World, steps: &Steps, out: &mut impl Write, screen: Screen) -> anyhow::Result<bool> {
    let mut all = true;
    // The roles are up when the default queue is there.
    let ready = async {
        while world
            .context
            .informers
            .queues()
            .get(&ObjectKey::new("", "default-queue"))
            .is_none()
        {
            tokio::time::sleep(GLANCE).await;
        }
    };
    if tokio::time::timeout(PATIENCE, ready).await.is_err() {
        anyhow::bail!("kai did not start within {} s", PATIENCE.as_secs());
    }
    for (at, chapter) in CHAPTERS.iter().enumerate() {
        writeln!(out, "\n{}", bold(&screen.sentence("", 0, chapter.title), screen.colour))?;
        steps.ensure(at).await?;
        for expectation in chapter.expect {
            let held = comes_true(world, expectation).await;
            let (mark, width) = mark(held, screen.colour);
            let told = describe(world, expectation, held);
            writeln!(out, "{}", screen.sentence(&format!("  {mark} "), width + 3, &told))?;
            all &= held;
        }
    }
    Ok(all)
}

async fn comes_true(world: &World, expectation: &Expect) -> bool {
    let waited = async {
        while !holds(world, expectation) {
            tokio::time::sleep(GLANCE).await;
        }
    };
    tokio::time::timeout(PATIENCE, waited).await.is_ok()
}

fn pods(world: &World, prefix: &str) -> Vec<std::sync::Arc<kai_api::Pod>> {
    let own = |pod: &kai_api::Pod| {
        let name = pod.metadata.plain_name();
        let rest = name.strip_prefix(prefix);
        pod.metadata.namespace() == "default" && rest.is_some_and(|rest| rest.starts_with('-'))
    };
    world
        .context
        .informers
        .pods()
        .all()
        .into_iter()
        .filter(|pod| own(pod))
        .collect()
}

fn running(world: &World, prefix: &str) -> usize {
    let all = pods(world, prefix).into_iter();
    all.filter(|pod| pod.phase() == PodPhase::Running && !pod.is_terminating())
        .count()
}

fn waiting(world: &World, prefix: &str) -> Vec<String> {
    let all = pods(world, prefix).into_iter().filter(|pod| pod.node_name().is_none());
    let reasons = all.filter_map(|pod| {
        pod.condition(kai_api::PodCondition::SCHEDULED)
            .and_then(|condition| condition.message.clone())
    });
    reasons.map(|reason| reason.to_string()).collect()
}

fn holds(world: &World, expectation: &Expect) -> bool {
    match expectation {
        Expect::Running(prefix, count) => running(world, prefix) == *count,
        Expect::Waiting(prefix, count, words) => {
            let reasons = waiting(world, prefix);
            reasons.len() == *count && reasons.iter().all(|reason| reason.contains(words))
        }
        Expect::SharedGpus(prefix, count) => {
            let mut groups: Vec<String> = Vec::new();
            for pod in pods(world, prefix) {
                groups.extend(pod.gpu_groups().into_iter().map(str::to_owned));
            }
            groups.sort();
            groups.dedup();
            groups.len() == *count
        }
    }
}

fn describe(world: &World, expectation: &Expect, held: bool) -> String {
    let instead = |now: String| if held { String::new() } else { format!(" (now: {now})") };
    match expectation {
        Expect::Running(prefix, count) => {
            format!(
                "{count} pods {prefix}-* run{}",
                instead(running(world, prefix).to_string())
            )
        }
        Expect::Waiting(prefix, count, _) => {
            let reasons = waiting(world, prefix);
            let first = reasons.first().map_or("no reason", |reason| reason);
            format!("{count} pod {prefix}-* waits: {first}")
        }
        Expect::SharedGpus(prefix, count) => format!("pods {prefix}-* share {count} GPUs"),
    }
}

fn bold(text: &str, colour: bool) -> String {
    if colour {
        format!("\u{1b}[1m{text}\u{1b}[0m")
    } else {
        text.to_owned()
    }
}

/// The mark of a line and its width without colour codes.
fn mark(held: bool, colour: bool) -> (String, usize) {
    let (mark, code) = if held { ("ok", 32) } else { ("FAILED", 31) };
    let shown = match colour {
        true => format!("\u{1b}[{code}m{mark}\u{1b}[0m"),
        false => mark.to_owned(),
    };
    (shown, mark.len())
}
