package gateway

import (
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"tidemill.dev/broker"
)

// An event in doubt reports how long the gateway waited for Kafka, whatever ended the wait.
func TestInDoubtSaysHowLong(t *testing.T) {
	t.Parallel()
	const soon = 10 * time.Second // time limit of a producer, or of a closing gateway
	for says, end := range map[string]func(p *eventPost, over chan struct{}){
		"within 30s": func(*eventPost, chan struct{}) {},
		"within 10s;": func(p *eventPost, _ chan struct{}) {
			time.AfterFunc(soon, func() { p.items[0].tell(broker.Receipt{}, broker.ErrInDoubt) })
		},
		"within 10s": func(_ *eventPost, over chan struct{}) { time.AfterFunc(soon, func() { close(over) }) },
	} {
		synctest.Test(t, func(t *testing.T) {
			over, p := make(chan struct{}), newPost()
			i := p.addItem(&Gateway{opt: Options{Limits: Limits{}.withDefaults()}, log: slog.New(slog.DiscardHandler)})
			i.to = &publishTarget{streamState: &streamState{failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "failed"})}}
			p.expectEvents(1, time.Now())
			end(p, over)
			p.waitForOutcomes(30*time.Second, over)
			if problem, _ := i.eventOutcome(); problem == nil || !strings.Contains(problem.Detail, says) {
				t.Errorf("%+v, want %q", problem, says)
			}
		})
	}
}
