package ledger

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
)

// ErrAmbiguous says that more than one run's id begins so.
var ErrAmbiguous = errors.New("more than one run's id begins so")

// wholeID is how long every id is; a beginning is shorter.
const wholeID = 26

// Find is Run for an id of which only the beginning is known. Ids are looked
// through for it, all that the ledger names: that is for people, one at a time.
func (l *Ledger) Find(ctx context.Context, beginning string) (*tidemill.Run, error) {
	if len(beginning) >= wholeID {
		return l.Run(ctx, beginning)
	}
	ids, err := l.idsBeginning(ctx, beginning)
	switch {
	case err != nil:
		return nil, fmt.Errorf("look up run %s: %w", beginning, err)
	case len(ids) == 0:
		return nil, fmt.Errorf("look up run %s: %w", beginning, ErrUnknown)
	case len(ids) > 1:
		return nil, fmt.Errorf("look up run %s: %w: %s and %s; give more of it", beginning, ErrAmbiguous, ids[0], ids[1])
	}
	return l.Run(ctx, ids[0])
}

// idsBeginning are the first two ids that begin so.
func (l *Ledger) idsBeginning(ctx context.Context, beginning string) (ids []string, err error) {
	if strings.ContainsFunc(beginning, func(r rune) bool { return r < '2' || r > '7' && r < 'a' || r > 'z' }) {
		return nil, nil // no id has such a letter, and a pattern would
	}
	const some = 10_000
	for cursor := uint64(0); ; {
		var scan *redis.ScanCmd
		if err := l.consistent(ctx, func(pipe redis.Pipeliner) {
			scan = pipe.HScan(ctx, l.key("runs"), cursor, beginning+"*", some)
		}); err != nil {
			return nil, err
		}
		found, next := scan.Val()
		for i := 0; i < len(found); i += 2 { // a field, and its value
			id := found[i]
			if len(ids) == 0 || len(ids) == 1 && ids[0] != id { // a scan may tell of one twice
				ids = append(ids, id)
			}
		}
		if cursor = next; cursor == 0 || len(ids) > 1 {
			return ids, nil
		}
	}
}
