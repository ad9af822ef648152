package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
)

// ErrCannot means that this machine cannot have a sandbox. The error that wraps ErrCannot names the
// missing part. A test then skips.
var ErrCannot = errors.New("cannot bring up a cluster here")

// exitCannot is e2e/cluster's exit code if it lacks rights.
const exitCannot = 3

// Options are the properties of a sandbox.
type Options struct {
	// Name distinguishes sandboxes on one machine. A second sandbox with the same name is refused
	// at once.
	Name string
	// GPUs is the node's number of nvidia.com/gpu; 0 is none.
	GPUs int
	// Bare is a cluster without Knative, which starts in a third of the time.
	Bare bool
	// Kwok runs kwok, which simulates the nodes that the test creates.
	Kwok bool
	// Progress receives a text about each step; nil is standard error.
	Progress io.Writer
}

// Sandbox is a running cluster.
type Sandbox struct {
	// Kubeconfig is a file with the administrator's access to the API server.
	Kubeconfig string `json:"kubeconfig"`
	// Node is the address of the node, for node ports.
	Node string `json:"node"`
	// Host is the address under which pods reach this machine. Only pods can reach a server that
	// listens there.
	Host string `json:"host"`
	// Ingress is the URL of the ingress of Knative Services. The Host header chooses the Service.
	Ingress string `json:"ingress"`
	// Domain is the suffix of public names of Knative Services.
	Domain string `json:"domain"`

	name  string
	child *child // nil for a cluster of KUBECONFIG
}

// Start starts a sandbox, or returns the cluster of KUBECONFIG. It returns when Knative Services
// can be created. The sandbox outlives ctx; Close ends it.
func Start(ctx context.Context, o Options) (*Sandbox, error) {
	if file := os.Getenv("KUBECONFIG"); file != "" {
		return fromKubeconfig(file, os.Getenv), nil
	}
	program, dir, err := build(ctx)
	if err != nil {
		return nil, err
	}
	c, err := start(program, dir, upArguments(o), o.Progress)
	if err != nil {
		return nil, err
	}
	line, err := c.ready(ctx)
	if err != nil {
		return nil, errors.Join(err, c.close())
	}
	s := &Sandbox{name: o.Name, child: c}
	if err := json.Unmarshal(line, s); err != nil {
		return nil, errors.Join(fmt.Errorf("read what %s up said: %w", program, err), c.close())
	}
	return s, nil
}

// fromKubeconfig returns the cluster of KUBECONFIG. Values that the file does not have come from the
// environment.
func fromKubeconfig(file string, getenv func(string) string) *Sandbox {
	return &Sandbox{
		Kubeconfig: file,
		Node:       getenv("TIDEMILL_CLUSTER_NODE"),
		Host:       getenv("TIDEMILL_CLUSTER_HOST"),
		Ingress:    getenv("TIDEMILL_CLUSTER_INGRESS"),
		Domain:     getenv("TIDEMILL_CLUSTER_DOMAIN"),
	}
}

func upArguments(o Options) []string {
	args := []string{"up", "--name", o.Name, "--gpus", strconv.Itoa(o.GPUs)}
	if o.Bare {
		args = append(args, "--bare")
	}
	if o.Kwok {
		args = append(args, "--kwok")
	}
	return args
}

// Own reports whether the cluster is a sandbox of ours. Then a test may import images and disturb
// the node.
func (s *Sandbox) Own() bool { return s.child != nil }

// Import imports the images of a tar file into the node. The file is an OCI layout or the output of
// docker save.
func (s *Sandbox) Import(ctx context.Context, tar string) error {
	if !s.Own() {
		return errors.New("import images: this cluster is KUBECONFIG's; push the image to where it pulls from and name it in TIDEMILL_IMAGE")
	}
	var said bytes.Buffer
	cmd := exec.CommandContext(ctx, s.child.program, "images", "import", "--name", s.name, tar)
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("import %s into the sandbox %s: %w: %s", tar, s.name, err, bytes.TrimSpace(said.Bytes()))
	}
	return nil
}

// Ended is closed when the sandbox has ended, by Close or because one of its components did. For a
// cluster of KUBECONFIG, the channel is never closed.
func (s *Sandbox) Ended() <-chan struct{} {
	if !s.Own() {
		return nil
	}
	return s.child.ended
}

// Close tears the sandbox down and waits until all of its parts are gone. It returns an error with
// the reason if the sandbox had ended before.
func (s *Sandbox) Close() error {
	if !s.Own() {
		return nil
	}
	return s.child.close()
}
