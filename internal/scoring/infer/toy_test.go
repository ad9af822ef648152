package infer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"

	"tidemill.dev/internal/scoring/infer/tensor"
)

// toy is a program with a chosen size. It reports forbidden calls: a run after Close, a Close
// during a run, and a second Close.
type toy struct {
	inputs, outputs []tensor.Spec
	meta            map[string]string
	classes         []string
	bytes           int64
	answers         []tensor.Tensor
	err             error

	t       *toys
	running atomic.Int32
	closed  atomic.Bool
}

func (p *toy) Inputs() []tensor.Spec       { return p.inputs }
func (p *toy) Outputs() []tensor.Spec      { return p.outputs }
func (p *toy) Metadata() map[string]string { return p.meta }
func (p *toy) Labels() []string            { return p.classes }
func (p *toy) Bytes() int64                { return p.bytes }

func (p *toy) RunWithin(_ tensor.Budget, in, out []tensor.Tensor) error { return p.Run(in, out) }

func (p *toy) Run(_, out []tensor.Tensor) error {
	p.running.Add(1)
	defer p.running.Add(-1)
	if p.closed.Load() {
		p.t.fault("a program ran that was closed")
	}
	copy(out, p.answers)
	return p.err
}

func (p *toy) Close() {
	if p.closed.Swap(true) || p.running.Load() != 0 {
		p.t.fault("a program was closed twice, or while it ran")
	}
	if p.t != nil {
		p.t.alive.Add(-p.bytes)
	}
}

// toys is a store of models whose files contain their sizes, and an engine for them.
type toys struct {
	lock    sync.Mutex
	files   map[string]string // by artifact/file
	fetched map[string]int
	before  func(ctx context.Context, artifact, file string) error // called before a fetch
	faults  []string
	alive   atomic.Int64 // bytes of programs that are not closed
}

func newToys() *toys { return &toys{files: map[string]string{}, fetched: map[string]int{}} }

func (s *toys) fault(what string) {
	if s != nil {
		s.lock.Lock()
		defer s.lock.Unlock()
		s.faults = append(s.faults, what)
	}
}

func (s *toys) put(n int, bytes int64) *Ref {
	r := &Ref{Model: fmt.Sprint("toy/", n), Version: 1, Artifact: fmt.Sprintf("%064x", n*7919), Engine: EngineAuto}
	s.lock.Lock()
	defer s.lock.Unlock()
	s.files[r.Artifact+"/"+ModelFile] = strconv.FormatInt(bytes-overhead, 10)
	return r
}

func (s *toys) fetch(ctx context.Context, artifact, file string, limit int64) ([]byte, error) {
	if s.before != nil {
		if err := s.before(ctx, artifact, file); err != nil {
			return nil, err
		}
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	name := artifact + "/" + file
	s.fetched[name]++
	data, ok := s.files[name]
	if !ok {
		return nil, fmt.Errorf("%s: %w", name, fs.ErrNotExist)
	}
	return []byte(data), nil
}

func (s *toys) fetches(r *Ref) int {
	s.lock.Lock()
	defer s.lock.Unlock()
	return s.fetched[r.Artifact+"/"+ModelFile]
}

func (s *toys) load(from source) (Program, string, error) {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(from.data)), 10, 64)
	if err != nil {
		return nil, "", fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	s.alive.Add(n)
	return &toy{t: s, bytes: n, inputs: []tensor.Spec{{Name: "x", Type: tensor.Float, Shape: []int{-1, 1}}},
		outputs: []tensor.Spec{{Name: "y", Type: tensor.Float, Shape: []int{-1, 1}}},
		answers: []tensor.Tensor{{Type: tensor.Float, Shape: []int{1, 1}, Floats: []float32{1}}}}, "toy", nil
}

// open opens a cache of toys. At the end of the test it checks that no toy was misused and none
// is left.
func (s *toys) open(t testing.TB, o Options) *Cache {
	t.Helper()
	o.Fetch = s.fetch
	c, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	c.engines = s.load
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
		for _, f := range s.faults {
			t.Error(f)
		}
		if left := s.alive.Load(); left != 0 || c.outside.Load() != 0 {
			t.Errorf("%d bytes of programs were not closed; %d are counted as used", left, c.outside.Load())
		}
	})
	return c
}

// useModel uses a model as a scorer does: from memory, or else by a load.
func useModel(t testing.TB, c *Cache, r *Ref) (hit bool) {
	t.Helper()
	m := c.Use(r)
	if hit = m != nil; !hit {
		var err error
		if m, err = c.Load(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	if m.Ref().Model != r.Model || m.Ref().Version != r.Version {
		t.Fatalf("asked for %s and got %s", r, m.Ref())
	}
	m.Release()
	return hit
}

func unfit(err error) bool { return errors.Is(err, ErrUnfit) }
