package lineage_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/ledger/fold"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/lineage"
)

// patience limits how long a test waits.
const patience = 5 * time.Minute

// world is a Kafka, a Redis, a ledger and a store, with functions that write to them as Tidemill
// does.
type world struct {
	testing.TB
	names   tidemill.Names
	broker  *broker.Broker
	ledger  *ledger.Ledger
	store   *store.Store
	facts   int
	config  *config.Config
	mayRead func(string) bool
}

func newWorld(t testing.TB) *world {
	t.Helper()
	s := must1(embedded.Start(t.Context(), embedded.Options{}))(t)
	t.Cleanup(func() { _ = s.Close() })
	w := &world{TB: t, names: must1(tidemill.NewNames("test"))(t), config: config.Default(), mayRead: func(string) bool { return true }}
	w.broker = must1(broker.Open(t.Context(), broker.Options{Addr: s.Kafka(), Names: w.names}))(t)
	t.Cleanup(func() { _ = w.broker.Close() })
	must1(w.broker.EnsureStreams(t.Context(), []broker.StreamSpec{{Name: tidemill.StreamFacts, Partitions: 4}}, broker.EnsureOptions{}))(t)
	producer := must1(w.broker.Producer(broker.ProducerOptions{}))(t)
	t.Cleanup(func() { _ = producer.Close(context.Background()) })
	client := redis.NewClient(&redis.Options{Addr: s.Redis(), ReadTimeout: time.Minute})
	t.Cleanup(func() { _ = client.Close() })
	w.ledger = must1(ledger.Open(t.Context(), ledger.Options{Broker: w.broker, Producer: producer, Names: w.names, Redis: client, Kafka: "test", Logger: slog.New(slog.DiscardHandler)}))(t)
	t.Cleanup(func() { _ = w.ledger.Close(context.Background()) })
	w.store = must1(store.Open(t.Context(), store.Options{URL: t.TempDir()}))(t)
	t.Cleanup(func() { _ = w.store.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w.must(w.ledger.CaughtUp(ctx))
	return w
}

func must1[T any](v T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) sources() lineage.Sources {
	return lineage.Sources{Ledger: w.ledger, Broker: w.broker, Store: w.store, Names: w.names, Config: w.config, MayRead: w.mayRead,
		MayReadData: func(dataset string) bool {
			return !slices.ContainsFunc(config.OwnersOf(w.config).Of(dataset), func(key string) bool { return !w.mayRead(key) })
		}}
}

// graphOf returns the graph of a thing.
func (w *world) graphOf(of string) *graph {
	w.Helper()
	g := must1(lineage.Of(w.Context(), w.sources(), of))(w)
	return &graph{w, g}
}

// commit commits a file to a dataset, and returns the event that announces it.
func (w *world) commit(dataset, text, run string) (api.Commit, json.RawMessage) {
	w.Helper()
	digest := fmt.Sprintf("%x", sha256.Sum256([]byte(text)))
	w.must(w.store.PutObject(w.Context(), digest, int64(len(text)), strings.NewReader(text)))
	done := must1(w.store.Commit(w.Context(), store.CommitRequest{CommitAsked: api.CommitAsked{Dataset: dataset, Message: "put " + text}, By: "curl", Run: run, Time: time.Now(),
		Announce: func(context.Context, api.Commit) error { return nil }},
		[]api.Change{{File: api.File{Path: "a.txt", Digest: digest, Size: int64(len(text))}}}))(w)
	c := done.Commit
	return c, w.event(tidemill.Cause{Source: w.names.Source("data"), ID: tidemill.ID(tidemill.TypeNewData, c.Dataset, c.Branch, c.ID)}, tidemill.TypeNewData, c.Subject,
		map[string]string{"dataset": c.Dataset, "branch": c.Branch, "commit": c.ID})
}

func (w *world) event(c tidemill.Cause, typ, subject string, more map[string]string) json.RawMessage {
	w.Helper()
	all := map[string]string{"specversion": "1.0", "id": c.ID, "source": c.Source, "type": typ, "subject": subject, "time": "2026-11-22T13:58:00Z"}
	for name, value := range more {
		all[name] = value
	}
	return must1(json.Marshal(all))(w)
}

// fact appends a fact of a run or a model.
func (w *world) fact(typ, key string, attributes map[string]string, data any) (broker.Position, *fold.Model) {
	w.Helper()
	w.facts++
	v := &broker.View{ID: fmt.Sprint("fact-", w.facts), Source: w.names.Source("test"), Type: typ, Subject: key, Time: time.Now().UTC().Format(time.RFC3339Nano),
		DataContentType: "application/json", Data: must1(json.Marshal(data))(w)}
	for name, value := range attributes {
		v.Extensions = append(v.Extensions, broker.Attribute{Name: name, Value: value})
	}
	ctx, cancel := context.WithTimeout(w.Context(), patience)
	defer cancel()
	if attributes["model"] != "" {
		at, m, err := w.ledger.AppendModel(ctx, v)
		w.must(err)
		return at, m
	}
	at, _, err := w.ledger.Append(ctx, v)
	w.must(err)
	return at, nil
}

// runSpec describes a run to be made.
type runSpec struct {
	recipe, key string
	asked       []json.RawMessage
	inputs      []api.Commit
	model       string
	dataset     string
}

// makeRun runs a run from its request to its end, and returns it as the ledger has it.
func (w *world) makeRun(m runSpec) *tidemill.Run {
	w.Helper()
	run := ""
	of := func() map[string]string { return map[string]string{"recipe": m.recipe, "run": run} }
	for _, e := range m.asked {
		var c tidemill.Cause
		w.must(json.Unmarshal(e, &c))
		if run == "" {
			run = tidemill.RunID(m.recipe, m.key, c)
		}
		w.fact(tidemill.TypeRunRequested, m.key, map[string]string{"recipe": m.recipe, "run": tidemill.RunID(m.recipe, m.key, c)}, tidemill.RunRequested{Cause: c, Events: []json.RawMessage{e}, Config: "8c1f0a2b3c4d5e6f"})
	}
	r := must1(w.ledger.Run(w.Context(), run))(w)
	plan := &tidemill.Plan{Dir: "/trainers/intent", Command: []string{"python", "train.py"}, Pool: "default", Attempts: 3, Deadline: time.Hour, Model: m.model, Dataset: m.dataset, Branch: "main"}
	for i, c := range m.inputs {
		plan.Inputs = append(plan.Inputs, tidemill.Input{Name: fmt.Sprint("in", i), Dataset: c.Dataset, Branch: c.Branch, Commit: c.ID, Tree: c.Tree, Files: c.Files, Bytes: c.Bytes})
	}
	where := tidemill.Where{Node: "laptop", Image: "dir:" + strings.Repeat("3f2a", 16)}
	w.fact(tidemill.TypeRunStarted, m.key, of(), tidemill.RunStarted{Attempt: 1, Seen: r.LastAsked(), Plan: plan, Where: where})
	w.fact(tidemill.TypeRunFinished, m.key, of(), tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Where: where,
		Result: tidemill.Result{Artifact: strings.Repeat("c", 64), Bytes: 4242, Files: 2, Metrics: map[string]float64{"accuracy": 0.91}}})
	return must1(w.ledger.Run(w.Context(), run))(w)
}

// register registers a version of a run's result, and judges it.
func (w *world) register(model string, r *tidemill.Run, inputs []api.Commit, passed bool) *fold.Model {
	w.Helper()
	a := r.Attempts[0]
	origin := tidemill.Origin{Run: r.ID, Recipe: r.Recipe, Key: r.Key, Config: r.Config, Attempt: 1, Began: a.Started, Ended: a.Ended, Causes: r.Causes, First: r.First, Newest: r.Newest,
		Mark: tidemill.Mark{Partition: r.Partition, Offset: a.Offset}, Where: a.Where}
	for i, c := range inputs {
		origin.Inputs = append(origin.Inputs, tidemill.Input{Name: fmt.Sprint("in", i), Dataset: c.Dataset, Branch: c.Branch, Commit: c.ID, Files: c.Files, Bytes: c.Bytes})
	}
	_, m := w.fact(tidemill.TypeModelRegistered, r.Key, map[string]string{"model": model, "recipe": r.Recipe, "run": r.ID}, tidemill.ModelRegistered{
		Artifact: r.Result.Artifact, Bytes: r.Result.Bytes, Files: r.Result.Files, Report: strings.Repeat("d", 64), Metrics: r.Result.Metrics, Judge: tidemill.Judge{Promote: tidemill.PromoteAuto, Keep: 50}, Origin: origin})
	sentence := "promoted: accuracy 0.91 is at least 0.85"
	if !passed {
		sentence = "refused: accuracy 0.91 is not at least 0.95"
	}
	_, m = w.fact(tidemill.TypeModelPromotionProposed, r.Key, map[string]string{"model": model, "run": r.ID}, tidemill.PromotionProposed{
		Action: tidemill.ActionJudge, Version: m.Last, Run: r.ID, Basis: m.Champion, Turn: m.Turn, Judgement: &tidemill.Judgement{Passed: passed, Sentence: sentence, Against: m.Champion, Clauses: []tidemill.Clause{{Text: "metrics.accuracy >= 0.85", Passed: passed}}}})
	return m
}

// graph is a graph under test.
type graph struct {
	w *world
	api.Graph
}

// checkEdge checks that there is an edge, and both its ends.
func (g *graph) checkEdge(from string, what api.GraphRelation, to string) {
	g.w.Helper()
	if !slices.Contains(g.Edges, api.GraphEdge{From: from, To: to, What: what}) {
		g.w.Errorf("nothing says that %s %s %s; it has\n%s", from, what, to, g)
	}
	g.node(from)
	g.node(to)
}

func (g *graph) has(id string) bool {
	return slices.ContainsFunc(g.Nodes, func(n api.GraphNode) bool { return n.ID == id })
}

func (g *graph) node(id string) *api.GraphNode {
	g.w.Helper()
	for i := range g.Nodes {
		if g.Nodes[i].ID == id {
			return &g.Nodes[i]
		}
	}
	g.w.Fatalf("it does not have %s; it has\n%s", id, g)
	return nil
}

// checkNote checks that there is a note with a text.
func (g *graph) checkNote(text string) {
	g.w.Helper()
	if !slices.ContainsFunc(g.Notes, func(n string) bool { return strings.Contains(n, text) }) {
		g.w.Errorf("no note says %q: %q", text, g.Notes)
	}
}

func (g *graph) String() string {
	text, _ := json.MarshalIndent(g.Graph, "", " ")
	return string(text)
}
