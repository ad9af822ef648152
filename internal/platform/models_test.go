package platform

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/internal/models/registry"
)

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
		"an input with no field":   {model: "mapped/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good}, err: `map input "text"`},
		"no ONNX Runtime":          {model: "runtime/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good}, lacks: "ONNX Runtime is not installed"},
		"a model for other keys":   {model: "common/default", key: "any", files: map[string][]byte{"model.onnx": good[:99]}, err: "cut off"},
		"no scorer, and no model":  {model: "other/bot-1", key: "bot-1", files: map[string][]byte{"notes.txt": card("x")}, not: true},
		"no scorer, a corrupt one": {model: "other/bot-1", key: "bot-1", files: map[string][]byte{"model.onnx": good[:99]}, err: "cut off"},
	} {
		got, err := w.tryModel(t.Context(), registry.TrialRequest{Model: c.model, Key: c.key, Artifact: w.putFiles(c.files), Labels: c.labels})
		switch {
		case err != nil:
			t.Errorf("%s: %v", name, err)
		case c.not:
			if got != nil {
				t.Errorf("%s: %+v", name, got)
			}
		case got == nil, (c.err == "") != (got.Error == ""), !strings.Contains(got.Error, c.err), (c.lacks == "") != (got.Missing == ""), !strings.Contains(got.Missing, c.lacks),
			c.engine != "" && (got.Engine != c.engine || got.Golden != c.golden || got.Rows != c.rows):
			t.Errorf("%s: %+v", name, got)
		}
	}
}
