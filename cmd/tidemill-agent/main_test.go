//go:build linux

package main

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemill.dev/internal/runs/agent"
)

const patience = 2 * time.Minute

// asAgent is the variable that makes the test binary the agent.
const asAgent = "TIDEMILL_AGENT_TEST"

func TestMain(m *testing.M) {
	if os.Getenv(asAgent) != "" {
		main()
	}
	os.Exit(m.Run())
}

// fakeGateway is a gateway that gives attempts scripts to run.
type fakeGateway struct {
	*testing.T
	server *httptest.Server

	mu       sync.Mutex
	changed  chan struct{}
	scripts  map[string]string // commands, by attempt
	outcomes map[string]string
	reasons  map[string]string
	logs     map[string]string
	next     []string
}

func newFakeGateway(t *testing.T) *fakeGateway {
	d := &fakeGateway{T: t, changed: make(chan struct{}), scripts: map[string]string{}, outcomes: map[string]string{}, reasons: map[string]string{}, logs: map[string]string{}}
	d.server = httptest.NewServer(d)
	t.Cleanup(d.server.Close)
	return d
}

func (d *fakeGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the agent has ended
	}
	name, route, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/agent/v1/attempts/"), "/")
	d.mu.Lock()
	defer d.mu.Unlock()
	if r.Header.Get("Authorization") != "Bearer token of "+name {
		w.WriteHeader(http.StatusUnauthorized)
		return
	}
	var answer any = struct{}{}
	switch route {
	case "":
		answer = map[string]any{"run": "run", "recipe": "r", "key": "k", "attempt": 1, "causes": 1, "event": struct{}{}, "beatSeconds": 0.05,
			"plan": map[string]any{"image": "trainer:3", "command": []string{"sh", "-c", d.scripts[name]}, "grace": 10e9, "maxLog": 1 << 20, "maxOutput": 1 << 20}}
	case "finish":
		var said struct{ Outcome, Reason string }
		_ = json.Unmarshal(body, &said)
		d.outcomes[name], d.reasons[name] = said.Outcome, said.Reason
	case "log":
		d.logs[name] += string(body)
	case "next":
		if len(d.next) == 0 {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		answer = map[string]any{"attempt": d.next[0], "token": "token of " + d.next[0]}
		d.next = d.next[1:]
	}
	_ = json.NewEncoder(w).Encode(answer)
	close(d.changed)
	d.changed = make(chan struct{})
}

// script sets the command of an attempt.
func (d *fakeGateway) script(name, text string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.scripts[name] = text
}

// reports returns all reports and logs so far.
func (d *fakeGateway) reports() (outcomes, reasons, logs map[string]string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return maps.Clone(d.outcomes), maps.Clone(d.reasons), maps.Clone(d.logs)
}

func (d *fakeGateway) until(what string, is func() bool) {
	d.Helper()
	for late := time.After(patience); ; {
		d.mu.Lock()
		done, changed := is(), d.changed
		d.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-late:
			d.Fatalf("waited in vain until %s", what)
		}
	}
}

// agent returns the agent of an attempt as a process that has not started.
func (d *fakeGateway) agent(name string, more ...string) *exec.Cmd {
	work := filepath.Join(d.TempDir(), "work")
	cmd := exec.Command(os.Args[0], "run")
	cmd.Env = append(os.Environ(), append([]string{asAgent + "=yes", agent.EnvGateway + "=" + d.server.URL, agent.EnvAttempt + "=" + name,
		agent.EnvToken + "=token of " + name, agent.EnvWork + "=" + work, agent.EnvPod + "=pod-1", agent.EnvNode + "=node-1"}, more...)...)
	return cmd
}

// contained runs a process as the first in its own pid namespace, as in a container.
func contained(t *testing.T, cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Getuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getgid(), Size: 1}}
	}
	probe := exec.Command("true")
	probe.SysProcAttr = cmd.SysProcAttr
	if err := probe.Run(); err != nil {
		t.Skipf("this system lets nobody have processes of their own: %v", err)
	}
}

// waitForExit waits for the agent and returns its exit status.
func waitForExit(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	late := time.AfterFunc(patience, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	err := cmd.Wait()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return cmd.ProcessState.ExitCode()
}

func start(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
}

// The agent is the first process of a container. It does its attempt and passes the command's
// output on. Its remaining processes and files are removed before a second attempt.
func TestAContainer(t *testing.T) {
	d := newFakeGateway(t)
	marks := t.TempDir()
	d.script("one-1", `echo hello; echo oh >&2; echo x > "$TIDEMILL_OUT/../../left"; for i in 1 2 3; do (setsid sh -c 'trap "" TERM; while :; do echo alive >> `+marks+`/alive; sleep 0.02; done' >/dev/null 2>&1 &) ; done
		while ! test -s `+marks+`/alive; do sleep 0.02; done; (true &); exit 3`)
	d.script("two-1", `test -e "$TIDEMILL_OUT/../../left" && echo the file is left; mv `+marks+`/alive `+marks+`/then; sleep 0.3; test -e `+marks+`/alive && echo the processes are left; env | grep TIDEMILL_AGENT; true`)
	d.mu.Lock()
	d.next = []string{"two-1"}
	d.mu.Unlock()
	cmd := d.agent("one-1", agent.EnvLinger+"=1m", "TMPDIR="+t.TempDir())
	contained(t, cmd)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	start(t, cmd)
	code := waitForExit(t, cmd)
	outcomes, reasons, logs := d.reports()
	if code != exitTold || outcomes["one-1"] != "failed" || outcomes["two-1"] != "succeeded" {
		t.Errorf("it exits with %d; %v %v\n%s", code, outcomes, reasons, errs.String())
	}
	if logs["two-1"] != "" {
		t.Errorf("the second found: %s", logs["two-1"])
	}
	if out.String() != "hello\n" || !strings.Contains(errs.String(), "oh\n") {
		t.Errorf("it says %q and %q", out.String(), errs.String())
	}
}

// The command runs as the agent's user, and cannot find the attempt's token. With it, the command
// could take the pod's next attempt.
func TestTheCommandDoesNotFindTheToken(t *testing.T) {
	// The name is random, because agents of other tests may not have called hideProcess yet.
	d, name := newFakeGateway(t), "run"+rand.Text()+"-1"
	d.script(name, `grep -lsz "^TIDEMILL_AGENT_TOKEN=token of `+name+`\$" /proc/[0-9]*/environ
		cat /proc/self/environ > /dev/null || echo "not even its own is read"; true`)
	cmd := d.agent(name)
	dir := t.TempDir()
	if os.Getuid() == 0 { // root may trace every process, but a pod of a run may not
		contained(t, cmd)
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: 65532, Gid: 65532}
		openTo(t, dir)
		if err := os.Chown(dir, 65532, 65532); err != nil {
			t.Fatal(err)
		}
	}
	program, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	cmd.Path = filepath.Join(dir, "agent")
	if err := os.WriteFile(cmd.Path, program, 0o755); err != nil {
		t.Fatal(err)
	}
	cmd.Env = append(cmd.Env, agent.EnvWork+"="+filepath.Join(dir, "work"), "TMPDIR="+dir)
	var errs strings.Builder
	cmd.Stderr = &errs
	start(t, cmd)
	code := waitForExit(t, cmd)
	outcomes, _, logs := d.reports()
	if code != exitTold || outcomes[name] != "succeeded" || logs[name] != "" {
		t.Errorf("it exits with %d, %v; the command says\n%s\n%s", code, outcomes, logs[name], errs.String())
	}
}

// openTo makes a folder of this test, and its parents, accessible to every user.
func openTo(t *testing.T, dir string) {
	t.Helper()
	for dir != filepath.Clean(os.TempDir()) && dir != "/" {
		if err := os.Chmod(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		dir = filepath.Dir(dir)
	}
}

// Orphans are reaped while the command runs.
func TestOrphansAreBuried(t *testing.T) {
	d := newFakeGateway(t)
	marks := t.TempDir()
	// The test counts children of the first process from outside, because their pids differ there.
	d.script("one-1", `for i in 1 2 3 4 5; do (setsid true &); done; echo born; while ! test -e `+marks+`/go; do sleep 0.02; done`)
	cmd := d.agent("one-1")
	contained(t, cmd)
	start(t, cmd)
	d.until("they are born", func() bool { return strings.Contains(d.logs["one-1"], "born") })
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(patience); zombiesOf(t, cmd.Process.Pid) > 0; {
		select {
		case <-tick.C:
		case <-late:
			t.Fatal("there are zombies")
		}
	}
	if err := os.WriteFile(filepath.Join(marks, "go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	code := waitForExit(t, cmd)
	if outcomes, _, _ := d.reports(); code != exitTold || outcomes["one-1"] != "succeeded" {
		t.Errorf("it exits with %d; %v", code, outcomes)
	}
}

// zombiesOf counts the zombie children of a process.
func zombiesOf(t *testing.T, parent int) (n int) {
	all, err := os.ReadDir("/proc")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		text, err := os.ReadFile("/proc/" + e.Name() + "/stat")
		if err != nil {
			continue // not a process, or one that has ended
		}
		_, rest, _ := strings.Cut(string(text), ") ")
		if fields := strings.Fields(rest); len(fields) > 1 && fields[0] == "Z" && fields[1] == strconv.Itoa(parent) {
			n++
		}
	}
	return n
}

// If the pod gets SIGTERM, the command saves and exits, and the agent reports that.
func TestAskedToLeave(t *testing.T) {
	for _, first := range []bool{true, false} {
		d := newFakeGateway(t)
		d.script("one-1", `trap 'echo saved; exit 0' TERM; echo at work; while :; do sleep 0.02; done`)
		cmd := d.agent("one-1", agent.EnvGrace+"=40s", agent.EnvLinger+"=1m")
		if first {
			contained(t, cmd)
		}
		start(t, cmd)
		d.until("it is at work", func() bool { return strings.Contains(d.logs["one-1"], "at work") })
		if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		code := waitForExit(t, cmd)
		if outcomes, _, logs := d.reports(); code != exitTold || outcomes["one-1"] != "left" || !strings.Contains(logs["one-1"], "saved") {
			t.Errorf("it exits with %d; %v, %s", code, outcomes, logs["one-1"])
		}
	}
}

// The exit code says how the agent ended.
func TestExitCodes(t *testing.T) {
	d := newFakeGateway(t)
	for what, c := range map[string]struct {
		args []string
		env  []string
		code int
	}{
		"nothing to do":     {nil, nil, exitMisused},
		"something else":    {[]string{"walk"}, nil, exitMisused},
		"no attempt":        {[]string{"run"}, []string{agent.EnvAttempt + "="}, exitMisused},
		"no such part":      {[]string{"run"}, []string{agent.EnvPart + "=chief"}, exitMisused},
		"no such index":     {[]string{"run"}, []string{agent.EnvIndex + "=x"}, exitMisused},
		"not a duration":    {[]string{"run"}, []string{agent.EnvLinger + "=soon"}, exitMisused},
		"another's token":   {[]string{"run"}, []string{agent.EnvToken + "=stolen"}, exitUntold},
		"nowhere to put it": {[]string{"install", "/nowhere/at/all"}, nil, exitUntold},
	} {
		cmd := d.agent("one-1", c.env...)
		cmd.Args = append(cmd.Args[:1], c.args...)
		var errs strings.Builder
		cmd.Stderr = &errs
		start(t, cmd)
		if code := waitForExit(t, cmd); code != c.code || !strings.HasPrefix(errs.String(), "tidemill-agent: ") {
			t.Errorf("%s: it exits with %d: %s", what, code, errs.String())
		}
	}
	if code := codeOf(fmt.Errorf("x: %w", agent.ErrSuperseded)); code != exitSuperseded {
		t.Errorf("superseded is %d", code)
	}
	if code := codeOf(&exitStatus{137}); code != 137 {
		t.Errorf("the agent's own end is %d", code)
	}
	if err := run(context.Background(), nil); !errors.Is(err, errMisused) {
		t.Error(err)
	}
}

// The program is copied whole, is executable, and replaces an older copy.
func TestInstall(t *testing.T) {
	dir := t.TempDir()
	at := filepath.Join(dir, "agent")
	if err := os.WriteFile(at, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := install(dir); err != nil {
			t.Fatal(err)
		}
	}
	is, err := os.Stat(at)
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.Stat(self)
	if err != nil {
		t.Fatal(err)
	}
	if is.Mode().Perm() != 0o755 || is.Size() != want.Size() {
		t.Errorf("%v, %d bytes; want %d", is.Mode(), is.Size(), want.Size())
	}
	if all, _ := os.ReadDir(dir); len(all) != 1 {
		t.Errorf("there is also %v", all)
	}
}
