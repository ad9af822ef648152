package store

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev/api"
)

// two returns a writer and a collector on one folder, like two processes. The collector's clock is
// a day ahead.
func two(t *testing.T) (writer, collector *world) {
	dir := t.TempDir()
	writer, collector = &world{T: t, Store: openStore(t, dir)}, &world{T: t, Store: openStore(t, dir)}
	writer.committed("d", map[string]string{"base": "base"})
	writer.put("doomed")
	old := time.Now().Add(-25 * time.Hour)
	writer.must(os.Chtimes(writer.path(objectKey(digestOf("doomed"))), old, old))
	return writer, collector
}

// path returns the file of a key of a store in a folder.
func (w *world) path(key string) string { return w.bucket.backend.(folder).path(key) }

// once returns a function that calls fn the first time that a key with the prefix is written.
func once(prefix string, fn func()) func(string) {
	var done atomic.Bool
	return func(key string) {
		if strings.HasPrefix(key, prefix) && done.CompareAndSwap(false, true) {
			fn()
		}
	}
}

// The worst moment: a collection has found an object old, and while it removes the object, a writer
// puts and commits it again. The commit reads the collection's list before or after the collection
// ends.
func TestAnObjectIsUsedWhileItIsRemoved(t *testing.T) {
	for name, late := range map[string]bool{"looked for meanwhile": false, "looked for afterwards": true} {
		t.Run(name, func(t *testing.T) {
			w, c := two(t)
			ended := make(chan error, 1)
			checked, collected := make(chan struct{}), make(chan struct{})
			w.bucket.watch = once(treesPrefix, func() { // after the check of the object
				close(checked)
				if late {
					<-collected
				}
			})
			c.bucket.watch = once(objectKey(digestOf("doomed")), func() {
				w.put("doomed")
				go func() {
					_, err := w.change("d", CommitRequest{}, api.Change{File: fileOf("f", "doomed")})
					ended <- err
				}()
				<-checked
			})
			_, err := c.Collect(t.Context(), Collection{})
			close(collected)
			w.must(err)
			w.wants(<-ended, ErrMissing, digestOf("doomed"))
			w.put("doomed") // as the error asks
			_, err = w.change("d", CommitRequest{}, api.Change{File: fileOf("f", "doomed")})
			w.must(err)
			w.wholeHead()
		})
	}
}

// A moment before that: the collection has written its list, and has not looked at the objects
// again.
func TestAnObjectIsUsedBeforeItIsRemoved(t *testing.T) {
	w, c := two(t)
	ended := make(chan error, 1)
	c.bucket.watch = once(condemnsPrefix, func() {
		missing, err := w.Missing(t.Context(), []api.Part{{Digest: digestOf("doomed"), Size: 6}})
		if err != nil || len(missing) > 0 {
			t.Errorf("missing %v: %v", missing, err)
		}
		go func() {
			_, err := w.change("d", CommitRequest{}, api.Change{File: fileOf("f", "doomed")})
			ended <- err
		}()
	})
	done, err := c.Collect(t.Context(), Collection{})
	w.must(err)
	w.must(<-ended)
	w.same("removed", done.Removed, 0)
	w.wholeHead()
}

func (w *world) wholeHead() {
	w.Helper()
	head, err := w.Head(w.ctx(), "d", "main")
	w.must(err)
	w.must(w.Walk(w.ctx(), head.Tree, "", "", func(f api.File) error {
		_, err := w.read(f.Digest)
		return err
	}))
}

// A collection that died leaves a list. A writer waits until the list expires, and no longer.
func TestAListOfACollectionThatDied(t *testing.T) {
	w, _ := two(t)
	list := condemned{Until: time.Now().Add(time.Hour), Keys: []string{objectKey(digestOf("doomed"))}}
	w.must(w.setCondemned(w.ctx(), condemnsPrefix+"x", list))
	for within := 4 * condemnedEvery; ; within *= 2 { // longer each time, until the wait is reached
		ctx, cancel := context.WithTimeoutCause(w.ctx(), within, errors.New("enough"))
		_, err := w.Commit(ctx, CommitRequest{CommitAsked: api.CommitAsked{Dataset: "d"}}, []api.Change{{File: fileOf("f", "doomed")}})
		cancel()
		if err == nil {
			t.Fatal("the commit did not wait")
		}
		if strings.Contains(err.Error(), "wait until a collection has removed its objects: enough") {
			break
		}
		if !errors.Is(err, context.DeadlineExceeded) && !strings.Contains(err.Error(), "enough") || within > time.Minute {
			t.Fatalf("the commit did not wait: %v", err)
		}
	}
	later(w.Store, 2*time.Hour)
	_, err := w.change("d", CommitRequest{}, api.Change{File: fileOf("f", "doomed")})
	w.must(err)
	_, err = w.Collect(w.ctx(), Collection{})
	w.must(err)
	w.same("lists", len(w.remains(condemnsPrefix)), 0)
}

// An object that exists and is old is made young; it need not be put again.
func TestMissingMakesYoung(t *testing.T) {
	server := newS3(t)
	for _, at := range []string{t.TempDir(), server.url} {
		server.Ahead(0)
		w := &world{T: t, Store: openStore(t, at)}
		p := w.put("old")
		before, err := w.bucket.stat(w.ctx(), objectKey(p.Digest))
		w.must(err)
		later(w.Store, 13*time.Hour)
		server.Ahead(13 * time.Hour)
		missing, err := w.Missing(w.ctx(), []api.Part{p})
		w.must(err)
		w.same("missing", len(missing), 0)
		after, err := w.bucket.stat(w.ctx(), objectKey(p.Digest))
		w.must(err)
		if !after.time.After(before.time) {
			t.Errorf("it was of %v and is of %v", before.time, after.time)
		}
	}
}
