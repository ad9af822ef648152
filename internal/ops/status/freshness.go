package status

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
)

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
