package config

import (
	"io/fs"
	"os"
	"reflect"
	"strings"
	"testing"
	"time"
)

const leastRecipe = "version: 1\nrecipes: {intent: {run: {image: a}}}"

func TestLeastRecipe(t *testing.T) {
	t.Parallel()
	want := Recipe{Name: "intent", Key: "subject", Keep: 10,
		Run: Job{Image: "a", Pool: "default", Deadline: time.Hour, Grace: 30 * time.Second, Attempts: 3,
			Backoff:   Backoff{Kind: Exponential, First: 10 * time.Second, Cap: 5 * time.Minute},
			MaxOutput: 10 << 30, MaxLog: 64 << 20}}
	cfg := mustParse(t, leastRecipe)
	if got, ok := cfg.Recipe("intent"); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if _, ok := cfg.Recipe("none"); ok || len(cfg.Recipes) != 1 {
		t.Error("found a recipe that is not there")
	}
	if len(cfg.Triggers) != 1 || cfg.Triggers[0].Name != FunctionForget {
		t.Errorf("what only people start has triggers: %+v", cfg.Triggers)
	}
	if p, ok := cfg.Pool(DefaultPool); !ok || !reflect.DeepEqual(p, Pool{Name: "default"}) || len(cfg.Pools) != 1 {
		t.Errorf("pools %+v", cfg.Pools)
	}
	if _, ok := cfg.Pool("none"); ok {
		t.Error("found a pool that is not there")
	}
}

func TestWholeRecipe(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, `
version: 1
schedules: {nightly: {cron: "@daily"}, each: {cron: "@daily", each: key, spread: 1h}}
pools: {gpu: {resource: nvidia.com/gpu, slots: 8, linger: 1m, cards: {label: a/b, newestFirst: [x, w]}}, default: {slots: 2}}
recipes:
  intent:
    team: chat
    key: data.bot.id
    when:
      - {type: [z, a], where: "a = 'b'", debounce: 30s, priority: 3}
      - {stream: progress, debounce: 1s, maxWait: 1s}
      - {schedule: nightly, each: key, spread: 2h}
      - {schedule: each}
    inputs:
      b: {dataset: "bots/{key}", branch: side}
      c: {dataset: "bots/{team}", at: cause}
      d: {uri: "https://data.example:8443/{data.bot.file}?at={time}"}
      a: "all"
      e: {uri: "{dataref}", allow: ["http://a.example/", "https://b.example/c"]}
    run:
      dir: ../trainer
      command: [a, "{key}"]
      env: {B: "{key} {{x}}", A: "1", C: ""}
      secrets: {D: d/e}
      cpu: 500m
      memory: 2Gi
      gpus: 2
      pool: gpu
      priority: 7
      deadline: 1d
      grace: 1m
      attempts: 1
      backoff: {kind: exponential, first: 1s}
      maxOutput: 500MB
      maxLog: 1MiB
    makes: {dataset: "features/{recipe}/{key}", branch: side}
    maxRunning: 4
    keep: 3
`)
	want := Recipe{Name: "intent", Team: "chat", Key: "data.bot.id", MaxRunning: 4, Keep: 3,
		When: []RecipeWhen{
			{When: When{Types: []string{"a", "z"}, Where: "a = 'b'"}, Debounce: 30 * time.Second, MaxWait: 5 * time.Minute, Priority: 3},
			{When: When{Stream: "progress"}, Debounce: time.Second, MaxWait: time.Second},
			{When: When{Types: []string{"schedule-tick"}, Where: "schedule = 'nightly'"}, Schedule: "nightly", Each: true, Spread: 2 * time.Hour},
			{When: When{Types: []string{"schedule-tick"}, Where: "schedule = 'each'"}, Schedule: "each"},
		},
		Inputs: []InputFrom{
			{Name: "a", Dataset: "all", Branch: "main"},
			{Name: "b", Dataset: "bots/{key}", Branch: "side"},
			{Name: "c", Dataset: "bots/{team}", AtCause: true},
			{Name: "d", URI: "https://data.example:8443/{data.bot.file}?at={time}", Allow: []string{"https://data.example:8443/"}},
			{Name: "e", URI: "{dataref}", Allow: []string{"http://a.example/", "https://b.example/c"}},
		},
		Run: Job{Dir: "../trainer", Command: []string{"a", "{key}"}, Env: map[string]string{"A": "1", "B": "{key} {{x}}", "C": ""},
			Secrets: map[string]string{"D": "d/e"}, CPU: 0.5, Memory: 2 << 30, GPUs: 2, Pool: "gpu", Priority: 7,
			Deadline: 24 * time.Hour, Grace: time.Minute, Attempts: 1,
			Backoff: Backoff{Kind: Exponential, First: time.Second, Cap: 5 * time.Minute}, MaxOutput: 500e6, MaxLog: 1 << 20},
		Makes: Makes{Dataset: "features/{recipe}/{key}", Branch: "side"},
	}
	if got, _ := cfg.Recipe("intent"); !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	pools := []Pool{{Name: "default", Slots: 2},
		{Name: "gpu", Resource: "nvidia.com/gpu", Slots: 8, Linger: time.Minute, Cards: Cards{"a/b", []string{"x", "w"}}}}
	if !reflect.DeepEqual(cfg.Pools, pools) {
		t.Errorf("pools %+v", cfg.Pools)
	}
	if s, _ := cfg.Schedule("each"); !s.Each || s.Spread != time.Hour || s.Keys != nil {
		t.Errorf("schedule %+v", s)
	}
	checkSound(t, cfg)
}

// A recipe's trigger is like all other triggers, so that users find its late, parked and
// dead-lettered events in the usual places.
func TestTriggersOfRecipes(t *testing.T) {
	t.Parallel()
	cfg := mustParse(t, `
version: 1
schedules: {s: {cron: "@daily", each: key}}
triggers: {recipes: {when: {type: t}, to: {function: f}}, a: {when: {type: t}, to: {function: f}}}
recipes: {b: {when: [{schedule: s}, {type: [v, u], where: "a = 'b'"}, {stream: facts, where: "recipe = 'a'"}], run: {image: a}}, a: {when: {type: t}, run: {image: a}}, c: {run: {image: a}}}
`)
	var names []string
	for _, tr := range cfg.Triggers {
		names = append(names, tr.Name)
	}
	if !reflect.DeepEqual(names, []string{"a", "forget", "recipe.a", "recipe.b", "recipes"}) {
		t.Errorf("triggers %q", names)
	}
	want := Trigger{Name: "recipe.b", Builtin: true, To: Target{Function: "train", Recipe: "b"},
		When: []When{{Types: []string{"schedule-tick"}, Where: "schedule = 's'"}, {Types: []string{"u", "v"}, Where: "a = 'b'"}, {Stream: "facts", Where: "recipe = 'a'"}},
		Delivery: Delivery{Attempts: 30, Timeout: 30 * time.Second, Ordered: true, Concurrency: 32,
			Backoff: Backoff{Kind: Exponential, First: time.Second, Cap: 5 * time.Minute, Jitter: true}}}
	if got, ok := cfg.Trigger("recipe.b"); !ok || !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v\nwant %+v", got, want)
	}
	if got := cfg.StreamsOf(want); !reflect.DeepEqual(got, []string{"events", "facts"}) {
		t.Errorf("it reads %q", got)
	}
	if parked := cfg.Parked(); len(parked) != 2 || parked[1].Name != "facts.parked" {
		t.Errorf("it parks on %+v", parked)
	}
}

// Recipes, their schedules and pools, and the streams of their events may be in several files,
// in any order.
func TestRecipesOfSeveralFiles(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/a.yaml", "version: 1\nrecipes: {a: {when: [{schedule: s, each: key}, {stream: clicks}], run: {image: a, pool: p}}}")
	write(t, dir+"/b.yaml", "version: 1\nrecipes: {b: {run: {image: a}}}\nstreams: {clicks: }")
	write(t, dir+"/c.yaml", "version: 1\nschedules: {s: {cron: '@daily'}}\npools: {p: }")
	cfg, err := Load(dir)
	if err != nil || len(cfg.Recipes) != 2 || len(cfg.Pools) != 2 || len(cfg.Triggers) != 2 {
		t.Errorf("%+v, %v", cfg, err)
	}
}

// A filter that may exclude the recipe's own runs is accepted: only certain loops are refused.
func TestNoLoops(t *testing.T) {
	t.Parallel()
	for _, when := range []string{
		`{type: new-data, where: "dataset LIKE 'raw/%'"}`, `{type: new-data, where: "branch = 'side'"}`, `{type: new-data, where: "dataset <> 'features/x'"}`,
		`{type: new-data, where: "dataset LIKE 'features/%' AND EXISTS authid"}`, `{type: tidemill.run.finished, where: "recipe = 'other'"}`,
		`{type: tidemill.run.finished, where: "recipe = 'a' AND outcome = 'failed'"}`, `{type: tidemill.run.cancelled}`, `{stream: commands}`, `{type: t}`,
		`{type: new-data, where: "dataset LIKE 'features\\_%'"}`, `{type: new-data, where: "subject = 'x'"}`,
	} {
		mustParse(t, "version: 1\nrecipes: {a: {when: "+strings.ReplaceAll(when, `\\`, `\\\\`)+", run: {image: a}, makes: {dataset: 'features/{key}'}}}")
	}
	mustParse(t, "version: 1\nrecipes: {a: {when: {type: [new-data, tidemill.run.committed]}, run: {image: a}, makes: {model: 'a/{key}'}}}")
}

func TestRecipesExample(t *testing.T) {
	t.Parallel()
	data, err := fs.ReadFile(Examples(), "recipes.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cfg := mustParse(t, string(data))
	if len(cfg.Recipes) != 5 || len(cfg.Pools) != 2 || len(cfg.Triggers) != 6 {
		t.Errorf("%d recipes, %d pools, %d triggers", len(cfg.Recipes), len(cfg.Pools), len(cfg.Triggers))
	}
	checkSound(t, cfg)
}

// The hash covers the meaning of recipes and pools, and all of their keys.
func TestHashCoversRecipes(t *testing.T) {
	t.Parallel()
	const schedules = "schedules: {s: {cron: '@daily'}, e: {cron: '@daily', each: key}}\n"
	const pools = "pools: {gpu: {slots: 8, linger: 60s, resource: a/b, cards: {label: l, newestFirst: [x, w]}}, default: }\n"
	const recipe = `recipes: {a: {team: t, key: k, when: [{type: t, where: "a = 'b'", debounce: 1s, priority: 1}, {schedule: s, each: key, spread: 60s}], ` +
		`inputs: {i: "d/{key}", u: {uri: "{x}", allow: ["https://a.example/"]}}, run: {image: i, command: [c], env: {E: f}, secrets: {S: t/u}, cpu: 0.5, memory: 1Gi, gpus: 1, pool: gpu, priority: 2}, ` +
		`makes: {dataset: d, branch: b}, maxRunning: 2, keep: 10}}`
	whole := "version: 1\n" + schedules + pools + recipe
	seen := map[string]string{}
	try := func(text string) {
		h := mustParse(t, text).Hash()
		if first, ok := seen[h]; ok {
			t.Errorf("%s has the hash of %s", text, first)
		}
		seen[h] = text
	}
	try(whole)
	same := strings.NewReplacer("60s", "1m", "0.5", "500m", "1Gi", "1024Mi", `"d/{key}"`, `{branch: main, dataset: "d/{key}"}`, ", keep: 10", "", ", default: ", "",
		"run: {", "run: {deadline: 60m, attempts: 3, backoff: exponential, maxLog: 64Mi, ", "debounce: 1s", "debounce: 1000ms, maxWait: 10s").Replace(whole)
	if h := mustParse(t, same).Hash(); seen[h] == "" {
		t.Error("two layouts of one meaning have two hashes")
	}
	for _, c := range [][2]string{
		{"cron: '@daily', each: key", "cron: '@daily'"},
		{"slots: 8", "slots: 9"}, {"linger: 60s", "linger: 61s"}, {"resource: a/b", "resource: a/c"}, {"label: l", "label: m"}, {"[x, w]", "[w, x]"}, {"default: }", "default: {slots: 1}}"},
		{"{a: {team", "{b: {team"}, {"team: t", "team: u"}, {"key: k", "key: subject"}, {"type: t,", "type: u,"}, {"a = 'b'", "a = 'c'"}, {"debounce: 1s", "debounce: 2s"},
		{"debounce: 1s", "debounce: 1s, maxWait: 1s"}, {", priority: 1", ""}, {"spread: 60s", "spread: 61s"}, {", spread: 60s", ""},
		{"schedule: s, each: key, spread: 60s", "schedule: e"},
		{`i: "d/{key}"`, `j: "d/{key}"`}, {"d/{key}", "d/{team}"}, {`"d/{key}"`, `{dataset: "d/{key}", branch: x}`}, {`"d/{key}"`, `{dataset: "d/{key}", at: cause}`},
		{"{x}", "{y}"}, {"https://a", "https://b"}, {"image: i", "image: j"}, {"image: i", "dir: i"}, {"[c]", "[c, d]"}, {"E: f", "E: g"}, {"S: t/u", "S: t/v"},
		{"cpu: 0.5", "cpu: 0.6"}, {"memory: 1Gi", "memory: 1G"}, {"gpus: 1", "gpus: 2"}, {"pool: gpu", "pool: default"}, {"priority: 2", "priority: 3"},
		{"run: {", "run: {deadline: 2h, "}, {"run: {", "run: {grace: 2s, "}, {"run: {", "run: {attempts: 2, "}, {"run: {", "run: {backoff: {first: 1s}, "}, {"run: {", "run: {backoff: {cap: 1m}, "},
		{"run: {", "run: {maxOutput: 1G, "}, {"run: {", "run: {maxLog: 1G, "},
		{"dataset: d,", "dataset: e,"}, {"branch: b", "branch: c"}, {"dataset: d, branch: b", "model: d"},
		{"dataset: d, branch: b}", "model: d}, gate: [metrics.a > 1]"}, {"dataset: d, branch: b}", "model: d}, gate: [metrics.a > 2]"},
		{"dataset: d, branch: b}", "model: d}, gate: [metrics.a > 1], gateOn: recorded"}, {"dataset: d, branch: b}", "model: d}, promote: manual"}, {"maxRunning: 2", "maxRunning: 3"}, {"keep: 10", "keep: 11"},
		{"dataset: d, branch: b}", "model: d}, canary: {}"}, {"dataset: d, branch: b}", "model: d}, canary: {share: 20%}"}, {"dataset: d, branch: b}", "model: d}, canary: {by: data.u}"}, {"dataset: d, branch: b}", "model: d}, canary: {hold: 2h}"},
		{"dataset: d, branch: b}", "model: d}, canary: {least: 2}"}, {"dataset: d, branch: b}", "model: d}, canary: {until: 2d}"}, {"dataset: d, branch: b}", "model: d}, canary: {worse: 2%}"},
		{"dataset: d, branch: b}", "model: d}, rollout: {}"}, {"dataset: d, branch: b}", "model: d}, rollout: {keys: [2%, 100%]}"}, {"dataset: d, branch: b}", "model: d}, rollout: {hold: 2h}"}, {"dataset: d, branch: b}", "model: d}, rollout: {stop: fleet.failed > 0.5}"},
	} {
		text := strings.Replace(whole, c[0], c[1], 1)
		if text == whole {
			t.Fatalf("nothing is %s", c[0])
		}
		try(text)
	}
	try("version: 1")
	if got := mustParse(t, "version: 1\npools: {default: }").Hash(); got != Default().Hash() {
		t.Errorf("saying the default makes %s", got)
	}
}

func TestQuantities(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]int64{"5B": 5, "64MiB": 64 << 20, "500MB": 500e6, "2Gi": 2 << 30, "1k": 1000, "1K": 1000, "3T": 3e12, "1TiB": 1 << 40} {
		got, err := parseBytes(text)
		if err != nil || got != want {
			t.Errorf("%s is %d, %v", text, got, err)
		}
		if again, err := parseBytes(showBytes(got)); err != nil || again != got {
			t.Errorf("%s is shown as %s, which is %d, %v", text, showBytes(got), again, err)
		}
	}
	for _, text := range []string{"", "5", "Gi", "-5Gi", "1.5Gi", "1 Gi", "5Q", "5BB", "99999999999999999999Gi", "9999999999Gi"} {
		if got, err := parseBytes(text); err == nil {
			t.Errorf("%q is %d", text, got)
		}
	}
	for text, want := range map[string]float64{"2": 2, "0.5": 0.5, "500m": 0.5, "1m": 0.001, "1024": 1024} {
		if got := mustParse(t, "version: 1\nrecipes: {a: {run: {image: a, cpu: "+text+"}}}").Recipes[0].Run.CPU; got != want {
			t.Errorf("cpu %s is %v", text, got)
		}
	}
}

func TestManyRecipes(t *testing.T) {
	dir := t.TempDir()
	for file := range 2 {
		var text strings.Builder
		text.WriteString("version: 1\nrecipes:\n")
		for i := range 1000 {
			text.WriteString("  r" + string(rune('a'+file)) + strings.Repeat("x", i/100) + string(rune('a'+i%10)) + string(rune('a'+i/10%10)) + ": {when: {schedule: s, each: key}, run: {image: a, pool: p}}\n")
		}
		if err := os.WriteFile(dir+"/"+string(rune('a'+file))+".yaml", []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(t, dir+"/z.yaml", "version: 1\nschedules: {s: {cron: '@daily'}}\npools: {p: }")
	if cfg, err := Load(dir); err != nil || len(cfg.Recipes) != 2000 || len(cfg.Triggers) != 2001 {
		t.Errorf("%.300v", err)
	}
}
