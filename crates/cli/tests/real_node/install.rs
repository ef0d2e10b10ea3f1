//! kai in pods of its image, with the accounts of `deploy/rbac.yaml` and only the host paths that docs/node-agent.md lists.

use serde_json::{Value, json};

use crate::machine::{NAME, driver_flags};

/// `kai all`. The API server reaches the webhooks at the pod's address, because this cluster has no service proxy.
pub(crate) fn all() -> Value {
    let flags = [
        "admission=--webhook-url=https://$(POD_IP):9443",
        "admission=--gpu-fraction-runtime-class-name=",
        "binder=--resource-reservation-pod-image=localhost/kai:test",
    ];
    let mut args = vec!["all"];
    args.extend(flags.iter().flat_map(|flag| ["--role", flag]));
    let locked = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsNonRoot": true, "capabilities": { "drop": ["ALL"] },
    });
    pod(
        "kai-all",
        json!({
            "args": args,
            "env": [{ "name": "POD_IP", "valueFrom": { "fieldRef": { "fieldPath": "status.podIP" } } }],
            "readinessProbe": ready_at(8080),
            "securityContext": locked,
        }),
        json!([]),
    )
}

/// The node agent, with the directories, user and capabilities in docs/node-agent.md.
pub(crate) fn agent(mode: &str) -> Value {
    let mut args = ["node-agent", "--mode", mode, "--host-root", "/host"]
        .map(str::to_owned)
        .to_vec();
    args.extend(driver_flags());
    // Path on the host, path in the pod, and whether it is read-only.
    let directories = [
        (
            "/var/lib/kubelet/device-plugins",
            "/var/lib/kubelet/device-plugins",
            false,
        ),
        ("/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pod-resources", true),
        ("/var/run/cdi", "/var/run/cdi", false),
        ("/var/lib/kai", "/var/lib/kai", false),
        ("/", "/host", true),
    ];
    let directories = directories.iter().enumerate();
    let volumes: Value = directories
        .clone()
        .map(|(at, (path, _, _))| json!({ "name": format!("host-{at}"), "hostPath": { "path": path } }))
        .collect();
    let mounts: Value = directories
        .map(|(at, (_, inside, read_only))| json!({ "name": format!("host-{at}"), "mountPath": inside, "readOnly": read_only }))
        .collect();
    let locked = json!({
        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "runAsUser": 0, "capabilities": { "drop": ["ALL"] },
    });
    pod(
        "kai-node-agent",
        json!({
            "args": args,
            "env": [{ "name": "NODE_NAME", "valueFrom": { "fieldRef": { "fieldPath": "spec.nodeName" } } }],
            "readinessProbe": ready_at(9400),
            "securityContext": locked,
            "volumeMounts": mounts,
        }),
        volumes,
    )
}

fn ready_at(port: u16) -> Value {
    json!({ "httpGet": { "path": "/readyz", "port": port }, "periodSeconds": 1 })
}

/// A pod in kai's namespace with the name of its account.
fn pod(account: &str, mut container: Value, volumes: Value) -> Value {
    container["name"] = "main".into();
    container["image"] = "localhost/kai:test".into();
    container["imagePullPolicy"] = "Never".into();
    json!({
        "metadata": { "name": account },
        "spec": {
            "nodeName": NAME, "serviceAccountName": account, "containers": [container], "volumes": volumes,
            "terminationGracePeriodSeconds": 5,
        },
    })
}
