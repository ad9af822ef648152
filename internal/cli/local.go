package cli

import (
	"cmp"
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/examples/demo"
	"tidemill.dev/internal/runs/agent"
)

//go:embed all:initial
var initial embed.FS

// initialFiles is the folder with the files that init writes.
const initialFiles = "initial"

func initCommand() command {
	return command{
		name:    "init",
		daily:   true,
		args:    "[DIR]",
		summary: "write a config and a trainer to start from",
		about: `It writes tidemill.yaml with one recipe, a trainer that needs only Python, and a
little data to train with. If one of these files exists already, it writes nothing.
Without DIR it writes only into an empty folder. With DIR it writes next to the files
that are there.`,
		examples: []example{
			{"tidemill init first-model", "in a new folder"},
			{"tidemill init", "in this folder, which is empty"},
			{"tidemill init .", "in this folder, next to its files"},
		},
		make: func() program { return &initialise{} },
	}
}

type initialise struct {
	dir   string
	named bool // whether the call names the folder
}

func (i *initialise) flags(*flagSet) {}

func (i *initialise) accept(positional []string) error {
	if len(positional) > 0 {
		i.dir, i.named, positional = positional[0], true, positional[1:]
	}
	i.dir = cmp.Or(i.dir, ".")
	return wants(positional)
}

func (i *initialise) run(_ context.Context, s *session, _ []string) error {
	files, err := i.files()
	if err == nil {
		err = i.free(files)
	}
	if err == nil && !i.named {
		err = i.empty()
	}
	if err != nil {
		return fmt.Errorf("init %s: %w", i.dir, err)
	}
	for _, name := range files {
		if err := i.write(name); err != nil {
			return fmt.Errorf("init %s: %w", i.dir, err)
		}
		fmt.Fprintf(s.stdout, "wrote %s\n", filepath.Join(i.dir, name))
	}
	change := ""
	if filepath.Clean(i.dir) != "." {
		change = "  cd " + i.dir + "\n"
	}
	fmt.Fprintf(s.stdout, `
Next:
%s  tidemill up
and in another terminal, from the same folder:
  tidemill data put bots/bot-42 data/bot-42
  tidemill runs --watch
trainer/README.md explains the trainer.
`, change)
	return nil
}

// files returns the names of the files to write.
func (i *initialise) files() ([]string, error) {
	var names []string
	err := fs.WalkDir(initial, initialFiles, func(name string, e fs.DirEntry, err error) error {
		if err == nil && !e.IsDir() {
			names = append(names, filepath.FromSlash(strings.TrimPrefix(name, initialFiles+"/")))
		}
		return err
	})
	return names, err
}

// free checks all files before one is written, so that init writes all or none.
func (i *initialise) free(files []string) error {
	var taken []string
	for _, name := range files {
		_, err := os.Lstat(filepath.Join(i.dir, name))
		switch {
		case err == nil:
			taken = append(taken, name)
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	if len(taken) > 0 {
		return fmt.Errorf("these exist already: %s; init overwrites nothing, so give a new folder or move them away", strings.Join(taken, ", "))
	}
	return nil
}

// empty returns an error if the folder has files. Hidden ones, such as .git, do not count.
func (i *initialise) empty() error {
	entries, err := os.ReadDir(i.dir)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if !strings.HasPrefix(e.Name(), ".") {
			return fmt.Errorf("this folder has files already, such as %s; tidemill init NAME makes a new folder, tidemill init . writes next to these files", e.Name())
		}
	}
	return nil
}

// write writes one file. It fails if the file exists by now.
func (i *initialise) write(name string) error {
	text, err := initial.ReadFile(initialFiles + "/" + filepath.ToSlash(name))
	if err != nil {
		return err
	}
	to := filepath.Join(i.dir, name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(text)
	return errors.Join(err, f.Close())
}

func validateCommand() command {
	return command{
		name:    "validate",
		daily:   true,
		args:    "[FILE]",
		summary: "check a config and list every problem",
		about: `It needs no Kafka. Each problem is one line: file:line: path, the fault and its
correction. The exit status is then 1. If a file that a trigger names cannot be read
here, that is only a warning: the config may be for another machine.`,
		examples: []example{
			{"tidemill validate -f tidemill.yaml", "a file"},
			{"tidemill validate -f conf.d -o json", "a folder, for a script"},
			{"tidemill validate -f tidemill.yaml --access access.yaml", "also check the rights of the gateway's callers"},
		},
		make: func() program { return &validate{output: "text"} },
	}
}

type validate struct{ file, access, output string }

func (v *validate) flags(f *flagSet) {
	f.text(&v.file, "config", "f", "FILE", "the config, a file or a folder (default "+configFile+")")
	f.fromEnv("config", "TIDEMILL_CONFIG")
	f.text(&v.access, "access", "", "FILE", "also check this access file")
	f.fromEnv("access", envAccess)
	f.text(&v.output, "output", "o", "FORMAT", "text or json")
}

func (v *validate) accept(positional []string) error {
	if len(positional) == 1 {
		v.file = positional[0]
		positional = nil
	}
	if err := checkOutput(v.output); err != nil {
		return err
	}
	return wants(positional)
}

func (v *validate) run(_ context.Context, s *session, _ []string) error {
	said, problems, err := v.check(s.stderr)
	switch {
	case err != nil:
		return fmt.Errorf("validate: %w", err)
	case len(problems) > 0 || v.output == "json":
		if err := v.printProblems(s.stdout, problems); err != nil || len(problems) == 0 {
			return err
		}
		return errReported
	}
	_, err = io.WriteString(s.stdout, said)
	return err
}

// check runs the checks. It returns all problems, or a summary if there are none.
func (v *validate) check(warnings io.Writer) (said string, problems []config.Problem, err error) {
	for _, check := range v.checks() {
		text, err := check(warnings)
		var wrong *config.Error
		switch {
		case errors.As(err, &wrong):
			problems = append(problems, wrong.Problems...)
		case err != nil:
			return "", nil, err
		}
		said += text
	}
	return said, problems, nil
}

// checks returns the requested checks. An access file may be checked without a config.
func (v *validate) checks() []func(io.Writer) (string, error) {
	if v.access == "" {
		return []func(io.Writer) (string, error){v.checkConfig}
	}
	if _, err := os.Stat(configFile); v.file == "" && errors.Is(err, fs.ErrNotExist) {
		return []func(io.Writer) (string, error){v.checkAccess}
	}
	return []func(io.Writer) (string, error){v.checkConfig, v.checkAccess}
}

func (v *validate) checkConfig(warnings io.Writer) (string, error) {
	file := cmp.Or(v.file, configFile)
	c, err := config.Load(file)
	if err != nil {
		return "", err
	}
	own := len(slices.DeleteFunc(slices.Clone(c.Streams), func(s config.Stream) bool { return s.Builtin }))
	triggers := len(slices.DeleteFunc(slices.Clone(c.Triggers), func(t config.Trigger) bool { return t.Builtin }))
	for _, line := range append(missingFiles(c), memoryNote(c, agent.LimitsMemory)...) {
		fmt.Fprintf(warnings, "%s: %s\n", file, line)
	}
	said := fmt.Sprintf("%s is valid: install %s, %s of yours, %d built in, %s, %s", file, c.Name, count(own, "stream"), len(c.Streams)-own,
		count(triggers, "trigger"), count(len(c.Schedules), "schedule"))
	if len(c.Recipes) > 0 {
		said += fmt.Sprintf(", %s, %s", count(len(c.Recipes), "recipe"), count(len(c.Pools), "pool"))
	}
	if len(c.Scorers) > 0 {
		said += ", " + count(len(c.Scorers), "scorer")
	}
	return said + "\n", nil
}

func (v *validate) checkAccess(io.Writer) (string, error) {
	a, err := config.LoadAccess(v.access)
	if err != nil {
		return "", err
	}
	issuer := "no issuer"
	if a.OIDC != nil {
		issuer = "the issuer " + a.OIDC.Issuer
	}
	return fmt.Sprintf("%s is valid: %s, %s\n", v.access, count(len(a.Tokens), "token"), issuer), nil
}

// problemJSON is what -o json prints of a problem.
type problemJSON struct {
	File    string `json:"file"`
	Line    int    `json:"line"` // 0 if the problem concerns the whole file
	Path    string `json:"path"`
	Message string `json:"message"`
}

func (v *validate) printProblems(w io.Writer, problems []config.Problem) error {
	if v.output == "json" {
		all := make([]problemJSON, 0, len(problems))
		for _, p := range problems {
			all = append(all, problemJSON(p))
		}
		e := json.NewEncoder(w)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		return e.Encode(all)
	}
	for _, p := range problems {
		fmt.Fprintln(w, p.Error())
	}
	return nil
}

// maxMissing limits the lines about files, because thousands of triggers may name a folder that is
// not mounted here.
const maxMissing = 20

// missingFiles returns a warning for each credential file of a trigger that cannot be read here.
// The config is still valid, because the files may exist where it is used. The warnings omit the
// path: if a user wrote the secret itself in place of its file, the path is the secret.
func missingFiles(c *config.Config) []string {
	var lines []string
	left := 0
	for _, t := range c.Triggers {
		files := t.To.Credentials.Files()
		for _, key := range slices.Sorted(maps.Keys(files)) {
			why := unreadable(files[key])
			switch {
			case why == "":
			case len(lines) == maxMissing:
				left++
			default:
				lines = append(lines, fmt.Sprintf("triggers.%s.to.%s: the file %s; the dispatcher must be able to read it", t.Name, key, why))
			}
		}
	}
	if left > 0 {
		lines = append(lines, fmt.Sprintf("and %d more", left))
	}
	return lines
}

// memoryNote says which recipes have a limit of memory that this machine does not enforce. It
// enforces those of commands in folders only if it can measure the memory of processes.
func memoryNote(c *config.Config, measured bool) []string {
	var names []string
	for _, r := range c.Recipes {
		if r.Run.Dir != "" && r.Run.Memory > 0 && !measured {
			names = append(names, r.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	return []string{fmt.Sprintf("memory: is not enforced on this machine for commands in folders (recipes %s); use an image, or Linux", strings.Join(names, ", "))}
}

func unreadable(file string) string {
	f, err := os.Open(file)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return "does not exist here"
		}
		return fmt.Sprintf("cannot be read here (%v)", errors.Unwrap(err))
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil || info.IsDir() {
		return "is a folder"
	}
	return ""
}

func versionCommand() command {
	return command{
		name:    "version",
		summary: "show the version of this program",
		examples: []example{
			{"tidemill version", "a line"},
			{"tidemill version -o json", "for a script"},
		},
		make: func() program { return &version{output: "text"} },
	}
}

type version struct{ output string }

func (v *version) flags(f *flagSet) {
	f.text(&v.output, "output", "o", "FORMAT", "text or json")
}

func (v *version) accept(positional []string) error {
	if err := checkOutput(v.output); err != nil {
		return err
	}
	return wants(positional)
}

// build is the build information of this binary.
type build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func thisBuild() build {
	b := build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (v *version) run(_ context.Context, s *session, _ []string) error {
	b := thisBuild()
	if v.output == "json" {
		return json.NewEncoder(s.stdout).Encode(b)
	}
	changed := ""
	if b.Modified {
		changed = ", with local changes"
	}
	revision := ""
	if b.Revision != "" {
		revision = " (" + b.Revision[:min(12, len(b.Revision))] + changed + ")"
	}
	_, err := fmt.Fprintf(s.stdout, "tidemill %s%s, %s, %s\n", b.Version, revision, b.Go, b.Platform)
	return err
}

// demoWithin ends a demo that hangs. A busy machine may need more than five minutes.
const demoWithin = 15 * time.Minute

func demoCommand() command {
	return command{
		name:    "demo",
		summary: "show everything once, in a folder that is removed at the end",
		about: `It starts tidemill up on free ports and uses it as any program does, by commands and
by HTTP. It publishes events and reads them from Kafka, publishes one twice, and writes
a record that is not an event. A trigger calls a function, which replies to one event and
refuses another; that becomes a dead letter, which is replayed. Three bots get data:
a model is trained and judged for each, and one is refused. A worse model is refused too,
a champion is rolled back, and the origin of a model is shown. At the end thousands of
messages a second are answered while a champion changes. The exit status is 1 if an
event is lost, or answered twice or out of order. The source is examples/demo.`,
		examples: []example{{"tidemill demo", "takes about twenty seconds"}},
		make:     func() program { return &demoProgram{} },
	}
}

type demoProgram struct{}

func (*demoProgram) flags(*flagSet) {}

func (*demoProgram) accept(args []string) error { return wants(args) }

func (*demoProgram) run(interrupted context.Context, s *session, _ []string) error {
	ctx, cancel := context.WithTimeout(interrupted, demoWithin)
	defer cancel()
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	err = demo.Run(ctx, demo.Options{Tidemill: self, Out: s.stdout})
	switch {
	case interrupted.Err() != nil:
		return errors.New("demo: interrupted")
	case err != nil:
		return fmt.Errorf("demo: %w; that must not happen: please report it", err)
	}
	fmt.Fprintf(s.stdout, "\nNext: %s up\n", calledAs(os.Args[0]))
	return nil
}

// calledAs returns the command that starts this program again. A binary of go run is removed at its
// end.
func calledAs(name string) string {
	if strings.Contains(filepath.ToSlash(name), "/go-build") {
		return "make build && bin/tidemill"
	}
	return name
}
