package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Drift says how a scorer's models are watched for changes of their answers, their inputs and their accuracy.
type Drift struct {
	Inputs      []Watched
	Reference   int     // number of first answers of a champion that the later ones are compared with
	Predictions bool    // whether the run's predictions are the reference of labels and accuracy
	FalseAlarms float64 // alarms a day, over all models, that may be wrong
	Reports     float64 // models that are reported in an hour at most, the surest first
	at          []value // places of the inputs in the file while it is read
}

// Watched is an input whose values are watched.
type Watched struct {
	Name  string // name as in the config
	Place string // place of its value in an event, as in Recipe.Key
}

const (
	maxWatched = 4 // inputs, so that the state of a model has at most 2 KB

	defaultReference   = 500
	minReference       = 100
	maxReference       = 50_000
	defaultFalseAlarms = 5
	defaultReports     = 1000
)

// readDrift reads how a scorer's models are watched.
func (s *Scorer) readDrift(v value) {
	if v.node.Kind != yaml.MappingNode {
		v.problem("must be keys and values; write {} to watch all models with the defaults")
		return
	}
	s.Drift = &Drift{Reference: defaultReference, FalseAlarms: defaultFalseAlarms, Reports: defaultReports}
	v.presentFields(
		field{"inputs", s.Drift.readInputs},
		field{"reference", readInteger(&s.Drift.Reference, minReference, maxReference)},
		field{"predictions", func(v value) { s.Drift.Predictions, _ = v.boolean() }},
		field{"falseAlarms", readTimes(&s.Drift.FalseAlarms, 24*time.Hour, "5/d")},
		field{"reports", readTimes(&s.Drift.Reports, time.Hour, "1000/h")},
	)
}

func (d *Drift) readInputs(v value) {
	items := []value{v}
	if v.node.Kind == yaml.SequenceNode {
		items = v.items()
	}
	if len(items) > maxWatched {
		v.problem("has more than %d inputs; name those that matter most", maxWatched)
		return
	}
	for _, item := range items {
		name, ok := item.text()
		switch {
		case !ok:
		case slices.ContainsFunc(d.Inputs, func(w Watched) bool { return w.Name == name }):
			item.problem("%s appears twice; keep one", show(name))
		default:
			d.Inputs, d.at = append(d.Inputs, Watched{Name: name}), append(d.at, item)
		}
	}
}

// checkDrift finds the place of each watched input: that of the map, else data.NAME.
func (s *Scorer) checkDrift() {
	if s.Drift == nil {
		return
	}
	for i, item := range s.Drift.at {
		w := &s.Drift.Inputs[i]
		w.Place = w.Name
		if at := slices.IndexFunc(s.Map, func(m Mapped) bool { return m.Input == w.Name }); at >= 0 {
			w.Place = s.Map[at].Path
		} else if !strings.HasPrefix(w.Name, KeyData) {
			w.Place = KeyData + w.Name
		}
		if w.Place == "data" || !dataPath.MatchString(w.Place) && !attributeName.fits(w.Place) {
			item.problem("%s is not the place of one value; name an input of the model, or write data.PATH such as data.amount", show(w.Place))
		}
	}
	s.Drift.at = nil
}

// readTimes reads how often something may happen, such as 5/d, as a number in a span of time.
func readTimes(to *float64, in time.Duration, example string) func(value) {
	return func(v value) {
		text, ok := v.scalar()
		if !ok {
			return
		}
		number, per, _ := strings.Cut(text, "/")
		unit, known := map[string]time.Duration{"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}[per]
		n, err := strconv.ParseUint(number, 10, 32)
		if !known || err != nil || !plainDigits.MatchString(number) || n == 0 {
			v.problem("must be a whole number above 0 and a time, such as %s, not %s", example, show(text))
			return
		}
		*to = float64(n) * float64(in) / float64(unit)
	}
}

type hashedDrift struct {
	Inputs      []string `json:"inputs,omitempty"`
	Reference   int      `json:"reference"`
	Predictions bool     `json:"predictions,omitempty"`
	FalseAlarms string   `json:"falseAlarms"`
	Reports     string   `json:"reports"`
}

// hashed returns the hash's input for the watch; nil if there is none.
func (d *Drift) hashed() *hashedDrift {
	if d == nil {
		return nil
	}
	h := &hashedDrift{Reference: d.Reference, Predictions: d.Predictions, FalseAlarms: fmt.Sprint(d.FalseAlarms), Reports: fmt.Sprint(d.Reports)}
	for _, w := range d.Inputs {
		h.Inputs = append(h.Inputs, w.Name+"="+w.Place)
	}
	return h
}

// KeyTemplate returns the template of the names of the scorer's models.
func (s *Scorer) KeyTemplate() KeyTemplate { return newKeyTemplate(s.Model, nil) }

// KeyOf returns the key whose model has a name; false if the scorer's template makes no such name. A template
// without {key} has one model for all keys, which belongs to none.
func (s *Scorer) KeyOf(model string) (key string, ok bool) { return s.KeyTemplate().KeyOf(model) }
