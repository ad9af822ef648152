package infer

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/scoring/infer/tensor"
)

// flight is a running load, shared by all callers that ask for the model.
type flight struct {
	cancel  context.CancelFunc
	waiting int           // guarded by the shard's lock
	done    chan struct{} // closed after the fields below are set
	entry   *entry        // the waiting callers are already counted as its users
	err     error
}

// Load brings a model into memory, once for all concurrent callers, and checks the
// golden request. The caller releases the model. A model that the cache does not keep
// lives until then. Load does not count as a use, because the Use before it has. The
// load is cancelled once no caller waits for it.
func (c *Cache) Load(ctx context.Context, r *Ref) (*Model, error) {
	k := r.key()
	s := c.shard(k)
	s.lock.Lock()
	if e := s.entries[k]; e != nil {
		e.users++
		defer s.lock.Unlock()
		return e.model(r), nil
	}
	f := s.flights[k]
	if f == nil {
		var err error
		if f, err = c.start(s, k, r); err != nil {
			s.lock.Unlock()
			return nil, err
		}
	}
	f.waiting++
	s.lock.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		if s.abandon(f, k) {
			return nil, fmt.Errorf("load %s: %w", r, context.Cause(ctx))
		}
		<-f.done // the model is being handed over
	}
	if f.err != nil {
		return nil, fmt.Errorf("load %s: %w", r, f.err)
	}
	s.lock.Lock()
	defer s.lock.Unlock()
	return f.entry.model(r), nil
}

// abandon removes a waiting caller from a flight and cancels the flight after the last
// one. It returns false if the flight has already landed.
func (s *shard) abandon(f *flight, k key) bool {
	s.lock.Lock()
	defer s.lock.Unlock()
	if f.entry != nil || f.err != nil {
		return false
	}
	if f.waiting--; f.waiting == 0 {
		f.cancel()
		if s.flights[k] == f {
			delete(s.flights, k) // a new caller must not join a cancelled flight
		}
	}
	return true
}

// start begins a flight. The caller holds the shard's lock.
func (c *Cache) start(s *shard, k key, r *Ref) (*flight, error) {
	c.begin.Lock()
	defer c.begin.Unlock()
	if c.closed {
		return nil, fmt.Errorf("load %s: %w", r, ErrClosed)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	f := &flight{cancel: cancel, done: make(chan struct{})}
	s.flights[k] = f
	ref := *r
	c.running.Go(func() {
		defer cancel()
		m, err := c.readAndLoad(ctx, &ref)
		if err != nil && c.ctx.Err() != nil {
			err = ErrClosed
		}
		c.land(s, ref, f, m, err)
		c.garbage.hold(c.held) // after the hand-over, because it may wait for a collection
	})
	return f, nil
}

// land hands the flight's result to the waiting callers.
func (c *Cache) land(s *shard, ref Ref, f *flight, m *loaded, err error) {
	k := ref.key()
	defer close(f.done)
	s.lock.Lock()
	if s.flights[k] == f {
		delete(s.flights, k)
	}
	if f.waiting == 0 && err == nil { // no caller is left, and another flight may be running
		s.lock.Unlock()
		m.program.Close()
		return
	}
	if f.err = err; err != nil {
		s.lock.Unlock()
		return
	}
	e := &entry{loaded: m, key: k, shard: s, users: f.waiting + 1} // plus one for this function, until the policy has decided
	e.weight = ref.popularity()
	f.entry, s.entries[k] = e, e
	s.outside.Add(e.bytes)
	s.lock.Unlock()
	if !c.policy.admit(e) {
		c.sayTooLarge(&ref, e.bytes)
	}
	e.release()
}

// sayEvery limits the log lines about a model that is loaded for each event.
const sayEvery = time.Minute

func (c *Cache) sayTooLarge(r *Ref, bytes int64) {
	now, last := time.Now().UnixNano(), c.said.Load()
	if now-last > int64(sayEvery) && c.said.CompareAndSwap(last, now) {
		c.log.Warn("scorer: a model is larger than the memory for all models; it is loaded again for each use", "model", r.Model, "version", r.Version,
			"want", bytes, "have", c.policy.mainBytes(), "next", "give more with --model-memory")
	}
}

func (c *Cache) held() int64 {
	c.policy.lock.Lock()
	defer c.policy.lock.Unlock()
	return c.policy.window.bytes + c.policy.main.bytes + c.outside.Load()
}

// readAndLoad reads a model's files and loads them. Fetches wait for each other, and so do
// loads, each with its own limit, so that neither starves the other.
func (c *Cache) readAndLoad(ctx context.Context, r *Ref) (m *loaded, err error) {
	k := r.key()
	begun := time.Now()
	defer func() { c.metrics.loaded(time.Since(begun), err) }()
	files, err := c.files(ctx, k.artifact)
	if err != nil {
		return nil, err
	}
	var held places
	defer held.giveAll()
	if len(files.model) > largeFile {
		if err := held.take(ctx, c.large); err != nil {
			return nil, err
		}
	}
	if err := held.take(ctx, c.loads); err != nil {
		return nil, err
	}
	card, err := readCard(files.card)
	if err != nil {
		return nil, err
	}
	// A model that hangs in ONNX Runtime must not keep the others from being loaded.
	slow := func() error { held.giveAll(); return held.take(ctx, c.slow) }
	p, by, err := c.engines(source{model: r.Model, engine: k.engine, data: files.model, again: func() ([]byte, error) { return c.modelAgain(k.artifact) }, slow: slow})
	if err != nil {
		return nil, err
	}
	return ready(p, by, card)
}

// places are the semaphores that a load holds.
type places []chan struct{}

func (p *places) take(ctx context.Context, from chan struct{}) error {
	err := take(ctx, from)
	if err == nil {
		*p = append(*p, from)
	}
	return err
}

func (p *places) giveAll() {
	for _, held := range *p {
		give(held)
	}
	*p = nil
}

// againWithin is how long a run waits for its model's file after ONNX Runtime's process has ended.
const againWithin = 30 * time.Second

// modelAgain reads a model's file again, and tries for a while: the store may be away for a moment.
func (c *Cache) modelAgain(artifact string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(c.ctx, againWithin)
	defer cancel()
	wait := retry.Backoff{First: 100 * time.Millisecond, Cap: 5 * time.Second}
	for n := 1; ; n++ {
		f, err := c.files(ctx, artifact)
		if err == nil || errors.Is(err, ErrUnfit) {
			return f.model, err
		}
		if retry.Sleep(ctx, wait.After(n)) != nil {
			return nil, err
		}
	}
}

// files are the parts of a model.
type files struct{ model, card []byte }

func (c *Cache) files(ctx context.Context, artifact string) (files, error) {
	if c.disk != nil {
		if err := take(ctx, c.loads); err != nil {
			return files{}, err
		}
		f, ok := c.disk.read(artifact)
		give(c.loads)
		if ok {
			return f, nil
		}
	}
	if err := take(ctx, c.fetches); err != nil {
		return files{}, err
	}
	defer give(c.fetches)
	f, err := c.fetch(ctx, artifact)
	if err == nil && c.disk != nil {
		c.disk.write(artifact, f)
	}
	return f, err
}

func (c *Cache) fetch(ctx context.Context, artifact string) (f files, err error) {
	f.model, err = c.o.Fetch(ctx, artifact, ModelFile, c.largest())
	if errors.Is(err, fs.ErrNotExist) {
		return f, fmt.Errorf("%w: artifact %s has no %s; the run has to write one into TIDEMILL_OUT", ErrUnfit, artifact, ModelFile)
	}
	if err != nil {
		return f, fmt.Errorf("fetch %s of artifact %s: %w", ModelFile, artifact, err)
	}
	f.card, err = c.o.Fetch(ctx, artifact, CardFile, maxCard)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return f, fmt.Errorf("fetch %s of artifact %s: %w", CardFile, artifact, err)
	}
	return f, nil
}

// least is a file size that is allowed with every budget.
const least = 64 << 20

// largest returns the largest file that may be loaded. A file that is larger than the
// whole budget could end the process, and every other model with it.
func (c *Cache) largest() int64 { return min(maxModel, max(least, c.o.Memory)) }

func take(ctx context.Context, places chan struct{}) error {
	select {
	case places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func give(places chan struct{}) { <-places }

func isLeft(err error) bool { return errors.Is(err, context.Canceled) || errors.Is(err, ErrClosed) }

// loaded is a program and its description. It never changes.
type loaded struct {
	program Program
	engine  string
	inputs  []tensor.Spec
	outputs []tensor.Spec
	rows    int
	bytes   int64
	golden  []Answer // first answers to the golden request; nil without one
	*reading
}

// overhead is the estimated memory of a model besides its program.
const overhead = 1 << 10

// ready makes a model from a program: it chooses the outputs to read and checks the
// golden request. If the model is not fit, the program is closed.
func ready(p Program, engine string, c *card) (m *loaded, err error) {
	defer func() {
		if err != nil {
			p.Close()
		}
	}()
	m = &loaded{program: p, engine: engine, inputs: p.Inputs(), outputs: p.Outputs(), rows: c.rows, bytes: p.Bytes() + overhead}
	if c.bytes > 0 && p.Bytes() > c.bytes {
		return nil, fmt.Errorf("%w: it takes %d bytes of memory, and %s allows limits.bytes %d", ErrUnfit, p.Bytes(), CardFile, c.bytes)
	}
	if c.input != "" && index(m.inputs, c.input) < 0 {
		return nil, fmt.Errorf("%w: %s: it has no input %q; it has %s", ErrUnfit, CardFile, c.input, names(m.inputs))
	}
	if err := m.bound(); err != nil {
		return nil, err
	}
	if m.reading, err = newReading(p, c); err != nil {
		return nil, err
	}
	m.single = m.rows == 1
	return m, m.runTrial(c.golden)
}

// bound determines the largest number of rows in one run.
func (m *loaded) bound() error {
	for _, s := range m.inputs {
		switch {
		case len(s.Shape) == 0 || s.Shape[0] == 1:
			m.rows = 1
		case s.Shape[0] > 1:
			return fmt.Errorf("%w: its input %q is for %d rows and no other number; export it with a first dimension that is open, or 1", ErrUnfit, s.Name, s.Shape[0])
		}
	}
	return nil
}

// runTrial runs the golden request, whose answer must match. Without one it runs a row of
// zeros, which must only be answered.
func (m *loaded) runTrial(g *golden) error {
	if g == nil {
		in, ok := zeros(m.inputs)
		if !ok {
			return nil // the size of a row is unknown
		}
		_, err := m.attempt(in, 1)
		return err
	}
	in, rows, err := g.tensors(m.inputs)
	if err != nil {
		return err
	}
	if m.rows > 0 && rows > m.rows {
		return fmt.Errorf("%w: %s, line %d: golden.inputs have %d rows, and the model takes %d", ErrUnfit, CardFile, g.line, rows, m.rows)
	}
	out, err := m.attempt(in, rows)
	if err != nil {
		return err
	}
	for row := range rows {
		a := m.answerAt(out, row)
		if err := m.check(a, g, row); err != nil {
			return err
		}
		if row < keptGolden {
			a.Scores, a.Values = slices.Clone(a.Scores), slices.Clone(a.Values) // the outputs of all rows would stay in memory
			m.golden = append(m.golden, a)
		}
	}
	return nil
}

// keptGolden is the number of answers to the golden request that a model keeps.
const keptGolden = 3

// attempt runs the model once and makes sure that the outputs have the values that Answer reads.
func (m *loaded) attempt(in []tensor.Tensor, rows int) (out []tensor.Tensor, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%w: the engine failed over the trial request: %v", ErrUnfit, r)
		}
	}()
	out = make([]tensor.Tensor, len(m.outputs))
	err = m.program.Run(in, out)
	switch {
	case errors.Is(err, ErrAway): // another load may succeed
		return nil, fmt.Errorf("ask the trial request: %w", err)
	case err != nil:
		return nil, fmt.Errorf("%w: it does not answer the trial request: %w", ErrUnfit, err)
	}
	if err := m.checkRows(out, rows); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnfit, err)
	}
	return out, nil
}

func (m *loaded) check(a Answer, g *golden, row int) error {
	if v, found := notFinite(a); found {
		return fmt.Errorf("%w: its answer to the golden request, row %d, has %v", ErrUnfit, row+1, v)
	}
	if g.label != "" && a.Label != g.label {
		return fmt.Errorf("%w: it answers the golden request, row %d, with %q, and %s, line %d, wants %q", ErrUnfit, row+1, a.Label, CardFile, g.line, g.label)
	}
	return nil
}
