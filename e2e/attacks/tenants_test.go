//go:build slow && linux

package attacks

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"tidemill.dev/api"
)

// tenantConfig adds what belongs to no tenant: a recipe without keys, whose name a limit of keys may match, a trigger
// that cannot deliver its facts, and a recipe that takes its key from a commit.
var tenantConfig = strings.NewReplacer("triggers:\n", `triggers:
  nightly-hook: {when: {type: tidemill.run.finished, where: "recipe = 'nightly-all'"}, to: {url: "http://127.0.0.1:1/hook"}, delivery: {attempts: 1}}
`, "recipes:\n", `recipes:
  nightly-all:
    key: none
    when: [{type: nightly}]
    run: {dir: models, command: ["true"], pool: small, attempts: 1}
  branched:
    key: branch
    when: [{type: new-data, debounce: 1h}]
    run: {dir: models, command: ["true"]}
`).Replace(worldConfig)

// admit makes tokens while the process runs, and a team.
func (w *world) admit(team string, tokens map[string][]string) {
	w.Helper()
	for name, rights := range tokens {
		w.tokens[name] = strings.TrimSpace(w.run(append([]string{"token", "new", name, "--file", "access.yaml"}, rights...)...))
	}
	w.write("access.yaml", w.read("access.yaml")+team)
}

// whole returns a whole answer, also one of server-sent events that ends.
func (w *world) whole(caller, path string) answer {
	w.Helper()
	res, err := w.client.Do(w.request(http.MethodGet, path, "", caller))
	if err != nil {
		return answer{body: err.Error()}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, answerShown))
	if err != nil {
		return answer{body: err.Error()}
	}
	return answer{status: res.StatusCode, header: res.Header, body: string(body)}
}

// A tenant's token gives no more than its types, sources and keys: not by a team, by the name of a recipe, by dead
// letters, by commits, by the cause of a run, or by the errors of triggers.
func TestTenantsReachNoMoreThanTheirKeys(t *testing.T) {
	w := openWorld(t, map[string]string{"tidemill.yaml": tenantConfig})
	w.admit("teams:\n  interns: {keys: [\"lab-*\"], recipes: [intent], members: [ana]}\n", map[string][]string{
		"ana":   {"--role", "publish,read", "--types", "order", "--sources", "/ana/*", "--keys", "bot-42"},
		"night": {"--role", "operate", "--keys", "nightly-*"},
	})
	event := func(caller, typ, source, subject string) answer {
		return w.do(w.request(http.MethodPost, "/events", "{}", caller, "ce-specversion", "1.0", "ce-id", "1", "ce-type", typ, "ce-source", source, "ce-subject", subject,
			"content-type", "application/json"))
	}
	post := func(caller, path, body string) answer {
		return w.do(w.request(http.MethodPost, path, body, caller, "content-type", "application/json"))
	}
	get := func(caller, path string) answer { return w.do(w.request(http.MethodGet, path, "", caller)) }
	w.waitFor(func() bool { return event("ana", "order", "/ana/1", "lab-1").status == http.StatusAccepted })

	if a := post("operator", "/api/v1/runs", `{"recipe":"nightly-all"}`); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	var letters api.DeadLetters
	w.waitFor(func() bool {
		return json.Unmarshal([]byte(get("operator", "/api/v1/dead-letters?trigger=nightly-hook").body), &letters) == nil && letters.Total == 1
	})
	w.waitFor(func() bool {
		return strings.Contains(get("operator", "/api/v1/triggers/nightly-hook").body, `"lastError"`)
	})
	if a := post("operator", "/api/v1/triggers/nightly-hook/pause", ""); a.status != http.StatusOK {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if t.Failed() {
		return
	}

	cause := func(head string) string {
		return fmt.Sprintf(`{"recipe":"intent","keys":["nightly-1"],"event":{"specversion":"1.0","id":"1",%s,"subject":"nightly-1"}}`, head)
	}
	for name, a := range map[string]answer{
		"a type by a team":                       event("ana", "learn", "/ana/1", "lab-1"),
		"a source by a team":                     event("ana", "order", "/shop/eu", "lab-1"),
		"to forget the name of a recipe":         post("night", "/api/v1/keys/forget", `{"key":"nightly-all"}`),
		"to list what that name has":             post("night", "/api/v1/keys/forget", `{"key":"nightly-all","dryRun":true}`),
		"to end the name by an event":            event("night", "bot-deleted", "/night", "nightly-all"),
		"to start another key's run by a commit": post("night", "/api/v1/data/commits", `{"dataset":"bots/nightly-1","branch":"bot-7"}`),
		"a cause with a type of Tidemill":        post("night", "/api/v1/runs", cause(`"type":"tidemill.run.requested","source":"/night"`)),
		"a cause with a source of Tidemill":      post("night", "/api/v1/runs", cause(`"type":"learn","source":"/tidemill/tidemill/clock"`)),
		"a cause with another partitionkey":      post("night", "/api/v1/runs", cause(`"type":"learn","source":"/night","partitionkey":"bot-7"`)),
	} {
		if a.status != http.StatusForbidden {
			t.Errorf("%s: %d %s", name, a.status, a.body)
			continue
		}
		w.problem(name, a)
	}
	id := letters.DeadLetters[0].ID
	if a := get("night", "/api/v1/dead-letters/"+id); a.status != http.StatusNotFound {
		t.Errorf("a dead letter of a recipe without keys: %d %s", a.status, a.body)
	}
	for path, hidden := range map[string]string{
		"/api/v1/dead-letters": id,
		"/api/v1/streams/dead-letters/events?from=beginning&follow=false": id,
		"/api/v1/streams/commands/events?from=beginning&follow=false":     "nightly-hook",
		"/api/v1/triggers": `"lastError"`,
	} {
		if a := w.whole("night", path); a.status != http.StatusOK || strings.Contains(a.body, hidden) {
			t.Errorf("%s shows %s: %d %s", path, hidden, a.status, a.body)
		}
		if a := w.whole("operator", path); !strings.Contains(a.body, hidden) {
			t.Errorf("%s does not show %s to a caller for all keys: %d %s", path, hidden, a.status, a.body)
		}
	}
}
