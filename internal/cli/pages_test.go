package cli

import (
	"encoding/json"
	"html"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"testing"

	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/dashboard"
)

// Each page of a command shows a line for a shell. The commands accept every such line.
func TestCommandsOnPagesParse(t *testing.T) {
	t.Parallel()
	caller := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = json.NewEncoder(w).Encode(api.Caller{Roles: []string{"publish", "metrics", "read", "operate", "approve"}})
	})
	pages := dashboard.New(dashboard.Options{API: caller, Install: func() string { return "lab" }})
	fetch := func(path string) string {
		w := httptest.NewRecorder()
		pages.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return w.Body.String()
	}
	values := map[string]string{"priority": "5", "rate": "10", "version": "3", "from": "-1h", "to": "end", "since": "-2h", "until": "-1h", "older": "48h", "state": "failed", "data": `{"a": 1}`, "where": "subject LIKE 'bot-%'", "to-stream": "what-if", "basis": "2"}
	alone := map[string][]string{"start-runs": {"key", "all"}, "cancel-runs": {"run", "all"}, "retry-runs": {"run", "all"}, "rescore": {"resume", "all"}, "replay-letters": {"id", "all"}, "drop-letters": {"id", "all"}, "rollback-since": {"all", ""}}
	actions := regexp.MustCompile(`href="/ui/act/([a-z-]+)"`).FindAllStringSubmatch(fetch("/ui/act"), -1)
	if len(actions) < 20 {
		t.Fatalf("%d commands are listed", len(actions))
	}
	for _, m := range actions {
		for _, without := range append(alone[m[1]], "") { // fields that exclude the others
			q := url.Values{}
			for _, f := range regexp.MustCompile(`(?:input|textarea)[^>]* name="([a-z-]+)"`).FindAllStringSubmatch(fetch("/ui/act/"+m[1]), -1) {
				if value := values[f[1]]; value != "" {
					q.Set(f[1], value)
				} else {
					q.Set(f[1], "some-text")
				}
			}
			only(q, m[1], without)
			line := regexp.MustCompile(`<tm-copy><code>(.*?)</code>`).FindStringSubmatch(fetch("/ui/act/" + m[1] + "?" + q.Encode()))
			if line == nil {
				t.Errorf("%s shows no command", m[1])
				continue
			}
			words := shellWords(t, html.UnescapeString(line[1]))
			if _, err := parse(words[1:], func(string) string { return "" }); err != nil {
				t.Errorf("%s: %s: %v", m[1], html.UnescapeString(line[1]), err)
			}
		}
	}
}

// only leaves out the fields that a command refuses together with others.
func only(q url.Values, action, without string) {
	drop := func(names ...string) {
		for _, name := range names {
			q.Del(name)
		}
	}
	selection := []string{"recipe", "key", "state", "since", "where", "trigger", "scorer", "with", "type", "stream", "until"}
	switch action {
	case "start-runs":
		if without == "key" {
			drop("key")
		} else {
			drop("all", "where")
		}
	case "cancel-runs", "retry-runs":
		if without == "run" {
			drop("run")
		} else {
			drop(selection...)
		}
	case "replay-letters", "drop-letters":
		switch without {
		case "id":
			drop("id", "all", "scorer")
		case "all":
			drop("id")
			drop(selection...)
		default:
			drop(append(selection, "all")...)
		}
	case "rescore":
		if without == "resume" {
			drop("resume")
		} else {
			drop("from", "to", "version", "to-stream")
		}
	case "rollback-since":
		if without == "all" {
			drop("all")
		} else {
			drop("recipe", "key", "prefix", "where")
		}
	}
}
