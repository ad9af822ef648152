package dashboard

import (
	"encoding/json"
	"fmt"
	"math"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/api"
)

// ago shows a time by its distance from now. The script keeps the distance fresh.
func (d *Dashboard) ago(at any) markup {
	t, ok := timeOf(at)
	if !ok {
		return never
	}
	words := distance(d.opt.Now().Sub(t))
	return markup(fmt.Sprintf(`<time datetime="%s" title="%s" data-ago>%s</time>`, t.UTC().Format(time.RFC3339Nano), t.UTC().Format("2006-01-02 15:04:05 UTC"), words))
}

const never markup = `<span class="none">–</span>`

func timeOf(at any) (time.Time, bool) {
	switch t := at.(type) {
	case time.Time:
		return t, !t.IsZero()
	case *time.Time:
		if t != nil {
			return *t, !t.IsZero()
		}
	}
	return time.Time{}, false
}

// distance returns a distance from now in words, such as "3 min ago" or "in 2 h".
func distance(d time.Duration) string {
	if d.Abs() < 2*time.Second {
		return "now"
	}
	if d < 0 {
		return "in " + short(-d)
	}
	return short(d) + " ago"
}

// since shows the duration between two times; the end of an unfinished one is now.
func (d *Dashboard) since(from, to any) markup {
	begin, ok := timeOf(from)
	if !ok {
		return never
	}
	end, ok := timeOf(to)
	if !ok {
		end = d.opt.Now()
	}
	return markup(short(end.Sub(begin)))
}

// duration shows a number of seconds, or a time.Duration.
func duration(of any) string {
	switch d := of.(type) {
	case time.Duration:
		return short(d)
	case float64:
		return short(time.Duration(d * float64(time.Second)))
	case *int64:
		if d == nil {
			return "no limit"
		}
		return short(time.Duration(*d) * time.Second)
	}
	return fmt.Sprint(of)
}

// short writes a duration with its greatest unit.
func short(d time.Duration) string {
	switch {
	case d < time.Second:
		return strconv.FormatInt(d.Milliseconds(), 10) + " ms"
	case d < time.Minute:
		return trimZero(d.Seconds()) + " s"
	case d < time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	case d < 24*time.Hour:
		return trimZero(d.Hours()) + " h"
	case d < 10*24*time.Hour:
		return trimZero(d.Hours()/24) + " d"
	}
	return fmt.Sprintf("%d d", int(d.Hours()/24))
}

func trimZero(f float64) string { return strings.TrimSuffix(strconv.FormatFloat(f, 'f', 1, 64), ".0") }

// count writes a whole number with thin spaces between thousands.
func count(of any) string {
	var n int64
	switch v := of.(type) {
	case nil:
		return "?"
	case *int:
		if v == nil {
			return "?"
		}
		n = int64(*v)
	case *int64:
		if v == nil {
			return "?"
		}
		n = *v
	case float64:
		n = int64(math.Round(v))
	default:
		n, _ = strconv.ParseInt(fmt.Sprint(v), 10, 64)
	}
	digits := strconv.FormatInt(n, 10)
	var b strings.Builder
	for i, c := range digits {
		if left := len(digits) - i; i > 0 && left%3 == 0 && digits[i-1] != '-' {
			b.WriteRune('\u202f')
		}
		b.WriteRune(c)
	}
	return b.String()
}

// size writes a number of bytes.
func size(of any) string {
	n := 0.0
	switch v := of.(type) {
	case int64:
		n = float64(v)
	case int:
		n = float64(v)
	case *int64:
		if v == nil {
			return "?"
		}
		n = float64(*v)
	}
	for _, unit := range []string{"B", "KiB", "MiB", "GiB"} {
		if n < 1024 {
			return trimZero(n) + " " + unit
		}
		n /= 1024
	}
	return trimZero(n) + " TiB"
}

// number writes a figure with four significant digits. The loss of a run that diverges may be any number.
func number(f float64) string {
	if a := math.Abs(f); a < 1e15 && (f == math.Trunc(f) || a >= 1000) {
		return count(f)
	}
	return strconv.FormatFloat(f, 'g', 4, 64)
}

// rate writes a number of events a second with one decimal.
func rate(f float64) string {
	const least = 0.05
	if f > 0 && f < least {
		return "under 0.1"
	}
	return number(math.Round(f*10) / 10)
}

func percent(part, whole float64) string {
	if whole <= 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*part/whole)
}

// shownRunes is the number of characters of a name that a table shows.
const (
	shownRunes = 64
	titleRunes = 512
)

// visible replaces characters that would change how the rest of a line reads, such as marks of
// direction, by their code points.
func visible(s string, most int) string {
	var b strings.Builder
	n := 0
	for _, r := range s {
		if n++; n > most {
			b.WriteRune('…')
			break
		}
		switch {
		case r == utf8.RuneError, r != '\n' && r != '\t' && unicode.Is(unicode.C, r), unicode.Is(unicode.Zl, r), unicode.Is(unicode.Zp, r):
			fmt.Fprintf(&b, "\\u%04x", r)
		default:
			b.WriteRune(r)
		}
	}
	return b.String()
}

// word returns a name that others have chosen as plain text: clipped, and without invisible
// characters.
func word(s any) string { return visible(fmt.Sprint(s), shownRunes) }

// titled returns a longer form of word.
func titled(s any) string { return visible(fmt.Sprint(s), titleRunes) }

// text shows a name that others have chosen. The element isolates its direction of writing.
func text(s any) markup {
	whole := fmt.Sprint(s)
	return isolated(whole, word(whole))
}

// isolated shows a form of a name. The whole name is its title if the form differs.
func isolated(whole, shown string) markup {
	class, title := "", ""
	if utf8.RuneCountInString(shown) <= unbroken {
		class = ` class="s"`
	}
	if shown != whole {
		title = ` title="` + esc(titled(whole)) + `"`
	}
	return markup("<bdi" + class + title + ">" + esc(shown) + "</bdi>")
}

// unbroken is the length up to which a name stays on one line.
const unbroken = 28

// idShown is the number of characters of an id that a table shows. Every page and every command takes
// the beginning of an id.
const idShown = 10

// idText shows the beginning of an id.
func idText(id string) markup {
	if len(id) <= idShown+2 {
		return text(id)
	}
	return isolated(id, visible(id[:idShown], idShown)+"…")
}

// indented shows JSON with one field a line.
func indented(of any) string {
	raw, ok := of.(json.RawMessage)
	if !ok {
		raw, _ = json.Marshal(of) // types of the API can be encoded
	}
	var any any
	d := json.NewDecoder(strings.NewReader(string(raw)))
	d.UseNumber()
	if d.Decode(&any) != nil {
		return visible(string(raw), maxShownJSON)
	}
	var b strings.Builder
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	_ = e.Encode(any) // it was decoded from JSON
	return visible(strings.TrimSpace(b.String()), maxShownJSON)
}

// eventParts are the parts of an event that a form for a new event takes over.
type eventParts struct{ ID, Source, Type, Subject, Data string }

// eventOf reads an event in the CloudEvents JSON format; nil if there is none, or if it is too large
// for an address.
func eventOf(raw json.RawMessage) *eventParts {
	var e struct {
		ID, Source, Type, Subject string
		Data                      json.RawMessage
	}
	if len(raw) == 0 || json.Unmarshal(raw, &e) != nil || len(e.Data)+len(e.Subject) > maxLinked {
		return nil
	}
	return &eventParts{ID: e.ID, Source: e.Source, Type: e.Type, Subject: e.Subject, Data: string(e.Data)}
}

// maxShownJSON is the number of characters of an event that a page shows.
const maxShownJSON = 64 << 10

// kindOf maps states to five kinds. Each kind has a colour and a sign, so that no state is shown by
// its colour alone.
func kindOf(state string) string {
	switch state {
	case "ok", "passed", "done", "adopted", "scores", "succeeded", "promoted", "champion", "active", "delivered", "fresh", "open window", "ready", "not seen":
		return "good"
	case "running", "on-trial", "has a run", "committing", "starting", "replaying", "live":
		return "busy"
	case "failed", "refused", "aborting", "aborted", "lost", "open", "stopped", "failing", "none", "dead letter", "seen":
		return "bad"
	case "waiting", "retrying", "awaiting", "degraded", "stale", "drifting", "unserved", "unknown", "no process", "paused", "frozen", "registered", "left":
		return "wait"
	}
	return "plain"
}

// stateWord replaces the API's words by those that users find natural.
func stateWord(state string) string {
	switch state {
	case string(tidemill.RunRetrying):
		return "waiting to retry"
	case string(api.KeyNone):
		return "no model"
	}
	return state
}

// badge shows a state by a sign, a colour and its word.
func badge(state any) markup {
	s := fmt.Sprint(state)
	return markup(`<span class="badge ` + kindOf(s) + `">` + esc(word(stateWord(s))) + "</span>")
}

// maxLinked is the length of the longest name that becomes part of an address. The gateway limits
// the size of headers.
const maxLinked = 2 << 10

func pathURL(base, name string) string { return base + url.PathEscape(name) }

func queryURL(base string, pairs ...string) string {
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		q.Set(pairs[i], pairs[i+1])
	}
	return base + "?" + q.Encode()
}

func runURL(id string) string       { return pathURL("/ui/runs/", id) }
func letterURL(id string) string    { return pathURL("/ui/dead-letters/", id) }
func streamURL(name string) string  { return pathURL("/ui/streams/", name) }
func triggerURL(name string) string { return pathURL("/ui/triggers/", name) }
func scorerURL(name string) string  { return pathURL("/ui/scorers/", name) }
func recipeURL(name string) string  { return queryURL("/", "recipe", name) }
func dataURL(dataset string) string { return queryURL("/ui/data", "dataset", dataset) }
func keyURL(key string) string      { return queryURL("/ui/key", "key", key) }
func whyURL(of string) string       { return queryURL("/ui/lineage", "of", of) }

// modelURL names a version too if the model's name ends like that of a version.
func modelURL(name string) string {
	if tidemill.WholeName(name) != name {
		return queryURL("/ui/model", "name", name, "version", tidemill.WhichNewest)
	}
	return queryURL("/ui/model", "name", name)
}

func eventURL(source, id string) string {
	return whyURL("event/" + strings.NewReplacer("%", "%25", "#", "%23").Replace(source) + "#" + id)
}

// link shows a name as a link, or as text if it is too long for an address.
func link(address, name string) markup {
	if name == "" {
		return never
	}
	return linked(address, name, text(name))
}

func linked(address, name string, shown markup) markup {
	if len(name) > maxLinked {
		return shown
	}
	return markup(`<a href="` + esc(address) + `">` + string(shown) + "</a>")
}

func runLink(id string) markup       { return linked(runURL(id), id, idText(id)) }
func letterLink(id string) markup    { return linked(letterURL(id), id, idText(id)) }
func streamLink(name string) markup  { return link(streamURL(name), name) }
func triggerLink(name string) markup { return link(triggerURL(name), name) }
func keyLink(key string) markup      { return link(keyURL(key), key) }

func scorerLink(name string) markup { return link(scorerURL(name), name) }

// versionURL returns the address of a version next to the champion.
func versionURL(name string, version int) string {
	return queryURL("/ui/model", "name", name, "version", strconv.Itoa(version))
}

// modelLink shows a model, or one of its versions if the number is not 0.
func modelLink(name string, version int) markup {
	if version == 0 {
		return link(modelURL(name), name)
	}
	full := tidemill.VersionName(name, version)
	return link(versionURL(name, version), full)
}

// eventLink leads to the causes and effects of an event.
func eventLink(source, id string) markup { return link(eventURL(source, id), id) }
