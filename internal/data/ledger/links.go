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

// Links returns the effects of a thing. The effects of event/ID or commit/ID are runs, as
// run/ID. The effects of run/ID are a commit, as commit/ID, and a version, as
// model/NAME@N. Links knows the newest 256 effects, and returns the newest first. Of the
// events that asked for a run, only the first and the newest have a link to it.
func (l *Ledger) Links(ctx context.Context, from string) ([]string, error) {
	all, err := l.LinksOf(ctx, []string{from})
	return all[from], err
}

// LinksOf returns the Links of several things, by their names.
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
	err := l.readConsistent(ctx, func(pipe redis.Pipeliner) {
		linked, values = pipe.HMGet(ctx, l.key("links"), ends...), pipe.HMGet(ctx, l.key("runs"), ids...)
	})
	if err != nil {
		return nil, fmt.Errorf("look up the links of %s: %w", from[0], err)
	}
	all := make(map[string][]string, len(from))
	for i, name := range from {
		ends, _ := linked.Val()[i].(string)
		value, _ := values.Val()[i].(string)
		if all[name], err = linksFrom(name, ends, value); err != nil {
			return nil, fmt.Errorf("look up the links of %s: %w", name, err)
		}
	}
	return all, nil
}

// linksFrom returns the links of a thing from its values in Redis.
func linksFrom(name, ends, value string) (all []string, err error) {
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

// commitOf returns the commit that a run which has ended made on its dataset.
func commitOf(value string) ([]string, error) {
	whole := afterWords(value, valueWords)
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

// outline has the parts of a making that Redis lists, without the runs that have ended.
type outline struct {
	key     bool   // whether its key is one of the recipe's
	entry   string // entry in the list of keys; empty if it is not listed
	runs    []liveRun
	pending string
}

// liveRun is a run that has not ended.
type liveRun struct {
	id    string
	asked int64  // offset of the first fact that asked for it
	value string // value in the hash runs; see runValue
	live  string // value in the hash live; see liveValue
}

func outlineOf(m *fold.Making) outline {
	o := outline{key: listsKey(m)}
	if o.key {
		o.entry = keyEntryOf(m).value()
	}
	for _, r := range [...]*tidemill.Run{m.Live, m.Waiting} {
		if r != nil {
			o.runs = append(o.runs, liveRun{r.ID, r.Asked[0], runValue(r), liveValue(r)})
		}
	}
	if r, due := m.DueRun(); r != nil {
		o.pending = pendingValue(r, due)
	}
	return o
}

func (o *outline) run(id string) *liveRun {
	for i := range o.runs {
		if o.runs[i].id == id {
			return &o.runs[i]
		}
	}
	return nil
}

// listsKey reports whether a making's key is one of the recipe's keys. A removed key is not
// one any more once its last attempt has ended.
func listsKey(m *fold.Making) bool {
	return m.Next > 0 && !(m.Gone && m.Live == nil && m.Waiting == nil)
}

// runValue returns the value of a run that has not ended: its place in the lists, its
// origins, and the name of its making, which contains the run.
func runValue(r *tidemill.Run) string {
	return valuePrefix(r) + tidemill.RunKey(r.Recipe, r.Key)
}

// endedValue returns the value of a run that has ended: like runValue, but with the run's
// JSON at the end.
func endedValue(r *tidemill.Run) (string, error) {
	whole, err := json.Marshal(r)
	return valuePrefix(r) + string(whole), err
}

func valuePrefix(r *tidemill.Run) string {
	return strconv.FormatInt(r.Asking.UnixMilli(), 10) + " " + string(r.State) + " " + origins(r) + " "
}

// valueWords is the number of words in a run's value before the making or the JSON.
const valueWords = 3

// origins returns the origins of a run as ends of links: the first and the newest event
// that asked for it, and the commits among its inputs.
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

// linkEnd returns one end of a link in Redis: a word without commas.
func linkEnd(kind, id string) string { return kind + "/" + url.QueryEscape(id) }

// liveValue returns the number of the attempt under way and its pool. The number is 0 for a
// run that settles. The value is empty if the run need not be watched.
func liveValue(r *tidemill.Run) string {
	number := 0
	switch {
	case r.State == tidemill.RunRunning:
		number = r.Attempt().Number
	case r.State != tidemill.RunCommitting:
		return ""
	}
	return strconv.Itoa(number) + " " + escapePool(r.Pool) + " " + tidemill.RunKey(r.Recipe, r.Key)
}

// liveWords is the number of words in such a value before the name of the making.
const liveWords = 2

// afterWords returns the rest of a value after its first n words.
func afterWords(value string, n int) string {
	for range n {
		_, value, _ = strings.Cut(value, " ")
	}
	return value
}

// escapePool makes a pool's name one word. The config allows only such names.
func escapePool(s string) string { return strings.Join(strings.Fields(s), "-") }

// pendingValue returns the value of a run in the queue. Its time is rounded up, so that it
// is never before the run is due.
func pendingValue(r *tidemill.Run, due time.Time) string {
	return strconv.Itoa(r.Priority) + " " + strconv.FormatInt(millisUp(due), 10) + " " + r.ID
}

func millisUp(t time.Time) int64 { return t.Add(time.Millisecond - 1).UnixMilli() }
