package fleet

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/internal/data/ledger"
	"tidemill.dev/triggers/filter"
)

// Query selects keys and sorts them. Empty fields select all.
type Query struct {
	Recipe          string
	States          []api.KeyState
	Pinned, Running *bool
	Search          string         // part of the key or of the model's name, in any case
	Where           *filter.Filter // condition on the attributes recipe, key, model, state, champion, newest, age, pinned and running
	Seen            Seen
	Sort            string // one of Sorts; key if empty
	Descending      bool
	After           string // Next of the page before
	At              int    // index of the first key
	Limit           int
}

// Sorts returns the orders of keys.
func Sorts() []string { return []string{"key", "state", "age", "newest"} }

// ErrAfter says that the After of a query is not from a page with the same order.
var ErrAfter = errors.New("after names no key of this list")

// Row is a key with its state.
type Row struct {
	ledger.FleetKey
	State api.KeyState
}

// Page is a part of the selected keys.
type Page struct {
	Rows  []Row
	Next  string // empty on the last page
	Total int    // number of keys on all pages
	Index int    // index of the first row among all
}

// place is a key's place in an order. Keys with the same value are ordered by their index.
type place struct {
	value int64
	index int
}

// Page returns a page of keys.
func (v *View) Page(ctx context.Context, q *Query) (Page, error) {
	places, err := v.selected(ctx, q)
	if err != nil {
		return Page{}, err
	}
	from := min(q.At, len(places))
	if q.After != "" {
		if from, err = v.placeAfter(q, places); err != nil {
			return Page{}, err
		}
	}
	p := Page{Total: len(places), Index: from}
	to := min(from+q.Limit, len(places))
	for _, at := range places[from:to] {
		p.Rows = append(p.Rows, Row{v.fleet.At(at.index), v.states[v.cells[at.index].state]})
	}
	if to < len(places) && to > from {
		p.Next = v.markOf(q, places[to-1])
	}
	return p, nil
}

// checkEvery is how many keys are looked at between two checks of the context.
const checkEvery = 1000

// selected returns the places of the selected keys in their order.
func (v *View) selected(ctx context.Context, q *Query) ([]place, error) {
	states := make([]bool, len(v.states))
	for i, s := range v.states {
		states[i] = len(q.States) == 0 || slices.Contains(q.States, s)
	}
	search, where, value := strings.ToLower(q.Search), whereOf(q.Where), v.valueOf(q)
	from, to := v.fleet.Of(q.Recipe)
	places := make([]place, 0, to-from)
	for i := from; i < to; i++ {
		if i%checkEvery == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		c := v.cells[i]
		if !states[c.state] || q.Pinned != nil && *q.Pinned != c.pinned || q.Running != nil && *q.Running != c.running {
			continue
		}
		k := v.fleet.At(i)
		if finds(&k, search) && (q.Seen == nil || q.Seen(k.Recipe, k.Key)) && where.holds(&k, v, c) {
			places = append(places, place{value(&k, c), i})
		}
	}
	v.sort(q, places)
	return places, nil
}

func finds(k *ledger.FleetKey, search string) bool {
	return search == "" || strings.Contains(strings.ToLower(k.Key), search) || strings.Contains(strings.ToLower(k.Model), search)
}

// valueOf returns the value by which the query sorts. A value does not depend on the time, so that
// a place of an earlier page is still right.
func (v *View) valueOf(q *Query) func(*ledger.FleetKey, cell) int64 {
	sign := int64(1)
	if q.Descending {
		sign = -1
	}
	switch q.Sort {
	case "state":
		return func(_ *ledger.FleetKey, c cell) int64 { return sign * int64(c.state) }
	case "age":
		return func(k *ledger.FleetKey, _ cell) int64 {
			if k.Champion == 0 {
				return sign * math.MaxInt64 // older than all
			}
			return sign * -k.Began
		}
	case "newest":
		return func(k *ledger.FleetKey, _ cell) int64 { return sign * k.Registered }
	}
	return func(*ledger.FleetKey, cell) int64 { return 0 }
}

// isReversed reports whether the keys themselves are in descending order.
func (q *Query) isReversed() bool { return q.Descending && (q.Sort == "" || q.Sort == "key") }

func (v *View) sort(q *Query, places []place) {
	switch {
	case q.isReversed():
		slices.Reverse(places)
	case q.Sort != "" && q.Sort != "key":
		slices.SortFunc(places, func(a, b place) int { return cmp.Or(cmp.Compare(a.value, b.value), cmp.Compare(a.index, b.index)) })
	}
}

// mark is the place directly after a key, as the caller gets it. It names the key, because keys
// before it may come and go between two pages.
type mark struct {
	Sort   string `json:"s"`
	Value  int64  `json:"v"`
	Recipe string `json:"r"`
	Key    string `json:"k"`
}

func (q *Query) order() string {
	if q.Descending {
		return "-" + q.Sort
	}
	return q.Sort
}

func (v *View) markOf(q *Query, at place) string {
	k := v.fleet.At(at.index)
	text, _ := json.Marshal(mark{q.order(), at.value, k.Recipe, k.Key}) // texts and numbers can be encoded
	return base64.RawURLEncoding.EncodeToString(text)
}

// placeAfter returns the index of the first place after the one that the query names.
func (v *View) placeAfter(q *Query, places []place) (int, error) {
	var m mark
	text, err := base64.RawURLEncoding.DecodeString(q.After)
	if err == nil {
		err = json.Unmarshal(text, &m)
	}
	if err != nil || m.Sort != q.order() {
		return 0, fmt.Errorf("continue the list of keys: %w; begin at the first page", ErrAfter)
	}
	i, found := slices.BinarySearchFunc(places, m, func(at place, m mark) int {
		k := v.fleet.At(at.index)
		names := cmp.Or(strings.Compare(k.Recipe, m.Recipe), strings.Compare(k.Key, m.Key))
		if q.isReversed() {
			names = -names
		}
		return cmp.Or(cmp.Compare(at.value, m.Value), names)
	})
	if found {
		i++
	}
	return i, nil
}

// where matches keys with a condition, as if they were events.
type where struct {
	filter *filter.Filter
	view   broker.View
}

func whereOf(f *filter.Filter) *where {
	return &where{f, broker.View{ID: "key", Source: "/tidemill", Type: tidemill.TypeRunRequested, Extensions: make([]broker.Attribute, 0, 9)}}
}

func (w *where) holds(k *ledger.FleetKey, v *View, c cell) bool {
	if w.filter == nil {
		return true
	}
	w.view.Subject = k.Key
	w.view.Extensions = append(w.view.Extensions[:0],
		broker.Attribute{Name: "key", Value: k.Key},
		broker.Attribute{Name: tidemill.AttrRecipe, Value: k.Recipe},
		broker.Attribute{Name: tidemill.AttrModel, Value: k.Model},
		broker.Attribute{Name: "state", Value: string(v.states[c.state])},
		broker.Attribute{Name: "champion", Value: strconv.Itoa(k.Champion)},
		broker.Attribute{Name: "newest", Value: strconv.Itoa(k.Newest)},
		broker.Attribute{Name: "pinned", Value: strconv.FormatBool(k.Pinned)},
		broker.Attribute{Name: "running", Value: strconv.FormatBool(k.Running)})
	if k.Champion != 0 {
		seconds := max(0, min((v.now.UnixMilli()-k.Began)/1000, math.MaxInt32)) // greater numbers are no numbers of the language
		w.view.Extensions = append(w.view.Extensions, broker.Attribute{Name: "age", Value: strconv.FormatInt(seconds, 10)})
	}
	return w.filter.Match(&w.view)
}
