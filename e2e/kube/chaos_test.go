//go:build cluster

package kube

import (
	"context"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

const (
	chaosBots = 40
	chaosSeed = 8
)

// Pods of all components are killed at random while events come in.
func TestPodsAreKilledUnderLoad(t *testing.T) {
	w := cluster(t)
	seed := seedOf(t)
	r := rand.New(rand.NewPCG(seed, 0))
	var killed []string
	l := w.publishDuring(t, "chaos", chaosBots, func(ctx context.Context, l *load) error {
		for range chaosBots / 2 {
			for range 2 { // events per kill
				select {
				case <-l.sent:
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			}
			victim, ok := w.victim(r)
			if !ok {
				continue
			}
			if err := w.server.kill(ctx, victim); err != nil {
				return err
			}
			killed = append(killed, victim.Name)
		}
		return nil
	})
	t.Logf("seed %d killed %d pods: %s", seed, len(killed), strings.Join(killed, " "))
	w.judge(t, "chaos", l)
	w.waitAllReady(t)
}

func seedOf(t *testing.T) uint64 {
	text := os.Getenv("TIDEMILL_CHAOS_SEED")
	if text == "" {
		return chaosSeed
	}
	seed, err := strconv.ParseUint(text, 10, 64)
	must(t, err)
	return seed
}

// victim draws a component that has a pod, and then one of its pods. So a scorer or a function dies
// as often as a gateway, although there are more gateways.
func (w *world) victim(r *rand.Rand) (*corev1.Pod, bool) {
	parts := map[string][]*corev1.Pod{}
	for _, p := range w.seen.livePods(isReleasePod) {
		if part := p.Last.Labels[labelComponent]; part != "" {
			parts[part] = append(parts[part], p.Last)
		}
	}
	var names []string
	for name := range parts {
		names = append(names, name)
	}
	if len(names) == 0 {
		return nil, false
	}
	slices.Sort(names)
	pods := parts[names[r.IntN(len(names))]]
	return pods[r.IntN(len(pods))], true
}
