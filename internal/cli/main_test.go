package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev/examples/demo"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/runs/local"
	"tidemill.dev/internal/scoring/infer/sandbox"
)

// asMain makes the test binary act as the program, for tests that kill a process.
const asMain = "TEST_AS_TIDEMILL"

func TestMain(m *testing.M) {
	if len(os.Args) == 2 && (os.Args[1] == local.GuardArgument || os.Args[1] == demo.Trainer) { // calls of the program to itself
		os.Exit(report(os.Stderr, run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)))
	}
	if len(os.Args) == 3 && os.Args[1] == sandbox.Argument {
		os.Exit(report(os.Stderr, sandbox.Child(os.Args[2])))
	}
	if os.Getenv(asMain) != "" {
		Main()
		return
	}
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); strings.HasPrefix(name, "TIDEMILL_") {
			os.Unsetenv(name)
		}
	}
	os.Setenv(sandbox.InTests, "yes")
	os.Exit(m.Run())
}

// patience ends tests that hang; it measures nothing.
const patience = 2 * time.Minute

// outcome is the output and the exit status of a call.
type outcome struct {
	out, err string
	code     int
}

// call runs the program in this process.
func call(t *testing.T, stdin string, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, stderr syncBuffer // warnings about missing answers come from another goroutine
	code := report(&stderr, run(ctx, args, strings.NewReader(stdin), &out, &stderr))
	return outcome{out.String(), oneWorry.ReplaceAllString(stderr.String(), ""), code}
}

// oneWorry matches a warning about a missing answer. Such a warning depends on the machine's speed,
// so call removes it. Other tests check the warnings.
var oneWorry = regexp.MustCompile(fmt.Sprintf(`(?m)^(No answer|No answer from .*) for %s; .*\n`, show.QuietAfter))

// parsed is a call that was parsed but not executed.
type parsed struct {
	name    string // full name of the command
	program command.Program
	args    []string
}

// parse parses a call as the program does.
func parse(args []string, getenv func(string) string) (p parsed, err error) {
	s := &command.Session{Stdin: strings.NewReader(""), Stdout: io.Discard, Stderr: io.Discard, Getenv: getenv}
	err = everything().Execute(context.Background(), s, args, func(_ context.Context, c *command.Command, program command.Program, args []string) error {
		if w, is := program.(*command.Watching); is {
			program = w.Program
		}
		p = parsed{c.Name, program, args}
		return nil
	})
	return p, err
}

// ok is call for commands that must succeed. It returns their output.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	o := call(t, "", args...)
	if o.code != 0 {
		t.Fatalf("tidemill %s: exit %d\n%s%s", strings.Join(args, " "), o.code, o.out, o.err)
	}
	return o.out
}

// server is a tidemill up.
type server struct {
	platform.Running
	dir            string
	stdout, stderr *syncBuffer
	child          *exec.Cmd     // nil if it runs in this process
	stop           func()        // stops it as Ctrl-C does
	done           chan struct{} // closed when it has ended
	err            error         // its result; read it after done
}

func upArgs(dir string, more []string) []string {
	return append([]string{"up", "--data", dir, "--kafka-port", "0", "--redis-port", "0", "--listen", "127.0.0.1:0"}, more...)
}

// startUp runs up in this process.
func startUp(t *testing.T, dir string, more ...string) *server {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	s := &server{dir: dir, stdout: &syncBuffer{}, stderr: &syncBuffer{}, stop: stop, done: make(chan struct{})}
	go func() {
		defer close(s.done)
		s.err = run(ctx, upArgs(dir, more), strings.NewReader(""), s.stdout, s.stderr)
	}()
	s.await(t)
	return s
}

// spawnUp runs up as a separate process.
func spawnUp(t *testing.T, dir string, more ...string) *server {
	t.Helper()
	s := &server{dir: dir, stdout: &syncBuffer{}, stderr: &syncBuffer{}, done: make(chan struct{})}
	s.child = exec.Command(os.Args[0], upArgs(dir, more)...)
	s.child.Env = append(os.Environ(), asMain+"=1")
	s.child.Stdout, s.child.Stderr = s.stdout, s.stderr
	s.stop = func() { _ = s.child.Process.Signal(os.Interrupt) }
	if err := s.child.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(s.done)
		s.err = s.child.Wait()
	}()
	s.await(t)
	return s
}

func (s *server) await(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		s.stop()
		<-s.done
	})
	pid := os.Getpid()
	if s.child != nil {
		pid = s.child.Process.Pid
	}
	eventually(t, func() bool {
		select {
		case <-s.done:
			t.Fatalf("up ended: %v\n%s", s.err, s.stderr)
		default:
		}
		r, found, err := platform.Find(s.dir)
		s.Running = r
		return err == nil && found && r.PID == pid
	})
}

// kill kills the process with SIGKILL.
func (s *server) kill(t *testing.T) {
	t.Helper()
	if err := s.child.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.done
}

// get returns the status and the body of a page.
func (s *server) get(t *testing.T, path string) (int, string) {
	t.Helper()
	return s.ask(t, http.MethodGet, path, "", "")
}

// ask returns the status and the body of an answer.
func (s *server) ask(t *testing.T, method, path, media, body string) (int, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "http://"+s.HTTP+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", media)
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(text)
}

// eventually polls a condition of another process or of a file's time. Virtual time does not work
// for these.
func eventually(t *testing.T, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	late := time.After(patience)
	for !yes() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited %s in vain", patience)
		}
	}
}

func mention(t *testing.T, what, text string, wanted ...string) {
	t.Helper()
	for _, w := range wanted {
		if !strings.Contains(text, w) {
			t.Errorf("%s lacks %q:\n%s", what, w, text)
		}
	}
}

func leave(t *testing.T, text string, path ...string) string {
	t.Helper()
	name := filepath.Join(path...)
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func TestReportExits(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int
		says string
	}{
		{nil, 0, ""},
		{errors.New("open it: it is shut"), exitFailed, "tidemill: open it: it is shut\n"},
		{command.Usagef("no"), exitUsage, "tidemill: no\n"},
		{command.ErrReported, exitFailed, ""},
	} {
		var b bytes.Buffer
		if code := report(&b, c.err); code != c.code || b.String() != c.says {
			t.Errorf("report(%v) = %d %q, want %d %q", c.err, code, b.String(), c.code, c.says)
		}
	}
}
