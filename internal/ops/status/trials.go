package status

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/api"
)

// MostTrials is the number of running trials of a scorer that are published.
const MostTrials = 1000

// Trials stores the states of running trials, which observers publish.
type Trials struct{ redisSet }

// NewTrials returns the trials of an install on one Kafka; nil without Redis.
func NewTrials(client *redis.Client, names tidemill.Names, kafka string) *Trials {
	if client == nil {
		return nil
	}
	return &Trials{redisSet{client: client, index: names.Key("trials", layout, kafka, "{standing}"), what: "the trials"}}
}

// Publish writes the states of a scorer's trials every two seconds until the context ends, and then removes
// them.
func (t *Trials) Publish(ctx context.Context, scorer string, now func() []api.Trial) {
	if t != nil {
		t.publish(ctx, scorer, func() any {
			all := now()
			return all[:min(len(all), MostTrials)]
		})
	}
}

// Read returns the states of all trials, sorted by model.
func (t *Trials) Read(ctx context.Context) (all []api.Trial, err error) {
	if t == nil {
		return nil, ErrNoRedis
	}
	err = t.readEntries(ctx, func(text []byte) error {
		var part []api.Trial
		err := json.Unmarshal(text, &part)
		all = append(all, part...)
		return err
	})
	slices.SortFunc(all, func(a, b api.Trial) int {
		return cmp.Or(cmp.Compare(a.Model, b.Model), cmp.Compare(a.Version, b.Version))
	})
	return all, err
}

// Rollout is the state of a recipe's rollout that only the active controller knows.
type Rollout struct {
	Rollout string             `json:"rollout,omitempty"` // open rollout; empty if there is none
	At      time.Time          `json:"at"`
	Wait    string             `json:"wait,omitempty"` // what the rollout waits for
	Figures map[string]float64 `json:"figures,omitempty"`
	Back    int                `json:"back,omitempty"` // number of keys that are rolled back
	Todo    int                `json:"todo,omitempty"` // number of keys that are still to be rolled back
	Left    int                `json:"left,omitempty"` // number of keys that cannot be rolled back
	Why     map[string]string  `json:"why,omitempty"`  // by model: the reason, for some of them
}

// Rollouts shows the states of the rollouts in Redis. They are not on the log, and a flush loses them until the next
// look of the controller.
type Rollouts struct {
	redis *redis.Client
	key   string
}

// rolloutLives is how long a state is valid without renewal.
const rolloutLives = time.Minute

// NewRollouts returns the Rollouts of an install on one Kafka; nil without Redis.
func NewRollouts(client *redis.Client, names tidemill.Names, kafka string) *Rollouts {
	if client == nil {
		return nil
	}
	return &Rollouts{redis: client, key: names.Key("rollouts", layout, kafka, "standing")}
}

// Write writes the state of a recipe's rollout. An error is ignored: it decides nothing, and the next look writes it again.
func (b *Rollouts) Write(ctx context.Context, recipe string, s Rollout) {
	if b == nil {
		return
	}
	text, err := json.Marshal(s)
	if err == nil {
		_ = b.redis.Set(ctx, b.key+":"+recipe, text, rolloutLives).Err()
	}
}

// Read returns the state of a recipe's rollout; nil if no controller has written one lately.
func (b *Rollouts) Read(ctx context.Context, recipe string) (*Rollout, error) {
	if b == nil {
		return nil, nil
	}
	text, err := b.redis.Get(ctx, b.key+":"+recipe).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	s := &Rollout{}
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the state of recipe %s's rollout: %w", recipe, err)
	}
	return s, nil
}
