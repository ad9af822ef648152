package kube

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
)

const (
	// lookEvery is the interval at which the lags of all scorers are read. The first event for a
	// scorer without replicas waits at most this long until the scaler sees it.
	lookEvery = 400 * time.Millisecond
	lagFor    = 5 * time.Second // timeout of reading the lags
)

// Scale sets the replicas of each scorer's Deployment according to its lag, until the context ends.
// Several processes may do so at once, because they see the same lags and set an absolute number.
func (c *Cluster) Scale(ctx context.Context, lag func(ctx context.Context, scorer config.Scorer) (Lag, error)) error {
	s := &scaler{Cluster: c, lag: lag, tides: map[string]lagMemory{}, outage: outage{log: c.log, says: "kube: reading the lag of a scorer failed; its replicas stay"},
		away: outage{log: c.log, says: serverDown}}
	nothing := func(_, _ *appsv1.Deployment) {}
	listed := make(chan struct{})
	s.deployments = gather(wordsOfDeployment, trimDeployment, nothing, sync.OnceFunc(func() { close(listed) }))
	ours := metav1.ListOptions{LabelSelector: LabelInstall + "=" + c.o.Names.Install() + "," + LabelScorer}
	var following sync.WaitGroup
	following.Go(func() { followKind(ctx, &c.clients.deployments, ours, s.deployments, s.away.note) })
	defer following.Wait()
	select {
	case <-ctx.Done():
		return nil
	case <-listed:
	}
	for ctx.Err() == nil {
		s.scaleAll(ctx)
		_ = retry.Sleep(ctx, lookEvery)
	}
	return nil
}

// scaler is the state of Scale.
type scaler struct {
	*Cluster
	lag          func(context.Context, config.Scorer) (Lag, error)
	deployments  *objectIndex[*appsv1.Deployment]
	outage, away outage
	tides        map[string]lagMemory // by scorer; used only by scaleAll
}

func wordsOfDeployment(d *appsv1.Deployment) []string { return []string{d.Labels[LabelScorer]} }

func trimDeployment(d *appsv1.Deployment) {
	d.ManagedFields, d.Spec.Template = nil, corev1.PodTemplateSpec{}
}

// scorerLag holds the Deployment and the lag of one scorer.
type scorerLag struct {
	scorer     config.Scorer
	deployment *appsv1.Deployment
	lag        Lag
	err        error
}

// scaleAll reads the lags of all scorers in parallel, and then sets their replicas.
func (s *scaler) scaleAll(ctx context.Context) {
	looks := s.readLags(ctx)
	there := make(map[string]lagMemory, len(looks))
	for i := range looks {
		l := &looks[i]
		name := l.scorer.Name
		if l.err != nil {
			s.outage.note(fmt.Errorf("ask how far scorer %s is: %w", name, l.err))
			there[name] = s.tides[name]
			continue
		}
		have := replicasOf(l.deployment)
		n, t := planReplicas(s.tides[name], l.lag, have, l.scorer.Replicas, time.Now())
		s.metrics.replicas.WithLabelValues(name).Set(float64(n))
		if n != have {
			if err := s.setReplicas(ctx, name, l.deployment, have, n, l.lag); err != nil {
				s.away.note(err)
			}
		}
		there[name] = t
	}
	s.tides = there
}

// readLags reads the lags of all scorers that have a Deployment.
func (s *scaler) readLags(ctx context.Context) (all []scorerLag) {
	for _, scorer := range s.o.Config().Scorers {
		of := s.deployments.withWord(scorer.Name)
		if len(of) == 0 { // the scorer has no Deployment here
			continue
		}
		slices.SortFunc(of, func(a, b *appsv1.Deployment) int { return strings.Compare(a.Name, b.Name) })
		all = append(all, scorerLag{scorer: scorer, deployment: of[0]})
	}
	ctx, cancel := context.WithTimeout(ctx, lagFor)
	defer cancel()
	var asking sync.WaitGroup
	for i := range all {
		asking.Go(func() { all[i].lag, all[i].err = s.lag(ctx, all[i].scorer) })
	}
	asking.Wait()
	return all
}

func replicasOf(d *appsv1.Deployment) int {
	if d.Spec.Replicas == nil {
		return 1 // the API server's default
	}
	return int(*d.Spec.Replicas)
}

// setReplicas changes the replicas through the scale subresource, because the right to use it does not
// allow changes of the pods.
func (s *scaler) setReplicas(ctx context.Context, scorer string, d *appsv1.Deployment, have, n int, l Lag) error {
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"replicas": n}})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, callFor)
	defer cancel()
	err = s.clients.apps.Patch(types.MergePatchType).Namespace(s.namespace).Resource("deployments").Name(d.Name).SubResource("scale").Body(patch).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("scale Deployment %s of scorer %s from %d to %d replicas: %w", d.Name, scorer, have, n, err)
	}
	direction := "up"
	if n < have {
		direction = "down"
	}
	s.metrics.scalings.WithLabelValues(direction, scorer).Inc()
	s.log.Info("kube: scaled a scorer", "scorer", scorer, "from", have, "to", n, "events", l.Behind)
	return nil
}

// Lag describes the work that waits for a scorer.
type Lag struct {
	Behind     int64     // number of events that its group has not read
	Newest     time.Time // time at which its stream was last seen to grow
	Partitions int       // number of its stream's partitions; 0 if not known
	// Held reports that events are parked until their models exist. Parked events alone need no
	// replica, because a model that never comes would keep a replica for ever. If Models has
	// changed too, one of these models may exist now.
	Held   bool
	Models int64 // changes with each change of a champion
}

const (
	// calm is the time for which fewer replicas must be enough before a replica is removed.
	calm = 30 * time.Second
	// calmest is the upper limit of this time for a scorer that needs removed replicas again.
	calmest = 10 * time.Minute
)

// lagMemory is the state of a scorer between two rounds. It depends only on the observed
// Deployment, not on this process's own changes, so changes by other processes count too.
type lagMemory struct {
	have   int       // replicas in the last round
	busy   time.Time // last time at which the scorer had work
	low    time.Time // time since which fewer replicas would be enough; zero if all are needed
	fell   time.Time // time of the last removal of a replica
	calm   time.Duration
	models int64
	known  bool // whether this is not the first round
}

// planReplicas returns the number of replicas that a scorer should have, and the new lagMemory. It
// scales up at once to the number that the lag needs, because events wait. It scales down by one
// replica, and only when fewer replicas have been enough for a while, because the many replicas may
// be the reason for the low lag. If a removed replica is needed again, the next removal waits
// longer, so that the number does not oscillate. Without events for r.Idle, it scales to r.Min.
func planReplicas(t lagMemory, l Lag, have int, r config.Replicas, now time.Time) (int, lagMemory) {
	t = t.update(l, have, now)
	n := wantedReplicas(l, r)
	woken := l.Held && (!t.known || l.Models != t.models)
	t.models, t.known = l.Models, true
	if n > 0 || woken {
		t.busy = now
	}
	switch {
	case woken && have == 0:
		n = max(n, 1)
	case have == 0, now.Sub(t.busy) >= r.Idle:
	default:
		n = max(n, 1)
	}
	n = max(n, r.Min)
	if n >= have || n == r.Min && now.Sub(t.busy) >= r.Idle {
		t.low = time.Time{}
		return n, t
	}
	if t.low.IsZero() {
		t.low = now
	}
	if now.Sub(t.low) < t.calm {
		return have, t
	}
	t.low = time.Time{}
	return have - 1, t
}

// update updates the memory with the changes since the last round.
func (t lagMemory) update(l Lag, have int, now time.Time) lagMemory {
	if !t.known {
		t.have, t.calm, t.busy = have, calm, now
	}
	if l.Newest.After(t.busy) {
		t.busy = l.Newest
	}
	switch {
	case have < t.have:
		t.fell, t.low = now, time.Time{}
	case have > t.have && !t.fell.IsZero() && now.Sub(t.fell) < 2*t.calm: // the removed replica is needed again
		t.calm = min(2*t.calm, calmest)
	case have > t.have:
		t.calm = calm
	}
	t.have = have
	return t
}

// wantedReplicas returns the number of replicas that the lag needs.
func wantedReplicas(l Lag, r config.Replicas) int {
	if l.Behind <= 0 {
		return 0
	}
	each := max(r.Lag, 1)
	n := int(min((l.Behind+each-1)/each, 1<<20))
	if l.Partitions > 0 {
		n = min(n, l.Partitions)
	}
	return min(n, max(r.Max, 1))
}
