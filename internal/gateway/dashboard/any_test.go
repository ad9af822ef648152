package dashboard

import (
	"encoding/json"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// anyAPI answers with any values that the types of the API can have. The same request gets the same answer.
type anyAPI struct{ seed int }

// hostileText is in every text of anyAPI that could break out of an element or an attribute.
const hostileText = `<b onclick=x>"'&`

func anyAnswer(path string) any {
	switch path {
	case "/api/v1/caller":
		return new(api.Caller)
	case "/api/v1/commands":
		return new(api.Commands)
	case "/api/v1/data/commit":
		return new(api.Commit)
	case "/api/v1/data/datasets":
		return new(api.Datasets)
	case "/api/v1/data/diff":
		return new(api.Diff)
	case "/api/v1/data/files":
		return new(api.Files)
	case "/api/v1/data/log":
		return new(api.Log)
	case "/api/v1/dead-letters":
		return new(api.DeadLetters)
	case "/api/v1/fleet":
		return new(api.Fleet)
	case "/api/v1/fleet/keys":
		return new(api.FleetKeys)
	case "/api/v1/fleet/strip":
		return new(api.FleetStrip)
	case "/api/v1/freshness":
		return new(api.Freshness)
	case "/api/v1/history":
		return new(api.History)
	case "/api/v1/model":
		return new(api.ModelWhole)
	case "/api/v1/models":
		return new(api.Models)
	case "/api/v1/pools":
		return new(api.Pools)
	case "/api/v1/promotions":
		return new(api.Promotions)
	case "/api/v1/recipes":
		return new(api.Recipes)
	case "/api/v1/rollouts":
		return new(api.Rollouts)
	case "/api/v1/runs":
		return new(api.Runs)
	case "/api/v1/schedules":
		return new(api.Schedules)
	case "/api/v1/scorers":
		return new(api.Scorers)
	case "/api/v1/streams":
		return new(api.Streams)
	case "/api/v1/trials":
		return new(api.TrialList)
	case "/api/v1/trials/ended":
		return new(api.EndedTrials)
	case "/api/v1/triggers":
		return new(api.Triggers)
	case "/api/v1/why":
		return new(api.Graph)
	case "/readyz":
		return new(api.Readiness)
	}
	kind, name, _ := strings.Cut(strings.TrimPrefix(path, "/api/v1/"), "/")
	_, part, _ := strings.Cut(name, "/")
	switch {
	case part == "files" || path == "/api/v1/model/files":
		return new(api.ArtifactFiles)
	case part == "curves":
		return new(api.RunCurves)
	case part != "":
		return new(api.Problem)
	case kind == "runs":
		return new(api.RunWhole)
	case kind == "scorers":
		return new(api.ScorerShown)
	case kind == "streams":
		return new(api.Stream)
	case kind == "triggers":
		return new(api.Trigger)
	case kind == "dead-letters":
		return new(api.WholeLetter)
	}
	return new(api.RunsDone) // of an action
}

func (a anyAPI) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	h := fnv.New64a()
	fmt.Fprint(h, a.seed, q.Method, q.URL.RequestURI())
	r := rand.New(rand.NewPCG(h.Sum64(), 0))
	answer := anyAnswer(q.URL.Path)
	if q.URL.Path != "/api/v1/caller" && r.IntN(12) == 0 {
		answer = &api.Problem{}
	}
	fillAny(r, reflect.ValueOf(answer).Elem(), 0)
	switch of := answer.(type) {
	case *api.Problem:
		of.Status = http.StatusServiceUnavailable
		w.WriteHeader(of.Status)
	case *api.Caller:
		*of = everyRole()
		if a.seed%2 == 1 {
			of.Name, of.Roles = hostileText, []string{"read"}
		}
	case *api.ModelWhole: // the API answers with the one version that was asked for, and its report
		if q.URL.Query().Has("version") {
			of.All = append(of.All, api.ModelVersion{})
			fillAny(r, reflect.ValueOf(&of.All[0]).Elem(), 1)
			of.All[0].Measured = new(tidemill.Report)
			fillAny(r, reflect.ValueOf(of.All[0].Measured).Elem(), 1)
		}
	case *api.DeadLetters:
		of.Cursor = ""
	case *api.RunsDone:
		of.Next = ""
	}
	_ = json.NewEncoder(w).Encode(answer)
}

// fillAny sets a value and all that it contains. Lists have at most three elements.
func fillAny(r *rand.Rand, v reflect.Value, depth int) {
	const deepest = 9
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		if r.IntN(4) > 0 {
			v.Set(reflect.ValueOf(testNow().Add(-time.Duration(r.IntN(1e6)) * time.Second)))
		}
		return
	case reflect.TypeFor[json.RawMessage]():
		v.Set(reflect.ValueOf(json.RawMessage(fmt.Sprintf(`{"specversion":"1.0","id":%q,"source":"/s","type":"t","data":{"a":1}}`, hostileText))))
		return
	}
	switch v.Kind() {
	case reflect.String:
		words := []string{"", hostileText, "bot-42", "failed", "stopped", "main", "\u202e" + strings.Repeat("long ", 30)}
		v.SetString(words[r.IntN(len(words))])
	case reflect.Int, reflect.Int64, reflect.Int32:
		v.SetInt(int64(r.IntN(3)))
	case reflect.Uint64:
		v.SetUint(uint64(r.IntN(3)))
	case reflect.Float64:
		v.SetFloat(float64(r.IntN(3)) / 2)
	case reflect.Bool:
		v.SetBool(r.IntN(2) == 0)
	case reflect.Pointer:
		if depth < deepest && r.IntN(3) > 0 {
			v.Set(reflect.New(v.Type().Elem()))
			fillAny(r, v.Elem(), depth+1)
		}
	case reflect.Slice:
		if n := r.IntN(4); depth < deepest && n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n, n))
			for i := range n {
				fillAny(r, v.Index(i), depth+1)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			fillAny(r, v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for range r.IntN(3) {
			key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
			fillAny(r, key, depth+1)
			fillAny(r, value, depth+1)
			v.SetMapIndex(key, value)
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fillAny(r, v.Field(i), depth+1)
			}
		}
	}
}

// A page shows any answer of the API without a fault. Text of others never becomes HTML, and the page
// has no script or style of its own, which the content policy would refuse.
func TestPagesShowAnyAnswer(t *testing.T) {
	t.Parallel()
	value := regexp.MustCompile(`="[^"]*"`)
	inline := regexp.MustCompile(`(?i)<style|<script[^>]*>[^<]|<[^>]*\s(style|on[a-z]+)=|javascript:|<b on`)
	paths := []string{"/", "/?by=age&recipe=r", "/ui/compare?run=a", "/ui/models?stale=7d", "/ui/model?name=m&signature=1", "/ui/key?key=k", "/ui/approvals", "/ui/data?dataset=d",
		"/ui/data?dataset=d&commit=c", "/ui/data?dataset=d&commit=c&path=a.csv", "/ui/lineage", "/ui/lineage?of=run/r", "/ui/health", "/ui/runs/r?against=o", "/ui/search?q=bot"}
	for _, p := range pageTable() {
		if !strings.HasSuffix(p.path, "$}") && p.path != callbackPath {
			paths = append(paths, regexp.MustCompile(`{\w+}`).ReplaceAllString(p.path, "x"))
		}
	}
	for _, a := range actionTable() {
		q := url.Values{}
		for _, f := range a.fields {
			q.Set(f.name, hostileText)
		}
		paths = append(paths, "/ui/act/"+a.name+"?"+q.Encode())
	}
	for seed := range 2 {
		d := New(Options{API: anyAPI{seed}, Install: func() string { return hostileText }, Version: "test", Now: testNow, Live: true})
		for _, path := range paths {
			w := fetch(d, path)
			if found := inline.FindString(value.ReplaceAllString(w.Body.String(), `=""`)); found != "" || w.Code == http.StatusInternalServerError {
				t.Errorf("seed %d: %s answers %d, with %q", seed, path, w.Code, found)
			}
		}
	}
}
