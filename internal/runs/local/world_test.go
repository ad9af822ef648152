//go:build linux

package local

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/internal/runs/scheduler"
)

// The gateway's side of the protocol is written out here as an agent sees it on the wire, because
// it is the contract of another package.

const patience = 2 * time.Minute

// asWhat is a variable that makes the test binary act as the guard or the launcher of a test.
const asWhat = "TIDEMILL_LOCAL_TEST_AS"

func TestMain(m *testing.M) {
	switch os.Getenv(asWhat) {
	case "guard":
		exitOn(Guard(context.Background()))
	case "launcher":
		exitOn(beLauncher())
	}
	os.Exit(m.Run())
}

func exitOn(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// guardCommand runs the test binary as a guard.
func guardCommand() []string { return []string{"env", asWhat + "=guard", os.Args[0]} }

// fakeGateway is a gateway that gives each attempt its plan, and keeps its last report.
type fakeGateway struct {
	server *httptest.Server

	mu      sync.Mutex
	changed chan struct{}
	plans   map[string]tidemill.Plan
	words   map[string]lastReport
	logs    map[string]string
	beats   map[string]int
	parts   map[string]string // state of each worker and server, by attempt and part
}

// lastReport holds the tested fields of an attempt's last report.
type lastReport struct {
	Outcome   tidemill.Outcome
	Reason    string
	Permanent bool
	Where     tidemill.Where
	Result    tidemill.Result
}

func newDoor(t *testing.T) *fakeGateway {
	d := &fakeGateway{changed: make(chan struct{}), plans: map[string]tidemill.Plan{}, words: map[string]lastReport{}, logs: map[string]string{}, beats: map[string]int{}, parts: map[string]string{}}
	d.server = httptest.NewServer(d)
	t.Cleanup(d.server.Close)
	return d
}

func (d *fakeGateway) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	name, route, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/agent/v1/attempts/"), "/")
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return // the client has closed the connection
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	run, number, _ := tidemill.CutAttemptName(name)
	if d.isOver(name) && route != "" {
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(http.StatusConflict)
		answer(w, map[string]any{"type": "https://tidemill.dev/problems/superseded", "title": "it has ended", "status": http.StatusConflict})
		return
	}
	switch route {
	case "":
		answer(w, map[string]any{"run": run, "recipe": "r", "key": "k", "attempt": number, "causes": 1, "event": struct{}{}, "plan": d.plans[name], "beatSeconds": 0.05})
	case "finish":
		var said lastReport
		if json.Unmarshal(body, &said) == nil {
			d.words[name] = said
		}
		answer(w, struct{}{})
	case "log":
		d.logs[name] += string(body)
	case "beat":
		d.beats[name]++
		answer(w, d.gather(name, r.URL.Query()))
	case "objects/missing":
		answer(w, struct{}{}) // no object is missing
	default:
		answer(w, map[string]any{"tree": "t"})
	}
	close(d.changed)
	d.changed = make(chan struct{})
}

// isOver reports whether an attempt of several workers has reported its end.
func (d *fakeGateway) isOver(name string) bool {
	_, told := d.words[name]
	return told && d.many(name) > 1
}

func (d *fakeGateway) many(name string) int {
	p := d.plans[name]
	n := max(1, p.Workers)
	if p.Servers != nil {
		n += p.Servers.Count
	}
	return n
}

// gather stores the report of one worker or server, and returns the state of the others.
func (d *fakeGateway) gather(name string, q url.Values) map[string]bool {
	if !q.Has("part") {
		return nil
	}
	who := name + " " + q.Get("part") + q.Get("index")
	if d.parts[who] == "" && q.Get("ready") == "true" {
		d.parts[who] = "ready"
	}
	if q.Get("over") == "true" {
		d.parts[who] = "over"
	}
	ready, over := 0, 0
	for other, state := range d.parts {
		if strings.HasPrefix(other, name+" ") {
			ready++
			if state == "over" && !strings.HasSuffix(other, " worker0") {
				over++
			}
		}
	}
	return map[string]bool{"all": ready == d.many(name), "end": d.parts[name+" worker0"] == "over", "alone": over == d.many(name)-1}
}

func answer(w io.Writer, v any) { _ = json.NewEncoder(w).Encode(v) }

func (d *fakeGateway) until(t *testing.T, what string, is func() bool) {
	t.Helper()
	late := time.After(patience)
	for {
		d.mu.Lock()
		done, changed := is(), d.changed
		d.mu.Unlock()
		if done {
			return
		}
		select {
		case <-changed:
		case <-late:
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// word waits for an attempt's last report.
func (d *fakeGateway) word(t *testing.T, name string) (is lastReport) {
	t.Helper()
	d.until(t, name+" has told its end", func() (ok bool) { is, ok = d.words[name]; return ok })
	return is
}

// waitForLog waits until a text is in the log of an attempt.
func (d *fakeGateway) waitForLog(t *testing.T, name, text string) {
	t.Helper()
	d.until(t, name+" says "+text, func() bool { return strings.Contains(d.logs[name], text) })
}

// plan makes an attempt that runs a script.
func (d *fakeGateway) plan(t *testing.T, name, script string, change func(*tidemill.Plan)) scheduler.Attempt {
	t.Helper()
	p := tidemill.Plan{Dir: t.TempDir(), Command: []string{"sh", "-c", script}, Deadline: patience, Grace: 10 * time.Second, MaxLog: 1 << 20, MaxOutput: 1 << 20}
	if change != nil {
		change(&p)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.plans[name] = p
	run, number, ok := tidemill.CutAttemptName(name)
	if !ok {
		t.Fatalf("%q is no attempt", name)
	}
	return scheduler.Attempt{Name: name, Run: run, Number: number, Token: "t", Plan: p}
}

func (d *fakeGateway) open(t *testing.T, dir string, change func(*Options)) *Launcher {
	t.Helper()
	o := Options{Gateway: d.server.URL, Dir: dir, Secrets: filepath.Join(dir, "secrets"), Guard: guardCommand()}
	if change != nil {
		change(&o)
	}
	l, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := l.Close(ctx); err != nil {
			t.Error(err)
		}
	})
	return l
}

func launch(t *testing.T, l *Launcher, all ...scheduler.Attempt) {
	t.Helper()
	for _, a := range all {
		if err := l.Launch(t.Context(), a); err != nil {
			t.Fatal(err)
		}
	}
}

// dead waits until a process has ended; after SIGKILL, that takes a moment.
func dead(t *testing.T, pid int) {
	t.Helper()
	late := time.After(patience)
	for isAlive(pid) {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatalf("process %d is still alive", pid)
		}
	}
}

func isAlive(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return false
	}
	_, rest, _ := strings.Cut(string(text), ") ")
	return !strings.HasPrefix(rest, "Z") && !strings.HasPrefix(rest, "X")
}

// ignores waits until a process ignores the signals; the process may have only just started.
func ignores(t *testing.T, pid int, all ...syscall.Signal) {
	t.Helper()
	for late := time.After(patience); ; {
		mask := ignoredBy(t, pid)
		if !slices.ContainsFunc(all, func(s syscall.Signal) bool { return mask&(1<<(s-1)) == 0 }) {
			return
		}
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatalf("process %d heeds some of %v", pid, all)
		}
	}
}

// ignoredBy returns the signals that a process ignores, one bit each.
func ignoredBy(t *testing.T, pid int) (mask uint64) {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if bits, ok := strings.CutPrefix(line, "SigIgn:"); ok {
			if mask, err = strconv.ParseUint(strings.TrimSpace(bits), 16, 64); err != nil {
				t.Fatal(err)
			}
		}
	}
	return mask
}

// pid reads the process id that a script has written.
func pid(t *testing.T, name string) int {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// beLauncher is the main function of a launcher process: it launches one attempt, and waits until
// it is killed.
func beLauncher() error {
	var d struct {
		Gateway, Dir string
		Attempt      scheduler.Attempt
	}
	in := json.NewDecoder(os.Stdin)
	if err := in.Decode(&d); err != nil {
		return err
	}
	l, err := Open(context.Background(), Options{Gateway: d.Gateway, Dir: d.Dir, Guard: guardCommand()})
	if err != nil {
		return err
	}
	if err := l.Launch(context.Background(), d.Attempt); err != nil {
		return err
	}
	fmt.Println(l.guard.cmd.Process.Pid)
	select {} // the test kills this process
}

// startOther starts a launcher in its own process, and returns its guard's pid.
func (d *fakeGateway) startOther(t *testing.T, dir string, a scheduler.Attempt) (cmd *exec.Cmd, guard int) {
	t.Helper()
	cmd = exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), asWhat+"=launcher")
	cmd.Stderr = os.Stderr
	text, err := json.Marshal(map[string]any{"Gateway": d.server.URL, "Dir": dir, "Attempt": a})
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stdin = strings.NewReader(string(text))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	if guard, err = strconv.Atoi(strings.TrimSpace(line)); err != nil {
		t.Fatal(err)
	}
	return cmd, guard
}
