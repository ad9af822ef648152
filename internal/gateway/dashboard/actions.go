package dashboard

import (
	"cmp"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	h "maragu.dev/gomponents/html"

	"tidemill.dev"
	"tidemill.dev/internal/gateway/access"
)

// action is a command of the API that a person can give on a page.
type action struct {
	name    string
	title   string // words of its button
	heading string // words of its page
	role    access.Role
	each    string // field whose values are acted on one after the other; empty if one request takes them all
	danger  bool   // whether it removes or stops something
	will    string // consequence, for people who have not done it before
	fields  []field
	dry     bool // whether the API has a dry run
	call    func(a arguments, dry bool) (call, error)
	command func(a arguments) *commandLine
	read    func(body []byte) (outcome, error)
	undo    string // action that undoes it, with the same arguments; empty if none does
}

// field is an argument of an action.
type field struct {
	name, label string
	kind        fieldKind
	hint        string
	required    bool
}

// fieldKind says how a form shows an argument.
type fieldKind string

const (
	oneLine  fieldKind = "text"
	lines    fieldKind = "lines" // several values, one a line
	area     fieldKind = "area"
	checkbox fieldKind = "check"
)

// call is a request to the API.
type call struct {
	path  string
	body  any
	media string // media type of the body; JSON if empty
}

// arguments are the values of an action's fields.
type arguments struct{ url.Values }

func (a arguments) flag(name string) bool { return a.Get(name) != "" }

// all returns the values of a field with several values. A form sends them in one text. Spaces at the ends of a line
// belong to a key, and not to a name or an id.
func (a arguments) all(name string) (list []string) {
	for _, text := range a.Values[name] {
		for line := range strings.Lines(text) {
			if line = strings.TrimRight(line, "\r\n"); name != "key" {
				line = strings.TrimSpace(line)
			}
			if line != "" {
				list = append(list, line)
			}
		}
	}
	return list
}

// number returns the value of a field with a number; 0 if it is empty.
func (a arguments) number(name string) (float64, error) {
	text := strings.TrimSuffix(strings.TrimSpace(a.Get(name)), "/s")
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(text, 64)
	if err != nil {
		return 0, fmt.Errorf("%s: %q is not a number", name, word(a.Get(name)))
	}
	return n, nil
}

// whole is number for a whole number.
func (a arguments) whole(name string) (int, error) {
	f, err := a.number(name)
	if n := int(f); err != nil || float64(n) == f {
		return n, err
	}
	return 0, fmt.Errorf("%s: %q is not a whole number", name, word(a.Get(name)))
}

// since returns a time of the form 2026-05-04T12:00:00Z, or a distance from now such as -2h or -1d.
func (a arguments) since(name string, now time.Time) (*time.Time, error) {
	text := strings.TrimSpace(a.Get(name))
	if text == "" {
		return nil, nil
	}
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		return &t, nil
	}
	back, relative := strings.CutPrefix(text, "-")
	d, err := time.ParseDuration(back)
	if days, whole := strings.CutSuffix(back, "d"); whole {
		var n float64
		n, err = strconv.ParseFloat(days, 64)
		d = time.Duration(n * float64(24*time.Hour))
	}
	if !relative || err != nil {
		return nil, fmt.Errorf("%s: %q is neither a time such as 2026-05-04T12:00:00Z nor a distance such as -2h", name, word(text))
	}
	t := now.Add(-d)
	return &t, nil
}

// commandLine is the command that does the same as an action.
type commandLine struct {
	words []string
	last  []string // arguments that would be read as flags before --
}

func newCommand(words ...string) *commandLine {
	c := &commandLine{words: []string{"tidemill"}}
	for _, w := range words {
		if len(c.last) > 0 || strings.HasPrefix(w, "-") { // such as a key
			c.last = append(c.last, w)
		} else {
			c.words = append(c.words, w)
		}
	}
	return c
}

// flag adds a flag, unless its value is empty.
func (c *commandLine) flag(name string, values ...string) *commandLine {
	for _, value := range values {
		if value != "" {
			c.words = append(c.words, "--"+name, value)
		}
	}
	return c
}

// toggle adds a flag without a value.
func (c *commandLine) toggle(name string, on bool) *commandLine {
	if on {
		c.words = append(c.words, "--"+name)
	}
	return c
}

// String quotes the words for a shell.
func (c *commandLine) String() string {
	all := c.words
	if len(c.last) > 0 {
		all = slices.Concat(all, []string{"--"}, c.last)
	}
	quoted := make([]string, len(all))
	for i, w := range all {
		quoted[i] = shellWord(w)
	}
	return strings.Join(quoted, " ")
}

func shellWord(s string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./:@,=+%", r)
	}
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool { return !plain(r) }) {
		return s
	}
	if strings.Contains(s, "'") && !strings.ContainsAny(s, "\"$`\\!") {
		return `"` + s + `"` // easier to read
	}
	return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
}

// actionLink is a button that leads to the page of an action. Refusal says why the caller may not
// press it; empty if the caller may.
type actionLink struct {
	ID, Title, URL, Refusal string
	Danger                  bool
}

// Act returns the button of an action with arguments, as name, value, name, value… Empty values are
// left out.
func (v *visit) Act(name string, pairs ...string) Node { return v.ActAs("", name, pairs...) }

// ActAs is Act for a button with other words.
func (v *visit) ActAs(title, name string, pairs ...string) Node {
	a := actionNamed(name)
	if a == nil {
		return failed(fmt.Errorf("there is no action %q", name))
	}
	q := url.Values{}
	for i := 0; i+1 < len(pairs); i += 2 {
		value := pairs[i+1]
		if pairs[i] == "model" {
			value = tidemill.WholeName(value)
		}
		if value != "" {
			q.Add(pairs[i], value)
		}
	}
	l := v.linkTo(a, q)
	l.Title = cmp.Or(title, l.Title)
	return l.node()
}

// node shows the button. If the caller may not press it, the reason is next to it.
func (l *actionLink) node() Node {
	if l.Refusal != "" {
		return list(h.Button(h.Type("button"), h.Disabled(), h.Title(l.Refusal), h.Aria("describedby", l.ID), say(l.Title)),
			h.Span(h.Class("why"), h.ID(l.ID), say(l.Refusal)))
	}
	class := "button"
	if l.Danger {
		class += " danger"
	}
	return h.A(h.Class(class), h.Href(l.URL), say(l.Title))
}

func (v *visit) linkTo(a *action, q url.Values) actionLink {
	l := actionLink{ID: "why-" + a.name, Title: a.title, Danger: a.danger, URL: "/ui/act/" + a.name}
	if len(q) > 0 {
		l.URL += "?" + q.Encode()
	}
	if !slices.Contains(v.caller.Roles, string(a.role)) {
		l.Refusal = "needs the role " + string(a.role)
	}
	return l
}

func actionNamed(name string) *action {
	table := actionTable()
	i := slices.IndexFunc(table, func(a action) bool { return a.name == name })
	if i < 0 {
		return nil
	}
	return &table[i]
}
