package kube

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev/config"
)

const scorerPath = "/apis/apps/v1/namespaces/ml/deployments/prod-scorer-intents"

func (s *apiServer) replicas() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	spec, _ := s.objects[scorerPath].Object["spec"].(map[string]any)
	switch n := spec["replicas"].(type) {
	case int64:
		return n
	case float64:
		return int64(n)
	}
	return -1
}

// A scorer without a replica gets one when an event comes. Outages of Kafka and of the API server
// do not prevent later changes.
func TestAScorerWakesAndSleeps(t *testing.T) {
	s := startAPIServer(t)
	s.putObject("Deployment", "/apis/apps/v1/deployments", &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "prod-scorer-intents",
		Labels: map[string]string{LabelInstall: "tidemill", LabelScorer: "intents"}}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(0))}})
	s.putObject("Deployment", "/apis/apps/v1/deployments", &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "another", Labels: map[string]string{LabelInstall: "tidemill"}},
		Spec: appsv1.DeploymentSpec{Replicas: new(int32(3))}})
	c := &config.Config{Scorers: []config.Scorer{{Name: "intents", Replicas: config.Replicas{Max: 3, Lag: 10, Idle: time.Millisecond}}, {Name: "elsewhere"}}}
	cluster := s.open(func(o *Options) {
		o.Config, o.Logger, o.Registerer = func() *config.Config { return c }, slog.New(slog.DiscardHandler), prometheus.NewRegistry()
	})
	var behind atomic.Int64
	ctx, stop := context.WithCancel(context.Background())
	var done sync.WaitGroup
	done.Go(func() {
		if err := cluster.Scale(ctx, func(_ context.Context, scorer config.Scorer) (Lag, error) {
			if scorer.Name != "intents" {
				t.Errorf("it asks for scorer %s", scorer.Name)
			}
			if behind.Load() < 0 {
				return Lag{}, errors.New("no Kafka")
			}
			return Lag{Behind: behind.Load()}, nil
		}); err != nil {
			t.Error(err)
		}
	})
	defer func() { stop(); done.Wait() }()
	behind.Store(1)
	s.waitUntil("one wakes", func() bool { return s.replicas() == 1 })
	behind.Store(25)
	s.waitUntil("more come", func() bool { return s.replicas() == 3 })
	behind.Store(-1)
	s.waitUntil("Kafka was asked again", func() bool { return s.replicas() == 3 })
	s.mu.Lock()
	s.refuse = func(*http.Request) int { return http.StatusServiceUnavailable }
	s.mu.Unlock()
	s.hangUp()
	behind.Store(0)
	s.mu.Lock()
	s.refuse = nil
	s.mu.Unlock()
	s.waitUntil("all go", func() bool { return s.replicas() == 0 })
	if s.hasObject("/apis/apps/v1/namespaces/ml/deployments/another") && s.changes("another") > 0 {
		t.Error("a Deployment that is no scorer's was scaled")
	}
}

// changes returns how often an object was scaled.
func (s *apiServer) changes(name string) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, call := range s.calls {
		if call == "PATCH /apis/apps/v1/namespaces/ml/deployments/"+name+"/scale" {
			n++
		}
	}
	return n
}

var modest = config.Replicas{Min: 0, Max: 4, Lag: 1000, Idle: time.Minute} // read only

func TestHowManyReplicasALagAsksFor(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	quiet := lagMemory{have: 1, busy: now.Add(-2 * time.Minute), calm: calm, known: true, models: 7}
	recent := quiet
	recent.busy = now.Add(-time.Second)
	at := func(t lagMemory, have int) lagMemory { t.have = have; return t }
	for name, c := range map[string]struct {
		t    lagMemory
		l    Lag
		have int
		r    config.Replicas
		want int
	}{
		"nothing to do":                          {at(quiet, 0), Lag{}, 0, modest, 0},
		"one event wakes one":                    {at(quiet, 0), Lag{Behind: 1}, 0, modest, 1},
		"many events wake many at once":          {at(quiet, 0), Lag{Behind: 2500}, 0, modest, 3},
		"no more than may be":                    {at(quiet, 0), Lag{Behind: 1e9}, 0, modest, 4},
		"no more than there are partitions":      {at(quiet, 0), Lag{Behind: 1e9, Partitions: 2}, 0, modest, 2},
		"up quickly":                             {recent, Lag{Behind: 3001}, 1, modest, 4},
		"no lag, and events a moment ago":        {recent, Lag{}, 1, modest, 1},
		"no lag, and no events for long":         {quiet, Lag{}, 1, modest, 0},
		"all go that may":                        {at(quiet, 4), Lag{}, 4, modest, 0},
		"no fewer than must be":                  {at(quiet, 4), Lag{}, 4, config.Replicas{Min: 2, Max: 4, Lag: 10, Idle: time.Minute}, 2},
		"a floor is filled":                      {at(quiet, 0), Lag{}, 0, config.Replicas{Min: 2, Max: 4, Lag: 10, Idle: time.Minute}, 2},
		"the stream grew, and all is scored":     {quiet, Lag{Newest: now.Add(-time.Second)}, 1, modest, 1},
		"fewer would do, but not for long yet":   {at(recent, 3), Lag{Behind: 1}, 3, modest, 3},
		"held, and no model came":                {at(quiet, 0), Lag{Held: true, Models: 7}, 0, modest, 0},
		"held, and a model came":                 {at(quiet, 0), Lag{Held: true, Models: 8}, 0, modest, 1},
		"a model came, and nothing is held":      {at(quiet, 0), Lag{Models: 8}, 0, modest, 0},
		"held, and it is not known since when":   {lagMemory{}, Lag{Held: true, Models: 8}, 0, modest, 1},
		"a controller that has just begun waits": {lagMemory{}, Lag{}, 2, modest, 2},
		"a config without bounds":                {at(quiet, 0), Lag{Behind: 5}, 0, config.Replicas{}, 1},
	} {
		if got, _ := planReplicas(c.t, c.l, c.have, c.r, now); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}

// Four hours with more than two hours of load, with a round every half second: replicas are added
// at once, and their number does not go up and down.
func TestScalingDoesNotFlap(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 11, 22, 3, 0, 0, 0, time.UTC)
	var state lagMemory
	have, ups, downs := 0, 0, 0
	var behind, each float64 = 0, 900 // each is the number of events that one replica scores per second
	for second := range 4 * 3600 {
		rate := 0.0 // events per second
		if second >= 600 && second < 3*3600 {
			rate = 1500 // needs two replicas
		}
		for range 2 {
			now = now.Add(500 * time.Millisecond)
			behind = max(0, behind+rate/2-each*float64(have)/2)
			l := Lag{Behind: int64(behind)}
			if rate > 0 {
				l.Newest = now
			}
			n, next := planReplicas(state, l, have, modest, now)
			if n > have {
				ups++
			} else if n < have {
				downs++
			}
			have, state = n, next
		}
		if second == 601 && have == 0 || second == 3*3600+120 && have > 0 {
			t.Errorf("after %d s there are %d replicas", second, have)
		}
	}
	if ups > 25 || downs > 25 {
		t.Errorf("in four hours it went up %d times and down %d times", ups, downs)
	}
}
