package sim

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/pprof"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/config"
	"tidemill.dev/e2e/sim/vnet"
	"tidemill.dev/internal/runs/agent"
	"tidemill.dev/internal/runs/scheduler"
)

// agents run the attempts. Each attempt has the real agent; the plan decides what its command does.
type agents struct {
	w    *world
	host *vnet.Host
	all  sync.WaitGroup

	mu      sync.Mutex
	live    map[string]*attempt
	runs    map[string]*ranRun
	started int
}

// ranRun is what the attempts of a run have seen.
type ranRun struct {
	recipe, key string
	causes      map[string]bool   // ids of events
	ended       tidemill.RunState // last answer to a report of an attempt
	way         string            // variable WAY of the attempts
	input       string            // commit of the dataset that the newest attempt got
	labels      map[string]string // label that the model of each attempt answers to everything
	states      map[string]int    // number of each state of a checkpoint, by its digest, in their order from 1
	saved       int               // newest state whose checkpoint was acknowledged
}

func newAgents(w *world) *agents {
	err := os.Mkdir(w.bin(), 0o700)
	if err == nil {
		err = os.WriteFile(filepath.Join(w.bin(), "train"), nil, 0o700) // the agent looks the command up
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return &agents{w: w, host: w.net.Host(agentsHost), live: map[string]*attempt{}, runs: map[string]*ranRun{}}
}

// bin is the folder of the command.
func (w *world) bin() string { return filepath.Join(w.dir, "bin") }

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
	l.started++
	a := &attempt{agents: l.agents, of: of, host: cmp.Or(l.owner, l.host), random: chance(l.w.p.seed, of.Name, 0),
		work: filepath.Join(l.w.dir, "work", fmt.Sprint(l.started))}
	a.life, a.kill = context.WithCancelCause(context.Background())
	a.stay, a.leave = context.WithCancelCause(a.life)
	if r := l.runs[of.Run]; r != nil {
		a.least = r.saved
	}
	l.live[of.Name] = a
	l.all.Go(a.run)
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
	if a := l.live[name]; a != nil {
		a.kill(agent.ErrSuperseded)
	}
	return nil
}

// Slots returns the slots of the config.
func (l *launcher) Slots(p config.Pool) int { return p.Slots }

// attempt is an agent with its command.
type attempt struct {
	*agents
	of     scheduler.Attempt
	host   *vnet.Host
	random uint64
	work   string
	input  string
	least  int // oldest state that its checkpoint may have
	wire   *http.Transport
	life   context.Context
	kill   context.CancelCauseFunc // does to the agent what kill -9 does
	stay   context.Context
	leave  context.CancelCauseFunc // stops its machine in order
}

// run runs the agent. After a kill it may still tidy up, but it has no connections any more.
func (a *attempt) run() {
	if a.host == a.agents.host {
		pprof.SetGoroutineLabels(context.Background()) // it does not have the clock of the process that launched it
	}
	go func() {
		select {
		case <-a.host.Killed():
		case <-a.w.ctx.Done():
		case <-a.life.Done():
		}
		a.kill(agent.ErrSuperseded)
		a.mu.Lock()
		defer a.mu.Unlock()
		delete(a.live, a.of.Name)
	}()
	a.wire = a.connect()
	defer a.wire.CloseIdleConnections()
	err := agent.Run(a.stay, agent.Options{Gateway: gatewayURL, Token: a.of.Token, Attempt: a.of.Name, Work: a.work, HTTP: &http.Client{Transport: a},
		Workers: []string{"127.0.0.1:29500"}, // else it looks for a free port of this machine
		Equip:   a.equip, Play: a.play, Logger: a.w.logger(agentsHost)})
	a.kill(nil)
	a.w.history.say("agent: %s of %s ends: %v", a.of.Name, a.of.Key, err)
}

// connect returns a transport whose connections end with the agent. Each new one goes to the next gateway.
func (a *attempt) connect() *http.Transport {
	doors, n := a.w.doors(), atomic.Uint64{}
	t := transport(a.host, func() *process { return doors[(a.random%16+n.Add(1))%uint64(len(doors))] })
	dial := t.DialContext
	t.DialContext = func(ctx context.Context, network, address string) (net.Conn, error) {
		if a.life.Err() != nil {
			return nil, context.Cause(a.life)
		}
		c, err := dial(ctx, network, address)
		if err == nil {
			context.AfterFunc(a.life, func() { _ = c.Close() }) // it may be closed
		}
		return c, err
	}
	return t
}

// equip puts the command into the agent's PATH.
func (a *attempt) equip(_ context.Context, p tidemill.Plan) (agent.Equipment, error) {
	for _, in := range p.Inputs {
		a.input = in.Commit
	}
	return agent.Equipment{Env: []string{"PATH=" + a.w.bin()}}, nil
}

// play is the command. Of 12, two die with their machine, one of them a moment after its end. One fails, and the machine
// of one stops in order.
func (a *attempt) play(_, asked context.Context, cmd *exec.Cmd) (exit int) {
	env := map[string]string{}
	for _, pair := range cmd.Env {
		name, v, _ := strings.Cut(pair, "=")
		env[name] = v
	}
	if err := a.began(env); err != nil {
		a.w.history.say("agent: %s of %s: %v", a.of.Name, a.of.Key, err)
		return 1
	}
	for n := range int(1 + a.random%4) {
		if err := a.step(env, cmd.Stdout, n); err != nil {
			return 2 // the agent was killed, and has removed the folder
		}
		if sleep(asked, min(2*time.Second, a.w.p.pace)); asked.Err() != nil {
			return 128 + 15
		}
	}
	switch a.random >> 8 % 12 {
	case 0:
		a.kill(agent.ErrSuperseded)
	case 1:
		return 1
	case 2:
		a.leave(&agent.Stopping{By: time.Now().Add(20 * time.Second)})
		<-asked.Done()
	case 3:
		time.AfterFunc(time.Duration(a.random>>20%300)*time.Millisecond, func() { a.kill(agent.ErrSuperseded) })
	}
	if os.WriteFile(filepath.Join(env["TIDEMILL_OUT"], "model.onnx"), smallModel(a.random>>16%2 == 0), 0o600) != nil {
		return 2
	}
	return 0
}

// step does a step. In an eighth of the runs it writes progress and a log, and in an eighth a checkpoint.
func (a *attempt) step(env map[string]string, out io.Writer, n int) (err error) {
	text := fmt.Appendf(nil, "{\"step\": %d}\n", n)
	switch chance(a.w.p.seed, a.of.Run, 0) % 8 {
	case 0:
		if err = os.WriteFile(filepath.Join(env["TIDEMILL_OUT"], "metrics.jsonl"), text, 0o600); err == nil {
			_, err = out.Write(text)
		}
	case 1:
		err = a.keep(env, n)
	}
	return err
}

// began records what the command got.
func (a *attempt) began(env map[string]string) error {
	events, err := os.ReadFile(env["TIDEMILL_EVENTS"])
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r := a.runs[a.of.Run]
	if r == nil {
		r = &ranRun{recipe: env["TIDEMILL_RECIPE"], key: env["TIDEMILL_KEY"], causes: map[string]bool{}, labels: map[string]string{}, states: map[string]int{}, way: env["WAY"]}
		a.runs[a.of.Run] = r
	}
	r.input = a.input
	r.labels[env["TIDEMILL_ATTEMPT"]] = []string{"yes", "no"}[a.random>>16%2]
	for line := range bytes.Lines(events) {
		var e struct{ ID string }
		if err := json.Unmarshal(line, &e); err != nil {
			return fmt.Errorf("read the causes of %s: %w", a.of.Run, err)
		}
		r.causes[e.ID] = true
	}
	a.resumed(r, env)
	a.w.history.say("agent: %s of %s begins, causes %v", a.of.Name, r.key, slices.Sorted(maps.Keys(r.causes)))
	return nil
}
