package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/telemetry"
)

func tryCommand() command {
	return command{
		name:    "try",
		args:    "RECIPE",
		summary: "do one run of a recipe here, on folders of yours, and publish nothing",
		about: `It needs no tidemill up: Kafka, Redis and the store are its own, in a folder that goes
away again. The folders stand for the recipe's datasets: --data DIR where it has one
input, else --data INPUT=DIR for each. The command's log is printed as it comes, then
how it ended, what it measured and what it made, which --out keeps. There is one
attempt. It exits with 1 if the run failed.`,
		examples: []example{
			{"tidemill try intent --key bot-42 --data ./examples", "with a folder for its input"},
			{"tidemill try intent --key bot-42 --data examples=./a --data labels=./b --out ./made", "with two, and what it makes is kept"},
			{"tidemill try intent --event new-data.json --data ./examples", "as an event in the CloudEvents JSON format asks for it"},
		},
		make: func() program { return &trying{} },
	}
}

// trying is a call of try.
type trying struct {
	config, key, out, secrets, log string
	event                          string // a file
	data                           []string

	recipe config.Recipe
	cause  []byte // the event
	folder string // of our own
}

func (p *trying) flags(f *flagSet) {
	f.text(&p.config, "config", "f", "FILE", "the config, a file or a folder (default "+configFile+")")
	f.text(&p.key, "key", "", "KEY", "for this key; of an event it is the subject")
	f.each("data", "[INPUT=]DIR", "a folder that stands for an input's dataset; may be given several times", func(text string) error {
		p.data = append(p.data, text)
		return nil
	})
	f.text(&p.event, "event", "", "FILE", "what asks for the run: an event in the CloudEvents JSON format")
	f.text(&p.out, "out", "", "DIR", "put what it makes there, over what is there")
	f.text(&p.secrets, "secrets", "", "FOLDER", "whose files runs get as secrets, NAME/KEY each (default "+filepath.Join(dataFolder, "secrets")+")")
	f.text(&p.log, "log", "", "LEVEL", "debug, info, warn or error")
	f.fromEnv("config", "TIDEMILL_CONFIG")
	f.fromEnv("secrets", "TIDEMILL_SECRETS")
	f.fromEnv("log", "TIDEMILL_LOG")
}

func (p *trying) accept(positional []string) error { return wants(positional, "RECIPE") }

func (p *trying) run(ctx context.Context, s *session, positional []string) (err error) {
	source := (&connection{config: p.config}).source()
	conf, err := source.load()
	if err != nil {
		return fmt.Errorf("read the config: %w", err)
	}
	folders, err := p.prepare(conf, positional[0])
	if err != nil {
		return err
	}
	if p.folder, err = os.MkdirTemp("", "tidemill-try-"); err != nil {
		return fmt.Errorf("try: %w", err)
	}
	defer func() { err = errors.Join(err, removeAll(p.folder)) }()
	here, err := p.open(ctx, s, alone(conf, p.recipe), source.folder())
	if err != nil {
		return fmt.Errorf("try: %w", err)
	}
	defer func() { err = errors.Join(err, closePlatform(ctx, here)) }()
	err = throughDoor(ctx, here, func(g *remote.Gateway) error { return p.do(ctx, s, here, g, folders) })
	if ctx.Err() != nil {
		return errors.New("try: interrupted")
	}
	return err
}

// open starts all that a run needs, and nothing that waits for events.
func (p *trying) open(ctx context.Context, s *session, conf *config.Config, recipes string) (*platform.Platform, error) {
	level := slog.LevelWarn
	if p.log != "" {
		if err := level.UnmarshalText([]byte(p.log)); err != nil {
			return nil, usagef("--log %q: give debug, info, warn or error", p.log)
		}
	}
	secrets := p.secrets
	if secrets == "" {
		secrets = filepath.Join(dataFolder, "secrets")
	}
	log := telemetry.Logger(s.stderr, level)
	here, err := platform.Open(ctx, platform.Options{Config: conf, Embedded: &embedded.Options{Dir: filepath.Join(p.folder, "kafka"), Logger: log}, OwnStreams: true,
		Runs:      &platform.RunsOptions{Recipes: recipes, Data: filepath.Join(p.folder, "data"), Secrets: secrets, Launch: true},
		Telemetry: telemetryOf(s, "tidemill-try"), Logger: log})
	if err != nil {
		return nil, err
	}
	_, err = here.Keeper(ctx) // it is who watches over runs
	if err == nil {
		err = here.Ledger().CaughtUp(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, closePlatform(ctx, here))
	}
	return here, nil
}

// do puts the folders, asks for the run and stays with it.
func (p *trying) do(ctx context.Context, s *session, here *platform.Platform, g *remote.Gateway, folders map[string]string) error {
	for input, dir := range folders {
		if err := putInput(ctx, s, g, input, dir); err != nil {
			return err
		}
	}
	id, err := p.ask(ctx, g)
	if err != nil {
		return err
	}
	if err := followLog(ctx, g, id, s.stdout); err != nil {
		return err
	}
	whole, err := untilEnded(ctx, g, id)
	if err != nil {
		return err
	}
	if err := p.keep(ctx, s, here, g, &whole); err != nil {
		return err
	}
	return p.tell(s.stdout, &whole)
}

func (p *trying) ask(ctx context.Context, g *remote.Gateway) (string, error) {
	ask := api.RunsAsked{Recipe: p.recipe.Name, Event: p.cause}
	if p.recipe.Key != config.KeyNone {
		ask.Keys = []string{p.key}
	}
	done, err := g.StartRuns(ctx, remote.NewAsking(), ask)
	switch {
	case err != nil:
		return "", err
	case len(done.Runs) != 1 || done.Runs[0].Refused:
		return "", fmt.Errorf("start a run of %s: the gateway answers %+v", p.recipe.Name, done.Runs)
	}
	return done.Runs[0].Run, nil
}

const tryLook = 100 * time.Millisecond

func untilEnded(ctx context.Context, g *remote.Gateway, id string) (api.RunWhole, error) {
	tick := time.NewTicker(tryLook)
	defer tick.Stop()
	for {
		whole, err := g.Run(ctx, id)
		if err != nil || whole.State.Ended() {
			return whole, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return whole, context.Cause(ctx)
		}
	}
}

// keep copies what was made to where it is wanted.
func (p *trying) keep(ctx context.Context, s *session, here *platform.Platform, g *remote.Gateway, whole *api.RunWhole) error {
	if p.out == "" || whole.Result == nil || whole.Result.Artifact == "" {
		return nil
	}
	var files []api.File
	err := here.Store().Walk(ctx, whole.Result.Artifact, "", "", func(f api.File) error {
		files = append(files, f)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list what the run has made: %w", err)
	}
	carrier := g.Carrier()
	carrier.Replace = true
	if err := carrier.Get(ctx, p.out, files, nil); err != nil {
		return fmt.Errorf("put what the run has made into %s: %w", p.out, err)
	}
	fmt.Fprintf(s.stderr, "%s of what it made are in %s\n", count(len(files), "file"), p.out)
	return nil
}

// failedTry is how a run that did not succeed ends the command.
func failedTry(whole *api.RunWhole) error {
	if whole.State == tidemill.RunSucceeded {
		return nil
	}
	return errReported
}
