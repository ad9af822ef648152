package store

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"

	"tidemill.dev/api"
)

// world is a store under test and its helpers.
type world struct {
	*testing.T
	*Store
	lock      sync.Mutex
	announced []string // ids of announced commits
}

// suite holds the tests that every kind of bucket must pass.
func suite(t *testing.T, open func(t *testing.T) *Store) {
	for _, c := range []struct {
		name string
		test func(*world)
	}{
		{"objects are kept", objectsAreKept},
		{"wrong bytes leave nothing", wrongBytesLeaveNothing},
		{"corruption is found", corruptionIsFound},
		{"what is missing", whatIsMissing},
		{"trees", treesHoldFiles},
		{"large files", largeFiles},
		{"commits", commits},
		{"a request said twice", requestSaidTwice},
		{"concurrent commits survive", concurrentCommits},
		{"one of many creates", oneOfManyCreates},
		{"replacing and bases", replacingAndBases},
		{"branches and history", branchesAndHistory},
		{"datasets", datasetsAreListed},
		{"announcing", announcing},
		{"logs", logs},
		{"checkpoints", checkpoints},
		{"collecting", collecting},
		{"collecting what is spoilt", collectingNothing},
		{"collecting unknown runs", collectingUnknownRuns},
		{"forgetting", forgetting},
		{"notes", notes},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t)
			t.Cleanup(func() {
				if err := s.Close(); err != nil {
					t.Errorf("close: %v", err)
				}
			})
			c.test(&world{T: t, Store: s})
		})
	}
}

func TestFolder(t *testing.T) {
	suite(t, func(t *testing.T) *Store { return openStore(t, t.TempDir()) })
}

func openStore(t testing.TB, at string) *Store {
	t.Helper()
	s, err := Open(t.Context(), Options{URL: at})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (w *world) ctx() context.Context { return w.Context() }

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) wants(err, target error, words ...string) {
	w.Helper()
	if !errors.Is(err, target) {
		w.Fatalf("the error is %v, and not that it %v", err, target)
	}
	for _, word := range words {
		if !strings.Contains(err.Error(), word) {
			w.Errorf("the error does not say %q: %v", word, err)
		}
	}
}

func digestOf(data string) string {
	sum := sha256.Sum256([]byte(data))
	return hex.EncodeToString(sum[:])
}

func fileOf(path, data string) api.File {
	return api.File{Path: path, Digest: digestOf(data), Size: int64(len(data))}
}

func (w *world) put(data string) api.Part {
	w.Helper()
	p := api.Part{Digest: digestOf(data), Size: int64(len(data))}
	w.must(w.PutObject(w.ctx(), p.Digest, p.Size, strings.NewReader(data)))
	return p
}

// file puts an object and returns a file with its content.
func (w *world) file(path, data string) api.File {
	w.Helper()
	w.put(data)
	return fileOf(path, data)
}

func (w *world) read(digest string) (string, error) {
	w.Helper()
	r, size, err := w.Object(w.ctx(), digest)
	if err != nil {
		return "", err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err == nil && int64(len(data)) != size {
		w.Errorf("the object has %d bytes, and was said to have %d", len(data), size)
	}
	return string(data), err
}

// commit puts and commits files; files maps paths to contents.
func (w *world) commit(dataset string, files map[string]string, r CommitRequest) (api.Committed, error) {
	var changes []api.Change
	for _, path := range slices.Sorted(maps.Keys(files)) {
		changes = append(changes, api.Change{File: w.file(path, files[path])})
	}
	return w.change(dataset, r, changes...)
}

func (w *world) change(dataset string, r CommitRequest, changes ...api.Change) (api.Committed, error) {
	r.Dataset = dataset
	if r.Announce == nil {
		r.Announce = w.announce
	}
	return w.Commit(w.ctx(), r, changes)
}

func (w *world) committed(dataset string, files map[string]string) api.Committed {
	w.Helper()
	c, err := w.commit(dataset, files, CommitRequest{})
	w.must(err)
	return c
}

func (w *world) announce(_ context.Context, c api.Commit) error {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.announced = append(w.announced, c.ID)
	return nil
}

// paths returns the paths of a tree.
func (w *world) paths(tree, path, after string) []string {
	w.Helper()
	var all []string
	w.must(w.Walk(w.ctx(), tree, path, after, func(f api.File) error {
		all = append(all, f.Path)
		return nil
	}))
	return all
}

func (w *world) same(what string, got, want any) {
	w.Helper()
	if fmt.Sprint(got) != fmt.Sprint(want) {
		w.Errorf("%s: %v, want %v", what, got, want)
	}
}

func objectsAreKept(w *world) {
	for _, size := range []int{0, 1, 3000, smallObject, smallObject + 1, 20 << 20} {
		data := strings.Repeat("x", size)
		p := w.put(data)
		w.put(data)
		got, err := w.read(p.Digest)
		w.must(err)
		if got != data {
			w.Errorf("%d bytes came back as %d others", size, len(got))
		}
	}
	_, err := w.read(digestOf("never put"))
	w.wants(err, ErrNotFound, digestOf("never put"))
	_, err = w.read("../../etc/passwd")
	w.wants(err, ErrInvalid)
}

func wrongBytesLeaveNothing(w *world) {
	for _, size := range []int{10, 2 * smallObject} {
		right := strings.Repeat("r", size)
		d := digestOf(right)
		for name, data := range map[string]string{"others": strings.Repeat("w", size), "too few": right[1:], "too many": right + "r", "none": ""} {
			err := w.PutObject(w.ctx(), d, int64(size), strings.NewReader(data))
			w.wants(err, ErrInvalid, d)
			if _, err := w.read(d); !errors.Is(err, ErrNotFound) {
				w.Errorf("%s of %d bytes left something: %v", name, size, err)
			}
		}
		broken := io.MultiReader(strings.NewReader(right[:5]), iotestErr{io.ErrClosedPipe})
		w.wants(w.PutObject(w.ctx(), d, int64(size), broken), io.ErrClosedPipe)
		if _, err := w.read(d); !errors.Is(err, ErrNotFound) {
			w.Errorf("a broken upload left something: %v", err)
		}
	}
	left := 0
	w.must(w.bucket.list(w.ctx(), objectsPrefix, func(i item) error { left++; w.Logf("left: %s", i.key); return nil }))
	w.same("files left", left, 0)
}

type iotestErr struct{ error }

func (e iotestErr) Read([]byte) (int, error) { return 0, e.error }

func corruptionIsFound(w *world) {
	d := w.put("right").Digest
	for _, data := range []string{"wrong", "righ", "right!", ""} {
		w.must(w.bucket.put(w.ctx(), objectKey(d), []byte(data)))
		_, err := w.read(d)
		w.wants(err, ErrCorrupt, d)
	}
	w.put("right") // heals it
	got, err := w.read(d)
	w.must(err)
	w.same("healed", got, "right")

	c := w.committed("d", map[string]string{"a": "1"})
	w.must(w.bucket.put(w.ctx(), treeKey(c.Tree), []byte("no tree")))
	w.nodes = newNodeCache(cachedBytes)
	w.wants(w.Walk(w.ctx(), c.Tree, "", "", nil), ErrCorrupt, c.Tree)
}

func whatIsMissing(w *world) {
	var all []api.Part
	for i := range 100 {
		data := fmt.Sprint("object ", i)
		p := api.Part{Digest: digestOf(data), Size: int64(len(data))}
		if i%3 > 0 {
			w.put(data)
		}
		all = append(all, p, p)
	}
	w.must(w.bucket.put(w.ctx(), objectKey(all[2].Digest), []byte("cut"))) // object of another size
	missing, err := w.Missing(w.ctx(), all)
	w.must(err)
	w.same("missing", len(missing), 35)
	w.same("the first", missing[:2], []api.Part{all[0], all[2]})
	wrong := api.File{Path: "wrong", Digest: all[4].Digest, Size: all[4].Size + 1}
	_, err = w.Tree(w.ctx(), []api.File{{Path: "right", Digest: all[4].Digest, Size: all[4].Size}, wrong})
	w.wants(err, ErrMissing, wrong.Digest)
	_, err = w.Missing(w.ctx(), []api.Part{{Digest: "no digest"}})
	w.wants(err, ErrInvalid)
}

func treesHoldFiles(w *world) {
	files := []api.File{w.file("b/c", "1"), w.file("a", "22"), w.file("a-b", ""), w.file("ä/ö", "4")}
	files[1].Executable = true
	t, err := w.Tree(w.ctx(), files)
	w.must(err)
	slices.Reverse(files)
	again, err := w.Tree(w.ctx(), files)
	w.must(err)
	w.same("in another order", again, t)
	w.same("counts", fmt.Sprint(t.Files, t.Bytes), "4 4")
	w.nodes = newNodeCache(cachedBytes) // empty cache, like that of another process
	w.same("paths", w.paths(t.Tree, "", ""), "[a a-b b/c ä/ö]")
	f, err := w.File(w.ctx(), t.Tree, "a")
	w.must(err)
	w.same("the file", f, api.File{Path: "a", Digest: digestOf("22"), Size: 2, Executable: true})
	_, err = w.File(w.ctx(), t.Tree, "b")
	w.wants(err, ErrNotFound, `"b"`)
	w.wants(err, fs.ErrNotExist) // the tree was read
	if _, err = w.File(w.ctx(), digestOf("no tree"), "b"); !errors.Is(err, ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		w.Errorf("a file of a tree that is not there: %v", err)
	}
	_, err = w.Tree(w.ctx(), []api.File{fileOf("x", "never put")})
	w.wants(err, ErrMissing, digestOf("never put"))
	_, err = w.TreeRef(w.ctx(), digestOf("no tree"))
	w.wants(err, ErrNotFound)
	r, err := w.TreeRef(w.ctx(), t.Tree)
	w.must(err)
	w.same("as it is found", r, t)
}

func largeFiles(w *world) {
	one, two := bytes.Repeat([]byte("1"), 300_000), []byte("the end")
	whole := string(one) + string(two)
	f := fileOf("large", whole)
	f.Parts = []api.Part{w.put(string(one)), w.put(string(two))}
	t, err := w.Tree(w.ctx(), []api.File{f})
	w.must(err)
	f, err = w.File(w.ctx(), t.Tree, "large")
	w.must(err)
	r, err := w.OpenFile(w.ctx(), f)
	w.must(err)
	defer r.Close()
	data, err := io.ReadAll(r)
	w.must(err)
	if string(data) != whole {
		w.Errorf("%d bytes came back as %d others", len(whole), len(data))
	}
	f.Parts[0], f.Parts[1] = f.Parts[1], f.Parts[0]
	r, err = w.OpenFile(w.ctx(), f)
	w.must(err)
	defer r.Close()
	_, err = io.ReadAll(r)
	w.wants(err, ErrCorrupt, f.Digest)
}

func logs(w *world) {
	run := "abcdefghijklmnopqrstuvwxyz"
	for _, seq := range []int{0, 1, 1, 2, 4} {
		w.must(w.PutLog(w.ctx(), run, 1, seq, fmt.Append(nil, "chunk ", seq)))
	}
	w.must(w.PutLog(w.ctx(), run, 2, 0, []byte("of another attempt")))
	var got []string
	read := func(from int, gaps bool) error {
		got = nil
		return w.ReadLog(w.ctx(), run, 1, from, gaps, func(seq int, chunk []byte) error {
			got = append(got, fmt.Sprint(seq, ":", string(chunk)))
			return nil
		})
	}
	w.must(read(0, false))
	w.same("the log", got, "[0:chunk 0 1:chunk 1 2:chunk 2]")
	w.must(read(2, false))
	w.same("from 2", got, "[2:chunk 2]")
	w.must(read(3, false))
	w.same("from where there is none", got, "[]")
	w.must(read(2, true))
	w.same("with what is after a lost chunk", got, "[2:chunk 2 4:chunk 4]")
	w.must(read(5, true))
	w.same("after the last", got, "[]")
	w.wants(w.ReadLog(w.ctx(), run, 1, 0, false, func(int, []byte) error { return io.ErrClosedPipe }), io.ErrClosedPipe)
	w.wants(w.PutLog(w.ctx(), "../x", 1, 0, nil), ErrInvalid)
	w.wants(w.PutLog(w.ctx(), run, 0, 0, nil), ErrInvalid)
	logsOfSeveral(w, run)
}

// Workers other than the first have their own logs.
func logsOfSeveral(w *world, run string) {
	for _, process := range []string{"ps1", "w10", "w2"} {
		for _, seq := range []int{0, 1, 1} {
			w.must(w.PutPartLog(w.ctx(), run, 1, process, seq, fmt.Append(nil, process, " ", seq)))
		}
	}
	parts, err := w.LogParts(w.ctx(), run, 1)
	w.must(err)
	w.same("processes with a log", parts, "[w2 w10 ps1]")
	parts, err = w.LogParts(w.ctx(), run, 2)
	w.must(err)
	w.same("processes with a log in another attempt", parts, "[]")
	var got []string
	w.must(w.ReadPartLog(w.ctx(), run, 1, "w10", 1, true, func(seq int, chunk []byte) error {
		got = append(got, fmt.Sprint(seq, ":", string(chunk)))
		return nil
	}))
	w.same("the log of w10 from 1", got, "[1:w10 1]")
	for _, process := range []string{"", "w", "w01", "x1", "w-1", "../w1", "w1/x", "w123456"} {
		w.wants(w.PutPartLog(w.ctx(), run, 1, process, 0, nil), ErrInvalid, process)
	}
	w.must(w.RemoveRun(w.ctx(), run))
	parts, err = w.LogParts(w.ctx(), run, 1)
	w.must(err)
	w.same("processes with a log in a run that is gone", parts, "[]")
}

func checkpoints(w *world) {
	run := "abc"
	_, err := w.Checkpoint(w.ctx(), run)
	w.wants(err, ErrNotFound, run)
	trees := make([]api.TreeRef, 3)
	for i := range trees {
		trees[i], err = w.Tree(w.ctx(), []api.File{w.file("f", fmt.Sprint(i))})
		w.must(err)
	}
	for _, c := range []struct{ attempt, tree, want int }{{1, 0, 0}, {1, 1, 1}, {2, 2, 2}, {1, 0, 2}, {12, 0, 0}, {2, 2, 0}} {
		w.must(w.SetCheckpoint(w.ctx(), run, c.attempt, trees[c.tree]))
		got, err := w.Checkpoint(w.ctx(), run)
		w.must(err)
		w.same(fmt.Sprintf("after attempt %d", c.attempt), got, trees[c.want])
	}
	w.must(w.SetCheckpoint(w.ctx(), run, 13, trees[0])) // the same as that of attempt 12
	for attempt, want := range map[int]bool{1: true, 2: true, 3: false, 12: true, 13: false} {
		got, err := w.HasAdvanced(w.ctx(), run, attempt)
		w.must(err)
		w.same(fmt.Sprintf("attempt %d has a new one", attempt), got, want)
	}
	w.wants(w.SetCheckpoint(w.ctx(), run, 1, api.TreeRef{Tree: "x"}), ErrInvalid)
	_, err = w.Checkpoint(w.ctx(), "a/b")
	w.wants(err, ErrInvalid)
}
