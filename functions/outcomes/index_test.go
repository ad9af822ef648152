package outcomes

import (
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func (x *index) textOf(t *testing.T, n int) string {
	t.Helper()
	h := hashOf(strconv.Itoa(n))
	b, err := x.get(&h)
	if err != nil {
		t.Fatal(err)
	}
	if b == nil {
		return ""
	}
	var e entry
	if err := e.read(b); err != nil {
		t.Fatal(err)
	}
	return strings.Clone(e.labels[0].truth)
}

func (x *index) setText(n int, text string, ms int64) {
	h := hashOf(strconv.Itoa(n))
	x.put(&h, &entry{newest: ms, labels: []label{{truth: text, position: position{1, 2}}}})
}

// The index has the newest text of each number, whether in memory, on disk or merged, and after it was opened again.
func TestTheIndexIsAMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	x, err := openIndex(dir, "s", 50)
	if err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	want := map[int]string{}
	for i := range 20_000 {
		n := r.IntN(3000)
		want[n] = strings.Repeat("x", r.IntN(100)) + strconv.Itoa(i)
		x.setText(n, want[n], int64(i))
		if x.isFull() {
			if err := x.seal("s", places{Answers: []int64{int64(i)}}); err != nil {
				t.Fatal(err)
			}
			if err := x.drop(0, "s"); err != nil {
				t.Fatal(err)
			}
		}
		if i%5000 == 4999 {
			places := x.places
			if err := x.seal("s", places); err != nil {
				t.Fatal(err)
			}
			if err := x.close(); err != nil {
				t.Fatal(err)
			}
			if x, err = openIndex(dir, "s", 50); err != nil {
				t.Fatal(err)
			}
			if x.places.Answers[0] != places.Answers[0] {
				t.Fatalf("the places are %v", x.places)
			}
		}
	}
	for n := range 3000 {
		if got := x.textOf(t, n); got != want[n] {
			t.Fatalf("%d: %q, want %q", n, got, want[n])
		}
	}
	if len(x.segments) > 90 {
		t.Errorf("%d segments: none were merged", len(x.segments))
	}
	x.closeFiles()
}

// Entries that are too old leave the disk: with their segment, or when it is merged.
func TestOldEntriesAreDropped(t *testing.T) {
	t.Parallel()
	x, err := openIndex(t.TempDir(), "s", 10)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 400 {
		x.setText(i, "text", int64(i))
		if !x.isFull() {
			continue
		}
		if err := x.seal("s", places{Answers: []int64{1}}); err != nil {
			t.Fatal(err)
		}
		if err := x.drop(int64(i-100), "s"); err != nil {
			t.Fatal(err)
		}
		if x.merging != nil {
			if err := x.endMerge(<-x.merged, "s"); err != nil {
				t.Fatal(err)
			}
		}
	}
	files, err := filepath.Glob(filepath.Join(x.dir, "[0-9]*"))
	if err != nil {
		t.Fatal(err)
	}
	if x.count() > 250 || len(files) != len(x.segments) {
		t.Errorf("%d entries in %d segments and %d files", x.count(), len(x.segments), len(files))
	}
	for i := 300; i < 400; i++ {
		if x.textOf(t, i) == "" {
			t.Errorf("%d is gone", i)
		}
	}
	x.closeFiles()
}

// A torn or damaged file is found, at the opening or at the read.
func TestADamagedFileIsFound(t *testing.T) {
	t.Parallel()
	for name, damage := range map[string]func([]byte) []byte{
		"torn":       func(b []byte) []byte { return b[:len(b)-5] },
		"empty":      func([]byte) []byte { return nil },
		"a bad foot": func(b []byte) []byte { b[len(b)-tailBytes-3]++; return b },
		"a bad block": func(b []byte) []byte {
			b[30]++
			return b
		},
	} {
		tab := newTable()
		for i := range 10 {
			h := hashOf(strconv.Itoa(i))
			x := index{table: tab}
			x.put(&h, &entry{newest: 1})
		}
		path := filepath.Join(t.TempDir(), "0")
		s, err := writeSegment(path, tab)
		if err != nil {
			t.Fatal(err)
		}
		_ = s.file.Close()
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, damage(b), 0o600); err != nil {
			t.Fatal(err)
		}
		s, err = openSegment(path)
		if err == nil {
			h := hashOf("3")
			_, err = s.get(&h)
		}
		if !errors.Is(err, errSegment) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func FuzzEntry(f *testing.F) {
	e := entry{newest: 5, labels: []label{{truth: "a", id: "b"}}, answers: []answer{{revision: 3, truth: "x"}}}
	f.Add(e.append(nil))
	f.Fuzz(func(t *testing.T, b []byte) {
		var e, again entry
		if e.read(b) != nil {
			return
		}
		if err := again.read(e.append(nil)); err != nil || len(again.labels) != len(e.labels) || len(again.answers) != len(e.answers) {
			t.Errorf("%v: %+v is read as %+v", err, e, again)
		}
	})
}

// The states before of an entry that changes often take no memory, however many changes one commit has.
func TestChangesOfOneEntryTakeNoMemory(t *testing.T) {
	t.Parallel()
	x, err := openIndex("", "s", 50)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = x.close() }()
	text := strings.Repeat("x", 1<<20)
	x.setText(1, "one", 1)
	for range 3*mostTableBytes>>20 + 8 {
		x.setText(2, text, 2)
	}
	if n := cap(x.table.bytes); n > 2*mostTableBytes {
		t.Errorf("two entries take %d MiB", n>>20)
	}
	if x.textOf(t, 1) != "one" || x.textOf(t, 2) != text || x.isFull() {
		t.Error("the entries are others, or the table is full")
	}
}
