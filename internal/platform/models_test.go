package platform

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/registry"
)

// hideTrees hides some of the nodes of trees, as a bucket does that lags. It returns a
// function that shows them again. The store is opened again, because it caches nodes.
func (w *scoringWorld) hideTrees(some func(node string) bool) (show func()) {
	w.Helper()
	trees := filepath.Join(w.addresses.Store, "trees")
	away := w.TempDir()
	nodes, err := filepath.Glob(filepath.Join(trees, "*", "*"))
	w.must(err)
	hidden := map[string]string{} // from where to where
	for _, at := range nodes {
		if some(filepath.Base(at)) {
			hidden[at] = filepath.Join(away, filepath.Base(at))
			w.must(os.Rename(at, hidden[at]))
		}
	}
	if len(hidden) == 0 {
		w.Fatal("no node is hidden")
	}
	w.works.store, err = store.Open(w.ctx(), store.Options{URL: w.addresses.Store})
	w.must(err)
	if w.scores != nil {
		w.scores.store = w.works.store
	}
	return func() {
		for at, to := range hidden {
			w.must(os.Rename(to, at))
		}
	}
}

// A tree that the store does not have now, or of which it lacks a part, is no verdict about a model:
// a bucket may lag. The trial, and every load, is tried again.
func TestATreeIsNotThereYet(t *testing.T) {
	t.Parallel()
	w := newScoringWorld(t, scorersOfTrials)
	for name, c := range map[string]struct {
		model string
		files int // besides model.onnx; a tree of many files has several nodes
	}{
		"a tree":                  {"intent/bot-1", 1},
		"a tree without a scorer": {"other/bot-1", 1},
		"a part":                  {"intent/bot-1", 400},
		"a part without a scorer": {"other/bot-1", 400},
	} {
		files := map[string][]byte{"model.onnx": twoLabels(true)}
		for i := range c.files {
			files[fmt.Sprintf("m%03d", i)] = []byte(name)
		}
		tree := w.putFiles(files)
		show := w.hideTrees(func(node string) bool { return node == tree == (c.files == 1) })
		ask := registry.ServingRequest{Model: c.model, Key: "bot-1", Artifact: tree}
		if got, err := w.tryModel(w.ctx(), ask); err == nil || !strings.Contains(err.Error(), "is not in the store") || got != nil && got.Error != "" {
			t.Errorf("%s is not there: the trial is %+v, %v", name, got, err)
		}
		show()
		if got, err := w.tryModel(w.ctx(), ask); err != nil || got == nil || got.Error != "" || got.Rows == 0 {
			t.Errorf("%s has come: the trial is %+v, %v", name, got, err)
		}
	}
}

// putFiles puts the files of a version into the store, and returns their tree.
func (w *scoringWorld) putFiles(files map[string][]byte) string {
	w.Helper()
	var all []api.File
	for path, data := range files {
		sum := sha256.Sum256(data)
		f := api.File{Path: path, Digest: hex.EncodeToString(sum[:]), Size: int64(len(data))}
		w.must(w.Store().PutObject(w.ctx(), f.Digest, f.Size, bytes.NewReader(data)))
		all = append(all, f)
	}
	tree, err := w.Store().Tree(w.ctx(), all)
	w.must(err)
	return tree.Tree
}

const scorersOfTrials = scorersOfTests + `  mapped: {from: messages, to: scored, model: "mapped/{key}", map: {text: data.text}}
  runtime: {from: messages, to: scored, model: "runtime/{key}", engine: onnxruntime}
  common: {from: messages, to: scored, model: "common/{key}", noModel: {model: common/default}}
  small: {from: messages, to: scored, model: "small/{key}", engine: go}
`

// The model of a version is tried by the engine of its scorer. Each fault has the words of the
// scorer.
func TestAModelIsTried(t *testing.T) {
	t.Setenv("TIDEMILL_ONNXRUNTIME", t.TempDir()+"/none.so")
	w := newScoringWorld(t, scorersOfTrials)
	good, onlyNaN := twoLabels(true), bytes.Replace(twoLabels(true), []byte{0, 0, 0x80, 0x40}, []byte{0, 0, 0xc0, 0x7f}, 1) // 4 becomes NaN
	card := func(text string) []byte { return []byte(text) }
	for name, c := range map[string]struct {
		model, key  string
		files       map[string][]byte
		labels      []string
		err, lacks  string
		warning     string
		engine      string
		rows        int
		golden, not bool // whether it answers a golden request; whether nothing is tried
	}{
		"a good model":             {model: "intent/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good}, labels: []string{"yes"}, engine: "go", rows: 8},
		"a golden request":         {model: "intent/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good, "model.yaml": card("golden: {inputs: {x: [[1, 0]]}, label: \"yes\"}")}, engine: "go", golden: true},
		"another golden answer":    {model: "intent/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good, "model.yaml": card("golden: {inputs: {x: [[1, 0]]}, label: \"no\"}")}, err: `answers the golden request, row 1, with "yes"`},
		"a corrupt file":           {model: "intent/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good[:len(good)/2]}, err: "cut off"},
		"no model":                 {model: "intent/bot-1", key: "bot-1", files: map[string][]byte{"notes.txt": card("x")}, err: "has no model.onnx; the run has to write one into TIDEMILL_OUT"},
		"numbers that are NaN":     {model: "intent/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": onlyNaN}, err: "all have NaN or infinite numbers"},
		"labels of other names":    {model: "intent/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good}, labels: []string{"0", "1"}, err: "its labels are yes, no, and predictions.csv has 0, 1"},
		"a label that it lacks":    {model: "intent/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good}, labels: []string{"maybe", "yes", "nein"}, engine: "go", rows: 8, warning: "predictions.csv has maybe, nein, which the model cannot answer: its labels are yes, no"},
		"a ZipMap as its output":   {model: "small/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": zipMapped(false)}, labels: []string{"yes"}, engine: "go", rows: 8},
		"a ZipMap inside":          {model: "small/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": zipMapped(true)}, err: "export with zipmap=False"},
		"an input with no field":   {model: "mapped/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good}, err: `map input "text"`},
		"no ONNX Runtime":          {model: "runtime/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good}, lacks: "ONNX Runtime is not installed"},
		"a model for other keys":   {model: "common/default", key: "any", files: map[string][]byte{"model.onnx": good[:99]}, err: "cut off"},
		"no scorer, and no model":  {model: "other/bot-1", key: "bot-1", files: map[string][]byte{"notes.txt": card("x")}, not: true},
		"no scorer, a corrupt one": {model: "other/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good[:99]}, err: "cut off"},
		"no scorer, no runtime":    {model: "other/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": zipMapped(true)}, lacks: "ONNX Runtime is not installed"},
	} {
		got, err := w.tryModel(t.Context(), registry.ServingRequest{Model: c.model, Key: c.key, Artifact: w.putFiles(c.files), Labels: c.labels})
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.not:
			if got != nil {
				t.Errorf("%s: %+v", name, got)
			}
		case got == nil, (c.err == "") != (got.Error == ""), !strings.Contains(got.Error, c.err), (c.lacks == "") != (got.Missing == ""), !strings.Contains(got.Missing, c.lacks),
			(c.warning == "") != (got.Warning == ""), !strings.Contains(got.Warning, c.warning),
			c.engine != "" && (got.Engine != c.engine || got.Golden != c.golden || got.Rows != c.rows):
			t.Errorf("%s: %+v", name, got)
		}
	}
}
