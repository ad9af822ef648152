package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

// modelsConfig has a recipe whose gate compares each version with the champion.
const modelsConfig = `version: 1
recipes:
  intent:
    when: [{type: bot-created}]
    inputs: {examples: "bots/{key}"}
    run: {dir: trainer, command: [sh, train.sh], attempts: 1}
    makes: {model: "intent/{key}"}
    gate: [metrics.accuracy >= 0.5, metrics.accuracy >= champion.metrics.accuracy]
`

// modelsTrainer returns the predictions that are in its data.
const modelsTrainer = `cp "$TIDEMILL_IN/examples/predictions.csv" "$TIDEMILL_OUT/"
echo weights of "$TIDEMILL_RUN" > "$TIDEMILL_OUT/weights"
echo CAg6QQoQCgF4EgF5IghJZGVudGl0eRIBZ1oUCgF4Eg8KDQgBEgkKAxIBbgoCCAFiFAoBeRIPCg0IARIJCgMSAW4KAggBQgIQDQ== | base64 -d > "$TIDEMILL_OUT/model.onnx"
`

// predicted returns a predictions.csv of ten examples with that many right ones. A champion of -1
// omits the column of the champion.
func predicted(right, champion int) string {
	var b strings.Builder
	b.WriteString("truth,predicted")
	if champion >= 0 {
		b.WriteString(",champion")
	}
	for i := range 10 {
		label := []string{"greet", "order"}[i%2]
		other := []string{"order", "greet"}[i%2]
		said := func(n int) string {
			if i < n {
				return label
			}
			return other
		}
		b.WriteString("\n" + label + "," + said(right))
		if champion >= 0 {
			b.WriteString("," + said(champion))
		}
	}
	return b.String() + "\n"
}

// modelsAt is runsAt with predictions as data, so that a test decides how good a model is.
type modelsAt struct {
	runsAt
	data string
}

// learn starts a run of a key with these predictions, and waits until the version is judged.
func (m modelsAt) learn(key, predictions string) api.ModelVersion {
	m.Helper()
	before := len(m.model("intent/" + key).All)
	m.ok("data", "put", "bots/"+key, leave(m.T, predictions, m.data, "predictions.csv"))
	m.ok("runs", "start", "intent", "--key", key)
	var newest api.ModelVersion
	eventually(m.T, func() bool {
		all := m.model("intent/" + key).All
		if len(all) == before+1 {
			newest = all[0]
		}
		return newest.Judgement != nil && newest.State != tidemill.VersionRegistered
	})
	return newest
}

func (m modelsAt) model(name string) (whole api.ModelWhole) {
	m.Helper()
	o := m.call("models", "show", name, "-o", "json")
	if o.code == 0 {
		if err := json.Unmarshal([]byte(o.out), &whole); err != nil {
			m.Fatal(err)
		}
	}
	return whole
}

func TestModelsByCommand(t *testing.T) {
	t.Parallel()
	dir, file := runsFolder(t, modelsConfig)
	leave(t, modelsTrainer, dir, "trainer", "train.sh")
	m := modelsAt{runsAt{t, filepath.Join(dir, "data")}, t.TempDir()}
	startUp(t, m.runsAt.data, "-f", file)
	mention(t, "models, of none", m.call("models").err, "There are no models yet")

	if v := m.learn("bot-1", predicted(8, -1)); v.State != tidemill.VersionPromoted {
		t.Errorf("the first is %+v", v)
	}
	if v := m.learn("bot-1", predicted(9, 8)); v.State != tidemill.VersionPromoted {
		t.Errorf("the second is %+v", v)
	}
	worse := m.learn("bot-1", predicted(6, 9))
	if worse.State != tidemill.VersionRefused {
		t.Errorf("the third is %+v", worse)
	}
	mention(t, "models", m.ok("models"), "intent/bot-1", "3 refused", "0.900")
	mention(t, "show", m.ok("models", "show", "intent/bot-1"), "version 2 since", "previous champion", "refused", "by its gate", "holds  metrics.accuracy >= 0.5", "Of 10 examples: accuracy 0.900",
		"version 1, the champion at that time", "greet", "found", "bots/bot-1 at main", "shows the newest version")
	mention(t, "show the refused", m.ok("models", "show", "intent/bot-1@newest"), "FAILS  metrics.accuracy >= champion.metrics.accuracy", "champion.metrics.accuracy = 0.9", "metrics.accuracy = 0.6", "tidemill runs show")
	mention(t, "the run", m.ok("runs", "show", worse.Run), "became", "version 3 of intent/bot-1 (refused)")
	mention(t, "compare", m.ok("compare", "intent/bot-1@2", "@3"), "On the same data, because the run of B measured A too:\nFIGURE", "accuracy  0.900", "-0.300", "row by row, the lead of B")
	mention(t, "compare, for a script", m.ok("compare", "intent/bot-1@2", "@3", "-o", "json"), `"sameData": "the run of B measured A too"`, `"sameData": true`)
	mention(t, "compare of different data", m.ok("compare", "intent/bot-1@1", "@3"), "Not comparable, because each run measured its own version on its own data, A on bots/bot-1@")

	champion, refused := t.TempDir(), filepath.Join(t.TempDir(), "new")
	mention(t, "get", m.ok("models", "get", "intent/bot-1", champion), "got 3 files, ", ", of version intent/bot-1@2 into "+champion+": downloaded ")
	mention(t, "get again", m.ok("models", "get", "intent/bot-1@2", champion), "downloaded 0 B")
	mention(t, "get of another into it", m.call("models", "get", "intent/bot-1@newest", champion).err, "is not that file")
	mention(t, "get what a run made", m.ok("runs", "get", worse.Run[:8], refused), "got 3 files, ", ", of run "+worse.Run[:10]+" into ")
	m.ok("models", "get", "intent/bot-1@newest", champion, "--replace")
	for _, dir := range []string{champion, refused} {
		if b, err := os.ReadFile(filepath.Join(dir, "weights")); err != nil || string(b) != "weights of "+worse.Run+"\n" {
			t.Errorf("%s has %q, %v", dir, b, err)
		}
	}

	o := m.call("promote", "intent/bot-1@newest")
	if o.code != exitFailed {
		t.Errorf("%+v", o)
	}
	mention(t, "a refusal", o.err, "version 3 is refused, and it was not forced", "--force promotes it anyway")
	mention(t, "dry", m.ok("promote", "intent/bot-1@newest", "--force", "--dry-run"), "would have version 3 as its champion")
	mention(t, "promote", m.ok("promote", "intent/bot-1@newest", "--force", "--reason", "wanted"), "has version 3 as its champion, previously version 2")
	mention(t, "rollback", m.ok("rollback", "intent/bot-1"), "has version 2 as its champion, previously version 3")
	mention(t, "pin", m.ok("pin", "intent/bot-1@1", "--reason", "the audit"), "pinned to version 1")
	mention(t, "a rollback of what is pinned", m.call("rollback", "intent/bot-1").err, "is pinned", "tidemill unpin intent/bot-1 first")
	mention(t, "models --pinned", m.ok("models", "--pinned"), "pinned by anonymous")
	if v := m.learn("bot-1", predicted(10, 8)); v.State != tidemill.VersionAwaiting {
		t.Errorf("a better one is %+v", v)
	}
	mention(t, "show what waits for an unpin", m.ok("models", "show", "intent/bot-1@4"), "Next: tidemill unpin intent/bot-1, then tidemill promote intent/bot-1@4")
	mention(t, "unpin", m.ok("unpin", "intent/bot-1"), "unpinned: its gate decides again")
	mention(t, "models --awaiting", m.call("models", "--awaiting").err, "tidemill promote intent/bot-1@4")
	mention(t, "promote", m.ok("promote", "intent/bot-1@4"), "has version 4")

	mention(t, "freeze", m.ok("promotions", "freeze", "--recipe", "intent", "--reason", "an incident"), "frozen promotions of intent")
	mention(t, "promotions", m.ok("promotions"), "intent", "anonymous", "an incident")
	if v := m.learn("bot-2", predicted(9, -1)); v.State != tidemill.VersionAwaiting || !strings.Contains(v.Judgement.Sentence, "frozen") {
		t.Errorf("of what is frozen: %+v", v)
	}
	mention(t, "thaw", m.ok("promotions", "thaw", "--recipe", "intent"), "thawed promotions of intent")
	mention(t, "thaw again", m.ok("promotions", "thaw", "--recipe", "intent"), "were not frozen")
	mention(t, "a dry rollback of many", m.ok("models", "rollback", "--recipe", "intent", "--since", "-1h", "--dry-run"), "intent/bot-1  skipped: it has no previous champion")
	for args, says := range map[string]string{
		"models show intent/no":             "no model's name is",
		"models get intent/no x":            "no model's name is",
		"models get intent/bot-1@99 x":      "has no version 99",
		"models get intent/bot-2 x":         "has no champion",
		"models get intent/bot-1":           "DIR is missing",
		"runs get zzzzzzzz x":               "no run's id is",
		"models show intent/bot-1@99":       "has no version 99",
		"models show intent/bot-2@champion": "tidemill promote intent/bot-2@newest promotes it",
		"promote intent/bot-1@4":            "nothing needs to be done",
		"promotions freeze --recipe no":     `recipe "no" is not in the config`,
		"compare intent/bot-1@4 @champion":  "both are intent/bot-1@4",
	} {
		if o := m.call(strings.Fields(args)...); o.code == 0 || !strings.Contains(o.err, says) {
			t.Errorf("%s: %+v, want %q", args, o, says)
		}
	}
}
