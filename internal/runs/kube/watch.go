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

// WatchOptions say whom to tell.
type WatchOptions struct {
	Foreman *scheduler.Foreman
	Ledger  *ledger.Ledger
}

const (
	watchers   = 8 // attempts that are looked at at once
	sweepEvery = time.Second
	breath     = 50 * time.Millisecond // between two sweeps, however much happens
	firstRetry = 20 * time.Millisecond
	lastRetry  = 5 * time.Second
)

// Watch tells what becomes of attempts' pods and no agent can tell, and removes
// what is over, until the context ends. Several may watch at once: what one says
// the others find said.
//
// It is a queue of attempts' names. Whatever happens to a Job or a pod puts a name
// on it, and who takes one looks at all there is of the attempt now, here and in
// the ledger. Nothing is told by the event itself, so that a missed one is caught
// up with by the next, and by the sweep.
func (c *Cluster) Watch(ctx context.Context, o WatchOptions) error {
	if o.Foreman == nil || o.Ledger == nil {
		return errors.New("watch the cluster: it needs a foreman and a ledger")
	}
	w := newWatcher(c, o)
	c.view.Store(&view{w.pods, w.jobs})
	ours := metav1.ListOptions{LabelSelector: LabelInstall + "=" + c.o.Names.Install() + "," + LabelAttempt}
	var all sync.WaitGroup
	all.Go(func() { follow(ctx, &c.clients.pods, ours, w.pods, w.outage.note) })
	all.Go(func() { follow(ctx, &c.clients.jobs, ours, w.jobs, w.outage.note) })
	if w.listed(ctx) {
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

// watcher is what Watch works with.
//
// Who owns what: pods and jobs are the reflectors'; the memory of an attempt is
// of whoever has its name from the queue, which gives it to one at a time.
type watcher struct {
	*Cluster
	o      WatchOptions
	pods   *gathered[*corev1.Pod]
	jobs   *gathered[*batchv1.Job]
	queue  workqueue.TypedRateLimitingInterface[string]
	outage outage
	now    func() time.Time

	full [2]chan struct{} // closed once all pods, all Jobs have been listed

	mu     sync.Mutex
	recall map[string]*recalled // by attempt
}

// recalled is what is remembered of an attempt.
type recalled struct {
	first     time.Time
	gone      []*corev1.Pod
	stuck     time.Time
	trouble   trouble
	said      time.Time
	dismissed time.Time
}

func newWatcher(c *Cluster, o WatchOptions) *watcher {
	limits := workqueue.NewTypedItemExponentialFailureRateLimiter[string](firstRetry, lastRetry)
	w := &watcher{Cluster: c, o: o, now: time.Now, recall: map[string]*recalled{},
		queue:  workqueue.NewTypedRateLimitingQueue(limits),
		outage: outage{log: c.log, says: awayWords}, full: [2]chan struct{}{make(chan struct{}), make(chan struct{})}}
	w.pods = gather(wordsOfPod, trimPod, w.podChanged, sync.OnceFunc(func() { close(w.full[0]) }))
	w.jobs = gather(wordsOfJob, trimJob, w.jobChanged, sync.OnceFunc(func() { close(w.full[1]) }))
	return w
}

// listed waits until what there is not is known not to be.
func (w *watcher) listed(ctx context.Context) bool {
	for _, full := range w.full {
		select {
		case <-ctx.Done():
			return false
		case <-full:
		}
	}
	return true
}

// work looks at attempts until the queue is shut down.
func (w *watcher) work(ctx context.Context) {
	for {
		name, shut := w.queue.Get()
		if shut {
			return
		}
		again, err := w.look(ctx, name)
		switch {
		case err != nil && ctx.Err() == nil:
			w.metrics.failures.Inc()
			if w.queue.NumRequeues(name) == loud { // what passes is no news
				w.log.Warn("an attempt in the cluster cannot be dealt with; it is tried again", "run", name, "reason", err)
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

// loud is how often something fails before a person should know.
const loud = 5

// sweeps looks at what no event of the cluster tells of: attempts that count no
// more. It does so whenever the ledger has come on, for a GPU is held until its pod
// has gone, and now and then at all of them.
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
		if is, err := w.over(ctx); err == nil { // nothing is decided while the ledger catches up
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

// over are the attempts that there is something of and that are under way no
// more.
func (w *watcher) over(ctx context.Context) (map[string]bool, error) {
	underWay, err := w.o.Ledger.UnderWay(ctx)
	if err != nil {
		return nil, err
	}
	all := w.named()
	maps.DeleteFunc(all, func(name string, _ bool) bool { return underWay[name] })
	return all, nil
}

// named are the attempts that there is anything of.
func (w *watcher) named() map[string]bool {
	all := map[string]bool{}
	w.pods.each(func(p *corev1.Pod) { all[p.Labels[LabelAttempt]] = true })
	w.jobs.each(func(j *batchv1.Job) { all[j.Labels[LabelAttempt]] = true })
	return all
}

// podChanged also remembers a pod that has gone: that it has says nothing of why.
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

// remember is the memory of an attempt; w.mu is held.
func (w *watcher) remember(name string) *recalled {
	r := w.recall[name]
	if r == nil {
		r = &recalled{first: w.now()}
		w.recall[name] = r
	}
	return r
}

func (w *watcher) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.recall, name)
}

// awayWords are of the API server.
const awayWords = "the API server does not answer; it is asked again"

// outage says that somebody does not answer, and not at each try.
type outage struct {
	log  *slog.Logger
	says string
	mu   sync.Mutex
	last time.Time
}

// quietFor is how long the same trouble is not told again.
const quietFor = time.Minute

func (o *outage) note(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if now := time.Now(); now.Sub(o.last) > quietFor {
		o.last = now
		o.log.Warn(o.says, "reason", err)
	}
}
