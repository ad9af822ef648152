package config

import (
	"reflect"
	"testing"
	"time"
)

func recipeOf(t *testing.T, text string) Recipe {
	t.Helper()
	r, ok := mustParse(t, "version: 1\npools: {p: {slots: 1}}\nrecipes: {a: {when: {type: t}, "+text+"}}").Recipe("a")
	if !ok {
		t.Fatal("no recipe a")
	}
	return r
}

func TestRolloutDefaults(t *testing.T) {
	t.Parallel()
	r := recipeOf(t, `run: {image: i}, makes: {model: "m/{key}"}, rollout: {}`)
	want := &Rollout{Keys: []float64{0.01, 0.1, 1}, Hold: 24 * time.Hour, Stop: []string{"fleet.worse > 0.02", "fleet.failed > 0.2"}}
	if !reflect.DeepEqual(r.Rollout, want) {
		t.Errorf("got %+v", r.Rollout)
	}
	if r := recipeOf(t, `run: {image: i}, makes: {model: "m/{key}"}`); r.Rollout != nil {
		t.Errorf("without the key: %+v", r.Rollout)
	}
}

// A way is the same for ever: a newer version of Tidemill must not begin rollouts of unchanged recipes.
func TestTheHashOfAWayIsGolden(t *testing.T) {
	t.Parallel()
	for want, text := range map[string]string{
		"li5advsdbnfyepjjdxzbmcq3rt": `run: {image: i}, makes: {model: "m/{key}"}`,
		"pgjra4tsp4s3dwpcdjeykmymxe": `run: {image: i, command: [c], env: {A: b}, secrets: {S: t/u}, gpus: 1, workers: 2, user: 5, volumes: [{claim: c, at: /x}]}, inputs: {i: "d/{key}", u: {uri: "{x}", allow: ["https://a.example/"]}}, makes: {model: "m/{key}"}`,
	} {
		r := recipeOf(t, text)
		if got := r.Way().Hash; got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// A recipe in the way of another one runs what that one runs, with its own pool and limits.
func TestARecipeTakesAnotherWay(t *testing.T) {
	t.Parallel()
	before := recipeOf(t, `run: {image: "i:1", env: {A: b}, pool: default}, inputs: {i: "d/{key}"}, makes: {model: "m/{key}"}`)
	now := recipeOf(t, `run: {image: "i:2", gpus: 2, pool: p, deadline: 2h}, makes: {model: "m/{key}"}, gate: [metrics.a > 1]`)
	got, err := now.In(before.Way())
	if err != nil {
		t.Fatal(err)
	}
	if got.Way().Hash != before.Way().Hash || got.Run.Image != "i:1" || got.Run.GPUs != 0 || len(got.Inputs) != 1 {
		t.Errorf("it runs %+v on %+v", got.Run, got.Inputs)
	}
	if got.Run.Pool != "p" || got.Run.Deadline != 2*time.Hour || len(got.Gate) != 1 {
		t.Errorf("its limits are %+v", got.Run)
	}
	operational := recipeOf(t, `run: {image: "i:2", gpus: 2, deadline: 3h, cpu: 2, memory: 1Gi}, makes: {model: "m/{key}"}, keep: 3`)
	if operational.Way().Hash != now.Way().Hash {
		t.Error("another deadline is another way")
	}
}
