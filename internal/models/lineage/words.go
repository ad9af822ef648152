package lineage

import (
	"cmp"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
)

const shownID = 10 // letters of an id in a title

func shortID(id string) string { return id[:min(len(id), shownID)] }

// shortDigest leaves the beginning of a digest: dir:3f2ab1c04d of a folder's.
func shortDigest(text string) string {
	const shown = 12
	at := strings.LastIndexByte(text, ':') + 1
	if digest := text[at:]; len(digest) >= 32 && !strings.ContainsFunc(digest, notHex) {
		return text[:at] + digest[:shown]
	}
	return text
}

func notHex(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') }

// headline is the first of some metrics, those first that say how well a model
// does.
func headline(metrics map[string]float64) string {
	const most = 3
	rank := func(name string) int {
		if i := slices.Index([]string{"accuracy", "macroF1", "f1", "loss"}, name); i >= 0 {
			return i
		}
		return most + 1
	}
	names := slices.SortedFunc(maps.Keys(metrics), func(a, b string) int {
		return cmp.Or(cmp.Compare(rank(a), rank(b)), strings.Compare(a, b))
	})
	var parts []string
	for _, name := range names[:min(len(names), most)] {
		parts = append(parts, name+" "+number(metrics[name]))
	}
	return strings.Join(parts, ", ")
}

func number(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }

func count(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return strconv.Itoa(n) + " " + noun + "s"
}

func size(n int64) string {
	const step = 1024
	if n < step {
		return fmt.Sprintf("%d B", n)
	}
	v, units := float64(n)/step, "KMGTP"
	for v >= step && len(units) > 1 {
		v, units = v/step, units[1:]
	}
	return fmt.Sprintf("%.1f %ciB", v, units[0])
}

func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}

// without is an address without what may be a key to it.
func without(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		before, _, _ := strings.Cut(uri, "?")
		return before
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return u.String()
}

// placeOf is where an attempt ran, in words.
func placeOf(w *tidemill.Where) string {
	parts := []string{w.Node}
	if w.Card != "" {
		parts = append(parts, w.Card)
	}
	if len(w.GPUs) > 0 {
		parts = append(parts, "GPU "+strings.Trim(fmt.Sprint(w.GPUs), "[]"))
	}
	return strings.Join(parts, ", ")
}

// at is a time for a node; nil for none.
func at(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}
