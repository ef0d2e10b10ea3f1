//! The requests of random pods against a plain model: the formula of Kubernetes, written for one resource at a time.

use kai_engine::model::Millis;
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::{Pod, PodIdentity};

/// The amounts of one container: what its spec requests, and what the kubelet reports.
#[derive(Clone, Debug, Default)]
struct Numbers {
    spec: Option<i64>,
    allocated: Option<i64>,
    actual: Option<i64>,
}

#[derive(Clone, Debug)]
enum Role {
    Main,
    Init,
    Sidecar,
}

#[derive(Clone, Debug)]
struct RandomContainer {
    role: Role,
    cpu: Numbers,
    memory: Numbers,
}

#[derive(Clone, Debug)]
struct RandomPod {
    containers: Vec<RandomContainer>,
    whole_pod: Option<[Numbers; 2]>,
    overhead: Option<[i64; 2]>,
    pending: Option<&'static str>,
    has_node: bool,
}

fn numbers() -> impl Strategy<Value = Numbers> {
    let amount = || proptest::option::of(0i64..5);
    (amount(), amount(), amount()).prop_map(|(spec, allocated, actual)| Numbers {
        spec,
        allocated,
        actual,
    })
}

fn container() -> impl Strategy<Value = RandomContainer> {
    let role = prop_oneof![Just(Role::Main), Just(Role::Init), Just(Role::Sidecar)];
    (role, numbers(), numbers()).prop_map(|(role, cpu, memory)| RandomContainer { role, cpu, memory })
}

fn random_pod() -> impl Strategy<Value = RandomPod> {
    let pending = prop_oneof![Just(None), Just(Some("Deferred")), Just(Some("Infeasible"))];
    (
        proptest::collection::vec(container(), 1..6),
        proptest::option::of([numbers(), numbers()]),
        proptest::option::of([0i64..3, 0i64..3]),
        pending,
        any::<bool>(),
    )
        .prop_map(|(containers, whole_pod, overhead, pending, has_node)| RandomPod {
            containers,
            whole_pod,
            overhead,
            pending,
            has_node,
        })
}

fn list(cpu: Option<i64>, memory: Option<i64>) -> Value {
    let entries = [("cpu", cpu), ("memory", memory)];
    let entries = entries
        .into_iter()
        .filter_map(|(name, amount)| Some((name.to_owned(), amount?.to_string().into())));
    Value::Object(entries.collect::<Map<_, _>>())
}

impl RandomPod {
    fn object(&self) -> Value {
        let (mut main, mut init) = (Vec::new(), Vec::new());
        let (mut main_statuses, mut init_statuses) = (Vec::new(), Vec::new());
        for (at, container) in self.containers.iter().enumerate() {
            let name = format!("c{at}");
            let (cpu, memory) = (&container.cpu, &container.memory);
            let mut spec = json!({ "name": name, "resources": { "requests": list(cpu.spec, memory.spec) } });
            let status = json!({
                "name": name,
                "allocatedResources": list(cpu.allocated, memory.allocated),
                "resources": { "requests": list(cpu.actual, memory.actual) },
            });
            if matches!(container.role, Role::Sidecar) {
                spec["restartPolicy"] = "Always".into();
            }
            let (specs, statuses) = match container.role {
                Role::Main => (&mut main, &mut main_statuses),
                Role::Init | Role::Sidecar => (&mut init, &mut init_statuses),
            };
            specs.push(spec);
            // The kubelet does not keep the order of the spec.
            statuses.insert(0, status);
        }
        let mut pod = json!({
            "metadata": { "name": "p" },
            "spec": { "containers": main, "initContainers": init },
            "status": { "containerStatuses": main_statuses, "initContainerStatuses": init_statuses },
        });
        if self.has_node {
            pod["spec"]["nodeName"] = "n".into();
        }
        if let Some([cpu, memory]) = &self.whole_pod {
            pod["spec"]["resources"] = json!({ "requests": list(cpu.spec, memory.spec) });
            pod["status"]["allocatedResources"] = list(cpu.allocated, memory.allocated);
            pod["status"]["resources"] = json!({ "requests": list(cpu.actual, memory.actual) });
        }
        if let Some([cpu, memory]) = self.overhead {
            pod["spec"]["overhead"] = list(Some(cpu), Some(memory));
        }
        if let Some(reason) = self.pending {
            pod["status"]["conditions"] = json!([{ "type": "PodResizePending", "status": "True", "reason": reason }]);
        }
        pod
    }

    /// What numbers count as; `less` is subtracted from what the kubelet reports.
    fn effective(&self, numbers: &Numbers, less: i64) -> Option<i64> {
        let reported = numbers
            .allocated
            .max(numbers.actual)
            .map(|amount| (amount - less).max(0));
        match (self.has_node, self.pending) {
            (false, _) => numbers.spec,
            (true, Some("Infeasible")) => reported.or(numbers.spec),
            (true, _) => numbers.spec.max(reported),
        }
    }

    /// The amount of one resource, without and with overhead.
    fn model(&self, of: fn(&RandomContainer) -> &Numbers, at: usize) -> [i64; 2] {
        let (mut sum, mut sidecars, mut peak) = (0, 0, 0);
        for container in &self.containers {
            let numbers = of(container);
            let effective = self.effective(numbers, 0).unwrap_or(0);
            match container.role {
                Role::Main => sum += effective,
                Role::Init => peak = peak.max(sidecars + numbers.spec.unwrap_or(0)),
                Role::Sidecar => {
                    sidecars += effective;
                    peak = peak.max(sidecars);
                }
            }
        }
        let overhead = self.overhead.map_or(0, |overhead| overhead[at]);
        let mut most = (sum + sidecars).max(peak);
        if let Some(whole_pod) = &self.whole_pod {
            // Without any request of the whole pod, the kubelet's report about it is that of the containers.
            let is_set = whole_pod.iter().any(|numbers| numbers.spec.is_some());
            if let Some(amount) = self.effective(&whole_pod[at], overhead).filter(|_| is_set) {
                most = amount;
            }
        }
        [most, most + overhead]
    }
}

proptest! {
    #[test]
    fn a_pod_counts_as_in_kubernetes(random in random_pod()) {
        let pod: Pod = serde_json::from_value(random.object()).unwrap();
        let read = pod.read(&PodIdentity::default(), Millis(0)).unwrap();
        prop_assert_eq!(read.problems, []);
        let requests = read.value.requests;
        let usage = pod.requests_milli();
        let usage = |name: &str| usage.get(name).copied().unwrap_or(0);
        let [cpu, cpu_with_overhead] = random.model(|container| &container.cpu, 0);
        let [memory, memory_with_overhead] = random.model(|container| &container.memory, 1);
        prop_assert_eq!(requests.cpu_milli, cpu_with_overhead * 1000, "{}", random.object());
        prop_assert_eq!(requests.memory_bytes, memory_with_overhead, "{}", random.object());
        prop_assert_eq!((usage("cpu"), usage("memory")), (cpu * 1000, memory * 1000));
    }

    /// A pod whose kubelet reports what the spec says takes no memory for it, and is the same pod.
    #[test]
    fn a_pod_that_is_not_resized_keeps_nothing(mut random in random_pod()) {
        random.has_node = true;
        // What the kubelet reports about a whole pod includes the overhead.
        random.overhead = random.overhead.filter(|_| random.whole_pod.is_none());
        for container in &mut random.containers {
            for numbers in [&mut container.cpu, &mut container.memory] {
                (numbers.allocated, numbers.actual) = (numbers.spec, numbers.spec);
            }
        }
        for numbers in random.whole_pod.iter_mut().flatten() {
            (numbers.allocated, numbers.actual) = (numbers.spec, numbers.spec);
        }
        let reported: Pod = serde_json::from_value(random.object()).unwrap();
        prop_assert!(reported.status.resize.is_none());
        let mut silent = random.object();
        silent["status"] = json!({});
        let silent: Pod = serde_json::from_value(silent).unwrap();
        prop_assert!(reported.same_content(&silent));
        prop_assert_eq!(reported.requests_milli(), silent.requests_milli());
    }
}
