package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strconv"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// BenchmarkFleet measures the routes of the fleet. FLEET_KEYS=200000 sets the number of keys.
func BenchmarkFleet(b *testing.B) {
	keys := 20_000
	if text := os.Getenv("FLEET_KEYS"); text != "" {
		keys = must1(strconv.Atoi(text))(b)
	}
	w := newRuns(b, nil)
	w.publishFleet(keys)
	if whole := w.fleet(""); whole.Recipes[1].Total != keys {
		b.Fatalf("the fleet is %+v", whole)
	}
	for _, c := range []struct {
		name, path string
		changes    bool // whether a key changes before each request
	}{
		{"counts", "?recipe=intent", false},
		{"counts-changed", "?recipe=intent", true},
		{"strip", "/strip?recipe=intent", false},
		{"strip-changed", "/strip?recipe=intent", true},
		{"page", "/keys?recipe=intent&limit=50", false},
		{"page-changed", "/keys?recipe=intent&limit=50", true},
		{"page-sorted", "/keys?recipe=intent&limit=50&sort=-age", false},
		{"page-searched", "/keys?recipe=intent&limit=50&search=77", false},
		{"page-where", "/keys?recipe=intent&limit=50&sort=-age&where=state+%3D+'stale'+AND+age+%3E+86400+AND+key+LIKE+'bot-%255'", false},
	} {
		b.Run(c.name, func(b *testing.B) {
			for i := 0; b.Loop(); i++ {
				if c.changes {
					b.StopTimer()
					w.appendModel(tidemill.TypeModelUnloadable, fmt.Sprint(c.name, i), madeVersion{model: "intent/bot-0000001", key: "bot-0000001"}, tidemill.ModelUnloadable{Scorer: "intents", Version: 1, Error: fmt.Sprint(i)})
					w.appendModel([]string{tidemill.TypeModelLoaded, tidemill.TypeModelUnloadable}[i%2], fmt.Sprint(c.name, i), madeVersion{model: "intent/bot-0000001", key: "bot-0000001"},
						tidemill.ModelLoaded{Scorer: "intents", Version: 1})
					b.StartTimer()
				}
				if r := w.do(http.MethodGet, "/api/v1/fleet"+c.path, ""); r.StatusCode != http.StatusOK {
					b.Fatal(r.body)
				}
			}
		})
	}
}

// publishFleet publishes the facts of many keys, each with a champion. One run in ten has failed since.
func (w *runWorld) publishFleet(keys int) {
	w.Helper()
	producer := must1(w.broker.Producer(broker.ProducerOptions{}))(w)
	fact := func(typ, key, run, model string, data any) {
		v := broker.View{ID: typ + key, Source: "/test", Type: typ, Subject: key, Time: time.Now().UTC().Format(time.RFC3339Nano), DataContentType: "application/json",
			Data: must1(json.Marshal(data))(w), Key: []byte(tidemill.RunKey("intent", key)),
			Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: "intent"}, {Name: tidemill.AttrRun, Value: run}}}
		if model != "" {
			v.Key = []byte(model)
			v.Extensions = append(v.Extensions, broker.Attribute{Name: tidemill.AttrModel, Value: model})
		}
		producer.Send(w.Context(), tidemill.StreamFacts, &v, func(_ broker.Receipt, err error) { w.must(err) })
	}
	for i := range keys {
		key, run := fmt.Sprintf("bot-%07d", i), fmt.Sprintf("run-%07d", i)
		model := "intent/" + key
		fact(tidemill.TypeRunRequested, key, run, "", tidemill.RunRequested{Cause: tidemill.Cause{Source: "/test", ID: run}, Debounce: 1000 * time.Hour})
		if i%10 == 0 {
			fact(tidemill.TypeRunCancelled, key, run, "", tidemill.RunCancelledData{Reason: "no"})
		}
		fact(tidemill.TypeModelRegistered, key, run, model, tidemill.ModelRegistered{Metrics: map[string]float64{"accuracy": 0.9}, Judge: tidemill.Judge{Keep: 2},
			Origin: tidemill.Origin{Run: run, Recipe: "intent", Key: key, Began: time.Now().Add(-time.Duration(i%300) * time.Hour)}})
		fact(tidemill.TypeModelPromotionProposed, key, run, model, tidemill.PromotionProposed{Action: tidemill.ActionJudge, Version: 1, Run: run,
			Judgement: &tidemill.Judgement{Passed: i%7 > 0}})
	}
	w.must(producer.Flush(w.Context()))
	w.must(producer.Close(w.Context()))
	for {
		changed := w.ledger.Changed() // read first, so that no change is missed
		if f, err := w.ledger.Fleet(w.Context()); err == nil && f.Len() == keys && w.ledger.Status().Behind == 0 {
			return
		}
		<-changed
	}
}
