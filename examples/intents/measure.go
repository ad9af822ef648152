package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/csv"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"path/filepath"
	"slices"
)

// ownMetrics are the trainer's own measurements. Tidemill computes other figures from
// predictions.csv.
type ownMetrics struct {
	Accuracy float64 `json:"accuracy"`
	Loss     float64 `json:"loss"`
}

// measure measures the new model and the champion, if there is one, on the same held-out messages.
func measure(out string, d botMessages, m, champion *model, log io.Writer) error {
	rows := [][]string{{"truth", "predicted"}}
	for _, msg := range d.held {
		rows = append(rows, []string{msg.intent, m.predict(msg.text)})
	}
	mine := m.figures(d.held)
	told := map[string]any{"accuracy": mine.Accuracy, "loss": mine.Loss, "columns": m.columns, "learned": len(d.learn), "heldOut": len(d.held)}
	fmt.Fprintf(log, "accuracy %.3f on %d messages\n", mine.Accuracy, len(d.held))
	if champion != nil {
		rows[0] = append(rows[0], "champion")
		for i, msg := range d.held {
			rows[i+1] = append(rows[i+1], champion.predict(msg.text))
		}
		theirs := champion.figures(d.held)
		told["champion"] = theirs
		fmt.Fprintf(log, "the champion's is %.3f on the same\n", theirs.Accuracy)
	}
	var predictions bytes.Buffer
	err := csv.NewWriter(&predictions).WriteAll(rows)
	text, failed := json.MarshalIndent(told, "", "  ")
	return errors.Join(err, failed,
		write(filepath.Join(out, "predictions.csv"), predictions.Bytes()),
		write(filepath.Join(out, "metrics.json"), append(text, '\n')))
}

func (m *model) figures(messages []message) (f ownMetrics) {
	for _, msg := range messages {
		right := 1e-12 // lower limit, also for an intent that the model does not know
		if k, known := slices.BinarySearch(m.labels, msg.intent); known {
			right = math.Max(right, m.probabilities(msg.text)[k])
		}
		f.Loss -= math.Log(right)
		if m.predict(msg.text) == msg.intent {
			f.Accuracy++
		}
	}
	f.Accuracy /= float64(len(messages))
	f.Loss /= float64(len(messages))
	return f
}

// digest returns a hash of the messages.
func digest(messages []message) string {
	h := sha256.New()
	for _, msg := range messages {
		fmt.Fprintf(h, "%q %q\n", msg.text, msg.intent)
	}
	return hex.EncodeToString(h.Sum(nil))
}
