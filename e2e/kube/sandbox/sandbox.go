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

// ErrCannot says that this machine cannot have a sandbox; the error around it
// says what is missing. A test skips with it.
var ErrCannot = errors.New("cannot bring up a cluster here")

// exitCannot is what e2e/cluster exits with where rights are missing.
const exitCannot = 3

// Options is what a sandbox is to have.
type Options struct {
	// Name tells sandboxes beside each other apart. A second one of the same
	// name waits for nothing and is refused.
	Name string
	// GPUs is how many nvidia.com/gpu the node says it has; none is 0.
	GPUs int
	// Bare is a cluster without Knative, which is there in a third of the time.
	Bare bool
	// Kwok runs kwok for nodes that the test makes up.
	Kwok bool
	// Progress is told in words what is being done; nil is standard error.
	Progress io.Writer
}

// Sandbox is a running cluster.
type Sandbox struct {
	// Kubeconfig is the file that says how to reach the API server, as its
	// administrator.
	Kubeconfig string `json:"kubeconfig"`
	// Node is the address of the node: node ports are served there.
	Node string `json:"node"`
	// Host is the address under which pods reach this machine. What listens
	// there is reached by them and by nobody else.
	Host string `json:"host"`
	// Ingress is the URL of the ingress of Knative Services; the Host header
	// says which is meant.
	Ingress string `json:"ingress"`
	// Domain is what public names of Knative Services end in.
	Domain string `json:"domain"`

	name  string
	child *child // nil where somebody else's cluster is used
}

// Start brings a sandbox up, or says where the cluster of KUBECONFIG is. It
// returns when Knative Services can be created. The sandbox outlives ctx:
// Close ends it.
func Start(ctx context.Context, o Options) (*Sandbox, error) {
	if file := os.Getenv("KUBECONFIG"); file != "" {
		return given(file, os.Getenv), nil
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

// given is the cluster that somebody else has brought up. What cannot be known
// from its file is asked of the environment.
func given(file string, getenv func(string) string) *Sandbox {
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

// Own says whether the cluster is a sandbox of ours, so that images can be
// imported and the node may be handled roughly.
func (s *Sandbox) Own() bool { return s.child != nil }

// Import gives the node the images of a tar: an OCI layout or what docker save
// writes.
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

// Ended is closed when the sandbox has ended, by Close or because one of its
// components did. It never is for a cluster of KUBECONFIG.
func (s *Sandbox) Ended() <-chan struct{} {
	if !s.Own() {
		return nil
	}
	return s.child.ended
}

// Close tears the sandbox down and waits until nothing of it is left. The
// error says when it had ended before, and why.
func (s *Sandbox) Close() error {
	if !s.Own() {
		return nil
	}
	return s.child.close()
}
