//go:build slow && templates && unix

package cli

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// openTemplate makes the folder of a template with its packages, and opens its README.
func openTemplate(t *testing.T, name string) *guide {
	t.Helper()
	g := openGuide(t, "internal/cli/templates/"+name+"/trainer/README.md", t.TempDir())
	g.env = withRuntime(t)
	mention(t, "init", g.shell("tidemill init --template "+name), "installing them", "Next:")
	g.do()
	mention(t, "put", g.do(), "committed")
	return g
}

// Two shops get a champion, and the faulty export of the third is refused.
func TestTemplateTabular(t *testing.T) {
	t.Parallel()
	g := openTemplate(t, "tabular")
	g.until("models show fraud/books@1", ", champion:")
	g.until("models show fraud/phones@1", ", champion:")
	g.until("models show fraud/travel@1", ", refused:")
	mention(t, "the refused one", g.do(), "fraud/books", "fraud/phones", "fraud/travel", "metrics.macroF1 >= 0.75")
	g.do()
	g.answered("scores", "model=fraud/books", 6)
	g.answered("scores", "model=fraud/phones", 6)
	mention(t, "try", g.do(), "holds  metrics.macroF1 >= 0.75", "it answers its golden request")
	ok(t, "runs", "start", "fraud", "--key", "books", "--data", g.data)
	mention(t, "the champion is measured", g.until("models show fraud/books@2", ", champion:"), "champion.metrics.macroF1 = ")
	g.end()
}

// Both languages get a champion, which Tidemill's own engine runs.
func TestTemplateText(t *testing.T) {
	t.Parallel()
	g := openTemplate(t, "text")
	for _, key := range []string{"en", "de"} {
		mention(t, key, g.until("models show topic/"+key+"@1", ", champion:"), "with engine go: it answers its golden request")
		g.until(`score topic --key `+key+` -d {"text":"hi"}`, "(topic/"+key+"@1)")
	}
	out := g.do()
	mention(t, "score", out, "delivery", "(topic/en@1)")
	g.answered("topics", "model=topic/en", 4)
	g.answered("topics", "model=topic/de", 4)
	all := g.until("tail topics --from beginning --no-follow")
	for event, label := range map[string]string{"ticket-en-1": "delivery", "ticket-en-2": "account", "ticket-de-1": "delivery", "ticket-de-2": "account", "ticket-de-4": "return"} {
		_, line, _ := strings.Cut(all, "causationid="+event+" ")
		line, _, _ = strings.Cut(line, "\n")
		mention(t, event, line, `{"label":"`+label+`"`)
	}
	mention(t, "try", g.do(), "holds  metrics.accuracy >= 0.8")
	ok(t, "runs", "start", "topic", "--key", "de", "--data", g.data)
	mention(t, "the champion is measured", g.until("models show topic/de@2", ", champion:"), "champion.metrics.accuracy = ")
	g.end()
}

// torchTemplate makes the folder of the template torch. Its packages are those of the environment
// that make test-examples keeps, because a fresh one needs some gigabytes.
func torchTemplate(t *testing.T) *guide {
	t.Helper()
	python := os.Getenv("TEST_TORCH")
	if python == "" {
		t.Fatal("TEST_TORCH is not set: run make test-examples")
	}
	g := openGuide(t, "internal/cli/templates/torch/trainer/README.md", t.TempDir())
	g.env = withRuntime(t)
	mention(t, "init", g.shell("tidemill init --template torch --no-venv"), ".venv/bin/python -m pip install --only-binary :all: -r requirements.txt", "Next:")
	g.shell("cd trainer\n" + python + " -m venv --without-pip .venv\n" +
		"{ " + python + " -c 'import numpy, pathlib; print(pathlib.Path(numpy.__file__).parents[1])'; ls $PWD/tidemill-*.whl; } >$(ls -d .venv/lib/python*/site-packages)/kept.pth\ncd ..")
	return g
}

// Both machines get a champion, which Tidemill's own engine runs.
func TestTemplateTorch(t *testing.T) {
	t.Parallel()
	g := torchTemplate(t)
	g.do()
	mention(t, "put", g.do(), "committed")
	for _, key := range []string{"press", "pump"} {
		mention(t, key, g.until("models show fault/"+key+"@1", ", champion:"), "with engine go: it answers its golden request")
	}
	mention(t, "models", g.do(), "fault/press", "fault/pump")
	g.answered("faults", "model=fault/press", 5)
	g.answered("faults", "model=fault/pump", 5)
	mention(t, "try", g.do(), "holds  metrics.macroF1 >= 0.8")
	ok(t, "runs", "start", "fault", "--key", "press", "--data", g.data)
	mention(t, "the champion is measured", g.until("models show fault/press@2", ", champion:"), "champion.metrics.macroF1 = ")
	g.end()
}

// A run that gets SIGTERM saves a checkpoint. Its next attempt makes the same model as a run
// without a break.
func TestTemplateTorchComesBack(t *testing.T) {
	t.Parallel()
	g := torchTemplate(t)
	whole := g.attempt("whole")
	if out, err := whole.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	broken, said := g.attempt("broken"), new(syncBuffer)
	broken.Stdout, broken.Stderr = said, said
	if err := broken.Start(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(g.dir, "broken", "checkpoint", "state.pt"))
		return err == nil
	})
	if err := broken.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := broken.Wait(); err == nil || !strings.Contains(said.String(), "asked to leave after epoch ") {
		t.Fatalf("%v: %s", err, said)
	}
	out, err := g.attempt("broken").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "continues after epoch ") {
		t.Fatalf("%v: %s", err, out)
	}
	model := func(of string) []byte {
		data, err := os.ReadFile(filepath.Join(g.dir, of, "out", "model.onnx"))
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	if !bytes.Equal(model("whole"), model("broken")) {
		t.Error("after the break it has made another model")
	}
}

// attempt returns the command of an attempt in new folders. It learns for so long that it
// can be interrupted.
func (g *guide) attempt(name string) *exec.Cmd {
	g.Helper()
	at := func(folder string) string {
		dir := filepath.Join(g.dir, name, folder)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			g.Fatal(err)
		}
		return dir
	}
	if err := os.CopyFS(filepath.Join(at("in"), "table"), os.DirFS(filepath.Join(g.dir, "data", "press"))); err != nil && !os.IsExist(err) {
		g.Fatal(err)
	}
	cmd := exec.CommandContext(g.Context(), filepath.Join(g.dir, "trainer", ".venv", "bin", "python"), "train.py")
	cmd.Dir = filepath.Join(g.dir, "trainer")
	cmd.Env = append(os.Environ(), "TIDEMILL_RUN=r1", "TIDEMILL_IN="+at("in"), "TIDEMILL_OUT="+at("out"), "TIDEMILL_CHECKPOINT="+at("checkpoint"), "EPOCHS=3000")
	return cmd
}

// Both cameras get a champion, which Tidemill's own engine runs. An event has the rows of an image.
func TestTemplateImages(t *testing.T) {
	t.Parallel()
	g := openTemplate(t, "images")
	for _, key := range []string{"bright", "dark"} {
		mention(t, key, g.until("models show shape/"+key+"@1", ", champion:"), "with engine go: it answers its golden request")
	}
	mention(t, "models", g.do(), "shape/bright", "shape/dark")
	g.answered("shapes", "model=shape/bright", 3)
	g.answered("shapes", "model=shape/dark", 3)
	all := g.until("tail shapes --from beginning --no-follow")
	for _, label := range []string{"circle", "cross", "square"} {
		_, line, _ := strings.Cut(all, "causationid=photo-dark-"+label+" ")
		line, _, _ = strings.Cut(line, "\n")
		mention(t, label, line, `{"label":"`+label+`"`)
	}
	mention(t, "try", g.do(), "holds  metrics.accuracy >= 0.85")
	ok(t, "runs", "start", "shape", "--key", "dark", "--data", g.data)
	mention(t, "the champion is measured", g.until("models show shape/dark@2", ", champion:"), "champion.metrics.accuracy = ")
	g.end()
}
