package gateway

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"tidemill.dev"
	"tidemill.dev/api"
)

// loadDocument returns openapi.json after checking its syntax.
func loadDocument(t testing.TB) *openapi3.T {
	t.Helper()
	doc := must1(openapi3.NewLoader().LoadFromData(openAPIDocument))(t)
	if err := doc.Validate(t.Context()); err != nil {
		t.Fatal(err)
	}
	return doc
}

// listOperations returns the operations of a document, by method and path.
func listOperations(doc *openapi3.T) map[string]*openapi3.Operation {
	all := map[string]*openapi3.Operation{}
	for path, item := range doc.Paths.Map() {
		for method, op := range item.Operations() {
			all[method+" "+path] = op
		}
	}
	return all
}

// Every route is in the document, and every operation of the document is a route. The
// document says only once that every path answers OPTIONS.
func TestDocumentHasEveryRoute(t *testing.T) {
	t.Parallel()
	documented := listOperations(loadDocument(t))
	paths := map[string]bool{}
	for _, r := range new(Gateway).routeTable() {
		paths[r.path] = true
		op := documented[r.method+" "+r.path]
		if op == nil {
			t.Errorf("%s %s is not in openapi.json", r.method, r.path)
			continue
		}
		delete(documented, r.method+" "+r.path)
		if open := op.Security != nil && len(*op.Security) == 0; open != (r.role == anyone) {
			t.Errorf("%s %s needs the role %q, which openapi.json has otherwise", r.method, r.path, r.role)
		}
	}
	for left := range documented {
		if path, options := strings.CutPrefix(left, http.MethodOptions+" "); !options || !paths[path] {
			t.Errorf("openapi.json has %s, which is no route", left)
		}
	}
}

// The document has no part that is never referred to.
func TestDocumentHasNothingLeftOver(t *testing.T) {
	t.Parallel()
	doc := loadDocument(t)
	for kind, names := range map[string][]string{
		"schemas":    slices.Collect(maps.Keys(doc.Components.Schemas)),
		"responses":  slices.Collect(maps.Keys(doc.Components.Responses)),
		"parameters": slices.Collect(maps.Keys(doc.Components.Parameters)),
		"headers":    slices.Collect(maps.Keys(doc.Components.Headers)),
	} {
		for _, name := range names {
			if !strings.Contains(string(openAPIDocument), fmt.Sprintf(`"#/components/%s/%s"`, kind, name)) {
				t.Errorf("%s has %s, which nothing refers to", kind, name)
			}
		}
	}
}

// The slugs in the document are those of the code.
func TestDocumentHasEveryProblem(t *testing.T) {
	t.Parallel()
	var want []any
	for _, slug := range []string{api.InvalidEvent, api.InvalidRequest, api.Refused, api.Unauthenticated, api.Forbidden, api.Reserved,
		api.UnknownStream, api.UnknownTrigger, api.UnknownLetter, api.UnknownSchedule, api.UnknownScorer,
		api.UnknownRun, api.UnknownRecipe, api.UnknownPool, api.UnknownModel, api.NoRuns, api.NoScoring,
		api.UnknownData,
		api.NotFound, api.MethodNotAllowed,
		api.Conflict, api.Superseded,
		api.NotPromoted, api.ChampionMoved,
		api.TooSlow, api.TooLarge, api.UnsupportedType, api.Unscorable, api.TooManyRequests,
		api.HeadersTooLarge, api.Internal, api.Unavailable, api.DiskFull, api.InDoubt} {
		want = append(want, api.ProblemBase+slug)
	}
	schema := loadDocument(t).Components.Schemas["Problem"].Value
	if got := schema.Properties["type"].Value.Enum; !reflect.DeepEqual(got, want) {
		t.Errorf("types are %v, want %v", got, want)
	}
	explained := regexp.MustCompile("(?m)^- `(.*)`: ").FindAllStringSubmatch(schema.Description, -1)
	for i, m := range explained {
		if i >= len(want) || api.ProblemBase+m[1] != want[i] {
			t.Errorf("it explains %s", m[1])
		}
	}
}

// A struct of api and its schema have the same fields, and a field that is never omitted is
// required. The other test's answers could all lack a field that is omitted when empty.
func TestDocumentHasEveryField(t *testing.T) {
	t.Parallel()
	schemas := loadDocument(t).Components.Schemas
	for _, v := range []any{api.Problem{}, api.Answers{}, api.Answer{}, api.Position{}, api.Readiness{}, api.Check{}, api.Caller{},
		api.Streams{}, api.Stream{}, api.Partition{}, api.Group{}, api.Tailed{}, api.History{}, api.HistorySwap{}, api.FreshStages{}, api.Freshness{}, api.RecipeFreshness{}, api.Percentiles{},
		api.Triggers{}, api.Trigger{}, api.When{}, api.Target{}, api.Delivery{}, api.TriggerNumbers{}, api.TriggerReplay{}, api.Stretch{},
		api.Schedules{}, api.Schedule{}, api.ScheduleDone{},
		api.Scorers{}, api.Scorer{}, api.ScorerShown{}, api.ScorerNumbers{}, api.ScorerVersion{}, api.ScorerSwap{}, api.ScorerProcess{}, api.ScoreDone{}, api.RescoreAsk{}, api.Rescored{}, api.ScorerLabels{}, api.LabelAsk{}, api.LabelDone{},
		api.Missing{}, api.Part{}, api.File{}, api.Change{}, api.CommitAsked{}, api.Commit{}, api.Committed{}, api.Datasets{}, api.Dataset{}, api.RecipeWhen{}, api.RecipeInput{},
		api.Graph{}, api.GraphNode{}, api.GraphEdge{}, api.GraphLayout{}, api.PlacedNode{}, api.PlacedEdge{}, api.Files{}, api.ArtifactFiles{}, api.Log{}, api.Diff{}, api.Difference{}, api.BranchAsked{}, api.Branched{}, api.CollectAsked{}, api.Collected{},
		api.Order{}, api.TreeRef{}, api.Beat{}, api.CheckpointTaken{}, api.Finish{}, tidemill.Where{}, api.Finished{},
		api.TriggerDone{}, api.ReplayAsk{}, api.ReplayDone{}, api.Preview{},
		api.DeadLetters{}, api.DeadLetter{}, api.WholeLetter{}, api.Record{}, api.Header{}, api.Attempt{}, api.Receipt{},
		api.LetterAsk{}, api.LetterSelection{}, api.LetterDone{}, api.RefusedGroup{}, api.LetterCommand{}} {
		typ := reflect.TypeOf(v)
		ref := schemas[typ.Name()]
		if ref == nil {
			t.Errorf("there is no schema %s", typ.Name())
			continue
		}
		var fields, always []string
		for _, f := range reflect.VisibleFields(typ) {
			if f.Anonymous {
				continue // its fields are listed in its place
			}
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields = append(fields, name)
			if options != "omitempty" {
				always = append(always, name)
			}
		}
		if got := slices.Sorted(maps.Keys(ref.Value.Properties)); !haveSame(got, fields) {
			t.Errorf("%s has the fields %v, and in openapi.json %v", typ.Name(), fields, got)
		}
		if !haveSame(ref.Value.Required, always) {
			t.Errorf("%s always has %v, and in openapi.json %v", typ.Name(), always, ref.Value.Required)
		}
		if more := ref.Value.AdditionalProperties.Has; more == nil || *more {
			t.Errorf("%s may have other fields in openapi.json", typ.Name())
		}
	}
}

// The checks of this file and the next are useful only if they notice a mistake.
func TestSchemasAreStrict(t *testing.T) {
	t.Parallel()
	schema := loadDocument(t).Components.Schemas["Position"].Value
	for text, fits := range map[string]bool{
		`{"stream":"s","partition":1,"offset":2}`:              true,
		`{"stream":"s","partition":1}`:                         false,
		`{"stream":"s","partition":1,"offset":2,"more":3}`:     false,
		`{"stream":"s","partition":"1","offset":2}`:            false,
		`{"stream":"s","partition":1,"offset":2.5}`:            false,
		`{"stream":"s","partition":-1,"offset":2}`:             false,
		`{"stream":null,"partition":1,"offset":2}`:             false,
		`{"stream":"s","partition":1,"offset":-1,"Offset": 1}`: false,
	} {
		if err := fitsSchema(schema, text); (err == nil) != fits {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func fitsSchema(schema *openapi3.Schema, text string) error {
	var v any
	if err := json.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	return schema.VisitJSON(v, openapi3.EnableJSONSchema2020())
}
