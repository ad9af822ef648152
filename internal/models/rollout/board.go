package rollout

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// Standing is the state of a recipe's rollout that only the active controller knows.
type Standing struct {
	Rollout string             `json:"rollout,omitempty"` // open rollout; empty if there is none
	At      time.Time          `json:"at"`
	Wait    string             `json:"wait,omitempty"` // what the rollout waits for
	Figures map[string]float64 `json:"figures,omitempty"`
	Back    int                `json:"back,omitempty"` // number of keys that are rolled back
	Todo    int                `json:"todo,omitempty"` // number of keys that are still to be rolled back
	Left    int                `json:"left,omitempty"` // number of keys that cannot be rolled back
	Why     map[string]string  `json:"why,omitempty"`  // by model: the reason, for some of them
}

// Board shows the standings of the rollouts in Redis. They are not on the log, and a flush loses them until the next
// look of the controller.
type Board struct {
	redis *redis.Client
	key   string
}

// standingLives is how long a standing is valid without renewal.
const standingLives = time.Minute

// NewBoard returns the board of an install on one Kafka; nil without Redis.
func NewBoard(client *redis.Client, names tidemill.Names, kafka string) *Board {
	if client == nil {
		return nil
	}
	return &Board{redis: client, key: names.Key("rollouts", "1", kafka, "standing")}
}

// write writes a standing. An error is ignored: the board decides nothing, and the next look writes it again.
func (b *Board) write(ctx context.Context, recipe string, s Standing) {
	if b == nil {
		return
	}
	text, err := json.Marshal(s)
	if err == nil {
		_ = b.redis.Set(ctx, b.key+":"+recipe, text, standingLives).Err()
	}
}

// Read returns the standing of a recipe; nil if no controller has written one lately.
func (b *Board) Read(ctx context.Context, recipe string) (*Standing, error) {
	if b == nil {
		return nil, nil
	}
	text, err := b.redis.Get(ctx, b.key+":"+recipe).Bytes()
	if errors.Is(err, redis.Nil) {
		return nil, nil
	}
	s := &Standing{}
	if err == nil {
		err = json.Unmarshal(text, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the standing of recipe %s's rollout: %w", recipe, err)
	}
	return s, nil
}
