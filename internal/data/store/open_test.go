package store

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
)

func TestURLs(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("AWS_REGION", "")
	for at, want := range map[string]string{ // expected part of the error; empty for no error
		filepath.Join(dir, "new", "store"): "",
		"file://" + dir + "/other":         "",
		"":                                 "no URL",
		"file://elsewhere/x":               "this machine",
		"file://":                          "this machine",
		"file:///x?create_dir=1":           "this machine",
		"ftp://x?secret=geheim":            "ftp://x",
		"s3://x\x7f":                       "URL",
		file:                               "file",
		"s3://bucket?unknown=geheim":       "s3://bucket: the URL has an unknown parameter",
		"mem://":                           "mem://",
	} {
		s, err := Open(t.Context(), Options{URL: at})
		if err == nil {
			err = s.Close()
		}
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", at, err, want)
		}
	}
}

// A folder that was removed, emptied or replaced is not an empty store.
func TestALostFolderIsNoticed(t *testing.T) {
	for name, lose := range map[string]func(dir string) error{
		"removed":  os.RemoveAll,
		"replaced": func(dir string) error { return errors.Join(os.Rename(dir, dir+".old"), os.Mkdir(dir, 0o700)) },
		"another store": func(dir string) error {
			if err := os.Rename(dir, dir+".old"); err != nil {
				return err
			}
			other, err := Open(t.Context(), Options{URL: dir})
			return errors.Join(err, other.Close())
		},
	} {
		dir := filepath.Join(t.TempDir(), "store")
		w := &world{T: t, Store: openStore(t, dir)}
		w.committed("d", map[string]string{"f": "1"})
		w.must(lose(dir))
		_, missing := w.Head(t.Context(), "d", "main")
		for what, err := range map[string]error{
			"ping": w.Ping(t.Context()), "a list": w.Datasets(t.Context(), "", func(Dataset) error { return nil }), "a commit": missing,
			"a write": w.PutObject(t.Context(), digestOf("x"), 1, strings.NewReader("x")),
		} {
			if name == "another store" && what == "a write" {
				continue // its folders exist, so the write goes there
			}
			if !errors.Is(err, ErrGone) || errors.Is(err, ErrNotFound) {
				t.Errorf("%s, %s: %v", name, what, err)
			}
		}
		if entries, _ := os.ReadDir(dir); name == "removed" && len(entries) > 0 {
			t.Errorf("it was made again: %v", entries)
		}
	}
}

// Listings do not show unfinished files.
// /dev/full is a disk without room. TestRealFullDisks has whole disks.
func TestAFullDiskIsSaid(t *testing.T) {
	dir := t.TempDir()
	f, err := openFolder(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", f.path("key")); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(f.path("key")); err != nil {
		t.Skip("there is no /dev/full")
	}
	if err := f.over(t.Context(), "key", []byte("x")); !errors.Is(err, ErrFull) || !strings.Contains(err.Error(), "disk full: the store's folder "+dir) {
		t.Errorf("got %v", err)
	}
}

func TestHalfWrittenFilesAreNotSeen(t *testing.T) {
	w := &world{T: t, Store: openStore(t, t.TempDir())}
	c := w.committed("d", map[string]string{"f": "1"})
	w.must(w.SetCheckpoint(t.Context(), "r", 1, w.tree("checkpoint")))
	for _, key := range []string{headKey("d", "half"), headKey("half", "main"), refKey("d", "main", 2), idKey("d", c.ID[:5]+"x"),
		intentKey("i"), condemnsPrefix + "c", checkpointKey("r", 2), chunkKey(logOf("r", 1, ""), 0), objectKey(digestOf("half"))} {
		path := w.path(key) + ".18ab.tmp"
		w.must(os.MkdirAll(filepath.Dir(path), 0o700))
		w.must(os.WriteFile(path, []byte("ha"), 0o600))
	}
	w.must(w.Datasets(t.Context(), "", func(d Dataset) error { w.same("dataset", d, Dataset{"d", []string{"main"}}); return nil }))
	_, err := w.FindCommit(t.Context(), "d", c.ID[:5])
	w.must(err)
	_, err = w.Checkpoint(t.Context(), "r")
	w.must(err)
	w.must(w.Recover(t.Context(), w.announce))
	w.committed("d", map[string]string{"f": "2"})
}

// A reader gets one whole text while a key is replaced by a shorter or a longer one, although the
// size that it was given may be of the other text.
func TestWhatIsReplacedIsReadWhole(t *testing.T) {
	b := openStore(t, t.TempDir()).bucket
	long, short := strings.Repeat("long", 100), "short"
	ended := make(chan error, 1)
	go func() {
		for i := range 2000 {
			if err := b.put(t.Context(), "k", []byte([]string{long, short}[i%2])); err != nil {
				ended <- err
				return
			}
		}
		ended <- nil
	}()
	for {
		data, err := b.get(t.Context(), "k")
		if err != nil && !errors.Is(err, ErrNotFound) || err == nil && string(data) != long && string(data) != short {
			t.Fatalf("%q: %v", data, err)
		}
		select {
		case err := <-ended:
			if err != nil {
				t.Fatal(err)
			}
			return
		default:
		}
	}
}

// A power cut can empty the newest files of a folder. The next tests check that none of them stops the store.

func TestAPowerCutEmptiesAnIntent(t *testing.T) {
	w := &world{T: t, Store: openStore(t, t.TempDir())}
	c, err := w.commit("d", map[string]string{"f": "1"}, CommitRequest{Announce: func(context.Context, api.Commit) error { return errors.New("the power is cut") }})
	if c.ID == "" || err == nil {
		t.Fatalf("commit: %+v, %v", c, err)
	}
	for _, id := range []string{c.ID, "never"} {
		w.must(w.bucket.put(t.Context(), intentKey(id), nil))
	}
	if _, err := w.Collect(t.Context(), Collection{}); err != nil {
		t.Error(err)
	}
	if _, err := w.RemoveDataset(t.Context(), "other"); err != nil {
		t.Error(err)
	}
	if err := w.Recover(t.Context(), w.announce); err != nil {
		t.Error(err)
	}
	w.same("announced", w.announced, []string{c.ID})
	w.same("intents", w.remains(intentsPrefix), []string(nil))
}

func TestAPowerCutEmptiesAListOfACollection(t *testing.T) {
	w := &world{T: t, Store: openStore(t, t.TempDir())}
	list := condemnsPrefix + "list"
	w.must(w.bucket.put(t.Context(), list, nil))
	if c, err := w.condemn(t.Context(), list); err != nil || c.Done || !c.names(map[string]bool{"any": true}) {
		t.Errorf("it may name every key: %+v, %v", c, err)
	}
	later(w.Store, condemnedFor+time.Minute)
	w.committed("d", map[string]string{"f": "1"})
}

func TestAPowerCutEmptiesACheckpoint(t *testing.T) {
	w := &world{T: t, Store: openStore(t, t.TempDir())}
	older := w.tree("older")
	w.must(w.SetCheckpoint(t.Context(), "r", 1, older))
	for _, key := range []string{checkpointKey("r", 2), checkpointKey("first", 1)} {
		w.must(w.bucket.put(t.Context(), key, nil))
	}
	if got, err := w.Checkpoint(t.Context(), "r"); err != nil || got != older {
		t.Errorf("the checkpoint is %+v, %v", got, err)
	}
	_, err := w.Checkpoint(t.Context(), "first")
	w.wants(err, ErrCorrupt, "first")
	if _, err := w.Collect(t.Context(), Collection{}); err != nil {
		t.Error(err)
	}
}

// A file system may take two names that differ only in case for one, as on a Mac. Then a dataset must not
// get the commits of another one.
func TestAFileSystemWithoutCase(t *testing.T) {
	t.Parallel()
	w := &world{T: t, Store: openStore(t, t.TempDir())}
	defer w.Close()
	w.committed("Shop", map[string]string{"a": "1"})
	for _, prefix := range []string{headsPrefix, refsPrefix} {
		must(t, os.Rename(w.path(prefix+"Shop"), w.path(prefix+"shop")))
	}
	_, err := w.Head(t.Context(), "shop", "main")
	if err == nil || !strings.Contains(err.Error(), "is one of dataset Shop") {
		t.Errorf("the head is %v", err)
	}
}
