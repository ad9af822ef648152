package remote

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/ops/telemetry"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/runs/agent"
)

func tryCommand() command.Command {
	return command.Command{
		Name:    "try",
		Daily:   true,
		Args:    "RECIPE",
		Summary: "try a recipe on this machine, with your folders, and publish nothing",
		About: `It needs no tidemill up: it starts its own Kafka, Redis and store in a folder that is
removed at the end. Folders replace the recipe's datasets: --data DIR for a single
input, else --data INPUT=DIR for each. It prints the command's log and progress, then
the result, the metrics and the output; --out keeps the output. There is one attempt.

For a recipe that makes a model it also prints the verdict of the gate, clause by clause,
and the confusion matrix. With --champion the run gets a champion, and the gate compares
with it. If a scorer serves the model, it is asked the golden request of model.yaml, and
the events of --sample.

The exit status is 0 only if the run succeeds, the gate passes, and the scorers can serve
the model.`,
		Examples: []command.Example{
			{"tidemill try intent --key bot-42 --data ./examples", "with a folder for its input"},
			{"tidemill try intent --key bot-42 --data examples=./a --data labels=./b --out ./made", "two inputs, and keep the output"},
			{"tidemill try intent --key bot-42 --data ./examples --champion ./best --env EPOCHS=3", "compare with the files of a champion, and set a variable"},
			{"tidemill try intent --key bot-42 --data ./examples --sample events.ndjson", "show the answers to a file of events"},
			{"tidemill try intent --event new-data.json --data ./examples", "with an event in the CloudEvents JSON format as the cause"},
		},
		Make: func() command.Program { return &trying{} },
	}
}

// trying is a call of try.
type trying struct {
	config, key, out, secrets, log string
	event                          string // file with the event
	data                           []string
	champion                       string            // folder with the files of a champion
	env                            map[string]string // variables that replace those of the recipe
	sample                         string            // file with the sample events

	recipe  config.Recipe
	cause   []byte        // event that is the cause
	samples []broker.View // events that the scorers are asked
	folder  string        // temporary folder of this call
}

func (p *trying) Flags(f *command.FlagSet) {
	f.Text(&p.config, "config", "f", "FILE", "the config, a file or a folder (default "+connect.ConfigFile+")")
	f.Text(&p.key, "key", "", "KEY", "key of the run; with --event it is the subject")
	f.Each("data", "[INPUT=]DIR", "folder that replaces an input's dataset; may be given several times", func(text string) error {
		p.data = append(p.data, text)
		return nil
	})
	f.Each("env", "NAME=VALUE", "variable of the run, in place of the recipe's; may be given several times", p.addVariable)
	f.Text(&p.champion, "champion", "", "DIR", "folder with the files of a champion, which the run gets as TIDEMILL_CHAMPION")
	f.Text(&p.event, "event", "", "FILE", "cause of the run: an event in the CloudEvents JSON format")
	f.Text(&p.sample, "sample", "", "FILE", "events that the scorers of the model are asked, one per line")
	f.Text(&p.out, "out", "", "DIR", "folder for the output; existing files are replaced")
	f.Text(&p.secrets, "secrets", "", "FOLDER", "folder with the secrets of runs, one file NAME/KEY each (default "+filepath.Join(connect.DataFolder, "secrets")+")")
	f.Text(&p.log, "log", "", "LEVEL", "debug, info, warn or error")
	f.FromEnv("config", "TIDEMILL_CONFIG")
	f.FromEnv("secrets", "TIDEMILL_SECRETS")
	f.FromEnv("log", "TIDEMILL_LOG")
}

func (p *trying) Run(ctx context.Context, s *command.Session, positional []string) (err error) {
	source := (&connect.Connection{Config: p.config}).Source()
	conf, err := source.Load()
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
	defer func() { err = errors.Join(err, agent.RemoveFolder(p.folder)) }()
	here, err := p.open(ctx, s, alone(conf, p.recipe), source.Folder())
	if err != nil {
		return fmt.Errorf("try: %w", err)
	}
	defer func() { err = errors.Join(err, connect.ClosePlatform(ctx, here)) }()
	err = throughGateway(ctx, here, func(g *client.Gateway) error { return p.do(ctx, s, here, g, folders) })
	if ctx.Err() != nil {
		return errors.New("try: interrupted")
	}
	return err
}

// open starts what a run needs, without triggers and schedules.
func (p *trying) open(ctx context.Context, s *command.Session, conf *config.Config, recipes string) (*platform.Platform, error) {
	level := slog.LevelWarn
	if p.log != "" {
		if err := level.UnmarshalText([]byte(p.log)); err != nil {
			return nil, command.Usagef("--log %q: give debug, info, warn or error", p.log)
		}
	}
	secrets := p.secrets
	if secrets == "" {
		secrets = filepath.Join(connect.DataFolder, "secrets")
	}
	log := telemetry.Logger(s.Stderr, level)
	here, err := platform.Open(ctx, platform.Options{Config: conf, Embedded: &embedded.Options{Dir: filepath.Join(p.folder, "kafka"), Logger: log}, OwnStreams: true,
		Runs:      &platform.RunsOptions{Recipes: recipes, Data: filepath.Join(p.folder, "data"), Secrets: secrets, Launch: true},
		Telemetry: connect.TelemetryOf(s, "tidemill-try"), Logger: log})
	if err != nil {
		return nil, err
	}
	_, err = here.Controller(ctx) // the controller watches runs
	if err == nil {
		err = here.Ledger().CaughtUp(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, connect.ClosePlatform(ctx, here))
	}
	return here, nil
}

// do puts the folders, starts the run and follows it.
func (p *trying) do(ctx context.Context, s *command.Session, here *platform.Platform, g *client.Gateway, folders map[string]string) error {
	for input, dir := range folders {
		if err := putInput(ctx, s, g, input, dir); err != nil {
			return err
		}
	}
	if err := p.putChampion(ctx, here, g); err != nil {
		return err
	}
	id, err := p.ask(ctx, g)
	if err != nil {
		return err
	}
	if err := p.follow(ctx, s, g, id); err != nil {
		return err
	}
	whole, err := untilEnded(ctx, g, id)
	if err != nil {
		return err
	}
	if err := p.keep(ctx, s, here, g, &whole); err != nil {
		return err
	}
	if err := p.tell(s.Stdout, &whole); err != nil {
		return err
	}
	return p.judge(ctx, s, here, g, &whole)
}

func (p *trying) ask(ctx context.Context, g *client.Gateway) (string, error) {
	ask := api.RunsAsked{Recipe: p.recipe.Name, Event: p.cause}
	if p.recipe.Key != config.KeyNone {
		ask.Keys = []string{p.key}
	}
	done, err := g.StartRuns(ctx, client.NewAsking(), ask)
	switch {
	case err != nil:
		return "", err
	case len(done.Runs) != 1 || done.Runs[0].Refused:
		return "", fmt.Errorf("start a run of %s: the gateway answers %+v", p.recipe.Name, done.Runs)
	}
	return done.Runs[0].Run, nil
}

const tryLook = 100 * time.Millisecond

func untilEnded(ctx context.Context, g *client.Gateway, id string) (api.RunWhole, error) {
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

// keep copies the output to the folder of --out.
func (p *trying) keep(ctx context.Context, s *command.Session, here *platform.Platform, g *client.Gateway, whole *api.RunWhole) error {
	if p.out == "" || whole.Result == nil || whole.Result.Artifact == "" {
		return nil
	}
	var files []api.File
	err := here.Store().Walk(ctx, whole.Result.Artifact, "", "", func(f api.File) error {
		files = append(files, f)
		return nil
	})
	if err != nil {
		return fmt.Errorf("list the output of the run: %w", err)
	}
	carrier := g.Carrier()
	carrier.Replace = true
	if err := carrier.Get(ctx, p.out, files, nil); err != nil {
		return fmt.Errorf("write the output of the run to %s: %w", p.out, err)
	}
	fmt.Fprintf(s.Stderr, "the output is in %s: %s\n", p.out, show.Count(len(files), "file"))
	return nil
}

// failedTry returns an error if the run did not succeed.
func failedTry(whole *api.RunWhole) error {
	if whole.State == tidemill.RunSucceeded {
		return nil
	}
	return command.ErrReported
}

// prepare reads the recipe and the event, and returns the folders by input.
func (p *trying) prepare(conf *config.Config, name string) (map[string]string, error) {
	var known []string
	for _, r := range conf.Recipes {
		known = append(known, r.Name)
	}
	recipe, ok := conf.Recipe(name)
	if !ok {
		return nil, command.Usagef("there is no recipe %q in the config:%s it has %s", name, command.DidYouMean(name, known), cmp.Or(strings.Join(known, ", "), "none"))
	}
	p.recipe = recipe
	if err := p.readEvent(); err != nil {
		return nil, err
	}
	keyless := recipe.Key == config.KeyNone
	switch {
	case keyless && p.key != "":
		return nil, command.Usagef("recipe %s has no keys: leave out --key", name)
	case !keyless && p.key == "":
		return nil, command.Usagef("--key is missing: say for which key the run is, such as --key bot-42")
	}
	folders, err := foldersOf(recipe.Inputs, p.data)
	if err != nil {
		return nil, err
	}
	if p.champion != "" && recipe.Makes.Model == "" {
		return nil, command.Usagef("--champion %s: recipe %s makes no model, so it has no champion", p.champion, name)
	}
	if err := p.readSamples(); err != nil {
		return nil, err
	}
	p.recipe.Inputs = standIns(recipe.Inputs)
	p.recipe.Run.Attempts = 1
	p.setVariables()
	return folders, nil
}

// readEvent reads the cause of the run. Its subject is the key, if no key is given.
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

// foldersOf returns the folder for each input.
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
			return nil, command.Usagef("--data %s: say for which input, such as --data INPUT=%s; the recipe has %s", text, text, cmp.Or(strings.Join(names, ", "), "none"))
		case !slices.Contains(names, name):
			return nil, command.Usagef("--data %s: the recipe has no dataset as its input %q:%s it has %s", text, name, command.DidYouMean(name, names), cmp.Or(strings.Join(names, ", "), "none"))
		case folders[name] != "":
			return nil, command.Usagef("--data %s: input %s is given twice", text, name)
		}
		folders[name] = dir
	}
	for _, name := range names {
		if folders[name] == "" {
			return nil, command.Usagef("the recipe's input %s is missing: give a folder for it, --data %s=DIR", name, name)
		}
	}
	return folders, nil
}

// standIns changes the inputs to the datasets that putInput makes.
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

// alone returns a config with only one recipe, and without causes that start it.
func alone(conf *config.Config, r config.Recipe) *config.Config {
	c := *conf
	r.When, r.MaxRunning = nil, 0
	c.Recipes, c.Triggers, c.Schedules = []config.Recipe{r}, nil, nil
	return &c
}

// putInput commits a folder as a dataset. Its event starts nothing.
func putInput(ctx context.Context, s *command.Session, g *client.Gateway, input, dir string) error {
	w := &putting{dataPut: &dataPut{}, g: g, dir: dir, shown: show.StartCarried(s.Stderr), began: time.Now(),
		asked: api.CommitAsked{Dataset: standIn(input), Request: rand.Text(), Replace: true}}
	defer w.shown.Stop()
	err := w.scan(ctx)
	if err == nil {
		_, err = w.put(ctx)
	}
	if err != nil {
		return fmt.Errorf("use %s as the input %s: %w", dir, input, err)
	}
	return nil
}

// followLog prints the run's log until its end. The gateway is in this process, and needs no token
// from this machine.
func followLog(ctx context.Context, g *client.Gateway, id string, out io.Writer) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, g.URL()+"/api/v1/runs/"+id+"/log?follow=true", nil)
	if err != nil {
		return err
	}
	client := http.Client{Transport: &http.Transport{}} // without a proxy
	defer client.CloseIdleConnections()
	res, err := client.Do(req)
	if err != nil {
		return fmt.Errorf("follow the log of run %s: %w", id, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("follow the log of run %s: the gateway answers %s", id, res.Status)
	}
	log := &logOutput{to: out, seen: onScreen(out)}
	if _, err := io.Copy(log, res.Body); err != nil {
		return fmt.Errorf("follow the log of run %s: %w", id, err)
	}
	return log.flush()
}

// tell prints how the run ended.
func (p *trying) tell(out io.Writer, whole *api.RunWhole) error {
	rows := [][]string{{"outcome", string(whole.State)}}
	say := func(what, text string) {
		if text != "" {
			rows = append(rows, []string{what, text})
		}
	}
	say("reason", whole.Reason)
	say("took", tookOf(&whole.RunShown, time.Now()))
	if r := whole.Result; r != nil {
		say("stages", stagesText(r.Stages))
		sayResult(say, &whole.RunShown)
	}
	if whole.Plan != nil && whole.State == tidemill.RunSucceeded {
		say("would be", madeAs(whole.Plan))
	}
	for i := range rows {
		rows[i][1] = show.Harmless(rows[i][1])
	}
	fmt.Fprintln(out)
	if err := show.Columns(out, rows); err != nil {
		return err
	}
	return failedTry(whole)
}

// madeAs says what a real run would have made of the output.
func madeAs(p *tidemill.Plan) string {
	switch {
	case p.Model != "":
		return "a version of model " + p.Model
	case p.Dataset != "":
		return "a commit on dataset " + p.Dataset + " at " + p.Branch
	}
	return "nothing that is stored"
}

// throughGateway opens the gateway and calls use with a client of it.
func throughGateway(ctx context.Context, p *platform.Platform, use func(*client.Gateway) error) error {
	flags := connect.DoorFlags{Listen: "127.0.0.1:0"}
	g, err := flags.Open(ctx, p)
	if err != nil {
		return err
	}
	serving, left := context.WithCancel(ctx)
	served := make(chan error, 1)
	go func() { served <- connect.Serve(serving, g) }()
	defer left()
	door, err := client.Dial(ctx, client.Options{URL: flags.URL(g)})
	if err != nil {
		return err
	}
	defer door.Close()
	err = use(door)
	left()
	return errors.Join(err, <-served)
}
