package cli

import (
	"context"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/gateway/client"
)

// aboutGet is the end of the help of the commands that download files.
const aboutGet = `After an interruption, give the same command again: files that are complete are kept. A
file that exists and differs is an error, unless --replace is given.

` + atTheGate

func modelsGetCommand() command {
	return command{
		name:    "models get",
		args:    "MODEL[@VERSION] DIR",
		summary: "download the files of a version into a folder",
		about: `VERSION is a number, champion, previous (the champion before) or newest. Without it the
files of the champion are downloaded. They are the files that its run has made.

` + aboutGet,
		examples: []example{
			{"tidemill models get intent/bot-42 ./model", "the files of the champion"},
			{"tidemill models get intent/bot-42@newest ./model --replace", "the newest version, over the files of another"},
		},
		make: func() program { return &modelGet{} },
	}
}

type modelGet struct {
	gate
	replace bool
}

func (p *modelGet) flags(f *flagSet) {
	f.yes(&p.replace, "replace", "overwrite files that exist and differ")
	p.gate.flags(f)
}

func (p *modelGet) accept(positional []string) error {
	if err := wants(positional, "MODEL", "DIR"); err != nil {
		return err
	}
	_, _, err := versionArg(positional[0])
	return err
}

func (p *modelGet) run(ctx context.Context, s *session, positional []string) error {
	model, which, err := versionArg(positional[0])
	if err != nil {
		return err
	}
	get := artifactGet{gate: &p.gate, name: positional[0], dir: positional[1], replace: p.replace}
	return get.run(ctx, s, func(g *client.Gateway) (api.ArtifactFiles, string, error) {
		whole, err := g.Model(ctx, model, "")
		if err != nil {
			return api.ArtifactFiles{}, "", err
		}
		if which == "" {
			which = tidemill.WhichChampion
		}
		if _, err := findVersion(&whole, which); err != nil {
			return api.ArtifactFiles{}, "", err
		}
		files, err := g.ModelFiles(ctx, model, which)
		return files, "of version " + harmless(tidemill.VersionName(files.Model, files.Version)), err
	})
}

func runsGetCommand() command {
	return command{
		name:    "runs get",
		args:    "RUN DIR",
		summary: "download the files that a run has made into a folder",
		about: `Six letters of the run's id are enough. The files are those that the command left in
TIDEMILL_OUT.

` + aboutGet,
		examples: []example{
			{"tidemill runs get 3k7mzq ./made", "the files of one run"},
		},
		make: func() program { return &runGet{} },
	}
}

type runGet struct {
	gate
	replace bool
}

func (p *runGet) flags(f *flagSet) {
	f.yes(&p.replace, "replace", "overwrite files that exist and differ")
	p.gate.flags(f)
}

func (p *runGet) accept(positional []string) error { return wants(positional, "RUN", "DIR") }

func (p *runGet) run(ctx context.Context, s *session, positional []string) error {
	get := artifactGet{gate: &p.gate, name: "the files of run " + positional[0], dir: positional[1], replace: p.replace}
	return get.run(ctx, s, func(g *client.Gateway) (api.ArtifactFiles, string, error) {
		files, err := g.RunFiles(ctx, positional[0])
		return files, "of run " + shortID(files.Run), err
	})
}

// artifactGet downloads the files that a run has made.
type artifactGet struct {
	*gate
	name, dir string
	replace   bool
}

// run downloads the files that list returns. The second result of list says where they are from.
func (p *artifactGet) run(ctx context.Context, s *session, list func(*client.Gateway) (api.ArtifactFiles, string, error)) error {
	g, done, err := p.enterQuietly(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	d := downloading{g: g, name: p.name, dir: p.dir, replace: p.replace, began: time.Now()}
	files, of, err := list(g)
	if err != nil {
		return err
	}
	return d.get(ctx, s, files.Files, of)
}
