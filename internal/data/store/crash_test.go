package store

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
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

	"tidemill.dev/api"
)

// These variables make this test binary a writer: a folder, the name to commit, the number of
// commits, and the step after which it dies; 0 means never.
const (
	writerDir  = "TIDEMILL_TEST_STORE"
	writerName = "TIDEMILL_TEST_NAME"
	writerN    = "TIDEMILL_TEST_COMMITS"
	writerDies = "TIDEMILL_TEST_DIES"
)

func TestMain(m *testing.M) {
	if os.Getenv(writerDir) == "" {
		os.Exit(m.Run())
	}
	if err := write(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// write commits files one after the other, and dies at the given step.
func write() error {
	dir, name := os.Getenv(writerDir), os.Getenv(writerName)
	dies, err := strconv.Atoi(os.Getenv(writerDies))
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(os.Getenv(writerN))
	if err != nil {
		return err
	}
	ctx := context.Background()
	s, err := Open(ctx, Options{URL: filepath.Join(dir, "store")})
	if err != nil {
		return err
	}
	defer s.Close()
	var lock sync.Mutex
	step := 0
	s.bucket.watch = func(string) {
		lock.Lock()
		defer lock.Unlock()
		if step++; step == dies {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // wait for the signal
		}
	}
	for i := range n {
		if err := writeOne(ctx, s, dir, fmt.Sprintf("%s-%d", name, i)); err != nil {
			return err
		}
	}
	return nil
}

func writeOne(ctx context.Context, s *Store, dir, name string) error {
	f := fileOf("files/"+name, name)
	if err := s.PutObject(ctx, f.Digest, f.Size, strings.NewReader(name)); err != nil {
		return err
	}
	_, err := s.Commit(ctx, CommitRequest{CommitAsked: api.CommitAsked{Dataset: "d", Request: name}, Announce: func(_ context.Context, c api.Commit) error {
		s.bucket.wrote("announce")
		err := tell(dir, c.ID)
		s.bucket.wrote("announce")
		return err
	}}, []api.Change{{File: f}})
	return err
}

// tell appends an announced id to a file, one in each line.
func tell(dir, id string) error {
	f, err := os.OpenFile(filepath.Join(dir, "announced"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.WriteString(id + "\n")
	return errors.Join(err, f.Close())
}

// writer starts a process that commits. It is killed when the test ends.
func writer(t *testing.T, dir, name string, n, dies int) *exec.Cmd {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	cmd := exec.CommandContext(ctx, os.Args[0])
	cmd.Env = append(os.Environ(), writerDir+"="+dir, writerName+"="+name, writerN+"="+strconv.Itoa(n), writerDies+"="+strconv.Itoa(dies))
	cmd.Stderr = os.Stderr
	return cmd
}

// killed runs a writer, and reports whether it died as intended.
func killed(t *testing.T, cmd *exec.Cmd) bool {
	t.Helper()
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return false
	case errors.As(err, &exit) && exit.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL:
		return true
	}
	t.Errorf("the writer ended with %v", err)
	return false
}

// A writer dies before and after each of its writes. After each death the chain has no gap, all its
// commits are announced, and the repeated request makes one commit.
func TestCrashAtEveryStep(t *testing.T) {
	dir := t.TempDir()
	w := &world{T: t, Store: openStore(t, filepath.Join(dir, "store"))}
	steps := 0
	for dies := 1; ; dies++ {
		name := fmt.Sprint("step-", dies)
		dead := killed(t, writer(t, dir, name, 1, dies))
		w.recovered(dir)
		w.must(writeOne(t.Context(), w.Store, dir, name+"-0")) // repeated request
		w.recovered(dir)
		head, err := w.Head(t.Context(), "d", "main")
		w.must(err)
		if head.Number != int64(dies) || head.Files != dies {
			t.Fatalf("killed at step %d: %d commits and %d files, want %d", dies, head.Number, head.Files, dies)
		}
		if !dead {
			break
		}
		steps++
	}
	if steps < 15 {
		t.Errorf("only %d steps", steps)
	}
	w.nothingLeft()
}

// Writers in several processes die at any point while others continue to write.
func TestCrashBesideOthers(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			dir := t.TempDir()
			w := &world{T: t, Store: openStore(t, filepath.Join(dir, "store"))}
			r := rand.New(rand.NewPCG(seed, 7))
			for round := range 4 {
				var all sync.WaitGroup
				for i, dies := range []int{0, 1 + r.IntN(80), 1 + r.IntN(80)} {
					cmd := writer(t, dir, fmt.Sprintf("w%d-%d", round, i), 5, dies)
					all.Go(func() { killed(t, cmd) })
				}
				w.recovered(dir) // while writers run
				all.Wait()
				w.recovered(dir)
			}
			head, err := w.Head(t.Context(), "d", "main")
			w.must(err)
			if head.Number < 4*5 || head.Number > 4*15 {
				t.Errorf("%d commits", head.Number)
			}
			w.nothingLeft()
		})
	}
}

// Two processes commit to one branch, and all of it survives.
func TestTwoProcesses(t *testing.T) {
	dir := t.TempDir()
	w := &world{T: t, Store: openStore(t, filepath.Join(dir, "store"))}
	var all sync.WaitGroup
	for i := range 2 {
		cmd := writer(t, dir, fmt.Sprint("w", i), 40, 0)
		all.Go(func() {
			if killed(t, cmd) {
				t.Error("it died")
			}
		})
	}
	all.Wait()
	w.same("what was left to announce", len(w.remains(intentsPrefix)), 0)
	w.recovered(dir)
	head, err := w.Head(t.Context(), "d", "main")
	w.must(err)
	w.same("commits and files", fmt.Sprint(head.Number, head.Files), "80 80")
}

// recovered checks what must hold after Recover, whatever happened before.
func (w *world) recovered(dir string) {
	w.Helper()
	head, err := w.head(w.ctx(), "d", "main")
	w.must(err)
	w.must(w.Recover(w.ctx(), func(_ context.Context, c api.Commit) error { return tell(dir, c.ID) }))
	if head == nil {
		return
	}
	intents := w.remains(intentsPrefix) // read first, because a writer removes the intent after the announcement
	told := announcedIn(w.T, dir)
	number, parent := head.Number, head.ID
	w.must(w.Log(w.ctx(), "d", "main", func(c api.Commit) bool {
		if c.Number > head.Number {
			return true // a writer has gone on
		}
		if c.Number != number || c.ID != parent {
			w.Fatalf("commit %d is %+v, want %s", number, c, parent)
		}
		if !told[c.ID] && !slices.Contains(intents, intentKey(c.ID)) {
			w.Errorf("commit %d was never announced, and will not be", number)
		}
		if c.Files != int(number) {
			w.Errorf("commit %d has %d files", number, c.Files)
		}
		number, parent = number-1, c.Parent
		return true
	}))
	w.nodes = newNodeCache(cachedBytes)
	w.wholeHead()
}

func announcedIn(t *testing.T, dir string) map[string]bool {
	t.Helper()
	f, err := os.Open(filepath.Join(dir, "announced"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	told := map[string]bool{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		told[lines.Text()] = true
	}
	return told
}

// nothingLeft collects a day later, and looks for leftovers of killed writers.
func (w *world) nothingLeft() {
	w.Helper()
	later(w.Store, 25*time.Hour)
	w.must(w.Recover(w.ctx(), func(_ context.Context, c api.Commit) error { return fmt.Errorf("commit %s was left", c.ID) }))
	_, err := w.Collect(w.ctx(), Collection{})
	w.must(err)
	w.wholeHead()
	w.must(w.bucket.listAll(w.ctx(), "", func(i item) error {
		if isTemp(i.key) || strings.HasPrefix(i.key, intentsPrefix) {
			w.Errorf("%s is left", i.key)
		}
		return nil
	}))
	head, err := w.Head(w.ctx(), "d", "main")
	w.must(err)
	w.same("ids", len(w.remains(idsPrefix)), head.Number)
}
