package platform

import (
	"fmt"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
)

const reading = "version: 1\nstreams: {messages: {partitions: 3, types: [message]}}\n" +
	"triggers: {a: {when: {type: [message, tidemill.event.dead-lettered]}, to: {function: f}}}\n"

// A trigger adds a parked stream for its waiting events. The stream stays after the trigger is
// removed, because events may wait on it.
func TestTriggersBringTheirParkedStreams(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Config: config.Default(), Embedded: &embedded.Options{}, OwnStreams: true})
	partitions := func() map[string]int {
		infos, err := p.Broker().Streams(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]int{}
		for _, i := range infos {
			if _, parked := tidemill.CutParked(i.Name); parked {
				all[i.Name] = len(i.Partitions)
			}
		}
		return all
	}
	if got := partitions(); len(got) != 0 {
		t.Errorf("without triggers there are %v", got)
	}
	if err := p.applyConfig(t.Context(), parse(t, reading)); err != nil {
		t.Fatal(err)
	}
	if got := partitions(); len(got) != 2 || got["messages.parked"] != 3 || got["dead-letters.parked"] != 6 {
		t.Errorf("with triggers there are %v", got)
	}
	if c := check(p.Ready(t.Context()), "streams"); c.Status != api.OK || !strings.HasPrefix(c.Detail, "11 as") {
		t.Errorf("with triggers: %+v", c)
	}
	if err := p.applyConfig(t.Context(), parse(t, "version: 1\nstreams: {messages: {partitions: 3}}\n")); err != nil {
		t.Fatal(err)
	}
	report, err := p.Broker().EnsureStreams(t.Context(), p.wantedStreams(p.Config()), broker.EnsureOptions{DryRun: true})
	if err != nil || len(report.Unknown) > 0 || len(partitions()) != 2 {
		t.Errorf("without them again: %+v, %v; %v", report, err, partitions())
	}
}

func TestSpecsOfDeadLettersHaveRoom(t *testing.T) {
	t.Parallel()
	for _, s := range streamSpecs(parse(t, reading)) {
		large := s.Name == "dead-letters" || s.Name == "dead-letters.parked"
		if (s.MaxMessageBytes == deadLetterBytes) != large {
			t.Errorf("%+v", s)
		}
	}
}

// A file that says what was the default before has the same hash. It must be applied nevertheless: the dispatcher's
// log advises to write it.
func TestWhatIsAppliedThoughTheHashIsTheSame(t *testing.T) {
	t.Parallel()
	const trigger = `version: 1
triggers: {a: {when: {type: t}, to: {url: "https://a.example"}%s}}`
	var w configWatcher
	seen := map[string]string{}
	for _, said := range []string{"", ", delivery: {replies: ignore}"} {
		c, err := config.Parse("test.yaml", fmt.Appendf(nil, trigger, said))
		if err != nil {
			t.Fatal(err)
		}
		if first, again := seen[w.revisionOf(c)]; again {
			t.Errorf("%q is not applied after %q", said, first)
		}
		seen[w.revisionOf(c)] = said
	}
}

// A config that cannot be applied is taken back. Then the one before is in force again, and nothing is refused.
func TestAConfigThatIsTakenBack(t *testing.T) {
	t.Parallel()
	p := open(t, Options{Config: config.Default(), Embedded: &embedded.Options{}, OwnStreams: true})
	whole, other := p.Config(), *p.Config()
	other.Name = "other"
	now := &other
	w := configWatcher{p: p, load: func() (*config.Config, error) { return now, nil }, settled: whole.Revision()}
	refusal := func() error {
		for range 2 { // a change is applied when it is read twice
			w.poll(t.Context())
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		return p.refused
	}
	if err := refusal(); err == nil || !strings.Contains(err.Error(), "name changed") {
		t.Fatalf("another name: %v", err)
	}
	now = whole
	if err := refusal(); err != nil {
		t.Errorf("the name before: %v", err)
	}
}
