package seed

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/config/gate"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/platform"
)

// identity is the smallest model in ONNX's format: it answers the number that it is asked.
const identity = "CAg6QQoQCgF4EgF5IghJZGVudGl0eRIBZ1oUCgF4Eg8KDQgBEgkKAxIBbgoCCAFiFAoBeRIPCg0IARIJCgMSAW4KAggBQgIQDQ=="

// dataFolder is the data folder of tidemill up in the folder of an install.
const dataFolder = "data"

// writer writes an install.
type writer struct {
	names    tidemill.Names
	now      time.Time
	config   string // hash of the config
	conf     *config.Config
	judges   map[string]tidemill.Judge
	gates    map[string]*gate.Gate
	store    *store.Store
	reports  *reports
	artifact api.TreeRef
	events   *broker.Producer

	mu  sync.Mutex
	err error // first error of a fact
}

// write fills a new folder: the config, the trainer, and the data folder of tidemill up.
func write(ctx context.Context, dir string, size Size) (err error) {
	for name, text := range map[string]string{"tidemill.yaml": configText, "trainer/train.sh": trainText, "trainer/clean.sh": "set -eu\necho cleaned >\"$TIDEMILL_OUT/events.csv\"\n"} {
		path := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600)); err != nil {
			return fmt.Errorf("write %s of the install: %w", name, err)
		}
	}
	w := &writer{now: time.Now().UTC(), judges: map[string]tidemill.Judge{}, gates: map[string]*gate.Gate{}}
	if err := w.readConfig(); err != nil {
		return err
	}
	data := filepath.Join(dir, dataFolder)
	p, err := platform.Open(ctx, platform.Options{Config: w.conf, Embedded: &embedded.Options{Dir: data}, OwnStreams: true})
	if err != nil {
		return fmt.Errorf("open the install: %w", err)
	}
	defer func() { err = errors.Join(err, p.Close(context.WithoutCancel(ctx))) }()
	w.names = p.Names()
	if w.store, err = store.Open(ctx, store.Options{URL: filepath.Join(data, "store")}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.store.Close()) }()
	if w.events, err = p.Broker().Producer(broker.ProducerOptions{Compression: broker.Zstd}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, w.events.Close(context.WithoutCancel(ctx))) }()
	return w.all(ctx, size)
}

func (w *writer) readConfig() (err error) {
	if w.conf, err = config.Parse("tidemill.yaml", []byte(configText)); err != nil {
		return err
	}
	w.config = w.conf.Hash()
	for _, r := range w.conf.Recipes {
		w.judges[r.Name] = tidemill.Judge{Gate: r.Gate, On: tidemill.GateOnSame, Promote: r.Promote, Keep: r.Keep}
		if w.gates[r.Name], err = gate.Compile(r.Gate); err != nil {
			return err
		}
	}
	return nil
}

func (w *writer) all(ctx context.Context, size Size) (err error) {
	model, err := base64.StdEncoding.DecodeString(identity)
	if err != nil {
		return err
	}
	w.artifact, err = putFiles(ctx, w.store, map[string][]byte{"model.onnx": model, "metrics.json": []byte(`{"accuracy": 0.93}`),
		"metrics.jsonl": []byte(curve()), "predictions.csv": []byte(predictions(10, 9, true))})
	if err != nil {
		return fmt.Errorf("store the artifact of all versions: %w", err)
	}
	w.reports = &reports{store: w.store, made: map[[3]int]madeReport{}}
	for _, p := range plans(size) {
		if err := w.history(ctx, p).write(); err != nil {
			return fmt.Errorf("write the history of key %q of recipe %s: %w", p.key, p.recipe, err)
		}
	}
	if err := w.rollout(ctx); err != nil {
		return fmt.Errorf("write the rollout: %w", err)
	}
	if err := w.letters(ctx, size.Letters); err != nil {
		return err
	}
	if err := w.events.Flush(ctx); err != nil {
		return err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.err
}

// send sends an event. Flush waits for its acknowledgement.
func (w *writer) send(ctx context.Context, stream string, v *broker.View) {
	w.events.Send(ctx, stream, v, func(_ broker.Receipt, err error) {
		if err != nil {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.err = errors.Join(w.err, fmt.Errorf("publish %s: %w", v.Type, err))
		}
	})
}

// plan returns the plan of the runs of a key.
func (w *writer) plan(p *keyPlan) *tidemill.Plan {
	plan := &tidemill.Plan{Command: []string{"python", "train.py"}, Image: "registry.example/intent-trainer:3", CPU: 2, Memory: 4 << 30, Pool: "gpu",
		Deadline: time.Hour, Grace: 30 * time.Second, Attempts: 2, Backoff: tidemill.Backoff{First: time.Second, Cap: time.Minute}, MaxOutput: 1 << 30, MaxLog: 1 << 20,
		Inputs: []tidemill.Input{{Name: "examples", Dataset: "bots/" + p.model, Branch: "main", Commit: tidemill.ID("commit", p.key), Tree: w.artifact.Tree, Files: 12, Bytes: 123456}}}
	if plan.Model = p.model; p.model == "" {
		plan.Dataset, plan.Branch, plan.Inputs, plan.Pool = "clean/"+p.key, "main", nil, "cpu"
	}
	return plan
}

// curve returns the metrics.jsonl of all versions.
func curve() string {
	var b strings.Builder
	for step := 1; step <= 300; step++ {
		s := float64(step)
		fmt.Fprintf(&b, "{\"step\": %d, \"total\": 300, \"loss\": %.4f, \"accuracy\": %.4f}\n", step, 0.2+2/(s+1), 0.95-0.6/(s/10+1))
	}
	return b.String()
}
