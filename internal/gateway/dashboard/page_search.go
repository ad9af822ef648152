package dashboard

import (
	"net/url"
	"strconv"
	"strings"

	"tidemill.dev/api"
)

func searchPages() []*page {
	return []*page{{path: "/ui/search", file: "search", title: named("Search"), redirect: onlyHit, load: func(v *visit) (any, error) { return v.hits(), nil }}}
}

// hit is an object that a search has found.
type hit struct{ Kind, Name, URL string }

// onlyHit opens the object of a search that has found one.
func onlyHit(v *visit) string {
	if hits := v.hits(); len(hits) == 1 {
		return hits[0].URL
	}
	return ""
}

// mostHits is the number of hits of one kind.
const mostHits = 20

// hits finds objects by id, key and name. A kind that this gateway does not have, or that the caller
// may not see, has no hits.
func (v *visit) hits() []hit {
	text := strings.TrimSpace(v.query("q"))
	if text == "" {
		return nil
	}
	if v.found == nil {
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
	if run, err := get[api.RunWhole](v, "/api/v1/runs/"+text, nil); err == nil {
		all = append(all, hit{"Run", run.ID, runURL(run.ID)})
	}
	if letter, err := get[api.WholeLetter](v, "/api/v1/dead-letters/"+text, nil); err == nil {
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
	keys, err := get[api.FleetKeys](v, "/api/v1/fleet/keys", url.Values{"search": {text}, "limit": {strconv.Itoa(mostHits)}})
	if err == nil {
		for i := range keys.Keys {
			add(keys.Keys[i].Key)
		}
	}
	if runs, err := get[api.Runs](v, "/api/v1/runs", url.Values{"key": {text}, "limit": {"1"}}); err == nil && len(runs.Runs) > 0 {
		add(text)
	}
	if err == nil && keys.Total > len(keys.Keys) {
		all = append(all, hit{"Keys", "all " + count(keys.Total) + " keys", queryURL("/", "search", text)})
	}
	models, err := get[api.Models](v, "/api/v1/models", url.Values{"prefix": {text}, "limit": {strconv.Itoa(mostHits)}})
	if err == nil {
		for i := range models.Models {
			all = append(all, hit{"Model", models.Models[i].Name, modelURL(models.Models[i].Name)})
		}
	}
	return all
}

// hitsByName finds the things of the config whose names contain a text.
func (v *visit) hitsByName(text string) (all []hit) {
	add := func(kind, name, address string) {
		if strings.Contains(name, text) && len(all) < mostHits {
			all = append(all, hit{kind, name, address})
		}
	}
	streams, _ := get[api.Streams](v, "/api/v1/streams", nil) // an error means no hits, as the comment of hits says
	for _, s := range streams.Streams {
		add("Stream", s.Name, streamURL(s.Name))
	}
	triggers, _ := get[api.Triggers](v, "/api/v1/triggers", nil)
	for _, t := range triggers.Triggers {
		add("Trigger", t.Name, triggerURL(t.Name))
	}
	schedules, _ := get[api.Schedules](v, "/api/v1/schedules", nil)
	for _, s := range schedules.Schedules {
		add("Schedule", s.Name, "/ui/triggers")
	}
	recipes, _ := get[api.Recipes](v, "/api/v1/recipes", nil)
	for _, r := range recipes.Recipes {
		add("Recipe", r.Name, recipeURL(r.Name))
	}
	pools, _ := get[api.Pools](v, "/api/v1/pools", nil)
	for _, p := range pools.Pools {
		add("Pool", p.Name, "/ui/runs")
	}
	scorers, _ := get[api.Scorers](v, "/api/v1/scorers", nil)
	for _, s := range scorers.Scorers {
		add("Scorer", s.Name, scorerURL(s.Name))
	}
	datasets, _ := get[api.Datasets](v, "/api/v1/data/datasets", url.Values{"prefix": {text}})
	for _, d := range datasets.Datasets {
		add("Dataset", d.Name, dataURL(d.Name))
	}
	return all
}
