package lineage

import (
	"errors"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

func TestNamesAreRead(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]ref{
		"run/3k7mzq":                     {api.KindRun, "3k7mzq", ""},
		"model/intent/bot-42":            {api.KindModel, "intent/bot-42", ""},
		"model/intent/bot-42@7":          {api.KindModel, "intent/bot-42", "7"},
		"model/a@champion":               {api.KindModel, "a", "champion"},
		"commit/bots/bot-42@9f3":         {api.KindCommit, "bots/bot-42", "9f3"},
		"commit/bots/a@b@main":           {api.KindCommit, "bots/a@b", "main"},
		"commit/9f3abc":                  {api.KindCommit, "", "9f3abc"},
		"event/e-1":                      {api.KindEvent, "", "e-1"},
		"event/a/b":                      {api.KindEvent, "", "a/b"},
		"event//crm#e-1":                 {api.KindEvent, "/crm", "e-1"},
		"event/https://x/#a#b":           {api.KindEvent, "https://x/", "a#b"},
		"event//shop%231%2525#e":         {api.KindEvent, "/shop#1%25", "e"},
		"event/#e":                       {api.KindEvent, "", "#e"},
		"run/" + strings.Repeat("a", 26): {api.KindRun, strings.Repeat("a", 26), ""},
	} {
		got, err := parseRef(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", text, got, err)
		}
		if again, err := parseRef(got.String()); err != nil || again != got {
			t.Errorf("%s is written %s, and that is read %+v, %v", text, got, again, err)
		}
	}
}

func TestWhatIsNoNameIsRefused(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"", "run", "run/", "run/abc", "run/ABCDEF", "run/abcde*", "run/../x", "model/", "model/a@", "model/a@0", "model/a b", "commit/@main", "commit/a@", "commit/a b@main", "commit/bots/bot-42",
		"commit/a@B", "event/", "code/x", "node/laptop", "pool/small", strings.Repeat("event/", 2000), "\x1b[2J/x"} {
		if r, err := parseRef(text); !errors.Is(err, ErrRef) || len(err.Error()) > 400 || strings.Contains(err.Error(), "\x1b") {
			t.Errorf("%q: %+v, %v", text, r, err)
		}
	}
}

// The id of every event can be asked for, whatever its source and id are.
func FuzzEventsAreNamed(f *testing.F) {
	f.Add("/crm", "e-1")
	f.Add("/a#%23%", "#%25#")
	f.Fuzz(func(t *testing.T, source, id string) {
		if source == "" || id == "" || len(source)+len(id) > longest/8 {
			t.Skip()
		}
		want := eventRef(tidemill.Cause{Source: source, ID: id})
		if got, err := parseRef(want.String()); err != nil || got != want {
			t.Errorf("%q is read %+v, %v", want, got, err)
		}
	})
}
