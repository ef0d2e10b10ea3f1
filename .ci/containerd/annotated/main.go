// Command annotated runs a container through the CRI with CDI devices named by annotation alone, as kubelets did before the CRI had a field
// for them, and prints the output of the container. Today's kubelets send both, so they can't show that the annotation is enough.
//
//	annotated IMAGE LOGS KEY=VALUE COMMAND...
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	socket = "unix:///run/containerd/containerd.sock"
	// A limit for a runtime that hangs.
	deadline = 2 * time.Minute
	glance   = 100 * time.Millisecond
)

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: annotated IMAGE LOGS KEY=VALUE COMMAND...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

func run(image, logs, annotation string, command []string) error {
	key, value, _ := strings.Cut(annotation, "=")
	ctx, cancel := context.WithTimeout(context.Background(), deadline)
	defer cancel()
	connection, err := grpc.NewClient(socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	runtime := cri.NewRuntimeServiceClient(connection)

	host := &cri.NamespaceOption{Network: cri.NamespaceMode_NODE}
	sandbox := &cri.PodSandboxConfig{
		Metadata:     &cri.PodSandboxMetadata{Name: "annotated", Namespace: "default", Uid: "annotated"},
		LogDirectory: logs,
		Linux:        &cri.LinuxPodSandboxConfig{SecurityContext: &cri.LinuxSandboxSecurityContext{NamespaceOptions: host}},
	}
	made, err := runtime.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{Config: sandbox})
	if err != nil {
		return err
	}
	defer runtime.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: made.PodSandboxId})
	container := &cri.ContainerConfig{
		Metadata:    &cri.ContainerMetadata{Name: "main"},
		Image:       &cri.ImageSpec{Image: image},
		Command:     command,
		Annotations: map[string]string{key: value},
		LogPath:     "annotated.log",
		Linux:       &cri.LinuxContainerConfig{SecurityContext: &cri.LinuxContainerSecurityContext{NamespaceOptions: host}},
	}
	created, err := runtime.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: made.PodSandboxId, Config: container, SandboxConfig: sandbox})
	if err != nil {
		return err
	}
	if _, err := runtime.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: created.ContainerId}); err != nil {
		return err
	}
	for {
		status, err := runtime.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: created.ContainerId})
		if err != nil {
			return err
		}
		if status.Status.State == cri.ContainerState_CONTAINER_EXITED {
			break
		}
		time.Sleep(glance)
	}
	said, err := os.ReadFile(filepath.Join(logs, "annotated.log"))
	fmt.Print(string(said))
	return err
}
