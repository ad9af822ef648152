package warmpods

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	_ "embed" // the scripts
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker/retry"
)

const (
	layout = "1" // version of the entries in Redis

	lookEvery  = 50 * time.Millisecond // interval at which a waiting pod's request looks for an offer, if few pods wait
	lookSlowly = time.Second           // the same interval if many pods wait
	lookShare  = time.Millisecond      // added to the interval by each pod that waits at this process
	fresh      = 4 * time.Second       // validity of a waiting pod's entry without renewal
	takenFor   = 15 * time.Second      // time in which the launcher that took a pod must give it an attempt
	offeredFor = 2 * time.Minute       // validity of an offer that its pod has not received
	begunFor   = time.Hour             // time for which a pod's entry says that its attempt has begun
	lastLook   = 2 * time.Second
)

// Pod is a pod that waits for a run.
type Pod struct {
	Name    string // name of the pod
	Attempt string // last attempt of the pod; the launcher checks that the pod belongs to it
	Pool    string
	Shape   string // see Shape
	GPUs    int

	ticket string // identifies the taker
}

// entry is the pod's name in the list. A pod reports its own name, and a command that knows its
// attempt's token could report a false one. The attempt is part of the entry, so no attempt can
// change the entry of another attempt.
func (p *Pod) entry() string { return p.Attempt + " " + p.Name }

// Offer is the answer to a waiting pod: an attempt, or the request to exit.
type Offer struct {
	Attempt string `json:"attempt,omitempty"` // empty: the pod must exit
	Token   string `json:"token,omitempty"`
}

// Idle counts the waiting pods of a pool and their time.
type Idle struct {
	Pods       int
	GPUSeconds float64 // GPU time spent waiting since the list was created
}

// ErrTaken is returned by Give if another launcher has the pod, or the pod has begun another
// attempt meanwhile.
var ErrTaken = errors.New("the pod is not ours to give to any more")

// Book is the list of the waiting pods of one install.
type Book struct {
	client  *redis.Client
	key     string
	waiting atomic.Int64 // pods that wait at this process
}

// NewBook returns a list in Redis; nil without a client. kafka is the id of the Kafka cluster that
// holds the facts of the runs.
func NewBook(client *redis.Client, names tidemill.Names, kafka string) *Book {
	if client == nil {
		return nil
	}
	return &Book{client: client, key: names.Key("warm", layout, kafka, "{warm}")}
}

//go:embed scripts/wait.lua
var luaWait string

//go:embed scripts/leave.lua
var luaLeave string

//go:embed scripts/take.lua
var luaTake string

//go:embed scripts/give.lua
var luaGive string

//go:embed scripts/begun.lua
var luaBegun string

//go:embed scripts/idle.lua
var luaIdle string

// The Redis scripts, which never change.
var (
	scriptWait  = redis.NewScript(luaWait)
	scriptLeave = redis.NewScript(luaLeave)
	scriptTake  = redis.NewScript(luaTake)
	scriptGive  = redis.NewScript(luaGive)
	scriptBegun = redis.NewScript(luaBegun)
	scriptIdle  = redis.NewScript(luaIdle)
)

func (b *Book) run(ctx context.Context, s *redis.Script, args ...any) ([]string, error) {
	return s.Run(ctx, b.client, []string{b.key}, args...).StringSlice()
}

// Take takes a waiting pod of a shape; false if no pod waits. No other caller gets the pod for
// takenFor. The caller must call Give next.
func (b *Book) Take(ctx context.Context, shape string) (Pod, bool, error) {
	if shape == "" {
		return Pod{}, false, nil
	}
	p := Pod{Shape: shape, ticket: rand.Text()}
	is, err := b.run(ctx, scriptTake, "shape", shape, "taken", p.ticket, "", takenFor.Milliseconds())
	if err != nil {
		return Pod{}, false, fmt.Errorf("take a pod that waits: %w", err)
	}
	if len(is) != 4 {
		return Pod{}, false, nil
	}
	_, p.Name, _ = strings.Cut(is[0], " ")
	p.Attempt, p.Pool = is[1], is[2]
	p.GPUs, err = strconv.Atoi(is[3])
	return p, err == nil, err
}

// Give stores the offer of a taken pod. It does so even if Redis was flushed since Take. If another
// launcher has taken the pod meanwhile, Give returns ErrTaken, and the caller must not use the pod.
func (b *Book) Give(ctx context.Context, p Pod, o Offer) error {
	text, err := json.Marshal(o)
	if err != nil {
		return fmt.Errorf("write what pod %s is given: %w", p.Name, err)
	}
	is, err := b.run(ctx, scriptGive, p.entry(), p.Attempt, p.ticket, text, offeredFor.Milliseconds(), o.Attempt)
	switch {
	case err != nil:
		return fmt.Errorf("give pod %s attempt %s: %w", p.Name, o.Attempt, err)
	case len(is) == 0:
		return fmt.Errorf("give pod %s attempt %s: %w", p.Name, o.Attempt, ErrTaken)
	}
	return nil
}

// Begun records that an attempt has reported to a gateway. Its pod has received the offer then, so
// requests that name the pod's previous attempt no longer get the offer.
func (b *Book) Begun(ctx context.Context, attempt string) error {
	if _, err := b.run(ctx, scriptBegun, attempt, begunFor.Milliseconds()); err != nil {
		return fmt.Errorf("write down that attempt %s has begun: %w", attempt, err)
	}
	return nil
}

// Dismiss tells one waiting pod of a pool to exit; false if no pod waits.
func (b *Book) Dismiss(ctx context.Context, pool string) (bool, error) {
	is, err := b.run(ctx, scriptTake, "pool", pool, "offered", "", "{}", offeredFor.Milliseconds())
	if err != nil {
		return false, fmt.Errorf("have a pod of pool %s leave: %w", pool, err)
	}
	return len(is) > 0, nil
}

// Idle returns the waiting pods and idle GPU time of a pool.
func (b *Book) Idle(ctx context.Context, pool string) (Idle, error) {
	all, err := b.IdleOf(ctx, []string{pool})
	if err != nil {
		return Idle{}, err
	}
	return all[pool], nil
}

// IdleOf returns the waiting pods and idle GPU time of several pools.
func (b *Book) IdleOf(ctx context.Context, pools []string) (map[string]Idle, error) {
	args := make([]any, len(pools))
	for i, pool := range pools {
		args[i] = pool
	}
	is, err := b.run(ctx, scriptIdle, args...)
	if err == nil && len(is) != 2*len(pools) {
		err = fmt.Errorf("it answered %d texts for %d pools", len(is), len(pools))
	}
	if err != nil {
		return nil, fmt.Errorf("look what lingers: %w", err)
	}
	all := map[string]Idle{}
	for i, pool := range pools {
		pods, err := strconv.Atoi(is[2*i])
		if err != nil {
			return nil, fmt.Errorf("look what lingers: %w", err)
		}
		ms, err := strconv.ParseFloat(is[2*i+1], 64)
		if err != nil {
			return nil, fmt.Errorf("look what lingers: %w", err)
		}
		all[pool] = Idle{pods, ms / 1000}
	}
	return all, nil
}

// Wait waits for an offer for a pod until the context ends or d has passed; it returns false if no
// offer came. It adds the waiting time to the pool's idle GPU time. An offer is valid until its
// attempt reports to a gateway (see Begun). A pod that lost the answer asks again, at any gateway,
// and gets the same offer. If the pod asks after Begun, the answer is the request to exit. If the
// pod's request is cancelled, its entry is deleted at once, so that no attempt is given to a pod
// that no longer exists. If a launcher has taken the pod before, it may still give the pod an
// attempt; the pod gets this attempt if it asks again.
func (b *Book) Wait(ctx context.Context, p Pod, d time.Duration) (Offer, bool, error) {
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	w := &waitingPod{b: b, pod: p, from: time.Now()}
	until := w.from.Add(d)
	for ctx.Err() == nil && time.Now().Before(until) {
		if o, ok := w.poll(ctx); ok {
			return o, true, nil
		}
		_ = retry.Sleep(ctx, min(w.pace(), time.Until(until)))
	}
	return w.leave(ctx)
}

// waitingPod is one waiting pod.
type waitingPod struct {
	b    *Book
	pod  Pod
	from time.Time // time up to which waiting is counted
	err  error     // error of the last poll
}

// pace returns the time until the next poll. The more pods wait, the less often each pod polls, so
// that the load on Redis is bounded.
func (w *waitingPod) pace() time.Duration {
	if w.err != nil {
		return lookSlowly
	}
	return min(max(lookEvery, time.Duration(w.b.waiting.Load())*lookShare), lookSlowly)
}

// poll records that the pod waits, and returns its offer if it has one.
func (w *waitingPod) poll(ctx context.Context) (o Offer, ok bool) {
	p, now := &w.pod, time.Now()
	is, err := w.b.run(ctx, scriptWait, p.entry(), p.Attempt, p.Pool, p.Shape, p.GPUs, now.Sub(w.from).Milliseconds(), fresh.Milliseconds())
	if w.err = err; err != nil {
		return o, false // the next poll may succeed
	}
	w.from = now
	o, ok, w.err = offerOf(is)
	return o, ok
}

// leave deletes the pod's entry. If a launcher has just taken the pod, leave waits for the offer.
func (w *waitingPod) leave(ctx context.Context) (o Offer, ok bool, err error) {
	for until := time.Now().Add(takenFor); ; {
		limited, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastLook)
		is, err := w.b.run(limited, scriptLeave, w.pod.entry(), w.pod.Attempt, int64(w.pod.GPUs)*time.Since(w.from).Milliseconds(), w.pod.Pool)
		cancel()
		if err != nil {
			return o, false, fmt.Errorf("strike out pod %s: %w", w.pod.Name, err)
		}
		w.from = time.Now()
		taken := len(is) == 1 && is[0] == "taken"
		if !taken {
			o, ok, err = offerOf(is)
			return o, ok && ctx.Err() == nil, err
		}
		if ctx.Err() != nil || time.Now().After(until) {
			return o, false, nil
		}
		_ = retry.Sleep(ctx, lookEvery)
	}
}

// offerOf reads the offer in a script's answer, which is a text or empty.
func offerOf(is []string) (o Offer, ok bool, err error) {
	if len(is) == 0 {
		return o, false, nil
	}
	if err := json.Unmarshal([]byte(is[0]), &o); err != nil {
		return o, false, fmt.Errorf("read what a pod is given: %w", err)
	}
	return o, true, nil
}

// Shape returns the same text for plans that can run one after the other in a pod: plans with equal
// pool, team, image, user, resources, grace, secrets and volumes, which belong to the pod and not
// to the attempt. It is empty for a plan of several workers, because their pods are bound to each
// other and cannot be used again.
func Shape(p tidemill.Plan) string {
	if p.Workers > 1 || p.Servers != nil || p.Image == "" {
		return ""
	}
	text, err := json.Marshal(struct {
		Team, Image, Pool string
		CPU               float64
		Memory            int64
		GPUs              int
		Grace             time.Duration
		Secrets           map[string]string
		Inside            tidemill.Inside
	}{p.Team, p.Image, p.Pool, p.CPU, p.Memory, p.GPUs, p.Grace, p.Secrets, p.Inside})
	if err != nil {
		return "" // unreachable: a plan holds no NaN and no infinity
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}
