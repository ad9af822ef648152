package dashboard

import (
	"encoding/json"
	"io/fs"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/docs/runbooks"
)

// unreadyAPI is a fakeAPI of a process that is not ready.
type unreadyAPI struct {
	fakeAPI
	checks []api.Check
}

func (a unreadyAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path != "/readyz" {
		a.fakeAPI.ServeHTTP(w, r)
		return
	}
	w.WriteHeader(http.StatusServiceUnavailable)
	_ = json.NewEncoder(w).Encode(api.Readiness{Status: api.Failed, Checks: a.checks})
}

func oneHealth(name string) fakeAPI {
	return fakeAPI{
		"GET /readyz": api.Readiness{Status: api.Degraded, Checks: []api.Check{{Name: "kafka", Status: api.OK}, {Name: "config", Status: api.Degraded, Detail: "refused: " + name},
			{Name: "clock", Status: api.OK, Detail: name}, {Name: name, Status: api.OK, Detail: name}}},
		"GET /api/v1/triggers":        api.Triggers{Dispatchers: new(2), Triggers: []api.Trigger{{Name: name, DeadLetters: new(3), Numbers: &api.TriggerNumbers{OldestParked: new(testNow().Add(-time.Hour))}}}},
		"GET /api/v1/scorers":         api.Scorers{Processes: new(1), Scorers: []api.Scorer{{Name: "intents", Lag: new(int64(9)), Processes: new(0)}}},
		"GET /api/v1/scorers/intents": api.ScorerShown{Running: []api.ScorerProcess{{ID: name, Host: name}}},
		"GET /api/v1/pools":           api.Pools{Pools: []api.Pool{{Name: name, Waiting: 5, Lingering: 3}}},
		"GET /api/v1/runs":            api.Runs{Runs: make([]api.RunShown, 4)},
		"GET /api/v1/streams":         api.Streams{Streams: []api.Stream{{Name: name, Records: 1234, Bytes: new(int64(2048))}}},
		"GET /api/v1/data/datasets":   api.Datasets{},
	}
}

func TestHealthIsShown(t *testing.T) {
	t.Parallel()
	for _, name := range append(hostile(), "k8s") {
		body := bodyOf(open(t, oneHealth(name)), "/ui/health")
		mustBeText(t, body)
		mustHave(t, body, "The new config is refused", "refused: ", "9 events wait for intents", "5 runs wait, and none has started", "waits for 1 h", "3 dead letters of triggers are open",
			"1\u202f234 events, 2 KiB", "it answers", "Version of this gateway")
	}
}

// A process that is not ready still shows its checks, and so does one whose other answers fail.
func TestHealthOfASickProcess(t *testing.T) {
	t.Parallel()
	away := fakeAPI{"GET /api/v1/caller": everyRole(), "GET /api/v1/streams": &api.Problem{Status: 503, Title: "unavailable", Detail: "Kafka is away"}}
	d := New(Options{API: unreadyAPI{away, []api.Check{{Name: "kafka", Status: api.Failed, Detail: "no broker answers"}, {Name: "clock", Status: api.Degraded, Detail: "no lease"}}}, Install: func() string { return "" }, Now: testNow})
	body := bodyOf(d, "/ui/health")
	mustHave(t, body, "This process cannot do its work", "no broker answers", "Kafka is away", "The triggers cannot be read")
	for _, name := range []string{"no-active-controller", "publishing-refused"} {
		_, row, _ := strings.Cut(body, `href="/ui/health/runbooks/`+name)
		row, _, _ = strings.Cut(row, "</tr>")
		mustHave(t, row, `class="badge bad">seen`)
	}
}

func TestSigns(t *testing.T) {
	t.Parallel()
	lag, none := new(int64(4)), new(int64(0))
	for name, c := range map[string]struct {
		parts signParts
		sign  string
		want  string
	}{
		"no answers":             {signParts{}, "scorer-stops", signUnknown},
		"no scorers":             {signParts{scorers: &api.Scorers{}}, "scorer-stops", signNot},
		"a scorer at work":       {signParts{scorers: &api.Scorers{Scorers: []api.Scorer{{Lag: lag, Processes: new(1), Numbers: &api.ScorerNumbers{Rate: 1}}}}}, "scorer-stops", signNot},
		"a scorer at rest":       {signParts{scorers: &api.Scorers{Scorers: []api.Scorer{{Lag: none, Processes: new(0)}}}}, "scorer-stops", signNot},
		"a scorer that stops":    {signParts{scorers: &api.Scorers{Scorers: []api.Scorer{{Lag: lag, Processes: new(1), Numbers: &api.ScorerNumbers{}}}}}, "scorer-stops", signSeen},
		"a scorer not known":     {signParts{scorers: &api.Scorers{Scorers: []api.Scorer{{}}}}, "scorer-stops", signUnknown},
		"runs at work":           {signParts{pools: &api.Pools{Pools: []api.Pool{{Waiting: 9}, {Running: 1}}}}, "nothing-starts", signNot},
		"no dispatcher":          {signParts{triggers: &api.Triggers{Dispatchers: new(0), Triggers: make([]api.Trigger, 1)}}, "oldest-event", signSeen},
		"no triggers":            {signParts{triggers: &api.Triggers{Dispatchers: new(0)}}, "oldest-event", signNot},
		"no dead letters":        {signParts{triggers: &api.Triggers{}}, "dead-letters", signNot},
		"most runs fail":         {signParts{failed: new(4), succeeded: new(3)}, "runs-fail", signSeen},
		"few runs fail":          {signParts{failed: new(3), succeeded: new(0)}, "runs-fail", signNot},
		"a process without runs": {signParts{ready: &readiness{}}, "ledger-stopped", signUnknown},
		"a stopped ledger":       {signParts{ready: &readiness{Readiness: api.Readiness{Checks: []api.Check{{Name: "runs", Status: api.Failed}}}}}, "ledger-stopped", signSeen},
		"a full disk":            {signParts{ready: &readiness{Readiness: api.Readiness{Checks: []api.Check{{Name: "disk", Status: api.Failed}}}}}, "publishing-refused", signSeen},
		"metrics alone":          {signParts{}, "models-stale", signUnknown},
	} {
		for _, s := range c.parts.signs() {
			if s.Runbook == c.sign && s.State != c.want {
				t.Errorf("%s: %s is %s (%s), want %s", name, c.sign, s.State, s.Detail, c.want)
			}
		}
	}
}

// Each runbook has a sign with its alert, and each sign has a runbook that the page shows.
func TestEveryRunbookIsListed(t *testing.T) {
	t.Parallel()
	d, listed := open(t, fakeAPI{}), 0
	for _, s := range (&signParts{}).signs() {
		listed++
		text, err := fs.ReadFile(runbooks.Files(), s.Runbook+".md")
		if err != nil || !strings.Contains(string(text), s.Alert) {
			t.Errorf("%s: %v, or its alert is not %s", s.Runbook, err, s.Alert)
		}
		body := bodyOf(d, "/ui/health/runbooks/"+s.Runbook)
		mustHave(t, body, s.Alert, "<h2>What to do</h2>", "<code>")
		if strings.ContainsAny(body, "`|") || strings.Contains(body, "## ") || strings.Contains(body, "](") {
			t.Errorf("%s shows Markdown:\n%s", s.Runbook, body)
		}
	}
	if all, _ := fs.Glob(runbooks.Files(), "*.md"); len(all) != listed {
		t.Errorf("%d of %d runbooks are listed", listed, len(all))
	}
	for _, name := range []string{"none", "..%2f..%2fdoc", "doc.go"} {
		if got := fetch(d, "/ui/health/runbooks/"+name).Code; got != http.StatusNotFound {
			t.Errorf("%s: %d", name, got)
		}
	}
}

func TestBlocksOfARunbook(t *testing.T) {
	t.Parallel()
	got := blocksOf("\n## Do\none\ntwo\n\n1. first\n   more\n2. second:\n```sh\na | b\n\n## c\n```\n   after\n| x | y |\n|---|---|\n| `1` | <b> |\nend")
	want := []block{{Heading: "Do"}, {Text: "one two"}, {Text: "1. first more"}, {Text: "2. second:"}, {Code: "a | b\n\n## c\n"}, {Text: "after"},
		{Rows: [][]string{{"x", "y"}, {"`1`", "<b>"}}}, {Text: "end"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got := prose("see `a<b` and [the page](x.md) <i>"); got != "see <code>a&lt;b</code> and the page &lt;i&gt;" {
		t.Errorf("%s", got)
	}
}
