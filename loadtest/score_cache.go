package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"tidemill.dev/internal/scoring/infer"
	"tidemill.dev/loadtest/internal/fleet"
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
