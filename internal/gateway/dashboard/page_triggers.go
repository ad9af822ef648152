package dashboard

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"tidemill.dev/api"
)

func triggerPages() []*page {
	return []*page{
		{path: "/ui/triggers", file: "triggers", nav: "/ui/triggers", title: named("Triggers and schedules"), regions: []region{
			{"triggers", "triggers", func(v *visit) (any, error) { return get[api.Triggers](v, "/api/v1/triggers", nil) }},
			{"schedules", "schedules", func(v *visit) (any, error) { return get[api.Schedules](v, "/api/v1/schedules", nil) }},
		}},
		{path: "/ui/triggers/{trigger}", file: "trigger", nav: "/ui/triggers", title: func(v *visit) string { return "Trigger " + word(v.PathValue("trigger")) }, regions: []region{
			{"trigger", "triggers", func(v *visit) (any, error) {
				return get[api.Trigger](v, "/api/v1/triggers/"+v.PathValue("trigger"), nil)
			}},
			{"history", "triggers", loadTriggerHistory},
			{"letters", "dead-letters", func(v *visit) (any, error) {
				return get[api.DeadLetters](v, "/api/v1/dead-letters", url.Values{"trigger": {v.PathValue("trigger")}, "limit": {"20"}})
			}},
		}},
		{path: "/ui/dead-letters", file: "letters", nav: "/ui/dead-letters", title: named("Dead letters"), regions: []region{
			{"groups", "dead-letters", loadLetterGroups},
			{"letters", "dead-letters", loadLetters},
		}},
		{path: "/ui/dead-letters/{id}", file: "letter", nav: "/ui/dead-letters", title: func(v *visit) string { return "Dead letter " + word(v.PathValue("id")) }, regions: []region{
			{"letter", "dead-letters", func(v *visit) (any, error) {
				return get[api.WholeLetter](v, "/api/v1/dead-letters/"+v.PathValue("id"), nil)
			}},
		}},
	}
}

// letterList is a page of dead letters.
type letterList struct {
	api.DeadLetters
	Filtered          bool
	NextURL, FirstURL string
	Selection         []any // arguments that select the same letters in an action
}

func letterFilters() []string {
	return []string{"trigger", "scorer", "reason", "type", "key", "stream", "since", "until"}
}

func loadLetters(v *visit) (any, error) {
	q := v.pick(append(letterFilters(), "cursor")...)
	q.Set("limit", "50")
	letters, err := get[api.DeadLetters](v, "/api/v1/dead-letters", q)
	if err != nil {
		return nil, err
	}
	l := letterList{DeadLetters: letters}
	l.NextURL, l.FirstURL = v.pageURLs("cursor", letters.Cursor)
	for name, values := range v.pick(letterFilters()...) {
		l.Filtered = true
		if name == "reason" {
			name = "with" // reason is the reason of a drop
		}
		l.Selection = append(l.Selection, name, values[0])
	}
	if !l.Filtered {
		l.Selection = []any{"all", "true"}
	}
	return l, nil
}

// letterGroup counts the dead letters of one trigger or scorer with one reason.
type letterGroup struct {
	Trigger, Scorer, Reason string
	Count                   int
	Newest                  api.DeadLetter
}

// Part is a part of the reason that a form can send: its first line, clipped.
func (g letterGroup) Part() string {
	line, _, _ := strings.Cut(g.Reason, "\n")
	for len(line) > maxPart {
		_, last := utf8.DecodeLastRuneInString(line)
		line = line[:len(line)-last]
	}
	return line
}

const maxPart = 1000

// URL is the address of the group's list.
func (g letterGroup) URL() string {
	q := url.Values{}
	for name, value := range map[string]string{"trigger": g.Trigger, "scorer": g.Scorer, "reason": g.Part()} {
		if value != "" {
			q.Set(name, value)
		}
	}
	return "/ui/dead-letters?" + q.Encode()
}

// letterGroups are the groups among the newest dead letters.
type letterGroups struct {
	Groups         []letterGroup
	Counted, Total int
}

const (
	letterPage  = 1000  // dead letters of one answer of the API
	mostGrouped = 10000 // dead letters that are read for the groups
)

func loadLetterGroups(v *visit) (any, error) {
	var all api.DeadLetters
	for q := (url.Values{"limit": {strconv.Itoa(letterPage)}}); ; q.Set("cursor", all.Cursor) {
		page, err := get[api.DeadLetters](v, "/api/v1/dead-letters", q)
		if err != nil {
			return nil, err
		}
		page.DeadLetters = append(all.DeadLetters, page.DeadLetters...)
		if all = page; all.Cursor == "" || len(all.DeadLetters) >= mostGrouped {
			return groupLetters(all), nil
		}
	}
}

// groupLetters groups dead letters, the greatest group first.
func groupLetters(letters api.DeadLetters) letterGroups {
	at := map[[3]string]int{}
	all := letterGroups{Counted: len(letters.DeadLetters), Total: letters.Total}
	for _, l := range letters.DeadLetters {
		key := [3]string{l.Trigger, l.Scorer, l.Reason}
		i, known := at[key]
		if !known {
			i = len(all.Groups)
			at[key] = i
			all.Groups = append(all.Groups, letterGroup{Trigger: l.Trigger, Scorer: l.Scorer, Reason: l.Reason, Newest: l})
		}
		all.Groups[i].Count++
	}
	slices.SortStableFunc(all.Groups, func(a, b letterGroup) int { return cmp.Compare(b.Count, a.Count) })
	if len(all.Groups) > mostGroups {
		all.Groups = all.Groups[:mostGroups]
	}
	return all
}

const mostGroups = 20
