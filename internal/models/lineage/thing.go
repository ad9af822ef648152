package lineage

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
)

// thing is a node with its links on both sides.
type thing struct {
	ref             ref
	node            api.GraphNode
	key             string // key that a caller must be allowed to read
	dataset         string // dataset of a commit; the caller must be allowed to read its keys instead of key
	free            bool   // whether it belongs to no key, and is visible to all callers that see a link to it
	causes, effects []link
	notes           []string
}

// link leads from a thing to one of its causes, or of its effects.
type link struct {
	to   ref
	what api.GraphRelation
	leaf bool // whether the walk ends at the linked thing

	// linked is the data that this thing has about the linked thing. It is shown if no other source
	// has data about the linked thing.
	linked *thing
	origin *tidemill.Origin // run as its version knows it
}

func newThing(r ref, title string) *thing {
	return &thing{ref: r, node: api.GraphNode{ID: r.String(), Kind: r.kind, Title: title, Facts: map[string]string{}}}
}

// addFact adds a fact to the node.
func (t *thing) addFact(name, value string) {
	if value != "" {
		t.node.Facts[name] = value
	}
}

// addText adds a text to the node. The most important text comes first.
func (t *thing) addText(text string) {
	if text != "" {
		t.node.Says = append(t.node.Says, text)
	}
}

func (t *thing) cause(what api.GraphRelation, to ref, known *thing) {
	t.causes = append(t.causes, link{to: to, what: what, linked: known})
}

// addAside adds a cause that is shown and not followed.
func (t *thing) addAside(what api.GraphRelation, to ref, known *thing) {
	t.causes = append(t.causes, link{to: to, what: what, linked: known, leaf: true})
}

func (t *thing) effect(what api.GraphRelation, to ref, known *thing) {
	t.effects = append(t.effects, link{to: to, what: what, linked: known})
}

func (t *thing) note(text string) { t.notes = append(t.notes, text) }

// Errors about the requested name.
var (
	ErrRef     = errors.New("names nothing that can be traced")
	ErrUnknown = errors.New("it is not known")
)

// ref is the parsed name of a thing.
type ref struct {
	kind api.GraphKind
	of   string // a run's id; a model; a dataset, perhaps empty; an event's source, perhaps empty
	at   string // part after the @ or the #
}

func (r ref) String() string {
	switch {
	case r.kind == api.KindEvent && r.of != "":
		return string(r.kind) + "/" + strings.NewReplacer("%", "%25", "#", "%23").Replace(r.of) + "#" + r.at
	case r.kind == api.KindEvent, r.kind == api.KindCommit && r.of == "":
		return string(r.kind) + "/" + r.at
	case r.at != "":
		return string(r.kind) + "/" + r.of + "@" + r.at
	}
	return string(r.kind) + "/" + r.of
}

// sourceOf decodes an event's source, in which a # is written as %23.
func sourceOf(text string) string { return strings.NewReplacer("%23", "#", "%25", "%").Replace(text) }

func runRef(id string) ref             { return ref{api.KindRun, id, ""} }
func commitRef(dataset, id string) ref { return ref{api.KindCommit, dataset, id} }
func eventRef(c tidemill.Cause) ref    { return ref{api.KindEvent, c.Source, c.ID} }
func modelRef(model, which string) ref { return ref{api.KindModel, model, which} }

// longest is more than the length of any name.
const longest = 4096

// parseRef parses a name that a person has written.
func parseRef(text string) (ref, error) {
	kind, name, found := strings.Cut(text, "/")
	if !found || name == "" || len(text) > longest {
		return ref{}, refused(text)
	}
	switch k := api.GraphKind(kind); k {
	case api.KindRun:
		return parseRun(name)
	case api.KindModel:
		model, which, err := tidemill.CutVersionName(name)
		if err != nil {
			return ref{}, fmt.Errorf("%w: %w", ErrRef, err)
		}
		return modelRef(model, which), nil
	case api.KindCommit:
		return parseCommit(name)
	case api.KindEvent:
		if source, id, both := strings.Cut(name, "#"); both && source != "" && id != "" {
			return eventRef(tidemill.Cause{Source: sourceOf(source), ID: id}), nil
		}
		return ref{k, "", name}, nil
	}
	return ref{}, refused(text)
}

func refused(text string) error {
	return fmt.Errorf("%q %w: give run/ID, model/NAME or model/NAME@VERSION, commit/DATASET@COMMIT, or event/ID", shorten(text), ErrRef)
}

// shorten shortens a name for an error.
func shorten(text string) string {
	const most = 80
	if len(text) > most {
		return text[:most] + "…"
	}
	return text
}

// shortestID is the least number of letters of a run's id that must be given.
const shortestID = 6

func parseRun(id string) (ref, error) {
	if len(id) < shortestID || strings.ContainsFunc(id, func(r rune) bool { return r < '2' || r > '7' && r < 'a' || r > 'z' }) {
		return ref{}, fmt.Errorf("%q %w: give the id of a run, or at least its first six letters", shorten("run/"+id), ErrRef)
	}
	return runRef(id), nil
}

func parseCommit(name string) (ref, error) {
	dataset, at, found := tidemill.CutDatasetRef(name)
	switch {
	case found:
		if err := tidemill.CheckDataset(dataset); err != nil {
			return ref{}, fmt.Errorf("%q %w: the dataset %w", shorten("commit/"+name), ErrRef, err)
		}
	case !strings.Contains(name, "/"):
		dataset, at = "", name
	default:
		return ref{}, fmt.Errorf("%q %w: give a commit or branch of the dataset too, such as commit/%s@main", shorten("commit/"+name), ErrRef, shorten(name))
	}
	if err := tidemill.CheckLabel(at); err != nil {
		return ref{}, fmt.Errorf("%q %w: the commit or branch %w", shorten("commit/"+name), ErrRef, err)
	}
	return commitRef(dataset, at), nil
}

const shownID = 10 // letters of an id in a title

func shortID(id string) string { return id[:min(len(id), shownID)] }

// shortDigest shortens a digest: dir:3f2ab1c04d5e of a folder's.
func shortDigest(text string) string {
	const shown = 12
	at := strings.LastIndexByte(text, ':') + 1
	if digest := text[at:]; len(digest) >= 32 && !strings.ContainsFunc(digest, notHex) {
		return text[:at] + digest[:shown]
	}
	return text
}

func notHex(r rune) bool { return (r < '0' || r > '9') && (r < 'a' || r > 'f') }

// headline returns a few metrics as text, first the metrics that show how good a model is.
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

// withoutSecrets returns an address without the parts that may contain a secret.
func withoutSecrets(uri string) string {
	u, err := url.Parse(uri)
	if err != nil {
		before, _, _ := strings.Cut(uri, "?")
		return before
	}
	u.RawQuery, u.Fragment, u.User = "", "", nil
	return u.String()
}

// placeOf describes where an attempt ran.
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

// nodeTime returns a time for a node; nil if it is zero.
func nodeTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func joined(parts ...string) string {
	return strings.Join(slices.DeleteFunc(parts, func(s string) bool { return s == "" }), ", ")
}
