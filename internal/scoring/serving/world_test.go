package serving

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"strconv"
	"strings"
	"sync"
	"testing"

	"tidemill.dev/internal/models/champions"
	"tidemill.dev/internal/scoring/infer"
)

// world has the slots' surroundings: a table of champions and a store of models. An artifact is
// named MODEL@VERSION.
type world struct {
	lock      sync.Mutex
	champions map[string]champions.Champion
	store     map[string]error // result of fetching each artifact; unfit means a file that is not a model
	gates     map[string]chan struct{}
	fetched   []string
	told      []string // calls of Unloadable, and of Loaded after them

	models *Models
	cache  *infer.Cache
}

var (
	errAway  = errors.New("the store is away")
	errUnfit = errors.New("no model")
)

func newWorld(t testing.TB, memory int64) *world {
	t.Helper()
	w := &world{champions: map[string]champions.Champion{}, store: map[string]error{}, gates: map[string]chan struct{}{}}
	var err error
	if w.cache, err = infer.Open(infer.Options{Memory: memory, Fetch: w.fetch}); err != nil {
		t.Fatal(err)
	}
	w.models = open(Options{Cache: w.cache, Unloadable: func(model string, version, kept int, _ error) {
		w.lock.Lock()
		defer w.lock.Unlock()
		w.told = append(w.told, fmt.Sprintf("%s@%d keeps %d", model, version, kept))
	}, Loaded: func(model string, version int, told bool) {
		w.lock.Lock()
		defer w.lock.Unlock()
		if told {
			w.told = append(w.told, fmt.Sprintf("%s@%d is loaded", model, version))
		}
	}}, w)
	t.Cleanup(func() {
		if err := errors.Join(w.models.Close(), w.cache.Close()); err != nil {
			t.Error(err)
		}
		if st := w.cache.Stats(); st.Outside != 0 {
			t.Errorf("%d bytes were not released", st.Outside)
		}
	})
	return w
}

// Champion implements table.
func (w *world) Champion(model string) (champions.Champion, bool) {
	w.lock.Lock()
	defer w.lock.Unlock()
	c, ok := w.champions[model]
	return c, ok
}

// Artifact implements table.
func (w *world) Artifact(_ context.Context, model string, version int) (string, error) {
	artifact := fmt.Sprintf("%s@%d", model, version)
	w.lock.Lock()
	defer w.lock.Unlock()
	if err := w.store[artifact]; errors.Is(err, champions.ErrNoVersion) {
		return "", err
	}
	return artifact, nil
}

// Each implements table.
func (w *world) Each(fn func(model string, now champions.Champion)) {
	w.lock.Lock()
	all := maps.Clone(w.champions)
	w.lock.Unlock()
	for model, c := range all {
		if c.Version > 0 {
			fn(model, c)
		}
	}
}

// promote makes a version the champion in the order of a real fact: first the table, then
// Changed. Version 0 means that there is no champion.
func (w *world) promote(model string, version int) {
	w.set(model, version)
	w.models.Changed(model, champions.Champion{})
}

func (w *world) set(model string, version int) {
	w.lock.Lock()
	defer w.lock.Unlock()
	was := w.champions[model]
	now := champions.Champion{Version: version, Previous: was.Version, Turn: was.Turn + 1}
	if version > 0 && version%2 == 0 { // the artifacts of other versions have to be looked up
		now.Artifact = fmt.Sprintf("%s@%d", model, version)
	}
	w.champions[model] = now
}

// fails makes an artifact fail from now on; nil repairs it.
func (w *world) fails(artifact string, err error) {
	w.lock.Lock()
	defer w.lock.Unlock()
	w.store[artifact] = err
}

// gate makes the loads of an artifact wait until the returned function is called.
func (w *world) gate(artifact string) (open func()) {
	w.lock.Lock()
	defer w.lock.Unlock()
	g := make(chan struct{})
	w.gates[artifact] = g
	return func() {
		w.lock.Lock()
		defer w.lock.Unlock()
		delete(w.gates, artifact)
		close(g)
	}
}

func (w *world) fetch(ctx context.Context, artifact, file string, _ int64) ([]byte, error) {
	if file == infer.CardFile {
		return nil, fs.ErrNotExist
	}
	w.lock.Lock()
	gate := w.gates[artifact]
	w.fetched = append(w.fetched, artifact)
	w.lock.Unlock()
	if gate != nil {
		select {
		case <-gate:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	w.lock.Lock()
	defer w.lock.Unlock()
	switch err := w.store[artifact]; err {
	case nil:
		return identity(), nil
	case errUnfit:
		return []byte("this is no model"), nil
	default:
		return nil, err
	}
}

func (w *world) fetches() string {
	w.lock.Lock()
	defer w.lock.Unlock()
	text := strings.Join(w.fetched, " ")
	w.fetched = nil
	return text
}

func (w *world) said() string {
	w.lock.Lock()
	defer w.lock.Unlock()
	text := strings.Join(w.told, "; ")
	w.told = nil
	return text
}

// answers returns a model's answer: a version, or a state.
func (w *world) answers(model string) string {
	m, state := w.models.Slot(model).Use()
	if m == nil {
		return [...]string{"ready without a model", "loading", "missing", "broken"}[state]
	}
	defer m.Release()
	if state != Ready || m.Ref().Model != model {
		return fmt.Sprintf("%s in state %d", m.Ref(), state)
	}
	return strconv.Itoa(m.Ref().Version)
}

// identity returns an ONNX file whose model answers with its input.
func identity() []byte {
	number := func(field int, v uint64) []byte {
		return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(field)<<3), v)
	}
	part := func(field int, parts ...[]byte) []byte {
		all := []byte{}
		for _, p := range parts {
			all = append(all, p...)
		}
		return append(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(field)<<3|2), uint64(len(all))), all...)
	}
	text := func(field int, s string) []byte { return part(field, []byte(s)) }
	value := func(field int, name string) []byte {
		shape := part(2, part(1, text(2, "rows")), part(1, number(1, 1)))
		return part(field, text(1, name), part(2, part(1, number(1, 1), shape)))
	}
	graph := part(7, part(1, text(1, "x"), text(2, "y"), text(4, "Identity")), text(2, "g"), value(11, "x"), value(12, "y"))
	return append(append(number(1, 8), graph...), part(8, number(2, 17))...)
}
