package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/task"
)

// cacheTask is the argument of a process that runs only a cache of models.
type cacheTask struct {
	Fleet  fleet.Fleet
	Store  string
	Dir    string
	Refs   string // file with the references of all models, as JSON
	Memory int64
	Hot    int
}

// cacheResult is the measurement of that process, in milliseconds.
type cacheResult struct {
	WarmP50, WarmP99       float64
	StoreP50, StoreP99     float64 // cold models, loaded from the store
	DiskP50, DiskP99       float64 // cold models, loaded from the disk
	Hits                   float64 // hits of the hot set while all models are swept, in percent
	SweepSeconds           float64
	Models                 int // number of models in memory at the end
	Bytes                  int64
	Resident               uint64
	Asked, Swept, Measured int
}

// measureCache uses models as the scorer does, in their own process.
func (w *scoreBench) measureCache(ctx context.Context, o *scoreOutcome) error {
	memory, err := bytesIn(w.Memory)
	if err != nil {
		return err
	}
	refs, err := w.refs(ctx)
	if err != nil {
		return err
	}
	file := filepath.Join(w.folder, "refs.json")
	data, err := json.Marshal(refs)
	if err == nil {
		err = os.WriteFile(file, data, 0o644)
	}
	if err != nil {
		return err
	}
	var r cacheResult
	t := cacheTask{Fleet: w.fleet, Store: w.storeURL(), Dir: filepath.Join(w.folder, "models"), Refs: file, Memory: memory, Hot: w.Hot}
	if err := runChild(ctx, []string{w.self, roleCache}, nil, t, &r); err != nil {
		return err
	}
	r.tell(o)
	return nil
}

func (r *cacheResult) tell(o *scoreOutcome) {
	o.Figures["warm p99"], o.Figures["cold p99"] = r.WarmP99, max(r.StoreP99, r.DiskP99)
	o.Figures["hot set's hits during a sweep"] = r.Hits
	o.Notes = append(o.Notes,
		fmt.Sprintf("warm: p50 %.3f ms, p99 %.3f ms; cold from the store: p50 %.2f ms, p99 %.2f ms; cold from the disk: p50 %.2f ms, p99 %.2f ms",
			r.WarmP50, r.WarmP99, r.StoreP50, r.StoreP99, r.DiskP50, r.DiskP99),
		fmt.Sprintf("%d models swept in %.1f s beside %d requests of the hot set; then %d models in memory, %d MiB of them, %d MiB resident",
			r.Swept, r.SweepSeconds, r.Asked, r.Models, r.Bytes>>20, r.Resident>>20))
}

// refs returns a reference to every model's first version.
func (w *scoreBench) refs(ctx context.Context) ([]infer.Ref, error) {
	all := make([]infer.Ref, w.Models)
	return all, forEachParallel(w.Models, func(key int) error {
		tree, err := w.putVersion(ctx, key, 1) // the version is in the store already; this returns its tree
		all[key] = infer.Ref{Model: fleet.Model(key), Version: 1, Artifact: tree.Tree, Engine: infer.EngineAuto}
		return err
	})
}

// cacheAlone runs the process of a cacheTask.
func cacheAlone(ctx context.Context, args []string, stdout io.Writer) (err error) {
	var t cacheTask
	if len(args) != 1 {
		return errors.New("cache: give one task as JSON")
	}
	if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
		return fmt.Errorf("read the task %q: %w", args[0], err)
	}
	s, err := store.Open(ctx, store.Options{URL: t.Store})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	c, err := infer.Open(infer.Options{Memory: t.Memory, Dir: t.Dir, Disk: 8 << 30,
		Fetch: func(ctx context.Context, artifact, file string, limit int64) ([]byte, error) {
			return fetchFile(ctx, s, artifact, file)
		}})
	if err != nil {
		return err
	}
	b := &cacheBench{t: t, cache: c}
	r, err := b.measure(ctx)
	if err := errors.Join(err, c.Close()); err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(r)
}

func fetchFile(ctx context.Context, s *store.Store, artifact, file string) (data []byte, err error) {
	f, err := s.File(ctx, artifact, file)
	if err != nil {
		return nil, err
	}
	r, err := s.OpenFile(ctx, f)
	if err != nil {
		return nil, err
	}
	data, err = io.ReadAll(r)
	return data, errors.Join(err, r.Close())
}

// cacheBench uses models for one event at a time.
type cacheBench struct {
	t       cacheTask
	cache   *infer.Cache
	refs    []infer.Ref
	in, out []tensor.Tensor
	bodies  []fleet.Body
	asked   int
}

// hotPerSwept is the number of requests of the hot set between two models of a sweep.
const hotPerSwept = 5

func (b *cacheBench) measure(ctx context.Context) (r cacheResult, err error) {
	data, err := os.ReadFile(b.t.Refs)
	if err == nil {
		err = json.Unmarshal(data, &b.refs)
	}
	if err != nil {
		return r, err
	}
	b.bodies = b.t.Fleet.Bodies()
	b.in, b.out = make([]tensor.Tensor, 1), make([]tensor.Tensor, 1)
	hot := fleet.Fleet{Models: b.t.Hot, Spread: fleet.Zipf}
	keys := hot.Keys()
	if _, err := b.useOnce(ctx, b.refs[:b.t.Hot]); err != nil {
		return r, err
	}
	if _, _, err := b.measureHot(ctx, keys, 20*b.t.Hot); err != nil { // until the hot set is certainly in memory
		return r, err
	}
	warm, _, err := b.measureHot(ctx, keys, 100_000)
	if err != nil {
		return r, err
	}
	r.WarmP50, r.WarmP99, r.Measured = milliseconds(warm.quantile(0.5)), milliseconds(warm.quantile(0.99)), len(warm)
	if err := b.measureCold(ctx, &r); err != nil {
		return r, err
	}
	if err := b.useAll(ctx, keys, &r); err != nil {
		return r, err
	}
	s := b.cache.Stats()
	r.Models, r.Bytes, r.Resident = s.Models, s.Bytes, task.Weigh().Resident
	return r, nil
}

// measureCold uses models that are not in memory. The cache loads them from the store the first
// time, and from the disk once they have been evicted.
func (b *cacheBench) measureCold(ctx context.Context, r *cacheResult) error {
	first := b.refs[b.t.Hot:]
	took, err := b.useOnce(ctx, first)
	if err != nil {
		return err
	}
	r.StoreP50, r.StoreP99 = milliseconds(took.quantile(0.5)), milliseconds(took.quantile(0.99))
	gone := slices.DeleteFunc(slices.Clone(first), func(ref infer.Ref) bool { return b.holds(&ref) })
	if took, err = b.useOnce(ctx, gone); err != nil {
		return err
	}
	r.DiskP50, r.DiskP99 = milliseconds(took.quantile(0.5)), milliseconds(took.quantile(0.99))
	return nil
}

func (b *cacheBench) holds(ref *infer.Ref) bool {
	m := b.cache.Use(ref)
	if m != nil {
		m.Release()
	}
	return m != nil
}

// useOnce uses each model once.
func (b *cacheBench) useOnce(ctx context.Context, refs []infer.Ref) (sample, error) {
	took := make(sample, len(refs))
	for i := range refs {
		began := time.Now()
		if _, err := b.scoreOne(ctx, &refs[i]); err != nil {
			return nil, err
		}
		took[i] = time.Since(began)
	}
	return took.sorted(), nil
}

// measureHot uses models of the hot set n times.
func (b *cacheBench) measureHot(ctx context.Context, keys *fleet.Keys, n int) (took sample, hits int, err error) {
	took = make(sample, n)
	for i := range took {
		ref := &b.refs[keys.Next()]
		began := time.Now()
		hit, err := b.scoreOne(ctx, ref)
		if err != nil {
			return nil, 0, err
		}
		took[i] = time.Since(began)
		if hit {
			hits++
		}
	}
	return took.sorted(), hits, nil
}

// useAll uses every model once, while requests for the hot set continue.
func (b *cacheBench) useAll(ctx context.Context, keys *fleet.Keys, r *cacheResult) error {
	began, hits := time.Now(), 0
	for i := range b.refs {
		if _, err := b.scoreOne(ctx, &b.refs[i]); err != nil {
			return err
		}
		_, n, err := b.measureHot(ctx, keys, hotPerSwept)
		if err != nil {
			return err
		}
		hits += n
	}
	r.Swept, r.Asked = len(b.refs), hotPerSwept*len(b.refs)
	r.Hits, r.SweepSeconds = 100*float64(hits)/float64(r.Asked), time.Since(began).Seconds()
	return nil
}

// scoreOne scores one event with a model, and reports whether the model was in memory.
func (b *cacheBench) scoreOne(ctx context.Context, ref *infer.Ref) (hit bool, err error) {
	m := b.cache.Use(ref)
	if hit = m != nil; !hit {
		if m, err = b.cache.Load(ctx, ref); err != nil {
			return false, err
		}
	}
	defer m.Release()
	b.asked++
	row := b.bodies[b.asked%len(b.bodies)].Row
	b.in[0].Type, b.in[0].Floats = tensor.Float, row
	b.in[0].Shape = append(b.in[0].Shape[:0], 1, len(row))
	return hit, m.Run(b.in, b.out)
}
