package ledger

import (
	"context"
	"slices"

	"github.com/redis/go-redis/v9"
)

// AtOnce limits how many facts a ledger folds at once.
func (o Options) AtOnce(facts int) Options {
	o.atOnce = facts
	return o
}

// Far sets the number of facts from which a ledger is far behind, and limits the rows that
// it keeps unwritten then.
func (o Options) Far(facts int64, rows int) Options {
	o.far, o.rows = facts, rows
	return o
}

// SizedKeys returns the keys whose sizes are recorded.
func SizedKeys() []string { return append(slices.Clone(sizedHashes), sizedRoots...) }

// JoinFleet makes a fleet from the entries of one partition as Redis has them: name → value.
func JoinFleet(models, keys map[string]string) *Fleet {
	read := func(values map[string]string) []*redis.MapStringStringCmd {
		c := redis.NewMapStringStringCmd(context.Background())
		c.SetVal(values)
		return []*redis.MapStringStringCmd{c}
	}
	m, k := newRegister("", "", parseEntry), newRegister("", "", parseKeyEntry)
	m.replaceEntries([]string{"0"}, nil, read(models))
	k.replaceEntries([]string{"0"}, nil, read(keys))
	return joinFleet(m.entries, k.entries)
}

// Layout is the version of the data in Redis.
const Layout = layout
