package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"tidemill.dev"
	"tidemill.dev/api"
)

// runsConfig has a recipe whose runs depend on the key. One that begins with bad fails; one that
// begins with long runs until it is stopped.
const runsConfig = `version: 1
pools:
  small: {slots: 1}
recipes:
  intent:
    when: [{type: bot-created}]
    inputs: {}
    run: {dir: trainer, command: [sh, train.sh], pool: small, attempts: 1}
    makes: {model: "intent/{key}"}
`

const runsTrainer = `echo "learning for $TIDEMILL_KEY"
case $TIDEMILL_KEY in
bad*) echo "no luck" >&2; exit 3;;
long*) trap 'exit 0' TERM; echo '{"step": 3, "total": 10, "loss": 0.5}' >> "$TIDEMILL_OUT/metrics.jsonl"; while :; do sleep 0.05; done;;
esac
cp -r "$TIDEMILL_IN/." "$TIDEMILL_OUT" 2>/dev/null
echo '{"accuracy": 0.93}' > "$TIDEMILL_OUT/metrics.json"
echo CAg6QQoQCgF4EgF5IghJZGVudGl0eRIBZ1oUCgF4Eg8KDQgBEgkKAxIBbgoCCAFiFAoBeRIPCg0IARIJCgMSAW4KAggBQgIQDQ== | base64 -d > "$TIDEMILL_OUT/model.onnx"
`

// runsFolder makes a folder with a config and the trainer.
func runsFolder(t *testing.T, conf string) (dir, file string) {
	t.Helper()
	dir = t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "trainer"), 0o700); err != nil {
		t.Fatal(err)
	}
	leave(t, runsTrainer, dir, "trainer", "train.sh")
	return dir, leave(t, conf, dir, "tidemill.yaml")
}

// runsAt calls commands on a tidemill up.
type runsAt struct {
	*testing.T
	data string
}

func (r runsAt) call(args ...string) outcome { return call(r.T, "", append(args, "--data", r.data)...) }

func (r runsAt) ok(args ...string) string {
	r.Helper()
	return ok(r.T, append(args, "--data", r.data)...)
}

func (r runsAt) list(flags ...string) []api.RunShown {
	r.Helper()
	var all api.Runs
	if err := json.Unmarshal([]byte(r.ok(append([]string{"runs", "-o", "json"}, flags...)...)), &all); err != nil {
		r.Fatal(err)
	}
	return all.Runs
}

// is waits until the newest run of a key is in a state, and returns its id.
func (r runsAt) is(key string, s tidemill.RunState) string {
	r.Helper()
	id := ""
	eventually(r.T, func() bool {
		all := r.list("--key", key, "--state", string(s))
		if len(all) > 0 {
			id = all[0].ID
		}
		return id != ""
	})
	return id
}

func TestRunsByCommand(t *testing.T) {
	t.Parallel()
	dir, file := runsFolder(t, runsConfig)
	r := runsAt{t, filepath.Join(dir, "data")}
	startUp(t, r.data, "-f", file)
	mention(t, "runs, of none", r.call("runs").err, "There are no runs yet")
	mention(t, "recipes", r.ok("recipes"), "RECIPE", "intent", "model intent/{key}", "small", "active")
	mention(t, "pools", r.ok("pools"), "POOL", "default", "small    1      0")

	if o := r.call("runs", "start", "intent", "--key", "a b"); o.code != exitFailed || !strings.Contains(o.err, `start runs of intent: --key: "a b" can be no key`) {
		t.Errorf("a start with a bad key: %+v", o)
	}
	mention(t, "a dry start", r.ok("runs", "start", "intent", "--key", "long-1,b", "--dry-run"), "intent  long-1  would be requested", "2 runs: 2 would be requested", "without --dry-run")
	mention(t, "start", r.ok("runs", "start", "intent", "--key", "long-1"), "intent  long-1  requested")
	long := r.is("long-1", tidemill.RunRunning)
	o := r.call("runs", "start", "intent", "--key", "bad-1", "--key", "bot-1")
	mention(t, "start two", o.out, "bad-1  requested", "bot-1  requested", "2 runs: 2 requested.")
	mention(t, "what is next", o.err, "tidemill runs show", "--watch")
	mention(t, "runs", r.ok("runs"), "RUN ", "long-1", "waits for a slot of pool small (1 of 1 in use)")
	eventually(t, func() bool { return strings.Contains(r.ok("runs", "--state", "running"), "30%  3/10  loss 0.5") })

	mention(t, "pause", r.ok("recipes", "pause", "intent"), "paused intent")
	mention(t, "pause again", r.ok("recipes", "pause", "intent"), "intent was paused already")
	mention(t, "recipes", r.ok("recipes"), "paused by anonymous")
	mention(t, "runs", r.ok("runs", "--key", "bot-1"), "recipe intent is paused since")
	mention(t, "cancel", r.ok("runs", "cancel", long[:8], "--reason", "enough"), long[:10]+"  intent  long-1  cancelling")
	r.is("long-1", tidemill.RunCancelled)
	mention(t, "show", r.ok("runs", "show", long), long+", cancelled", "enough", "ATTEMPT", "tidemill.run.requested", "runs retry")
	mention(t, "resume", r.ok("recipes", "resume", "intent"), "resumed intent")
	bad := r.is("bad-1", tidemill.RunFailed)
	r.is("bot-1", tidemill.RunSucceeded)
	mention(t, "runs", r.ok("runs", "--recipe", "intent", "--since", "-1h"), "accuracy 0.93", "exit status 3: no luck\n", "cancelled")
	mention(t, "show", r.ok("runs", "show", bad), "exit code 3", "End of its log:", "no luck")

	mention(t, "a dry retry", r.ok("runs", "retry", "--where", "state = 'failed'", "--dry-run"), "bad-1  would be requested again", "without --dry-run")
	mention(t, "retry", r.ok("runs", "retry", "--recipe", "intent", "--state", "failed"), "bad-1  requested")
	eventually(t, func() bool { return len(r.list("--key", "bad-1", "--state", "failed")) == 2 })
	mention(t, "start all", r.ok("runs", "start", "intent", "--all", "--where", "subject LIKE 'bo%'", "--rate", "10/s"), "bot-1  requested")
	for args, says := range map[string]string{
		"runs show zzzzzzzz":     `no run's id is "zzzzzzzz"`,
		"runs get " + bad + " x": "has made no files; its state is failed",
		"runs start no --key a":  `recipe "no" is not in the config`,
		"runs start intent":      "name those to start runs for",
		"runs cancel " + bad:     "",
		"recipes pause no":       `recipe "no" is not in the config`,
		"pools resume no":        `pool "no" is not in the config`,
	} {
		if o := r.call(strings.Fields(args)...); o.code == 0 || !strings.Contains(o.err, says) {
			t.Errorf("%s: %+v, want %q", args, o, says)
		}
	}
	if o := r.call("runs", "cancel", "--key", "nobody"); o.code != 0 || !strings.Contains(o.err, "No run matches") {
		t.Errorf("%+v", o)
	}
	r.pages()
	mention(t, "pools", r.ok("pools", "pause", "small"), "paused small")
	mention(t, "pools", r.ok("pools", "resume", "small"), "resumed small")
}

// pages reads the list of runs one by one, and compares it with the whole list.
func (r runsAt) pages() {
	r.Helper()
	var paged []string
	for after := ""; ; {
		args := []string{"runs", "-n", "1", "-o", "json"}
		if after != "" {
			args = append(args, "--after", after)
		}
		var page api.Runs
		if err := json.Unmarshal([]byte(r.ok(args...)), &page); err != nil || len(page.Runs) > 1 {
			r.Fatalf("%v, %+v", err, page)
		}
		for i := range page.Runs {
			paged = append(paged, page.Runs[i].ID)
		}
		if after = page.Next; after == "" {
			break
		}
		mention(r.T, "a list that was cut", r.call("runs", "-n", "1").err, fmt.Sprintf("These are 1 of %d runs; --after ", len(r.list())))
	}
	var whole []string
	for _, one := range r.list() {
		whole = append(whole, one.ID)
	}
	if len(whole) < 3 || !slices.Equal(paged, whole) {
		r.Errorf("in pages there are %v, in one list %v", paged, whole)
	}
}

// A program of the recipe's folder is found from any folder and with any way to name the config.
func TestAProgramOfTheRecipesFolder(t *testing.T) {
	t.Parallel()
	dir, _ := runsFolder(t, strings.Replace(runsConfig, "sh, train.sh", "./train.sh", 1))
	script := filepath.Join(dir, "trainer", "train.sh")
	leave(t, "#!/bin/sh\n"+runsTrainer, script)
	if err := os.Chmod(script, 0o700); err != nil {
		t.Fatal(err)
	}
	below := filepath.Base(dir)
	other, _ := runsFolder(t, strings.Replace(runsConfig, "sh, train.sh", ".venv/bin/x, train.sh", 1))
	bin := filepath.Join(other, "trainer", ".venv", "bin")
	if err := errors.Join(os.MkdirAll(bin, 0o700), os.Symlink("/bin/sh", filepath.Join(bin, "x"))); err != nil {
		t.Fatal(err)
	}
	for from, flag := range map[[2]string]string{
		{dir, "no -f"}: "", {dir, "a file"}: "tidemill.yaml", {dir, "a folder"}: ".", {filepath.Dir(dir), "a file below"}: filepath.Join(below, "tidemill.yaml"),
		{filepath.Dir(dir), "a folder below"}: below, {filepath.Join(dir, "trainer"), "a file above"}: "../tidemill.yaml",
		{filepath.Dir(other), "a relative interpreter"}: filepath.Join(filepath.Base(other), "tidemill.yaml"),
	} {
		args := []string{"try", "intent", "--key", "bot-7"}
		if flag != "" {
			args = append(args, "-f", flag)
		}
		child := exec.CommandContext(t.Context(), os.Args[0], args...)
		child.Dir, child.Env = from[0], append(os.Environ(), asMain+"=1")
		if printed, err := child.CombinedOutput(); err != nil || !strings.Contains(string(printed), "learning for bot-7") {
			t.Errorf("with %s: %v\n%s", from[1], err, printed)
		}
	}
}

func TestTry(t *testing.T) {
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	dir, file := runsFolder(t, strings.Replace(runsConfig, "inputs: {}", `inputs: {examples: "bots/{key}"}`, 1))
	in, out := filepath.Join(dir, "in"), filepath.Join(dir, "out")
	if err := os.Mkdir(in, 0o700); err != nil {
		t.Fatal(err)
	}
	leave(t, "hello\n", in, "a.txt")
	event := leave(t, `{"specversion":"1.0","id":"1","source":"/crm","type":"bot-created","subject":"bot-7"}`, dir, "event.json")
	try := func(args ...string) outcome {
		t.Helper()
		return call(t, "", append([]string{"try", "intent", "-f", file}, args...)...)
	}
	for range 2 { // the second call replaces the output of the first
		o := try("--event", event, "--data", in, "--out", out)
		if o.code != 0 {
			t.Fatalf("%+v", o)
		}
		mention(t, "try", o.out, "learning for bot-7", "outcome ", "succeeded", "accuracy  0.93", "fetch ", "would be  a version of model intent/bot-7")
		mention(t, "where it is", o.err, "the output is in "+out+": ")
	}
	text, err := os.ReadFile(filepath.Join(out, "examples", "a.txt"))
	if err != nil || string(text) != "hello\n" {
		t.Errorf("it has made %q, %v", text, err)
	}
	o := try("--key", "bad-1", "--data", "examples="+in)
	if o.code != exitFailed {
		t.Errorf("a run that fails exits with %d", o.code)
	}
	mention(t, "one that fails", o.out, "no luck", "failed", "exit code 3")
	if strings.Contains(o.out, "would be") {
		t.Errorf("it tells what it would be:\n%s", o.out)
	}
	for args, says := range map[string]string{
		"--key a":                                      "input examples is missing",
		"--data " + in:                                 "--key is missing",
		"--key a --data exmaples=" + in:                "did you mean examples?",
		"--key a --data " + in + " --data " + in:       "given twice",
		"--key a --data " + in + " --log loud":         "--log",
		"--key a --data " + in + " --event " + in:      "read the event",
		"--key a --data " + in + " --event " + file:    "CloudEvents JSON",
		"--key a --data " + filepath.Join(dir, "none"): "no such file",
	} {
		if o := try(strings.Fields(args)...); o.code == 0 || !strings.Contains(o.err, says) {
			t.Errorf("%s: %+v, want %q", args, o, says)
		}
	}
	if o := call(t, "", "try", "intnet", "-f", file); o.code != exitUsage || !strings.Contains(o.err, "did you mean intent?") {
		t.Errorf("%+v", o)
	}
	left, err := filepath.Glob(filepath.Join(temporary, "*"))
	if err != nil || len(left) > 0 {
		t.Errorf("it leaves %v, %v", left, err)
	}
}
