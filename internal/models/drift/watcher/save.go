package watcher

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"tidemill.dev/broker/jsonscan"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/drift"
)

func at(data []byte, path []string) string { return jsonscan.TextAt(data, path) }

func (w *watcher) note() string { return "drift-" + w.Scorer.Name }

// save writes the state into the store: a line of JSON, then each model's name and figures.
func (w *watcher) save(ctx context.Context) error {
	data, err := w.encode()
	if err != nil {
		return err
	}
	return w.Store.PutNote(ctx, w.note(), data)
}

func (w *watcher) encode() ([]byte, error) {
	w.Budget, w.Models = w.watch.Budget, len(w.models)
	head, err := json.Marshal(&w.state)
	if err != nil {
		return nil, err
	}
	data := append(head, '\n')
	var one []byte
	for _, name := range slices.Sorted(maps.Keys(w.models)) {
		if one, err = w.models[name].AppendBinary(one[:0]); err != nil {
			return nil, err
		}
		data = append(binary.AppendUvarint(data, uint64(len(name))), name...)
		data = append(binary.AppendUvarint(data, uint64(len(one))), one...)
	}
	return data, nil
}

// load continues with the saved state. If there is none, or one of other figures, the watch begins with the first
// answers that the stream still has.
func (w *watcher) load(ctx context.Context) error {
	data, err := w.Store.Note(ctx, w.note())
	if errors.Is(err, store.ErrNotFound) {
		return nil
	}
	if err == nil {
		err = w.decode(data)
	}
	if err != nil {
		return fmt.Errorf("read the saved state: %w", err)
	}
	return nil
}

func (w *watcher) decode(data []byte) error {
	head, rest, _ := bytes.Cut(data, []byte("\n"))
	var s state
	if err := json.Unmarshal(head, &s); err != nil {
		return err
	}
	if s.Config != w.Config || len(s.Words) != len(w.Words) {
		w.Logger.Info("drift: the watched figures have changed; the watch begins again", "scorer", w.Scorer.Name)
		return nil
	}
	next := func() (part []byte) {
		n, size := binary.Uvarint(rest)
		if size <= 0 || uint64(len(rest)-size) < n {
			rest = nil
			return nil
		}
		part, rest = rest[size:size+int(n)], rest[size+int(n):]
		return part
	}
	for len(rest) > 0 {
		name, m := string(next()), new(drift.Model)
		if err := m.UnmarshalBinary(next()); err != nil {
			return fmt.Errorf("model %s: %w", name, err)
		}
		if len(m.Figures) != len(w.at) {
			return fmt.Errorf("model %s has %d figures, not %d", name, len(m.Figures), len(w.at))
		}
		w.models[strings.Clone(name)] = m
		if m.Version == 0 {
			w.silent++
		}
	}
	if len(w.models) != s.Models {
		return fmt.Errorf("it has %d models, not %d", len(w.models), s.Models)
	}
	if s.Waiting == nil {
		s.Waiting = map[string][]waitingForTurn{}
	}
	w.state, w.watch.Budget = s, s.Budget
	return nil
}
