package remote

import (
	"cmp"
	"context"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

// aboutGet is the end of the help of the commands that download files.
const aboutGet = `After an interruption, give the same command again: files that are complete are kept. A
file that exists and differs is an error, unless --replace is given.`

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
		Make: func() command.Program {
			p := &artifactGet{list: modelFiles}
			return &request{quiet: true, flags: p.flags, accept: acceptVersion, do: p.do}
		},
	}
}

// modelFiles lists the files of a version.
func modelFiles(ctx context.Context, g *client.Gateway, version string) (files api.ArtifactFiles, of string, err error) {
	model, which, err := versionArg(version)
	if err != nil {
		return files, "", err
	}
	whole, err := g.Model(ctx, model, "")
	if err != nil {
		return files, "", err
	}
	which = cmp.Or(which, tidemill.WhichChampion)
	if _, err := findVersion(&whole, which); err != nil {
		return files, "", err
	}
	files, err = g.ModelFiles(ctx, model, which)
	return files, "of version " + show.Harmless(tidemill.VersionName(files.Model, files.Version)), err
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
		Make: func() command.Program {
			p := &artifactGet{list: runFiles}
			return &request{quiet: true, flags: p.flags, do: p.do}
		},
	}
}

// runFiles lists the files that a run has made.
func runFiles(ctx context.Context, g *client.Gateway, run string) (api.ArtifactFiles, string, error) {
	files, err := g.RunFiles(ctx, run)
	return files, "of run " + show.ShortID(files.Run), err
}

// artifactGet downloads the files that a run has made.
type artifactGet struct {
	list    func(ctx context.Context, g *client.Gateway, name string) (files api.ArtifactFiles, of string, err error)
	replace bool
}

func (p *artifactGet) flags(f *command.FlagSet) { replaceFlag(f, &p.replace) }

func (p *artifactGet) do(ctx context.Context, c *call) error {
	d := downloading{g: c.g, name: c.positional[0], dir: c.positional[1], replace: p.replace, began: time.Now()}
	files, of, err := p.list(ctx, c.g, c.positional[0])
	if err != nil {
		return err
	}
	return d.get(ctx, c.Session, files.Files, of)
}
