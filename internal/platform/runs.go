package platform

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/internal/data/store"
	"tidemill.dev/internal/models/canary"
	"tidemill.dev/internal/models/erase"
	"tidemill.dev/internal/models/history"
	"tidemill.dev/internal/models/registry"
	"tidemill.dev/internal/models/rollout"
	"tidemill.dev/internal/ops/status"
	"tidemill.dev/internal/runs/local"
	"tidemill.dev/internal/runs/scheduler"
	"tidemill.dev/triggers/commands"
)

// RunsOptions configure the folders of runs and where attempts run.
type RunsOptions struct {
	Recipes  string             // base of the recipes' relative folders
	Data     string             // folder of attempts' work, and of their tokens' secret if none is given; may be empty
	Secrets  string             // folder with a file NAME/KEY for each secret
	Launch   bool               // whether to launch attempts, in the cluster if there is one, else on this machine
	Alone    bool               // no other process launches attempts; always true with embedded servers
	Launcher scheduler.Launcher // launcher to use in place of the one that Launch chooses; only simulations have one
	// Watched is called for the store's writes, see store.Options; may be nil.
	Watched func(key string)
}

// storeFolder is the laptop's store in the data folder.
const storeFolder = "store"

// runServices holds everything that a process needs for runs.
type runServices struct {
	store     *store.Store
	ledger    *ledger.Ledger
	foreman   *scheduler.Foreman
	models    *registry.Registrar
	forgetter *erase.Forgetter
	letters   *lazyLetters // dead letters for the forgetter
	tokens    *scheduler.Tokens
	local     *local.Launcher    // nil if no attempt runs on this machine
	launcher  scheduler.Launcher // local, or the cluster's launcher; nil if this process launches none
	asked     *commands.Follower
	gateway   atomic.Bool  // whether the process is a gateway
	inside    net.Listener // address of the gateway for the agents of this process
}

// openRuns adds everything that it opens to the stop order, even if it fails later.
func (p *Platform) openRuns(ctx context.Context, o RunsOptions) (err error) {
	if p.redis == nil {
		return errors.New("open the runs: they need a Redis; give --redis")
	}
	w := &runServices{}
	if w.store, err = p.openStore(ctx, o); err != nil {
		return err
	}
	if w.asked, err = commands.Follow(ctx, p.broker, p.log); err != nil {
		return fmt.Errorf("read the pauses: %w", err)
	}
	p.AtStop(Consumers, "commands for runs", w.asked.Close)
	if w.ledger, err = p.openLedger(ctx); err != nil {
		return err
	}
	if err := p.openTokens(w, o); err != nil {
		return err
	}
	if err := p.openLauncher(ctx, w, o); err != nil {
		return err
	}
	if w.foreman, err = scheduler.New(p.foremanOptions(w, o)); err != nil {
		return fmt.Errorf("open the runs: %w", err)
	}
	if err := p.openModels(w); err != nil {
		return err
	}
	if err := p.openForgetter(w); err != nil {
		return err
	}
	p.AtStop(Consumers, "the dead letters of keys that end", w.letters.close)
	p.works = w
	return p.addComponent(ctx, component{name: "the runs", check: w.check})
}

func (p *Platform) foremanOptions(w *runServices, o RunsOptions) scheduler.Options {
	f := scheduler.Options{Ledger: w.ledger, Store: w.store, Broker: p.broker, Names: p.names, Config: p.Config, Asked: w.asked.Now,
		Announce: p.publishCommit, Tokens: w.tokens, Dir: o.Recipes, Logger: p.log}
	f.Outcomes = func(ctx context.Context, scorer config.Scorer, key string, last time.Duration) (tidemill.Input, error) {
		in, err := history.Write(ctx, history.Options{Broker: p.broker, Store: w.store, Scorer: scorer, Key: key, Last: last})
		if errors.Is(err, history.ErrTooMany) {
			err = scheduler.Hopeless(err)
		}
		return in, err
	}
	if w.launcher != nil {
		f.Launcher, f.Alone = w.launcher, p.cluster == nil && (o.Alone || p.Embedded())
	}
	if p.telemetry != nil {
		f.Registerer = p.telemetry.Registry()
	}
	return f
}

func (p *Platform) openStore(ctx context.Context, o RunsOptions) (*store.Store, error) {
	url := p.addresses.Store
	if url == "" {
		url = filepath.Join(o.Data, storeFolder)
		p.addresses.Store = url
	}
	s, err := store.Open(ctx, store.Options{URL: url, Watch: o.Watched, Network: p.network})
	if err != nil {
		return nil, fmt.Errorf("open the object store: %w", err)
	}
	p.AtStop(clients, "the object store", func(context.Context) error { return s.Close() })
	return s, nil
}

func (p *Platform) openLedger(ctx context.Context) (*ledger.Ledger, error) {
	producer, err := p.Producer(broker.ProducerOptions{})
	if err != nil {
		return nil, err
	}
	o := ledger.Options{Broker: p.broker, Producer: producer, Names: p.names, Redis: p.redis, Kafka: p.kafka, Logger: p.log, Layout: p.layout}
	if p.telemetry != nil {
		o.Registerer = p.telemetry.Registry()
	}
	l, err := ledger.Open(ctx, o)
	if err != nil {
		return nil, fmt.Errorf("open the ledger: %w", err)
	}
	p.AtStop(Consumers, "the ledger", l.Close)
	p.announcer = producer
	return l, nil
}

func (p *Platform) openLauncher(ctx context.Context, w *runServices, o RunsOptions) error {
	switch {
	case o.Launcher != nil:
		w.launcher = o.Launcher
		return nil
	case !o.Launch:
		return nil
	case p.cluster != nil:
		w.launcher = p.cluster.Launcher()
		return nil
	}
	return p.openLocal(ctx, w, o)
}

// openLocal opens a second listener of the gateway for the agents of this process. The listener
// needs no certificate and no access file, because it is on loopback and serves only the agents'
// routes.
func (p *Platform) openLocal(ctx context.Context, w *runServices, o RunsOptions) (err error) {
	if w.inside, err = p.network.ListenTCP(ctx, "127.0.0.1:0"); err != nil {
		return fmt.Errorf("listen for agents: %w", err)
	}
	if err := p.takeFolder(o.Data); err != nil {
		return err
	}
	w.local, err = local.Open(ctx, local.Options{Gateway: "http://" + w.inside.Addr().String(),
		Dir: o.Data, Secrets: o.Secrets, Logger: p.log,
		Seen: func(ctx context.Context, a scheduler.Attempt, d tidemill.RunSeen) error {
			return w.foreman.SeenAttempt(ctx, a, d)
		}})
	if err != nil {
		return errors.Join(fmt.Errorf("prepare for runs on this machine: %w", err), w.inside.Close())
	}
	w.launcher = w.local
	p.AtStop(attempts, "the attempts on this machine", func(ctx context.Context) error {
		if w.foreman != nil {
			w.foreman.Rest()
		}
		return w.local.Close(ctx)
	})
	return nil
}

// takeFolder makes the data folder and locks it. With embedded servers it is locked already.
func (p *Platform) takeFolder(dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of runs: %w", err)
	}
	if p.servers != nil {
		return nil
	}
	release, err := embedded.LockFolder(dir)
	if err != nil {
		return err
	}
	p.AtStop(clients, "the lock of the data folder", func(context.Context) error { return release() })
	return nil
}

// watchRuns runs the periodic work of runs and models until the stop order ends it.
func (p *Platform) watchRuns(ctx context.Context, active func() bool) {
	if p.works == nil {
		return
	}
	canaries := canary.New(canary.Options{Broker: p.broker, Ledger: p.works.ledger, Settle: p.works.models.Settle, Active: active, Logger: p.log})
	tasks := []func(context.Context){p.endless("watching the runs", p.works.foreman.Watch), p.endless("watching the models", p.works.models.Watch),
		canaries.Watch, func(ctx context.Context) { watchStore(ctx, p.works.store.Ping, p.log) }}
	if rollouts := p.rollouts(active); rollouts != nil {
		tasks = append(tasks, rollouts.Watch)
	}
	p.untilStop(ctx, Consumers, "the watch over runs and models", tasks...)
}

// rollouts returns what decides about rollouts; nil if this process cannot prove that it wrote a recipe's way.
func (p *Platform) rollouts(active func() bool) *rollout.Watcher {
	w := p.works
	if w.tokens == nil {
		return nil
	}
	o := rollout.Options{Broker: p.broker, Producer: p.announcer, Names: p.names, Config: p.Config, Asked: w.asked, Active: active, Sign: w.tokens.SignWay,
		RollBack: w.models.Wish, Board: status.NewRollouts(p.redis, p.names, p.kafka), Skew: p.skew, Logger: p.log}
	return rollout.New(o)
}

const storeAsked = 5 * time.Second

// watchStore logs once that the store's folder is gone, and once that it is back.
func watchStore(ctx context.Context, ping func(context.Context) error, log *slog.Logger) {
	gone := false
	for retry.Sleep(ctx, storeAsked) == nil {
		switch err := ping(ctx); {
		case errors.Is(err, store.ErrGone) && !gone:
			gone = true
			log.Error("store: the folder is gone; this process is not ready, and data, runs and models fail", "reason", err)
		case err == nil && gone:
			gone = false
			log.Info("store: the folder is back")
		}
	}
}

// keysOf calls fn with the keys of a schedule.
func (p *Platform) keysOf(ctx context.Context, schedule string, fn func(key string) bool) error {
	if p.works == nil {
		return errors.New("this process has no ledger to know the keys from: give it the object store (--store)")
	}
	return p.works.foreman.Keys(ctx, schedule, fn)
}

// check reports the state of the ledger, the store and the foreman. It returns Failed if the ledger
// waits for a person, except in a gateway, which still takes events. It also returns Failed if the
// store's folder is gone, because data that is sent then would be lost. A process whose ledger
// catches up, or whose bucket does not answer, can serve everything else.
func (w *runServices) check(ctx context.Context) api.Check {
	c := api.Check{Name: "runs", Status: api.OK}
	s := w.ledger.Status()
	switch {
	case s.Stopped:
		c.Status, c.Detail = api.Failed, "the ledger has stopped: "+s.Err.Error()
		if w.gateway.Load() {
			c.Status = api.Degraded
		}
	case s.Err != nil:
		c.Status, c.Detail = api.Degraded, s.Err.Error()
	case s.Behind > 0:
		c.Status, c.Detail = api.Degraded, s.Progress()
	}
	if err := w.foreman.Status().Err; err != nil && c.Status == api.OK {
		c.Status, c.Detail = api.Degraded, err.Error()
	}
	switch err := w.store.Ping(ctx); {
	case errors.Is(err, store.ErrGone):
		c.Status, c.Detail = api.Failed, err.Error()
	case err != nil && !s.Stopped:
		c.Status, c.Detail = api.Degraded, fmt.Sprintf("the object store does not answer: %v", err)
	}
	return c
}

// Foreman returns the foreman, which requests and starts runs; nil without runs.
func (p *Platform) Foreman() *scheduler.Foreman {
	if p.works == nil {
		return nil
	}
	return p.works.foreman
}

// Ledger returns the state of all runs; nil without runs.
func (p *Platform) Ledger() *ledger.Ledger {
	if p.works == nil {
		return nil
	}
	return p.works.ledger
}

// Store returns the object store; nil without runs.
func (p *Platform) Store() *store.Store {
	if p.works == nil {
		return nil
	}
	return p.works.store
}

const (
	secretFile = "run-secret"
	// secretSpace makes the dispatcher's token different from every attempt's token.
	secretSpace = "functions"
)

// openTokens reads the secret for attempts' tokens. If no secret is given, a new one is made in the
// data folder. A process without both accepts no agent.
func (p *Platform) openTokens(w *runServices, o RunsOptions) error {
	var (
		secret []byte
		err    error
	)
	switch {
	case p.secretFile != "":
		secret, err = ReadSecret(p.secretFile)
	case o.Data != "":
		secret, err = ownSecret(o.Data)
	default:
		return nil
	}
	if err == nil {
		w.tokens, err = scheduler.NewTokens(secret)
	}
	return err
}

// dispatcherToken returns the dispatcher's token for our functions, in this process or in others.
func (p *Platform) dispatcherToken() (string, error) {
	if p.functionsAt == "" {
		return p.calledToken, nil
	}
	return p.functionsToken()
}

func (p *Platform) functionsToken() (string, error) {
	if p.secretFile == "" {
		return "", errors.New("call functions of ours in other processes: it takes the secret that they share; give --run-secret")
	}
	secret, err := ReadSecret(p.secretFile)
	if err != nil {
		return "", err
	}
	h := hmac.New(sha256.New, secret)
	h.Write([]byte(secretSpace))
	return hex.EncodeToString(h.Sum(nil)), nil
}

// ReadSecret reads 32 bytes from a file, raw or in base64.
func ReadSecret(path string) ([]byte, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the secret of runs: %w", err)
	}
	if len(text) == scheduler.SecretSize {
		return text, nil
	}
	coded := bytes.TrimRight(bytes.TrimSpace(text), "=")
	for _, alphabet := range []*base64.Encoding{base64.RawStdEncoding, base64.RawURLEncoding} {
		secret, err := alphabet.AppendDecode(nil, coded)
		if err == nil && len(secret) == scheduler.SecretSize {
			return secret, nil
		}
	}
	return nil, fmt.Errorf("read the secret of runs: %s has %d bytes, which are neither %d bytes nor their base64: write it with openssl rand -base64 %d",
		path, len(text), scheduler.SecretSize, scheduler.SecretSize)
}

// ownSecret reads the secret of a data folder, and makes a missing secret.
func ownSecret(dir string) ([]byte, error) {
	path := filepath.Join(dir, secretFile)
	secret, err := config.OwnSecret(path, func() []byte {
		random := make([]byte, scheduler.SecretSize)
		rand.Read(random) // rand.Read never fails
		return random
	})
	if err != nil {
		return nil, fmt.Errorf("read the secret of runs: %w", err)
	}
	if len(secret) != scheduler.SecretSize {
		return nil, fmt.Errorf("read the secret of runs: %s has %d bytes, not %d; remove it, and running attempts start again", path, len(secret), scheduler.SecretSize)
	}
	return secret, nil
}
