package cli

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"tidemill.dev/config"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
)

func TestInit(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "first", "model")
	out := ok(t, "init", dir)
	mention(t, "init", out, "wrote "+filepath.Join(dir, "tidemill.yaml"), "cd "+dir, "tidemill up", "tidemill data put bots/bot-42 data/bot-42", "tidemill runs --watch")
	mention(t, "validate", ok(t, "validate", filepath.Join(dir, "tidemill.yaml")), "is valid", "1 recipe, 1 pool")
	cfg, err := config.Load(filepath.Join(dir, "tidemill.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	r := cfg.Recipes[0]
	if _, err := os.Stat(filepath.Join(dir, r.Run.Dir, r.Run.Command[1])); err != nil || r.Makes.Model == "" {
		t.Errorf("%v, %+v", err, r)
	}
	readme, err := os.ReadFile(filepath.Join(dir, "trainer", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range append(regexp.MustCompile(`(?m)^tidemill .*$`).FindAllString(string(readme), -1), regexp.MustCompile(`(?m)^  (tidemill .*)$`).FindAllString(out, -1)...) {
		if _, err := parse(shellWords(t, strings.TrimSpace(line))[1:], os.Getenv); err != nil {
			t.Errorf("%s: %v", line, err)
		}
	}
	mention(t, "elsewhere", ok(t, "init", filepath.Join(dir, "again")), "wrote ")
	spaced := filepath.Join(dir, "Ada's (first) model")
	mention(t, "a name with spaces", ok(t, "init", "--template", "text", "--no-venv", spaced), "\n  cd "+show.Quoted(spaced)+"\n", "(cd "+show.Quoted(filepath.Join(spaced, "trainer"))+" && ")
}

// init never overwrites a file. If one exists, it writes nothing at all.
func TestInitOverwritesNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "trainer"), 0o755); err != nil {
		t.Fatal(err)
	}
	own := leave(t, "mine", dir, "trainer", "train.py")
	if err := os.Symlink("nowhere", filepath.Join(dir, "tidemill.yaml")); err != nil {
		t.Fatal(err)
	}
	o := call(t, "", "init", dir)
	if o.code != exitFailed || !strings.Contains(o.err, "these exist already: tidemill.yaml, trainer/train.py;") {
		t.Errorf("%+v", o)
	}
	if text, err := os.ReadFile(own); err != nil || string(text) != "mine" {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(dir, "data")); err == nil {
		t.Error("half of it was written")
	}
	if o := call(t, "", "init", own); o.code != exitFailed || !strings.Contains(o.err, "init "+own) {
		t.Errorf("into a file: %+v", o)
	}
	if o := call(t, "", "init", "a", "b"); o.code != exitUsage {
		t.Errorf("two folders: %+v", o)
	}
}

// A limit of memory that a machine does not enforce is said in one line.
func TestMemoryThatIsNotEnforced(t *testing.T) {
	t.Parallel()
	c := &config.Config{Recipes: []config.Recipe{{Name: "a", Run: config.Job{Dir: "x", Memory: 1 << 30}}, {Name: "b", Run: config.Job{Image: "y", Memory: 1 << 30}},
		{Name: "c", Run: config.Job{Dir: "x"}}, {Name: "d", Run: config.Job{Dir: "x", Memory: 1}}}}
	if got := memoryNote(c, false); len(got) != 1 || !strings.Contains(got[0], "memory: is not enforced on this machine") || !strings.Contains(got[0], "(recipes a, d)") {
		t.Errorf("%q", got)
	}
	if got := memoryNote(c, true); len(got) > 0 {
		t.Errorf("on a machine that enforces it: %q", got)
	}
}

// init without a folder does not write next to the files of a checkout.
func TestInitLittersNoFolder(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	leave(t, "module x\n", dir, "go.mod")
	if o := call(t, "", "init"); o.code != exitFailed || !strings.Contains(o.err, "has files already, such as go.mod; tidemill init NAME makes a new folder") {
		t.Errorf("%+v", o)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("it left %v, %v", entries, err)
	}
	mention(t, "the folder, by name", ok(t, "init", "."), "wrote tidemill.yaml")
	empty := t.TempDir()
	t.Chdir(empty)
	if err := os.Mkdir(filepath.Join(empty, ".git"), 0o755); err != nil {
		t.Fatal(err)
	}
	mention(t, "a new checkout", ok(t, "init"), "wrote tidemill.yaml")
}

// trainer is the trainer that init writes, in a folder with the folders of the contract.
type trainer struct {
	*testing.T
	dir string
}

func newTrainer(t *testing.T) *trainer {
	t.Helper()
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("the trainer that init writes is not run: there is no python3 here")
	}
	tr := &trainer{t, t.TempDir()}
	ok(t, "init", tr.dir)
	for _, name := range []string{"in", "out", "checkpoint"} {
		if err := os.Mkdir(filepath.Join(tr.dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Rename(filepath.Join(tr.dir, "data", "bot-42"), filepath.Join(tr.dir, "in", "examples")); err != nil {
		t.Fatal(err)
	}
	return tr
}

// command starts the trainer with only the folders that a run may write to.
func (tr *trainer) command(env ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd, said := exec.CommandContext(tr.Context(), "python3", "train.py"), new(bytes.Buffer)
	cmd.Dir, cmd.Stdout, cmd.Stderr = filepath.Join(tr.dir, "trainer"), said, said
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "TIDEMILL_IN=" + filepath.Join(tr.dir, "in"), "TIDEMILL_OUT=" + filepath.Join(tr.dir, "out"),
		"TIDEMILL_CHECKPOINT=" + filepath.Join(tr.dir, "checkpoint")}, env...)
	return cmd, said
}

func (tr *trainer) train(env ...string) string {
	tr.Helper()
	cmd, said := tr.command(env...)
	if err := cmd.Run(); err != nil {
		tr.Fatalf("%v: %s", err, said)
	}
	return said.String()
}

func (tr *trainer) read(name ...string) []byte {
	tr.Helper()
	data, err := os.ReadFile(filepath.Join(append([]string{tr.dir}, name...)...))
	if err != nil {
		tr.Fatal(err)
	}
	return data
}

func (tr *trainer) json(to any, name ...string) {
	tr.Helper()
	if err := json.Unmarshal(tr.read(name...), to); err != nil {
		tr.Fatal(err)
	}
}

// steps returns the steps in metrics.jsonl.
func (tr *trainer) steps() (all []int) {
	tr.Helper()
	for line := range strings.Lines(string(tr.read("out", "metrics.jsonl"))) {
		var step struct {
			Step, Total int
			Loss        float64
		}
		if err := json.Unmarshal([]byte(line), &step); err != nil || step.Loss <= 0 || step.Step > step.Total {
			tr.Fatalf("%s: %v", line, err)
		}
		all = append(all, step.Step)
	}
	return all
}

func TestTrainer(t *testing.T) {
	t.Parallel()
	tr := newTrainer(t)
	said := tr.train("STEPS=120")
	mention(t, "the trainer", said, "120 rows to learn from, 30 to judge by: 4 columns, labels complaint, greeting, order", "accuracy 0.")
	var metrics map[string]float64
	tr.json(&metrics, "out", "metrics.json")
	rows, err := csv.NewReader(bytes.NewReader(tr.read("out", "predictions.csv"))).ReadAll()
	if err != nil || len(rows) != 31 || !slices.Equal(rows[0], []string{"truth", "predicted"}) {
		t.Fatalf("%v, %v", rows, err)
	}
	right := 0
	for _, row := range rows[1:] {
		if row[0] == row[1] {
			right++
		}
	}
	if accuracy := float64(right) / 30; math.Abs(metrics["accuracy"]-accuracy) > 1e-9 || accuracy < 0.8 || metrics["rows"] != 150 || metrics["loss"] <= 0 {
		t.Errorf("%v, and %d of 30 are right", metrics, right)
	}
	if steps := tr.steps(); len(steps) != 12 || steps[11] != 120 {
		t.Errorf("steps %v", steps)
	}
	tr.checkModel(rows[1:])
	if again := newTrainer(t); again.train("STEPS=120") == "" || !bytes.Equal(again.read("out", "model.onnx"), tr.read("out", "model.onnx")) {
		t.Error("the same data are another model")
	}
}

// A run that gets SIGTERM saves its state, and its next attempt continues from there.
func TestTheTrainerLeavesAndComesBack(t *testing.T) {
	t.Parallel()
	tr := newTrainer(t)
	cmd, said := tr.command("STEPS=100000000")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		data, err := os.ReadFile(filepath.Join(tr.dir, "out", "metrics.jsonl"))
		return err == nil && len(data) > 0
	})
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil || !strings.Contains(said.String(), "asked to leave at step ") {
		t.Fatalf("%v: %s", err, said)
	}
	var state struct{ Step int }
	tr.json(&state, "checkpoint", "state.json")
	if _, err := os.Stat(filepath.Join(tr.dir, "out", "model.onnx")); err == nil {
		t.Error("it has left a model that is not learned")
	}
	mention(t, "then", tr.train("STEPS="+strconv.Itoa(state.Step+20)), "resumes from step "+strconv.Itoa(state.Step), "accuracy ")
	if steps := tr.steps(); !slices.IsSorted(steps) || len(slices.Compact(slices.Clone(steps))) != len(steps) || steps[len(steps)-1] != state.Step+20 {
		t.Errorf("steps %v", steps)
	}
}

// Unusable data are reported, and no model is written.
func TestTheTrainerOnBadData(t *testing.T) {
	t.Parallel()
	many := func(row string) string { return strings.Repeat(row+"\n", 20) }
	for name, c := range map[string]struct{ file, text, says string }{
		"nothing":    {"a.txt", "x", "0 rows with a label are too few"},
		"few":        {"a.csv", "a,label\n1,x\n2,y\n", "2 rows with a label are too few"},
		"one class":  {"a.csv", "a,label\n" + many("1,x"), "1 columns of numbers, 1 labels"},
		"no numbers": {"a.csv", "a,label\n" + many("one,x\none,y"), "0 columns of numbers, 2 labels"},
		"NaN":        {"a.csv", "a,label\n" + many("NaN,x\n1,y"), "0 columns of numbers, 2 labels"},
		"no JSON":    {"a.jsonl", many("{"), "JSONDecodeError"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tr := newTrainer(t)
			if err := os.RemoveAll(filepath.Join(tr.dir, "in", "examples")); err != nil {
				t.Fatal(err)
			}
			leave(t, c.text, tr.dir, "in", c.file)
			cmd, said := tr.command()
			if err := cmd.Run(); err == nil || !strings.Contains(said.String(), c.says) {
				t.Errorf("%v: %s", err, said)
			}
			if _, err := os.Stat(filepath.Join(tr.dir, "out", "model.onnx")); err == nil {
				t.Error("there is a model")
			}
		})
	}
	tr := newTrainer(t) // a constant column, and a class with one row
	leave(t, "a,b,label\n"+many("1,7,x\n2,7,y")+"3,7,z\n", tr.dir, "in", "a.csv")
	if err := os.RemoveAll(filepath.Join(tr.dir, "in", "examples")); err != nil {
		t.Fatal(err)
	}
	mention(t, "odd data", tr.train("STEPS=20"), "2 columns, labels x, y, z")
}

// A tidemill up that runs in the folder has read the config when init ends. So the commit that init
// suggests starts a run, however soon it comes.
func TestInitWaitsForUp(t *testing.T) {
	t.Chdir(t.TempDir())
	startUp(t, connect.DataFolder)
	mention(t, "init", ok(t, "init"), "Next:")
	mention(t, "the recipes after init", ok(t, "recipes"), "intent")
}

// A tidemill up that asks for tokens does not answer init. The files are written, and init
// says that they may not apply yet.
func TestInitWithoutAnAnswer(t *testing.T) {
	t.Chdir(t.TempDir())
	ok(t, "token", "new", "crm", "--role", "read", "--file", "access.tokens")
	startUp(t, connect.DataFolder, "--access", "access.tokens")
	o := call(t, "", "init", ".")
	if o.code != 0 || !strings.Contains(o.err, "may not have applied tidemill.yaml yet: ") {
		t.Errorf("%+v", o)
	}
	mention(t, "init", o.out, "Next:")
}
