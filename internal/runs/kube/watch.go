package kube

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"sync"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/workqueue"

	"tidemill.dev/broker/retry"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/runs/scheduler"
)

// WatchOptions holds the ledger that Watch reads, and the foreman to which Watch reports.
type WatchOptions struct {
	Foreman *scheduler.Foreman
	Ledger  *ledger.Ledger
}

const (
	watchers   = 8 // number of attempts that are checked in parallel
	sweepEvery = time.Second
	breath     = 50 * time.Millisecond // shortest pause between two sweeps
	firstRetry = 20 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Watch reports states and ends of attempts' pods that no agent can report, and removes the Jobs of
// ended attempts, until the context ends. Several controllers may run Watch at once, because each
// finds the others' reports in the ledger. Watch has a queue of attempts' names. Each event of a
// Job or a pod adds a name. A worker takes a name and reads the attempt's present state from the
// cluster and the ledger. The event itself carries no information. So if an event is missed, the
// next event or the sweep queues the attempt.
func (c *Cluster) Watch(ctx context.Context, o WatchOptions) error {
	if o.Foreman == nil || o.Ledger == nil {
		return errors.New("watch the cluster: it needs a foreman and a ledger")
	}
	w := newWatcher(c, o)
	c.view.Store(&view{w.pods, w.jobs})
	ours := metav1.ListOptions{LabelSelector: LabelInstall + "=" + c.o.Names.Install() + "," + LabelAttempt}
	var all sync.WaitGroup
	all.Go(func() { followKind(ctx, &c.clients.pods, ours, w.pods, w.outage.note) })
	all.Go(func() { followKind(ctx, &c.clients.jobs, ours, w.jobs, w.outage.note) })
	if w.waitListed(ctx) {
		for range watchers {
			all.Go(func() { w.work(ctx) })
		}
		all.Go(func() { w.sweeps(ctx) })
	}
	<-ctx.Done()
	w.queue.ShutDown()
	all.Wait()
	return nil
}

// watcher is the state of Watch. The reflectors own the fields pods and jobs. The worker that took
// an attempt's name from the queue owns its attemptMemory; a name has one worker at a time.
type watcher struct {
	*Cluster
	o      WatchOptions
	pods   *objectIndex[*corev1.Pod]
	jobs   *objectIndex[*batchv1.Job]
	queue  workqueue.TypedRateLimitingInterface[string]
	outage outage
	now    func() time.Time

	full [2]chan struct{} // closed once all pods, and all Jobs, have been listed

	mu     sync.Mutex
	recall map[string]*attemptMemory // by attempt
}

// attemptMemory is the watcher's state of an attempt between two calls of lookAt.
type attemptMemory struct {
	first     time.Time
	gone      []*corev1.Pod
	stuck     time.Time
	trouble   trouble
	said      time.Time
	dismissed time.Time
	beats     map[string]lastBeat // by the name in the ledger, of agents whose nodes did not answer
}

// lastBeat is the last beat of an agent.
type lastBeat struct {
	at   time.Time // by a gateway's clock; zero if the ledger has none
	read time.Time // when it was read first
}

func newWatcher(c *Cluster, o WatchOptions) *watcher {
	limits := workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)
	w := &watcher{Cluster: c, o: o, now: time.Now, recall: map[string]*attemptMemory{},
		queue:  workqueue.NewTypedRateLimitingQueue(limits),
		outage: outage{log: c.log, says: serverDown}, full: [2]chan struct{}{make(chan struct{}), make(chan struct{})}}
	w.pods = gather(wordsOfPod, trimPod, w.podChanged, sync.OnceFunc(func() { close(w.full[0]) }))
	w.jobs = gather(wordsOfJob, trimJob, w.jobChanged, sync.OnceFunc(func() { close(w.full[1]) }))
	return w
}

// waitListed waits until all pods and Jobs have been listed.
func (w *watcher) waitListed(ctx context.Context) bool {
	for _, full := range w.full {
		select {
		case <-ctx.Done():
			return false
		case <-full:
		}
	}
	return true
}

// work calls lookAt for queued attempts until the queue is shut down.
func (w *watcher) work(ctx context.Context) {
	for {
		name, shut := w.queue.Get()
		if shut {
			return
		}
		again, err := w.lookAt(ctx, name)
		switch {
		case err != nil && ctx.Err() == nil:
			w.metrics.failures.Inc()
			if w.queue.NumRequeues(name) == loggedFailures { // short failures are not logged
				w.log.Warn("kube: checking an attempt failed; retrying", "run", name, "reason", err)
			}
			w.queue.AddRateLimited(name)
		default:
			w.queue.Forget(name)
			if again > 0 {
				w.queue.AddAfter(name, again)
			}
		}
		w.queue.Done(name)
	}
}

// loggedFailures is the number of failures in a row at which the failure is logged.
const loggedFailures = 5

// sweeps queues attempts that have ended in the ledger, for which the cluster sends no event. It
// queues newly ended attempts whenever the ledger changes, because a pod holds its GPU until it is
// removed. Every sweepEvery it queues all ended attempts.
func (w *watcher) sweeps(ctx context.Context) {
	var (
		over map[string]bool
		last time.Time
	)
	for ctx.Err() == nil {
		changed, known := w.o.Ledger.Changed(), over
		if now := w.now(); now.Sub(last) >= sweepEvery {
			last, known = now, nil
		}
		if is, err := w.endedAttempts(ctx); err == nil { // the ledger answers an error while it catches up
			over = is
			for name := range over {
				if !known[name] {
					w.queue.Add(name)
				}
			}
		}
		if retry.Sleep(ctx, breath) == nil {
			_ = retry.Wait(ctx, changed, sweepEvery-breath)
		}
	}
}

// endedAttempts returns the attempts that have pods or Jobs and are not under way.
func (w *watcher) endedAttempts(ctx context.Context) (map[string]bool, error) {
	underWay, err := w.o.Ledger.UnderWay(ctx)
	if err != nil {
		return nil, err
	}
	all := w.attemptNames()
	maps.DeleteFunc(all, func(name string, _ bool) bool { return underWay[name] })
	return all, nil
}

// attemptNames returns the attempts that have pods or Jobs.
func (w *watcher) attemptNames() map[string]bool {
	all := map[string]bool{}
	w.pods.forEach(func(p *corev1.Pod) { all[p.Labels[LabelAttempt]] = true })
	w.jobs.forEach(func(j *batchv1.Job) { all[j.Labels[LabelAttempt]] = true })
	return all
}

// podChanged also keeps the last state of a deleted pod, which may show why it was deleted.
func (w *watcher) podChanged(was, is *corev1.Pod) {
	if is == nil {
		w.mu.Lock()
		r := w.remember(was.Labels[LabelAttempt])
		r.gone = append(r.gone, was)
		w.mu.Unlock()
	}
	for _, p := range []*corev1.Pod{was, is} {
		if p != nil {
			w.queue.Add(p.Labels[LabelAttempt])
		}
	}
}

func (w *watcher) jobChanged(was, is *batchv1.Job) {
	for _, j := range []*batchv1.Job{was, is} {
		if j != nil {
			w.queue.Add(j.Labels[LabelAttempt])
		}
	}
}

// remember returns the attemptMemory of an attempt; w.mu is held.
func (w *watcher) remember(name string) *attemptMemory {
	r := w.recall[name]
	if r == nil {
		r = &attemptMemory{first: w.now()}
		w.recall[name] = r
	}
	return r
}

func (w *watcher) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.recall, name)
}

// serverDown is the log message of an outage of the API server.
const serverDown = "a call to the API server failed; retrying"

// outage logs that a server does not answer, but not after each call.
type outage struct {
	log  *slog.Logger
	says string
	mu   sync.Mutex
	last time.Time
}

// quietFor is the shortest time between two messages of an outage.
const quietFor = time.Minute

func (o *outage) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.Sub(o.last) > quietFor {
		o.last = now
		o.log.Warn(o.says, "reason", err)
	}
}
