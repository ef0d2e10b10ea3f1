//! The embedded API server through a stock `kubectl`, from `$KUBECTL` or the path; skipped if there is none.
//!
//! A current one can be built with Go and no checkout of Kubernetes: in an empty module, `go mod edit` a
//! `require k8s.io/kubernetes v1.N.0` and one `replace k8s.io/X => k8s.io/X v0.N.0` for every staging repository that its
//! go.mod names, then `go mod tidy` with a file that imports `k8s.io/kubernetes/cmd/kubectl`, and
//! `go build k8s.io/kubernetes/cmd/kubectl`.

#![allow(clippy::unwrap_used)] // Helpers of tests: a panic is the failure.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use kai_embedded::server::{Listening, Options, Patch, Server};
use serde_json::json;

struct Session {
    program: PathBuf,
    home: tempfile::TempDir,
    server: Server,
    _listening: Listening,
}

/// A server and a kubectl for it; `None` if there is no kubectl.
async fn session() -> Option<Session> {
    let program = PathBuf::from(std::env::var_os("KUBECTL").unwrap_or_else(|| "kubectl".into()));
    let answers = Command::new(&program)
        .args(["version", "--client"])
        .output()
        .is_ok_and(|o| o.status.success());
    if !answers {
        eprintln!("skipped: there is no kubectl on the path or in $KUBECTL");
        return None;
    }
    let server = Server::new(Options::default());
    let listening = server.listen("127.0.0.1:0".parse().unwrap()).await.unwrap();
    let home = tempfile::tempdir().unwrap();
    std::fs::write(home.path().join("kubeconfig"), listening.kubeconfig(None)).unwrap();
    Some(Session {
        program,
        home,
        server,
        _listening: listening,
    })
}

impl Session {
    fn command(&self, arguments: &str) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments.split_whitespace()).current_dir(self.home.path());
        command
            .env("KUBECONFIG", self.home.path().join("kubeconfig"))
            .env("HOME", self.home.path());
        command
    }

    /// The output of a command; panics if it fails.
    fn run(&self, arguments: &str) -> String {
        let output = self.command(arguments).output().unwrap();
        let (out, err) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        assert!(output.status.success(), "kubectl {arguments}: {out}{err}");
        out.into_owned()
    }

    /// The error output of a command; panics if it succeeds.
    fn fail(&self, arguments: &str) -> String {
        let output = self.command(arguments).output().unwrap();
        assert!(!output.status.success(), "kubectl {arguments} worked");
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    fn apply(&self, options: &str, manifest: &str) -> String {
        std::fs::write(self.home.path().join("manifest.yaml"), manifest).unwrap();
        self.run(&format!("apply {options} -f manifest.yaml"))
    }
}

fn has(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "no {word:?} in:\n{text}");
    }
}

const DEPLOYMENT: &str = "
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      containers:
      - {name: main, image: 'nginx:1', ports: [{containerPort: 80}], env: [{name: A, value: '1'}]}
";

#[tokio::test(flavor = "multi_thread")]
async fn applies_changes_and_scales() {
    let Some(kubectl) = session().await else { return };
    has(&kubectl.apply("", DEPLOYMENT), &["web created"]);
    has(&kubectl.apply("", DEPLOYMENT), &["web unchanged"]);
    has(
        &kubectl.apply("", &DEPLOYMENT.replace("nginx:1", "nginx:2")),
        &["web configured"],
    );
    has(&kubectl.run("scale deployment web --replicas=5"), &["scaled"]);
    let image = "{.spec.replicas} {.spec.template.spec.containers[0].image}".replace(' ', "/");
    has(
        &kubectl.run(&format!("get deployment web -o jsonpath={image}")),
        &["5/nginx:2"],
    );
    std::fs::write(kubectl.home.path().join("manifest.yaml"), DEPLOYMENT).unwrap();
    has(
        &kubectl.fail("apply --server-side -f manifest.yaml"),
        &["conflict", ".spec.replicas"],
    );
    has(
        &kubectl.run("apply --server-side --force-conflicts -f manifest.yaml"),
        &["serverside-applied"],
    );
    has(&kubectl.run("get deployments"), &["NAME", "READY", "UP-TO-DATE", "0/2"]);
    has(
        &kubectl.run("get deploy web -o yaml"),
        &["image: nginx:1", "replicas: 2", "kind: Deployment"],
    );
    has(&kubectl.run("diff -f manifest.yaml"), &[]);
    has(
        &kubectl.run("describe deployment web"),
        &["Selector:", "app=web", "nginx:1"],
    );
    has(&kubectl.run("delete -f manifest.yaml"), &["deleted"]);
    has(
        &kubectl.fail("get deployment web"),
        &["(NotFound)", "deployments.apps \"web\" not found"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_and_nodes() {
    let Some(kubectl) = session().await else { return };
    let store = kubectl.server.store();
    store
        .create(json!({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1", "labels": {"node-role.kubernetes.io/gpu": ""}}}))
        .unwrap();
    let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
    store.patch_status("nodes", "", "n1", &Patch::Merge(ready)).unwrap();
    kubectl.run("run a --image=busybox");
    has(
        &kubectl.run("get pods"),
        &["NAME", "READY", "STATUS", "RESTARTS", "0/1", "Pending"],
    );
    store.bind("default", "a", "n1").unwrap();
    has(&kubectl.run("get pods -o wide"), &["NODE", "n1"]);
    has(
        &kubectl.run("get pods -A --field-selector spec.nodeName=n1"),
        &["NAMESPACE", "default"],
    );
    has(&kubectl.run("get nodes"), &["STATUS", "Ready", "gpu"]);
    kubectl.run("label pod a team=red");
    kubectl.run("annotate pod a note=hello");
    kubectl.run("patch pod a -p {\"metadata\":{\"labels\":{\"more\":\"1\"}}}");
    kubectl.run("patch pod a --type=json -p [{\"op\":\"add\",\"path\":\"/metadata/labels/json\",\"value\":\"1\"}]");
    has(
        &kubectl.run("get pods -l team=red,more,json=1 --show-labels"),
        &["team=red"],
    );
    has(
        &kubectl.run("describe pod a"),
        &["Node:", "n1", "note: hello", "PodScheduled"],
    );
    has(&kubectl.run("describe node n1"), &["Non-terminated Pods:", "a"]);
    kubectl.run("cordon n1");
    has(&kubectl.run("get nodes"), &["Ready,SchedulingDisabled"]);
    kubectl.run("taint nodes n1 gpu=yes:NoSchedule");
    has(&kubectl.run("get node n1 -o jsonpath={.spec.taints[*].key}"), &["gpu"]);
    has(&kubectl.run("logs a"), &["simulated"]);
    kubectl.run("delete pod a --wait=false");
    has(&kubectl.run("get pods"), &["Terminating"]);
    kubectl.run("delete pod a --force --grace-period=0");
    has(&kubectl.fail("get pod a"), &["NotFound"]);
    has(
        &kubectl.run("get events,namespaces,priorityclasses,leases"),
        &["system-node-critical", "kube-system"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn watches() {
    let Some(kubectl) = session().await else { return };
    kubectl.run("run a --image=busybox");
    let mut child = kubectl.command("get pods -w").stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(lines.next().unwrap().starts_with("NAME"));
    has(&lines.next().unwrap(), &["a", "Pending"]);
    let running =
        json!({"status": {"phase": "Running", "containerStatuses": [{"name": "a", "ready": true, "restartCount": 3}]}});
    kubectl
        .server
        .store()
        .patch_status("pods", "default", "a", &Patch::Merge(running))
        .unwrap();
    has(&lines.next().unwrap(), &["1/1", "Running", "3"]);
    child.kill().unwrap();
    child.wait().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn custom_resources_and_namespaces() {
    let Some(kubectl) = session().await else { return };
    let definition = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.example}
spec:
  group: test.example
  scope: Namespaced
  names: {plural: widgets, kind: Widget, shortNames: [wd]}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, maximum: 9}}}}}}
    additionalPrinterColumns: [{name: Size, type: integer, jsonPath: .spec.size}]
";
    kubectl.apply("", definition);
    has(
        &kubectl.run("wait --for=condition=Established crd/widgets.test.example --timeout=5s"),
        &["condition met"],
    );
    has(
        &kubectl.run("api-resources --api-group=test.example"),
        &["wd", "Widget"],
    );
    // In block style: kubectl reads text that begins with a brace as JSON.
    let widget = "apiVersion: test.example/v1\nkind: Widget\nmetadata: {name: w, namespace: here}\nspec: {size: 3}\n";
    let all = format!("apiVersion: v1\nkind: Namespace\nmetadata: {{name: here}}\n---\n{widget}");
    kubectl.apply("", &all);
    has(&kubectl.run("get wd -n here"), &["SIZE", "3"]);
    kubectl.apply("--server-side --force-conflicts", &all.replace("size: 3", "size: 4"));
    has(
        &kubectl.run("get widgets -n here -o jsonpath={.items[0].spec.size}"),
        &["4"],
    );
    std::fs::write(
        kubectl.home.path().join("manifest.yaml"),
        widget.replace("size: 3", "size: 10"),
    )
    .unwrap();
    has(&kubectl.fail("apply -f manifest.yaml"), &["Invalid", "spec.size"]);
    kubectl.run("delete namespace here --timeout=10s");
    has(&kubectl.run("get wd -A"), &[]);
    assert!(kubectl.server.store().get("widgets.test.example", "here", "w").is_err());
    let mut child = kubectl
        .command("create -f -")
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(b"apiVersion: v1\nkind: Secret\nmetadata: {name: s}\nstringData: {a: b}\n")
        .unwrap();
    assert!(child.wait().unwrap().success());
    has(&kubectl.run("get secrets"), &["Opaque", "1"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn commands_that_speak_protobuf() {
    let Some(kubectl) = session().await else { return };
    kubectl.run("create namespace team");
    kubectl.run("create configmap c --from-literal=a=b -n team");
    has(&kubectl.run("get configmap c -n team -o jsonpath={.data.a}"), &["b"]);
    kubectl.run("create serviceaccount robot -n team");
    kubectl.run("create secret generic s --from-literal=key=value -n team");
    has(
        &kubectl.run("get secret s -n team -o jsonpath={.data.key}"),
        &["dmFsdWU="],
    );
    kubectl.run("create deployment web --image=nginx:1 --replicas=3 -n team");
    has(
        &kubectl.run("get deployment web -n team -o yaml"),
        &["replicas: 3", "image: nginx:1", "app: web"],
    );
    kubectl.run("create job once --image=busybox -n team -- sleep 5");
    has(
        &kubectl.run("get job once -n team -o jsonpath={.spec.template.spec.containers[0].command}"),
        &["sleep"],
    );
    has(&kubectl.run("auth can-i create pods"), &["yes"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn sorts_by_a_field_of_the_objects() {
    let Some(kubectl) = session().await else { return };
    for (name, priority) in [("one", 3), ("three", 1), ("two", 2)] {
        kubectl.run(&format!("create configmap {name} --from-literal=order={priority}"));
    }
    let sorted = kubectl.run("get configmaps --sort-by={.data.order}");
    let names: Vec<&str> = sorted
        .lines()
        .skip(1)
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(names, ["three", "two", "one"], "{sorted}");
}

#[tokio::test(flavor = "multi_thread")]
async fn explains_kinds_and_fields() {
    let Some(kubectl) = session().await else { return };
    has(
        &kubectl.run("explain pods"),
        &["KIND:", "Pod", "DESCRIPTION:", "spec", "<PodSpec>"],
    );
    has(
        &kubectl.run("explain deployment.spec.template.spec.containers.resources"),
        &["limits", "requests", "compute resources"],
    );
    kubectl.apply("", WIDGETS);
    has(
        &kubectl.run("explain widgets.spec"),
        &["size", "<integer>", "how large"],
    );
    has(&kubectl.run("explain widgets.metadata"), &["ownerReferences"]);
    has(
        &kubectl.fail("explain pods.spec.gpus"),
        &["field \"gpus\" does not exist"],
    );
}

const WIDGETS: &str = "
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: widgets.test.example}
spec:
  group: test.example
  scope: Namespaced
  names: {plural: widgets, kind: Widget}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {size: {type: integer, description: how large}}}}}}
";

#[tokio::test(flavor = "multi_thread")]
async fn what_needs_a_container_says_that_containers_are_simulated() {
    let Some(kubectl) = session().await else { return };
    kubectl.run("run a --image=busybox");
    let running = json!({"status": {"phase": "Running", "containerStatuses": [{"name": "a", "ready": true, "restartCount": 0, "image": "busybox", "imageID": "", "state": {"running": {}}}]}});
    let store = kubectl.server.store();
    store
        .patch_status("pods", "default", "a", &Patch::Merge(running))
        .unwrap();
    for command in [
        "exec a -- ls",
        "attach a",
        "port-forward a 8080:80",
        "top pods",
        "top nodes",
    ] {
        has(&kubectl.fail(command), &["containers are simulated"]);
    }
    has(&kubectl.fail("exec missing -- ls"), &["pods \"missing\" not found"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dry_run_on_the_server_changes_nothing() {
    let Some(kubectl) = session().await else { return };
    std::fs::write(kubectl.home.path().join("manifest.yaml"), DEPLOYMENT).unwrap();
    has(
        &kubectl.run("apply --dry-run=server -f manifest.yaml"),
        &["web created (server dry run)"],
    );
    has(&kubectl.fail("get deployment web"), &["NotFound"]);
    kubectl.run("apply -f manifest.yaml");
    has(
        &kubectl.run("scale deployment web --replicas=7 --dry-run=server"),
        &["scaled (server dry run)"],
    );
    kubectl.run("delete -f manifest.yaml --dry-run=server");
    has(&kubectl.run("get deployment web -o jsonpath={.spec.replicas}"), &["2"]);
    has(
        &kubectl.fail("create -f manifest.yaml --dry-run=server"),
        &["AlreadyExists"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn mistakes_in_manifests_are_named() {
    let Some(kubectl) = session().await else { return };
    let refused = |arguments: &str, manifest: &str, expect: &[&str]| {
        std::fs::write(kubectl.home.path().join("manifest.yaml"), manifest).unwrap();
        has(&kubectl.fail(&format!("{arguments} -f manifest.yaml")), expect);
    };
    let pod = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  containers: [{name: a, image: x}]\n";
    refused(
        "apply",
        &format!("{pod}  gpus: 1\n"),
        &["strict decoding error: unknown field \"spec.gpus\""],
    );
    refused(
        "create",
        &format!("{pod}  priority: high\n"),
        &["cannot unmarshal string", "spec.priority of type int32"],
    );
    let amount = pod.replace("image: x", "image: x, resources: {limits: {memory: lots}}");
    refused("apply", &amount, &["quantities must match the regular expression"]);
    let fraction = pod.replace("image: x", "image: x, resources: {limits: {nvidia.com/gpu: 0.5}}");
    refused(
        "apply",
        &fraction,
        &[
            "spec.containers[0].resources.limits[nvidia.com/gpu]",
            "must be an integer",
        ],
    );
    let unknown = "apiVersion: nobody.example/v1\nkind: Thing\nmetadata: {name: a}\n";
    refused(
        "apply",
        unknown,
        &["no matches for kind \"Thing\" in version \"nobody.example/v1\""],
    );
    std::fs::write(kubectl.home.path().join("manifest.yaml"), format!("{pod}  gpus: 1\n")).unwrap();
    let output = kubectl
        .command("apply --validate=warn -f manifest.yaml")
        .output()
        .unwrap();
    let warned = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{warned}");
    has(&warned, &["unknown field \"spec.gpus\""]);
}
