package cli

import (
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

// unservedConfig has models that need ONNX Runtime, and no scorer yet.
const unservedConfig = "engine: onnxruntime\nstreams: {messages: {types: [message]}, scored: }\n" + modelsConfig

const unservedScorer = `scorers:
  intents: {from: messages, to: scored, model: "intent/{key}", map: {x: data.x}}
`

// unservedTrainer makes a broken model if its data have a file named broken.
const unservedTrainer = modelsTrainer + `if test -e "$TIDEMILL_IN/examples/broken"; then echo broken > "$TIDEMILL_OUT/model.onnx"; fi
`

// shows waits until the list of models has a text, and returns the list with its advice.
func (m modelsAt) shows(text string) string {
	m.Helper()
	var o outcome
	eventually(m.T, func() bool {
		o = m.call("models")
		return strings.Contains(o.out, text)
	})
	return o.out + o.err
}

// fails calls score, which fails at once with one line.
func (m modelsAt) fails(key string, says ...string) {
	m.Helper()
	o := m.call("score", "intents", "--key", key, "-d", `{"x": 1}`)
	if o.code != exitFailed || o.out != "" || strings.Count(o.err, "\n") != 1 {
		m.Errorf("score of %s: %+v", key, o)
	}
	mention(m.T, "score of "+key, o.err, says...)
}

func (m modelsAt) learnBroken(key, predictions string) api.ModelVersion {
	m.Helper()
	m.ok("data", "put", "bots/"+key, leave(m.T, "", m.data, "broken"))
	return m.learn(key, predictions)
}

// A version that this install cannot serve never looks fine: it waits with the reason, or, if a person
// forces it, every view says that it is not served. Once it can be loaded, the report is gone. The
// same views report a champion that no engine can load.
func TestAModelThatIsNotServed(t *testing.T) {
	const lacks = "ONNX Runtime is not installed: get it with make onnxruntime"
	t.Setenv("TIDEMILL_ONNXRUNTIME", filepath.Join(t.TempDir(), "none.so"))
	f := newTryFolder(t, unservedConfig, unservedTrainer)
	tried := f.try(predicted(9, -1))
	mention(t, "try without a scorer", tried.out, "The gate passes: ", "it awaits a person: Tidemill cannot run its model yet: "+lacks)
	if tried.code != exitFailed {
		t.Errorf("try exits with %d", tried.code)
	}

	m := modelsAt{runsAt{t, filepath.Join(f.dir, "data")}, t.TempDir()}
	up := startUp(t, m.runsAt.data, "-f", f.file)
	if v := m.learn("bot-1", predicted(8, -1)); v.State != tidemill.VersionAwaiting {
		t.Errorf("without a scorer it is %+v", v)
	}
	list := m.shows("1 awaiting")
	mention(t, "models", list, "1 waits: Tidemill cannot run its model yet: "+lacks, "Next: tidemill models show intent/bot-1@1 shows the version that waits, and why")
	screen := m.ok("status")
	mention(t, "status", screen, "1 waiting for a person", "1 waiting version: Tidemill cannot run its model yet: "+lacks, "tidemill models show intent/bot-1@1")
	if strings.Contains(list+screen, "tidemill promote") {
		t.Errorf("a promotion is suggested, which would be refused:\n%s%s", list, screen)
	}
	mention(t, "show", m.ok("models", "show", "intent/bot-1"), lacks, "Next: install what is missing, then tidemill promote intent/bot-1@1")
	mention(t, "promote", m.call("promote", "intent/bot-1@1").err, lacks, "--force promotes it anyway")

	m.ok("promote", "intent/bot-1@1", "--force")
	leave(t, unservedConfig+unservedScorer, f.file)
	eventually(t, func() bool { return strings.Contains(m.call("scorers").out, "intents") })
	m.ok("publish", "message", "--subject", "bot-1", "-d", `{"x": 1}`)
	list = m.shows("1 (not served)")
	mention(t, "models", list, "scorer intents cannot load it: "+lacks, "Next: tidemill models show intent/bot-1 shows why its champion is not served.")
	mention(t, "show", m.ok("models", "show", "intent/bot-1"), "no version answers: scorer intents could not load version 1, at ", lacks)
	mention(t, "status", m.ok("status"), "1 not served", "intent/bot-1@1 is the champion (not served): "+lacks, "tidemill models show intent/bot-1")
	eventually(t, func() bool { return strings.Contains(m.ok("scorers", "intents"), lacks) })
	mention(t, "scorers intents", m.ok("scorers", "intents"), "last error  load intent/bot-1 version 1: "+lacks)
	eventually(t, func() bool {
		return strings.Contains(up.stdout.String(), "scorer intents  cannot load intent/bot-1@1: "+lacks)
	})
	m.fails("bot-1", "its model cannot be loaded: ", lacks)
	tried = f.try(predicted(9, -1))
	mention(t, "try with a scorer", tried.out, "it awaits a person: scorer intents cannot run its model yet: "+lacks, "Scorer intents cannot serve it: ")

	leave(t, strings.Replace(unservedConfig, "engine: onnxruntime", "engine: go", 1)+unservedScorer, f.file)
	eventually(t, func() bool {
		o := m.call("models")
		return o.code == 0 && !strings.Contains(o.out, "(not served)") && strings.Contains(m.ok("scorers", "intents"), "1 event scored")
	})

	if v := m.learnBroken("bot-1", predicted(9, 8)); v.State != tidemill.VersionRefused {
		t.Errorf("a broken one is %+v", v)
	}
	m.ok("promote", "intent/bot-1@2", "--force")
	m.ok("publish", "message", "--subject", "bot-1", "-d", `{"x": 1}`)
	mention(t, "models", m.shows("2 (serving 1)"), "scorer intents cannot load it: ")
	mention(t, "show", m.ok("models", "show", "intent/bot-1"), "version 1 answers: scorer intents could not load version 2, at ", "tidemill rollback intent/bot-1 makes version 1 the champion again")
	mention(t, "status", m.ok("status"), "intent/bot-1@2 is the champion (serving 1): ")
	m.learnBroken("bot-2", predicted(9, -1))
	m.ok("promote", "intent/bot-2@1", "--force")
	eventually(t, func() bool { // the scorer learns of the champion a moment later
		return !strings.Contains(m.call("score", "intents", "--key", "bot-2", "-d", `{"x": 1}`).err, "has no champion")
	})
	m.fails("bot-2", "its model cannot be loaded: ", "no ONNX")
}
