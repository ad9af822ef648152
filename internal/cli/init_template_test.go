package cli

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tidemill.dev/config"
)

// Each template is complete: its config is valid, its commands parse, its data are there, and its
// packages have hashes.
func TestInitTemplates(t *testing.T) {
	t.Parallel()
	for _, name := range templateNames() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), name, "new")
			out := ok(t, "init", "--template", name, "--no-venv", dir)
			trainer := filepath.Join(dir, trainerFolder)
			mention(t, "init", out, "wrote "+filepath.Join(trainer, "train.py"), "cd "+dir, "(cd "+trainer+" && python3 -m venv .venv && .venv/bin/python -m pip install ")
			cfg, err := config.Load(filepath.Join(dir, "tidemill.yaml"))
			if err != nil {
				t.Fatal(err)
			}
			run, to := cfg.Recipes[0].Run, cfg.Scorers[0].Model
			if run.Command[0] != ".venv/bin/python" || len(cfg.Scorers) != 1 || to != cfg.Recipes[0].Makes.Model || len(cfg.Recipes[0].Gate) < 2 {
				t.Errorf("%+v, %+v", cfg.Recipes, cfg.Scorers)
			}
			if _, err := os.Stat(filepath.Join(trainer, run.Command[1])); err != nil {
				t.Error(err)
			}
			checkPackages(t, trainer)
			readme, err := os.ReadFile(filepath.Join(trainer, "README.md"))
			if err != nil {
				t.Fatal(err)
			}
			checkCommands(t, dir, string(readme))
			checkCommands(t, dir, out)
		})
	}
}

// A folder with many files is one line of the output.
func TestInitCountsManyFiles(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	out := ok(t, "init", "--template", "images", "--no-venv", dir)
	folder := filepath.Join(dir, "data", "dark", "circle")
	if line := "wrote 30 files in " + folder + "\n"; strings.Count(out, line) != 1 || strings.Contains(out, filepath.Join(folder, "01.png")) {
		t.Errorf("%s", out)
	}
	if files, err := os.ReadDir(folder); err != nil || len(files) != 30 {
		t.Errorf("%d files, %v", len(files), err)
	}
}

// checkCommands parses the tidemill commands in a text, and checks that the files that they name
// are in a folder.
func checkCommands(t *testing.T, dir, text string) {
	t.Helper()
	lines := regexp.MustCompile(`(?m)^ *(tidemill .*)$`).FindAllString(text, -1)
	if len(lines) < 4 {
		t.Errorf("these are few commands: %q", lines)
	}
	for _, line := range lines {
		args := shellWords(t, strings.TrimSpace(line))
		if _, err := parse(args[1:], os.Getenv); err != nil {
			t.Errorf("%s: %v", line, err)
		}
		for _, arg := range args {
			if strings.HasPrefix(arg, "data/") || strings.HasSuffix(arg, ".ndjson") {
				if _, err := os.Stat(filepath.Join(dir, arg)); err != nil {
					t.Errorf("%s: %v", line, err)
				}
			}
		}
	}
}

// checkPackages checks that the packages of a trainer have hashes, and that the wheel next to them
// has the hash in their list.
func checkPackages(t *testing.T, trainer string) {
	t.Helper()
	wheels, err := filepath.Glob(filepath.Join(trainer, "tidemill-*.whl"))
	if err != nil || len(wheels) != 1 {
		t.Fatalf("%v, %v", wheels, err)
	}
	wheel, err := os.ReadFile(wheels[0])
	if err != nil {
		t.Fatal(err)
	}
	list, err := os.ReadFile(filepath.Join(trainer, requirementsFile))
	if err != nil {
		t.Fatal(err)
	}
	if filepath.Base(filepath.Dir(filepath.Dir(trainer))) == "torch" { // its files depend on the GPU
		mention(t, requirementsFile, string(list), "\n./"+filepath.Base(wheels[0])+"\n")
		return
	}
	mention(t, requirementsFile, string(list), fmt.Sprintf("./%s \\\n    --hash=sha256:%x\n", filepath.Base(wheels[0]), sha256.Sum256(wheel)), "uv pip compile --universal")
	for _, line := range regexp.MustCompile(`(?m)^[a-z].*\n.*`).FindAllString(string(list), -1) {
		if !strings.Contains(line, "\\\n    --hash=sha256:") {
			t.Errorf("a package has no hash: %s", line)
		}
	}
	in, err := os.ReadFile(filepath.Join(trainer, requirementsIn))
	if err != nil || !slices.Contains(strings.Fields(string(in)), "./"+filepath.Base(wheels[0])) {
		t.Errorf("%s, %v", in, err)
	}
}

// fakePython writes a program that answers init as a Python does whose pip ends with a script.
func fakePython(t *testing.T, check, pip string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "python")
	text := "#!/bin/sh\nif [ \"$1\" = -c ]; then " + check + "; exit; fi\nmkdir -p \"$3/bin\" && cat >\"$3/bin/python\" <<'END'\n#!/bin/sh\n" + pip + "\nEND\nchmod +x \"$3/bin/python\"\n"
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return name
}

// The environment is made in the trainer's folder, with the packages of its list.
func TestInitMakesAnEnvironment(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	pip := `ls requirements.txt >/dev/null && echo "$*" >asked && echo "Collecting numpy==2.4.6 (from -r requirements.txt)" && echo "Installing collected packages: numpy"`
	out := ok(t, "init", "--template", "tabular", "--python", fakePython(t, "echo 3.12.1", pip), dir)
	mention(t, "init", out, "making "+filepath.Join(dir, "trainer", ".venv")+" with Python 3.12.1", "\n  numpy==2.4.6\n  installing them\n", "tidemill up")
	asked, err := os.ReadFile(filepath.Join(dir, "trainer", "asked"))
	if err != nil || !strings.Contains(string(asked), "--only-binary :all: --require-hashes -r requirements.txt") {
		t.Errorf("%s, %v", asked, err)
	}
	if ignored, err := os.ReadFile(filepath.Join(dir, "trainer", ".venv", ".gitignore")); err != nil || string(ignored) != "*\n" {
		t.Errorf("git would see the packages: %s, %v", ignored, err)
	}
}

// A Python that cannot make the environment is reported before a file is written.
func TestInitWithoutAPython(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ python, says string }{
		"none":     {"python-that-is-missing", "there is no python-that-is-missing in PATH: install Python 3.9 or newer"},
		"too old":  {fakePython(t, "echo 3.8.18; exit 3", ""), "is Python 3.8.18, and the template needs 3.9 or newer"},
		"no venv":  {fakePython(t, "echo 3.11.2; exit 1", ""), "lacks venv or ensurepip: install them, on Debian by apt-get install python3-venv"},
		"no start": {fakePython(t, "exit 127", ""), "does not run: exit status 127"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := filepath.Join(t.TempDir(), "new")
			o := call(t, "", "init", "--template", "tabular", "--python", c.python, dir)
			if o.code != exitFailed || !strings.Contains(o.err, c.says) || !strings.Contains(o.err, "write only the files by --no-venv") {
				t.Errorf("%+v", o)
			}
			if _, err := os.Stat(dir); err == nil {
				t.Error("half of it was written")
			}
		})
	}
}

// If pip fails, the error has its last lines and the commands that continue.
func TestInitWithoutAnIndex(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "new")
	pip := `echo "Collecting numpy==2.4.6" && echo "ERROR: No matching distribution found for numpy==2.4.6" >&2; exit 1`
	o := call(t, "", "init", "--template", "tabular", "--python", fakePython(t, "echo 3.12.1", pip), dir)
	if o.code != exitFailed {
		t.Fatalf("%+v", o)
	}
	mention(t, "the error", o.err, "exit status 1\nCollecting numpy==2.4.6\nERROR: No matching distribution found", "PIP_INDEX_URL",
		"cd "+filepath.Join(dir, "trainer")+" && .venv/bin/python -m pip install --only-binary :all: --require-hashes -r requirements.txt")
	if _, err := os.Stat(filepath.Join(dir, "tidemill.yaml")); err != nil {
		t.Error(err)
	}
}

func TestInitRefusesFlags(t *testing.T) {
	t.Parallel()
	for says, args := range map[string][]string{
		"there is no template tabula: did you mean tabular? the templates are tabular": {"--template", "tabula"},
		"--python and --no-venv need --template":                                       {"--no-venv"},
		"--python and --no-venv exclude each other":                                    {"--template", "tabular", "--no-venv", "--python", "python3"},
	} {
		if o := call(t, "", append([]string{"init"}, args...)...); o.code != exitUsage || !strings.Contains(o.err, says) {
			t.Errorf("%v: %+v", args, o)
		}
	}
}
