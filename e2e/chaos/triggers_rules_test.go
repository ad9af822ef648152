package chaos

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"tidemill.dev/config"
)

// The attributes of the events.
const (
	typeEvent  = "chaos.event"
	typeReply  = "chaos.reply"
	sourceHere = "/chaos"
	sourceSink = "/chaos/sink"
	extOdd     = "odd" // whether the event's number is odd
	extReplyTo = "replyto"
)

// rule is a trigger in the judge's view.
type rule struct {
	name    string
	ordered bool
	odd     bool // the rule matches only events with odd numbers
	replies bool
	yields  bool // the trigger gives up after few attempts, so a dead letter is an end too
	dead    bool // the subscriber does not answer at first
}

// rules are the triggers of every round. Two have a subscriber that is alive and moody. Two have a
// dead subscriber: none of their events may be lost, and they may delay no other trigger.
var rules = []rule{
	{name: "keyed", ordered: true, replies: true},
	{name: "loose", odd: true},
	{name: "refused", ordered: true, yields: true, dead: true},
	{name: "hanging", ordered: true, dead: true},
}

func ruleOf(name string) (rule, bool) {
	for _, r := range rules {
		if r.name == name {
			return r, true
		}
	}
	return rule{}, false
}

// matches reports whether an event matches.
func (r rule) matches(id string) bool { return !r.odd || numberOf(id)%2 == 1 }

func eventID(n int) string { return fmt.Sprintf("e.%d", n) }

// numberOf returns an event's number, or -1 if the event is not from this test.
func numberOf(id string) int64 {
	n, ok := strings.CutPrefix(id, "e.")
	if !ok {
		return -1
	}
	return parseNumber(n)
}

const configFile = "tidemill.yaml"

// triggersConfig returns the dispatchers' config. Its waits are short, so that a round is short.
// While their subscriber is dead, only the trigger refused gives up.
func triggersConfig(sink, refused string, timeout time.Duration) string {
	return fmt.Sprintf(`version: 1
name: chaos
streams:
  in: {partitions: %[1]d, retention: 1d, types: [%[2]s]}
  out: {partitions: %[1]d, retention: 1d, types: [%[3]s]}
triggers:
  keyed:
    when: {type: %[2]s}
    to: {url: "http://%[4]s/keyed"}
    delivery: {attempts: 100, backoff: {kind: exponential, first: 20ms, cap: 400ms, jitter: true}, timeout: %[6]s, order: key, concurrency: 64, replies: {types: [%[3]s]}}
  loose:
    when: {type: %[2]s, where: "%[7]s = 'true'"}
    to: {url: "http://%[4]s/loose"}
    delivery: {attempts: 100, backoff: {kind: constant, first: 50ms}, timeout: 10s, order: none, concurrency: 64}
  refused:
    when: {type: %[2]s}
    to: {url: "http://%[5]s/refused"}
    delivery: {attempts: 4, backoff: {kind: exponential, first: 200ms, cap: 2s}, timeout: 1s, order: key, concurrency: 16}
  hanging:
    when: {stream: in}
    to: {url: "http://%[4]s/hanging"}
    delivery: {attempts: 1000, backoff: {kind: linear, first: 100ms, cap: 1s, jitter: true}, timeout: 500ms, order: key, concurrency: 16}
`, partitions, typeEvent, typeReply, sink, refused, timeout, extOdd)
}

func TestTheTriggersConfigParses(t *testing.T) {
	c, err := config.Parse(configFile, []byte(triggersConfig("127.0.0.1:1", "127.0.0.1:2", time.Second)))
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		given, ok := c.Trigger(r.name)
		if streams := c.StreamsOf(given); !ok || given.Delivery.Ordered != r.ordered || len(streams) != 1 || streams[0] != streamIn {
			t.Errorf("%s: %+v", r.name, given)
		}
	}
	if len(c.Triggers) != len(rules) || c.StreamFor(typeReply) != streamOut {
		t.Errorf("%+v", c.Triggers)
	}
}
