package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"sync"
	"sync/atomic"

	"tidemill.dev/broker"
	"tidemill.dev/internal/scoring/features"
	"tidemill.dev/internal/scoring/infer/native"
	"tidemill.dev/internal/scoring/infer/ort"
	"tidemill.dev/internal/scoring/infer/tensor"
	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/task"
)

// inferTask is the argument of a process that only runs models.
type inferTask struct {
	Fleet   fleet.Fleet
	Engine  string       // native, onnxruntime, or parse: only read the data
	File    string       `json:",omitempty"` // file of the only model, if it is not a generated network
	Trees   *fleet.Trees `json:",omitempty"` // the only model, in the place of File
	Batch   int
	Warm    int
	Records int
	Profile string `json:",omitempty"`
}

const (
	engineNative = "native"
	engineORT    = "onnxruntime"
	engineParse  = "parse"
)

// program is a model of either engine.
type program interface {
	Inputs() []tensor.Spec
	Outputs() []tensor.Spec
	Run(in, out []tensor.Tensor) error
}

// inferAlone measures the other half of a scorer's ceiling: the same models and batches, with
// inputs in memory.
func inferAlone(_ context.Context, args []string, stdout io.Writer) error {
	var t inferTask
	if len(args) != 1 {
		return errors.New("infer: give one task as JSON")
	}
	if err := json.Unmarshal([]byte(args[0]), &t); err != nil {
		return fmt.Errorf("read the task %q: %w", args[0], err)
	}
	do := measureParsing
	if t.Engine != engineParse {
		do = measureInference
	}
	r, err := do(t)
	if err != nil {
		return fmt.Errorf("inference alone with %s: %w", t.Engine, err)
	}
	return r.Write(stdout)
}

func measureInference(t inferTask) (r task.Result, err error) {
	models, err := t.load()
	if err != nil {
		return r, err
	}
	l := &inferLoop{models: models, keys: t.Fleet.Keys(), batch: t.Batch, counts: make([]int, t.Fleet.Models), workers: make([]inferWorker, runtime.GOMAXPROCS(0))}
	l.table(&t.Fleet)
	if t.Trees != nil {
		if err := l.checkTrees(t.Trees); err != nil {
			return r, err
		}
	}
	if err := l.run(t.Warm); err != nil {
		return r, err
	}
	var m task.Meter
	meter := task.Task{Do: "infer-" + t.Engine, Profile: t.Profile, Records: t.Records}
	if err := m.Start(meter); err != nil {
		return r, err
	}
	if err := l.run(t.Records); err != nil {
		return r, err
	}
	return m.Stop(meter)
}

// load loads all models.
func (t *inferTask) load() ([]program, error) {
	load := func(data []byte) (program, error) { return native.Load(data) }
	if t.Engine == engineORT {
		r, err := ort.Open("")
		if err != nil {
			return nil, err
		}
		load = func(data []byte) (program, error) { return r.Load(data) }
	}
	all := make([]program, t.Fleet.Models)
	for i := range all {
		data, err := t.data(i)
		if err != nil {
			return nil, err
		}
		if all[i], err = load(data); err != nil {
			return nil, fmt.Errorf("load model %d: %w", i, err)
		}
	}
	return all, nil
}

func (t *inferTask) data(key int) ([]byte, error) {
	switch {
	case t.Trees != nil:
		return t.Trees.File(fleet.Seed(key, 1)), nil
	case t.File != "":
		return os.ReadFile(t.File)
	}
	return t.Fleet.Network.File(fleet.Seed(key, 1)), nil
}

// inferLoop runs batch after batch, grouped by model, on all cores.
type inferLoop struct {
	models  []program
	keys    *fleet.Keys
	batch   int
	counts  []int
	rows    int       // number of different rows; a batch begins at the next of them
	first   int       // first row of the batch
	floats  []float32 // rows, and those of a batch again
	texts   []string
	groups  []inferGroup
	next    atomic.Int64 // next group that a worker takes
	workers []inferWorker
}

type inferGroup struct{ model, from, rows int }

// table makes the rows. A small batch begins at another row each time, because a processor learns
// the few rows of one batch by heart.
func (l *inferLoop) table(f *fleet.Fleet) {
	all := f.Bodies()
	l.rows = 1
	if l.batch < len(all) {
		l.rows = len(all)
	}
	for i := range l.rows - 1 + l.batch {
		b := &all[i%len(all)]
		l.floats = append(l.floats, b.Row...)
		l.texts = append(l.texts, b.Text)
	}
}

func (l *inferLoop) run(records int) error {
	for done := 0; done < records; done += l.batch {
		l.gather(min(l.batch, records-done))
		l.first = (l.first + l.batch) % l.rows
		l.next.Store(0)
		if len(l.workers) == 1 {
			l.workers[0].work(l)
		} else {
			l.runWorkers()
		}
		for i := range l.workers {
			if err := l.workers[i].failed; err != nil {
				return err
			}
		}
	}
	return nil
}

func (l *inferLoop) runWorkers() {
	var running sync.WaitGroup
	for i := range l.workers {
		running.Go(func() { l.workers[i].work(l) })
	}
	running.Wait()
}

func (l *inferLoop) gather(n int) {
	clear(l.counts)
	for range n {
		l.counts[l.keys.Next()]++
	}
	l.groups = l.groups[:0]
	from := 0
	for model, rows := range l.counts {
		if rows > 0 {
			l.groups = append(l.groups, inferGroup{model, from, rows})
			from += rows
		}
	}
}

type inferWorker struct {
	in, out []tensor.Tensor
	failed  error
}

func (w *inferWorker) work(l *inferLoop) {
	for w.failed == nil {
		i := int(l.next.Add(1)) - 1
		if i >= len(l.groups) {
			return
		}
		w.failed = w.infer(l, l.groups[i])
	}
}

func (w *inferWorker) infer(l *inferLoop, g inferGroup) error {
	p := l.models[g.model]
	if w.in == nil {
		w.in, w.out = make([]tensor.Tensor, 1), make([]tensor.Tensor, len(p.Outputs()))
		w.in[0] = tensor.Tensor{Type: p.Inputs()[0].Type, Shape: make([]int, len(p.Inputs()[0].Shape))}
		copy(w.in[0].Shape, p.Inputs()[0].Shape)
	}
	w.in[0].Shape[0] = g.rows
	if w.in[0].Type == tensor.String {
		w.in[0].Strings = l.texts[l.first+g.from:][:g.rows]
	} else {
		columns := len(l.floats) / len(l.texts)
		w.in[0].Floats = l.floats[(l.first+g.from)*columns:][:g.rows*columns]
	}
	return p.Run(w.in, w.out)
}

// measureParsing reads the events' data into tensors on one core, and does nothing else.
func measureParsing(t inferTask) (r task.Result, err error) {
	spec := tensor.Spec{Name: "text", Type: tensor.String, Shape: []int{tensor.Any}}
	if t.Fleet.Kind != fleet.KindText {
		spec = tensor.Spec{Name: fleet.Input, Type: tensor.Float, Shape: []int{tensor.Any, t.Fleet.Network[0]}}
	}
	plan, err := features.New(nil, []tensor.Spec{spec})
	if err != nil {
		return r, err
	}
	p := &parser{plan: plan, in: make([]tensor.Tensor, 1), bodies: t.Fleet.Bodies()}
	if err := p.parse(t.Warm, t.Batch); err != nil {
		return r, err
	}
	var m task.Meter
	meter := task.Task{Do: engineParse, Profile: t.Profile, Records: t.Records}
	if err := m.Start(meter); err != nil {
		return r, err
	}
	if err := p.parse(t.Records, t.Batch); err != nil {
		return r, err
	}
	return m.Stop(meter)
}

type parser struct {
	plan   *features.Plan
	in     []tensor.Tensor
	bodies []fleet.Body
}

func (p *parser) parse(n, batch int) error {
	var v broker.View
	for done := 0; done < n; done += batch {
		p.plan.Begin(p.in, batch)
		for row := range batch {
			v.Data = p.bodies[(done+row)%len(p.bodies)].Data
			if err := p.plan.Read(&v, p.in, row); err != nil {
				return err
			}
		}
		p.plan.End(p.in, batch)
	}
	return nil
}
