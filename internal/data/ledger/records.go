package ledger

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// records reads runs that have ended. Those that have been forgotten since they
// were named are left out.
func (l *Ledger) records(ctx context.Context, ids []string) ([]tidemill.Run, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var values *redis.SliceCmd
	if err := l.consistent(ctx, func(pipe redis.Pipeliner) { values = pipe.HMGet(ctx, l.key("runs"), ids...) }); err != nil {
		return nil, err
	}
	var all []tidemill.Run
	for i, v := range values.Val() {
		text, _ := v.(string)
		whole := behindWords(text, valueWords)
		if !strings.HasPrefix(whole, "{") {
			continue
		}
		r, err := decodeRun(ids[i], whole)
		if err != nil {
			return nil, err
		}
		all = append(all, *r)
	}
	return all, nil
}
