package ledger

import (
	"context"
	"fmt"
	"strconv"

	"github.com/redis/go-redis/v9"
)

// ModelsMark is a number that grows whenever a model's champion changes, which
// some other changes of models do, too. It costs one question.
func (l *Ledger) ModelsMark(ctx context.Context) (int64, error) {
	var listed *redis.MapStringStringCmd
	if err := l.consistent(ctx, func(pipe redis.Pipeliner) { listed = pipe.HGetAll(ctx, l.key(hashListed)) }); err != nil {
		return 0, fmt.Errorf("ask whether models have changed: %w", err)
	}
	sum := int64(0)
	for partition, behind := range listed.Val() {
		n, err := strconv.ParseInt(behind, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("ask whether the models of partition %s have changed: %w", partition, err)
		}
		sum += n
	}
	return sum, nil
}
