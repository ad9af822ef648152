package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"tidemill.dev/api"
)

func commits(w *world) {
	c := w.committed("bots/bot-42", map[string]string{"a": "1", "b/c": "22"})
	w.same("first", fmt.Sprint(c.Number, c.Branch, c.Parent, c.Subject, c.Files, c.Bytes, c.Added, c.Changed, c.Removed, c.Unchanged), "1mainbot-422 3 2 0 0 false")
	d, err := w.change("bots/bot-42", CommitRequest{By: "ada", CommitAsked: api.CommitAsked{Message: "m", Subject: "s"}},
		api.Change{File: api.File{Path: "a"}, Remove: true}, api.Change{File: w.file("b/c", "333")}, api.Change{File: w.file("d", "")},
		api.Change{File: api.File{Path: "never"}, Remove: true})
	w.must(err)
	w.same("second", fmt.Sprint(d.Number, d.Parent == c.ID, d.By, d.Message, d.Subject, d.Files, d.Bytes, d.Added, d.Changed, d.Removed), "2 trueadams2 3 1 1 1")
	w.same("paths", w.paths(d.Tree, "", ""), "[b/c d]")
	same, err := w.commit("bots/bot-42", map[string]string{"d": ""}, CommitRequest{})
	w.must(err)
	if !same.Unchanged || same.ID != d.ID {
		w.Errorf("what is there already was committed: %+v", same)
	}
	w.same("announced", w.announced, []string{c.ID, d.ID})
	head, err := w.Head(w.ctx(), "bots/bot-42", "main")
	w.must(err)
	w.same("head", head, d.Commit)
	w.badCommits()
}

func (w *world) badCommits() {
	for name, r := range map[string]CommitRequest{
		"bots now":      {},
		".bots":         {},
		"bots//b":       {},
		"":              {},
		"bots/../x":     {},
		"bots/_/main/1": {},
		"ok":            {CommitAsked: api.CommitAsked{Branch: "a/b"}},
	} {
		_, err := w.change(name, r, api.Change{File: w.file("a", "1")})
		w.wants(err, ErrInvalid)
	}
	for _, path := range []string{"", "/a", "a/", "a//b", ".", "a/../b", "a\x00", "\xff", strings.Repeat("x", maxPath+1)} {
		_, err := w.change("ok", CommitRequest{}, api.Change{File: w.file(path, "1")})
		w.wants(err, ErrInvalid)
	}
	for file, files := range map[string][2]string{"a": {"a", "a/b"}, "a/b": {"a/b", "a/b/c/d"}} {
		_, err := w.change("ok", CommitRequest{}, api.Change{File: w.file(files[0], "1")}, api.Change{File: w.file(files[1], "1")})
		w.wants(err, ErrInvalid, file, files[1])
	}
	_, err := w.change("ok", CommitRequest{}, api.Change{File: w.file("a", "1")}, api.Change{File: w.file("a", "2")})
	w.wants(err, ErrInvalid, "twice")
	_, err = w.Head(w.ctx(), "ok", "main")
	w.wants(err, ErrNotFound, "ok", "main")
}

func requestSaidTwice(w *world) {
	ask := func(dataset, request, run string, path string) api.Committed {
		w.Helper()
		c, err := w.commit(dataset, map[string]string{path: path}, CommitRequest{Run: run, CommitAsked: api.CommitAsked{Request: request}})
		w.must(err)
		return c
	}
	first := ask("d", "r1", "", "a")
	run := ask("d", "", "run1", "b")
	w.same("the request again", ask("d", "r1", "", "other"), first)
	w.same("the run again", ask("d", "r9", "run1", "other"), run)
	for i := range 20 {
		ask("d", fmt.Sprint("more ", i), "", fmt.Sprint("c", i))
	}
	w.same("long after", ask("d", "r1", "", "other").ID, first.ID)
	w.same("another run's of the same name", ask("d", "run1", "", "e").Number, 23)
	w.same("on another dataset", ask("e", "r1", "", "a").Number, 1)
	w.same("announced", len(w.announced), 24)
}

func concurrentCommits(w *world) {
	const writers, each = 6, 8
	var all sync.WaitGroup
	for i := range writers {
		all.Go(func() {
			for j := range each {
				path := fmt.Sprintf("w%d/%d", i, j)
				w.put(path)
				if _, err := w.change("d", CommitRequest{}, api.Change{File: fileOf(path, path)}); err != nil {
					w.Error(err)
				}
			}
		})
	}
	all.Wait()
	head, err := w.Head(w.ctx(), "d", "main")
	w.must(err)
	w.same("files", len(w.paths(head.Tree, "", "")), writers*each)
	w.same("head", head.Number, writers*each)
	slices.Sort(w.announced)
	w.same("announced", len(slices.Compact(w.announced)), writers*each)
	w.must(w.Recover(w.ctx(), func(_ context.Context, c api.Commit) error { return fmt.Errorf("commit %s was left", c.ID) }))
}

func oneOfManyCreates(w *world) {
	const rounds, many = 20, 16
	for i := range rounds {
		var won atomic.Int32
		var all sync.WaitGroup
		for j := range many {
			all.Go(func() {
				switch err := w.bucket.create(w.ctx(), fmt.Sprint("refs/x/", i), fmt.Append(nil, j)); {
				case err == nil:
					won.Add(1)
				case !errors.Is(err, errTaken):
					w.Logf("create: %v", err) // a writer in doubt reads the ref
				}
			})
		}
		all.Wait()
		if won.Load() != 1 {
			w.Fatalf("%d of %d created the same key", won.Load(), many)
		}
	}
}

func replacingAndBases(w *world) {
	w.committed("d", map[string]string{"a": "1", "b": "2", "c": "3"})
	r := CommitRequest{CommitAsked: api.CommitAsked{Replace: true}}
	c, err := w.commit("d", map[string]string{"b": "2", "c": "4", "x/y": "5"}, r)
	w.must(err)
	w.same("replaced", fmt.Sprint(c.Files, c.Added, c.Changed, c.Removed, w.paths(c.Tree, "", "")), "3 1 1 1 [b c x/y]")
	c, err = w.commit("d", map[string]string{"b": "2", "c": "4", "x/y": "5"}, r)
	w.must(err)
	w.same("unchanged", c.Unchanged, true)
	t, err := w.Tree(w.ctx(), []api.File{w.file("b", "2"), w.file("model", "m")})
	w.must(err)
	c, err = w.change("d", CommitRequest{Base: t.Tree, Run: "r"})
	w.must(err)
	w.same("based", fmt.Sprint(c.Files, c.Bytes, c.Added, c.Changed, c.Removed, c.Run), "2 2 1 0 2r")
	_, err = w.change("d", CommitRequest{Base: digestOf("none")})
	w.wants(err, ErrNotFound)
	_, err = w.change("d", CommitRequest{Base: t.Tree}, api.Change{File: w.file("a", "")})
	w.wants(err, ErrInvalid)
	empty, err := w.change("d", r)
	w.must(err)
	w.same("emptied", fmt.Sprint(empty.Files, empty.Removed), "0 2")
}

func branchesAndHistory(w *world) {
	var ids []string
	for i := range 5 {
		ids = append(ids, w.committed("d/e", map[string]string{"f": fmt.Sprint(i)}).ID)
	}
	at, err := w.FindCommit(w.ctx(), "d/e", ids[2])
	w.must(err)
	w.must(w.Branch(w.ctx(), "d/e", "trial", at))
	w.wants(w.Branch(w.ctx(), "d/e", "trial", at), ErrInvalid, "already")
	c, err := w.commit("d/e", map[string]string{"g": "g"}, CommitRequest{CommitAsked: api.CommitAsked{Branch: "trial"}})
	w.must(err)
	var log []string
	w.must(w.Log(w.ctx(), "d/e", "trial", func(c api.Commit) bool {
		log = append(log, fmt.Sprint(c.Branch, c.Number))
		return len(log) < 4
	}))
	w.same("log", log, "[trial2 trial1 main3 main2]")
	w.same("announced", len(w.announced), 6)
	short, err := w.FindCommit(w.ctx(), "d/e", c.ID[:10])
	w.must(err)
	w.same("by its beginning", short, c.Commit)
	_, err = w.FindCommit(w.ctx(), "d", c.ID)
	w.wants(err, ErrNotFound)
	w.must(w.bucket.put(w.ctx(), idKey("d/e", c.ID[:10]+"x"), []byte("trial/2"))) // id of a commit that was not made
	_, err = w.FindCommit(w.ctx(), "d/e", c.ID[:10])
	w.must(err)
	w.wants(w.Log(w.ctx(), "d/e", "none", nil), ErrNotFound)
	w.ambiguous()
}

// ambiguous commits until two ids begin with the same letter, and looks that letter up.
func (w *world) ambiguous() {
	first := map[byte]bool{}
	for i := 0; ; i++ {
		c := w.committed("many", map[string]string{"f": fmt.Sprint(i)})
		if first[c.ID[0]] {
			_, err := w.FindCommit(w.ctx(), "many", c.ID[:1])
			w.wants(err, ErrInvalid, "say more")
			return
		}
		first[c.ID[0]] = true
	}
}

func datasetsAreListed(w *world) {
	for _, name := range []string{"bots/b-2", "bots", "bots-x", "bots/1", "a"} {
		w.committed(name, map[string]string{"f": "1"})
	}
	c := w.committed("bots", map[string]string{"f": "2"})
	w.must(w.Branch(w.ctx(), "bots", "alt", c.Commit))
	list := func(prefix string) (all []string) {
		w.must(w.Datasets(w.ctx(), prefix, func(d Dataset) error {
			all = append(all, fmt.Sprint(d.Name, d.Branches))
			return nil
		}))
		return all
	}
	w.same("all", list(""), "[a[main] bots[alt main] bots-x[main] bots/1[main] bots/b-2[main]]")
	w.same("some", list("bots/"), "[bots/1[main] bots/b-2[main]]")
	w.same("by half a word", list("bots-"), "[bots-x[main]]")
	w.same("none", list("c"), "[]")
	w.wants(w.Datasets(w.ctx(), "", func(Dataset) error { return io.ErrClosedPipe }), io.ErrClosedPipe)
}

func announcing(w *world) {
	r := CommitRequest{CommitAsked: api.CommitAsked{Request: "r"}, Announce: func(context.Context, api.Commit) error { return io.ErrClosedPipe }}
	c, err := w.commit("d", map[string]string{"a": "1"}, r)
	w.wants(err, io.ErrClosedPipe, c.ID, "again")
	w.same("it stands", c.Number, 1)
	r.Announce = nil
	again, err := w.commit("d", map[string]string{"a": "1"}, r)
	w.must(err)
	w.same("said again", again.ID, c.ID)
	w.same("announced", w.announced, []string{c.ID})

	gone, cancel := context.WithCancel(w.ctx())
	p := w.file("b", "1")
	_, err = w.Commit(gone, CommitRequest{CommitAsked: api.CommitAsked{Dataset: "d"}, Announce: func(ctx context.Context, c api.Commit) error {
		cancel() // the caller leaves
		w.same("the context", ctx.Err(), nil)
		return w.announce(ctx, c)
	}}, []api.Change{{File: p}})
	w.must(err)
	w.same("announced all the same", len(w.announced), 2)

	c, err = w.commit("e", map[string]string{"a": "1"}, CommitRequest{Announce: func(context.Context, api.Commit) error { return io.ErrClosedPipe }})
	w.wants(err, io.ErrClosedPipe)
	w.wants(w.Recover(w.ctx(), func(context.Context, api.Commit) error { return io.ErrClosedPipe }), io.ErrClosedPipe)
	w.must(w.Recover(w.ctx(), w.announce))
	w.must(w.Recover(w.ctx(), w.announce))
	w.same("recovered once", w.announced[2:], []string{c.ID})
}

// slow is a backend that has each object, and answers so after ten milliseconds, one question after the other.
type slow struct {
	backend
	turn chan struct{}
}

func (b slow) stat(ctx context.Context, key string) (item, error) {
	if !strings.HasPrefix(key, objectsPrefix) {
		return b.backend.stat(ctx, key)
	}
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return item{}, context.Cause(ctx)
	}
	time.Sleep(10 * time.Millisecond)
	return item{key: key, size: 1, time: time.Now()}, nil
}

// Each of sixteen commits takes ten seconds alone, and all of them longer than the minute that each has. Some are made in each
// minute, so that those that are tried again are made, too.
func TestLargeCommitsAtTheSameTime(t *testing.T) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		s := openStore(t, dir)
		defer s.Close()
		s.bucket.backend = slow{s.bucket.backend, make(chan struct{}, 1)}
		changes := make([]api.Change, manyObjects+1)
		for i := range changes {
			path := fmt.Sprintf("%04d", i)
			changes[i] = api.Change{File: api.File{Path: path, Digest: digestOf(path), Size: 1}}
		}
		var left []string
		for i := range 16 {
			left = append(left, fmt.Sprint("d", i))
		}
		for range 4 { // minutes
			var lock sync.Mutex
			var late []string
			var committing sync.WaitGroup
			for _, dataset := range left {
				committing.Go(func() {
					ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
					defer cancel()
					_, err := s.Commit(ctx, CommitRequest{CommitAsked: api.CommitAsked{Dataset: dataset}}, slices.Clone(changes))
					lock.Lock()
					defer lock.Unlock()
					if err != nil {
						late = append(late, dataset)
					}
					if err != nil && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
				})
			}
			committing.Wait()
			left = late
		}
		if len(left) > 0 {
			t.Errorf("no commit was made to %v", left)
		}
	})
}
