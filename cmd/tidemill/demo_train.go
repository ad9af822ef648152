package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// demoTrainer is the argument that this program is called with to be the demo's
// trainer: an ordinary command that knows Tidemill only by the contract of a run.
const demoTrainer = "demo-trainer"

const (
	demoEpochs = 60
	demoWords  = 512 // that a text's words are hashed to
	demoRate   = 0.5
	demoHeld   = 5 // every so many examples one is held out
)

// demoExample is one thing that somebody said to a bot, and what he wanted.
type demoExample struct {
	Text   string `json:"text"`
	Intent string `json:"intent"`
}

// trainDemo learns intents: softmax regression over bags of words.
func trainDemo(ctx context.Context, getenv func(string) string, out io.Writer) error {
	examples, err := readDemoExamples(filepath.Join(getenv("TIDEMILL_IN"), "examples", "examples.jsonl"))
	if err != nil {
		return err
	}
	c := newDemoClassifier(examples)
	to := getenv("TIDEMILL_OUT")
	steps, err := os.Create(filepath.Join(to, "metrics.jsonl"))
	if err != nil {
		return err
	}
	defer steps.Close()
	for epoch := 1; epoch <= demoEpochs; epoch++ {
		if ctx.Err() != nil {
			return errors.New("asked to leave")
		}
		loss := c.epoch()
		accuracy := c.accuracy()
		fmt.Fprintf(steps, `{"step": %d, "total": %d, "loss": %.4f, "accuracy": %.4f}`+"\n", epoch, demoEpochs, loss, accuracy)
		fmt.Fprintf(out, "epoch %d of %d: loss %.3f, accuracy %.3f on %d held out\n", epoch, demoEpochs, loss, accuracy, len(c.held))
	}
	return c.save(to)
}

func readDemoExamples(path string) (all []demoExample, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e demoExample
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, len(all)+1, err)
		}
		all = append(all, e)
	}
	return all, nil
}

type demoClassifier struct {
	intents     []string
	seen, held  []demoExample
	weights     [][]float64 // by intent and word
	activations []float64
}

func newDemoClassifier(examples []demoExample) *demoClassifier {
	c := &demoClassifier{}
	for i, e := range examples {
		if !slices.Contains(c.intents, e.Intent) {
			c.intents = append(c.intents, e.Intent)
		}
		if i%demoHeld == 0 {
			c.held = append(c.held, e)
		} else {
			c.seen = append(c.seen, e)
		}
	}
	slices.Sort(c.intents)
	for range c.intents {
		c.weights = append(c.weights, make([]float64, demoWords))
	}
	c.activations = make([]float64, len(c.intents))
	return c
}

// epoch goes over the examples once and returns the mean loss.
func (c *demoClassifier) epoch() (loss float64) {
	for _, e := range c.seen {
		words := demoBag(e.Text)
		likely := c.infer(words)
		want := slices.Index(c.intents, e.Intent)
		loss -= math.Log(math.Max(likely[want], 1e-12))
		for i := range c.intents {
			push := -likely[i]
			if i == want {
				push++
			}
			for _, w := range words {
				c.weights[i][w] += demoRate * push / float64(len(words))
			}
		}
	}
	return loss / float64(max(1, len(c.seen)))
}

// infer is how likely each intent is.
func (c *demoClassifier) infer(words []int) []float64 {
	sum := 0.0
	for i := range c.activations {
		a := 0.0
		for _, w := range words {
			a += c.weights[i][w]
		}
		c.activations[i] = math.Exp(min(a, 50))
		sum += c.activations[i]
	}
	for i := range c.activations {
		c.activations[i] /= sum
	}
	return c.activations
}

func (c *demoClassifier) predict(text string) string {
	likely := c.infer(demoBag(text))
	return c.intents[slices.Index(likely, slices.Max(likely))]
}

func (c *demoClassifier) accuracy() float64 {
	right := 0
	for _, e := range c.held {
		if c.predict(e.Text) == e.Intent {
			right++
		}
	}
	return float64(right) / float64(max(1, len(c.held)))
}

// demoBag hashes a text's words.
func demoBag(text string) []int {
	var all []int
	for _, word := range strings.Fields(strings.ToLower(text)) {
		h := uint32(2166136261)
		for i := range len(word) {
			h = (h ^ uint32(word[i])) * 16777619
		}
		all = append(all, int(h%demoWords))
	}
	return all
}

// save writes what was made, as the contract has it.
func (c *demoClassifier) save(to string) error {
	weights, err := json.Marshal(map[string]any{"intents": c.intents, "weights": c.weights})
	if err != nil {
		return err
	}
	metrics, err := json.Marshal(map[string]any{"accuracy": c.accuracy(), "examples": len(c.seen), "held": len(c.held)})
	if err != nil {
		return err
	}
	predictions, err := os.Create(filepath.Join(to, "predictions.csv"))
	if err != nil {
		return err
	}
	table := csv.NewWriter(predictions)
	rows := [][]string{{"truth", "predicted"}}
	for _, e := range c.held {
		rows = append(rows, []string{e.Intent, c.predict(e.Text)})
	}
	return errors.Join(os.WriteFile(filepath.Join(to, "weights.json"), weights, 0o644),
		os.WriteFile(filepath.Join(to, "metrics.json"), metrics, 0o644),
		table.WriteAll(rows), predictions.Close())
}
