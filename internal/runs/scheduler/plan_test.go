package scheduler

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/triggers/commands"
)

func trainer() config.Recipe {
	return config.Recipe{Name: "intent", Team: "chat", Key: "subject",
		Inputs: []config.InputFrom{{Name: "examples", Dataset: "bots/{key}", Branch: "main"}},
		Run: config.Job{Dir: "trainer", Command: []string{"python", "train.py"}, Env: map[string]string{"BOT": "{key} of {team}"},
			Pool: "gpu", Priority: 5, GPUs: 1, Deadline: time.Hour, Grace: time.Minute, Attempts: 3,
			Backoff: config.Backoff{First: time.Second, Cap: time.Minute}, MaxOutput: 10, MaxLog: 20,
			Secrets: map[string]string{"HF_TOKEN": "hugging-face/token"}},
		Makes: config.Makes{Model: "intent/{key}"}, Gate: []string{"metrics.accuracy > 0.8"}, Keep: 5}
}

func asking(event string) *tidemill.Run {
	return &tidemill.Run{ID: "r", Recipe: "intent", Key: "bot-42", Priority: 2, Event: json.RawMessage(event)}
}

const (
	created = `{"specversion":"1.0","id":"1","source":"/crm","type":"bot-created","subject":"bot-42"}`
	newData = `{"specversion":"1.0","id":"2","source":"/s","type":"new-data","subject":"bot-42","dataset":"bots/bot-42","branch":"exp","commit":"c7","data":{"uri":"https://data.example/a/b.csv"}}`
)

func TestAPlanIsWhatTheRecipeSays(t *testing.T) {
	t.Parallel()
	p, err := draft(trainer(), asking(created), "/home/ada")
	want := tidemill.Plan{Team: "chat", Dir: "/home/ada/trainer", Command: []string{"python", "train.py"},
		Env: map[string]string{"BOT": "bot-42 of chat"}, Secrets: map[string]string{"HF_TOKEN": "hugging-face/token"},
		GPUs: 1, Pool: "gpu", Priority: 7, Deadline: time.Hour, Grace: time.Minute, Attempts: 3,
		Backoff: tidemill.Backoff{First: time.Second, Cap: time.Minute},
		Inputs:  []tidemill.Input{{Name: "examples", Dataset: "bots/bot-42", Branch: "main"}},
		Model:   "intent/bot-42", MaxOutput: 10, MaxLog: 20,
		Judge: &tidemill.Judge{Gate: []string{"metrics.accuracy > 0.8"}, On: tidemill.GateOnSame, Promote: tidemill.PromoteAuto, Keep: 5}}
	if err != nil || !reflect.DeepEqual(p, want) {
		t.Errorf("%v, plan\n%+v, want\n%+v", err, p, want)
	}
	got := withCommit(p.Inputs[0], api.Commit{ID: "c1", Tree: "t1", Files: 3, Bytes: 9})
	if !reflect.DeepEqual(got, tidemill.Input{Name: "examples", Dataset: "bots/bot-42", Branch: "main", Commit: "c1", Tree: "t1", Files: 3, Bytes: 9}) {
		t.Errorf("an input that was found is %+v", got)
	}
}

func TestPlans(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		event string
		set   func(*config.Recipe)
		is    func(tidemill.Plan) bool
		fails string
	}{
		{"a folder that is absolute", created, func(r *config.Recipe) { r.Run.Dir = "/opt/t" },
			func(p tidemill.Plan) bool { return p.Dir == "/opt/t" }, ""},
		{"an image", created, func(r *config.Recipe) { r.Run.Dir, r.Run.Image = "", "i:3" },
			func(p tidemill.Plan) bool { return p.Dir == "" && p.Image == "i:3" && made(p) }, ""},
		{"a dataset is made", created, func(r *config.Recipe) { r.Makes = config.Makes{Dataset: "clean/{key}"} },
			func(p tidemill.Plan) bool { return p.Dataset == "clean/bot-42" && p.Branch == "main" && p.Model == "" }, ""},
		{"the cause's commit", newData, func(r *config.Recipe) { r.Inputs[0].AtCause, r.Inputs[0].Branch = true, "" },
			func(p tidemill.Plan) bool { return p.Inputs[0].Commit == "c7" && p.Inputs[0].Branch == "exp" }, ""},
		{"the head, though the cause names a commit", newData, nil,
			func(p tidemill.Plan) bool { return p.Inputs[0].Commit == "" && p.Inputs[0].Branch == "main" }, ""},
		{"the commit of another dataset", strings.Replace(newData, "bots/bot-42", "bots/bot-7", 1), func(r *config.Recipe) { r.Inputs[0].AtCause, r.Inputs[0].Branch = true, "" },
			func(p tidemill.Plan) bool { return p.Inputs[0].Commit == "" && p.Inputs[0].Branch == "main" }, ""},
		{"a cause without a commit", created, func(r *config.Recipe) { r.Inputs[0].AtCause, r.Inputs[0].Branch = true, "" },
			func(p tidemill.Plan) bool { return p.Inputs[0].Commit == "" && p.Inputs[0].Branch == "main" }, ""},
		{"a URI", newData, uriFrom("{data.uri}", "https://data.example/a/"),
			func(p tidemill.Plan) bool {
				return p.Inputs[0].URI == "https://data.example/a/b.csv" && slices.Equal(p.Inputs[0].Allow, []string{"https://data.example/a/"})
			}, ""},
		{"a URI of somebody else's", newData, uriFrom("{data.uri}", "https://data.example/c/"), nil, "begins with nothing that the recipe allows"},
		{"a URI that is not there", created, uriFrom("{data.uri}", "https://data.example/"), nil, "the input examples cannot be computed: expand \"{data.uri}\": there is no value for {data.uri}; the newest cause is 1 from /crm"},
		{"an unknown field", created, func(r *config.Recipe) { r.Run.Env = map[string]string{"A": "{nope}"} }, nil, "the variable A cannot be computed"},
		{"an event that is none", `{"broken":`, func(r *config.Recipe) { r.Run.Env = map[string]string{"A": "{subject}"} }, nil, "there is no value for {subject}"},
		{"no team", created, func(r *config.Recipe) { r.Team = "" }, nil, "{team}"},
		{"a name that is none", created, func(r *config.Recipe) { r.Makes = config.Makes{Model: "a//{key}"} }, nil, "the model that it makes would be \"a//bot-42\""},
		{"an input's name that is none", created, func(r *config.Recipe) { r.Inputs[0].Dataset = "../{key}" }, nil, "the input examples would be"},
	} {
		r := trainer()
		if c.set != nil {
			c.set(&r)
		}
		p, err := draft(r, asking(c.event), "/home/ada")
		_, hopeless := errors.AsType[*planError](err)
		switch {
		case c.fails == "" && (err != nil || !c.is(p)):
			t.Errorf("%s: %v, plan %+v", c.name, err, p)
		case c.fails != "" && (!hopeless || !strings.Contains(err.Error(), c.fails)):
			t.Errorf("%s: %v, want %q", c.name, err, c.fails)
		}
	}
}

func uriFrom(template string, allow ...string) func(*config.Recipe) {
	return func(r *config.Recipe) {
		r.Inputs = []config.InputFrom{{Name: "examples", URI: template, Allow: allow}}
	}
}

func TestNothingIsLaunchedByAPlanThatIsNone(t *testing.T) {
	t.Parallel()
	if p := unmade(trainer(), asking(created)); made(p) || p.Pool != "gpu" || p.Attempts != 1 {
		t.Errorf("the plan is %+v", p)
	}
}

func TestWhoIsAdmitted(t *testing.T) {
	t.Parallel()
	of := func(name, pool string) config.Recipe {
		return config.Recipe{Name: name, MaxRunning: 3, Run: config.Job{Pool: pool, Priority: 4}}
	}
	c := &config.Config{Recipes: []config.Recipe{of("a", "gpu"), of("b", "cpu"), of("c", "gpu")}}
	asked := func(typ, name string) *commands.State {
		a := new(commands.State)
		a.Apply(commands.Command{Type: typ, Subject: name})
		return a
	}
	for _, x := range []struct {
		name  string
		asked *commands.State
		want  string
	}{
		{"nothing is paused", new(commands.State), "a c"},
		{"a recipe is paused", asked(tidemill.TypeRecipePaused, "a"), "c"},
		{"the pool is paused", asked(tidemill.TypePoolPaused, "gpu"), ""},
		{"another pool is paused", asked(tidemill.TypePoolPaused, "cpu"), "a c"},
	} {
		var names []string
		for _, a := range admitted(c, "gpu", x.asked) {
			names = append(names, a.Recipe)
			if a.MaxRunning != 3 || a.Priority != 4 {
				t.Errorf("%s: %+v", x.name, a)
			}
		}
		if got := strings.Join(names, " "); got != x.want {
			t.Errorf("%s: admitted are %q, want %q", x.name, got, x.want)
		}
	}
}

func TestKeysThatAreNone(t *testing.T) {
	t.Parallel()
	for key, good := range map[string]bool{"bot-42": true, "a/b": true, "Straße 7": true, strings.Repeat("x", 256): true,
		"": false, "a\x00b": false, "a\nb": false, "\xff": false, strings.Repeat("x", 257): false} {
		if err := CheckKey(key); (err == nil) != good || err != nil && !errors.Is(err, ErrKey) {
			t.Errorf("%q: %v", key, err)
		}
	}
}

// A key is refused with the name that it would make, before a run is requested.
func TestKeysOfARecipe(t *testing.T) {
	t.Parallel()
	model := config.Recipe{Name: "intent", Makes: config.Makes{Model: "intent/{key}"}}
	input := config.Recipe{Name: "intent", Inputs: []config.InputFrom{{Name: "examples", Dataset: "bots/{key}/{data.part}"}}, Makes: config.Makes{Model: "all"}}
	free := config.Recipe{Name: "intent", Makes: config.Makes{Model: "all"}}
	for _, c := range []struct {
		recipe config.Recipe
		key    string
		says   string
	}{
		{model, "bot-42", ""}, {model, "a/b", ""}, {free, "Müller", ""}, {free, "a\nb", "control character"},
		{model, "Müller", `"Müller" can be no key of recipe intent: the model that it makes would be "intent/Müller", which has 'ü'; use letters`},
		{model, "/a", "without a name before"},
		{input, "größe", `the dataset of input examples would be "bots/größe/x", which has 'ö'`},
	} {
		err := CheckKeyOf(&c.recipe, c.key)
		if (err == nil) != (c.says == "") || err != nil && (!errors.Is(err, ErrKey) || !strings.Contains(err.Error(), c.says)) {
			t.Errorf("%s: %v, want %q", c.key, err, c.says)
		}
	}
}

// An event may contain any text as a commit. An invalid commit ends the run, because a repeated
// look-up would not help.
func TestACommitThatCanBeNoneEndsTheRun(t *testing.T) {
	r := plain("intent")
	r.Inputs = trainer().Inputs
	r.Inputs[0].AtCause = true
	w := newWorld(t, r)
	f := w.foreman(nil)
	for i, commit := range []string{"../../x", "a b", strings.Repeat("c", 1000)} {
		ask := wish("intent", "bot-42", string(rune('1'+i)))
		event, err := json.Marshal(map[string]string{"specversion": "1.0", "id": ask.Cause.ID, "source": ask.Cause.Source, "type": "new-data", "subject": "bot-42", "dataset": "bots/bot-42", "commit": commit})
		w.must(err)
		ask.Events = []json.RawMessage{event}
		if run := w.until(f, w.ask(f, ask).Run, tidemill.RunFailed); !strings.Contains(run.Reason, "the input examples cannot be computed") {
			t.Errorf("%q: %s", commit, run.Reason)
		}
	}
}
