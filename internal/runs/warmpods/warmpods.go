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
	layout = "1" // of what is written

	lookEvery  = 50 * time.Millisecond // that who waits looks for an offer, if few do
	lookSlowly = time.Second           // and if many do
	lookShare  = time.Millisecond      // so much for each that waits at this process
	fresh      = 4 * time.Second       // what somebody wrote who writes no more
	takenFor   = 15 * time.Second      // that who took a pod has to give it something
	offeredFor = 2 * time.Minute       // that an offer is kept for a pod that has not heard it
	begunFor   = time.Hour             // that it is remembered of a pod that it has been given one, and has begun it
	lastLook   = 2 * time.Second
)

// Pod is one that waits.
type Pod struct {
	Name    string // of the pod
	Attempt string // that it did last: who takes it makes sure that the pod is that attempt's
	Pool    string
	Shape   string // see Shape
	GPUs    int

	ticket string // of who took it
}

// entry is where a pod stands in the book. What its name is it says itself, and a
// command that knows its attempt's token may say it, too; so no attempt comes near
// what stands there for another's.
func (p *Pod) entry() string { return p.Attempt + " " + p.Name }

// Offer is what a waiting pod gets: an attempt, or the word to leave.
type Offer struct {
	Attempt string `json:"attempt,omitempty"` // empty: it shall leave
	Token   string `json:"token,omitempty"`
}

// Idle is how a pool lingers.
type Idle struct {
	Pods       int
	GPUSeconds float64 // spent waiting, since the book was begun
}

// ErrTaken is why a pod cannot be given anything: it is another's, or has gone
// on without us.
var ErrTaken = errors.New("the pod is not ours to give to any more")

// Book is the book of one install.
type Book struct {
	client  *redis.Client
	key     string
	waiting atomic.Int64 // at this process
}

// NewBook is a book that lies in a Redis; nil without one. kafka is the id of the
// cluster whose log the runs are on.
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

// The scripts, which no one changes.
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

// Take takes a pod of a shape that waits; false if there is none. Nobody else
// gets it for a while. Who took it must Give.
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

// Give hands a pod that was taken its offer. If the book has been flushed since,
// the offer is written down all the same, unless another was quicker: ErrTaken.
// Then the pod is to be left as it was.
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

// Begun says that an attempt speaks for itself. Its pod has heard of it then, so
// nobody is told of it any more who asks in the name of the one before.
func (b *Book) Begun(ctx context.Context, attempt string) error {
	if _, err := b.run(ctx, scriptBegun, attempt, begunFor.Milliseconds()); err != nil {
		return fmt.Errorf("write down that attempt %s has begun: %w", attempt, err)
	}
	return nil
}

// Dismiss has one pod that waits in a pool leave; false if none waits.
func (b *Book) Dismiss(ctx context.Context, pool string) (bool, error) {
	is, err := b.run(ctx, scriptTake, "pool", pool, "offered", "", "{}", offeredFor.Milliseconds())
	if err != nil {
		return false, fmt.Errorf("have a pod of pool %s leave: %w", pool, err)
	}
	return len(is) > 0, nil
}

// Idle tells how a pool lingers.
func (b *Book) Idle(ctx context.Context, pool string) (Idle, error) {
	all, err := b.IdleOf(ctx, []string{pool})
	if err != nil {
		return Idle{}, err
	}
	return all[pool], nil
}

// IdleOf tells how several do.
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

// Wait waits for an offer for a pod until the context ends or d has passed; it
// is false where none came. It counts what it waited.
//
// An offer is the pod's until that attempt speaks for itself (Begun): who was cut off
// while it was told asks again, at any gateway, and hears the same. Who asks later is
// told to leave. A pod whose
// caller has gone is struck out at once, so that nothing is given to nobody; one
// that was taken by then may still be given something, and hears of it if it
// asks again.
func (b *Book) Wait(ctx context.Context, p Pod, d time.Duration) (Offer, bool, error) {
	b.waiting.Add(1)
	defer b.waiting.Add(-1)
	w := &wait{b: b, pod: p, from: time.Now()}
	until := w.from.Add(d)
	for ctx.Err() == nil && time.Now().Before(until) {
		if o, ok := w.look(ctx); ok {
			return o, true, nil
		}
		_ = retry.Sleep(ctx, min(w.pace(), time.Until(until)))
	}
	return w.leave(ctx)
}

// wait is one that waits.
type wait struct {
	b    *Book
	pod  Pod
	from time.Time // counted so far
	err  error     // of the last look
}

// pace is how long it is until the next look. Many look less often: what they
// cost Redis together is bounded.
func (w *wait) pace() time.Duration {
	if w.err != nil {
		return lookSlowly
	}
	return min(max(lookEvery, time.Duration(w.b.waiting.Load())*lookShare), lookSlowly)
}

// look writes down that the pod waits, and sees whether it has an offer.
func (w *wait) look(ctx context.Context) (o Offer, ok bool) {
	p, now := &w.pod, time.Now()
	is, err := w.b.run(ctx, scriptWait, p.entry(), p.Attempt, p.Pool, p.Shape, p.GPUs, now.Sub(w.from).Milliseconds(), fresh.Milliseconds())
	if w.err = err; err != nil {
		return o, false // Redis may be back with the next
	}
	w.from = now
	o, ok, w.err = offerOf(is)
	return o, ok
}

// leave strikes the pod out. One that somebody has taken is about to be given
// something, and waits a moment more.
func (w *wait) leave(ctx context.Context) (o Offer, ok bool, err error) {
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

// offerOf reads what a script says of a pod's offer: one text, or none.
func offerOf(is []string) (o Offer, ok bool, err error) {
	if len(is) == 0 {
		return o, false, nil
	}
	if err := json.Unmarshal([]byte(is[0]), &o); err != nil {
		return o, false, fmt.Errorf("read what a pod is given: %w", err)
	}
	return o, true, nil
}

// Shape tells plans apart that cannot follow each other in a pod: its pool, team,
// image, user, resources, grace, secrets and volumes are the pod's and not the
// attempt's. It is empty for a plan whose pods are of no use to another: those of
// several workers are bound to each other.
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
		return "" // no number of a plan is one that JSON does not know
	}
	sum := sha256.Sum256(text)
	return base64.RawURLEncoding.EncodeToString(sum[:18])
}
