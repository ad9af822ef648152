package ledger

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/internal/data/ledger/fold"
)

// The kinds of things that links lead from and to.
const (
	kindEvent  = "event"
	kindCommit = "commit"
	kindRun    = "run"
	kindModel  = "model"
)

// Links are what came of a thing, as far as the ledger names it: of event/ID or
// commit/ID, runs as run/ID; of run/ID, commit/ID and the version model/NAME@N.
// The newest 256 are known, and come first. Of the events that asked for a run it
// knows the first and the newest.
func (l *Ledger) Links(ctx context.Context, from string) ([]string, error) {
	all, err := l.LinksOf(ctx, []string{from})
	return all[from], err
}

// LinksOf are the Links of several things, by their names.
func (l *Ledger) LinksOf(ctx context.Context, from []string) (map[string][]string, error) {
	if len(from) == 0 {
		return nil, nil
	}
	ids, ends := make([]string, len(from)), make([]string, len(from))
	for i, name := range from {
		kind, id, _ := strings.Cut(name, "/")
		ids[i], ends[i] = id, linkEnd(kind, id)
	}
	var linked, values *redis.SliceCmd
	err := l.consistent(ctx, func(pipe redis.Pipeliner) {
		linked, values = pipe.HMGet(ctx, l.key("links"), ends...), pipe.HMGet(ctx, l.key("runs"), ids...)
	})
	if err != nil {
		return nil, fmt.Errorf("look up what came of %s: %w", from[0], err)
	}
	all := make(map[string][]string, len(from))
	for i, name := range from {
		ends, _ := linked.Val()[i].(string)
		value, _ := values.Val()[i].(string)
		if all[name], err = cameOf(name, ends, value); err != nil {
			return nil, fmt.Errorf("look up what came of %s: %w", name, err)
		}
	}
	return all, nil
}

// cameOf are the links of a thing, from what Redis has of it.
func cameOf(name, ends, value string) (all []string, err error) {
	to := kindRun
	if strings.HasPrefix(name, kindRun+"/") {
		to = kindModel
		if all, err = commitOf(value); err != nil {
			return nil, err
		}
	}
	for _, end := range slices.Backward(strings.Fields(ends)) {
		all = append(all, to+"/"+end)
	}
	return all, nil
}

// commitOf is what a run that has ended put on its dataset.
func commitOf(value string) ([]string, error) {
	whole := behindWords(value, valueWords)
	if !strings.HasPrefix(whole, "{") {
		return nil, nil
	}
	var r struct {
		Commit string `json:"commit"`
	}
	if err := json.Unmarshal([]byte(whole), &r); err != nil || r.Commit == "" {
		return nil, err
	}
	return []string{kindCommit + "/" + r.Commit}, nil
}

// outline is what Redis lists of a making, besides what has ended.
type outline struct {
	key     bool // its key is one of the recipe's
	runs    []outlined
	pending string
}

// outlined is a run that has not ended.
type outlined struct {
	id    string
	asked int64  // the offset of the first fact that did
	value string // see runValue
	live  string // see liveValue
}

func outlineOf(m *fold.Making) outline {
	o := outline{key: listsKey(m)}
	for _, r := range [...]*tidemill.Run{m.Live, m.Waiting} {
		if r != nil {
			o.runs = append(o.runs, outlined{r.ID, r.Asked[0], runValue(r), liveValue(r)})
		}
	}
	if r, due := m.DueRun(); r != nil {
		o.pending = pendingValue(r, due)
	}
	return o
}

func (o *outline) run(id string) *outlined {
	for i := range o.runs {
		if o.runs[i].id == id {
			return &o.runs[i]
		}
	}
	return nil
}

// listsKey reports whether a making's key is one of the recipe's. One that has
// gone is not, once its last attempt has ended.
func listsKey(m *fold.Making) bool {
	return m.Next > 0 && !(m.Gone && m.Live == nil && m.Waiting == nil)
}

// runValue is where a run stands in the lists, what it came of, and where it is:
// in its making.
func runValue(r *tidemill.Run) string {
	return placed(r) + tidemill.RunKey(r.Recipe, r.Key)
}

// endedValue is the same, and the run itself.
func endedValue(r *tidemill.Run) (string, error) {
	whole, err := json.Marshal(r)
	return placed(r) + string(whole), err
}

func placed(r *tidemill.Run) string {
	return strconv.FormatInt(r.Asking.UnixMilli(), 10) + " " + string(r.State) + " " + origins(r) + " "
}

// valueWords are how many words of a run's value stand before where it is.
const valueWords = 3

// origins are what a run came of, as links have it: the events that asked for it
// first and last, and the commits that it learns from.
func origins(r *tidemill.Run) string {
	all := make([]string, 0, 2+len(r.From))
	add := func(kind, id string) {
		if at := linkEnd(kind, id); id != "" && !slices.Contains(all, at) {
			all = append(all, at)
		}
	}
	add(kindEvent, r.First.ID)
	add(kindEvent, r.Newest.ID)
	for _, c := range r.From {
		add(kindCommit, c)
	}
	return strings.Join(all, ",") + ","
}

// linkEnd is one end of a link in Redis: a word without commas.
func linkEnd(kind, id string) string { return kind + "/" + url.QueryEscape(id) }

// liveValue tells which attempt is under way where; it is 0 of a run that
// settles. It is empty where nobody has to watch.
func liveValue(r *tidemill.Run) string {
	number := 0
	switch {
	case r.State == tidemill.RunRunning:
		number = r.Attempt().Number
	case r.State != tidemill.RunSettling:
		return ""
	}
	return strconv.Itoa(number) + " " + field(r.Pool) + " " + tidemill.RunKey(r.Recipe, r.Key)
}

// liveWords are how many words of such a value stand before where the run is.
const liveWords = 2

// behindWords is what a value has behind some words.
func behindWords(value string, n int) string {
	for range n {
		_, value, _ = strings.Cut(value, " ")
	}
	return value
}

// field keeps a pool's name one word. Config allows no other.
func field(s string) string { return strings.Join(strings.Fields(s), "-") }

// pendingValue is how a run queues. Its time is never before it is due.
func pendingValue(r *tidemill.Run, due time.Time) string {
	return strconv.Itoa(r.Priority) + " " + strconv.FormatInt(millisUp(due), 10) + " " + r.ID
}

func millisUp(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }
