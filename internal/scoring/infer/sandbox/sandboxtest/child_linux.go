package sandboxtest

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"tidemill.dev/internal/scoring/infer/native"
	"tidemill.dev/internal/scoring/infer/sandbox"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// Deadly is a number that ends the child if a model's first input has it.
const Deadly = -1e6

// Limits that a test may set. A child reads them when it starts, because it can open no file later.
const (
	Starts = "starts" // number of children that can still start
	Runs   = "runs"   // number of runs after which a child ends
)

// Child directs the children of one pool by files in a folder.
type Child struct {
	t      testing.TB
	dir    string
	killed int // process that Kill has ended last
}

// New returns a Child. Its children have no limits.
func New(t testing.TB) *Child { return &Child{t: t, dir: t.TempDir()} }

// Command is the command of the children. The package of the test has a TestBeTheChild, which calls Be.
func (c *Child) Command() []string {
	return []string{"/proc/self/exe", "-test.run=^TestBeTheChild$", c.dir}
}

// Limit sets a limit for the children that start from now on; a negative number removes it.
func (c *Child) Limit(what string, n int) {
	c.t.Helper()
	if err := os.WriteFile(filepath.Join(c.dir, what), strconv.AppendInt(nil, int64(n), 10), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// Kill ends the newest child, and reports whether there is one that it has not ended before.
func (c *Child) Kill() bool {
	pid := read(c.dir, "pid")
	if pid <= 0 || pid == c.killed {
		return false
	}
	c.killed = pid
	return syscall.Kill(pid, syscall.SIGKILL) == nil
}

// read returns the number in a file, and -1 if there is none.
func read(dir, name string) int {
	text, err := os.ReadFile(filepath.Join(dir, name))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(string(text))
	if err != nil { // the file is being written
		return -1
	}
	return n
}

// Be is the main function of the child. In the test's own process it skips the test.
func Be(t *testing.T) {
	if flag.NArg() != 2 {
		t.Skip("it is for processes that other tests start")
	}
	if err := sandbox.Serve(flag.Arg(1), &engine{dir: flag.Arg(0)}); err != nil {
		t.Fatal(err)
	}
}

// engine is the Go engine.
type engine struct {
	dir  string
	runs int
	ran  atomic.Int64
}

// Open reads the limits.
func (e *engine) Open() (version, path string, err error) {
	switch left := read(e.dir, Starts); {
	case left == 0:
		return "", "", errors.New("the test lets no child start")
	case left > 0:
		err = os.WriteFile(filepath.Join(e.dir, Starts), strconv.AppendInt(nil, int64(left-1), 10), 0o600)
	}
	e.runs = read(e.dir, Runs)
	return "1", "the Go engine", errors.Join(err, os.WriteFile(filepath.Join(e.dir, "pid"), strconv.AppendInt(nil, int64(os.Getpid()), 10), 0o600))
}

// Load compiles a graph.
func (e *engine) Load(file []byte) (sandbox.Session, error) {
	p, err := native.Load(slices.Clone(file)) // the child frees the file's memory after the load
	if err != nil {
		return nil, err
	}
	return &session{p, e}, nil
}

type session struct {
	*native.Program
	e *engine
}

// Run ends the child if a limit or a number wants it.
func (s *session) Run(in, out []tensor.Tensor) error {
	n := int(s.e.ran.Add(1))
	if s.e.runs >= 0 && n > s.e.runs || slices.Contains(in[0].Floats, Deadly) {
		os.Exit(42)
	}
	return s.Program.Run(in, out)
}
