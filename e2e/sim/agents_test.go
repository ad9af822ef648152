package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/e2e/sim/vnet"
	"tidemill.dev/internal/runs/scheduler"
)

// agents are the attempts. They speak the agent's protocol with a gateway, and their commands are
// decided by the plan.
type agents struct {
	w    *world
	host *vnet.Host
	all  sync.WaitGroup

	mu   sync.Mutex
	live map[string]context.CancelFunc
	runs map[string]*ranRun
}

// ranRun is what the attempts of a run have seen.
type ranRun struct {
	recipe, key string
	causes      map[string]bool // ids of events
	attempts    int
	ended       tidemill.RunState // last answer to a report of an attempt
	way         string            // variable WAY of the attempts
	input       string            // commit of the dataset that the newest attempt got
	labels      map[string]string // label that the model of each attempt answers to everything
}

func newAgents(w *world) *agents {
	return &agents{w: w, host: w.net.Host(agentsHost), live: map[string]context.CancelFunc{}, runs: map[string]*ranRun{}}
}

// launcher starts attempts. With an owner they are its children and die with it.
type launcher struct {
	*agents
	owner *vnet.Host
}

func (a *agents) launcher(owner *vnet.Host) scheduler.Launcher { return &launcher{a, owner} }

// Launch starts an attempt unless it runs.
func (l *launcher) Launch(_ context.Context, of scheduler.Attempt) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.live[of.Name] != nil {
		return nil
	}
	host := l.host
	if l.owner != nil {
		host = l.owner
	}
	ctx, cancel := context.WithCancel(l.w.ctx)
	l.live[of.Name] = cancel
	l.all.Go(func() {
		defer cancel()
		go func() {
			select {
			case <-host.Killed():
				cancel()
			case <-ctx.Done():
			}
		}()
		w := &attempt{agents: l.agents, of: of, random: chance(l.w.p.seed, of.Name, 0)}
		for _, door := range l.w.doors() {
			c := l.w.client(host, door)
			defer c.CloseIdleConnections()
			w.clients = append(w.clients, c)
		}
		err := w.work(ctx)
		l.w.history.say("agent: %s of %s ends: %v", of.Name, of.Key, err)
		l.mu.Lock()
		delete(l.live, of.Name)
		l.mu.Unlock()
	})
	return nil
}

// Has reports whether an attempt runs.
func (l *launcher) Has(_ context.Context, name string) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.live[name] != nil, nil
}

// Stop kills an attempt.
func (l *launcher) Stop(_ context.Context, name string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if cancel := l.live[name]; cancel != nil {
		cancel()
	}
	return nil
}

// Slots returns the slots of the config.
func (l *launcher) Slots(p config.Pool) int { return p.Slots }

// attempt is the agent and the command of an attempt.
type attempt struct {
	*agents
	of      scheduler.Attempt
	random  uint64
	clients []*http.Client
}

var errCrash = errors.New("the command's machine is gone")

func (a *attempt) work(ctx context.Context) error {
	var order api.Order
	err := a.ask(ctx, http.MethodGet, "", nil, &order)
	for try := 0; isUnknown(err) && try < 10; try++ { // the gateway may not know the attempt yet
		sleep(ctx, time.Second)
		err = a.ask(ctx, http.MethodGet, "", nil, &order)
	}
	if err != nil {
		return err
	}
	var events bytes.Buffer
	if err := a.ask(ctx, http.MethodGet, "/events", nil, &events); err != nil {
		return err
	}
	if err := a.began(&order, events.Bytes()); err != nil {
		return err
	}
	for range 1 + a.random%4 {
		sleep(ctx, min(time.Duration(order.BeatSeconds*float64(time.Second)), a.w.p.pace))
		var beat api.Beat
		if err := a.ask(ctx, http.MethodPost, "/beat", []byte("{}"), &beat); err != nil {
			return err
		}
		if beat.Cancel != "" {
			return a.finish(ctx, api.Finish{Outcome: tidemill.OutcomeCancelled, Reason: beat.Cancel})
		}
	}
	switch a.random >> 8 % 12 {
	case 0:
		return errCrash
	case 1:
		return a.finish(ctx, api.Finish{Outcome: tidemill.OutcomeFailed, Reason: "exit 1"})
	}
	for {
		err := a.handIn(ctx, smallModel(a.random>>16%2 == 0))
		if lacks := (*refusedError)(nil); !errors.As(err, &lacks) || lacks.status != http.StatusNotFound || ctx.Err() != nil {
			return err
		}
		sleep(ctx, time.Second) // the store does not have the model yet
	}
}

// handIn uploads the model and reports success.
func (a *attempt) handIn(ctx context.Context, model []byte) error {
	sum := sha256.Sum256(model)
	digest := hex.EncodeToString(sum[:])
	if err := a.ask(ctx, http.MethodPost, fmt.Sprintf("/object?digest=%s&size=%d", digest, len(model)), model, nil); err != nil {
		return err
	}
	return a.finish(ctx, api.Finish{Outcome: tidemill.OutcomeSucceeded, Files: []api.File{{Path: "model.onnx", Digest: digest, Size: int64(len(model))}}})
}

func (a *attempt) finish(ctx context.Context, f api.Finish) error {
	body, err := json.Marshal(f)
	if err != nil {
		return err
	}
	var end api.Finished
	if err := a.ask(ctx, http.MethodPost, "/finish", body, &end); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.runs[a.of.Run].ended = end.State
	return nil
}

func (a *attempt) began(o *api.Order, events []byte) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.runs[o.Run]
	if r == nil {
		r = &ranRun{recipe: o.Recipe, key: o.Key, causes: map[string]bool{}, labels: map[string]string{}, way: o.Plan.Env["WAY"]}
		a.runs[o.Run] = r
	}
	r.attempts++
	for _, in := range o.Plan.Inputs {
		r.input = in.Commit
	}
	r.labels[strconv.Itoa(o.Attempt)] = []string{"yes", "no"}[a.random>>16%2]
	for line := range bytes.Lines(events) {
		var e struct{ ID string }
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read the causes of %s: %w", o.Run, err)
		}
		r.causes[e.ID] = true
	}
	a.w.history.say("agent: %s of %s begins, causes %v", a.of.Name, o.Key, slices.Sorted(maps.Keys(r.causes)))
	return nil
}

// ask asks again after passing errors, for as long as an agent does.
func (a *attempt) ask(ctx context.Context, method, path string, body []byte, answer any) error {
	for try := 0; ; try++ {
		err := a.askOnce(ctx, a.clients[(int(a.random%16)+try)%len(a.clients)], method, path, body, answer)
		var final *refusedError
		if err == nil || errors.As(err, &final) || try > 300 || ctx.Err() != nil {
			return err
		}
		sleep(ctx, time.Second)
	}
}

type refusedError struct {
	status int
	text   string
}

func (e *refusedError) Error() string { return e.text }

func isUnknown(err error) bool {
	e, refused := errors.AsType[*refusedError](err)
	return refused && e.status == http.StatusUnauthorized
}

func (a *attempt) askOnce(ctx context.Context, c *http.Client, method, path string, body []byte, answer any) error {
	req, err := http.NewRequestWithContext(ctx, method, gatewayURL+"/agent/v1/attempts/"+a.of.Name+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header.Set("Authorization", "Bearer "+a.of.Token)
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode/100 == 4 && res.StatusCode != http.StatusTooManyRequests:
		return &refusedError{res.StatusCode, fmt.Sprintf("%s %s: %s %s", method, path, res.Status, text)}
	case res.StatusCode/100 != 2:
		return fmt.Errorf("%s %s: %s %s", method, path, res.Status, text)
	}
	switch to := answer.(type) {
	case nil:
		return nil
	case *bytes.Buffer:
		_, _ = to.Write(text) // never fails
		return nil
	}
	return json.Unmarshal(text, answer)
}
