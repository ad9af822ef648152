package status

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
)

// A history has one point for each step of two hours.
const (
	HistoryEvery  = 10 * time.Second
	HistoryPoints = 720

	historyLives = (HistoryPoints + 6) * HistoryEvery // validity of a history that is not written any more
	leaseLives   = 5 * HistoryEvery / 2               // time after which another process samples, if the present one has died
	swapsKept    = 500                                // swaps of a scorer
)

// Series is one of the numbers in a history.
type Series struct {
	Name    string
	counter bool // a reading has a number that only grows; the history has its growth a second
}

// SeriesOf returns the series of a kind of things; nil if there is no such kind. The order is that of [Figures.Values].
func SeriesOf(kind string) []Series {
	switch kind {
	case "scorer":
		return []Series{{Name: "rate"}, {Name: "lag"}, {Name: "p50"}, {Name: "p99"}, {Name: "held"}}
	case "stream":
		return []Series{{"rate", true}, {Name: "lag"}}
	case "pool":
		return []Series{{Name: "running"}, {Name: "waiting"}, {Name: "slots"}, {"idleGPUs", true}}
	case "trigger":
		return []Series{{"delivered", true}, {"failed", true}, {Name: "parked"}}
	}
	return nil
}

// Unknown is the value of a number that is not known.
func Unknown() float64 { return math.NaN() }

// Figures are the numbers of one thing at one moment.
type Figures struct {
	Values    []float64 // Unknown if a number is not known
	Processes int       // number of processes whose counters are summed up; if it changes, their growth is not known
	Swaps     []Swap    // newest swaps of a scorer
}

// History keeps the numbers of the last two hours in Redis. One process at a time samples them. Its points are values in
// a ring, each with the number of its step, so that a step that was not sampled is recognised as unknown.
type History struct {
	client *redis.Client
	prefix string
	owner  string // id of this process
	log    *slog.Logger
	last   map[string]Figures // figures of the last sample of this process
	lastAt time.Time
}

// NewHistory returns the history of an install on one Kafka; nil without Redis.
func NewHistory(client *redis.Client, names tidemill.Names, kafka string, logger *slog.Logger) *History {
	if client == nil {
		return nil
	}
	return &History{client: client, prefix: names.Key("history", layout, kafka, ""), owner: rand.Text(), log: logger}
}

// Record samples the figures at each step until the context ends, unless another process does. The function look returns
// the figures by the name of the thing, such as scorer:NAME.
func (h *History) Record(ctx context.Context, look func(context.Context) map[string]Figures) {
	if h == nil {
		return
	}
	failed := false
	for {
		if retry.Sleep(ctx, untilNext(time.Now())) != nil {
			break
		}
		err := h.Sample(ctx, time.Now(), look)
		if err != nil && !failed && ctx.Err() == nil {
			h.log.Warn("history: writing the numbers failed; the history has a gap", "reason", err)
		}
		failed = err != nil
	}
	gone, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_ = scriptUnlease.Run(gone, h.client, []string{h.prefix + "lease"}, h.owner).Err() // if this fails, the lease expires
}

// untilNext returns the time until the next step.
func untilNext(now time.Time) time.Duration {
	return now.Truncate(HistoryEvery).Add(HistoryEvery).Sub(now)
}

// scriptLease takes or extends the lease. scriptUnlease gives it back. The variables must not be changed.
var (
	scriptLease = redis.NewScript(`local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1`)
	scriptUnlease = redis.NewScript(`if redis.call('GET', KEYS[1]) == ARGV[1] then redis.call('DEL', KEYS[1]) end
return 0`)
)

// Sample writes the points of one step if this process has the lease.
func (h *History) Sample(ctx context.Context, now time.Time, look func(context.Context) map[string]Figures) error {
	mine, err := scriptLease.Run(ctx, h.client, []string{h.prefix + "lease"}, h.owner, leaseLives.Milliseconds()).Bool()
	if err != nil || !mine {
		h.last = nil
		return err
	}
	before, elapsed := h.last, now.Sub(h.lastAt)
	h.last, h.lastAt = look(ctx), now
	step := now.Unix() / int64(HistoryEvery/time.Second)
	_, err = h.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		for name, is := range h.last {
			h.writePoint(ctx, pipe, name, step, growth(name, before[name], is, elapsed))
			h.writeSwaps(ctx, pipe, name, now, is.Swaps)
		}
		return nil
	})
	return err
}

func kindOf(name string) string {
	kind, _, _ := strings.Cut(name, ":")
	return kind
}

// growth returns the values of a point. A counter becomes its growth a second. The growth is unknown after the first
// reading, and if a process began or ended in between, because the counters of a process begin at zero.
func growth(name string, was, is Figures, elapsed time.Duration) []float64 {
	all := make([]float64, len(is.Values))
	for i, s := range SeriesOf(kindOf(name)) {
		all[i] = is.Values[i]
		if !s.counter {
			continue
		}
		all[i] = Unknown()
		if len(was.Values) == len(is.Values) && was.Processes == is.Processes && is.Values[i] >= was.Values[i] && elapsed > 0 {
			all[i] = (is.Values[i] - was.Values[i]) / elapsed.Seconds()
		}
	}
	return all
}

// pointSize returns the bytes of a point: the number of its step, and four bytes a value.
func pointSize(series int) int64 { return 4 + 4*int64(series) }

func (h *History) writePoint(ctx context.Context, pipe redis.Pipeliner, name string, step int64, values []float64) {
	b := binary.BigEndian.AppendUint32(nil, uint32(step))
	for _, v := range values {
		b = binary.BigEndian.AppendUint32(b, math.Float32bits(float32(v)))
	}
	key := h.prefix + name
	pipe.SetRange(ctx, key, step%HistoryPoints*pointSize(len(values)), string(b))
	pipe.PExpire(ctx, key, historyLives)
}

// writeSwaps adds swaps. A version is one swap of a model, however many partitions it is in; the first counts.
func (h *History) writeSwaps(ctx context.Context, pipe redis.Pipeliner, name string, now time.Time, swaps []Swap) {
	key := h.prefix + "swaps:" + name
	for _, s := range slices.Backward(swaps) { // the newest is the first
		pipe.ZAddNX(ctx, key, redis.Z{Score: float64(s.At.UnixMilli()), Member: fmt.Sprintf("%d %d %s", s.Before, s.Version, s.Model)})
	}
	if len(swaps) == 0 {
		return
	}
	pipe.ZRemRangeByScore(ctx, key, "-inf", fmt.Sprintf("(%d", now.Add(-HistoryPoints*HistoryEvery).UnixMilli()))
	pipe.ZRemRangeByRank(ctx, key, 0, -swapsKept-1)
	pipe.PExpire(ctx, key, historyLives)
}

// Past is the history of one thing.
type Past struct {
	Until  time.Time            // time of the last point
	Series map[string][]float64 // the oldest point first; Unknown if there is no sample
	Swaps  []Swap               // oldest first, without partitions and offsets
}

// Read returns the history of a thing up to now. Without Redis all points are unknown.
func (h *History) Read(ctx context.Context, name string, now time.Time) (Past, error) {
	series := SeriesOf(kindOf(name))
	last := now.Unix() / int64(HistoryEvery/time.Second)
	past := Past{Until: time.Unix(last*int64(HistoryEvery/time.Second), 0).UTC(), Series: map[string][]float64{}}
	var ring []byte
	if h != nil {
		var points *redis.StringCmd
		var swaps *redis.ZSliceCmd
		_, err := h.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
			points = pipe.Get(ctx, h.prefix+name)
			swaps = pipe.ZRangeWithScores(ctx, h.prefix+"swaps:"+name, 0, -1)
			return nil
		})
		if err != nil && !errors.Is(err, redis.Nil) {
			return past, fmt.Errorf("read the history of %s: %w", name, err)
		}
		ring, _ = points.Bytes()
		past.Swaps = readSwaps(swaps.Val(), now.Add(-HistoryPoints*HistoryEvery))
	}
	for i, s := range series {
		past.Series[s.Name] = readRing(ring, pointSize(len(series)), i, last)
	}
	return past, nil
}

// readRing returns the values of one series in the steps up to the last one.
func readRing(ring []byte, size int64, series int, last int64) []float64 {
	all := make([]float64, HistoryPoints)
	for i := range all {
		step := last - HistoryPoints + 1 + int64(i)
		at := step % HistoryPoints * size
		all[i] = Unknown()
		if at+size > int64(len(ring)) || binary.BigEndian.Uint32(ring[at:]) != uint32(step) {
			continue
		}
		v := math.Float32frombits(binary.BigEndian.Uint32(ring[at+4+4*int64(series):]))
		all[i], _ = strconv.ParseFloat(strconv.FormatFloat(float64(v), 'g', -1, 32), 64) // few digits; it never fails
	}
	return all
}

func readSwaps(found []redis.Z, since time.Time) (all []Swap) {
	for _, z := range found {
		text, _ := z.Member.(string)
		part := strings.SplitN(text, " ", 3) // a model's name may have spaces
		if len(part) < 3 {
			continue
		}
		before, errBefore := strconv.Atoi(part[0])
		version, errVersion := strconv.Atoi(part[1])
		s := Swap{At: time.UnixMilli(int64(z.Score)).UTC(), Model: part[2], Before: before, Version: version}
		if errBefore == nil && errVersion == nil && s.At.After(since) {
			all = append(all, s)
		}
	}
	return all
}

const (
	freshKept  = 500 // newest versions of a recipe
	freshLives = 30 * 24 * time.Hour
)

// Freshness keeps in Redis how long the newest versions of each recipe took from an event to their first score. A flush
// of Redis removes it.
type Freshness struct {
	client *redis.Client
	prefix string
}

// NewFreshness returns the Freshness of an install on one Kafka; nil without Redis.
func NewFreshness(client *redis.Client, names tidemill.Names, kafka string) *Freshness {
	if client == nil {
		return nil
	}
	return &Freshness{client: client, prefix: names.Key("fresh", layout, kafka, "")}
}

// scriptClaim keeps the newest version of a model that has scored. The variable must not be changed.
var scriptClaim = redis.NewScript(`local newest = redis.call('HGET', KEYS[1], ARGV[1])
if newest and tonumber(string.match(newest, '^%d+')) >= tonumber(ARGV[2]) then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2] .. ' ' .. ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return 1`)

// Claim reports whether no version of the model that is as new as the swap's has scored before. It returns true once for
// each version, whichever process asks.
func (f *Freshness) Claim(ctx context.Context, s Swap) (bool, error) {
	return scriptClaim.Run(ctx, f.client, []string{f.prefix + "newest"}, s.Model, s.Version, s.At.UnixMilli(), freshLives.Milliseconds()).Bool()
}

// Swapped returns the time at which a version scored first; zero if it is not known.
func (f *Freshness) Swapped(ctx context.Context, model string, version int) (time.Time, error) {
	if f == nil {
		return time.Time{}, nil
	}
	text, err := f.client.HGet(ctx, f.prefix+"newest", model).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return time.Time{}, fmt.Errorf("read when version %d of model %s scored first: %w", version, model, err)
	}
	number, at, _ := strings.Cut(text, " ")
	ms, err := strconv.ParseInt(at, 10, 64)
	if err != nil || number != strconv.Itoa(version) {
		return time.Time{}, nil
	}
	return time.UnixMilli(ms).UTC(), nil
}

// Add adds the stages of a version.
func (f *Freshness) Add(ctx context.Context, recipe string, stages api.FreshStages) error {
	text, err := json.Marshal(stages)
	if err != nil {
		return err
	}
	key := f.prefix + "of:" + recipe
	_, err = f.client.Pipelined(ctx, func(pipe redis.Pipeliner) error {
		pipe.LPush(ctx, key, text)
		pipe.LTrim(ctx, key, 0, freshKept-1)
		pipe.PExpire(ctx, key, freshLives)
		return nil
	})
	return err
}

// Read returns the stages of a recipe's newest versions. Without Redis there are none.
func (f *Freshness) Read(ctx context.Context, recipe string) (all []api.FreshStages, err error) {
	if f == nil {
		return nil, nil
	}
	texts, err := f.client.LRange(ctx, f.prefix+"of:"+recipe, 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the times of the models of recipe %s: %w", recipe, err)
	}
	for _, text := range texts {
		var one api.FreshStages
		if json.Unmarshal([]byte(text), &one) == nil { // a later version may write others
			all = append(all, one)
		}
	}
	return all, nil
}
