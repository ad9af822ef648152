package cli

import (
	"cmp"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"tidemill.dev/api"
	"tidemill.dev/broker/retry"
	"tidemill.dev/config"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/platform"
)

//go:embed all:initial templates
var initial embed.FS

// trainerFolder is the trainer's folder in the templates.
const trainerFolder = "trainer"

// template is a set of files that init writes.
type template struct {
	name    string
	content string // description for the help
	size    string // size of the trainer's packages, for the user
	parts   []part
	next    []string // commands after tidemill up
}

// part is an embedded folder, whose files init writes into a folder.
type part struct{ from, to string }

// aboutSklearn is the size of the packages for scikit-learn.
const aboutSklearn = "500 MB, and about a minute"

// templates lists the templates of init --template.
var templates = []template{
	{"tabular", "tables in CSV and scikit-learn: a model of frauds for each shop", aboutSklearn,
		[]part{{"templates/tabular", "."}, {"templates/payments", "."}, {"templates/packages/sklearn", trainerFolder}}, []string{
			"tidemill data put payments/books data/books",
			"tidemill runs --watch",
			"tidemill publish --file events.ndjson",
			"tidemill tail scores --from beginning --no-follow",
		}},
	{"text", "texts in CSV and scikit-learn: a model of topics for each language", aboutSklearn,
		[]part{{"templates/text", "."}, {"templates/packages/sklearn", trainerFolder}}, []string{
			"tidemill data put tickets/en data/en",
			"tidemill data put tickets/de data/de",
			"tidemill runs --watch",
			"tidemill publish --file events.ndjson",
			"tidemill tail topics --from beginning --no-follow",
		}},
	{"torch", "tables in CSV and PyTorch, with checkpoints: a model of faults for each machine", "1 GB with PyTorch for CPUs, and up to 6 GB with CUDA",
		[]part{{"templates/torch", "."}, {"templates/packages/torch", trainerFolder}}, []string{
			"tidemill data put sensors/press data/press",
			"tidemill runs --watch",
			"tidemill publish --file events.ndjson",
			"tidemill tail faults --from beginning --no-follow",
		}},
	{"images", "small images and scikit-learn: a model of shapes for each camera", aboutSklearn,
		[]part{{"templates/images", "."}, {"templates/packages/sklearn", trainerFolder}, {"templates/packages/pillow", trainerFolder}}, []string{
			"tidemill data put parts/bright data/bright",
			"tidemill runs --watch",
			"tidemill publish --file events.ndjson",
			"tidemill tail shapes --from beginning --no-follow",
		}},
}

// noTemplate is what init writes without --template.
var noTemplate = template{
	parts: []part{{"initial", "."}},
	next:  []string{"tidemill data put bots/bot-42 data/bot-42", "tidemill runs --watch"},
}

func initCommand() command.Command {
	var about strings.Builder
	about.WriteString(`It writes tidemill.yaml with one recipe, a trainer that needs only Python, and a
little data to train with. If one of these files exists already, it writes nothing.
Without DIR it writes only into an empty folder. With DIR it writes next to the files
that are there.

With --template it writes a larger start instead, with a scorer and sample events:
`)
	for _, t := range templates {
		fmt.Fprintf(&about, "  %-8s %s\n", t.name, t.content)
	}
	about.WriteString(`It also makes a virtual environment in trainer/.venv, and installs the packages of
trainer/requirements.txt there. That needs Python 3.9 or newer with venv, and an index
of Python packages such as PyPI; the variables of pip apply.`)
	return command.Command{
		Name:    "init",
		Daily:   true,
		Args:    "[DIR]",
		Summary: "write a config and a trainer to start from",
		About:   about.String(),
		Examples: []command.Example{
			{"tidemill init first-model", "in a new folder"},
			{"tidemill init", "in this folder, which is empty"},
			{"tidemill init .", "in this folder, next to its files"},
			{"tidemill init --template tabular frauds", "CSV and scikit-learn, in a new folder"},
		},
		Make: func() command.Program { return &initialise{} },
	}
}

type initialise struct {
	dir      string
	named    bool // whether the call names the folder
	template string
	python   string // program that makes the virtual environment
	noVenv   bool

	of template
}

func (i *initialise) Flags(f *command.FlagSet) {
	f.Text(&i.template, "template", "", "NAME", "write this template: "+strings.Join(templateNames(), ", "))
	f.Text(&i.python, "python", "", "PROGRAM", "the Python of the virtual environment (default python3)")
	f.Yes(&i.noVenv, "no-venv", "write only the files, and make no virtual environment")
}

func templateNames() (all []string) {
	for _, t := range templates {
		all = append(all, t.name)
	}
	return all
}

func (i *initialise) Accept(positional []string) error {
	if len(positional) > 0 {
		i.dir, i.named = positional[0], true
	}
	i.dir = cmp.Or(i.dir, ".")
	i.of = noTemplate
	for _, t := range templates {
		if t.name == i.template {
			i.of = t
		}
	}
	switch {
	case i.template != i.of.name:
		near := ""
		if n, ok := command.Nearest(i.template, templateNames()); ok {
			near = " did you mean " + n + "?"
		}
		return command.Usagef("there is no template %s:%s the templates are %s", i.template, near, strings.Join(templateNames(), ", "))
	case i.template == "" && (i.python != "" || i.noVenv):
		return command.Usagef("--python and --no-venv need --template: without a template no virtual environment is made")
	case i.python != "" && i.noVenv:
		return command.Usagef("--python and --no-venv exclude each other")
	}
	i.python = cmp.Or(i.python, "python3")
	return nil
}

func (i *initialise) Run(ctx context.Context, s *command.Session, _ []string) error {
	files, err := i.files()
	if err == nil {
		err = i.free(files)
	}
	if err == nil && !i.named {
		err = i.empty()
	}
	venv := &environment{python: i.python, dir: filepath.Join(i.dir, trainerFolder), hashed: hasHashes(files), size: i.of.size, out: s.Stdout}
	makesVenv := i.template != "" && !i.noVenv
	if err == nil && makesVenv {
		err = venv.check(ctx)
	}
	if err != nil {
		return fmt.Errorf("init %s: %w", i.dir, err)
	}
	for _, f := range files {
		if err := i.write(f); err != nil {
			return fmt.Errorf("init %s: %w", i.dir, err)
		}
	}
	i.sayWritten(s, files)
	if makesVenv {
		if err := venv.make(ctx); err != nil {
			return fmt.Errorf("init %s: %w", i.dir, err)
		}
	}
	i.awaitUp(ctx, s)
	i.sayNext(s, venv)
	return nil
}

// upReadsWithin is how long init waits for a tidemill up to apply the new file. The file is read twice
// a second.
const upReadsWithin = 10 * time.Second

// awaitUp waits until a tidemill up that runs in this folder has applied the new file. An event that
// is published before its recipes apply starts no run. The files are written in any case, so an error
// is only reported.
func (i *initialise) awaitUp(ctx context.Context, s *command.Session) {
	running, found, err := platform.Find(connect.DataFolder)
	path, err2 := filepath.Abs(filepath.Join(i.dir, connect.ConfigFile))
	if err != nil || err2 != nil || !found || running.Config != path {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, upReadsWithin)
	defer cancel()
	if err := untilApplied(ctx, s, path); err != nil {
		fmt.Fprintf(s.Stderr, "The tidemill up of this folder may not have applied %s yet: %v\n", connect.ConfigFile, err)
	}
}

// untilApplied asks the gateway until it has all recipes of a config.
func untilApplied(ctx context.Context, s *command.Session, path string) error {
	conf, err := config.Load(path)
	if err != nil {
		return err
	}
	at := connect.Gate{}
	at.Flags(&command.FlagSet{FlagSet: pflag.NewFlagSet("init", pflag.ContinueOnError)})
	g, done, err := at.Enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	for {
		all, err := g.Recipes(ctx)
		if err != nil {
			return err
		}
		lacks := func(r config.Recipe) bool {
			return !slices.ContainsFunc(all.Recipes, func(a api.Recipe) bool { return a.Name == r.Name })
		}
		if !slices.ContainsFunc(conf.Recipes, lacks) {
			return nil
		}
		if err := retry.Sleep(ctx, configEvery/4); err != nil {
			return errors.New("its log has the reason")
		}
	}
}

// mostNamed is how many files of a folder sayWritten names.
const mostNamed = 5

// sayWritten prints the names of the files. For a folder with many files it prints their number.
func (i *initialise) sayWritten(s *command.Session, files []initialFile) {
	in := map[string]int{}
	for _, f := range files {
		in[filepath.Dir(f.name)]++
	}
	for _, f := range files {
		folder := filepath.Dir(f.name)
		switch n := in[folder]; {
		case n < 0: // they are counted already
		case n <= mostNamed || folder == trainerFolder:
			fmt.Fprintf(s.Stdout, "wrote %s\n", filepath.Join(i.dir, f.name))
		default:
			fmt.Fprintf(s.Stdout, "wrote %s in %s\n", show.Count(n, "file"), filepath.Join(i.dir, folder))
			in[folder] = -1
		}
	}
}

// sayNext prints the commands that come next.
func (i *initialise) sayNext(s *command.Session, venv *environment) {
	fmt.Fprint(s.Stdout, "\nNext:\n")
	if i.noVenv {
		fmt.Fprintf(s.Stdout, "  (%s)\n", venv.commands())
	}
	if filepath.Clean(i.dir) != "." {
		fmt.Fprintf(s.Stdout, "  cd %s\n", folderWord(i.dir))
	}
	fmt.Fprintf(s.Stdout, "  tidemill up\nand in another terminal, from the same folder:\n  %s\ntrainer/README.md explains the trainer.\n",
		strings.Join(i.of.next, "\n  "))
}

// folderWord returns the name of a folder as a shell takes it, with quotes only if it needs them.
func folderWord(dir string) string {
	if strings.ContainsAny(dir, " \t\n'\"\\$&;()<>|*?[]{}#~`!") {
		return show.Quoted(dir)
	}
	return dir
}

// initialFile is a file that init writes.
type initialFile struct {
	name string // relative to the folder
	data []byte
}

// files returns the files to write.
func (i *initialise) files() ([]initialFile, error) {
	var all []initialFile
	for _, p := range i.of.parts {
		some, err := filesBelow(p.from, p.to)
		if err != nil {
			return nil, err
		}
		all = join(all, some)
	}
	if i.template == "" {
		return all, nil
	}
	return withPackage(all, trainerFolder)
}

// join adds files to others. The lists of packages of two parts become one list.
func join(all, more []initialFile) []initialFile {
	for _, f := range more {
		at := slices.IndexFunc(all, func(of initialFile) bool { return of.name == f.name })
		if at < 0 {
			all = append(all, f)
			continue
		}
		all[at].data = slices.Concat(all[at].data, f.data)
	}
	return all
}

// filesBelow returns the embedded files below a folder, to be written into another folder.
func filesBelow(top, to string) (all []initialFile, err error) {
	err = fs.WalkDir(initial, top, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := initial.ReadFile(name)
		all = append(all, initialFile{filepath.Join(to, filepath.FromSlash(strings.TrimPrefix(name, top+"/"))), data})
		return err
	})
	return all, err
}

// free checks all files before one is written, so that init writes all or none.
func (i *initialise) free(files []initialFile) error {
	var taken []string
	for _, f := range files {
		_, err := os.Lstat(filepath.Join(i.dir, f.name))
		switch {
		case err == nil:
			taken = append(taken, f.name)
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
func (i *initialise) write(file initialFile) error {
	to := filepath.Join(i.dir, file.name)
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	f, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	_, err = f.Write(file.data)
	return errors.Join(err, f.Close())
}
