package runs

import (
	"encoding/json"
	"strings"
	"testing"

	"tidemill.dev"
)

// An event may name a commit as it likes: what can be none ends the run, and is
// not looked for again and again.
func TestACommitThatCanBeNoneEndsTheRun(t *testing.T) {
	r := plain("intent")
	r.Inputs = trainer().Inputs
	r.Inputs[0].AtCause = true
	w := newWorld(t, r)
	f := w.foreman(nil)
	for i, commit := range []string{"../../x", "a b", strings.Repeat("c", 1000)} {
		ask := wish("intent", "bot-42", string(rune('1'+i)))
		event, err := json.Marshal(map[string]string{"specversion": "1.0", "id": ask.Cause.ID, "source": ask.Cause.Source, "type": "new-data", "subject": "bot-42", "dataset": "bots/bot-42", "commit": commit})
		w.must(err)
		ask.Events = []json.RawMessage{event}
		if run := w.until(f, w.ask(f, ask).Run, tidemill.RunFailed); !strings.Contains(run.Reason, "the input examples cannot be told") {
			t.Errorf("%q: %s", commit, run.Reason)
		}
	}
}
