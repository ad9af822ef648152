package lineage_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/models/lineage"
)

// BenchmarkWhy asks about one model after another, of WHY_MODELS models, by default 20,000.
//
//	go test -run - -bench BenchmarkWhy -benchtime 500x ./internal/models/lineage
func BenchmarkWhy(b *testing.B) {
	many, _ := strconv.Atoi(os.Getenv("WHY_MODELS"))
	if many == 0 {
		many = 20_000
	}
	c := newCrowd(b, many)
	for name, of := range map[string]func(int) string{
		"model":  func(i int) string { return "model/" + c.model(i) },
		"run":    func(i int) string { return "run/" + c.run(i) },
		"commit": func(i int) string { return nameOf(c.commits[i%len(c.commits)]) },
		"event":  func(i int) string { return "event/" + c.cause(i).ID },
	} {
		b.Run(name, func(b *testing.B) { c.ask(b, of) })
	}
}

// runsOfCommit is how many runs learn from a commit.
const runsOfCommit = 100

// manyModels is many models, each with a run. Some of them have data in the store.
type manyModels struct {
	*world
	n         int
	commits   []api.Commit
	asked     []broker.Receipt
	began     []broker.Receipt
	producers *broker.Producer
}

func newCrowd(b *testing.B, n int) *manyModels {
	c := &manyModels{world: newWorld(b), n: n, asked: make([]broker.Receipt, n), began: make([]broker.Receipt, n)}
	c.producers = must1(c.broker.Producer(broker.ProducerOptions{}))(b)
	b.Cleanup(func() { _ = c.producers.Close(context.Background()) })
	for i := range max(1, min(200, n/runsOfCommit)) {
		made, _ := c.commit("bots/"+c.key(i), fmt.Sprint("data ", i), "")
		c.commits = append(c.commits, made)
	}
	began := time.Now()
	c.send(c.asked, tidemill.TypeRunRequested, func(i int) any {
		e := c.event(c.cause(i), "order", c.key(i), nil)
		return tidemill.RunRequested{Cause: c.cause(i), Events: []json.RawMessage{e}, Config: "8c1f0a2b3c4d5e6f"}
	})
	where := tidemill.Where{Node: "laptop", Image: "sha256:" + strings.Repeat("3f2a", 16)}
	c.send(c.began, tidemill.TypeRunStarted, func(i int) any {
		return tidemill.RunStarted{Attempt: 1, Seen: c.asked[i].Offset, Where: where, Plan: &tidemill.Plan{Dir: "/t", Command: []string{"train"}, Pool: "default", Attempts: 1, Deadline: time.Hour, Model: c.model(i), Inputs: c.inputs(i)}}
	})
	c.send(nil, tidemill.TypeRunFinished, func(int) any {
		return tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Where: where, Result: tidemill.Result{Artifact: strings.Repeat("c", 64), Metrics: map[string]float64{"accuracy": 0.9}}}
	})
	c.send(nil, tidemill.TypeModelRegistered, func(i int) any {
		return tidemill.ModelRegistered{Artifact: strings.Repeat("c", 64), Report: strings.Repeat("d", 64), Metrics: map[string]float64{"accuracy": 0.9}, Judge: tidemill.Judge{Keep: 50},
			Origin: tidemill.Origin{Run: c.run(i), Recipe: "intent", Key: c.key(i), Attempt: 1, Inputs: c.inputs(i), Causes: 1, First: c.cause(i), Newest: c.cause(i),
				Mark: tidemill.Mark{Partition: c.began[i].Partition, Offset: c.began[i].Offset}, Where: where}}
	})
	c.send(nil, tidemill.TypeModelPromotionProposed, func(i int) any {
		return tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 1, Run: c.run(i), Judgement: &tidemill.Judgement{Passed: true, Sentence: "promoted: there was none before"}}
	})
	c.fact(tidemill.TypeModelRetired, "last", map[string]string{"model": "last"}, tidemill.ModelRetired{}) // last fact of its partition
	for i := range n {
		for changed := c.ledger.Changed(); ; changed = c.ledger.Changed() {
			if m := must1(c.ledger.Model(b.Context(), c.model(i)))(b); m.Champion == 1 {
				break
			}
			<-changed
		}
	}
	b.Logf("%d models came in %s", n, time.Since(began).Round(time.Millisecond))
	return c
}

func (c *manyModels) key(i int) string   { return fmt.Sprint("bot-", i) }
func (c *manyModels) model(i int) string { return "intent/" + c.key(i%c.n) }
func (c *manyModels) cause(i int) tidemill.Cause {
	return tidemill.Cause{Source: "/crm", ID: tidemill.ID("cause", strconv.Itoa(i%c.n))}
}
func (c *manyModels) run(i int) string { return tidemill.RunID("intent", c.key(i%c.n), c.cause(i)) }

func (c *manyModels) inputs(i int) []tidemill.Input {
	of := c.commits[i%len(c.commits)]
	return []tidemill.Input{{Name: "examples", Dataset: of.Dataset, Branch: of.Branch, Commit: of.ID, Files: 1}}
}

// send sends a fact of each model, and notes their positions.
func (c *manyModels) send(at []broker.Receipt, typ string, data func(i int) any) {
	c.Helper()
	var failed atomic.Pointer[error]
	for i := range c.n {
		v := &broker.View{ID: tidemill.ID(typ, strconv.Itoa(i)), Source: c.names.Source("test"), Type: typ, Subject: c.key(i), Time: time.Now().UTC().Format(time.RFC3339Nano), DataContentType: "application/json",
			Data: must1(json.Marshal(data(i)))(c), Key: []byte(tidemill.RunKey("intent", c.key(i))), Extensions: []broker.Attribute{{Name: tidemill.AttrRun, Value: c.run(i)}, {Name: tidemill.AttrRecipe, Value: "intent"}}}
		if strings.HasPrefix(typ, "tidemill.model.") {
			v.Key, v.Extensions = []byte(tidemill.ModelKey(c.model(i))), append(v.Extensions, broker.Attribute{Name: tidemill.AttrModel, Value: c.model(i)})
		}
		c.producers.Send(c.Context(), tidemill.StreamFacts, v, func(r broker.Receipt, err error) {
			if err != nil {
				failed.Store(&err)
			} else if at != nil {
				at[i] = r
			}
		})
	}
	c.must(c.producers.Flush(c.Context()))
	if err := failed.Load(); err != nil {
		c.Fatal(*err)
	}
}

func (c *manyModels) ask(b *testing.B, of func(int) string) {
	var took []time.Duration
	nodes := 0
	for i := 0; b.Loop(); i++ {
		began := time.Now()
		g, err := lineage.Of(b.Context(), c.sources(), of(i*7919%c.n))
		took = append(took, time.Since(began))
		if err != nil || len(g.Nodes) < 3 {
			b.Fatalf("%v, %+v", err, g)
		}
		nodes = max(nodes, len(g.Nodes))
	}
	slices.Sort(took)
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
	b.ReportMetric(ms(took[len(took)/2]), "p50-ms")
	b.ReportMetric(ms(took[len(took)*99/100]), "p99-ms")
	b.ReportMetric(float64(nodes), "nodes")
}
