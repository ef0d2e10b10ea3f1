use std::collections::BTreeSet;
use std::sync::Arc;

use kai_view::{
    ClusterView, DecisionKind, EnforcementTier, Gpu, GpuState, GpuUser, List, MissingList, NodeCondition,
    NodeEnforcement, OTHER_WORK, PodLimit, PodStatus, Slices, SlicesKind, Text, TextMap,
};

use super::{Input, render};
use crate::route::{Route, VIEWS};
use crate::source::StoryStep;
use crate::synthetic::{START_MS, Simulation, empty};

fn html(address: &str, view: Option<&ClusterView>) -> String {
    let route = Route::parse_address(address).unwrap();
    let input = Input {
        view,
        order: None,
        namespaces: None,
        steps: &[],
    };
    let blocks = render(&route, input);
    let html = blocks.html.as_str().to_owned();
    assert_well_formed(&html, address);
    html
}

/// Every start tag has its end tag, and no element has a style of its own: the policy of the page forbids it.
fn assert_well_formed(html: &str, what: &str) {
    const VOID: [&str; 5] = ["br", "input", "rect", "path", "meta"];
    let mut open: Vec<&str> = Vec::new();
    let mut rest = html;
    while let Some(at) = rest.find('<') {
        rest = &rest[at + 1..];
        let end = rest
            .find('>')
            .unwrap_or_else(|| panic!("{what}: a tag does not end: {rest:.80}"));
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/']).next().unwrap();
        // Every second part between double quotes is the value of an attribute.
        let names: String = tag.split('"').step_by(2).collect();
        assert!(!names.contains(" style=") && !names.contains(" on"), "{what}: {tag}");
        if tag.starts_with('/') {
            assert_eq!(open.pop(), Some(name), "{what}: {tag}");
        } else if !VOID.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{what}: {open:?}");
}

fn small() -> ClusterView {
    Simulation::small(START_MS).view()
}

/// All addresses of a cluster: those of the navigation, and one of each kind of object.
fn addresses(view: &ClusterView) -> Vec<String> {
    let mut all: Vec<String> = VIEWS.iter().map(|(address, _)| (*address).to_owned()).collect();
    all.extend(
        [
            "/gpus?cells=small",
            "/gpus?group=model",
            "/gpus?group=topology-level",
            "/decisions?kind=evict",
        ]
        .map(str::to_owned),
    );
    let encode = |text: &str| {
        let mut html = crate::html::Html::default();
        html.segment(text);
        html.into_string()
    };
    all.extend(
        view.nodes
            .iter()
            .flatten()
            .map(|node| format!("/nodes/{}", encode(&node.name))),
    );
    all.extend(
        view.pods
            .iter()
            .flatten()
            .map(|pod| format!("/pods/{}/{}", encode(&pod.namespace), encode(&pod.name))),
    );
    all.extend(
        view.gangs
            .iter()
            .flatten()
            .map(|gang| format!("/gangs/{}/{}", encode(&gang.namespace), encode(&gang.pod_group))),
    );
    all
}

#[test]
fn every_view_is_well_formed() {
    let view = small();
    for address in addresses(&view) {
        assert!(html(&address, Some(&view)).contains("<h1>"), "{address}");
    }
    for address in ["/pods/a/gone", "/gangs/a/gone", "/nodes/gone"] {
        assert!(html(address, Some(&view)).contains("There is no such"), "{address}");
    }
    for (address, _) in VIEWS {
        html(address, Some(&empty()));
    }
}

#[test]
fn without_a_view_the_page_says_so() {
    for (address, _) in VIEWS {
        let html = html(address, None);
        assert!(
            html.contains("No view of the cluster") && html.contains("unknown"),
            "{html}"
        );
    }
}

#[test]
fn what_is_not_known_is_shown_as_unknown() {
    let mut view = small();
    (view.nodes, view.queues, view.gangs, view.pods, view.decisions) = (None, None, None, None, None);
    view.missing.push(MissingList {
        list: List::Nodes,
        only_namespace: None,
        message: "nodes is forbidden".to_owned(),
    });
    for (address, _) in VIEWS {
        let html = html(address, Some(&view));
        assert!(
            html.contains("unknown") && html.contains("nodes is forbidden"),
            "{address}: {html}"
        );
        assert!(!html.contains(">0<"), "{address}: {html}");
    }
}

#[test]
fn unknown_amounts_of_queues_and_nodes_are_no_zeros() {
    let mut view = small();
    for queue in view.queues.iter_mut().flatten() {
        (
            queue.gpus.used,
            queue.gpus.fair_share,
            queue.gpus.requested,
            queue.gpus.borrowed,
        ) = (None, None, None, None);
        (queue.over_quota, queue.gangs_waiting, queue.gangs_running) = (None, None, None);
    }
    let queues = html("/queues", Some(&view));
    assert!(
        !queues.contains("<svg") && queues.matches(">unknown<").count() >= 8 * 4,
        "{queues}"
    );
    for node in view.nodes.iter_mut().flatten() {
        node.gpus_unhealthy = None;
        node.cpu_milli.used = None;
        node.gpus.iter_mut().for_each(|gpu| {
            gpu.state = GpuState::Unknown;
            gpu.pods.clear();
        });
        node.slices.iter_mut().for_each(|slices| slices.used = None);
    }
    let overview = html("/", Some(&view));
    assert!(
        overview.contains("<dt>allocated</dt><dd><span class=\"unknown\">"),
        "{overview}"
    );
    assert!(
        overview.contains("<dt>unhealthy</dt><dd><span class=\"unknown\">"),
        "{overview}"
    );
    let map = html("/gpus?cells=small", Some(&view));
    assert!(map.contains("<b class=\"unk\"></b>") && map.contains("?/8"), "{map}");
    assert!(html("/nodes", Some(&view)).contains("GPU health unknown"));
}

#[test]
fn a_shared_gpu_of_unknown_memory_is_neither_free_nor_divided() {
    let mut view = small();
    let nodes = view.nodes.as_mut().unwrap();
    nodes.truncate(1);
    nodes[0].slices.clear();
    let shared = Gpu {
        state: GpuState::Shared,
        uuid: None,
        gpu_group: None,
        used_mib: None,
        pods: vec![user("a", PodStatus::Running), user("b", PodStatus::Running)],
    };
    let idle = Gpu {
        state: GpuState::Idle,
        used_mib: Some(0),
        pods: Vec::new(),
        ..shared.clone()
    };
    (nodes[0].gpus, nodes[0].gpu_memory_mib) = (vec![shared, idle], None);
    let overview = html("/", Some(&view));
    for figure in [
        "<dt>allocated</dt><dd>0</dd>",
        "<dt>free</dt><dd>1</dd>",
        "<dt>of unknown use</dt><dd>1</dd>",
    ] {
        assert!(overview.contains(figure), "{figure} in {overview}");
    }
    let map = html("/gpus?cells=small", Some(&view));
    assert!(
        map.contains("<span class=\"unk\"><a class=\"qf\"") && !map.contains(" p50\""),
        "{map}"
    );
    // The GPU's memory is known, and that of one of its pods is not.
    let node = &mut view.nodes.as_mut().unwrap()[0];
    node.gpu_memory_mib = Some(80_000);
    node.gpus[0].pods[1].mib = None;
    let overview = html("/", Some(&view));
    assert!(overview.contains("<dt>of unknown use</dt><dd>1</dd>"), "{overview}");
}

#[test]
fn a_node_that_reports_nothing_is_not_called_ready() {
    let mut view = small();
    let node = &mut view.nodes.as_mut().unwrap()[0];
    let address = format!("/nodes/{}", node.name);
    assert!(html(&address, Some(&view)).contains(">ready</span>"));
    view.nodes.as_mut().unwrap()[0].conditions = Vec::new().into();
    let text = html(&address, Some(&view));
    assert!(
        text.contains(">readiness unknown</span>") && !text.contains(">ready</span>"),
        "{text}"
    );
    let nodes = html("/nodes", Some(&view));
    assert!(nodes.contains(" not ready · 1 of unknown readiness · "), "{nodes:.400}");
}

fn user(name: &str, status: PodStatus) -> GpuUser {
    GpuUser {
        namespace: "team".into(),
        name: name.into(),
        status,
        foreign: false,
        limit_mib: None,
        mib: Some(20_000),
        slices: 0,
    }
}

#[test]
fn gpus_are_drawn_as_what_they_are() {
    let mut view = small();
    let node = &mut view.nodes.as_mut().unwrap()[1];
    let gpu = |state, pods| Gpu {
        state,
        uuid: None,
        gpu_group: None,
        used_mib: Some(0),
        pods,
    };
    let foreign = GpuUser {
        foreign: true,
        ..user("stranger", PodStatus::Running)
    };
    let other = GpuUser {
        namespace: Text::default(),
        ..user(OTHER_WORK, PodStatus::Running)
    };
    node.gpus = vec![
        gpu(GpuState::Idle, vec![]),
        gpu(GpuState::Whole, vec![user("whole", PodStatus::Running)]),
        gpu(
            GpuState::Shared,
            vec![
                user("part", PodStatus::Running),
                user("promised", PodStatus::Pipelined),
                user("ending", PodStatus::Releasing),
            ],
        ),
        gpu(GpuState::Shared, vec![foreign, other]),
        gpu(GpuState::TimeSliced, vec![]),
        gpu(GpuState::Held, vec![]),
        gpu(GpuState::Unhealthy, vec![]),
        gpu(GpuState::Unknown, vec![]),
    ];
    (
        node.gpu_memory_mib,
        node.unified_memory,
        node.gpus_unhealthy,
        node.ready,
    ) = (Some(80_000), true, Some(2), false);
    node.slices = vec![Slices {
        resource: "nvidia.com/mig-1g.5gb".into(),
        kind: SlicesKind::Mig,
        allocatable: 4,
        used: Some(3),
        pods: vec![GpuUser {
            slices: 2,
            mib: None,
            ..user("slices", PodStatus::Running)
        }],
    }];
    view.nodes.as_mut().unwrap().swap(0, 1);
    view.nodes.as_mut().unwrap().truncate(1);
    let small = html("/gpus?group=none&cells=small", Some(&view));
    let map = &small[small.find("<section class=\"map\"").unwrap()..];
    for part in [
        "class=\"um\"",
        "not ready",
        "unified memory",
        "1 failed in use",
        "<div class=\"c\"><b></b><a class=\"qf\" tabindex=\"-1\" href=\"/pods/team/whole\"></a><span>",
        "<a class=\"qf p25\" tabindex=\"-1\" href=\"/pods/team/part\">",
        "<a class=\"qf pr p25\" tabindex=\"-1\" href=\"/pods/team/promised\">",
        "<a class=\"qf rl p25\" tabindex=\"-1\" href=\"/pods/team/ending\">",
        "<i class=\"qf p25\" title=\"team/stranger\">",
        "<i class=\"qo p25\" title=\"other work\">",
        "<b class=\"ts\"></b><b class=\"held\"></b><b class=\"bad\"></b><b class=\"unk\"></b></div>",
        "1g.5gb 3/4",
        "</a><b class=\"held\"></b><b></b></div>",
    ] {
        assert!(map.contains(part), "{part} is not in {map}");
    }
    assert_eq!(map.matches("/pods/team/slices").count(), 2);
    let large = html("/gpus?group=none&cells=large", Some(&view));
    for word in [
        "free",
        "whole",
        "shared",
        "time-sliced",
        "held",
        "failed",
        "unknown",
        "promised",
        "ending",
        "other scheduler",
        "other work",
        "2 × ",
    ] {
        assert!(large.contains(word), "{word} is not in {large}");
    }
}

#[test]
fn limits_are_shown_as_what_they_are() {
    let mut view = small();
    let node = &mut view.nodes.as_mut().unwrap()[0];
    let name = node.name.clone();
    let condition = |status: &str| NodeCondition {
        kind: "GPULimits".into(),
        status: status.into(),
        reason: None,
        message: None,
    };
    node.gpu_enforcement = NodeEnforcement {
        tier: Some(EnforcementTier::Watch),
        message: Some("the driver is too old".into()),
    };
    node.conditions = vec![condition("False")].into();
    let limited = GpuUser {
        limit_mib: Some(20_480),
        ..user("limited", PodStatus::Running)
    };
    node.gpus = vec![Gpu {
        state: GpuState::Shared,
        uuid: None,
        gpu_group: None,
        used_mib: Some(0),
        pods: vec![limited],
    }];
    let address = format!("/nodes/{name}");
    let shown = html(&address, Some(&view));
    assert!(shown.contains("<dd>tier watch: the driver is too old</dd>"), "{shown}");
    assert!(shown.contains(" · limit 20 GiB"), "{shown}");
    assert!(
        shown.contains("<span class=\"tag\">False</span>"),
        "neither good nor bad: {shown}"
    );
    assert!(!html("/nodes", Some(&view)).contains("GPULimits"), "it is no finding");
    let node = &mut view.nodes.as_mut().unwrap()[0];
    node.gpu_enforcement = NodeEnforcement::default();
    let shown = html(&address, Some(&view));
    assert!(
        shown.contains("<dt>limits of GPU memory</dt><dd><span class=\"unknown\">"),
        "{shown}"
    );

    let pod = view.pods.as_mut().unwrap().iter_mut().find(|pod| !pod.waits()).unwrap();
    pod.gpu_limit = Some(PodLimit {
        required: true,
        tier: Some(EnforcementTier::Driver),
        memory_mib: Some(20_480),
    });
    let address = format!("/pods/{}/{}", pod.namespace, pod.name);
    let shown = html(&address, Some(&view));
    assert!(
        shown.contains("20,480 MiB of each GPU; held by the driver (tier driver)"),
        "{shown}"
    );
}

#[test]
fn queues_show_who_lends() {
    let mut view = small();
    let queue = &mut view.queues.as_mut().unwrap()[1];
    let gpus = |gpus: i64| kai_view::GpuAmount {
        millionths: gpus * 1_000_000,
    };
    (queue.gpus.used, queue.gpus.quota, queue.gpus.borrowed) = (Some(gpus(5)), Some(gpus(2)), Some(gpus(3)));
    (queue.gpus.reclaimable, queue.over_quota) = (Some(gpus(1)), Some(true));
    queue.lenders = vec![kai_view::Lender {
        queue: "serving".to_owned(),
        gpus: gpus(3),
    }];
    let html = html("/queues", Some(&view));
    assert!(html.contains("<b>3</b> from serving (3); 1 reclaimable"), "{html}");
    assert!(html.contains("over quota") && html.contains("class=\"over\""), "{html}");
}

#[test]
fn an_evicted_pod_says_for_whom_and_why() {
    let view = small();
    let decision = view
        .decisions
        .iter()
        .flatten()
        .find(|decision| decision.beneficiary.is_some())
        .unwrap();
    let beneficiary = decision.beneficiary.as_ref().unwrap();
    let log = html("/decisions?kind=evict", Some(&view));
    assert!(log.contains(&format!(">{}</a> of ", beneficiary.workload)), "{log}");
    assert!(
        log.contains("<span class=\"why\">Reclaim: queue ")
            && log.contains(", more than its fair share; queue ")
            && !log.contains("class=\"tag ok\">bound"),
        "{log}"
    );
    let story = html(&format!("/pods/{}/{}", decision.namespace, decision.pod), Some(&view));
    assert!(
        story.contains("<b>Evicted</b> from") && story.contains(&beneficiary.workload),
        "{story}"
    );
    let none = html("/decisions?queue=no-such-queue", Some(&view));
    assert!(none.contains("No decisions."), "{none}");
}

#[test]
fn an_eviction_without_the_name_of_a_pod_links_to_no_pod() {
    let mut view = small();
    let decisions = view.decisions.iter_mut().flatten();
    let evictions: Vec<_> = decisions.filter(|decision| decision.beneficiary.is_some()).collect();
    let mut gang = None;
    for decision in evictions {
        std::sync::Arc::make_mut(decision).pod.clear();
        gang = Some((decision.namespace.clone(), decision.pod_group.clone().unwrap()));
    }
    let (namespace, pod_group) = gang.unwrap();
    for path in [
        format!("/gangs/{namespace}/{pod_group}"),
        "/decisions".to_owned(),
        "/".to_owned(),
    ] {
        let html = html(&path, Some(&view));
        assert!(
            !html.contains(&format!("href=\"/pods/{namespace}/\"")),
            "{path}: {html}"
        );
    }
}

#[test]
fn the_story_of_a_pod_is_in_the_order_of_time() {
    let view = small();
    let bound = view.decisions.iter().flatten().next().unwrap();
    let story = html(&format!("/pods/{}/{}", bound.namespace, bound.pod), Some(&view));
    let times: Vec<&str> = story[story.find("<ol class=\"story\">").unwrap()..]
        .split("datetime=\"")
        .skip(1)
        .map(|rest| rest.split('"').next().unwrap())
        .collect();
    assert!(times.len() >= 4 && times.is_sorted(), "{times:?}");
    let order = ["<b>Created</b>", "<b>Grouped</b>", "<b>Bound</b>"].map(|word| story.find(word).unwrap());
    assert!(order.is_sorted(), "{story}");
}

/// A running pod that waited, was promised a place and got it. The API has whole seconds, decisions have milliseconds.
fn with_a_story(view: &mut ClusterView) -> (String, String) {
    let time = |text: &str| text.parse::<kai_view::Time>().unwrap();
    let bound = view.decisions.iter().flatten().next().unwrap().as_ref().clone();
    let pods = view.pods.as_mut().unwrap().iter_mut();
    let pod = pods
        .filter(|pod| pod.namespace == bound.namespace)
        .find(|pod| pod.name == bound.pod);
    let pod = pod.unwrap();
    (pod.status, pod.created) = (PodStatus::Running, time("2026-01-01T12:00:00Z"));
    (pod.since, pod.gpu_groups) = (Some(time("2026-01-01T12:20:35Z")), vec!["group-7".into()]);
    let gangs = view.gangs.iter_mut().flatten();
    let mut gangs = gangs.filter(|gang| gang.namespace == bound.namespace);
    gangs
        .find(|gang| Some(gang.pod_group.as_str()) == bound.pod_group.as_deref())
        .unwrap()
        .created = time("2026-01-01T12:00:01Z");
    let decision = |kind, at, reason: &str| kai_view::Decision {
        kind,
        time: time(at),
        waiting_since: Some(time("2026-01-01T12:00:00Z")),
        waiting_reason: Some(reason.to_owned()),
        ..bound.clone()
    };
    view.decisions = Some(vec![
        Arc::new(decision(
            DecisionKind::Bind,
            "2026-01-01T12:20:35.634Z",
            "waits for pods to leave node n1",
        )),
        Arc::new(decision(
            DecisionKind::Promise,
            "2026-01-01T12:12:10.278Z",
            "no node is free",
        )),
    ]);
    (
        format!("/pods/{}/{}", bound.namespace, bound.pod),
        format!("/gangs/{}/{}", bound.namespace, bound.pod_group.unwrap()),
    )
}

#[test]
fn the_story_of_a_pod_ends_with_the_present_and_says_why_it_waited() {
    let mut view = small();
    let (pod, gang) = with_a_story(&mut view);
    let story = html(&pod, Some(&view));
    let story = &story[story.find("<ol class=\"story\">").unwrap()..];
    let events = [
        "<b>Created</b>",
        "<b>Grouped</b>",
        "<b>Waited</b> 12 min<div class=\"cause\">no node is free</div>",
        "<b>Promised a place</b>",
        "<b>Reserved</b>: GPU group group-7",
        "<b>Bound</b>",
        "<b>Running</b>",
    ];
    let order = events.map(|event| story.find(event).unwrap_or_else(|| panic!("{event} is not in {story}")));
    assert!(order.is_sorted(), "{story}");
    assert!(!story.contains("at no known time"), "{story}");
    let times = story.split("datetime=\"").skip(1);
    let times: Vec<kai_view::Time> = times
        .map(|rest| rest.split('"').next().unwrap().parse().unwrap())
        .collect();
    assert!(times.is_sorted(), "{story}");
    let story = html(&gang, Some(&view));
    assert!(story.contains("waited 12 min: no node is free"), "{story}");

    // A pod that waits again says since when, though that is long before the last decision.
    let waits = view
        .pods
        .iter_mut()
        .flatten()
        .find(|pod| pod.status == PodStatus::Running)
        .unwrap();
    (waits.status, waits.since) = (PodStatus::Pending, Some(waits.created));
    let address = format!("/pods/{}/{}", waits.namespace, waits.name);
    let created = format!("datetime=\"{}\"", waits.created);
    let story = html(&address, Some(&view));
    let present = &story[story.find("class=\"warn now\"").unwrap()..];
    assert!(
        present.contains(&created) && present.contains("<b>Waiting</b>"),
        "{story}"
    );
}

fn missing(list: List, only_namespace: Option<&str>) -> MissingList {
    MissingList {
        list,
        only_namespace: only_namespace.map(str::to_owned),
        message: "forbidden".to_owned(),
    }
}

#[test]
fn positions_and_reasons_are_unknown_where_a_list_is_missing() {
    let mut view = small();
    view.missing.push(missing(List::BindRequests, None));
    for gang in view.gangs.iter_mut().flatten() {
        (gang.position, gang.reason) = (None, None);
    }
    let gang = view.waiting_gangs()[0].clone();
    let address = format!("/gangs/{}/{}", gang.namespace, gang.pod_group);
    let page = html(&address, Some(&view));
    assert!(page.contains("<dt>position</dt><dd><span class=\"unknown\">"), "{page}");
    for address in ["/waiting", "/", &address] {
        let page = html(address, Some(&view));
        assert!(page.contains("unknown"), "{page}");
        for claim in [">none</span></td>", "no cycle tries it", "not tried yet"] {
            assert!(!page.contains(claim), "{address}: {claim} in {page}");
        }
    }
    view.missing.clear();
    assert!(html("/waiting", Some(&view)).contains("<span class=\"quiet\">none</span></td>"));
}

#[test]
fn nothing_is_said_of_gangs_whose_pods_could_not_be_read() {
    let mut view = small();
    let own = view.waiting_gangs()[0].namespace.clone();
    for gang in view.gangs.iter_mut().flatten().filter(|gang| gang.namespace != own) {
        (gang.pods, gang.running, gang.starting, gang.waiting) = (0, 0, 0, 0);
    }
    view.pods.as_mut().unwrap().retain(|pod| pod.namespace == own);
    view.missing.push(missing(List::Pods, Some(&own)));
    let others = view.gangs.iter().flatten().filter(|gang| gang.namespace != own).count();
    for address in ["/", "/waiting"] {
        let page = html(address, Some(&view));
        assert!(
            page.contains(&format!("of {others} others <span class=\"unknown\">")),
            "{page}"
        );
    }
    let gang = view.gangs.iter().flatten().find(|gang| gang.namespace != own).unwrap();
    let address = format!("/gangs/{}/{}", gang.namespace, gang.pod_group);
    for address in ["/gangs", &address] {
        let page = html(address, Some(&view));
        assert!(
            page.contains("<span class=\"unknown\">") && !page.contains("no pods"),
            "{page}"
        );
        assert!(!page.contains("0/1<"), "{page}");
    }
    // No pods at all.
    view.gangs.iter_mut().flatten().for_each(|gang| gang.waiting = 0);
    (view.pods, view.missing) = (None, vec![missing(List::Pods, None)]);
    for address in ["/", "/waiting"] {
        let page = html(address, Some(&view));
        assert!(page.contains("unknown") && !page.contains("Nothing waits."), "{page}");
        assert!(!page.contains("0 wait") && !page.contains("0 workloads"), "{page}");
    }
}

#[test]
fn steps_of_the_story_are_buttons() {
    let view = small();
    let step = |title: &str, submitted| StoryStep {
        title: title.to_owned(),
        submitted,
    };
    let steps = [step("First <step>", true), step("Second", false)];
    let input = Input {
        view: Some(&view),
        order: None,
        namespaces: None,
        steps: &steps,
    };
    let blocks = render(&Route::Overview, input);
    let html = blocks.html.as_str();
    assert!(
        html.contains("action=\"/story/0\"><button disabled>First &lt;step&gt;</button>"),
        "{html}"
    );
    assert!(html.contains("action=\"/story/1\"><button>Second</button>"), "{html}");
}

/// Names that no API server accepts, in every place where the cluster has text.
#[test]
fn hostile_names_are_only_text() {
    let evil = "\"><script>alert(1)</script><img src=x onerror='alert(2)'>&\u{0}";
    let mut view = small();
    let hostile = |text: &mut Text| *text = format!("{evil}{text}").into();
    let hostile_string = |text: &mut String| text.insert_str(0, evil);
    for pod in view.pods.iter_mut().flatten() {
        [&mut pod.namespace, &mut pod.name].into_iter().for_each(hostile);
        pod.node
            .iter_mut()
            .chain(&mut pod.pod_group)
            .chain(&mut pod.reason)
            .for_each(hostile);
        pod.gpu_groups.iter_mut().for_each(hostile);
    }
    for gang in view.gangs.iter_mut().flatten() {
        gang.reason.iter_mut().for_each(hostile);
    }
    for gang in view.gangs.iter_mut().flatten() {
        [
            &mut gang.namespace,
            &mut gang.pod_group,
            &mut gang.workload_kind,
            &mut gang.workload_name,
            &mut gang.queue,
        ]
        .into_iter()
        .for_each(hostile);
    }
    for queue in view.queues.iter_mut().flatten() {
        [&mut queue.name, &mut queue.display_name]
            .into_iter()
            .for_each(hostile_string);
        queue.parent.iter_mut().for_each(hostile_string);
        queue
            .lenders
            .iter_mut()
            .for_each(|lender| hostile_string(&mut lender.queue));
    }
    for node in view.nodes.iter_mut().flatten() {
        hostile(&mut node.name);
        let texts = node
            .gpu_model
            .iter_mut()
            .chain(&mut node.driver)
            .chain(&mut node.pool)
            .chain(&mut node.mig_strategy);
        texts.for_each(hostile);
        let labels: TextMap = node
            .labels
            .iter()
            .map(|(key, value)| (format!("{evil}{key}").into(), format!("{evil}{value}").into()))
            .collect();
        node.labels = Arc::new(labels);
        for domain in &mut node.topology {
            [&mut domain.topology, &mut domain.level, &mut domain.value]
                .into_iter()
                .for_each(hostile);
        }
        for condition in Arc::make_mut(&mut node.conditions) {
            [&mut condition.kind, &mut condition.status]
                .into_iter()
                .for_each(hostile);
            condition
                .reason
                .iter_mut()
                .chain(&mut condition.message)
                .for_each(hostile);
        }
        let on_gpus = node.gpus.iter_mut().flat_map(|gpu| &mut gpu.pods);
        for user in on_gpus.chain(node.slices.iter_mut().flat_map(|slices| &mut slices.pods)) {
            [&mut user.namespace, &mut user.name].into_iter().for_each(hostile);
        }
        node.gpus
            .iter_mut()
            .filter_map(|gpu| gpu.uuid.as_mut())
            .for_each(hostile);
        node.slices.iter_mut().for_each(|slices| hostile(&mut slices.resource));
    }
    for decision in view.decisions.iter_mut().flatten().map(Arc::make_mut) {
        [&mut decision.namespace, &mut decision.pod, &mut decision.workload]
            .into_iter()
            .for_each(hostile_string);
        let texts = decision
            .pod_group
            .iter_mut()
            .chain(&mut decision.queue)
            .chain(&mut decision.node)
            .chain(&mut decision.waiting_reason)
            .chain(&mut decision.reason);
        texts.chain(&mut decision.action).for_each(hostile_string);
        if let Some(beneficiary) = &mut decision.beneficiary {
            [
                &mut beneficiary.namespace,
                &mut beneficiary.pod_group,
                &mut beneficiary.workload,
            ]
            .into_iter()
            .for_each(hostile_string);
        }
    }
    for address in addresses(&view) {
        let html = html(&address, Some(&view));
        assert!(
            !html.contains("<script") && !html.contains("<img") && !html.contains("onerror='"),
            "{address}"
        );
        assert!(!html.contains('\0'), "{address}");
    }
    assert!(html("/waiting", Some(&view)).contains("&lt;script&gt;"));
}

#[test]
fn a_restricted_view_names_no_other_work() {
    let view = small();
    let mine: BTreeSet<String> = ["team-vision".to_owned()].into();
    let foreign: Vec<Text> = view
        .pods
        .iter()
        .flatten()
        .filter(|pod| !mine.contains(pod.namespace.as_str()))
        .flat_map(|pod| [Some(pod.name.clone()), pod.pod_group.clone()])
        .flatten()
        .collect();
    assert!(!foreign.is_empty());
    let restricted = view.restricted_to(&mine);
    for address in addresses(&view) {
        let input = Input {
            view: Some(&restricted),
            order: None,
            namespaces: Some(&mine),
            steps: &[],
        };
        let blocks = render(&Route::parse_address(&address).unwrap(), input);
        let html = blocks.html.as_str();
        // The address itself has the name that the caller asked for.
        for name in foreign.iter().filter(|name| !address.contains(name.as_str())) {
            assert!(!html.contains(name.as_str()), "{name} is in {address}");
        }
        assert!(
            html.contains("without names") && html.contains("<b>team-vision</b>"),
            "{address}"
        );
        let mut remedies = html.split("\"/remedies/").skip(1);
        assert!(
            remedies.all(|link| link.starts_with("team-vision/")),
            "{address}: {html}"
        );
    }
}

#[test]
fn a_thousand_nodes_are_a_light_page() {
    let view = Simulation::large(1_000, START_MS).view();
    let pods = view.pods.as_ref().map_or(0, Vec::len);
    assert!(pods >= 10_000, "{pods}");
    let transferred = |address: &str| {
        let html = html(address, Some(&view));
        (html.len(), crate::gzip::compress(html.as_bytes()).len())
    };
    let assets = ["page.css", "page.js", "icon.svg"].map(|name| crate::assets::find(name).unwrap().gzipped.len());
    let (map, map_gzipped) = transferred("/gpus");
    println!("map {map} bytes, {map_gzipped} gzipped; assets {assets:?} gzipped");
    for (address, _) in VIEWS {
        let (_, gzipped) = transferred(address);
        let all = gzipped + assets.iter().sum::<usize>();
        assert!(all < 150_000, "{address}: {all} bytes");
    }
}

#[test]
fn long_tables_end() {
    let mut view = small();
    let gangs = view.gangs.as_mut().unwrap();
    let waiting = gangs.iter().find(|gang| gang.waiting > 0).unwrap().clone();
    for number in 0..super::ROWS_MAX + 10 {
        gangs.push(kai_view::Gang {
            pod_group: format!("more-{number}").into(),
            ..waiting.clone()
        });
    }
    let html = html("/waiting", Some(&view));
    assert!(html.matches("<tr").count() < super::ROWS_MAX + 5);
    assert!(html.contains("more. Filter by queue"), "{html:.400}");
}

#[test]
fn tables_legends_and_filters_of_many_queues_say_how_many_are_left() {
    let mut view = small();
    let leaf = view.queues.as_ref().unwrap().last().unwrap().clone();
    let new = |number: usize| kai_view::Queue {
        name: format!("more-{number:03}"),
        ..leaf.clone()
    };
    view.queues.as_mut().unwrap().extend((0..400).map(new));
    let queues = view.queues.as_ref().unwrap().len();
    let leaves = crate::facts::Facts::new(&view, None).leaves().count();
    let overview = html("/", Some(&view));
    let rest = format!("… and {} queues more: <a href=\"/queues\">", leaves - 40);
    assert!(overview.contains(&rest), "{rest} is not in {overview}");
    let table = html("/queues", Some(&view));
    assert_eq!(table.matches("<tr id=\"queue:").count(), super::ROWS_MAX);
    assert!(
        table.contains(&format!("… and {} more. Read", queues - super::ROWS_MAX)),
        "{table:.400}"
    );
    let map = html("/gpus", Some(&view));
    assert!(
        map.contains(&format!("and {} more queues</li>", leaves - super::LEGEND_MAX)),
        "{map:.4000}"
    );
    let filter = html("/decisions?queue=more-399", Some(&view));
    assert!(filter.contains("<option selected>more-399</option>"), "{filter:.4000}");
    assert!(filter.matches("<option").count() <= super::ROWS_MAX + 6);
}

#[test]
fn long_lists_of_nodes_end() {
    let mut view = small();
    let node = view.nodes.as_ref().unwrap()[0].clone();
    let new = |number: usize| kai_view::Node {
        name: format!("more-{number:05}").into(),
        ..node.clone()
    };
    view.nodes = Some((0..super::NODES_MAX + 7).map(new).collect());
    assert!(html("/nodes", Some(&view)).contains("… and 7 more. Read"));
    let map = html("/gpus?cells=small", Some(&view));
    assert!(map.contains("… and 7 nodes more.") && map.matches("<li id=\"n:").count() == super::NODES_MAX);
}
