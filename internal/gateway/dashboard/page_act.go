package dashboard

import (
	"crypto/rand"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"tidemill.dev/api"
)

func actPages() []*page {
	return []*page{
		{path: "/ui/act", file: "commands", nav: "/ui/approvals", title: named("Commands"), load: func(*visit) (any, error) { return actionTable(), nil }},
		{path: "/ui/act/{action}", file: "act", post: true, load: loadAction, title: func(v *visit) string {
			if a := actionNamed(v.PathValue("action")); a != nil {
				return a.heading
			}
			return "There is no such command"
		}},
	}
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

// Lines is the height of a field with several values.
func (f fieldShown) Lines() int { return min(max(2, strings.Count(f.Value, "\n")+1), 8) }

// HasAside reports whether some fields are shown only on request.
func (s *actionShown) HasAside() bool {
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

func loadAction(v *visit) (any, error) {
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
		s.Request = rand.Text() // the next try is another request
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
	mostCalls = 200 // requests of one action with many objects
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
		status, body, err := v.ask(http.MethodPost, c.path, nil, c.body, "Idempotency-Key", args.Get("request"), "Content-Type", mediaOrJSON(c.media))
		if err == nil {
			err = problemOf(status, body)
		}
		var o outcome
		if err == nil {
			o, err = a.read(body)
		}
		if err != nil {
			return nil, problemFrom(err)
		}
		o.Rows = slices.Concat(all.Rows, o.Rows)
		if i > 0 {
			o.Undo, o.Sentence = "", all.Sentence+" "+o.Sentence
		}
		all = o
		if o.Next == "" || dry || !continueWith(&c, o.Next) {
			break
		}
	}
	if all.Next != "" {
		all.Sentence += " More are left: the command does them all."
	}
	if len(all.Rows) > mostRows {
		all.Rows = append(all.Rows[:mostRows], outcomeRow{Name: "…", Says: count(len(all.Rows)-mostRows) + " more"})
	}
	return &all, nil
}

// continueWith puts the cursor of an answer into the next request.
func continueWith(c *call, next string) bool {
	switch body := c.body.(type) {
	case api.RunsAsked:
		body.After = next
		c.body = body
	case api.RunsSelected:
		body.After = next
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

// Link returns the button of an action without arguments.
func (v *visit) Link(a action) actionLink { return v.linkTo(&a, nil) }

// Heading says what the action does.
func (a action) Heading() string { return a.heading }

// Will is the action's consequence.
func (a action) Will() string { return a.will }
