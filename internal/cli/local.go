package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tidemill.dev/config"
	"tidemill.dev/examples/demo"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/runs/agent"
)

func validateCommand() command.Command {
	return command.Command{
		Name:    "validate",
		Daily:   true,
		Args:    "[FILE]",
		Summary: "check a config and list every problem",
		About: `It needs no Kafka. Each problem is one line: file:line: path, the fault and its
correction. The exit status is then 1. If a file of a trigger or the folder of a recipe
is missing here, that is only a warning: the config may be for another machine.`,
		Examples: []command.Example{
			{"tidemill validate -f tidemill.yaml", "a file"},
			{"tidemill validate -f conf.d -o json", "a folder, for a script"},
			{"tidemill validate -f tidemill.yaml --access access.yaml", "also check the rights of the gateway's callers"},
		},
		Make: func() command.Program { return &validate{} },
	}
}

type validate struct{ file, access, output string }

func (v *validate) Flags(f *command.FlagSet) {
	f.Text(&v.file, "config", "f", "FILE", "the config, a file or a folder (default "+connect.ConfigFile+")")
	f.FromEnv("config", "TIDEMILL_CONFIG")
	f.Text(&v.access, "access", "", "FILE", "also check this access file")
	f.FromEnv("access", connect.EnvAccess)
	f.Format(&v.output, "text or json")
}

func (v *validate) Accept(positional []string) error {
	if len(positional) == 1 {
		v.file = positional[0]
	}
	return nil
}

func (v *validate) Run(_ context.Context, s *command.Session, _ []string) error {
	said, problems, err := v.check(s.Stderr)
	switch {
	case err != nil:
		return fmt.Errorf("validate: %w", err)
	case len(problems) > 0 || v.output == "json":
		if err := v.printProblems(s.Stdout, problems); err != nil || len(problems) == 0 {
			return err
		}
		return command.ErrReported
	}
	_, err = io.WriteString(s.Stdout, said)
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
	if _, err := os.Stat(connect.ConfigFile); v.file == "" && errors.Is(err, fs.ErrNotExist) {
		return []func(io.Writer) (string, error){v.checkAccess}
	}
	return []func(io.Writer) (string, error){v.checkConfig, v.checkAccess}
}

func (v *validate) checkConfig(warnings io.Writer) (string, error) {
	file := cmp.Or(v.file, connect.ConfigFile)
	c, err := config.Load(file)
	if err != nil {
		return "", err
	}
	own := len(slices.DeleteFunc(slices.Clone(c.Streams), func(s config.Stream) bool { return s.Builtin }))
	triggers := len(slices.DeleteFunc(slices.Clone(c.Triggers), func(t config.Trigger) bool { return t.Builtin }))
	for _, line := range append(missing(c, (&connect.ConfigSource{Path: file}).Folder()), memoryNote(c, agent.LimitsMemory)...) {
		fmt.Fprintf(warnings, "%s: %s\n", file, line)
	}
	said := fmt.Sprintf("%s is valid: install %s, %s of yours, %d built in, %s, %s", file, c.Name, show.Count(own, "stream"), len(c.Streams)-own,
		show.Count(triggers, "trigger"), show.Count(len(c.Schedules), "schedule"))
	if len(c.Recipes) > 0 {
		said += fmt.Sprintf(", %s, %s", show.Count(len(c.Recipes), "recipe"), show.Count(len(c.Pools), "pool"))
	}
	if len(c.Scorers) > 0 {
		said += ", " + show.Count(len(c.Scorers), "scorer")
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
	return fmt.Sprintf("%s is valid: %s, %s\n", v.access, show.Count(len(a.Tokens), "token"), issuer), nil
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

// missing returns a warning for each file and folder that the config names and that this machine lacks.
func missing(c *config.Config, folder string) []string {
	lines := append(missingFiles(c), missingFolders(c, folder)...)
	if left := len(lines) - maxMissing; left > 0 {
		lines = append(lines[:maxMissing], fmt.Sprintf("and %d more", left))
	}
	return lines
}

// missingFiles returns a warning for each credential file of a trigger that cannot be read here.
// The config is still valid, because the files may exist where it is used. The warnings omit the
// path: if a user wrote the secret itself in place of its file, the path is the secret.
func missingFiles(c *config.Config) []string {
	var lines []string
	for _, t := range c.Triggers {
		files := t.To.Credentials.Files()
		for _, key := range slices.Sorted(maps.Keys(files)) {
			if why := unreadable(files[key]); why != "" {
				lines = append(lines, fmt.Sprintf("triggers.%s.to.%s: the file %s; the dispatcher must be able to read it", t.Name, key, why))
			}
		}
	}
	return lines
}

// missingFolders returns a warning for each folder of a recipe that does not exist here.
func missingFolders(c *config.Config, folder string) []string {
	var lines []string
	for _, r := range c.Recipes {
		dir := r.Run.Dir
		if dir != "" && !filepath.IsAbs(dir) {
			dir = filepath.Join(folder, dir)
		}
		if info, err := os.Stat(dir); dir != "" && (err != nil || !info.IsDir()) {
			lines = append(lines, fmt.Sprintf("recipes.%s.run.dir: there is no folder %s here; the runs need it", r.Name, dir))
		}
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

// demoWithin ends a demo that hangs. A busy machine may need more than five minutes.
const demoWithin = 15 * time.Minute

func demoCommand() command.Command {
	return command.Command{
		Name:    "demo",
		Summary: "show everything once, in a folder that is removed at the end",
		About: `It starts tidemill up on free ports and uses it as any program does, by commands and
by HTTP. It publishes events and reads them from Kafka, publishes one twice, and writes
a record that is not an event. A trigger calls a function, which replies to one event and
refuses another; that becomes a dead letter, which is replayed. Three bots get data:
a model is trained and judged for each, and one is refused. A worse model is refused too,
a champion is rolled back, and the origin of a model is shown. At the end thousands of
messages a second are answered while a champion changes. The exit status is 1 if an
event is lost, or answered twice or out of order. The source is examples/demo.`,
		Examples: []command.Example{
			{"tidemill demo", "takes about twenty seconds"},
			{"tidemill demo --stay", "keeps Tidemill running at the end, with its dashboard, until Ctrl-C"},
		},
		Make: func() command.Program { return &demoProgram{} },
	}
}

type demoProgram struct{ stay bool }

func (p *demoProgram) Flags(f *command.FlagSet) {
	f.Yes(&p.stay, "stay", "keep Tidemill and its dashboard running at the end, until Ctrl-C")
}

func (p *demoProgram) Run(interrupted context.Context, s *command.Session, _ []string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	err = demo.Run(interrupted, demo.Options{Tidemill: self, Out: s.Stdout, Within: demoWithin, Stay: p.stay})
	switch {
	case interrupted.Err() != nil && p.stay && err == nil:
		return nil
	case interrupted.Err() != nil:
		return errors.New("demo: interrupted")
	case err != nil:
		return fmt.Errorf("demo: %w; that must not happen: please report it", err)
	}
	fmt.Fprintf(s.Stdout, "\nNext: %s up\n", calledAs(os.Args[0]))
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
