package evaluate

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"strings"
	"testing"
)

// rows have 3 of 4 answers right, and 2 of 4 of the champion's.
const rows = "truth,predicted,champion\na,a,a\na,a,b\nb,b,b\nb,a,a\n"

func TestReportWithoutPredictions(t *testing.T) {
	t.Parallel()
	r := Report(nil, nil, map[string]float64{"accuracy": 0.9, "by.class.f1": 0.5, "champion": 3}, 0)
	if !reflect.DeepEqual(r.Metrics, map[string]float64{"accuracy": 0.9, "by.class.f1": 0.5, "champion": 3}) {
		t.Errorf("metrics %v", r.Metrics)
	}
	if r.Claimed != nil || r.Measured != nil || r.Champion != nil || r.Notes != nil {
		t.Errorf("%+v", r)
	}
	if r := Report(nil, nil, nil, 0); r.Metrics == nil || len(r.Metrics) != 0 {
		t.Errorf("of nothing: %+v", r)
	}
}

// Our figures replace the trainer's, which are kept if they differ by more than rounding does.
func TestOursOverTheirs(t *testing.T) {
	t.Parallel()
	p := mustRead(t, rows)
	r := Report(&p, nil, map[string]float64{"accuracy": 0.7504, "macroF1": 0.9, "loss": 0.1, "examples": 5, "champion.accuracy": 0.8, "champion.loss": 0.2}, 6)
	macro, theirs := p.Own.MacroF1.Value, p.Champion.MacroF1.Value
	if want := map[string]float64{"accuracy": 0.75, "macroF1": macro, "loss": 0.1, "examples": 4}; !reflect.DeepEqual(r.Metrics, want) {
		t.Errorf("metrics %v, want %v", r.Metrics, want)
	}
	if want := map[string]float64{"macroF1": 0.9, "examples": 5, "champion.accuracy": 0.8}; !reflect.DeepEqual(r.Claimed, want) {
		t.Errorf("claimed %v, want %v", r.Claimed, want)
	}
	if want := map[string]float64{"accuracy": 0.5, "macroF1": theirs, "loss": 0.2, "examples": 4}; r.Champion == nil || r.Champion.Version != 6 || !reflect.DeepEqual(r.Champion.Metrics, want) {
		t.Errorf("champion %+v, want %v", r.Champion, want)
	}
	if r.Measured != p.Own || r.Champion.Measured != p.Champion || r.Champion.Lead != p.Lead || p.Lead.Value != 0.25 {
		t.Errorf("%+v", r)
	}
	want := []string{
		fmt.Sprintf("metrics.json says that macroF1 is 0.9; by predictions.csv it is %v, which counts", math.Round(macro*1e6)/1e6),
		"metrics.json says that examples is 5; by predictions.csv it is 4, which counts",
		"metrics.json says that champion.accuracy is 0.8; by predictions.csv it is 0.5, which counts",
	}
	if !reflect.DeepEqual(r.Notes, want) {
		t.Errorf("notes %q, want %q", r.Notes, want)
	}
}

func TestReportOfTheChampion(t *testing.T) {
	t.Parallel()
	both, alone := mustRead(t, rows), mustRead(t, "truth,predicted\na,a\na,b\n")
	claims := map[string]float64{"champion.f1": 0.4}
	for _, c := range []struct {
		name    string
		p       *Predictions
		claimed map[string]float64
		given   int
		version int // 0 if there is none
		note    string
	}{
		{"none given, none measured", &alone, nil, 0, 0, ""},
		{"none given, a column", &both, nil, 0, 0, "the run was given no champion, so its figures of one do not count"},
		{"none given, a claim", nil, claims, 0, 0, "the run was given no champion, so its figures of one do not count"},
		{"given, measured by us", &both, nil, 6, 6, ""},
		{"given, claimed", &alone, claims, 6, 6, ""},
		{"given, not measured", &alone, nil, 6, 0, "the run was given version 6, the champion, and has not measured it: predictions.csv has no answers in a column champion, and metrics.json no object champion"},
	} {
		r := Report(c.p, nil, c.claimed, c.given)
		if (r.Champion != nil) != (c.version != 0) || r.Champion != nil && r.Champion.Version != c.version || strings.Join(r.Notes, "\n") != c.note {
			t.Errorf("%s: %+v, notes %q", c.name, r.Champion, r.Notes)
		}
		if c.version == 0 && len(r.Claimed) != 0 {
			t.Errorf("%s: claimed %v", c.name, r.Claimed)
		}
	}
}

func TestReportOfWhatCannotBeCounted(t *testing.T) {
	t.Parallel()
	_, err := Read(strings.NewReader("truth\na\n"))
	r := Report(nil, fmt.Errorf("measure the run: %w", err), map[string]float64{"accuracy": 0.9}, 0)
	if len(r.Notes) != 1 || r.Notes[0] != `predictions.csv line 1: there is no column predicted; the header names "truth"` || r.Metrics["accuracy"] != 0.9 || r.Measured != nil {
		t.Errorf("%+v", r)
	}
	if r := Report(nil, errors.New("it is a folder"), nil, 0); len(r.Notes) != 1 || r.Notes[0] != "it is a folder" {
		t.Errorf("%+v", r)
	}
}

// Values that are not finite are left out, because a report is JSON.
func TestNoMeasures(t *testing.T) {
	t.Parallel()
	p := mustRead(t, rows)
	r := Report(&p, nil, map[string]float64{"a": math.NaN(), "accuracy": math.Inf(1), "champion.b": math.Inf(-1)}, 6)
	if _, is := r.Metrics["a"]; is || len(r.Notes) != 3 || r.Notes[0] != "a of metrics.json is NaN, which is not finite, and is left out" || r.Claimed != nil {
		t.Errorf("%+v", r)
	}
	if _, err := json.Marshal(r); err != nil {
		t.Error(err)
	}
}
