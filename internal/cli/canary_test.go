//go:build slow && unix

package cli

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/broker"
)

const canaryConfig = `version: 1
streams: {messages: {types: [message]}, scored: , truths: {types: [truth]}}
scorers:
  intents: {from: messages, to: scored, model: "intent/{key}", map: {x: data.x}, labels: {from: truths, match: {id: data.message}, truth: data.truth, wait: 1d}}
recipes:
  intent:
    when: [{type: bot-created}]
    inputs: {examples: "bots/{key}"}
    run: {dir: trainer, command: [sh, train.sh], attempts: 1}
    makes: {model: "intent/{key}"}
    gate: [metrics.accuracy >= 0.5]
    trial: {pass: [stream.lead.low > 0, stream.errors == 0], atLeast: 50}
    canary: {share: 30%, by: data.user, hold: 1s, least: 40}
`

// canaryTrainer makes a model whose two inputs are its scores, and takes their labels from the data. All messages here have
// the first label.
const canaryTrainer = modelsTrainer + `cp "$TIDEMILL_IN/examples/model.yaml" "$TIDEMILL_OUT/"
echo CAg6QQoQCgF4EgF5IghJZGVudGl0eRIBZ1oUCgF4Eg8KDQgBEgkKAxIBbgoCCAJiFAoBeRIPCg0IARIJCgMSAW4KAggCQgIQDQ== | base64 -d > "$TIDEMILL_OUT/model.onnx"
`

// canaryAt is an install whose messages, truths and models a test decides.
type canaryAt struct {
	modelsAt
	sent int
}

const users = 40

func userOf(n int) string { return fmt.Sprint("u", n%users) }

func (c *canaryAt) publish(lines []string) {
	c.Helper()
	c.ok("publish", "--file", leave(c.T, strings.Join(lines, "\n")+"\n", c.modelsAt.data, "events.ndjson"))
}

// messages sends more messages, and waits until all have answers.
func (c *canaryAt) messages(n int) (from int) {
	c.Helper()
	from = c.sent
	var lines []string
	for range n {
		lines = append(lines, fmt.Sprintf(`{"specversion":"1.0","type":"message","source":"/shop","id":"m-%d","subject":"bot-1","data":{"x":[1,0],"user":%q}}`, c.sent, userOf(c.sent)))
		c.sent++
	}
	c.publish(lines)
	eventually(c.T, func() bool { return len(c.answers()) == c.sent })
	return from
}

// truths says what all messages from one on were.
func (c *canaryAt) truths(from int, truth string) {
	c.Helper()
	var lines []string
	for n := from; n < c.sent; n++ {
		lines = append(lines, fmt.Sprintf(`{"specversion":"1.0","type":"truth","source":"/shop","id":"t-%d","subject":"bot-1","data":{"message":"m-%d","truth":%q}}`, n, n, truth))
	}
	c.publish(lines)
}

// answers returns the version that has answered each message.
func (c *canaryAt) answers() map[int]string {
	c.Helper()
	all := map[int]string{}
	for line := range strings.Lines(c.ok("tail", "scored", "--from", "beginning", "--no-follow", "-o", "json", "--where", "type = 'tidemill.scored'")) {
		var v broker.View
		if err := broker.UnmarshalStructured([]byte(line), &v); err != nil {
			c.Fatal(err)
		}
		id, _ := v.Attribute(tidemill.AttrCausationID)
		n := 0
		if _, err := fmt.Sscanf(id, "m-%d", &n); err != nil || all[n] != "" {
			c.Fatalf("message %q: %v; its first answer is of version %q", id, err, all[n])
		}
		all[n], _ = v.Attribute(tidemill.AttrModelVersion)
	}
	return all
}

// canary trains the next version, whose answer is always the same label, and waits until it is the canary.
func (c *canaryAt) canary(label, other string, version int) {
	c.Helper()
	c.labels(label, other)
	c.learn("bot-1", predicted(9, 9))
	eventually(c.T, func() bool { m := c.model("intent/bot-1"); return m.Canary != nil && m.Canary.Version == version })
	v := c.model("intent/bot-1").All[0]
	if v.Judgement.Trial == nil || v.Judgement.Trial.Outcome != tidemill.TrialPassed {
		c.Fatalf("it has no trial before it: %+v", v.Judgement)
	}
	mention(c.T, "the canary", c.ok("models", "show", "intent/bot-1@newest"), "passes its trial", "Canary: it has answered 30% of the events", "if it has 40 outcomes by then")
}

// alone sends messages of all users until one version answers all of them. The scorer learns of a change a moment after the
// ledger.
func (c *canaryAt) alone(version string) {
	c.Helper()
	eventually(c.T, func() bool {
		from := c.messages(users)
		all := c.answers()
		for n := from; n < c.sent; n++ {
			if all[n] != version {
				return false
			}
		}
		return true
	})
}

func (c *canaryAt) labels(label, other string) {
	c.Helper()
	c.ok("data", "put", "bots/bot-1", leave(c.T, fmt.Sprintf("labels: [%s, %s]\n", label, other), c.modelsAt.data, "model.yaml"))
}

// joined sends messages until the canary answers one, and returns the number of the next message.
func (c *canaryAt) joined(version string) int {
	c.Helper()
	eventually(c.T, func() bool {
		from := c.messages(20)
		all := c.answers()
		for n := from; n < c.sent; n++ {
			if all[n] == version {
				return true
			}
		}
		return false
	})
	return c.sent
}

// shared checks that the users of the canary, and only they, have its answers.
func (c *canaryAt) shared(from int, champion, canary int) {
	c.Helper()
	all := c.answers()
	for n := from; n < c.sent; n++ {
		want := champion
		if tidemill.CanaryTakes("intent/bot-1", canary, []string{userOf(n)}, 0.3) {
			want = canary
		}
		if all[n] != fmt.Sprint(want) {
			c.Errorf("message %d of %s was answered by version %s, want %d", n, userOf(n), all[n], want)
		}
	}
}

// A version passes its trial, answers the events of a share of the users, also after the process was killed, and its
// outcomes promote it. The next one passes its trial and is then worse: it goes back, once.
func TestFromTrialToCanary(t *testing.T) {
	t.Parallel()
	dir, file := runsFolder(t, canaryConfig)
	leave(t, canaryTrainer, dir, "trainer", "train.sh")
	c := &canaryAt{modelsAt: modelsAt{runsAt{t, filepath.Join(dir, "data")}, t.TempDir()}}
	up := spawnUp(t, c.runsAt.data, "-f", file)
	c.labels("greet", "order")
	if v := c.learn("bot-1", predicted(9, -1)); v.State != tidemill.VersionPromoted {
		t.Fatalf("the first is %s: %+v", v.State, v.Judgement)
	}
	eventually(t, func() bool { return c.call("score", "intents", "--key", "bot-1", "-d", `{"x": [1, 0]}`).code == 0 }) // the scorer knows it
	c.truths(c.messages(100), "order")
	c.canary("order", "greet", 2)
	from := c.joined("2")
	c.messages(100)
	up.kill(t)
	spawnUp(t, c.runsAt.data, "-f", file)
	c.messages(200)
	c.shared(from, 1, 2)
	c.truths(from, "order")
	eventually(t, func() bool { return c.model("intent/bot-1").Champion == 2 })
	mention(t, "its promotion", c.ok("models", "show", "intent/bot-1@2"), "the canary, version 2 of intent/bot-1, passes: its answers are not worse")

	c.alone("2")
	c.truths(c.messages(100), "greet")
	c.canary("greet", "order", 3)
	from = c.joined("3")
	c.messages(200)
	c.shared(from, 2, 3)
	c.truths(from, "order")
	eventually(t, func() bool { m := c.model("intent/bot-1"); return m.Canary == nil })
	m := c.model("intent/bot-1")
	if m.Champion != 2 || m.All[0].State != tidemill.VersionRefused {
		t.Errorf("version 3 is %s, and version %d is the champion", m.All[0].State, m.Champion)
	}
	mention(t, "its refusal", c.ok("models", "show", "intent/bot-1@3"), "the canary, version 3 of intent/bot-1, is refused: its answers are worse")
	facts := c.ok("tail", "facts", "--from", "beginning", "--no-follow", "--where", "type = 'tidemill.model.refused' OR type = 'tidemill.model.promoted' OR type = 'tidemill.model.canary'")
	for what, want := range map[string]int{"tidemill.model.refused": 1, "tidemill.model.promoted": 2, "tidemill.model.canary": 2} {
		if n := strings.Count(facts, what); n != want {
			t.Errorf("%d facts %s, want %d:\n%s", n, what, want, facts)
		}
	}
	c.alone("2")
	n := c.messages(100)
	for ; n < c.sent; n++ {
		if got := c.answers()[n]; got != "2" {
			t.Fatalf("after its end, version %s answers", got)
		}
	}
}
