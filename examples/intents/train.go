package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
)

// These values suit the example's messages. Other data may need others.
const (
	rate     = 0.4
	momentum = 0.9
	decay    = 1e-3
	saving   = 50 // epochs between checkpoints
)

// learner is softmax regression by gradient descent with momentum, over all messages at once.
// Nothing is random, so the same messages give the same model.
type learner struct {
	labels   int
	examples []example
	state
}

type example struct {
	counts []columnCount
	label  int
}

// state is the content of a checkpoint.
type state struct {
	Of      string    `json:"of"` // digest of the messages
	Epoch   int       `json:"epoch"`
	Weights []float64 `json:"weights"` // columns × labels, and then the bias
	Speed   []float64 `json:"speed"`
}

func newLearner(m *model, messages []message) *learner {
	l := &learner{labels: len(m.labels)}
	for _, msg := range messages {
		label, _ := slices.BinarySearch(m.labels, msg.intent)
		// The bias is the weight of an additional column that is always 1.
		l.examples = append(l.examples, example{append(m.columnCounts(msg.text), columnCount{m.columns, 1}), label})
	}
	l.Of = digest(messages)
	l.Weights = make([]float64, (m.columns+1)*l.labels)
	l.Speed = make([]float64, len(l.Weights))
	return l
}

// step does one step of gradient descent. It returns the loss before the step.
func (l *learner) step() (loss float64) {
	slope := make([]float64, len(l.Weights))
	p := make([]float64, l.labels)
	for _, e := range l.examples {
		clear(p)
		for _, c := range e.counts {
			for k, w := range l.Weights[c.column*l.labels:][:l.labels] {
				p[k] += float64(c.times) * w
			}
		}
		softmax(p)
		loss -= math.Log(math.Max(p[e.label], 1e-12))
		p[e.label]--
		for _, c := range e.counts {
			for k, miss := range p {
				slope[c.column*l.labels+k] += float64(c.times) * miss
			}
		}
	}
	n := float64(len(l.examples))
	for i, s := range slope {
		l.Speed[i] = momentum*l.Speed[i] - rate*(s/n+decay*l.Weights[i])
		l.Weights[i] += l.Speed[i]
	}
	l.Epoch++
	return loss / n
}

// errAskedToLeave ends a run that a later attempt continues.
var errAskedToLeave = errors.New("got SIGTERM; the checkpoint has the state")

// trainModel trains a model on the messages. It continues from a checkpoint of the same messages,
// and makes the same model as without a break.
func trainModel(ctx context.Context, d botMessages, total int, checkpoint, out string, log io.Writer) (*model, error) {
	m := newModel(d.learn)
	if len(m.labels) < 2 || m.columns == 0 {
		return nil, fmt.Errorf("there is too little to learn from: %d intents, %d words that are in %d messages", len(m.labels), m.columns, minOccurrences)
	}
	l := newLearner(m, d.learn)
	if err := l.resume(checkpoint, log); err != nil {
		return nil, err
	}
	fmt.Fprintf(log, "%d words and pairs, %d intents\n", m.columns, len(m.labels))
	curve, err := os.OpenFile(filepath.Join(out, "metrics.jsonl"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer curve.Close()
	for l.Epoch < total {
		loss := l.step()
		if _, err := fmt.Fprintf(curve, `{"step":%d,"total":%d,"loss":%.6f}`+"\n", l.Epoch, total, loss); err != nil {
			return nil, err
		}
		leaving := ctx.Err() != nil
		if leaving || l.Epoch%saving == 0 {
			err = l.save(checkpoint)
		}
		if leaving {
			err = errors.Join(errAskedToLeave, err)
		}
		if err != nil {
			return nil, fmt.Errorf("epoch %d: %w", l.Epoch, err)
		}
	}
	m.roundWeights(l.Weights)
	return m, nil
}

// roundWeights rounds the weights to the precision of the file, so that the measured model is the
// same as the served one.
func (m *model) roundWeights(weights []float64) {
	all := make([]float32, len(weights))
	for i, w := range weights {
		all[i] = float32(w)
	}
	m.weights, m.bias = all[:m.columns*len(m.labels)], all[m.columns*len(m.labels):]
}

const checkpointFile = "state.json"

func (l *learner) save(folder string) error {
	if folder == "" {
		return nil
	}
	text, err := json.Marshal(l.state)
	if err != nil {
		return err
	}
	return write(filepath.Join(folder, checkpointFile), text)
}

func (l *learner) resume(folder string, log io.Writer) error {
	text, err := os.ReadFile(filepath.Join(folder, checkpointFile))
	if folder == "" || errors.Is(err, os.ErrNotExist) {
		return nil
	}
	var s state
	if err == nil {
		err = json.Unmarshal(text, &s)
	}
	if err != nil {
		return fmt.Errorf("resume from %s: %w", folder, err)
	}
	if s.Of != l.Of || len(s.Weights) != len(l.Weights) || len(s.Speed) != len(l.Speed) {
		fmt.Fprintln(log, "the checkpoint is of other messages; it is not used")
		return nil
	}
	l.state = s
	fmt.Fprintf(log, "continues from epoch %d\n", s.Epoch)
	return nil
}
