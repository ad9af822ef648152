package remote

import (
	"context"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

// aboutGet is the end of the help of the commands that download files.
const aboutGet = `After an interruption, give the same command again: files that are complete are kept. A
file that exists and differs is an error, unless --replace is given.

` + connect.AtTheGate

func modelsGetCommand() command.Command {
	return command.Command{
		Name:    "models get",
		Args:    "MODEL[@VERSION] DIR",
		Summary: "download the files of a version into a folder",
		About: `VERSION is a number, champion, previous (the champion before) or newest. Without it the
files of the champion are downloaded. They are the files that its run has made.

` + aboutGet,
		Examples: []command.Example{
			{"tidemill models get intent/bot-42 ./model", "the files of the champion"},
			{"tidemill models get intent/bot-42@newest ./model --replace", "the newest version, over the files of another"},
		},
		Make: func() command.Program { return &modelGet{} },
	}
}

type modelGet struct {
	connect.Gate
	replace bool
}

func (p *modelGet) Flags(f *command.FlagSet) {
	f.Yes(&p.replace, "replace", "overwrite files that exist and differ")
	p.Gate.Flags(f)
}

func (p *modelGet) Accept(positional []string) error {
	if err := command.Wants(positional, "MODEL", "DIR"); err != nil {
		return err
	}
	_, _, err := versionArg(positional[0])
	return err
}

func (p *modelGet) Run(ctx context.Context, s *command.Session, positional []string) error {
	model, which, err := versionArg(positional[0])
	if err != nil {
		return err
	}
	get := artifactGet{Gate: &p.Gate, name: positional[0], dir: positional[1], replace: p.replace}
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
		return files, "of version " + show.Harmless(tidemill.VersionName(files.Model, files.Version)), err
	})
}

func runsGetCommand() command.Command {
	return command.Command{
		Name:    "runs get",
		Args:    "RUN DIR",
		Summary: "download the files that a run has made into a folder",
		About: `Six letters of the run's id are enough. The files are those that the command left in
TIDEMILL_OUT.

` + aboutGet,
		Examples: []command.Example{
			{"tidemill runs get 3k7mzq ./made", "the files of one run"},
		},
		Make: func() command.Program { return &runGet{} },
	}
}

type runGet struct {
	connect.Gate
	replace bool
}

func (p *runGet) Flags(f *command.FlagSet) {
	f.Yes(&p.replace, "replace", "overwrite files that exist and differ")
	p.Gate.Flags(f)
}

func (p *runGet) Accept(positional []string) error { return command.Wants(positional, "RUN", "DIR") }

func (p *runGet) Run(ctx context.Context, s *command.Session, positional []string) error {
	get := artifactGet{Gate: &p.Gate, name: "the files of run " + positional[0], dir: positional[1], replace: p.replace}
	return get.run(ctx, s, func(g *client.Gateway) (api.ArtifactFiles, string, error) {
		files, err := g.RunFiles(ctx, positional[0])
		return files, "of run " + show.ShortID(files.Run), err
	})
}

// artifactGet downloads the files that a run has made.
type artifactGet struct {
	*connect.Gate
	name, dir string
	replace   bool
}

// run downloads the files that list returns. The second result of list says where they are from.
func (p *artifactGet) run(ctx context.Context, s *command.Session, list func(*client.Gateway) (api.ArtifactFiles, string, error)) error {
	g, done, err := p.EnterQuietly(ctx, s)
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
