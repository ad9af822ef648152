package dashboard

import (
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

func searchPages() []*page {
	return []*page{{path: "/ui/search", title: named("Search"), redirect: onlyHit, main: still(showSearch)}}
}

func showSearch(v *view) Node {
	hits, q := v.hits(), v.Q("q")
	parts := g.Group{h.H1(say(v.Title))}
	if len(v.missed) > 0 {
		parts = append(parts, h.Div(h.Class("problem"), h.Role("alert"), h.P(say("Not everything was searched:")), h.Ul(each(v.missed, func(reason *string) Node { return h.Li(say(titled(*reason))) }))))
	}
	switch {
	case len(hits) > 0:
		return append(parts, lead(say(count(len(hits))+" results for "), text(q)), h.Table(h.Class("rows"), heads("Name", "Kind"), rows(each(hits, func(found *hit) Node {
			return h.Tr(rowName(anchor(found.URL, text(found.Name))), cell(say(found.Kind)))
		}))))
	case q == "":
		return append(parts, nothing(say("Type an id, a key or a name into the field above.")))
	}
	none := "Nothing has this name: "
	if len(v.missed) > 0 {
		none = "Nothing was found: "
	}
	return append(parts, lead(say(none), text(q)), nothing(say("The search finds the id of a run or a dead letter, a part of a key, the beginning of the name of a model or dataset, and a part of the name of a stream, trigger, schedule, recipe, pool or scorer.")))
}

// hit is an object that a search has found.
type hit struct{ Kind, Name, URL string }

// onlyHit opens the object of a search that has found one.
func onlyHit(v *visit) string {
	if hits := v.hits(); len(hits) == 1 && len(v.missed) == 0 {
		return hits[0].URL
	}
	return ""
}

// mostHits is the number of hits of one kind.
const mostHits = 20

// searchIn asks the API for objects. A kind that this gateway does not have, or that the caller may not see, has none. Other
// errors are shown with the result, because they may hide an object.
func searchIn[T any](v *visit, path string, query url.Values) (answer T) {
	answer, err := get[T](v, path, query)
	var p *api.Problem
	if err == nil || errors.As(err, &p) && (p.Status == http.StatusNotImplemented || p.Status < http.StatusInternalServerError && p.Status != http.StatusTooManyRequests) {
		return answer
	}
	if reason := err.Error(); !slices.Contains(v.missed, reason) {
		v.missed = append(v.missed, reason)
	}
	return answer
}

// hits finds objects by id, key and name.
func (v *visit) hits() []hit {
	text := strings.TrimSpace(v.query("q"))
	if text == "" {
		return nil
	}
	if v.found == nil {
		v.found = []hit{} // a search without hits is done once, too
		v.found = append(v.found, v.hitsByID(text)...)
		v.found = append(v.found, v.hitsByKey(text)...)
		v.found = append(v.found, v.hitsByName(text)...)
	}
	return v.found
}

func (v *visit) hitsByID(text string) (all []hit) {
	if strings.ContainsAny(text, "/ ?#") {
		return nil
	}
	if run := searchIn[api.RunWhole](v, "/api/v1/runs/"+text, nil); run.ID != "" {
		all = append(all, hit{"Run", run.ID, runURL(run.ID)})
	}
	if letter := searchIn[api.WholeLetter](v, "/api/v1/dead-letters/"+text, nil); letter.Letter.ID != "" {
		all = append(all, hit{"Dead letter", letter.Letter.ID, letterURL(letter.Letter.ID)})
	}
	return all
}

// hitsByKey finds keys of the fleet that contain a text, keys that have runs alone, and models whose
// names begin with the text.
func (v *visit) hitsByKey(text string) (all []hit) {
	seen := map[string]bool{}
	add := func(key string) {
		if !seen[key] {
			seen[key] = true
			all = append(all, hit{"Key", key, keyURL(key)})
		}
	}
	keys := searchIn[api.FleetKeys](v, "/api/v1/fleet/keys", url.Values{"search": {text}, "limit": {strconv.Itoa(mostHits)}})
	for i := range keys.Keys {
		add(keys.Keys[i].Key)
	}
	if runs := searchIn[api.Runs](v, "/api/v1/runs", url.Values{"key": {text}, "limit": {"1"}}); len(runs.Runs) > 0 {
		add(text)
	}
	if keys.Total > len(keys.Keys) {
		all = append(all, hit{"Keys", "all " + count(keys.Total) + " keys", queryURL("/", "search", text)})
	}
	models := searchIn[api.Models](v, "/api/v1/models", url.Values{"prefix": {text}, "limit": {strconv.Itoa(mostHits)}})
	for i := range models.Models {
		all = append(all, hit{"Model", models.Models[i].Name, modelURL(models.Models[i].Name)})
	}
	return all
}

// hitsByName finds the things of the config whose names contain a text.
func (v *visit) hitsByName(text string) (all []hit) {
	found := map[string]int{} // number of hits by kind
	add := func(kind, name, address string) {
		if !strings.Contains(name, text) {
			return
		}
		if found[kind]++; found[kind] <= mostHits {
			all = append(all, hit{kind, name, address})
		}
	}
	for _, s := range searchIn[api.Streams](v, "/api/v1/streams", nil).Streams {
		add("Stream", s.Name, streamURL(s.Name))
	}
	for _, t := range searchIn[api.Triggers](v, "/api/v1/triggers", nil).Triggers {
		add("Trigger", t.Name, triggerURL(t.Name))
	}
	for _, s := range searchIn[api.Schedules](v, "/api/v1/schedules", nil).Schedules {
		add("Schedule", s.Name, "/ui/triggers")
	}
	for _, r := range searchIn[api.Recipes](v, "/api/v1/recipes", nil).Recipes {
		add("Recipe", r.Name, recipeURL(r.Name))
	}
	for _, p := range searchIn[api.Pools](v, "/api/v1/pools", nil).Pools {
		add("Pool", p.Name, "/ui/runs")
	}
	for _, s := range searchIn[api.Scorers](v, "/api/v1/scorers", nil).Scorers {
		add("Scorer", s.Name, scorerURL(s.Name))
	}
	for _, d := range searchIn[api.Datasets](v, "/api/v1/data/datasets", url.Values{"prefix": {text}}).Datasets {
		add("Dataset", d.Name, dataURL(d.Name))
	}
	for _, kind := range slices.Sorted(maps.Keys(found)) {
		if n := found[kind]; n > mostHits {
			v.missed = append(v.missed, fmt.Sprintf("%d of %d results of the kind %s are listed; type more of the name", mostHits, n, strings.ToLower(kind)))
		}
	}
	return all
}
