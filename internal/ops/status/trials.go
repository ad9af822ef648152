package status

import (
	"cmp"
	"context"
	"encoding/json"
	"slices"

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
