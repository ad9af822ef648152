package config

import (
	"errors"
	"io/fs"
	"net/http"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"tidemill.dev"
	"tidemill.dev/config/cron"
	"tidemill.dev/config/gate"
)

// Hostile bytes cause problems, each on one line of bounded length. An accepted config is sound.
func FuzzParse(f *testing.F) {
	seed(f, Examples(), "*.yaml")
	seed(f, os.DirFS("testdata"), "*.yaml")
	for _, s := range []string{"[[[[", "{{{{", "? ? ?", "- - -", "!!", "%TAG ! x:y\n---\n", "&a *a", "a: |9\n x", "\xef\xbb\xbfa: 1", "\"\\U0010FFFF\"", "? |\n a\n: b", "---\n---\n...", "<<: *x", "0: {", "a: !<tag:yaml.org,2002:int> 1",
		"version: 1\ntriggers: {a: {when: {type: t, where: \"a IN ('b', 'c') AND NOT EXISTS d\"}, to: {url: 'https://a.example:8443/b?c=%20', bearerFile: t}, delivery: {rate: 3/h, backoff: {cap: 3ms}}}}",
		"version: 1\nrecipes: {a: {key: data.b, when: {type: t, debounce: 3s}, inputs: {c: 'd/{key}', e: {uri: 'https://f.example/{g}{{'}}, run: {dir: h, command: [i], env: {J: '{recipe}'}, secrets: {K: l/m}, cpu: 7m, memory: 8Mi}, makes: {dataset: 'n/{key}'}}}",
		"version: 1\nrecipes: {a: {run: {image: b}, makes: {model: 'c/{key}'}, gate: ['metrics.d >= champion.metrics.d', 'has(run.bytes)'], gateOn: recorded, promote: manual}}",
		"version: 1\nschedules: {a: {cron: '@daily', each: key}}\npools: {b: {slots: 3}}\nrecipes: {c: {when: [{schedule: a}, {stream: facts, where: \"recipe = 'd'\"}], run: {image: e, pool: b, backoff: {first: 3s}}}}",
		"version: 1\npools: {a: {nodes: {b/c: d, e: ''}, tolerations: [{key: f, operator: Exists, effect: NoExecute}, {key: g, value: h}], priorityClass: i, queue: j, runtimeClass: k}}",
		"version: 1\nrecipes: {a: {run: {image: b, workers: 3, servers: {count: 2, command: [c], cpu: 1, memory: 1Gi}, user: 0, pullSecrets: [d], shm: 1Gi, disk: 1Gi, volumes: [{claim: e, at: /f}, {secret: g, at: /h/i}, {config: j, at: /k}]}}}",
		"version: 1\nscorers: {a: {from: events, to: b, model: c, replicas: {min: 1, max: 4, lag: 10, idle: 3s}}}\nstreams: {b: }",
		"version: 1\nschedules: {a: {cron: '*/5 1-3,7 L * MON-FRI', timeZone: America/New_York, missed: all, keys: [a, b], spread: 90s}}",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := Parse("f", data)
		if err == nil {
			checkSound(t, cfg)
			return
		}
		var all *Error
		if cfg != nil || !errors.As(err, &all) || len(all.Problems) == 0 || len(all.Problems) > maxProblems+1 {
			t.Fatalf("%+v and %v", cfg, err)
		}
		for _, p := range all.Problems {
			checkProblem(t, p)
		}
	})
}

func seed(f *testing.F, files fs.FS, pattern string) {
	f.Helper()
	names, err := fs.Glob(files, pattern)
	if err != nil || len(names) == 0 {
		f.Fatalf("no seeds %s, %v", pattern, err)
	}
	for _, name := range names {
		data, err := fs.ReadFile(files, filepath.ToSlash(name))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
}

func checkTrigger(t *testing.T, cfg *Config, tr Trigger) {
	t.Helper()
	to, y := tr.To, tr.Delivery
	named := 0
	for _, s := range []string{to.URL, to.Service, to.Function} {
		if s != "" {
			named++
		}
	}
	label := tr.Name
	if tr.Builtin {
		label = strings.TrimPrefix(label, "recipe.")
	}
	ofInstall := tr.Builtin && reservedTrigger(tr.Name) && to.Function == tr.Name && to.Recipe == ""
	if tidemill.CheckLabel(label) != nil || reservedTrigger(tr.Name) != ofInstall || tr.Builtin != (to.Recipe != "" || ofInstall) || len(tr.When) == 0 || named != 1 || to.Function != "" && len(to.Credentials.Files()) > 0 {
		t.Errorf("trigger %+v", tr)
	}
	if y.Attempts < 1 || y.Timeout < minTimeout || y.Concurrency < 1 || y.Rate < 0 || y.Backoff.First < minWait || y.Backoff.First > y.Backoff.Cap || y.Backoff.Cap > maxWait {
		t.Errorf("trigger %s is delivered %+v", tr.Name, y)
	}
	if u, err := url.Parse(to.URL); err != nil || u.User != nil || u.Fragment != "" || to.URL != "" && u.Hostname() == "" {
		t.Errorf("url %q, %v", to.URL, err)
	} else if to.URL != "" {
		if _, err := http.NewRequest(http.MethodPost, to.URL, nil); err != nil {
			t.Error(err)
		}
	}
	streams := cfg.StreamsOf(tr)
	if len(streams) == 0 {
		t.Errorf("trigger %+v reads nothing", tr)
	}
	for _, s := range streams {
		_, known := cfg.Stream(s)
		if !known || !slices.ContainsFunc(cfg.Parked(), func(p Stream) bool { return p.Name == tidemill.Parked(s) }) {
			t.Errorf("trigger %+v reads %s", tr, s)
		}
	}
}

func checkSchedule(t *testing.T, s Schedule) {
	t.Helper()
	_, err := cron.Parse(s.Cron)
	if _, zone := time.LoadLocation(s.TimeZone); tidemill.CheckLabel(s.Name) != nil || err != nil || zone != nil || s.Missed == "" ||
		s.Spread != 0 && (s.Spread > maxSpread || len(s.Keys) == 0 && !s.Each) || !slices.IsSorted(s.Keys) || slices.Contains(s.Keys, "") {
		t.Errorf("schedule %+v, %v, %v", s, err, zone)
	}
}

func checkRecipe(t *testing.T, cfg *Config, r Recipe) {
	t.Helper()
	j := r.Run
	if _, known := cfg.Pool(j.Pool); !known || tidemill.CheckLabel(r.Name) != nil || r.Key == "" || r.Keep < 1 || (j.Image == "") == (j.Dir == "") ||
		j.Image == "" && len(j.Command) == 0 || j.Attempts < 1 || j.Deadline < minDeadline || j.Grace < time.Second ||
		j.Backoff.First < minWait || j.Backoff.First > j.Backoff.Cap || j.MaxOutput < 1 || j.MaxLog < 1 || r.Makes.Model != "" && r.Makes.Dataset != "" {
		t.Errorf("recipe %+v", r)
	}
	if _, err := gate.Compile(r.Gate); err != nil || (r.Makes.Model == "") != (r.Promote == "") || (r.Promote == "") != (r.GateOn == "") || len(r.Gate) > 0 && r.Makes.Model == "" {
		t.Errorf("recipe %s is judged by %+v: %v", r.Name, r.Judge(), err)
	}
	for _, w := range r.When {
		_, known := cfg.Schedule(w.Schedule)
		if w.MaxWait < w.Debounce || w.Schedule != "" != known || w.Each && w.Schedule == "" || w.Spread > 0 && !w.Each {
			t.Errorf("recipe %s runs when %+v", r.Name, w)
		}
	}
	names := []string{r.Makes.Model, r.Makes.Dataset}
	for _, in := range r.Inputs {
		names = append(names, in.Dataset)
		if in.Outcomes != "" {
			if s, ok := cfg.Scorer(in.Outcomes); !ok || s.Labels == nil || in.Last < time.Second || in.Dataset+in.URI != "" {
				t.Errorf("recipe %s learns from %+v", r.Name, in)
			}
			continue
		}
		if (in.Dataset == "") == (in.URI == "") || in.URI != "" && len(in.Allow) == 0 || in.Dataset != "" && (in.Branch == "") != in.AtCause {
			t.Errorf("recipe %s learns from %+v", r.Name, in)
		}
	}
	for _, name := range names {
		name, err := Expand(name, func(field string) (string, bool) {
			return "x", field == "key" && r.Key != KeyNone || field == "recipe" || field == "team" && r.Team != ""
		})
		if err != nil || name != "" && tidemill.CheckDataset(name) != nil {
			t.Errorf("recipe %s: %q, %v", r.Name, name, err)
		}
	}
}

// checkInside checks the settings of a container against the limits of Kubernetes.
func checkInside(t *testing.T, r Recipe) {
	t.Helper()
	j := r.Run
	if s := j.Servers; j.Workers == 1 || j.Workers < 0 || s != nil && s.Count < 1 || j.Dir != "" && !reflect.DeepEqual(j.Inside, tidemill.Inside{}) {
		t.Errorf("recipe %s works with %d and %+v in %+v", r.Name, j.Workers, s, j.Inside)
	}
	places := map[string]bool{}
	for _, v := range j.Inside.Volumes {
		kinds := 0
		for _, name := range []string{v.Claim, v.Secret, v.Config} {
			if name != "" {
				kinds++
			}
		}
		if kinds != 1 || !path.IsAbs(v.At) || path.Clean(v.At) != v.At || places[v.At] || strings.HasPrefix(v.At+"/", "/tidemill/") || v.Claim == "" && !v.ReadOnly {
			t.Errorf("recipe %s mounts %+v", r.Name, v)
		}
		places[v.At] = true
	}
}

func checkPool(t *testing.T, p Pool) {
	t.Helper()
	for label, value := range p.Nodes {
		if !kubernetesLabel.MatchString(label) || value != "" && !kubernetesValue.MatchString(value) || len(value) > 63 {
			t.Errorf("pool %s has the nodes %q: %q", p.Name, label, value)
		}
	}
	for _, o := range p.Tolerations {
		if o.Operator != "Equal" && o.Operator != "Exists" || o.Operator == "Exists" && o.Value != "" || o.Operator == "Equal" && o.Key == "" {
			t.Errorf("pool %s tolerates %+v", p.Name, o)
		}
	}
}

func checkProblem(t *testing.T, p Problem) {
	t.Helper()
	text := p.Error()
	if p.File != "f" || p.Line < 1 || p.Message == "" || len(text) > 8<<10 {
		t.Errorf("a problem of %d letters: %+v", len(text), p)
	}
	if _, found := controlIn(text); found || strings.ContainsAny(text, "\n\t") || !utf8.ValidString(text) {
		t.Errorf("a problem that may harm a terminal: %q", text)
	}
}

func checkSound(t *testing.T, cfg *Config) {
	t.Helper()
	if _, err := cfg.Names(); err != nil || len(cfg.Hash()) != 26 {
		t.Errorf("names %v, hash %s", err, cfg.Hash())
	}
	for _, tr := range cfg.Triggers {
		checkTrigger(t, cfg, tr)
	}
	for _, s := range cfg.Schedules {
		checkSchedule(t, s)
	}
	for _, r := range cfg.Recipes {
		checkRecipe(t, cfg, r)
		checkInside(t, r)
	}
	for _, p := range cfg.Pools {
		checkPool(t, p)
	}
	for _, s := range cfg.Scorers {
		if r := s.Replicas; r.Min < 0 || r.Max < 1 || r.Max < r.Min || r.Lag < 1 || r.Idle < time.Second {
			t.Errorf("scorer %s has the replicas %+v", s.Name, r)
		}
	}
	for _, s := range cfg.Streams {
		expires := s.Retention != Forever
		if s.Partitions < 1 || s.Partitions > maxPartitions || mustNotExpire(s.Name) && expires || expires && s.Retention < minRetention {
			t.Errorf("stream %+v", s)
		}
		if d := s.Dedupe; d != 0 && (d < minDedupe || d > maxDedupe || !takesOutside(s)) {
			t.Errorf("stream %+v", s)
		}
		for _, typ := range s.Types {
			if cfg.StreamFor(typ) != s.Name {
				t.Errorf("type %q lives on %s, not %s", typ, cfg.StreamFor(typ), s.Name)
			}
		}
	}
}
