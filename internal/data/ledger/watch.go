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

// Beat records when an attempt's agent reported last.
func (l *Ledger) Beat(ctx context.Context, run string, attempt int, at time.Time) error {
	err := l.o.Redis.HSet(ctx, l.key("beats"), tidemill.AttemptName(run, attempt), at.UnixMilli()).Err()
	if err != nil {
		return fmt.Errorf("record in redis the beat of attempt %d of run %s: %w", attempt, run, err)
	}
	return nil
}

// Beats returns the time of each attempt's last report, by the attempt's name. A flush of
// Redis removes them.
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
		run, attempt, ok := tidemill.CutAttemptName(name)
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
