package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/remote"
)

// prepare finds out what is to be run, on what; the folders are by input.
func (p *trying) prepare(conf *config.Config, name string) (map[string]string, error) {
	var known []string
	for _, r := range conf.Recipes {
		known = append(known, r.Name)
	}
	recipe, ok := conf.Recipe(name)
	if !ok {
		return nil, usagef("there is no recipe %q in the config:%s there are %s", name, didYouMean(name, known), orNone(strings.Join(known, ", ")))
	}
	p.recipe = recipe
	if err := p.readEvent(); err != nil {
		return nil, err
	}
	keyless := recipe.Key == config.KeyNone
	switch {
	case keyless && p.key != "":
		return nil, usagef("recipe %s has no keys: leave --key out", name)
	case !keyless && p.key == "":
		return nil, usagef("--key is missing: say for which key the run is, such as --key bot-42")
	}
	folders, err := foldersOf(recipe.Inputs, p.data)
	if err != nil {
		return nil, err
	}
	p.recipe.Inputs = standIns(recipe.Inputs)
	p.recipe.Run.Attempts = 1
	return folders, nil
}

// readEvent reads what asks for the run. Its subject is the key, where none is
// given.
func (p *trying) readEvent() error {
	if p.event == "" {
		return nil
	}
	text, err := os.ReadFile(p.event)
	if err != nil {
		return fmt.Errorf("read the event: %w", err)
	}
	var v broker.View
	if err := broker.UnmarshalStructured(text, &v); err != nil {
		return fmt.Errorf("read the event of %s: %w; write it in the CloudEvents JSON format", p.event, err)
	}
	if p.cause = text; p.key == "" && p.recipe.Key == config.KeySubject {
		p.key = v.Subject
	}
	return nil
}

// foldersOf is which folder stands for which input.
func foldersOf(inputs []config.InputFrom, given []string) (map[string]string, error) {
	var names []string
	for _, in := range inputs {
		if in.URI == "" {
			names = append(names, in.Name)
		}
	}
	folders := map[string]string{}
	for _, text := range given {
		name, dir, named := strings.Cut(text, "=")
		if !named && len(names) == 1 {
			name, dir, named = names[0], text, true
		}
		switch {
		case !named:
			return nil, usagef("--data %s: say for which input, such as --data INPUT=%s; the recipe has %s", text, text, orNone(strings.Join(names, ", ")))
		case !slices.Contains(names, name):
			return nil, usagef("--data %s: the recipe has no dataset as its input %q:%s it has %s", text, name, didYouMean(name, names), orNone(strings.Join(names, ", ")))
		case folders[name] != "":
			return nil, usagef("--data %s: input %s is given twice", text, name)
		}
		folders[name] = dir
	}
	for _, name := range names {
		if folders[name] == "" {
			return nil, usagef("the recipe's input %s is missing: give a folder for it, --data %s=DIR", name, name)
		}
	}
	return folders, nil
}

// standIns are inputs that take their files from where putInput puts them.
func standIns(inputs []config.InputFrom) []config.InputFrom {
	all := slices.Clone(inputs)
	for i := range all {
		if all[i].URI == "" {
			all[i].Dataset, all[i].Branch, all[i].AtCause = standIn(all[i].Name), "main", false
		}
	}
	return all
}

func standIn(input string) string { return "try/" + input }

// alone is a config with one recipe, which nothing but us starts.
func alone(conf *config.Config, r config.Recipe) *config.Config {
	c := *conf
	r.When, r.MaxRunning = nil, 0
	c.Recipes, c.Triggers, c.Schedules = []config.Recipe{r}, nil, nil
	return &c
}

// putInput puts a folder as a dataset. Its event lies on a stream that nobody
// reads.
func putInput(ctx context.Context, s *session, g *remote.Gateway, input, dir string) error {
	w := &putting{dataPut: &dataPut{}, g: g, dir: dir, shown: startCarried(s.stderr), began: time.Now(),
		asked: api.CommitAsked{Dataset: standIn(input), Request: rand.Text(), Replace: true}}
	defer w.shown.stop()
	err := w.scan(ctx)
	if err == nil {
		_, err = w.put(ctx)
	}
	if err != nil {
		return fmt.Errorf("take %s as the input %s: %w", dir, input, err)
	}
	return nil
}

// removeAll also removes folders that may not be written to, as those of inputs.
func removeAll(folder string) error {
	err := os.RemoveAll(folder)
	if err == nil {
		return nil
	}
	_ = filepath.WalkDir(folder, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			_ = os.Chmod(path, 0o700) // what stays as it is, RemoveAll tells of
		}
		return nil
	})
	return os.RemoveAll(folder)
}
