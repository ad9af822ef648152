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

// A scorer without a replica gets one when something comes, through outages of
// Kafka and of the API server, whoever else scales it.
func TestAScorerWakesAndSleeps(t *testing.T) {
	s := startAPIServer(t)
	s.put("Deployment", "/apis/apps/v1/deployments", &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "prod-scorer-intents",
		Labels: map[string]string{LabelInstall: "tidemill", LabelScorer: "intents"}}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(0))}})
	s.put("Deployment", "/apis/apps/v1/deployments", &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "another", Labels: map[string]string{LabelInstall: "tidemill"}},
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
	s.soon("one wakes", func() bool { return s.replicas() == 1 })
	behind.Store(25)
	s.soon("more come", func() bool { return s.replicas() == 3 })
	behind.Store(-1)
	s.soon("Kafka was asked again", func() bool { return s.replicas() == 3 })
	s.mu.Lock()
	s.refuse = func(*http.Request) int { return http.StatusServiceUnavailable }
	s.mu.Unlock()
	s.hangUp()
	behind.Store(0)
	s.mu.Lock()
	s.refuse = nil
	s.mu.Unlock()
	s.soon("all go", func() bool { return s.replicas() == 0 })
	if s.has("/apis/apps/v1/namespaces/ml/deployments/another") && s.changes("another") > 0 {
		t.Error("a Deployment that is no scorer's was scaled")
	}
}

// changes is how often somebody changed an object.
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
