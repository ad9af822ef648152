package store

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tidemill.dev/api"
)

// forgetting removes one of several datasets whose names begin alike, and removes the files of a
// run.
func forgetting(w *world) {
	for _, name := range []string{"bots/a", "bots/a/b", "bots/ab", "bots/other"} {
		for n := range 3 {
			w.committed(name, map[string]string{"text": fmt.Sprintf("%s %d", name, n)})
		}
	}
	first := w.history("bots/a", "main")[2]
	w.must(w.Branch(w.Context(), "bots/a", "aside", first))
	w.must(w.PutLog(w.Context(), "run1", 1, 0, []byte("hello")))
	w.must(w.PutLog(w.Context(), "run11", 1, 0, []byte("hello")))
	w.must(w.SetCheckpoint(w.Context(), "run1", 1, api.TreeRef{Tree: first.Tree}))

	want := Removed{Branches: 2, Commits: 4}
	if there, err := w.CountDataset(w.Context(), "bots/a"); err != nil || there != want {
		w.Errorf("there is %+v: %v", there, err)
	}
	if gone, err := w.RemoveDataset(w.Context(), "bots/a"); err != nil || gone != want {
		w.Errorf("removed %+v: %v", gone, err)
	}
	w.must(w.RemoveRun(w.Context(), "run1"))
	for name, there := range map[string]bool{"bots/a": false, "bots/a/b": true, "bots/ab": true, "bots/other": true} {
		if _, err := w.Head(w.Context(), name, "main"); there != (err == nil) || !there && !errors.Is(err, ErrNotFound) {
			w.Errorf("%s: %v", name, err)
		}
	}
	if _, err := w.FindCommit(w.Context(), "bots/a", first.ID); !errors.Is(err, ErrNotFound) {
		w.Errorf("its commit is found: %v", err)
	}
	w.must(w.bucket.listAll(w.Context(), "", func(i item) error {
		if strings.Contains(i.key, "bots/a/_/") || strings.HasPrefix(i.key, "runs/run1/") || strings.HasPrefix(i.key, intentsPrefix) {
			w.Errorf("%s is there", i.key)
		}
		return nil
	}))
	if gone, err := w.RemoveDataset(w.Context(), "bots/a"); err != nil || gone != (Removed{}) {
		w.Errorf("said again it removed %+v: %v", gone, err)
	}
	if again := w.committed("bots/a", map[string]string{"text": "anew"}); again.Number != 1 || again.Parent != "" {
		w.Errorf("it begins anew with %+v", again)
	}
	if err := w.RemoveRun(w.Context(), "../x"); !errors.Is(err, ErrInvalid) {
		w.Errorf("a run of a bad name: %v", err)
	}
	if _, err := w.RemoveDataset(w.Context(), "a//b"); !errors.Is(err, ErrInvalid) {
		w.Errorf("a dataset of a bad name: %v", err)
	}
}

// notes checks that notes are stored by name.
func notes(w *world) {
	if _, err := w.Note(w.Context(), "a"); !errors.Is(err, ErrNotFound) {
		w.Errorf("a note that was never put: %v", err)
	}
	w.must(w.PutNote(w.Context(), "a", []byte("one")))
	w.must(w.PutNote(w.Context(), "a", []byte("two")))
	if got, err := w.Note(w.Context(), "a"); err != nil || string(got) != "two" {
		w.Errorf("the note is %q: %v", got, err)
	}
	w.must(w.RemoveNote(w.Context(), "a"))
	w.must(w.RemoveNote(w.Context(), "a"))
	if _, err := w.Note(w.Context(), "a"); !errors.Is(err, ErrNotFound) {
		w.Errorf("a note that was removed: %v", err)
	}
	if err := w.PutNote(w.Context(), "a/b", nil); !errors.Is(err, ErrInvalid) {
		w.Errorf("a bad name: %v", err)
	}
}

func (w *world) history(dataset, branch string) (all []api.Commit) {
	w.Helper()
	w.must(w.Log(w.Context(), dataset, branch, func(c api.Commit) bool { all = append(all, c); return true }))
	return all
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A removal that is cut off at any of its writes leaves a shorter dataset that is valid. A second
// removal continues.
func TestARemovalCutOffGoesOn(t *testing.T) {
	t.Parallel()
	for at, cut := 1, true; cut; at++ {
		dir := t.TempDir()
		w := &world{T: t, Store: openStore(t, dir)}
		for n := range 5 {
			w.committed("bots/a", map[string]string{"text": fmt.Sprint(n)})
		}
		must(t, w.Close())
		ctx, cancel := context.WithCancel(t.Context())
		var lock sync.Mutex
		writes := 0
		s, err := Open(t.Context(), Options{URL: dir, Watch: func(string) {
			lock.Lock()
			defer lock.Unlock()
			if writes++; writes == at {
				cancel()
			}
		}})
		must(t, err)
		_, err = s.RemoveDataset(ctx, "bots/a")
		cut = err != nil
		cancel()
		head, err := s.Head(t.Context(), "bots/a", "main")
		switch {
		case errors.Is(err, ErrNotFound):
		case err != nil:
			t.Errorf("cut off at write %d it is broken: %v", at, err)
		case len((&world{T: t, Store: s}).history("bots/a", "main")) != int(head.Number):
			t.Errorf("cut off at write %d it has a gap", at)
		}
		_, err = s.RemoveDataset(t.Context(), "bots/a")
		must(t, err)
		if left, err := s.CountDataset(t.Context(), "bots/a"); err != nil || left != (Removed{}) {
			t.Errorf("cut off at write %d it has left %+v: %v", at, left, err)
		}
		for _, prefix := range []string{"refs", "heads", "ids"} {
			if _, err := os.Stat(filepath.Join(dir, prefix, "bots")); err == nil {
				t.Errorf("cut off at write %d it has left the folder of %s", at, prefix)
			}
		}
		must(t, s.Close())
	}
}

// A writer that writes its hint after the removal breaks nothing.
func TestAHintBehindTheRemoval(t *testing.T) {
	t.Parallel()
	s := openStore(t, t.TempDir())
	defer s.Close()
	w := &world{T: t, Store: s}
	c := w.committed("bots/a", map[string]string{"text": "one"})
	w.committed("bots/a", map[string]string{"text": "two"})
	_, err := s.RemoveDataset(t.Context(), "bots/a")
	must(t, err)
	must(t, s.setHint(t.Context(), &record{Commit: api.Commit{Dataset: c.Dataset, Branch: c.Branch, Number: 2}}))
	if _, err := s.Head(t.Context(), "bots/a", "main"); !errors.Is(err, ErrNotFound) {
		t.Errorf("its head is %v", err)
	}
	if again := w.committed("bots/a", map[string]string{"text": "anew"}); again.Number != 1 {
		t.Errorf("it begins anew with %+v", again)
	}
}

// A commit that is made while its dataset is removed begins the dataset again, without the removed files. A branch is
// not made.
func TestACommitDuringARemoval(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := &world{T: t, Store: openStore(t, dir)}
	defer w.Close()
	w.committed("bots/a", map[string]string{"one": "one"})
	w.committed("bots/a", map[string]string{"two": "two"})
	begun := false
	s, err := Open(t.Context(), Options{URL: dir, Watch: func(key string) {
		if strings.HasPrefix(key, refsPrefix) && !begun {
			begun = true
			dataset, _, _ := strings.Cut(strings.TrimPrefix(key, refsPrefix), nameEnd)
			_, err := w.RemoveDataset(t.Context(), dataset)
			must(t, err)
		}
	}})
	must(t, err)
	defer s.Close()
	made := (&world{T: t, Store: s}).committed("bots/a", map[string]string{"three": "three"})
	if all := w.history("bots/a", "main"); len(all) != 1 || all[0].ID != made.ID || made.Number != 1 || made.Files != 1 {
		t.Errorf("the commit is %+v, and the history %+v", made, all)
	}
	begun = false
	first := (&world{T: t, Store: s}).committed("bots/a/b", map[string]string{"one": "one"})
	if _, err := w.FindCommit(t.Context(), "bots/a/b", first.ID); err != nil {
		t.Errorf("the first commit is not found: %v", err)
	}
	begun = false
	if err := s.Branch(t.Context(), "bots/a", "aside", made.Commit); !errors.Is(err, ErrNotFound) {
		t.Errorf("a branch from a removed commit: %v", err)
	}
	if left, err := w.CountDataset(t.Context(), "bots/a"); err != nil || left != (Removed{}) {
		t.Errorf("there is %+v: %v", left, err)
	}
}

// A writer is killed right after its commit, and its dataset was removed meanwhile. The commit does not bring the removed
// files back.
func TestAWriterIsKilledDuringARemoval(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := &world{T: t, Store: openStore(t, dir)}
	defer w.Close()
	w.committed("bots/a", map[string]string{"one": "one"})
	w.committed("bots/a", map[string]string{"two": "two"})
	announced := slices.Clone(w.announced)
	removed, steps := false, 0
	s, err := Open(t.Context(), Options{URL: dir, Watch: func(key string) {
		if strings.HasPrefix(key, idsPrefix) && !removed {
			removed = true
			_, err := w.RemoveDataset(t.Context(), "bots/a")
			must(t, err)
		}
		if strings.HasPrefix(key, refsPrefix) {
			if steps++; steps == 3 { // before the write, after that of the temporary file, after the link
				runtime.Goexit()
			}
		}
	}})
	must(t, err)
	defer s.Close()
	killed := make(chan struct{})
	go func() {
		defer close(killed)
		c, err := (&world{T: t, Store: s}).commit("bots/a", map[string]string{"three": "three"}, CommitRequest{})
		t.Errorf("the writer is not killed: %+v, %v", c, err)
	}()
	<-killed
	w.same("refs", w.remains(refsPrefix), []string{refKey("bots/a", "main", 3)})
	for _, age := range []time.Duration{0, DefaultGrace + time.Minute} {
		later(w.Store, age)
		w.must(w.Recover(t.Context(), w.announce))
		if head, err := w.Head(t.Context(), "bots/a", "main"); !errors.Is(err, ErrNotFound) {
			t.Errorf("after %s its head is %+v, %v", age, head, err)
		}
	}
	w.same("announced", w.announced, announced)
	for _, prefix := range []string{refsPrefix, idsPrefix, intentsPrefix} {
		w.same(prefix, w.remains(prefix), []string(nil))
	}
}
