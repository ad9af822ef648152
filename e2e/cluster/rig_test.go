//go:build linux

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/e2e/cluster/internal/recipe"
)

// rig is this program, built, and its cache.
type rig struct {
	program string
	cache   recipe.Cache
}

// newRig skips where no sandbox is possible, and builds what is missing.
func newRig(t *testing.T) rig {
	t.Helper()
	program := filepath.Join(t.TempDir(), "cluster")
	must(t, exec.Command("go", "build", "-o", program, "."))
	var exit *exec.ExitError
	if said, err := exec.Command(program, "rights").CombinedOutput(); errors.As(err, &exit) && exit.ExitCode() == exitCannot {
		t.Skipf("%s", said)
	}
	cache := strings.TrimSpace(string(must(t, exec.Command(program, "build"))))
	return rig{program: program, cache: recipe.Cache(cache)}
}

func (r rig) command(args ...string) *exec.Cmd { return exec.Command(r.program, args...) }

// running is a cluster that a test has started.
type running struct {
	rig
	addresses
	name  string
	cmd   *exec.Cmd
	stdin io.Closer
	said  *bytes.Buffer // progress messages
}

func (r rig) up(t *testing.T, name string, flags ...string) *running {
	t.Helper()
	cmd := r.command(append([]string{"up", "--name", name}, flags...)...)
	var said bytes.Buffer
	cmd.Stderr = io.MultiWriter(t.Output(), &said)
	stdin, err := cmd.StdinPipe()
	check(t, err)
	stdout, err := cmd.StdoutPipe()
	check(t, err)
	check(t, cmd.Start())
	u := &running{rig: r, name: name, cmd: cmd, stdin: stdin, said: &said}
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			stdin.Close()
			cmd.Wait()
		}
	})
	line, err := bufio.NewReader(stdout).ReadBytes('\n')
	if err != nil {
		cmd.Wait()
		t.Fatalf("up said nothing: %v: %s", err, said.Bytes())
	}
	check(t, json.Unmarshal(line, &u.addresses))
	return u
}

func (u *running) kubectl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(string(u.cache), "bin", "kube"), append([]string{"kubectl", "--kubeconfig", u.Kubeconfig, "--cache-dir", filepath.Join(filepath.Dir(u.Kubeconfig), "discovered")}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	return strings.TrimSpace(string(must(t, cmd)))
}

// apply fills in a manifest and applies it.
func (u *running) apply(t *testing.T, manifest string, args ...any) {
	t.Helper()
	u.kubectl(t, fmt.Sprintf(manifest, args...), "apply", "--filename=-")
}

// wait waits for a condition of an object, in kubectl's words.
func (u *running) wait(t *testing.T, object, condition string, flags ...string) {
	t.Helper()
	args := append([]string{"wait", object, "--for=" + condition, "--timeout=120s"}, flags...)
	u.kubectl(t, "", args...)
}

// inPod runs the probe in a new pod to its end, and returns its output.
func (u *running) inPod(t *testing.T, namespace, name string, args ...string) string {
	t.Helper()
	list, err := json.Marshal(args)
	check(t, err)
	u.apply(t, `{apiVersion: v1, kind: Pod, metadata: {name: %s, namespace: %s}, spec: {restartPolicy: Never, containers: [{name: probe, image: "dev.local/probe:v1", args: %s}]}}`, name, namespace, list)
	ended := until(within(t), func() error {
		phase := u.kubectl(t, "", "get", "pod", name, "--namespace", namespace, "--output=jsonpath={.status.phase}")
		if phase != "Succeeded" && phase != "Failed" {
			return fmt.Errorf("the pod %s is %s", name, phase)
		}
		return nil
	})
	check(t, ended)
	return u.kubectl(t, "", "logs", name, "--namespace", namespace)
}

// importProbe builds the image of the probe and imports it into the node.
func (u *running) importProbe(t *testing.T) {
	t.Helper()
	binary, tar := filepath.Join(t.TempDir(), "probe"), filepath.Join(t.TempDir(), "probe.tar")
	build := exec.Command("go", "build", "-o", binary, "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	must(t, build)
	check(t, recipe.WriteImage(tar, recipe.ImageName("probe"), binary))
	must(t, u.command("images", "import", "--name", u.name, tar))
}

// within returns a context with a long timeout.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func must(t *testing.T, cmd *exec.Cmd) []byte {
	t.Helper()
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(cmd.Args, " "), err, complaint.Bytes())
	}
	return out.Bytes()
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
