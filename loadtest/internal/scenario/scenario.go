// Package scenario reads the scenarios of the load test of scorers, with their budgets: one file
// per scenario.
package scenario

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"

	"go.yaml.in/yaml/v3"

	"tidemill.dev/loadtest/internal/fleet"
)

// Measure is the kind of measurement.
type Measure string

// The measures.
const (
	Throughput Measure = "throughput" // a full stream at full speed, next to its ceiling
	Swap       Measure = "swap"       // throughput while champions change
	Latency    Measure = "latency"    // scoring at a fixed rate
	Trial      Measure = "trial"      // scoring at a fixed rate, with and without candidates on trial
	Cache      Measure = "cache"      // more models than memory has room for
	Peers      Measure = "peers"      // a full stream of Apache Kafka, next to programs of other projects
	Infer      Measure = "infer"      // requests of the Open Inference Protocol, next to other servers
	Trees      Measure = "trees"      // trees alone, next to ONNX Runtime
)

var measures = []Measure{Throughput, Swap, Latency, Trial, Cache, Peers, Infer, Trees}

// contenders are the programs next to which a measure can run.
var contenders = map[Measure][]string{
	Throughput: {"plain", "python"},
	Peers:      {"streams", "flink", "tuned"},
	Infer:      {"mlserver", "kserve"},
}

// Scenario is one file.
type Scenario struct {
	Name    string        `yaml:"name"`
	About   string        `yaml:"about"`
	Measure Measure       `yaml:"measure"`
	Models  int           `yaml:"models"`
	Network fleet.Network `yaml:"network"` // empty: the model of examples/intents
	Trees   *fleet.Trees  `yaml:"trees"`   // in the place of a network
	Data    fleet.Kind    `yaml:"data"`
	Keys    fleet.Spread  `yaml:"keys"`

	Events int    `yaml:"events"` // number of measured events in a round; for latency, in all rounds
	Warm   int    `yaml:"warm"`   // number of events before the measured ones
	Batch  int    `yaml:"batch"`  // batch size of the scorer, and of the ceiling
	Memory string `yaml:"memory"` // memory for models; empty is the scorer's default
	Cores  int    `yaml:"cores"`  // number of cores that the scorer may use; 0 is all

	Rate    int `yaml:"rate"`    // for latency, infer and trial: events per second
	Seconds int `yaml:"seconds"` // for swap: seconds in which champions change; for trial: of a window
	Hot     int `yaml:"hot"`     // for cache: number of models that are used again and again

	Beside  []string `yaml:"beside"` // other programs, of those that the measure knows
	Smoke   Smoke    `yaml:"smoke"`
	Quotes  []Quote  `yaml:"quotes"`
	Budgets []Budget `yaml:"budgets"`
}

// Smoke has the smaller numbers of a short run.
type Smoke struct {
	Models  int  `yaml:"models"`
	Events  int  `yaml:"events"`
	Warm    int  `yaml:"warm"`
	Seconds int  `yaml:"seconds"`
	Hot     int  `yaml:"hot"`
	Skip    bool `yaml:"skip"`
}

// Quote is a figure that others have published, for comparison.
type Quote struct {
	What   string  `yaml:"what"`
	Least  float64 `yaml:"least"` // events per second
	Most   float64 `yaml:"most"`
	Source string  `yaml:"source"`
}

// Budget is a bar: a figure must be at least Least and at most Most.
type Budget struct {
	Figure string   `yaml:"figure"`
	Least  *float64 `yaml:"least"`
	Most   *float64 `yaml:"most"`
	Unit   string   `yaml:"unit"`
}

// Met reports whether a figure is within the budget.
func (b Budget) Met(v float64) bool {
	return v == v && (b.Least == nil || v >= *b.Least) && (b.Most == nil || v <= *b.Most)
}

// String returns the bar in words.
func (b Budget) String() string {
	switch {
	case b.Least == nil:
		return fmt.Sprintf("≤ %g%s", *b.Most, b.Unit)
	case b.Most == nil:
		return fmt.Sprintf("≥ %g%s", *b.Least, b.Unit)
	}
	return fmt.Sprintf("%g to %g%s", *b.Least, *b.Most, b.Unit)
}

// Read reads a file. An unknown member is an error.
func Read(file string, data []byte) (*Scenario, error) {
	var s Scenario
	d := yaml.NewDecoder(bytes.NewReader(data))
	d.KnownFields(true)
	if err := d.Decode(&s); err != nil {
		return nil, fmt.Errorf("read scenario %s: %w", file, err)
	}
	if err := d.Decode(new(any)); !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read scenario %s: it has more than one document", file)
	}
	if err := s.check(); err != nil {
		return nil, fmt.Errorf("scenario %s: %w", file, err)
	}
	return &s, nil
}

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9-]*$`)

func (s *Scenario) check() error {
	switch {
	case !nameForm.MatchString(s.Name):
		return fmt.Errorf("name %q: use small letters, digits and dashes", s.Name)
	case !slices.Contains(measures, s.Measure):
		return fmt.Errorf("measure %q: use one of %v", s.Measure, measures)
	case s.Models < 1:
		return errors.New("models: there must be one at least")
	case s.Data != fleet.KindDigits && s.Data != fleet.KindFloats && s.Data != fleet.KindText:
		return fmt.Errorf("data %q: use digits, floats or text", s.Data)
	case s.Keys != fleet.Zipf && s.Keys != fleet.Evenly:
		return fmt.Errorf("keys %q: use zipf or evenly", s.Keys)
	case s.Trees != nil && (s.Network != nil || s.Trees.Count < 1 || s.Trees.Depth < 1 || s.Trees.Features < 1):
		return errors.New("trees: give count, depth and features, and no network")
	case (s.Data == fleet.KindText) != (s.Network == nil && s.Trees == nil):
		return errors.New("network: texts need none, numbers need one, or trees")
	case s.Network != nil && len(s.Network) < 2:
		return errors.New("network: give the size of the input and of the output at least")
	case s.Measure != Cache && s.Measure != Infer && (s.Events < 1 || s.Batch < 1):
		return errors.New("events and batch: give both")
	case s.Measure == Latency && s.Rate < 1, s.Measure == Swap && s.Seconds < 1, s.Measure == Cache && s.Hot < 1,
		(s.Measure == Infer || s.Measure == Trial) && (s.Rate < 1 || s.Seconds < 1):
		return errors.New("latency needs a rate, swap needs seconds, cache needs hot, infer and trial need a rate and seconds")
	}
	return s.checkBudgets()
}

func (s *Scenario) checkBudgets() error {
	for _, b := range s.Budgets {
		if b.Figure == "" || b.Least == nil && b.Most == nil {
			return fmt.Errorf("budget of figure %q: it needs a figure, and a least or a most", b.Figure)
		}
	}
	for _, name := range s.Beside {
		if !slices.Contains(contenders[s.Measure], name) {
			return fmt.Errorf("beside %q: with measure %s use some of %q", name, s.Measure, contenders[s.Measure])
		}
	}
	return nil
}

// Short returns the scenario with the numbers of a short run.
func (s Scenario) Short() Scenario {
	s.Models, s.Events, s.Warm = less(s.Models, s.Smoke.Models), less(s.Events, s.Smoke.Events), less(s.Warm, s.Smoke.Warm)
	s.Seconds, s.Hot = less(s.Seconds, s.Smoke.Seconds), less(s.Hot, s.Smoke.Hot)
	return s
}

func less(full, short int) int {
	if short == 0 {
		return full
	}
	return short
}

// Fleet returns the models and events of the scenario.
func (s *Scenario) Fleet() fleet.Fleet {
	f := fleet.Fleet{Models: s.Models, Network: s.Network, Kind: s.Data, Spread: s.Keys}
	if s.Trees != nil {
		f.Network = fleet.Network{s.Trees.Features, 1} // the events' numbers
	}
	return f
}
