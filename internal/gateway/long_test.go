//go:build slow

package gateway

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"tidemill.dev/api"
)

func TestEveryAnswerIsAsDocumented(t *testing.T) {
	t.Parallel()
	d := openDoors(t)
	a := &answerChecker{TB: t, doc: loadDocument(t), seen: map[string]bool{}}
	var late []func() // requests whose body never comes; they wait at the same time, as many as one caller may have
	checkLate := func() {
		for _, check := range late {
			check()
		}
		late = nil
	}
	for _, q := range d.allRequests() {
		if q.status == http.StatusRequestTimeout {
			answer := a.sendHead(a.request(q, nil), len(q.body))
			if late = append(late, func() { a.checkAnswer(q, answer()) }); len(late) == 4 {
				checkLate()
			}
			continue
		}
		a.checkAnswer(q, a.send(q))
	}
	checkLate()
	for operation, op := range listOperations(a.doc) {
		for status := range op.Responses.Map() {
			if status != "default" && status != redirectStatus && !a.seen[operation+" "+status] {
				t.Errorf("%s: nothing was asked that answers %s", operation, status)
			}
		}
	}
}

func TestAStartOfAllComesInParts(t *testing.T) {
	t.Parallel()
	const keys = 2500
	w := newRuns(t, func(o *Options) { o.Limits.Runs = 1500 })
	w.pauseTarget("/api/v1/recipes/fraud/pause")
	var many []string
	for i := range keys {
		many = append(many, fmt.Sprintf("shop-%04d", i))
	}
	body := string(must1(json.Marshal(api.RunsAsked{Recipe: "fraud", Keys: many, Rate: 1}))(t))
	began := time.Now()
	next, named := w.asksOn("/api/v1/runs", body, api.HeaderIdempotencyKey, "x"), 0
	for named = len(next.Runs); next.Next != ""; named += len(next.Runs) {
		next = w.asksOn("/api/v1/runs", body[:len(body)-1]+`,"after":"`+next.Next+`"}`, api.HeaderIdempotencyKey, "x")
	}
	if named != keys {
		t.Errorf("%d of %d", named, keys)
	}
	due := func(key string) time.Time { return w.list("?key=" + key)[0].Due }
	if d := due("shop-2400").Sub(due("shop-0000")); d < 2400*time.Second || d > 2400*time.Second+time.Since(began) {
		t.Errorf("at one a second, the one 2,400 behind another is due %s later", d)
	}
	all := w.asksOn("/api/v1/runs", `{"recipe":"fraud","all":true,"where":"subject LIKE 'shop-12%'","dryRun":true}`)
	if len(all.Runs) != 100 || all.Runs[0].Key != "shop-1200" {
		t.Errorf("%d, from %+v on", len(all.Runs), all.Runs[0])
	}
	left := w.asksOn("/api/v1/runs/cancel", `{"recipe":"fraud","states":["waiting"],"dryRun":true}`)
	if len(left.Runs) != 1000 || left.Next == "" {
		t.Errorf("%d, next %q", len(left.Runs), left.Next)
	}
	wantProblem(t, w.post("/api/v1/runs", body[:len(body)-1]+`,"after":"no"}`), http.StatusBadRequest, api.InvalidRequest, "after")
}
