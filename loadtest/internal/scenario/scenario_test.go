package scenario

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// All scenario files can be read, and each has the name of its scenario.
func TestTheScenariosAreSound(t *testing.T) {
	files, err := filepath.Glob("../../scenarios/*.yaml")
	if err != nil || len(files) < 8 {
		t.Fatalf("there are %d scenarios: %v", len(files), err)
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		s, err := Read(file, data)
		if err != nil {
			t.Fatal(err)
		}
		if s.Name+".yaml" != filepath.Base(file) || s.About == "" || len(s.Budgets) == 0 {
			t.Errorf("%s is called %q, is about %q and has %d budgets", file, s.Name, s.About, len(s.Budgets))
		}
		if short := s.Short(); short.Models > s.Models || short.Events > s.Events || short.Hot > s.Hot {
			t.Errorf("%s is larger in a short run: %+v", file, short)
		}
	}
}

const sound = `name: one
measure: throughput
models: 1
network: [4, 2]
data: digits
keys: evenly
events: 10
batch: 4
`

func TestReadRefuses(t *testing.T) {
	for _, c := range []struct{ name, text, wants string }{
		{"a field that it does not know", sound + "evnts: 3\n", "evnts"},
		{"a second document", sound + "---\nname: two\n", "more than one document"},
		{"no name", strings.Replace(sound, "name: one", "name: ''", 1), "name"},
		{"a measure of its own", strings.Replace(sound, "throughput", "speed", 1), "speed"},
		{"a spread of its own", strings.Replace(sound, "evenly", "oddly", 1), "oddly"},
		{"no models", strings.Replace(sound, "models: 1", "models: 0", 1), "models"},
		{"texts for a network", strings.Replace(sound, "digits", "text", 1), "network"},
		{"numbers for none", strings.Replace(sound, "network: [4, 2]\n", "", 1), "network"},
		{"trees and a network", sound + "trees: {count: 1, depth: 1, features: 4}\n", "trees"},
		{"trees without features", strings.Replace(sound, "network: [4, 2]", "trees: {count: 1, depth: 1}", 1), "trees"},
		{"a peer of another measure", sound + "beside: [kserve]\n", "kserve"},
		{"requests without a rate", strings.Replace(sound, "throughput", "infer", 1), "rate"},
		{"a budget without a bar", sound + "budgets: [{figure: x}]\n", "least or a most"},
		{"somebody else beside", sound + "beside: [java]\n", "java"},
		{"no pace of latency", strings.Replace(sound, "throughput", "latency", 1), "rate"},
		{"nothing that is hot", strings.Replace(sound, "throughput", "cache", 1), "hot"},
	} {
		if _, err := Read("x.yaml", []byte(c.text)); err == nil || !strings.Contains(err.Error(), c.wants) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := Read("x.yaml", []byte(sound)); err != nil {
		t.Error(err)
	}
}

func TestBudgets(t *testing.T) {
	f := func(v float64) *float64 { return &v }
	for _, c := range []struct {
		b    Budget
		v    float64
		met  bool
		text string
	}{
		{Budget{Least: f(0.8)}, 0.8, true, "≥ 0.8"},
		{Budget{Least: f(0.8)}, 0.79, false, "≥ 0.8"},
		{Budget{Most: f(25), Unit: " ms"}, 25.1, false, "≤ 25 ms"},
		{Budget{Least: f(0.9), Most: f(1.1)}, 1, true, "0.9 to 1.1"},
		{Budget{Most: f(0)}, math.NaN(), false, "≤ 0"},
	} {
		if c.b.Met(c.v) != c.met || c.b.String() != c.text {
			t.Errorf("%s: %v is met: %v", c.b, c.v, !c.met)
		}
	}
}
