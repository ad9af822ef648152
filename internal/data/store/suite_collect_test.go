package store

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"tidemill.dev/api"
)

// later moves a store's clock ahead.
func later(s *Store, by time.Duration) { s.now = func() time.Time { return time.Now().Add(by) } }

// remains returns the keys below a prefix.
func (w *world) remains(prefix string) (keys []string) {
	w.Helper()
	w.must(w.bucket.list(w.ctx(), prefix, func(i item) error { keys = append(keys, i.key); return nil }))
	slices.Sort(keys)
	return keys
}

func (w *world) tree(contents ...string) api.TreeRef {
	w.Helper()
	var files []api.File
	for _, c := range contents {
		files = append(files, w.file(c, c))
	}
	t, err := w.Tree(w.ctx(), files)
	w.must(err)
	return t
}

func collecting(w *world) {
	for i := range 3 {
		w.committed("d", map[string]string{"f": fmt.Sprint("version ", i), fmt.Sprint("g", i): "all"})
	}
	first, err := w.FindCommit(w.ctx(), "d", w.announced[0])
	w.must(err)
	w.must(w.Branch(w.ctx(), "d", "old", first))
	model, run, ended := w.tree("model"), w.tree("checkpoint"), w.tree("ended")
	w.must(w.SetCheckpoint(w.ctx(), "live", 1, run))
	w.must(w.SetCheckpoint(w.ctx(), "gone", 1, ended))
	w.must(w.PutLog(w.ctx(), "live", 1, 0, []byte("log")))
	w.must(w.PutLog(w.ctx(), "gone", 1, 0, []byte("log")))
	w.must(w.PutLog(w.ctx(), "gone", 2, 0, []byte("log")))
	w.tree("garbage")
	w.put("never named")
	w.must(w.bucket.put(w.ctx(), idKey("d", "lost"), []byte("main/2")))
	pending := w.tree("pending")
	w.must(w.intend(w.ctx(), &record{Commit: api.Commit{ID: "p", Dataset: "d", Branch: "main", Number: 9, Tree: pending.Tree}},
		fmt.Appendf(nil, `{"id":"p","dataset":"d","branch":"main","number":9,"tree":%q}`, pending.Tree)))

	c := Collection{Trees: []string{model.Tree, digestOf("a tree long gone")}, Runs: func(run string) bool { return run == "live" }}
	before := w.remains("")
	all, err := w.Collect(w.ctx(), c)
	w.must(err)
	w.same("removed of what is young", all.Removed, 0)
	later(w.Store, 25*time.Hour)
	c.DryRun = true
	dry, err := w.Collect(w.ctx(), c)
	w.must(err)
	w.same("after a dry run", w.remains(""), before)
	c.DryRun = false
	done, err := w.Collect(w.ctx(), c)
	w.must(err)
	w.same("removed", done, dry)
	w.same("counts", []int{done.Objects - done.Kept, done.Removed}, []int{9, 9})
	w.checkKept(model, run, pending)
	for _, content := range []string{"ended", "garbage", "never named"} {
		if _, err := w.read(digestOf(content)); !errors.Is(err, ErrNotFound) {
			w.Errorf("%s is still there: %v", content, err)
		}
	}
	w.same("runs", w.remains(runsPrefix), "[runs/live/checkpoints/0001 runs/live/log-0001-00000000]")
	w.same("ids", len(w.remains(idsPrefix)), 5)
	w.notTooEarly()
}

// If most of the newest runs are unknown, nothing is removed without force.
func collectingUnknownRuns(w *world) {
	for _, run := range []string{"a", "b", "c"} {
		w.must(w.PutLog(w.ctx(), run, 1, 0, []byte("log")))
	}
	w.put("garbage")
	later(w.Store, 25*time.Hour)
	before := w.remains("")
	c := Collection{Runs: func(run string) bool { return run == "a" }}
	_, err := w.Collect(w.ctx(), c)
	w.wants(err, ErrInvalid, "2 of the 3 newest runs")
	w.same("after a refusal", w.remains(""), before)
	c.Force = true
	done, err := w.Collect(w.ctx(), c)
	w.must(err)
	w.same("removed by force", done.Removed, 3)
	c.Force = false
	_, err = w.Collect(w.ctx(), c)
	w.must(err)
}

func (w *world) checkKept(trees ...api.TreeRef) {
	w.Helper()
	for _, branch := range []string{"main", "old"} {
		w.must(w.Log(w.ctx(), "d", branch, func(c api.Commit) bool {
			trees = append(trees, api.TreeRef{Tree: c.Tree})
			return true
		}))
	}
	w.nodes = newNodeCache(cachedBytes)
	for _, t := range trees {
		w.must(w.Walk(w.ctx(), t.Tree, "", "", func(f api.File) error {
			_, err := w.read(f.Digest)
			return err
		}))
	}
}

func (w *world) notTooEarly() {
	_, err := w.Collect(w.ctx(), Collection{Older: time.Hour})
	w.wants(err, ErrInvalid, "24h")
}

// A collection that cannot read everything removes nothing.
func collectingNothing(w *world) {
	w.put("garbage")
	w.committed("d", map[string]string{"f": "1"})
	later(w.Store, 25*time.Hour)
	for name, spoil := range map[string]func(c api.Committed){
		"a commit": func(c api.Committed) {
			w.must(w.bucket.put(w.ctx(), refKey("d", "main", c.Number), []byte("{")))
		},
		"a tree":  func(c api.Committed) { w.must(w.bucket.put(w.ctx(), treeKey(c.Tree), nil)) },
		"no tree": func(c api.Committed) { w.must(w.bucket.remove(w.ctx(), treeKey(c.Tree))) },
	} {
		c := w.committed("d", map[string]string{"f": name})
		key := refKey("d", "main", c.Number)
		good, err := w.bucket.get(w.ctx(), key)
		w.must(err)
		spoil(c)
		w.nodes = newNodeCache(cachedBytes)
		if _, err := w.Collect(w.ctx(), Collection{}); err == nil || !strings.Contains(err.Error(), key) {
			w.Errorf("%s is spoilt, and collecting says %v", name, err)
		}
		if _, err := w.read(digestOf("garbage")); err != nil {
			w.Error(err)
		}
		w.must(w.bucket.put(w.ctx(), key, good))
		w.tree(name) // puts the object; settle below puts the spoiled tree again
		e, err := w.edit(w.ctx(), "", []api.Change{{File: fileOf("f", name)}})
		w.must(err)
		w.must(w.settle(w.ctx(), e))
	}
	done, err := w.Collect(w.ctx(), Collection{})
	w.must(err)
	if done.Removed == 0 {
		w.Error("nothing was removed in the end")
	}
}
