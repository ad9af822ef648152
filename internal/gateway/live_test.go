package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/gateway/access"
	"tidemill.dev/internal/gateway/live"
)

// liveViewer is the reader of a live connection.
type liveViewer struct {
	*tailListener
	known live.Known // versions so far
	id    string
}

// view opens a live connection; headers are name, value, name, value…
func (w *world) view(query string, headers ...string) *liveViewer {
	w.Helper()
	ctx, cancel := context.WithTimeout(w.Context(), patienceOfTests)
	w.Cleanup(cancel)
	req := must1(http.NewRequestWithContext(ctx, http.MethodGet, w.url+"/api/v1/live?"+query, nil))(w)
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	res := must1(http.DefaultClient.Do(req))(w)
	if res.StatusCode != http.StatusOK || res.Header.Get("Content-Type") != "text/event-stream" {
		w.Fatalf("a live connection answers %s, %s", res.Status, must1(io.ReadAll(res.Body))(w))
	}
	return &liveViewer{tailListener: newListener(w.TB, res, cancel), known: live.Known{}}
}

// next returns the next update.
func (v *liveViewer) next() live.Known {
	v.Helper()
	for {
		b, err := v.nextBlock()
		if err != nil || b.event != "changed" && b.comment == "" {
			v.Fatalf("there is no update: %+v, %v", b, err)
		}
		if b.event == "" {
			continue
		}
		changed := live.Known{}
		if err := json.Unmarshal([]byte(b.data), &changed); err != nil || b.id == "" {
			v.Fatalf("%+v: %v", b, err)
		}
		v.id = b.id
		maps.Copy(v.known, changed)
		return changed
	}
}

// until reads updates until all topics have changed, and returns everything that changed.
func (v *liveViewer) until(topics ...string) live.Known {
	v.Helper()
	all := live.Known{}
	for !haveAll(all, topics) {
		maps.Copy(all, v.next())
	}
	return all
}

func haveAll(known live.Known, topics []string) bool {
	for _, topic := range topics {
		if known[topic] == "" {
			return false
		}
	}
	return true
}

// An update comes after the state can be read, so a viewer that reads on each update has the last state at the end.
func TestLiveTellsWhatChanged(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	v := w.view("topics=fleet,fleet:intent,runs,key:bot-1,key:bot-2,pools,commands,health")
	if first := v.next(); len(first) != 8 {
		t.Fatalf("it begins with %v", first)
	}
	id := w.startRuns("intent", "bot-1")["bot-1"]
	got := v.until("fleet", "fleet:intent", "runs", "key:bot-1", "pools")
	if got["key:bot-2"] != "" || got["commands"] != "" {
		t.Errorf("changed: %v", got)
	}
	one := w.view("topics=run:" + id)
	one.next()
	w.waitForState(id, tidemill.RunRunning)
	w.endAttempt(id, tidemill.OutcomeFailed, "no")
	for state := tidemill.RunRunning; state != tidemill.RunFailed; {
		one.next()
		state = w.show(id).State
	}
	w.must(w.ledger.Tell(t.Context(), id, []byte(`{"step":1}`)))
	one.until("run:" + id)
	w.pauseTarget("/api/v1/recipes/intent/pause")
	v.until("commands")
}

// A fact that the ledger does not have yet is not reported, because a viewer would read the old state.
func TestLiveWaitsForTheLedger(t *testing.T) {
	t.Parallel()
	w := newRuns(t, func(o *Options) { o.Limits.Keepalive = 50 * time.Millisecond })
	v := w.view("topics=fleet,key:bot-0")
	v.next()
	w.must(w.ledger.Close(t.Context()))
	must1(w.producer.Publish(t.Context(), tidemill.StreamFacts, w.someFact(0)))(t)
	for range 5 {
		if b, err := v.nextBlock(); err != nil || b.event != "" {
			t.Fatalf("it reports %+v, %v", b, err)
		}
	}
}

// A viewer whose gateway is gone resumes at another one, and learns of all that has changed meanwhile.
func TestLiveResumesAtAnotherGateway(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	const topics = "topics=fleet,key:bot-1,key:bot-2,key:bot-3"
	v := w.view(topics)
	v.next()
	w.startRuns("intent", "bot-1")
	v.until("key:bot-1")
	if again := w.view(topics + "&since=" + v.id).known; len(again) != 0 {
		t.Errorf("nothing has changed, and it resumes with %v", again)
	}
	other := w.openGateway(w.with(nil))
	v.close() // cut off, so that it does not read the end
	ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
	defer cancel()
	w.must(w.gateway.Close(ctx))
	w.url = "http://" + other.Addr()
	w.startRuns("intent", "bot-2")
	for name, back := range map[string]*liveViewer{"header": w.view(topics, lastEventID, v.id), "query": w.view(topics + "&since=" + v.id)} {
		if got := back.next(); got["key:bot-2"] == "" || got["fleet"] == "" {
			t.Errorf("%s: it resumes with %v", name, got)
		}
		w.startRuns("intent", "bot-3")
		back.until("key:bot-3")
		w.startRuns("fraud", "bot-3")
	}
}

// Every change is seen by a viewer whose connection is cut again and again.
func TestLiveLosesNoChange(t *testing.T) {
	t.Parallel()
	w := newRuns(t, nil)
	var keys, topics []string
	for i := range 60 {
		keys = append(keys, fmt.Sprint("bot-", i))
		topics = append(topics, "key:"+keys[i])
	}
	query := "topics=" + strings.Join(topics, ",")
	v := w.view(query)
	v.next()
	seen := live.Known{}
	for _, key := range keys {
		w.startRuns("fraud", key)
		if len(key)%2 == 0 {
			v.close()
			v = w.view(query + "&since=" + v.id)
		}
	}
	for !haveAll(seen, topics) {
		maps.Copy(seen, v.next())
	}
}

// A part that is well may have a detail that always changes, such as the free bytes of a disk. Only its state counts.
func TestLiveReportsHealth(t *testing.T) {
	t.Parallel()
	var looks atomic.Int64
	var ill atomic.Bool
	w := newWorld(t, func(o *Options) {
		o.Ready = func(context.Context) api.Readiness {
			state := api.Readiness{Status: api.OK, Checks: []api.Check{{Name: "disk", Status: api.OK, Detail: fmt.Sprint(looks.Add(1), " bytes left")}}}
			if ill.Load() {
				state.Checks[0].Status = api.Degraded
			}
			return state
		}
	})
	first, second := contentVersion(w, live.Health), contentVersion(w, live.Health)
	if looks.Load() < 2 || first != second {
		t.Errorf("%d looks: %s, %s", looks.Load(), first, second)
	}
	ill.Store(true)
	if contentVersion(w, live.Health) == second {
		t.Error("a degraded part is not reported")
	}
}

// contentVersion returns the version of a topic's content, without the answers that are kept for a moment.
func contentVersion(w *world, topic string) live.Version {
	w.gateway.readiness.mu.Lock()
	w.gateway.readiness.until = time.Time{}
	w.gateway.readiness.mu.Unlock()
	return w.gateway.contentOf(w.Context(), topic)
}

func TestLiveRefuses(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	many := make([]string, liveTopics+1)
	for i := range many {
		many[i] = fmt.Sprint("key:", i)
	}
	for query, says := range map[string]string{
		"":                                  "topics: it names 0 topics; name 1 to 100 of fleet, fleet:RECIPE",
		"topics=,":                          "it names 0 topics",
		"topics=" + strings.Join(many, ","): "it names 101 topics",
		"topics=fleets":                     `topics: there is no topic "fleets"; the topics: fleet, `,
		"topics=run:":                       `there is no topic "run:"`,
		"topics=fleet&follow=no":            `follow: "no" is neither true nor false`,
		"topics=fleet&since=x":              "since: it is not the id of an update",
		"topics=fleet&from=beginning":       "from: there is no such parameter; known here: follow, since, topics",
	} {
		wantProblem(t, w.do(http.MethodGet, "/api/v1/live?"+query, ""), http.StatusBadRequest, api.InvalidRequest, says)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/live?topics=fleet", "", lastEventID, "x"), http.StatusBadRequest, api.InvalidRequest, "Last-Event-ID: it is not the id")
	if got := w.view("topics=fleet,streams,health,data").next(); len(got) != 4 { // also without runs
		t.Errorf("without runs it begins with %v", got)
	}
}

func TestLiveConnectionsAreLimited(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, "version: 1\ntokens:\n"+callerLine("a", "role: read")+callerLine("b", "role: read"))
	w := newWorld(t, func(o *Options) { o.Access, o.Limits.Live, o.Limits.OwnLive, o.Limits.Tails = guard, 3, 2, 1 })
	query := "/api/v1/live?topics=health"
	first := w.view("topics=health", tokenHeader("a")...)
	w.view("topics=health", tokenHeader("a")...)
	wantProblem(t, w.do(http.MethodGet, query, "", tokenHeader("a")...), http.StatusTooManyRequests, api.TooManyRequests, "you have 2 live connections open")
	w.view("topics=health", tokenHeader("b")...)
	wantProblem(t, w.do(http.MethodGet, query, "", tokenHeader("b")...), http.StatusServiceUnavailable, api.Unavailable, "3 live connections are open")
	w.listen("events/events", tokenHeader("a")...).firstID() // a tail has its own room
	first.close()
	w.waitUntil("there is room again", func() bool { return w.gateway.live.count() == 2 })
	w.view("topics=health", tokenHeader("b")...)
	if n := testutil.ToFloat64(w.gateway.live.ended.WithLabelValues(tailGone)); n != 1 {
		t.Errorf("%v connections have ended", n)
	}
}

func TestLiveEndsWithTheGateway(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	v := w.view("topics=health")
	v.next()
	ctx, cancel := context.WithTimeout(t.Context(), patienceOfTests)
	defer cancel()
	w.must(w.gateway.Close(ctx))
	v.wantEnd("closing")
}

// wantEnd reads to the end of the connection, which has a reason.
func (v *liveViewer) wantEnd(reason string) {
	v.Helper()
	for {
		b, err := v.nextBlock()
		switch {
		case err != nil:
			v.Fatalf("it ends without a reason: %v", err)
		case b.event == "changed", b.comment != "":
			continue
		case b.event != "end" || b.data != `{"reason":"`+reason+`"}`:
			v.Fatalf("it ends with %+v", b)
		}
		if b, err := v.nextBlock(); !errors.Is(err, io.EOF) {
			v.Errorf("after its end comes %+v, %v", b, err)
		}
		return
	}
}

// The rights of a viewer are checked at each update and each sign of life.
func TestLiveEndsWithItsToken(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "access.yaml")
	write := func(tokens string) {
		if err := os.WriteFile(path, []byte("version: 1\ntokens:\n"+tokens), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(callerLine("reader", "role: read") + callerLine("other", "role: operate"))
	guard := must1(access.Open(t.Context(), path, access.Options{}))(t)
	w := newRuns(t, func(o *Options) { o.Access, o.Limits.Keepalive = guard, 300*time.Millisecond })
	t.Cleanup(func() { w.must(guard.Close(context.Background())) })
	v := w.view("topics=key:a,key:b", tokenHeader("reader")...)
	v.next()
	write(callerLine("reader", "role: read, keys: [a]") + callerLine("other", "role: operate"))
	w.waitUntil("the file applies", func() bool {
		c, err := guard.Caller(t.Context(), tokenHeader("reader")[1])
		return err == nil && !c.AllKeys(access.Read)
	})
	for _, key := range []string{"b", "a"} {
		w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["`+key+`"]}`, tokenHeader("other")...)
	}
	if got := v.until("key:a"); got["key:b"] != "" {
		t.Errorf("a viewer of the key a gets %v", got)
	}
	write(callerLine("other", "role: operate"))
	v.wantEnd("refused")
	if n := testutil.ToFloat64(w.gateway.live.ended.WithLabelValues(tailRefused)); n != 1 {
		t.Errorf("%v connections were refused", n)
	}
}

// A caller with limited keys gets the topics of these keys, and those without a key.
func TestLiveShowsTheCallersKeys(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, "version: 1\ntokens:\n"+callerLine("root", "role: approve")+callerLine("one", "role: read, keys: [bot-1, report]"))
	w := newRuns(t, func(o *Options) { o.Access = guard })
	ids := map[string]string{}
	for _, key := range []string{"bot-1", "bot-2"} {
		ids[key] = w.asks("/api/v1/runs", `{"recipe":"intent","keys":["`+key+`"]}`, tokenHeader("root")...).Runs[0].Run
	}
	topics := []string{"fleet", "fleet:intent", "runs", "key:bot-1", "key:bot-2", "run:" + ids["bot-1"], "run:" + ids["bot-2"], "run:unknown", "model:intent/bot-2", "pools"}
	v := w.view("topics="+strings.Join(topics, ","), tokenHeader("one")...)
	want := []string{"fleet", "fleet:intent", "key:bot-1", "pools", "run:" + ids["bot-1"], "runs"}
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(v.next())); !slices.Equal(got, want) {
		t.Errorf("it gets %v, want %v", got, want)
	}
	if known := must1(live.ParseID(v.id, topics))(t); len(known) != len(want) {
		t.Errorf("the id has %v", known)
	}
	wantProblem(t, w.do(http.MethodGet, "/api/v1/live?topics=fleet", ""), http.StatusUnauthorized, api.Unauthenticated, "")
}

// A viewer that takes nothing delays neither others nor the end of the gateway.
func TestASlowViewerDelaysNoOther(t *testing.T) {
	t.Parallel()
	w := newRuns(t, func(o *Options) { o.Limits.Keepalive = 20 * time.Millisecond })
	v := w.view("topics=fleet,runs")
	other := w.view("topics=fleet,runs")
	v.next() // it stops reading
	other.next()
	for i := range 5 {
		w.startRuns("fraud", fmt.Sprint("bot-", i))
		other.until("fleet", "runs")
	}
}

// someFact is a fact that changes a run of a key.
func (w *runWorld) someFact(n int) *broker.View {
	key := fmt.Sprint("bot-", n%50)
	return &broker.View{ID: fmt.Sprint("f", n), Source: "/test", Type: tidemill.TypeRunSeen, Subject: key, Key: []byte(tidemill.RunKey("fraud", key)), Data: []byte(`{"attempt":1}`), DataContentType: "application/json",
		Extensions: []broker.Attribute{{Name: tidemill.AttrRecipe, Value: "fraud"}, {Name: tidemill.AttrRun, Value: key}}}
}
