package platform

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"

	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/ops/lease"
)

// observerTask is a part of the observer's work. Of all observers, one does it at a time.
type observerTask struct {
	name   string                      // name in logs and of the lease, such as outcomes.frauds
	config any                         // a change of it starts the task again
	run    func(context.Context) error // works until its context ends; its fence is a broker.Exclusive
}

// observerTasks returns the tasks that a config asks for.
func (p *Platform) observerTasks(c *config.Config) []observerTask {
	return slices.Concat(p.outcomeTasks(c), p.measureTasks(c), p.driftTasks(c), p.trialTasks(c))
}

// Observer opens the observer, which reads the streams of answers. Any number of processes may have one;
// each task runs in one of them. Without a task it does nothing and costs nothing. The stop order closes
// it. The platform must have been opened with Telemetry.
func (p *Platform) Observer(ctx context.Context) error {
	if p.telemetry == nil {
		return errors.New("open the observer: the platform was opened without telemetry")
	}
	o := &observer{p: p, all: map[string]*runningTask{}}
	p.AtStop(Consumers, "the observer", o.close)
	return p.addComponent(ctx, component{name: "the observer", apply: o.apply, check: o.check})
}

// observer holds the tasks that this process may do.
type observer struct {
	p *Platform

	mu  retry.Mutex
	all map[string]*runningTask
}

// runningTask is a task that runs here, or waits for its lease.
type runningTask struct {
	observerTask
	stop  context.CancelFunc
	ended chan struct{}

	mu  sync.Mutex
	err error // error that ended its last run
}

// apply makes the tasks match the config. Unchanged tasks continue.
func (o *observer) apply(ctx context.Context, c *config.Config) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	wanted := map[string]observerTask{}
	for _, t := range o.p.observerTasks(c) {
		wanted[t.name] = t
	}
	for name, t := range o.all {
		if now, ok := wanted[name]; ok && reflect.DeepEqual(now.config, t.config) {
			delete(wanted, name)
			continue
		}
		if err := t.end(ctx); err != nil {
			return err
		}
		delete(o.all, name)
	}
	for name, t := range wanted {
		o.all[name] = o.start(ctx, t)
	}
	return nil
}

// start runs a task whenever this process has its lease.
func (o *observer) start(ctx context.Context, t observerTask) *runningTask {
	ctx, stop := context.WithCancel(context.WithoutCancel(ctx))
	r := &runningTask{observerTask: t, stop: stop, ended: make(chan struct{})}
	held := lease.Options{Part: "observer", Task: t.name, Redis: o.p.redis, Key: o.p.names.Key("observer", t.name, o.p.kafka), Logger: o.p.log,
		Beaten: func(err error) bool { return errors.Is(err, broker.ErrSuperseded) }, Left: r.set}
	go func() {
		defer close(r.ended)
		lease.Hold(ctx, held, func(ctx context.Context) error {
			r.set(nil)
			return t.run(ctx)
		})
	}()
	return r
}

func (r *runningTask) set(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.err = err
}

// end stops the task and waits until it has ended.
func (r *runningTask) end(ctx context.Context) error {
	r.stop()
	select {
	case <-r.ended:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("wait for the end of %s: %w", r.name, context.Cause(ctx))
	}
}

// close stops all tasks and waits for them.
func (o *observer) close(ctx context.Context) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, t := range o.all {
		t.stop()
	}
	var failed []error
	for _, t := range o.all {
		failed = append(failed, t.end(ctx))
	}
	clear(o.all)
	return errors.Join(failed...)
}

// check reports failed tasks. A task that waits for its lease is not a failure.
func (o *observer) check(context.Context) api.Check {
	o.mu.Lock()
	defer o.mu.Unlock()
	var failed []string
	for name, t := range o.all {
		t.mu.Lock()
		if t.err != nil {
			failed = append(failed, fmt.Sprintf("%s: %v; retrying", name, t.err))
		}
		t.mu.Unlock()
	}
	if len(failed) == 0 {
		return api.Check{Name: "observer", Status: api.OK, Detail: fmt.Sprintf("%d tasks", len(o.all))}
	}
	slices.Sort(failed)
	return api.Check{Name: "observer", Status: api.Degraded, Detail: strings.Join(failed, "; ")}
}
