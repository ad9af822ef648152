package remote

import (
	"slices"
	"strings"
	"testing"
)

func TestPagePaths(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]string{
		"": "/", "fleet": "/", "runs": "/ui/runs", "key a/b&c": "/ui/key?key=a%2Fb%26c", "run 01J": "/ui/runs/01J", "letter a/b": "/ui/dead-letters/a%2Fb",
	} {
		if got, err := pagePath(strings.Fields(line)); err != nil || got != want {
			t.Errorf("open %s: %s, %v; want %s", line, got, err, want)
		}
	}
	for line, want := range map[string]string{"rums": "did you mean runs?", "key": "needs one name", "runs 7": "needs no name", "zzzzzzzz": "help open lists them"} {
		if _, err := pagePath(strings.Fields(line)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("open %s: %v, want %q", line, err, want)
		}
	}
}

func TestBrowserCommand(t *testing.T) {
	t.Parallel()
	none := func(string) string { return "" }
	desk := func(name string) string { return map[string]string{"DISPLAY": ":0"}[name] }
	if got := browserCommand("linux", none, "u"); got != nil {
		t.Errorf("without a display: %s", got)
	}
	if got := browserCommand("linux", desk, "u"); !slices.Equal(got, []string{"xdg-open", "u"}) {
		t.Errorf("with a display: %s", got)
	}
	if got := browserCommand("darwin", none, "u"); !slices.Equal(got, []string{"open", "u"}) {
		t.Errorf("on a Mac: %s", got)
	}
}
