package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"

	"tidemill.dev/loadtest/internal/fleet"
	"tidemill.dev/loadtest/internal/scenario"
	"tidemill.dev/loadtest/internal/task"
)

// measureScenario measures everything in one scenario file, in its own scoreBench.
func measureScenario(ctx context.Context, p scorePlan, s *scenario.Scenario, built contenders, folder string) (o *scoreOutcome, err error) {
	o = &scoreOutcome{Name: s.Name, About: s.About, Quotes: s.Quotes, Figures: map[string]float64{}}
	if s.Measure == scenario.Trees {
		absent, err := measureTrees(ctx, p, s, built, o)
		if err != nil {
			return nil, err
		}
		return o, o.checkBudgets(s.Budgets, absent)
	}
	w, err := openWorld(ctx, p, s, built, folder)
	if errors.Is(err, errNotHere) {
		o.Notes = append(o.Notes, err.Error())
		return o, nil
	}
	if err != nil {
		return nil, err
	}
	absent, err := w.measure(ctx, o)
	if err := errors.Join(err, w.close(context.WithoutCancel(ctx))); err != nil {
		return nil, err
	}
	return o, o.checkBudgets(s.Budgets, absent)
}

func (w *scoreBench) measure(ctx context.Context, o *scoreOutcome) (absent map[string]string, err error) {
	if w.Data == fleet.KindText {
		if err := w.trainTexts(ctx); err != nil {
			return nil, err
		}
	}
	if err := w.registerAll(ctx); err != nil {
		return nil, err
	}
	switch w.Measure {
	case scenario.Swap:
		return nil, w.measureSwaps(ctx, o)
	case scenario.Latency:
		return nil, w.measureLatency(ctx, o)
	case scenario.Trial:
		return nil, w.measureTrials(ctx, o)
	case scenario.Cache:
		return nil, w.measureCache(ctx, o)
	case scenario.Peers:
		return w.measurePeers(ctx, o)
	case scenario.Infer:
		return w.measureInfer(ctx, o)
	}
	return w.measureThroughput(ctx, o)
}

// slack is the share of extra events, so that no contender runs out of events while it is measured:
// clients read whole fetches.
const (
	slack      = 0.3
	slackLeast = 30_000
)

// comparison is the throughput of all contenders.
type comparison struct {
	*scoreBench
	once, least           turns // scorer, by its delivery
	copied, franz         turns
	native, runtime       turns // inference alone
	parsed, plain, python turns
	audit                 auditCounts
	first                 error // first error that the audit found
	data                  int   // bytes of data in an output
}

func (w *scoreBench) measureThroughput(ctx context.Context, o *scoreOutcome) (absent map[string]string, err error) {
	c := &comparison{scoreBench: w}
	if err := w.fillStream(ctx, w.Warm+w.Events+max(slackLeast, int(slack*float64(w.Events)))); err != nil {
		return nil, err
	}
	if err := w.writeModels(); err != nil {
		return nil, err
	}
	for range w.scorePlan.rounds {
		if err := c.runRound(ctx); err != nil {
			return nil, err
		}
	}
	c.fillRows(o)
	return c.missingReasons(), nil
}

// isChosen reports whether the scenario wants this contender.
func (w *scoreBench) isChosen(name string) bool {
	for _, b := range w.Beside {
		if b == name {
			return name != "python" || w.built.python != nil
		}
	}
	return false
}

// runRound gives every contender a turn. The scorer is first, because the copies write outputs of
// the same size as the scorer's.
func (c *comparison) runRound(ctx context.Context) error {
	if err := c.runScorers(ctx); err != nil {
		return err
	}
	for _, turn := range []struct {
		into    *turns
		program []string
		do      string
		part    int // divisor of the number of events, so that slow contenders do not take all the time
		skip    bool
	}{{&c.copied, c.built.ours, task.Copy, 1, false}, {&c.franz, c.built.franz, task.Copy, 1, false},
		{&c.plain, c.built.plain, "plain", 5, !c.isChosen("plain")}, {&c.python, c.built.python, "python", 10, !c.isChosen("python")}} {
		if turn.skip {
			continue
		}
		m, err := c.runContender(ctx, turn.program, turn.do, turn.part)
		if err != nil {
			return err
		}
		*turn.into = append(*turn.into, m)
	}
	return c.measureInference(ctx)
}

// runContender runs a program that copies or scores the stream.
func (c *comparison) runContender(ctx context.Context, program []string, do string, part int) (m measuredTurn, err error) {
	out, err := c.st.newStream(ctx)
	if err != nil {
		return m, err
	}
	t := task.Scoring{Task: task.Task{Do: do, Addr: c.server.addrs[0], Topic: topicOf(c.scoreBench, inStream), Out: topicOf(c.scoreBench, out),
		Group: "beside-" + out, Warm: c.Warm / part, Records: c.Events / part, Data: c.data, Profile: c.profile}, Models: c.modelFolder(), Engine: c.engine(), Input: c.modelInput()}
	if &program[0] == &c.built.franz[0] {
		t.Profile = "" // it would overwrite our own client's profile
	}
	return c.beside(ctx, out, program, t)
}

func (c *comparison) beside(ctx context.Context, out string, program []string, t task.Scoring) (m measuredTurn, err error) {
	if err := c.server.startMeasuring(); err != nil {
		return m, err
	}
	m.Result, err = doAs(ctx, program, t, c.Cores)
	broker, failed := c.server.stopMeasuring()
	m.broker, m.whole = broker.CPU, m.Records+t.Warm
	return m, errors.Join(err, failed, c.st.remove(ctx, out))
}

func (w *scoreBench) engine() string {
	if w.built.runtime {
		return engineORT
	}
	return engineNative
}

// modelInput returns the name of the data member that the model gets.
func (w *scoreBench) modelInput() string {
	if w.model != "" {
		return "text"
	}
	return fleet.Input
}

func (w *scoreBench) modelFolder() string { return filepath.Join(w.folder, "models") }

// writeModels writes the models into a folder for contenders that do not use the store.
func (w *scoreBench) writeModels() error {
	if len(w.Beside) == 0 {
		return nil
	}
	if err := os.MkdirAll(w.modelFolder(), 0o755); err != nil {
		return err
	}
	return forEachParallel(w.Models, func(key int) error {
		data, err := w.modelData(key, 1)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(w.modelFolder(), fleet.Key(key)+".onnx"), data, 0o644)
	})
}

// measureInference measures the time of the models alone, and of reading the data.
func (c *comparison) measureInference(ctx context.Context) error {
	for _, turn := range []struct {
		engine string
		into   *turns
		cores  int
	}{{engineNative, &c.native, c.Cores}, {engineORT, &c.runtime, c.Cores}, {engineParse, &c.parsed, 1}} {
		if turn.engine == engineORT && !c.built.runtime {
			continue
		}
		t := inferTask{Fleet: c.fleet, Engine: turn.engine, File: c.model, Batch: c.Batch, Warm: c.Warm, Records: c.Events, Profile: c.profile}
		r, err := doAs(ctx, []string{c.self, roleInfer}, t, turn.cores)
		if err != nil {
			return err
		}
		*turn.into = append(*turn.into, measuredTurn{Result: r})
	}
	return nil
}
