package config

import "time"

// Scorer scores the events of a stream.
type Scorer struct {
	Name     string
	From, To string   // streams
	Types    []string // of the events that are scored, sorted; none is every type that is not ours
	Key      string   // as a recipe's
	Model    string   // template, such as intent/{key}
	Map      []Mapped // by input
	NoModel  NoModel
	// AtLeastOnce trades exactly once for a little speed.
	AtLeastOnce bool
	Latest      bool          // a group that begins reads from the end; else from the beginning
	Hold        time.Duration // how long an event waits for its model before it is parked
	MaxBatch    int           // events
	Engine      string        // auto, go, onnxruntime
	Top         int           // scores in an answer, the highest; 0 is all
	Replicas    Replicas
}

// Replicas bound how many processes of a scorer run in a cluster, by its lag.
type Replicas struct {
	Min, Max int
	Lag      int64         // events behind for which one more is worth it
	Idle     time.Duration // without events until there are Min again
}

// Mapped is an input of the model and the path of what it gets.
type Mapped struct{ Input, Path string }

// NoModel is what becomes of an event whose key has no champion.
type NoModel struct {
	Action NoModelAction
	Model  string // of NoModelUse
}

// NoModelAction is one of these.
type NoModelAction string

// The actions.
const (
	NoModelDeadLetter NoModelAction = "dead-letter"
	NoModelDrop       NoModelAction = "drop"
	NoModelPass       NoModelAction = "pass"  // it goes to the output as it came
	NoModelUse        NoModelAction = "model" // another model answers
)
