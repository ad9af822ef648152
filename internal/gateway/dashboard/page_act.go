package dashboard

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	g "maragu.dev/gomponents"
	h "maragu.dev/gomponents/html"

	"tidemill.dev/api"
)

func actPages() []*page {
	return []*page{
		{path: "/ui/act", nav: "/ui/approvals", title: named("Commands"), main: still(showCommands)},
		{path: "/ui/act/{action}", nav: "/ui/approvals", post: true, main: loaded(loadAction, showAction), title: func(v *visit) string {
			if a := actionNamed(v.PathValue("action")); a != nil {
				return a.heading
			}
			return "There is no such command"
		}},
	}
}

func showCommands(v *view) Node {
	return list(h.H1(say(v.Title)), lead(say("Each command shows what it would do before it does it, and the same as a line for a shell.")),
		h.Table(h.Class("rows"), heads("Command", "What it does"), rows(each(actionTable(), func(a *action) Node {
			l := v.linkTo(a, nil)
			if l.Refusal != "" {
				return h.Tr(rowName(say(a.heading+" "), quiet(say(l.Refusal))), cell(say(a.will)))
			}
			return h.Tr(rowName(anchor(l.URL, say(a.heading))), cell(say(a.will)))
		}))))
}

func showAction(v *view, s *actionShown) Node {
	parts := g.Group{h.H1(say(v.Title)), lead(say(s.Will)),
		when(s.Refusal != "", h.P(h.Class("problem"), say("You may not do this: it "+s.Refusal+". The holder of the access file can add the role.")))}
	if s.Problem != nil {
		parts = append(parts, showProblem(s.Problem))
	}
	if s.Done != nil {
		parts = append(parts, h.Div(h.Class("problem result"), h.Role("status"), h.P(h.Strong(say("Done.")), say(" "+s.Done.Sentence)), s.Done.table()), s.after())
	} else {
		parts = append(parts, s.form(v))
	}
	return append(parts, h.H2(say("The same as a command")), command(s.Command))
}

// after leads from an action that is done to what comes next.
func (s *actionShown) after() Node {
	var all g.Group
	if s.Undo != nil {
		all = append(all, when(s.Undo.Refusal == "", say("Undo: ")), s.Undo.node())
	}
	all = append(all, say(" "))
	if s.More != nil {
		all = append(all, s.More.node())
	}
	return h.P(h.Class("actions"), all, say(" "), anchor("/ui/approvals", say("Commands so far")))
}

func (s *actionShown) form(v *view) Node {
	fields := func(aside bool) Node {
		return h.Div(h.Class("fields"), each(s.Fields, func(f *fieldShown) Node { return when(f.Aside == aside, f.node()) }))
	}
	preview, class := "Preview", "primary"
	if s.HasDryRun {
		preview = "Show what would happen"
	}
	if s.Danger {
		class += " danger"
	}
	do := h.Button(h.Class(class), h.FormMethod("post"), say(v.Title))
	if s.Refusal != "" {
		do = h.Button(h.Type("button"), h.Disabled(), say(v.Title))
	}
	form := h.Form(h.Class("act"), h.Method("get"), h.Action("/ui/act/"+s.Name), hidden("request", s.Request), fields(false),
		when(s.hasAside(), details("More fields", fields(true))),
		actions(h.Button(h.FormNoValidate(), say(preview)), say(" "), do))
	if s.Dry == nil {
		return form
	}
	return list(form, h.Section(h.Class("dry"), h.H2(say("What would happen")), h.P(say(s.Dry.Sentence)), s.Dry.table()))
}

// node is the field in a form.
func (f *fieldShown) node() Node {
	placeholder := when(f.Hint != "", h.Placeholder(f.Hint))
	switch f.Kind {
	case checkbox:
		return h.Label(h.Class("check"), h.Input(h.Type("checkbox"), h.Name(f.Name), h.Value("true"), when(f.Value != "", h.Checked())), say(" "+f.Label))
	case area:
		return h.Label(h.Class("wide"), say(f.Label), h.Textarea(h.Name(f.Name), h.Rows("8"), placeholder, say(f.Value)))
	case lines:
		return h.Label(h.Class("wide"), say(f.Label), h.Textarea(h.Name(f.Name), h.Rows(strconv.Itoa(f.lines())), placeholder, say(f.Value)))
	}
	return h.Label(when(f.Name == "reason", h.Class("wide")), say(f.Label), h.Input(h.Name(f.Name), h.Value(f.Value), placeholder, when(f.Required, h.Required())))
}

// table has a row for each object of an action.
func (o *outcome) table() Node {
	if len(o.Rows) == 0 {
		return nil
	}
	return scroll("rows", heads("For", "Result"), rows(each(o.Rows, func(r *outcomeRow) Node {
		name := Node(text(r.Name))
		if r.URL != "" {
			name = anchor(r.URL, name)
		}
		return h.Tr(rowName(name), cell(when(r.Refused, badge("refused"), say(" ")), say(titled(r.Says))))
	})))
}

// actionShown is the page of an action with its arguments.
type actionShown struct {
	Name, Will        string
	Danger, HasDryRun bool
	Fields            []fieldShown
	Request           string // identifies the request, so that a form that is sent twice acts once
	Command           string
	Refusal           string // why the caller may not do it
	Missing           bool   // whether a required field is empty
	Dry               *outcome
	Done              *outcome
	Problem           *api.Problem
	Undo, More        *actionLink
}

// fieldShown is a field with its value.
type fieldShown struct {
	Name, Label, Hint, Value string
	Kind                     fieldKind
	Required                 bool
	Aside                    bool // whether it is shown only on request, because it is empty and optional
}

// lines is the height of a field with several values.
func (f *fieldShown) lines() int { return min(max(2, strings.Count(f.Value, "\n")+1), 8) }

// hasAside reports whether some fields are shown only on request.
func (s *actionShown) hasAside() bool {
	return slices.ContainsFunc(s.Fields, func(f fieldShown) bool { return f.Aside })
}

// setAside shows optional fields without a value only on request, if there are other fields.
func (s *actionShown) setAside() {
	if !slices.ContainsFunc(s.Fields, func(f fieldShown) bool { return f.Value != "" }) {
		return
	}
	for i := range s.Fields {
		f := &s.Fields[i]
		f.Aside = f.Value == "" && !f.Required && f.Name != "reason" && f.Kind != area
	}
}

func loadAction(v *visit) (*actionShown, error) {
	a := actionNamed(v.PathValue("action"))
	if a == nil {
		return nil, &api.Problem{Status: http.StatusNotFound, Title: "there is no such command", Detail: "/ui/act lists all commands"}
	}
	args := arguments{v.Form}
	s := &actionShown{Name: a.name, Will: a.will, Danger: a.danger, HasDryRun: a.dry,
		Request: v.FormValue("request"), Refusal: v.linkTo(a, nil).Refusal, Command: a.commands(args)}
	if s.Request == "" {
		s.Request = rand.Text()
		args.Set("request", s.Request)
	}
	missing := 0 // required fields without a value, other than the reason
	for _, f := range a.fields {
		shown := fieldShown{Name: f.name, Label: f.label, Hint: f.hint, Value: args.Get(f.name), Kind: f.kind, Required: f.required}
		if f.kind == lines {
			shown.Value = strings.Join(args.all(f.name), "\n")
		}
		if f.required && strings.TrimSpace(shown.Value) == "" {
			s.Missing = true
			if f.name != "reason" {
				missing++
			}
		}
		s.Fields = append(s.Fields, shown)
	}
	s.setAside()
	switch {
	case s.Refusal != "":
	case v.Method == http.MethodPost:
		return s, s.perform(v, a, args)
	case a.dry && missing == 0 && v.URL.RawQuery != "":
		s.Dry, s.Problem = v.perform(a, args, true)
	}
	return s, nil
}

// perform does an action, and offers what undoes it.
func (s *actionShown) perform(v *visit, a *action, args arguments) error {
	s.Done, s.Problem = v.perform(a, args, false)
	if s.Problem != nil {
		if s.Problem.Status < http.StatusInternalServerError { // nothing was done, so the next try is another request
			s.Request = rand.Text()
		}
		return nil
	}
	name, with := s.Done.Undo, s.Done.UndoWith
	if a.undo != "" && a.each == "" {
		name, with = a.undo, url.Values{}
		if undo := actionNamed(a.undo); undo != nil {
			for _, f := range undo.fields {
				if value := args.Get(f.name); value != "" && f.name != "reason" {
					with.Set(f.name, value)
				}
			}
		}
	}
	if undo := actionNamed(name); undo != nil {
		l := v.linkTo(undo, with)
		s.Undo = &l
	}
	if s.Done.More != nil {
		s.More = &actionLink{Title: s.Done.More.Title, URL: v.URL.Path + "?" + args.keep(a).Encode() + "&" + s.Done.More.URL}
	}
	return nil
}

// keep returns the required arguments.
func (a arguments) keep(of *action) url.Values {
	q := url.Values{}
	for _, f := range of.fields {
		if f.required {
			q.Set(f.name, a.Get(f.name))
		}
	}
	return q
}

const (
	mostCalls = 200 // requests of one action, and its objects if each has a request
	mostRows  = 200 // rows that a page shows of its outcome
)

// parts returns the arguments of each request of an action.
func (a *action) parts(args arguments) (all []arguments) {
	values := args.all(a.each)
	if len(values) == 0 {
		return []arguments{args}
	}
	for _, value := range values {
		one := maps.Clone(args.Values)
		one.Set(a.each, value)
		all = append(all, arguments{one})
	}
	return all
}

// commands returns the commands that do the same, one a line.
func (a *action) commands(args arguments) string {
	var all []string
	for _, one := range a.parts(args) {
		all = append(all, a.command(one).String())
	}
	return strings.Join(all, "\n")
}

// perform does an action for each of its objects. A problem with one of several objects is a row, so
// that the others are done.
func (v *visit) perform(a *action, args arguments, dry bool) (*outcome, *api.Problem) {
	parts := a.parts(args)
	if len(parts) == 1 {
		return v.performOne(a, parts[0], dry)
	}
	if len(parts) > mostCalls {
		return nil, &api.Problem{Status: http.StatusBadRequest, Title: "the field " + a.each + " is too long", Detail: fmt.Sprintf("it names %d; give at most %d, and the others in another form", len(parts), mostCalls)}
	}
	all := outcome{UndoWith: url.Values{}}
	done := 0
	for _, one := range parts {
		o, p := v.performOne(a, one, dry)
		if p != nil {
			all.Rows = append(all.Rows, outcomeRow{Name: one.Get(a.each), Says: p.Detail, Refused: true})
			continue
		}
		all.Rows = append(all.Rows, o.Rows...)
		if !slices.ContainsFunc(o.Rows, func(r outcomeRow) bool { return r.Refused }) {
			done++
		}
		if o.Undo != "" {
			all.Undo = o.Undo
			all.UndoWith[a.each] = append(all.UndoWith[a.each], o.UndoWith[a.each]...)
		}
	}
	if len(all.UndoWith[a.each]) > mostUndone {
		all.Undo = ""
	}
	all.Sentence = fmt.Sprintf("%s of %s.", count(done), count(len(parts)))
	return &all, nil
}

// performOne calls the API until its answer is complete. A dry run shows the first answer only.
func (v *visit) performOne(a *action, args arguments, dry bool) (*outcome, *api.Problem) {
	c, err := a.call(args, dry)
	if err != nil {
		return nil, &api.Problem{Status: http.StatusBadRequest, Title: "a field is invalid", Detail: err.Error()}
	}
	var all outcome
	for i := range mostCalls {
		w := &recorder{header: http.Header{}, most: maxAnswer}
		status, body, err := v.askInto(w, http.MethodPost, c.path, nil, c.body, "Idempotency-Key", args.Get("request"), "Content-Type", mediaOrJSON(c.media))
		if err == nil {
			err = problemOf(status, body)
		}
		var o outcome
		if err == nil {
			o, err = a.read(body)
		}
		if w.header.Get(api.HeaderRepeated) == "true" {
			o.Sentence = "An event with this source and id was stored before, so nothing was stored now."
		}
		if err != nil && i > 0 { // a part is done already
			all.Rows = append(all.Rows, outcomeRow{Name: "the rest", Says: problemFrom(err).Error(), Refused: true})
			break
		}
		if err != nil {
			return nil, problemFrom(err)
		}
		o.Rows = slices.Concat(all.Rows, o.Rows)
		if i > 0 {
			o.Undo, o.Sentence = "", all.Sentence+" "+o.Sentence
		}
		all = o
		if o.Next == "" || dry || !continueWith(&c, o.Next, len(o.Rows)) {
			break
		}
	}
	if all.Next != "" {
		all.Sentence += " More are left: the command does them all."
	}
	if more := len(all.Rows) - mostRows; more > 0 {
		all.Rows = append(all.Rows[:mostRows-1:mostRows-1], outcomeRow{Name: "…", Says: count(more) + " more"}, all.Rows[len(all.Rows)-1])
	}
	return &all, nil
}

// continueWith puts the cursor of an answer into the next request, and the number of objects of the requests so far.
func continueWith(c *call, next string, first int) bool {
	switch body := c.body.(type) {
	case api.RunsAsked:
		body.After = next
		c.body = body
	case api.RunsSelected:
		body.After, body.First = next, first
		c.body = body
	case api.RollbackAsked:
		body.After = next
		c.body = body
	default:
		return false
	}
	return true
}

func mediaOrJSON(media string) string {
	if media == "" {
		return "application/json"
	}
	return media
}

func problemFrom(err error) *api.Problem {
	var p *api.Problem
	if errors.As(err, &p) {
		return p
	}
	return &api.Problem{Status: http.StatusBadGateway, Title: "this part cannot be shown", Detail: err.Error()}
}
