package tidemill

import (
	"slices"
	"strings"
	"testing"

	"github.com/cloudevents/sdk-go/v2/event"
)

// Every entry is complete and follows the rules for names.
func TestCatalogueIsSound(t *testing.T) {
	streams := []string{StreamEvents, StreamFacts, StreamProgress, StreamDeadLetters, StreamCommands, StreamClock, StreamGroupOffsets, StreamOutcomes}
	homeless := []string{TypeScored, TypeParkedBegun, TypeParkedSettled, TypeScorerReturned, TypeLabel} // their stream depends on the input's
	seen := map[string]bool{}
	for _, e := range Catalogue() {
		if seen[e.Type] {
			t.Errorf("%s stands twice", e.Type)
		}
		seen[e.Type] = true
		if e.Ours != ReservedType(e.Type) {
			t.Errorf("%s: Ours is %t", e.Type, e.Ours)
		}
		if e.Ours && e.Version == 0 {
			t.Errorf("%s: an event of ours has no schema", e.Type)
		}
		if e.Stream == "" && !slices.Contains(homeless, e.Type) || e.Stream != "" && !slices.Contains(streams, e.Stream) {
			t.Errorf("%s: home is %q", e.Type, e.Stream)
		}
		if e.Summary == "" || e.Key == "" || strings.Contains(e.Summary, "\n") {
			t.Errorf("%s: summary %q, key %q", e.Type, e.Summary, e.Key)
		}
		checkAttrs(t, e)
	}
	if len(seen) != 63 {
		t.Errorf("%d types, want 63", len(seen))
	}
}

func checkAttrs(t *testing.T, e Entry) {
	t.Helper()
	for i, a := range e.Attrs {
		if !event.IsExtensionNameValid(a) || strings.ToLower(a) != a || slices.Contains(e.Attrs[:i], a) {
			t.Errorf("%s: attribute %q", e.Type, a)
		}
	}
	if e.Ours && !slices.Contains(e.Attrs, AttrCausationID) {
		t.Errorf("%s: names no cause", e.Type)
	}
}

func TestCatalogueIsTheCallers(t *testing.T) {
	mine := Catalogue()
	mine[0].Type, mine[0].Attrs[0] = "x", "x"
	if again := Catalogue(); again[0].Type == "x" || again[0].Attrs[0] == "x" {
		t.Error("a caller changed the catalogue")
	}
}

func TestLookupAndSchema(t *testing.T) {
	for _, c := range []struct{ typ, stream, schema string }{
		{TypeNewData, StreamEvents, "https://tidemill.dev/schemas/new-data/1"},
		{TypeRunRequested, StreamFacts, "https://tidemill.dev/schemas/tidemill.run.requested/1"},
		{TypeRunProgressed, StreamProgress, "https://tidemill.dev/schemas/tidemill.run.progressed/1"},
		{TypeEventResolved, StreamDeadLetters, "https://tidemill.dev/schemas/tidemill.event.resolved/1"},
		{TypeScored, "", "https://tidemill.dev/schemas/tidemill.scored/1"},
		{TypeBotCreated, StreamEvents, ""},
	} {
		e, ok := Lookup(c.typ)
		if !ok || e.Type != c.typ || e.Stream != c.stream {
			t.Errorf("Lookup(%s) = %+v, %t", c.typ, e, ok)
		}
		if got := Schema(c.typ); got != c.schema {
			t.Errorf("Schema(%s) = %q, want %q", c.typ, got, c.schema)
		}
	}
	if e, ok := Lookup("message"); ok || Schema("message") != "" {
		t.Errorf("an unknown type is known as %+v", e)
	}
}

func TestReserved(t *testing.T) {
	for _, c := range []struct {
		typ, source string
		refused     bool
	}{
		{"message", "https://crm.example", false},
		{"tidemill", "/tidemill", false},
		{"tidemillx.y", "/tidemillx/y", false},
		{"tidemill.run.requested", "https://crm.example", true},
		{"tidemill.", "https://crm.example", true},
		{"message", "/tidemill/prod/train", true},
		{"message", "/tidemill/", true},
	} {
		if err := Reserved(c.typ, c.source); (err != nil) != c.refused {
			t.Errorf("Reserved(%q, %q) = %v", c.typ, c.source, err)
		}
	}
}
