package config

import (
	"encoding/json"
	"math"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"tidemill.dev"
)

// Scorer scores the events of a stream.
type Scorer struct {
	Name     string
	From, To string   // streams
	Types    []string // sorted types of the events that are scored; empty means all types that are not Tidemill's own
	Key      string   // place of an event's key, as in Recipe.Key
	Model    string   // template, such as intent/{key}
	Map      []Mapped // sorted by input
	NoModel  NoModel
	// AtLeastOnce gives up exactly-once delivery for a little speed.
	AtLeastOnce bool
	Latest      bool          // a new group reads from the end, not from the beginning
	Hold        time.Duration // longest wait of an event for its model before it is parked
	MaxBatch    int           // events
	Engine      string        // auto, go, onnxruntime
	Top         int           // number of scores in an answer, highest first; 0 means all
	Replicas    Replicas
	Labels      *Labels // nil means that no truth about its answers arrives
	Drift       *Drift  // nil if the models are not watched
}

// Serves reports whether the scorer asks a model, which belongs to a key.
func (s *Scorer) Serves(model, key string) bool {
	if s.NoModel.Action == NoModelUse && s.NoModel.Model == model {
		return true
	}
	name, err := Expand(s.Model, func(field string) (string, bool) { return key, field == "key" && key != "" })
	return err == nil && name == model
}

// Replicas bounds how many processes of a scorer run in a cluster. The number follows its lag.
type Replicas struct {
	Min, Max int
	Lag      int64         // lag for which one more process is started
	Idle     time.Duration // time without events after which only Min processes stay
}

// Mapped is an input of the model and the path of its value.
type Mapped struct {
	Input, Path string
	Default     string // JSON, or NaN, that is read if the value is missing or null; empty means that it must be there
}

// NoModel says how an event is handled whose key has no champion.
type NoModel struct {
	Action NoModelAction
	Model  string // model that answers if the action is NoModelUse
}

// NoModelAction is a way to handle an event without a champion.
type NoModelAction string

// The actions.
const (
	NoModelDeadLetter NoModelAction = "dead-letter"
	NoModelDrop       NoModelAction = "drop"
	NoModelPass       NoModelAction = "pass"  // the event is copied to the output unchanged
	NoModelUse        NoModelAction = "model" // another model answers
)

const (
	maxScorers = 200 // each has its own group and a stream for waiting events
	maxMapped  = 64  // inputs of a model
	maxPath    = 255 // characters

	defaultHold  = 200 * time.Millisecond
	maxHold      = 10 * time.Second
	defaultBatch = 4096
	maxBatch     = 1 << 16
	maxTop       = 10_000
)

// The values of Config.Engine and Scorer.Engine.
const (
	engineAuto        = "auto"
	engineGo          = "go"
	engineONNXRuntime = "onnxruntime"
)

func (d *draft) readScorers(v value) {
	for key, child := range v.pairs() {
		switch n := len(d.scorers); {
		case n > maxScorers:
			continue // reported
		case n == maxScorers:
			child.problemAt(key, "is one scorer more than %d; let one of them score several types, or models by a {key}", maxScorers)
		}
		if d.admit(key, child, len(d.scorers), "scorer") {
			d.scorers = append(d.scorers, d.readScorer(key, child))
		}
	}
}

func (d *draft) readScorer(key *yaml.Node, v value) Scorer {
	s := Scorer{Name: key.Value, Key: KeySubject, NoModel: NoModel{Action: NoModelDeadLetter},
		Hold: defaultHold, MaxBatch: defaultBatch, Replicas: defaultReplicas(0)}
	var types []value
	given := v.presentFields(
		field{"from", func(v value) { s.From = d.readFrom(v) }},
		field{"to", func(v value) { s.To = d.readTo(v) }},
		field{"types", func(v value) { s.Types, types = readFilterTypes(v) }},
		field{"key", func(v value) { readKeyPlace(v, &s.Key) }},
		field{"model", func(v value) { s.Model = readModelTemplate(v) }},
		field{"map", func(v value) { s.Map = readMap(v) }},
		field{"noModel", s.NoModel.read},
		field{"delivery", readSecond(&s.AtLeastOnce, "exactly-once", "at-least-once")},
		field{"start", readSecond(&s.Latest, "earliest", "latest")},
		field{"hold", readWait(&s.Hold, time.Millisecond, maxHold)},
		field{"batch", func(v value) { v.fields(field{"events", readInteger(&s.MaxBatch, 1, maxBatch)}) }},
		field{"engine", readEngine(&s.Engine)},
		field{"top", readInteger(&s.Top, 1, maxTop)},
		field{"replicas", s.Replicas.read},
		field{"labels", func(v value) { d.readLabels(v, &s.Labels) }},
		field{"drift", s.readDrift},
	)
	v.require(key, given, "from", "name the stream whose events are scored, such as messages")
	v.require(key, given, "to", "name the stream for the scores, such as scored")
	v.require(key, given, "model", "name the model of a key, such as \"intent/{key}\"")
	s.check(v, types)
	d.later = append(d.later, func() { d.checkScorerLoop(key, v, s) })
	return s
}

// check compares the values of a scorer's keys with each other.
func (s *Scorer) check(v value, types []value) {
	slices.Sort(s.Types)
	checkHomeless(types, "no scorer reads")
	s.checkLabels(v)
	s.checkDrift()
	if v.node.Kind != yaml.MappingNode {
		return
	}
	if s.From != "" && s.From == s.To {
		v.valueOf("to").problem("is the stream that the scorer reads, too; write its scores to another")
	}
	if at := v.valueOf("model"); at.node != nil && s.Key == KeyNone && slices.Contains(templateFields(at.node.Value), "key") {
		at.problem("names {key}, and the scorer has none (key: none)")
	}
}

// readFrom reads the name of a stream that not only Tidemill publishes to.
func (d *draft) readFrom(v value) string {
	return d.readScorerStream(v, "has only records of Tidemill, which no model scores; name events, or a stream of yours")
}

// readTo reads the name of a stream that may hold events other than Tidemill's own.
func (d *draft) readTo(v value) string {
	return d.readScorerStream(v, "is for events of other kinds; name a stream of yours")
}

// readScorerStream reads the name of a stream, which may be defined in another file.
func (d *draft) readScorerStream(v value, reserved string) string {
	name, ok := v.text()
	switch {
	case !ok:
		return ""
	case tidemill.ReservedStream(name) != nil:
		v.problem("%s %s", show(name), reserved)
		return ""
	}
	d.later = append(d.later, func() { d.checkSource(v, name) })
	return name
}

// readModelTemplate reads a template of a model's name. Its only field can be {key}.
func readModelTemplate(v value) string {
	return readName(v, "model", func(field string) string {
		if field == "key" {
			return ""
		}
		return unknownField(field, []string{"key"})
	})
}

var (
	// A name with a space needs no quotes, because columns of tables have such names.
	eventPath = regexp.MustCompile(`^data(\.[^.\s{}\[\]"]+( +[^.\s{}\[\]"]+)*|\[[0-9]{1,9}\]|\["([^"\\\x00-\x1f]|\\["\\])+"\])*$`)
	inputName = shaped(200, `^[^\x00-\x1f\x7f]+$`)
)

// readMap reads which part of an event each input of the model gets.
func readMap(v value) (all []Mapped) {
	for key, child := range v.pairs() {
		switch {
		case len(all) == maxMapped:
			child.problemAt(key, "is one input more than %d", maxMapped)
			return all
		case !inputName.fits(key.Value):
			child.problemAt(key, "is not a name of a model's input, which has 1 to 200 characters and no tab or line break")
		}
		m := Mapped{Input: key.Value}
		if child.node.Kind != yaml.MappingNode {
			m.readPath(child)
		} else {
			given := child.presentFields(field{"path", m.readPath}, field{"default", m.readDefault})
			child.require(child.node, given, "path", "write where the value is, such as data.amount")
		}
		all = append(all, m)
	}
	slices.SortFunc(all, func(a, b Mapped) int { return strings.Compare(a.Input, b.Input) })
	return all
}

func (m *Mapped) readPath(v value) {
	text, ok := v.text()
	if ok && (len(text) > maxPath || !attributeName.fits(text) && !eventPath.MatchString(text)) {
		v.problem("%s is not a part of an event; write a path such as data.text, data.items[0].x or data[\"a.b\"], data for the whole, or an attribute such as subject", show(text))
	}
	m.Path = text
}

// defaultNaN is the default NaN, which JSON cannot express.
const defaultNaN = "NaN"

// maxDefault is the largest size of a default as JSON.
const maxDefault = 64 << 10

// readDefault reads a number, a text, a boolean, or a list of them.
func (m *Mapped) readDefault(v value) {
	var of any
	if err := v.node.Decode(&of); err != nil || !isPlainDefault(v.node) {
		v.problem("must be a number, a text, true or false, or a list of them; without a default, leave it out")
		return
	}
	if f, is := of.(float64); is && math.IsNaN(f) {
		m.Default = defaultNaN
		return
	}
	text, err := json.Marshal(of)
	if err != nil || len(text) > maxDefault {
		v.problem("is no number or text of JSON, or it has more than %d bytes", maxDefault)
		return
	}
	m.Default = string(text)
}

func isPlainDefault(n *yaml.Node) bool {
	switch n.Kind {
	case yaml.ScalarNode:
		return slices.Contains([]string{"!!str", "!!int", "!!float", "!!bool"}, n.ShortTag())
	case yaml.SequenceNode:
		return !slices.ContainsFunc(n.Content, func(of *yaml.Node) bool { return !isPlainDefault(of) })
	}
	return false
}

// read reads an action, or the name of the model that answers instead.
func (n *NoModel) read(v value) {
	if v.node.Kind == yaml.MappingNode {
		n.Action = NoModelUse
		given := v.presentFields(field{"model", func(v value) { n.Model = readPlainModel(v) }})
		v.require(v.node, given, "model", "name the model that answers instead, such as intent/default")
		return
	}
	if name, ok := strings.CutPrefix(v.node.Value, "model:"); ok && v.node.Kind == yaml.ScalarNode {
		v.problem("must be keys and values to name a model; write {model: %s}", plain(strings.TrimSpace(name)))
		return
	}
	if word, ok := v.text(); ok {
		n.readWord(v, NoModelAction(word))
	}
}

func (n *NoModel) readWord(v value, word NoModelAction) {
	switch word {
	case NoModelDeadLetter, NoModelDrop, NoModelPass:
		n.Action = word
	default:
		v.problem("must be %s, %s, %s, or {model: NAME}, not %s", NoModelDeadLetter, NoModelDrop, NoModelPass, show(string(word)))
	}
}

// readPlainModel reads the name of one model.
func readPlainModel(v value) string {
	return readName(v, "model", func(string) string { return "this is one model for all keys, which has no fields" })
}

// readSecond reads one of two words. The second means true.
func readSecond(to *bool, no, yes string) func(value) {
	return func(v value) {
		if word, ok := v.oneOf(no, yes); ok {
			*to = word == yes
		}
	}
}

func readEngine(to *string) func(value) {
	return func(v value) {
		if word, ok := v.oneOf(engineAuto, engineGo, engineONNXRuntime); ok {
			*to = word
		}
	}
}

const (
	maxReplicas    = 1000
	maxLag         = 1_000_000_000
	minIdle        = time.Second
	maxIdle        = 24 * time.Hour
	fewReplicas    = 8 // default limit
	replicasPerLag = 1000
	defaultIdle    = time.Minute
)

// defaultReplicas returns the default for a scorer: no process while there is nothing to do,
// and at most as many as there are partitions.
func defaultReplicas(partitions int) Replicas {
	return Replicas{Max: min(fewReplicas, partitions), Lag: replicasPerLag, Idle: defaultIdle}
}

func (r *Replicas) read(v value) {
	lag := int(r.Lag)
	given := v.presentFields(
		field{"min", readInteger(&r.Min, 0, maxReplicas)},
		field{"max", readInteger(&r.Max, 1, maxReplicas)},
		field{"lag", readInteger(&lag, 1, maxLag)},
		field{"idle", readWait(&r.Idle, minIdle, maxIdle)},
	)
	r.Lag = int64(lag)
	if given["max"] && r.Min > r.Max {
		v.valueOf("max").problem("%d is less than min, which is %d", r.Max, r.Min)
	}
}

// setMax sets the maximum from the stream's partitions if the file gives no maximum.
func (r *Replicas) setMax(partitions int) {
	if r.Max == 0 {
		r.Max = max(r.Min, defaultReplicas(partitions).Max)
	}
}

// checkScorerLoop reports a scorer whose output returns to its input for ever, directly or
// through other scorers. A score goes round if all of these scorers score scores. An input
// event goes round if all of them pass on events without a model.
func (d *draft) checkScorerLoop(key *yaml.Node, v value, s Scorer) {
	if s.From == s.To { // reported, or not parsed
		return
	}
	if way := d.loop(s, func(o Scorer) bool { return o.scoresType(tidemill.TypeScored) }); way != nil {
		v.problemAt(key, "scores its own scores forever, by way of %s; remove %s from its types", strings.Join(way, ", "), tidemill.TypeScored)
		return
	}
	for _, typ := range d.passable(s) {
		if way := d.loop(s, func(o Scorer) bool { return o.passes(typ) }); way != nil {
			v.problemAt(key, "gets back forever the events that it passes on, by way of %s; let one of them dead-letter or drop events without a model", strings.Join(way, ", "))
			return
		}
	}
}

// scoresType reports whether a scorer scores events of a type; "" means any type that no file names.
func (s Scorer) scoresType(typ string) bool {
	if len(s.Types) == 0 {
		return !tidemill.ReservedType(typ)
	}
	return slices.Contains(s.Types, typ)
}

func (s Scorer) passes(typ string) bool { return s.NoModel.Action == NoModelPass && s.scoresType(typ) }

// passable returns the types for which passed-on events may take different ways.
func (d *draft) passable(s Scorer) []string {
	if s.NoModel.Action != NoModelPass {
		return nil
	}
	all := []string{""}
	for _, o := range d.scorers {
		all = append(all, o.Types...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// loop returns the streams on a way from a scorer's output back to its input; nil if there is
// none. It follows only scorers that count.
func (d *draft) loop(s Scorer, counts func(Scorer) bool) []string {
	if !counts(s) {
		return nil
	}
	before := map[string]string{s.To: ""}
	for next := []string{s.To}; len(next) > 0; next = next[1:] {
		for _, o := range d.scorers {
			if _, seen := before[o.To]; o.From != next[0] || seen || !counts(o) {
				continue
			}
			before[o.To] = next[0]
			next = append(next, o.To)
		}
	}
	if _, back := before[s.From]; !back {
		return nil
	}
	var way []string
	for at := s.From; at != ""; at = before[at] {
		way = append(way, at)
	}
	slices.Reverse(way)
	return way
}
