package demo

import (
	"bufio"
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	epochs = 60
	rate   = 0.5
)

// labelledSentence is a sentence and its intent: a line of the data.
type labelledSentence struct {
	Text   string `json:"text"`
	Intent string `json:"intent"`
}

// model is softmax regression over bags of words. It is also the file weights.json, which the next
// run reads as its champion.
type model struct {
	Intents []string    `json:"intents"`
	Words   []string    `json:"words"`
	Weights [][]float64 `json:"weights"` // one row for each intent, one column for each word

	column map[string]int // column of each word
}

// Train trains a model by the contract of a run: it reads $TIDEMILL_IN and $TIDEMILL_CHAMPION, and
// writes to $TIDEMILL_OUT.
func Train(ctx context.Context, getenv func(string) string, out io.Writer) error {
	data, to := filepath.Join(getenv("TIDEMILL_IN"), "data"), getenv("TIDEMILL_OUT")
	learn, err := readExamples(filepath.Join(data, "examples.jsonl"))
	if err != nil {
		return err
	}
	held, err := readExamples(filepath.Join(data, "held.jsonl"))
	if err != nil {
		return err
	}
	moreLearn, moreHeld, err := readOutcomes(filepath.Join(getenv("TIDEMILL_IN"), "history", "outcomes.ndjson"))
	if err != nil {
		return err
	}
	learn, held = append(learn, moreLearn...), append(held, moreHeld...)
	steps, err := os.Create(filepath.Join(to, "metrics.jsonl"))
	if err != nil {
		return err
	}
	defer steps.Close()
	m := newModel(learn)
	for epoch := 1; epoch <= epochs; epoch++ {
		if ctx.Err() != nil {
			return errors.New("interrupted") // the exit code must not be 0, because the model is not finished
		}
		loss, accuracy := m.epoch(learn), m.accuracy(held)
		fmt.Fprintf(steps, `{"step": %d, "total": %d, "loss": %.4f, "accuracy": %.4f}`+"\n", epoch, epochs, loss, accuracy)
		fmt.Fprintf(out, "epoch %d of %d: loss %.3f, accuracy %.3f on %d held out\n", epoch, epochs, loss, accuracy, len(held))
	}
	weights, err := json.Marshal(m)
	if err != nil {
		return err
	}
	metrics := fmt.Sprintf(`{"accuracy": %v, "learnt": %d, "held": %d}`, m.accuracy(held), len(learn), len(held))
	for name, content := range map[string][]byte{"model.onnx": m.onnx(), "weights.json": weights, "metrics.json": []byte(metrics)} {
		if err := os.WriteFile(filepath.Join(to, name), content, 0o644); err != nil {
			return err
		}
	}
	return m.predictions(filepath.Join(to, "predictions.csv"), getenv("TIDEMILL_CHAMPION"), held)
}

func readExamples(path string) (all []labelledSentence, err error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		var e labelledSentence
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			return nil, fmt.Errorf("%s: line %d: %w", path, len(all)+1, err)
		}
		all = append(all, e)
	}
	return all, nil
}

// readOutcomes reads answered events with their truth, if the recipe has them as an input. It holds out every fifth.
func readOutcomes(path string) (learn, held []labelledSentence, err error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	n := 0
	for line := range bytes.Lines(text) {
		var row struct {
			Event *struct{ Data labelledSentence }
			Truth string
		}
		if err := json.Unmarshal(line, &row); err != nil {
			return nil, nil, fmt.Errorf("%s: line %d: %w", path, n+1, err)
		}
		if n++; row.Event == nil {
			continue // the stream has deleted the event
		}
		to := &learn
		if n%5 == 0 {
			to = &held
		}
		*to = append(*to, labelledSentence{row.Event.Data.Text, row.Truth})
	}
	return learn, held, nil
}

func newModel(learn []labelledSentence) *model {
	m := &model{}
	for _, e := range learn {
		m.Intents = append(m.Intents, e.Intent)
		m.Words = append(m.Words, split(e.Text)...)
	}
	slices.Sort(m.Intents)
	slices.Sort(m.Words)
	m.Intents, m.Words = slices.Compact(m.Intents), slices.Compact(m.Words)
	for range m.Intents {
		m.Weights = append(m.Weights, make([]float64, len(m.Words)))
	}
	m.index()
	return m
}

func (m *model) index() {
	m.column = make(map[string]int, len(m.Words))
	for i, word := range m.Words {
		m.column[word] = i
	}
}

// split splits a text as the operators of the ONNX file do.
func split(text string) []string { return strings.Fields(strings.ToLower(text)) }

// columns returns the columns of a text's words, without unknown words.
func (m *model) columns(text string) (all []int) {
	for _, word := range split(text) {
		if i, known := m.column[word]; known {
			all = append(all, i)
		}
	}
	return all
}

// likelihoods returns the likelihood of each intent.
func (m *model) likelihoods(columns []int) []float64 {
	likely, sum := make([]float64, len(m.Intents)), 0.0
	for i := range likely {
		for _, w := range columns {
			likely[i] += m.Weights[i][w]
		}
		likely[i] = math.Exp(min(likely[i], 50))
		sum += likely[i]
	}
	for i := range likely {
		likely[i] /= sum
	}
	return likely
}

// epoch learns from each example once and returns the mean loss.
func (m *model) epoch(learn []labelledSentence) (loss float64) {
	for _, e := range learn {
		columns := m.columns(e.Text)
		likely, want := m.likelihoods(columns), slices.Index(m.Intents, e.Intent)
		loss -= math.Log(max(likely[want], 1e-12))
		for i := range m.Intents {
			push := -likely[i]
			if i == want {
				push++
			}
			for _, w := range columns {
				m.Weights[i][w] += rate * push / float64(len(columns))
			}
		}
	}
	return loss / float64(max(1, len(learn)))
}

func (m *model) predict(text string) string {
	likely := m.likelihoods(m.columns(text))
	return m.Intents[slices.Index(likely, slices.Max(likely))]
}

func (m *model) accuracy(held []labelledSentence) float64 {
	right := 0
	for _, e := range held {
		if m.predict(e.Text) == e.Intent {
			right++
		}
	}
	return float64(right) / float64(max(1, len(held)))
}

// predictions writes the truth of each held-out example, this model's prediction and, if there is a
// champion, the champion's.
func (m *model) predictions(path, champion string, held []labelledSentence) error {
	rows := [][]string{{"truth", "predicted"}}
	for _, e := range held {
		rows = append(rows, []string{e.Intent, m.predict(e.Text)})
	}
	text, err := os.ReadFile(filepath.Join(champion, "weights.json"))
	if champion != "" && err == nil {
		var before model
		if err := json.Unmarshal(text, &before); err != nil {
			return fmt.Errorf("read the champion: %w", err)
		}
		before.index()
		rows[0] = append(rows[0], "champion")
		for i, e := range held {
			rows[i+1] = append(rows[i+1], before.predict(e.Text))
		}
	}
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	return errors.Join(csv.NewWriter(f).WriteAll(rows), f.Close())
}
