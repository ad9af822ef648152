package runs

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tidemill.dev/config"
)

func TestTroublesPass(t *testing.T) {
	t.Parallel()
	var s troubles
	away := errors.New("the store is away")
	if s.aside("a", noon) || s.err(noon) != nil {
		t.Error("there is trouble before any")
	}
	if !s.add("a", away, noon) || s.add("a", away, noon) {
		t.Error("what is new is not told from what is known")
	}
	for _, c := range []struct {
		after       time.Duration
		aside, told bool
	}{{0, true, true}, {asideFor - 1, true, true}, {asideFor, false, true}, {2 * asideFor, false, true}, {2*asideFor + 1, false, false}} {
		if at := noon.Add(c.after); s.aside("a", at) != c.aside || (s.err(at) != nil) != c.told || s.aside("b", at) {
			t.Errorf("after %s: aside %t, told %v", c.after, s.aside("a", at), s.err(at))
		}
	}
	s.add("a", away, noon)
	if err := s.err(noon); !errors.Is(err, away) || !strings.Contains(err.Error(), "recipe a") {
		t.Errorf("it is told as %v", err)
	}
	if s.over("a"); s.aside("a", noon) || s.err(noon) != nil {
		t.Error("what is over goes on")
	}
}

func TestCrowds(t *testing.T) {
	t.Parallel()
	var c crowds
	c.note("a", "gpu", noon)
	c.note("b", "cpu", noon)
	if !c.at("a", noon) || !c.at("b", noon) || c.at("c", noon) || c.at("a", noon.Add(crowdedFor)) {
		t.Errorf("the crowds are %v", c.of)
	}
	if c.over("gpu"); c.at("a", noon) || !c.at("b", noon) {
		t.Errorf("after a slot became free the crowds are %v", c.of)
	}
}

// One recipe's data cannot be read for now: it is reported, and the others of its
// pool go on.
func TestATroubleIsInNobodysWay(t *testing.T) {
	r := plain("blocked")
	r.Inputs = []config.InputFrom{{Name: "examples", Dataset: "bots/{key}", Branch: "main"}}
	r.Run.Priority = 100
	w := newWorld(t, r, plain("intent"))
	w.put("bots/k", "a.csv", "1")
	dir := w.block("bots")
	f := w.foreman(nil)
	stop := w.watch(f)
	blocked := w.ask(f, wish("blocked", "k", "1"))
	free := w.ask(f, wish("intent", "k", "1"))
	w.soon("the other begins", func() bool { return len(w.launch.of(free.Run)) == 1 })
	w.soon("it is told", func() bool { return f.Status().Err != nil })
	if err := f.Status().Err; !strings.Contains(err.Error(), "begin a run of recipe blocked: look the input examples up") {
		t.Errorf("it is told as %v", err)
	}
	stop() // or it could look between the two, and find that there is no data
	w.must(os.Remove(dir))
	w.must(os.Rename(dir+".aside", dir))
	w.watch(f)
	w.soon("it begins", func() bool { return len(w.launch.of(blocked.Run)) == 1 })
	w.soon("all is well", func() bool { s := f.Status(); return s.Err == nil && s.Watching })
}

// block puts a file where the store has a folder of a dataset's, so that what lies
// there can neither be read nor found missing.
func (w *world) block(name string) (dir string) {
	w.Helper()
	err := filepath.WalkDir(w.dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == name && dir == "" {
			dir = path
		}
		return err
	})
	if w.must(err); dir == "" {
		w.Fatalf("the store has no folder %s", name)
	}
	w.must(os.Rename(dir, dir+".aside"))
	w.must(os.WriteFile(dir, nil, 0o600))
	return dir
}
