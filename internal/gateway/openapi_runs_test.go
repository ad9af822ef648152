package gateway

import (
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

// The types about runs have the same fields in openapi.json. A shown run has no event and no
// plan, because the page of a single run has them in another form.
func TestDocumentHasEveryFieldOfRuns(t *testing.T) {
	t.Parallel()
	checkFields(t, map[string]any{"Runs": api.Runs{}, "RunShown": api.RunShown{}, "RunWhole": api.RunWhole{}, "RunCurves": api.RunCurves{}, "Curve": api.Curve{}, "Cause": tidemill.Cause{},
		"RunAttempt": tidemill.Attempt{}, "Cancel": tidemill.Cancel{}, "Result": tidemill.Result{}, "Stage": tidemill.Stage{}, "Progress": api.Progress{},
		"Plan": tidemill.Plan{}, "Servers": tidemill.Servers{}, "Inside": tidemill.Inside{}, "Volume": tidemill.Volume{},
		"Beat": api.Beat{}, "Idling": api.Idling{}, "Given": api.Given{}, "Backoff": tidemill.Backoff{}, "Input": tidemill.Input{}, "OffsetRange": tidemill.Range{},
		"RunsAsked": api.RunsAsked{}, "RunsSelected": api.RunsSelected{}, "RunsDone": api.RunsDone{}, "RunDone": api.RunDone{},
		"Recipes": api.Recipes{}, "Recipe": api.Recipe{}, "Pools": api.Pools{}, "Pool": api.Pool{}, "Rested": api.Rested{}}, func(name string, fields map[string]bool) {
		if name == "RunShown" || name == "RunWhole" {
			delete(fields, "event")
			delete(fields, "planMAC") // never shown
		}
		if name == "RunShown" {
			delete(fields, "plan")
		}
	})
}

// checkFields compares structs with their schemas; leave removes the fields that are shown in
// another form.
func checkFields(t *testing.T, all map[string]any, leave func(name string, fields map[string]bool)) {
	t.Helper()
	schemas := loadDocument(t).Components.Schemas
	for name, v := range all {
		schema := schemas[name]
		if schema == nil {
			t.Errorf("there is no schema %s", name)
			continue
		}
		fields := fieldsOf(reflect.TypeOf(v))
		leave(name, fields)
		if got := slices.Collect(maps.Keys(schema.Value.Properties)); !haveSame(got, slices.Collect(maps.Keys(fields))) {
			t.Errorf("%s has the fields %v, and in openapi.json %v", name, slices.Sorted(maps.Keys(fields)), slices.Sorted(slices.Values(got)))
		}
		maps.DeleteFunc(fields, func(_ string, always bool) bool { return !always })
		if !haveSame(schema.Value.Required, slices.Collect(maps.Keys(fields))) {
			t.Errorf("%s always has %v, and in openapi.json %v", name, slices.Sorted(maps.Keys(fields)), schema.Value.Required)
		}
		if more := schema.Value.AdditionalProperties.Has; more == nil || *more {
			t.Errorf("%s may have other fields in openapi.json", name)
		}
	}
}

// fieldsOf returns the JSON fields of a struct, with those of embedded structs, and whether
// each is always present.
func fieldsOf(typ reflect.Type) map[string]bool {
	fields := map[string]bool{}
	for i := range typ.NumField() {
		f := typ.Field(i)
		if f.Anonymous {
			maps.Copy(fields, fieldsOf(f.Type))
		}
	}
	for i := range typ.NumField() {
		if f := typ.Field(i); !f.Anonymous {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			fields[name] = options == ""
		}
	}
	return fields
}
