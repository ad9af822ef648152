//go:build real

package cli

import (
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"tidemill.dev/broker/brokertest/realservers"
)

const watchedConfig = `version: 1
streams:
  messages: {types: [message], partitions: 2}
  orders: {types: [order, letter], partitions: 2}
  scored: {partitions: 2}
pools: {small: {slots: 2}}
triggers:
  crm:
    when: {type: order}
    to: {url: "SUBSCRIBER/crm"}
    delivery: {backoff: {first: 2s}}
  post:
    when: {type: letter}
    to: {url: "SUBSCRIBER/post"}
    delivery: {attempts: 1}
recipes:
  intent:
    when: {type: bot-created}
    run: {dir: trainer, command: [sh, train.sh], pool: small, attempts: 1}
    makes: {model: "intent/{key}"}
    gate: [metrics.accuracy >= 0.9]
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}", map: {x: data.x}, drift: {}}
`

// watchedTrainer takes longer than the time between two scrapes, so that one of them sees the run.
const watchedTrainer = runsTrainer + `case $TIDEMILL_KEY in
bot*) sleep 0.6;;
poor*) echo '{"accuracy": 0.5}' > "$TIDEMILL_OUT/metrics.json";;
esac
`

// The test divides the durations of the alerts by this number, so that five minutes are three
// seconds. Two thresholds, which are values of the chart, are smaller, too. No alert may follow from
// two scrapes that a busy machine lets fail, or from a controller that needs some seconds on it to become active again.
const hastened = 100

var inMinutes = regexp.MustCompile(`(\[|for: )(\d+)([smh])`)

// hastenedRules returns the alerts of the chart with shorter durations. A test of package charts
// evaluates the unchanged alerts.
func hastenedRules(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("../../charts/testdata/everything.golden.yaml")
	if err != nil {
		t.Fatal(err)
	}
	_, rules, _ := strings.Cut(string(text), "\nkind: PrometheusRule\n")
	_, rules, _ = strings.Cut(rules, "\nspec:\n")
	rules, _, _ = strings.Cut(rules, "\n---\n")
	rules = inMinutes.ReplaceAllStringFunc(rules, func(s string) string {
		m := inMinutes.FindStringSubmatch(s)
		n, _ := strconv.Atoi(m[2])
		unit := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour}[m[3]]
		return fmt.Sprintf("%s%dms", m[1], (time.Duration(n) * unit / hastened).Milliseconds())
	})
	return strings.NewReplacer("> 900", "> 3", "> 604800", "> 15", "for: 600ms", "for: 2s", "for: 1200ms", "for: 30s").Replace(rules)
}

// watched is an install under load that a Prometheus scrapes.
type watched struct {
	runsAt
	up         *server
	prometheus string
	expected   []string // alerts whose fault has been made
	away       atomic.Bool
	refuse     atomic.Bool // whether the load has events that the gateway refuses
	bots       atomic.Int64
}

// A real Prometheus scrapes a loaded install. Every query of the board for Grafana has data, and
// every alert of the chart but one fires after its fault, and not before. The ledger looks for the
// faults that stop it once a minute, which is too long for this test.
func TestRealPrometheus(t *testing.T) {
	k, err := realservers.StartKafka(t.Context(), realservers.KafkaOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { k.Close() }) // after the install, which would wait for it
	r, err := realservers.StartRedis(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.Close() })
	w := startWatched(t, k.Addr(), r.Addr())
	w.settle()
	w.train("bot-1")
	w.bots.Store(1)
	w.train("bot-2")
	w.bots.Store(2)
	w.quiet(4 * time.Second)

	w.publishAll("bot-created", botsCalled("bad", 9)...)
	w.fires("TidemillRunsFail")
	w.publishAll("bot-created", botsCalled("poor", 15)...)
	w.fires("TidemillModelsRefused")

	w.ok("pools", "pause", "small")
	w.publishAll("bot-created", "bot-3")
	goOn := stall(t, k.Addr(), "messages")
	w.expected = append(w.expected, "TidemillNothingStarts", "TidemillModelsStale", "TidemillScorerStops")
	w.refuse.Store(true)
	w.fires("TidemillPublishingRefused")
	w.away.Store(true)
	w.fires("TidemillOldestEvent")
	w.publishAll("letter", "a")
	w.fires("TidemillDeadLetters")
	w.boardHasData()
	w.fires("TidemillNothingStarts")
	w.fires("TidemillModelsStale")
	w.fires("TidemillScorerStops")
	goOn()

	w.up.stop()
	w.fires("TidemillNoActiveController")
}

func startWatched(t *testing.T, kafka, redis string) *watched {
	t.Helper()
	w := &watched{}
	subscriber := httptest.NewServer(http.HandlerFunc(func(res http.ResponseWriter, req *http.Request) {
		if req.URL.Path == "/post" || w.away.Load() {
			res.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	t.Cleanup(subscriber.Close)
	dir, file := runsFolder(t, strings.ReplaceAll(watchedConfig, "SUBSCRIBER", subscriber.URL))
	leave(t, watchedTrainer, dir, "trainer", "train.sh")
	w.runsAt = runsAt{t, filepath.Join(dir, "data")}
	w.up = startUp(t, w.data, "-f", file, "--kafka", kafka, "--redis", redis)
	config := fmt.Sprintf(`{"global": {"scrape_interval": "500ms", "evaluation_interval": "250ms"}, "rule_files": ["rules.yaml"],
		"scrape_configs": [{"job_name": "tidemill", "static_configs": [{"targets": [%q], "labels": {"namespace": "ml", "pod": "a"}}]}]}`, w.up.HTTP)
	p, err := realservers.StartPrometheus(t.Context(), config, hastenedRules(t))
	if err != nil {
		t.Fatal(err)
	}
	w.prometheus = "http://" + p.Addr()
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	stopped, stop := make(chan struct{}), make(chan struct{})
	go w.load(w.up.URL+"/events", stop, stopped)
	t.Cleanup(func() { close(stop); <-stopped })
	return w
}

// load publishes orders, messages to the bots that have a model, and now and then an event that
// trains a bot again.
func (w *watched) load(to string, stop <-chan struct{}, stopped chan<- struct{}) {
	defer close(stopped)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		events := []string{event("order", "shop", n)}
		for bot := range w.bots.Load() {
			events = append(events, event("message", fmt.Sprintf("bot-%d", bot+1), n))
		}
		if n%40 == 0 && w.bots.Load() > 0 {
			events = append(events, event("bot-created", "bot-1", n))
		}
		post(to, events...)
		if w.refuse.Load() {
			post(to, `{"specversion": "1.0", "id": "", "source": "/test", "type": "order"}`)
		}
	}
}

func event(typ, subject string, n int) string {
	return fmt.Sprintf(`{"specversion": "1.0", "id": "%s-%s-%d", "source": "/test", "type": %q, "subject": %q, "data": {"x": 1}}`, typ, subject, n, typ, subject)
}

// post publishes events. Its failures are shown by the metrics, and at the end the install is gone.
func post(to string, events ...string) {
	res, err := http.Post(to, "application/cloudevents-batch+json", strings.NewReader("["+strings.Join(events, ",")+"]"))
	if err == nil {
		res.Body.Close()
	}
}

func (w *watched) publishAll(typ string, subjects ...string) {
	w.Helper()
	for _, s := range subjects {
		w.ok("publish", typ, "--subject", s, "-d", "{}")
	}
}

func botsCalled(name string, n int) (all []string) {
	for i := range n {
		all = append(all, fmt.Sprintf("%s-%d", name, i))
	}
	return all
}

// train trains a model for a bot and waits until it answers.
func (w *watched) train(bot string) {
	w.Helper()
	w.publishAll("bot-created", bot)
	began := time.Now()
	eventually(w.T, func() bool { return w.call("score", "intents", "--key", bot, "-d", `{"x": 1}`).code == 0 })
	w.Logf("%s answers after %s", bot, time.Since(began).Round(100*time.Millisecond))
}

// ask calls the API of Prometheus.
func (w *watched) ask(path string, data any) {
	w.Helper()
	res, err := http.Get(w.prometheus + path)
	if err != nil {
		w.Fatal(err)
	}
	defer res.Body.Close()
	answer := struct {
		Status, Error string
		Data          any
	}{Data: data}
	if err := json.NewDecoder(res.Body).Decode(&answer); err != nil || answer.Status != "success" {
		w.Fatalf("Prometheus answers to %s: %+v, %v", path, answer, err)
	}
}

// alerts returns the summaries of the alerts that fire, by name.
func (w *watched) alerts() map[string]string {
	w.Helper()
	var list struct {
		Alerts []struct {
			State       string
			Labels      map[string]string
			Annotations map[string]string
		}
	}
	w.ask("/api/v1/alerts", &list)
	all := map[string]string{}
	for _, a := range list.Alerts {
		if a.State == "firing" {
			all[a.Labels["alertname"]] = a.Annotations["summary"]
		}
	}
	return all
}

// firing is alerts, and fails if the fault of one of them has not been made.
func (w *watched) firing() map[string]string {
	w.Helper()
	all := w.alerts()
	for name, summary := range all {
		if !slices.Contains(w.expected, name) {
			w.Fatalf("%s fires before its fault: %s; the log ends with\n%s", name, summary, endOf(w.up.stderr.String(), 60))
		}
	}
	return all
}

// endOf returns the last lines of a text.
func endOf(text string, n int) string {
	lines := strings.Split(text, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// settle waits until Prometheus has scraped, which takes it five seconds, and no alert fires.
func (w *watched) settle() {
	w.Helper()
	eventually(w.T, func() bool { return w.problemOf("tidemill_clock_active == 1", "") == "" && len(w.alerts()) == 0 })
}

// quiet checks that no alert fires for a while.
func (w *watched) quiet(d time.Duration) {
	w.Helper()
	began := time.Now()
	eventually(w.T, func() bool { return len(w.firing()) == 0 && time.Since(began) > d })
}

// fires waits for the alert of the fault that was made.
func (w *watched) fires(alert string) {
	w.Helper()
	began := time.Now()
	w.expected = append(w.expected, alert)
	eventually(w.T, func() bool { return w.firing()[alert] != "" })
	w.Logf("%s fires after %s: %s", alert, time.Since(began).Round(100*time.Millisecond), w.alerts()[alert])
}

// boardHasData runs each query of the board for Grafana.
func (w *watched) boardHasData() {
	w.Helper()
	text, err := os.ReadFile("../../charts/tidemill/dashboards/tidemill.json")
	if err != nil {
		w.Fatal(err)
	}
	var board struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	if err := json.Unmarshal(text, &board); err != nil {
		w.Fatal(err)
	}
	for _, p := range board.Panels {
		for _, q := range p.Targets {
			expr, problem, began := strings.NewReplacer("$namespace", ".*", "$__rate_interval", "4s").Replace(q.Expr), "", time.Now()
			eventually(w.T, func() bool {
				problem = w.problemOf(expr, q.LegendFormat)
				return problem == "" || time.Since(began) > time.Minute
			})
			if problem != "" {
				w.Errorf("panel %q: %s: %s", p.Title, expr, problem)
			}
		}
	}
}

var legendLabel = regexp.MustCompile(`{{(\w+)}}`)

// problemOf returns what is wrong with the answer to a query: it has no number, or a series lacks a
// label of the legend.
func (w *watched) problemOf(expr, legend string) string {
	w.Helper()
	var answer struct {
		Result []struct {
			Metric map[string]string
			Values [][2]any
		}
	}
	now := time.Now().Unix()
	w.ask(fmt.Sprintf("/api/v1/query_range?query=%s&start=%d&end=%d&step=500ms", url.QueryEscape(expr), now-30, now), &answer)
	numbers := 0
	for _, s := range answer.Result {
		for _, v := range s.Values {
			if n, err := strconv.ParseFloat(fmt.Sprint(v[1]), 64); err == nil && !math.IsNaN(n) {
				numbers++
			}
		}
		for _, l := range legendLabel.FindAllStringSubmatch(legend, -1) {
			if _, is := s.Metric[l[1]]; !is {
				return "a series has no label " + l[1]
			}
		}
	}
	if numbers == 0 {
		return fmt.Sprintf("no number in %d series", len(answer.Result))
	}
	return ""
}

// stall leaves a transaction open on a stream of two partitions. Readers get no event after it until
// goOn aborts it.
func stall(t *testing.T, addr, stream string) (goOn func()) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.TransactionalID("stalled"), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	topic := "tidemill." + stream
	if err := client.BeginTransaction(); err != nil {
		t.Fatal(err)
	}
	if err := client.ProduceSync(t.Context(), &kgo.Record{Topic: topic}, &kgo.Record{Topic: topic, Partition: 1}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := client.EndTransaction(t.Context(), kgo.TryAbort); err != nil {
			t.Fatal(err)
		}
	}
}
