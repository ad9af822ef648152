package gateway

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
)

// rightsConfig has a recipe and a scorer that take their keys from data.
const rightsConfig = testConfig + `recipes:
  fraud: {key: data.bot, when: {type: paid}, run: {dir: ., command: [a]}, makes: {model: "fraud/{key}"}}
scorers:
  intents: {from: messages, to: scored, key: data.bot, model: "fraud/{key}", map: {text: data.text}}
`

func rightsAccess() string {
	return "version: 1\ntokens:\n" +
		callerLine("crm", "role: publish") +
		callerLine("tenant42", "role: [publish, read], keys: [bot-42]") +
		callerLine("operator42", "role: operate, keys: [bot-42]") +
		callerLine("operator", "role: operate")
}

// forms returns how an event can be published, by name: each returns the answer of the gateway.
func (w *world) forms(caller, typ, subject, data string) map[string]func() reply {
	structured := fmt.Sprintf(`{"specversion":"1.0","id":"1","source":"/crm","type":%q,"subject":%q,"datacontenttype":"application/json","data":%s}`, typ, subject, data)
	send := func(path, contentType, body string, more ...string) func() reply {
		return func() reply {
			return w.post(path, body, slices.Concat(tokenHeader(caller), []string{"Content-Type", contentType}, more)...)
		}
	}
	binary := []string{"ce-specversion", "1.0", "ce-type", typ, "ce-source", "/crm", "ce-id", "1", "ce-subject", subject}
	return map[string]func() reply{
		"binary":              send("/events", "application/json", data, binary...),
		"binary to a stream":  send("/streams/events", "application/json", data, binary...),
		"structured":          send("/events", "application/cloudevents+json", structured),
		"a batch":             send("/events", "application/cloudevents-batch+json", "["+structured+"]"),
		"a batch to a stream": send("/streams/events", "application/cloudevents-batch+json", "["+structured+"]"),
	}
}

// A caller with the role publish could delete a key's models, start every key's run by a forged tick, and
// reach other keys by the data.
func TestDataMayDoNoMoreThanItsPublisher(t *testing.T) {
	t.Parallel()
	guard := openGuard(t, rightsAccess())
	w := newWorldOf(t, rightsConfig, embedded.Options{}, func(o *Options) { o.Access = guard })
	for _, c := range []struct {
		name, caller, typ, subject, data string
		says                             string // empty: the event is stored
	}{
		{"a publisher ends a key", "crm", "bot-deleted", "bot-7", "{}", "needs the role operate for the key"},
		{"an operator of another key ends a key", "operator42", "bot-deleted", "bot-7", "{}", "only bot-42"},
		{"a publisher of the key ends it", "tenant42", "bot-deleted", "bot-42", "{}", "needs the role operate for the key"},
		{"an operator of the key ends it", "operator42", "bot-deleted", "bot-42", "{}", ""},
		{"an operator ends a key", "operator", "bot-deleted", "bot-7", "{}", ""},
		{"a forged tick", "crm", "schedule-tick", "", "{}", "only Tidemill's clock publishes ticks"},
		{"a forged tick of an operator", "operator", "schedule-tick", "bot-42", "{}", "only Tidemill's clock publishes ticks"},
		{"a recipe's key in the data", "tenant42", "paid", "bot-42", `{"bot":"bot-7"}`, `the recipe fraud takes its key from data.bot, which is \"bot-7\"`},
		{"its own key in the data", "tenant42", "paid", "bot-42", `{"bot":"bot-42"}`, ""},
		{"a caller without limits", "crm", "paid", "bot-42", `{"bot":"bot-7"}`, ""},
	} {
		for form, send := range w.forms(c.caller, c.typ, c.subject, c.data) {
			r := send()
			if stored := r.StatusCode == http.StatusAccepted; stored != (c.says == "") || !strings.Contains(r.body, c.says) {
				t.Errorf("%s, %s: %d %s", c.name, form, r.StatusCode, r.body)
			}
		}
	}
	r := w.post("/events", `{"bot":"bot-7","text":"a"}`, slices.Concat(tokenHeader("tenant42"), []string{"Content-Type", "application/json",
		"ce-specversion", "1.0", "ce-type", "message", "ce-source", "/crm", "ce-id", "2", "ce-subject", "bot-42"})...)
	if p := problemOf(t, r); r.StatusCode != http.StatusForbidden || p.Attribute != "data.bot" || !strings.Contains(p.Detail, "the scorer intents") {
		t.Errorf("a scorer's key: %d %s", r.StatusCode, r.body)
	}
}

// logLines collects the lines of a log.
type logLines struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// A caller gets the same answer for a run that it may not touch and for an unknown run. The log has
// the refusal.
func TestHiddenRefusalsAreLogged(t *testing.T) {
	t.Parallel()
	guard, lines := openGuard(t, rightsAccess()), new(logLines)
	w := newRuns(t, func(o *Options) { o.Access, o.Logger = guard, slog.New(slog.NewTextHandler(lines, nil)) })
	run := w.asks("/api/v1/runs", `{"recipe":"fraud","keys":["bot-7"]}`, tokenHeader("operator")...).Runs[0].Run
	for range 3 {
		if got := w.asks("/api/v1/runs/cancel", `{"runs":["`+run+`"]}`, tokenHeader("operator42")...); !got.Runs[0].Refused {
			t.Fatalf("%+v", got)
		}
		wantProblem(t, w.do(http.MethodGet, "/api/v1/runs/"+run, "", tokenHeader("operator42")...), http.StatusNotFound, api.UnknownRun, run)
	}
	if all := lines.String(); strings.Count(all, "a caller lacks a right") != 1 || !strings.Contains(all, "by=operator42 route=runs") || !strings.Contains(all, run) {
		t.Errorf("%s", all)
	}
}

// The log has the first refusal of a caller on a route. Later ones are counted, so that a caller
// cannot fill the log.
func TestRefusedActsAreLogged(t *testing.T) {
	t.Parallel()
	guard, lines := openGuard(t, rightsAccess()), new(logLines)
	w := newWorldOf(t, rightsConfig, embedded.Options{}, func(o *Options) {
		o.Access, o.Logger = guard, slog.New(slog.NewTextHandler(lines, nil))
	})
	for range 20 {
		for _, send := range w.forms("crm", "bot-deleted", "bot-7", "{}") {
			send()
		}
		if r := w.post("/api/v1/keys/forget", `{"key":"bot-7"}`, tokenHeader("crm")...); r.StatusCode != http.StatusForbidden {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
		if r := w.do(http.MethodGet, "/api/v1/streams", "", tokenHeader("crm")...); r.StatusCode != http.StatusForbidden {
			t.Fatalf("%d %s", r.StatusCode, r.body)
		}
	}
	all := lines.String()
	if n := strings.Count(all, "a caller lacks a right"); n != 2 {
		t.Errorf("%d lines:\n%s", n, all)
	}
	for _, want := range []string{`by=crm route=publish reason="crm may not publish the type`, `by=crm route="POST /api/v1/keys/forget"`, "times=1"} {
		if !strings.Contains(all, want) {
			t.Errorf("the log does not have %s:\n%s", want, all)
		}
	}
}
