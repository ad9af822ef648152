package sandbox

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// program writes a shell script that acts like e2e/cluster's program.
func program(t *testing.T, script string) string {
	t.Helper()
	if _, err := os.Stat("/bin/sh"); err != nil {
		t.Skip("there is no shell to play the program: ", err)
	}
	file := filepath.Join(t.TempDir(), "cluster")
	if err := os.WriteFile(file, []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	return file
}

// started runs the script as a test's sandbox.
func started(t *testing.T, script string) (*Sandbox, error) {
	t.Helper()
	file := program(t, script)
	c, err := start(file, "", upArguments(Options{Name: "mine", GPUs: 2}), t.Output())
	if err != nil {
		t.Fatal(err)
	}
	s := &Sandbox{name: "mine", child: c}
	line, err := c.ready(t.Context())
	if err == nil {
		err = json.Unmarshal(line, s)
	}
	return s, err
}

const ready = `echo '{"kubeconfig":"/k","node":"10.231.0.2","host":"10.231.0.1","ingress":"http://10.231.0.2:31080","domain":"knative.test"}'
`

func TestSandboxEndsWithItsInput(t *testing.T) {
	s, err := started(t, ready+"cat >/dev/null\n")
	if err != nil {
		t.Fatal(err)
	}
	if s.Node != "10.231.0.2" || s.Host != "10.231.0.1" || s.Kubeconfig != "/k" || s.Domain != "knative.test" || s.Ingress != "http://10.231.0.2:31080" {
		t.Errorf("it is at %+v", s)
	}
	select {
	case <-s.Ended():
		t.Error("it has ended though nobody closed it")
	default:
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	<-s.Ended()
}

func TestSandboxThatEndsByItself(t *testing.T) {
	s, err := started(t, ready+"exit 1\n")
	if err != nil {
		t.Fatal(err)
	}
	<-s.Ended()
	if err := s.Close(); err == nil {
		t.Error("nobody says that it had ended")
	}
}

func TestSandboxThatDoesNotComeUp(t *testing.T) {
	s, err := started(t, "exit 3\n")
	if err == nil || errors.Is(err, ErrCannot) {
		t.Errorf("waiting for it: %v", err)
	}
	if err := s.Close(); !errors.Is(err, ErrCannot) {
		t.Errorf("where it cannot be had: %v", err)
	}
	s, err = started(t, "exit 1\n")
	if left := s.Close(); err == nil || errors.Is(left, ErrCannot) {
		t.Errorf("where it fails: %v, %v", err, left)
	}
}

func TestReadyEndsWithItsContext(t *testing.T) {
	c, err := start(program(t, "cat >/dev/null\n"), "", nil, t.Output())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.ready(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("the error is %v", err)
	}
	if err := c.close(); err != nil {
		t.Error(err)
	}
}

func TestImport(t *testing.T) {
	s, err := started(t, `case $1 in
images) echo "$@" >"$(dirname "$0")/asked"; test "$5" = good.tar || { echo it is no image >&2; exit 1; };;
*) `+ready+`cat >/dev/null;;
esac
`)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Import(t.Context(), "good.tar"); err != nil {
		t.Error(err)
	}
	asked, err := os.ReadFile(filepath.Join(filepath.Dir(s.child.program), "asked"))
	if got := strings.TrimSpace(string(asked)); got != "images import --name mine good.tar" {
		t.Errorf("it asked for %q, %v", got, err)
	}
	if err := s.Import(t.Context(), "bad.tar"); err == nil || !strings.Contains(err.Error(), "it is no image") {
		t.Errorf("the error is %v", err)
	}
}

func TestGivenCluster(t *testing.T) {
	t.Setenv("KUBECONFIG", "/somebody/else's")
	t.Setenv("TIDEMILL_CLUSTER_HOST", "192.0.2.1")
	s, err := Start(t.Context(), Options{Name: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Own() || s.Kubeconfig != "/somebody/else's" || s.Host != "192.0.2.1" || s.Node != "" || s.Ended() != nil {
		t.Errorf("it is at %+v", s)
	}
	if err := s.Import(t.Context(), "good.tar"); err == nil || !strings.Contains(err.Error(), "TIDEMILL_IMAGE") {
		t.Errorf("importing says %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestUpArguments(t *testing.T) {
	for want, o := range map[string]Options{
		"up --name a --gpus 0":               {Name: "a"},
		"up --name b --gpus 2 --bare --kwok": {Name: "b", GPUs: 2, Bare: true, Kwok: true},
	} {
		if got := strings.Join(upArguments(o), " "); got != want {
			t.Errorf("%+v is %q", o, got)
		}
	}
}

// TestBuild builds the real program and calls it.
func TestBuild(t *testing.T) {
	if testing.Short() {
		t.Skip("it builds a program")
	}
	// The program goes to a folder of the test, but its build cache is the usual one.
	goCache, err := exec.Command("go", "env", "GOCACHE").Output()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOCACHE", strings.TrimSpace(string(goCache)))
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	file, dir, err := build(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var said bytes.Buffer
	c, err := start(file, dir, []string{"up"}, &said)
	if err != nil {
		t.Fatal(err)
	}
	<-c.ended
	if !strings.Contains(said.String(), "--name") && !strings.Contains(said.String(), "KUBECONFIG") {
		t.Errorf("the program says %q", said.String())
	}
}
