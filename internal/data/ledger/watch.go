package ledger

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// Live returns the runs that must be watched: runs with an attempt under way, and runs that settle.
func (l *Ledger) Live(ctx context.Context) ([]tidemill.Run, error) {
	var live *redis.MapStringStringCmd
	err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { live = pipe.HGetAll(ctx, l.key("live")) })
	if err != nil {
		return nil, fmt.Errorf("list the live runs: %w", err)
	}
	var all []tidemill.Run
	members := make([]string, 0, len(live.Val()))
	for _, value := range live.Val() {
		members = append(members, afterWords(value, liveWords))
	}
	makings, err := parseStates[fold.Making](ctx, l, hashMakings, members)
	if err != nil {
		return nil, fmt.Errorf("list the live runs: %w", err)
	}
	for _, m := range makings {
		if m.Live != nil && liveValue(m.Live) != "" {
			all = append(all, *m.Live)
		}
	}
	return all, nil
}

// UnderWay returns the names of the attempts under way. UnderWay is much cheaper than
// [Ledger.Live], which reads whole runs.
func (l *Ledger) UnderWay(ctx context.Context) (map[string]bool, error) {
	var live *redis.MapStringStringCmd
	err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { live = pipe.HGetAll(ctx, l.key("live")) })
	if err != nil {
		return nil, fmt.Errorf("list the running attempts: %w", err)
	}
	all := make(map[string]bool, len(live.Val()))
	for run, value := range live.Val() {
		attempt, _, _ := strings.Cut(value, " ")
		if n := int(parseNumber(attempt)); n > 0 { // 0 if the run settles
			all[tidemill.AttemptName(run, n)] = true
		}
	}
	return all, nil
}

// Used returns the number of attempts under way by pool, and the number of runs by recipe
// that are due and could begin if a slot were free.
func (l *Ledger) Used(ctx context.Context) (running map[string]int, due map[string]int, err error) {
	_, due, err = l.queues(ctx, time.Now())
	if err != nil {
		return nil, nil, err
	}
	var fields *redis.MapStringStringCmd
	if err = l.readConsistent(ctx, func(pipe redis.Pipeliner) { fields = pipe.HGetAll(ctx, l.key("running")) }); err != nil {
		return nil, nil, fmt.Errorf("count what runs in the pools: %w", err)
	}
	running = map[string]int{}
	for name, n := range fields.Val() {
		if !strings.Contains(name, "/") {
			running[name] = int(parseNumber(n))
		}
	}
	return running, due, nil
}

// Beat records when an attempt's agent reported last. The part names one of several workers or servers, other than the first
// worker. A zero time removes the record of an agent that has ended.
func (l *Ledger) Beat(ctx context.Context, run string, attempt int, part string, at time.Time) error {
	name := tidemill.AttemptName(run, attempt)
	if part != "" {
		name += "/" + part
	}
	var err error
	if at.IsZero() {
		err = l.o.Redis.HDel(ctx, l.key("beats"), name).Err()
	} else {
		err = l.o.Redis.HSet(ctx, l.key("beats"), name, at.UnixMilli()).Err()
	}
	if err != nil {
		return fmt.Errorf("record in redis the beat of attempt %d of run %s: %w", attempt, run, err)
	}
	return nil
}

// Beats returns the time of each attempt's last report, by the attempt's name. The reports of other workers and servers have
// names such as ATTEMPT/w1. A flush of Redis removes them all, and a controller of an earlier version removes such names.
func (l *Ledger) Beats(ctx context.Context) (map[string]time.Time, error) {
	var beats, live *redis.MapStringStringCmd
	err := l.readConsistent(ctx, func(pipe redis.Pipeliner) {
		beats, live = pipe.HGetAll(ctx, l.key("beats")), pipe.HGetAll(ctx, l.key("live"))
	})
	if err != nil {
		return nil, fmt.Errorf("read the beats of the attempts: %w", err)
	}
	all, late := map[string]time.Time{}, []string{}
	for name, ms := range beats.Val() {
		whole, _, _ := strings.Cut(name, "/")
		run, attempt, ok := tidemill.CutAttemptName(whole)
		if ok && strings.HasPrefix(live.Val()[run], fmt.Sprint(attempt, " ")) {
			all[name] = time.UnixMilli(parseNumber(ms)).UTC()
		} else {
			late = append(late, name) // the attempt had ended before
		}
	}
	if len(late) > 0 {
		if err := l.o.Redis.HDel(ctx, l.key("beats"), late...).Err(); err != nil {
			return nil, fmt.Errorf("delete the beats of ended attempts: %w", err)
		}
	}
	return all, nil
}

// BeatsOf returns the beats of some agents, by their names in Beats. Unlike Beats, it reads nothing about others. An attempt that
// has ended may still have a beat.
func (l *Ledger) BeatsOf(ctx context.Context, agents []string) (map[string]time.Time, error) {
	var beats *redis.SliceCmd
	if err := l.readConsistent(ctx, func(pipe redis.Pipeliner) { beats = pipe.HMGet(ctx, l.key("beats"), agents...) }); err != nil {
		return nil, fmt.Errorf("read the beats of %d agents: %w", len(agents), err)
	}
	all := map[string]time.Time{}
	for i, value := range beats.Val() {
		if ms, ok := value.(string); ok {
			all[agents[i]] = time.UnixMilli(parseNumber(ms)).UTC()
		}
	}
	return all, nil
}

// Tell stores the newest progress of a run for Told. A flush of Redis removes it.
func (l *Ledger) Tell(ctx context.Context, run string, progress []byte) error {
	if err := l.o.Redis.HSet(ctx, l.key("told"), run, progress).Err(); err != nil {
		return fmt.Errorf("note the progress of run %s in redis: %w", run, err)
	}
	return nil
}

// Told returns the newest progress of runs. It leaves out runs without progress.
func (l *Ledger) Told(ctx context.Context, runs []string) (map[string][]byte, error) {
	all := map[string][]byte{}
	if len(runs) == 0 {
		return all, nil
	}
	values, err := l.o.Redis.HMGet(ctx, l.key("told"), runs...).Result()
	if err != nil {
		return nil, fmt.Errorf("read the progress of %d runs from redis: %w", len(runs), err)
	}
	for i, v := range values {
		if text, ok := v.(string); ok {
			all[runs[i]] = []byte(text)
		}
	}
	return all, nil
}

// The points of a run's curve. A point is stored if at least a hundredth of the time since the first
// point has passed since the last. So a curve of an hour has some 600 points and one of a month some
// 1,300, and none has to be removed.
const (
	pointsApart = 100
	mostPoints  = 2000
	pointsLive  = 24 * time.Hour // the retention of the stream progress
)

// scriptPoint appends a point, which begins with its time, unless the last one is too near.
var scriptPoint = redis.NewScript(`local key, at = KEYS[1], tonumber(ARGV[1])
local last = redis.call('LINDEX', key, -1)
if last then
  local before = tonumber(string.match(last, '^%d+'))
  local first = tonumber(string.match(redis.call('LINDEX', key, 0), '^%d+'))
  if at <= before or (at - before) * ARGV[3] < before - first or redis.call('LLEN', key) >= tonumber(ARGV[4]) then return 0 end
end
redis.call('RPUSH', key, ARGV[1] .. ' ' .. ARGV[2])
redis.call('PEXPIRE', key, ARGV[5])
return 1`)

// AddPoint adds a point to the curve of a run, unless the last point is too near in time. A flush of
// Redis removes the curve, and so does a day without a point.
func (l *Ledger) AddPoint(ctx context.Context, run string, at time.Time, point []byte) error {
	err := scriptPoint.Run(ctx, l.o.Redis, []string{l.key(curvePrefix + run)}, at.UnixMilli(), point, pointsApart, mostPoints, pointsLive.Milliseconds()).Err()
	if err != nil {
		return fmt.Errorf("add to the curve of run %s in redis: %w", run, err)
	}
	return nil
}

const curvePrefix = "curve:"

// Points returns the points of a run's curve, oldest first.
func (l *Ledger) Points(ctx context.Context, run string) ([][]byte, error) {
	entries, err := l.o.Redis.LRange(ctx, l.key(curvePrefix+run), 0, -1).Result()
	if err != nil {
		return nil, fmt.Errorf("read the curve of run %s from redis: %w", run, err)
	}
	points := make([][]byte, len(entries))
	for i, entry := range entries {
		_, point, _ := strings.Cut(entry, " ")
		points[i] = []byte(point)
	}
	return points, nil
}

// ForgetPoints removes the curve of a run.
func (l *Ledger) ForgetPoints(ctx context.Context, run string) error {
	if err := l.o.Redis.Del(ctx, l.key(curvePrefix+run)).Err(); err != nil {
		return fmt.Errorf("remove the curve of run %s from redis: %w", run, err)
	}
	return nil
}
