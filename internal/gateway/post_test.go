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
	for says, end := range map[string]func(p *post, over chan struct{}){
		"within 30s": func(*post, chan struct{}) {},
		"within 10s;": func(p *post, _ chan struct{}) {
			time.AfterFunc(soon, func() { p.items[0].tell(broker.Receipt{}, broker.ErrInDoubt) })
		},
		"within 10s": func(_ *post, over chan struct{}) { time.AfterFunc(soon, func() { close(over) }) },
	} {
		synctest.Test(t, func(t *testing.T) {
			over, p := make(chan struct{}), newPost()
			i := p.add(&Gateway{opt: Options{Limits: Limits{}.withDefaults()}, log: slog.New(slog.DiscardHandler)})
			i.to = &target{outlet: &outlet{failed: prometheus.NewCounter(prometheus.CounterOpts{Name: "failed"})}}
			p.expect(1, time.Now())
			end(p, over)
			p.wait(30*time.Second, over)
			if problem, _ := i.outcome(); problem == nil || !strings.Contains(problem.Detail, says) {
				t.Errorf("%+v, want %q", problem, says)
			}
		})
	}
}
