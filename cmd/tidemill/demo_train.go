package main

import (
	"bufio"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
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
	demoRate   = 0.5
	demoHeld   = 5 // of every so many sentences one is held out
)

// demoExample is one thing that somebody said to a bot, and what he wanted.
type demoExample struct {
	Text   string `json:"text"`
	Intent string `json:"intent"`
}

// trainDemo learns intents: softmax regression over bags of words.
func trainDemo(ctx context.Context, getenv func(string) string, out io.Writer) error {
	data := filepath.Join(getenv("TIDEMILL_IN"), "data")
	seen, err := readDemoExamples(filepath.Join(data, "examples.jsonl"))
	if err != nil {
		return err
	}
	held, err := readDemoExamples(filepath.Join(data, "held.jsonl"))
	if err != nil {
		return err
	}
	champion, err := readDemoChampion(getenv("TIDEMILL_CHAMPION"))
	if err != nil {
		return err
	}
	c := newDemoClassifier(seen, held)
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
	return c.save(to, champion)
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
	words       []string       // that count, in order
	places      map[string]int // among them
	seen, held  []demoExample
	weights     [][]float64 // by intent and word
	activations []float64
}

func newDemoClassifier(seen, held []demoExample) *demoClassifier {
	c := &demoClassifier{seen: seen, held: held}
	for _, e := range seen {
		if !slices.Contains(c.intents, e.Intent) {
			c.intents = append(c.intents, e.Intent)
		}
	}
	slices.Sort(c.intents)
	c.learnWords(demoVocabulary(seen))
	for range c.intents {
		c.weights = append(c.weights, make([]float64, len(c.words)))
	}
	return c
}

// learnWords makes it ready to tell words.
func (c *demoClassifier) learnWords(words []string) {
	c.words, c.places = words, make(map[string]int, len(words))
	for i, word := range words {
		c.places[word] = i
	}
	c.activations = make([]float64, len(c.intents))
}

// demoVocabulary are the words of the examples, in order.
func demoVocabulary(of []demoExample) []string {
	all := map[string]bool{}
	for _, e := range of {
		for _, word := range demoSplit(e.Text) {
			all[word] = true
		}
	}
	return slices.Sorted(maps.Keys(all))
}

// epoch goes over the examples once and returns the mean loss.
func (c *demoClassifier) epoch() (loss float64) {
	for _, e := range c.seen {
		words := c.bag(e.Text)
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
	likely := c.infer(c.bag(text))
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

// bag are the words of a text that count.
func (c *demoClassifier) bag(text string) []int {
	var all []int
	for _, word := range demoSplit(text) {
		if place, known := c.places[word]; known {
			all = append(all, place)
		}
	}
	return all
}

// demoSplit takes a text apart as the operators of the ONNX file do.
func demoSplit(text string) []string { return strings.Fields(strings.ToLower(text)) }

// demoWeights is a model as the demo's trainer writes it.
type demoWeights struct {
	Intents []string    `json:"intents"`
	Words   []string    `json:"words"`
	Weights [][]float64 `json:"weights"`
}

// readDemoChampion reads the version that serves, to be measured on the same
// data; nil if there is none.
func readDemoChampion(folder string) (*demoClassifier, error) {
	text, err := os.ReadFile(filepath.Join(folder, "weights.json"))
	if folder == "" || errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var w demoWeights
	if err == nil {
		err = json.Unmarshal(text, &w)
	}
	if err != nil {
		return nil, fmt.Errorf("read the champion: %w", err)
	}
	c := &demoClassifier{intents: w.Intents, weights: w.Weights}
	c.learnWords(w.Words)
	return c, nil
}

// save writes what was made, as the contract has it.
func (c *demoClassifier) save(to string, champion *demoClassifier) error {
	weights, err := json.Marshal(demoWeights{c.intents, c.words, c.weights})
	if err != nil {
		return err
	}
	metrics, err := json.Marshal(map[string]any{"accuracy": c.accuracy(), "learnt": len(c.seen), "held": len(c.held)})
	if err != nil {
		return err
	}
	return errors.Join(os.WriteFile(filepath.Join(to, "model.onnx"), c.onnx(), 0o644), os.WriteFile(filepath.Join(to, "weights.json"), weights, 0o644),
		os.WriteFile(filepath.Join(to, "metrics.json"), metrics, 0o644), c.savePredictions(to, champion))
}

// savePredictions writes what each example that was held out is, what this model
// says that it is, and what the champion says.
func (c *demoClassifier) savePredictions(to string, champion *demoClassifier) error {
	f, err := os.Create(filepath.Join(to, "predictions.csv"))
	if err != nil {
		return err
	}
	rows := [][]string{{"truth", "predicted"}}
	if champion != nil {
		rows[0] = append(rows[0], "champion")
	}
	for _, e := range c.held {
		row := []string{e.Intent, c.predict(e.Text)}
		if champion != nil {
			row = append(row, champion.predict(e.Text))
		}
		rows = append(rows, row)
	}
	return errors.Join(csv.NewWriter(f).WriteAll(rows), f.Close())
}
