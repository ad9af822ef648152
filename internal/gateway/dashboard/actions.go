package dashboard

import (
	"fmt"
	"net/url"
	"slices"
)

// actionLink is a button that leads to the page of an action. Refusal says why the caller may not
// press it; empty if the caller may.
type actionLink struct {
	ID, Title, URL, Refusal string
	Danger                  bool
}

// Act returns the button of an action with arguments, as name, value, name, value…
func (v *visit) Act(name string, arguments ...any) (actionLink, error) {
	a := actionNamed(name)
	if a == nil {
		return actionLink{}, fmt.Errorf("there is no action %q", name)
	}
	q := url.Values{}
	for i := 0; i+1 < len(arguments); i += 2 {
		q.Add(fmt.Sprint(arguments[i]), fmt.Sprint(arguments[i+1]))
	}
	l := actionLink{ID: "why-" + name, Title: a.title, Danger: a.danger, URL: "/ui/act/" + name + "?" + q.Encode()}
	if !slices.Contains(v.caller.Roles, a.role) {
		l.Refusal = "needs the role " + a.role
	}
	return l, nil
}

// action is a command of the API that a person can give on a page.
type action struct {
	name   string
	title  string
	role   string
	danger bool
}

func actionNamed(name string) *action {
	for _, a := range actionTable() {
		if a.name == name {
			return &a
		}
	}
	return nil
}

func actionTable() []action {
	return []action{
		{name: "pause-pool", title: "Pause", role: "operate"}, {name: "resume-pool", title: "Resume", role: "operate"},
		{name: "pause-recipe", title: "Pause", role: "operate"}, {name: "resume-recipe", title: "Resume", role: "operate"},
		{name: "start-runs", title: "Start…", role: "operate"}, {name: "cancel-runs", title: "Cancel…", role: "operate", danger: true}, {name: "retry-runs", title: "Retry…", role: "operate"},
	}
}
