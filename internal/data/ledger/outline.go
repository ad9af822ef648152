package ledger

import (
	"encoding/json"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
)

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

func outlineOf(m *tidemill.Making) outline {
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
func listsKey(m *tidemill.Making) bool {
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
