package store

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/api"
)

// memory stores encoded nodes, so that everything is decoded when it is read.
type memory struct {
	*testing.T
	nodes map[string][]byte
	loads int
}

func newMemory(t *testing.T) *memory { return &memory{T: t, nodes: map[string][]byte{}} }

func (m *memory) load(digest string) (*node, error) {
	m.loads++
	data, ok := m.nodes[digest]
	if !ok {
		return nil, ErrNotFound
	}
	return decodeNode(data)
}

func (m *memory) edit(root string, changes []api.Change) edited {
	m.Helper()
	sorted, err := inOrder(changes)
	if err != nil {
		m.Fatal(err)
	}
	e, err := edit(root, sorted, m.load)
	if err != nil {
		m.Fatal(err)
	}
	for digest, made := range e.fresh {
		m.nodes[digest] = made.data
	}
	return e
}

func (m *memory) whole(files map[string]api.File) edited {
	var changes []api.Change
	for _, f := range files {
		changes = append(changes, api.Change{File: f})
	}
	return m.edit("", changes)
}

// change makes n random changes, and applies them to a model as well.
func change(r *rand.Rand, model map[string]api.File, n, folders int) []api.Change {
	known := slices.Sorted(maps.Keys(model))
	changes := map[string]api.Change{}
	for range n {
		path := fmt.Sprintf("f%d/%d", r.IntN(folders), r.IntN(1_000_000))
		if len(known) > 0 && r.IntN(3) > 0 {
			path = known[r.IntN(len(known))]
		}
		c := api.Change{File: fileOf(path, fmt.Sprint(r.IntN(1000)))}
		c.Executable, c.Remove = r.IntN(5) == 0, r.IntN(2) == 0
		changes[path] = c
	}
	for path, c := range changes {
		if c.Remove {
			delete(model, path)
		} else {
			model[path] = c.File
		}
	}
	return slices.Collect(maps.Values(changes))
}

// The same files make the same tree, whatever the order of edits. The tree has the same files
// as a map.
func TestTreesAreCanonical(t *testing.T) {
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			m, model, root := newMemory(t), map[string]api.File{}, ""
			for range 16 {
				n := 1 + r.IntN(1<<r.IntN(12))
				before := maps.Clone(model)
				was := root
				e := m.edit(root, change(r, model, n, 1+r.IntN(5)))
				root = e.root.digest
				m.holds(e, model)
				m.differs(was, root, before, model)
			}
		})
	}
}

func (m *memory) holds(e edited, model map[string]api.File) {
	m.Helper()
	if want := m.whole(model); want.root != e.root {
		m.Fatalf("%d files: edited to %+v, made at once %+v", len(model), e.root, want.root)
	}
	var got []string
	if err := below(m.load, e.root.digest, "", "", func(f api.File) error {
		got = append(got, f.Path)
		if want := model[f.Path]; !sameFile(f, want) {
			m.Errorf("%s is %+v, want %+v", f.Path, f, want)
		}
		return nil
	}); err != nil {
		m.Fatal(err)
	}
	if want := slices.Sorted(maps.Keys(model)); !slices.Equal(got, want) {
		m.Fatalf("%d paths, want %d", len(got), len(want))
	}
	if e.root.files != len(model) {
		m.Errorf("the tree says %d files of %d", e.root.files, len(model))
	}
}

func (m *memory) differs(a, b string, was, is map[string]api.File) {
	m.Helper()
	got := map[string]bool{}
	last := ""
	if err := differences(m.load, a, b, func(x, y *api.File) error {
		path := ""
		if x != nil {
			path = x.Path
		}
		if y != nil {
			path = y.Path
		}
		if path <= last {
			m.Errorf("%q comes behind %q", path, last)
		}
		last, got[path] = path, true
		if (x == nil) == has(was, path) || (y == nil) == has(is, path) {
			m.Errorf("%q: was %v, is %v", path, x, y)
		}
		return nil
	}); err != nil {
		m.Fatal(err)
	}
	for _, path := range slices.Concat(slices.Collect(maps.Keys(was)), slices.Collect(maps.Keys(is))) {
		if differ := has(was, path) != has(is, path) || !sameFile(was[path], is[path]); differ != got[path] {
			m.Errorf("%q: told %v", path, got[path])
		}
	}
}

func has(model map[string]api.File, path string) bool { _, ok := model[path]; return ok }

// One more file in a large folder opens and makes only a few nodes. Opening a few finds it.
func TestASmallChangeOfALargeTreeIsSmall(t *testing.T) {
	for _, folders := range []int{1, 2000} {
		m := newMemory(t)
		var changes []api.Change
		for _, f := range numbered(50_000, folders) {
			changes = append(changes, api.Change{File: f})
		}
		root := m.edit("", changes).root.digest
		r := rand.New(rand.NewPCG(1, 1))
		loads, made := 0, 0
		const rounds = 20
		for i := range rounds {
			m.loads = 0
			e := m.edit(root, []api.Change{{File: fileOf(fmt.Sprintf("%03d/new-%d", r.IntN(folders), i), "")}})
			loads, made = loads+m.loads, made+len(e.fresh)
			if err := differences(m.load, root, e.root.digest, func(_, is *api.File) error {
				if !strings.Contains(is.Path, "/new-") {
					t.Errorf("%s has not changed", is.Path)
				}
				return nil
			}); err != nil {
				t.Fatal(err)
			}
			if m.loads > 60 {
				t.Errorf("one change and its difference opened %d nodes", m.loads)
			}
		}
		if loads > 25*rounds || made > 5*rounds {
			t.Errorf("%d changes opened %d nodes and made %d", rounds, loads, made)
		}
	}
}

func TestWalkBeginsAndEndsAnywhere(t *testing.T) {
	m := newMemory(t)
	model := map[string]api.File{}
	for _, path := range []string{"a", "a-b", "a.b/c", "b/1", "b/2/3", "b/2/4", "b0", "b-", "ü"} {
		model[path] = fileOf(path, path)
	}
	for i := range 3000 {
		path := fmt.Sprintf("m/%d/%d", i%7, i)
		model[path] = fileOf(path, path)
	}
	root := m.whole(model).root.digest
	all := slices.Sorted(maps.Keys(model))
	for _, path := range []string{"", "a", "b", "b/2", "b/2/3", "m", "m/3", "none", "ü", "m/6/2995"} {
		for _, after := range []string{"", "a", "b/2", "b/2/3", "m/3/1004", "m/3/1004x", "z", "ü"} {
			var want, got []string
			for _, p := range all {
				if (path == "" || p == path || strings.HasPrefix(p, path+"/")) && p > after {
					want = append(want, p)
				}
			}
			if err := below(m.load, root, path, after, func(f api.File) error { got = append(got, f.Path); return nil }); err != nil {
				t.Fatal(err)
			}
			if !slices.Equal(got, want) {
				t.Errorf("at or below %q, behind %q: %v, want %v", path, after, got, want)
			}
		}
	}
}

func TestFilesAndFoldersDoNotClash(t *testing.T) {
	put := func(path string) api.Change { return api.Change{File: fileOf(path, "")} }
	remove := func(path string) api.Change { return api.Change{File: api.File{Path: path}, Remove: true} }
	for name, c := range map[string]struct {
		before, changes []api.Change
		want            []string // words of the error; none for no error
	}{
		"a file where a folder is":      {[]api.Change{put("a/b")}, []api.Change{put("a")}, []string{`"a"`, `"a/b"`}},
		"a file below a file":           {[]api.Change{put("a")}, []api.Change{put("a/b/c")}, []string{`"a"`, `"a/b/c"`}},
		"both at once":                  {nil, []api.Change{put("x/y/z"), put("x/y")}, []string{`"x/y"`, `"x/y/z"`}},
		"with others between":           {[]api.Change{put("a"), put("a-"), put("a.")}, []api.Change{put("a/b")}, []string{`"a"`, `"a/b"`}},
		"the folder is emptied":         {[]api.Change{put("a/b")}, []api.Change{put("a"), remove("a/b")}, nil},
		"the file is removed":           {[]api.Change{put("a")}, []api.Change{put("a/b"), remove("a")}, nil},
		"one of two in it is removed":   {[]api.Change{put("a/b"), put("a/c")}, []api.Change{put("a"), remove("a/b")}, []string{`"a"`, `"a/c"`}},
		"a name that begins like one":   {[]api.Change{put("a/b")}, []api.Change{put("a-b"), put("ab")}, nil},
		"a file changes, a folder stay": {[]api.Change{put("a/b")}, []api.Change{put("a/b"), put("a/c")}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			m := newMemory(t)
			before := m.edit("", c.before)
			sorted, err := inOrder(c.changes)
			if err != nil {
				t.Fatal(err)
			}
			_, err = edit(before.root.digest, sorted, m.load)
			if (err != nil) != (len(c.want) > 0) {
				t.Fatalf("the error is %v", err)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("the error does not name %s: %v", w, err)
				}
			}
		})
	}
}

// The digests of trees must never change, because old commits name them.
func TestDigestsOfTreesStay(t *testing.T) {
	m := newMemory(t)
	large := fileOf("large", "12")
	large.Parts = []api.Part{{Digest: digestOf("1"), Size: 1}, {Digest: digestOf("2"), Size: 1}}
	script := fileOf("bin/run", "#!")
	script.Executable = true
	small := m.edit("", []api.Change{{File: large}, {File: script}, {File: fileOf("bin/a", "")}})
	for i, digest := range []string{m.edit("", nil).root.digest, small.root.digest, m.whole(model(5000)).root.digest} {
		want := []string{
			"fb50dc0717ff266cf9baf82b1ce7a1c2ef6d9247859680b11a19fb7077f5f222",
			"44e29ea43b0117ab5ff292ca76e9769781f7c329327119c2b97de3a63f561912",
			"c1b8261b72ef473c1922a2c65a6a39769ecf50c23560de089efc6de1deb0c645",
		}[i]
		if digest != want {
			t.Errorf("tree %d is %s, was %s", i, digest, want)
		}
	}
}

func model(n int) map[string]api.File {
	all := map[string]api.File{}
	for _, f := range numbered(n, 3) {
		all[f.Path] = f
	}
	return all
}

func FuzzDecodeNode(f *testing.F) {
	n := node{files: []api.File{fileOf("a", "1"), fileOf("a/b", "2")}}
	n.files[1].Parts = []api.Part{{Digest: digestOf("2"), Size: 1}}
	f.Add(n.encode())
	f.Add((&node{level: 1, kids: []kid{n.short(n.encode())}}).encode())
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := decodeNode(data)
		if err != nil {
			return
		}
		if again := n.encode(); string(again) != string(data) {
			t.Errorf("%x is written as %x", data, again)
		}
	})
}

func TestSaidRemembers(t *testing.T) {
	var head *record
	for i := 1; i <= 300; i++ {
		r := CommitRequest{Run: fmt.Sprint("run", i)}
		if i%2 == 0 {
			r.Request = fmt.Sprint("request", i)
		}
		head = next(head, r, edited{})
	}
	for i := 1; i <= 300; i++ {
		want := int64(i)
		if i <= 300-recentCommits {
			want = 0
		}
		if got := head.numberMadeBy("", fmt.Sprint("run", i)); got != want {
			t.Errorf("run %d was commit %d", i, got)
		}
		if got := head.numberMadeBy(fmt.Sprint("request", i), ""); got != want*int64(1-i%2) {
			t.Errorf("request %d was commit %d", i, got)
		}
	}
	if got := head.numberMadeBy("", ""); got != 0 {
		t.Errorf("nothing was commit %d", got)
	}
}

func TestLastIsFoundFromAnywhere(t *testing.T) {
	for n := range int64(40) {
		for known := range n + 1 {
			asked := 0
			got, err := last(known, func(i int64) (bool, error) { asked++; return i <= n, nil })
			if err != nil || got != n {
				t.Errorf("from %d: %d, %v, want %d", known, got, err, n)
			}
			if known == n && asked != 1 || asked > 14 {
				t.Errorf("from %d to %d: asked %d times", known, n, asked)
			}
		}
	}
}
