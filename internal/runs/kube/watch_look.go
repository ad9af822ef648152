package kube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/runs/agent"
)

// Prefixes of the words in the index.
const (
	ofAttempt = "attempt/"
	inJob     = "job/"
)

func wordsOfPod(p *corev1.Pod) []string {
	words := []string{ofAttempt + p.Labels[LabelAttempt]}
	if job := ownerOf(p); job != "" {
		words = append(words, inJob+job)
	}
	return words
}

func wordsOfJob(j *batchv1.Job) []string { return []string{ofAttempt + j.Labels[LabelAttempt]} }

// ownerOf returns the name of the Job that made a pod.
func ownerOf(p *corev1.Pod) string {
	if owner := metav1.GetControllerOf(p); owner != nil && owner.Kind == "Job" {
		return owner.Name
	}
	return ""
}

// trimPod removes the fields that are not read, because those of ten thousand pods would fill the
// memory. It also removes tokens.
func trimPod(p *corev1.Pod) {
	p.ManagedFields = nil
	p.Spec.Volumes, p.Spec.Affinity, p.Spec.Tolerations, p.Spec.InitContainers = nil, nil, nil, nil
	for i := range p.Spec.Containers {
		c := &p.Spec.Containers[i]
		env := slices.DeleteFunc(c.Env, func(v corev1.EnvVar) bool { return v.Name != agent.EnvLinger })
		p.Spec.Containers[i] = corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources, Env: slices.Clip(slices.Clone(env))}
	}
}

func trimJob(j *batchv1.Job) {
	j.ManagedFields = nil
	j.Spec.Template = corev1.PodTemplateSpec{}
}

// attemptViewOf collects the pods and Jobs of an attempt. A reused pod belongs to the Job of its first
// attempt.
func (w *watcher) attemptViewOf(name string) attemptView {
	s := attemptView{pods: w.pods.withWord(ofAttempt + name), jobs: w.jobs.withWord(ofAttempt + name), shared: map[string]bool{}}
	for _, p := range s.pods {
		job, there := w.jobs.get(ownerOf(p))
		if there && !slices.ContainsFunc(s.jobs, func(j *batchv1.Job) bool { return j.Name == job.Name }) {
			s.jobs = append(s.jobs, job)
		}
	}
	for _, job := range s.jobs {
		for _, p := range w.pods.withWord(inJob + job.Name) {
			s.shared[job.Name] = s.shared[job.Name] || p.Labels[LabelAttempt] != name
		}
	}
	slices.SortFunc(s.jobs, func(a, b *batchv1.Job) int { return strings.Compare(a.Name, b.Name) })
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.remember(name)
	s.first, s.stuck, s.trouble, s.said, s.gone = r.first, r.stuck, r.trouble, r.said, slices.Clone(r.gone)
	return s
}

// lookAt checks one attempt, reports its end or state, and removes its Jobs if they are no longer
// needed. After an error the caller tries again.
func (w *watcher) lookAt(ctx context.Context, name string) (again time.Duration, err error) {
	s := w.attemptViewOf(name)
	k, err := w.findRun(ctx, name) // after attemptViewOf, because an agent reports its end before its pod ends
	if err != nil {
		w.forgetBeats(name)
		return 0, err
	}
	if len(s.jobs)+len(s.pods) == 0 && !k.underWay() {
		w.forget(name)
		return 0, nil
	}
	j := conclude(s, k, w.now())
	w.note(name, j)
	if j.end == nil && len(j.doubts) > 0 {
		if j.end, err = w.silentEnd(ctx, name, j.doubts); err != nil {
			return 0, err
		}
		j.again = time.Second
	}
	switch {
	case j.end != nil:
		return w.reportEnd(ctx, name, k, j)
	case j.seen != nil:
		if err := w.reportState(ctx, name, k, *j.seen); err != nil {
			return 0, err
		}
	}
	if j.trouble == troubleRoom {
		err = w.makeRoom(ctx, name, s)
	}
	return j.again, errors.Join(err, w.remove(ctx, name, j))
}

// findRun returns the run in the ledger. While the ledger catches up, it returns an error, because
// the newest runs are missing then.
func (w *watcher) findRun(ctx context.Context, name string) (knownRun, error) {
	id, number, ok := tidemill.CutAttemptName(name)
	if !ok {
		return knownRun{}, nil // not the name of an attempt
	}
	run, err := w.o.Ledger.Run(ctx, id)
	switch {
	case errors.Is(err, ledger.ErrUnknown):
		return knownRun{number: number}, nil
	case err != nil:
		return knownRun{}, err
	}
	return knownRun{run, number}, nil
}

// note stores the attempt's trouble and when it began.
func (w *watcher) note(name string, j judgement) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.remember(name)
	if r.trouble != j.trouble {
		r.trouble, r.stuck = j.trouble, w.now()
	}
}

// reportEnd reports the end of an attempt. The attempt is checked again at once, to remove its
// Jobs.
func (w *watcher) reportEnd(ctx context.Context, name string, k knownRun, j judgement) (time.Duration, error) {
	d := tidemill.RunFinished{Outcome: j.end.outcome, Permanent: j.end.permanent, Reason: j.end.reason, Where: j.where, Result: j.end.result}
	w.log.Warn("kube: an attempt has ended in the cluster; reporting its end", "recipe", k.run.Recipe, "key", k.run.Key, "run", k.run.ID, "reason", j.end.reason)
	if _, err := w.o.Foreman.Finish(ctx, k.run, k.number, d); err != nil {
		return 0, fmt.Errorf("report the end of attempt %s: %w", name, err)
	}
	w.metrics.ends.WithLabelValues(j.end.kind).Inc()
	return time.Nanosecond, nil
}

// silence is the time without a beat after which an agent counts as silent; the foreman uses the
// same time.
const silence = 10 * time.Second

// silentEnd returns the first end whose agent has sent no beat lately; nil if there is none. The first worker's beats count for an
// agent without beats in the ledger: gateways and controllers of earlier versions keep none of other workers and servers.
// If there are no beats at all, a flush of Redis may just have removed them. So the agents have the usual time then too.
func (w *watcher) silentEnd(ctx context.Context, name string, doubts []doubt) (end *ending, err error) {
	agents := []string{name}
	for _, d := range doubts {
		agents = append(agents, d.agent)
	}
	beats, err := w.o.Ledger.BeatsOf(ctx, agents) // not all beats, because a thousand attempts may be in doubt
	if err != nil {
		w.forgetBeats(name)
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	r, now := w.remember(name), w.now()
	for _, d := range doubts {
		agent := d.agent
		if beats[agent].IsZero() {
			agent = name
		}
		if !r.hears(agent, beats[agent], now) && end == nil {
			end = d.end
		}
	}
	return end, nil
}

// forgetBeats lets the silence of an attempt's agents begin again, because no agent can send a beat while the ledger or Redis
// is down.
func (w *watcher) forgetBeats(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remember(name).beats = nil
}

// hears reports whether an agent has sent a beat lately. The time of a beat is that of a gateway, whose clock may
// differ from ours. So the silence begins when the last beat is read here.
func (r *attemptMemory) hears(agent string, beat, now time.Time) bool {
	if r.beats == nil {
		r.beats = map[string]lastBeat{}
	}
	if last, known := r.beats[agent]; !known || !last.at.Equal(beat) {
		r.beats[agent] = lastBeat{beat, now}
	}
	return now.Sub(r.beats[agent].read) < silence
}

// reportState writes the observed state to the log, unless the run has it already.
func (w *watcher) reportState(ctx context.Context, name string, k knownRun, d tidemill.RunSeen) error {
	a := k.attempt()
	if _, news := a.Sighted(d); !news {
		return nil
	}
	if err := w.o.Foreman.Seen(ctx, k.run, k.number, d); err != nil {
		return fmt.Errorf("report the state of attempt %s: %w", name, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.remember(name).said = w.now()
	return nil
}

// dismissEvery is the shortest time before another pod must exit.
const dismissEvery = 5 * time.Second

// makeRoom tells a lingering pod of the same pool to exit, so that this attempt gets its resources.
func (w *watcher) makeRoom(ctx context.Context, name string, s attemptView) error {
	w.mu.Lock()
	r := w.remember(name)
	due := w.now().Sub(r.dismissed) > dismissEvery
	w.mu.Unlock()
	if w.Cluster.o.Warm == nil || !due || len(s.pods) == 0 {
		return nil
	}
	left, err := w.Cluster.o.Warm.Dismiss(ctx, s.pods[0].Labels[LabelPool])
	if err != nil {
		return fmt.Errorf("make room for attempt %s: %w", name, err)
	}
	if left {
		w.mu.Lock()
		r.dismissed = w.now()
		w.mu.Unlock()
	}
	return nil
}

// remove deletes Jobs together with their pods and the objects that they own. Another controller
// may have deleted these objects before.
func (w *watcher) remove(ctx context.Context, name string, j judgement) error {
	background := metav1.DeletePropagationBackground
	var errs []error
	for _, job := range j.remove {
		o := metav1.DeleteOptions{PropagationPolicy: &background, Preconditions: &metav1.Preconditions{UID: &job.UID}}
		err := w.clients.jobs.Delete(ctx, job.Name, o)
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err): // the Job is deleted, or another Job has its name
		case err != nil:
			errs = append(errs, fmt.Errorf("remove Job %s of attempt %s: %w", job.Name, name, err))
		case j.orphan:
			w.metrics.removed.WithLabelValues("orphan").Inc()
			w.log.Info("kube: removed a Job that is no longer needed", "run", job.Labels[LabelRun], "recipe", job.Labels[LabelRecipe])
		default:
			w.metrics.removed.WithLabelValues("finished").Inc()
		}
	}
	return errors.Join(errs...)
}
