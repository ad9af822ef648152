package remote

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"strings"
	"time"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/functions/score"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/data/transfer"
	"tidemill.dev/internal/gateway/client"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/runs/agent"
	"tidemill.dev/internal/scoring/infer"
)

// addVariable reads the value of one --env.
func (p *trying) addVariable(text string) error {
	name, value, found := strings.Cut(text, "=")
	if !found {
		return command.Usagef("--env %s: write NAME=VALUE", text)
	}
	if err := config.CheckVariable(name); err != nil {
		return command.Usagef("--env %s: %v", text, err)
	}
	if p.env == nil {
		p.env = map[string]string{}
	}
	p.env[name] = value
	return nil
}

// setVariables sets the variables of --env. A secret of the same name is left out.
func (p *trying) setVariables() {
	job := &p.recipe.Run
	env, secrets := map[string]string{}, map[string]string{}
	maps.Copy(env, job.Env)
	maps.Copy(secrets, job.Secrets)
	for name, value := range p.env {
		env[name] = config.Literal(value)
		delete(secrets, name)
	}
	job.Env, job.Secrets = env, secrets
}

// modelName returns the name of the model that the recipe makes for a key.
func modelName(template, key string) (string, error) {
	return config.Expand(template, func(field string) (string, bool) { return key, field == "key" })
}

// putChampion makes the files of --champion the champion, so that the run is given them. Their
// metrics.json and predictions.csv, if there are any, are the figures that the champion is
// registered with.
func (p *trying) putChampion(ctx context.Context, here *platform.Platform, g *client.Gateway) error {
	if p.champion == "" {
		return nil
	}
	if err := p.registerChampion(ctx, here, g); err != nil {
		return fmt.Errorf("use %s as the champion: %w", p.champion, err)
	}
	return nil
}

func (p *trying) registerChampion(ctx context.Context, here *platform.Platform, g *client.Gateway) error {
	end, err := p.championsEnd(ctx, here, g)
	if err != nil {
		return err
	}
	if err := here.Models().Finished(ctx, end); err != nil {
		return err
	}
	model, _ := end.Attribute(tidemill.AttrModel)
	look, err := lookAtVersion(ctx, g, tidemill.VersionName(model, 1))
	if err == nil && look.version.State != tidemill.VersionPromoted {
		err = errors.New(shortSentence(look.version))
	}
	return err
}

// championsEnd returns the end of a run that could have made the champion. A recipe without a gate
// would promote its version.
func (p *trying) championsEnd(ctx context.Context, here *platform.Platform, g *client.Gateway) (*broker.View, error) {
	model, err := modelName(p.recipe.Makes.Model, p.key)
	if err != nil {
		return nil, err
	}
	files, err := transfer.Scan(ctx, p.champion, nil)
	switch {
	case err != nil:
		return nil, err
	case len(files) == 0:
		return nil, errors.New("it has no files")
	}
	if err := g.Carrier().Put(ctx, p.champion, files, nil); err != nil {
		return nil, err
	}
	tree, err := here.Store().Tree(ctx, files)
	if err != nil {
		return nil, err
	}
	metrics, err := agent.ReadMetrics(p.champion)
	if err != nil {
		return nil, err
	}
	judge, now := p.recipe.Judge(), time.Now()
	judge.Gate, judge.Promote = nil, tidemill.PromoteAuto
	key := p.key
	if p.recipe.Key == config.KeyNone {
		key = p.recipe.Name
	}
	origin := tidemill.Origin{Run: "champion", Recipe: p.recipe.Name, Key: key, Attempt: 1, Began: now, Ended: now, Causes: 1}
	data, err := json.Marshal(tidemill.RunFinished{Attempt: 1, Outcome: tidemill.OutcomeSucceeded, Candidate: &tidemill.Candidate{Model: model, Judge: judge, Origin: origin},
		Result: tidemill.Result{Artifact: tree.Tree, Files: tree.Files, Bytes: tree.Bytes, Metrics: metrics}})
	return &broker.View{ID: origin.Run, Source: here.Names().Source("try"), Type: tidemill.TypeRunFinished, Subject: key, Data: data,
		Extensions: []broker.Attribute{{Name: tidemill.AttrModel, Value: model}}}, err
}

// follow prints the run's log until its end, and each change of its progress.
func (p *trying) follow(ctx context.Context, s *command.Session, g *client.Gateway, id string) error {
	watching, stop := context.WithCancel(ctx)
	shown := make(chan struct{})
	go func() {
		defer close(shown)
		watchProgress(watching, g, id, &changes{out: s.Stderr})
	}()
	err := followLog(ctx, g, id, s.Stdout)
	stop()
	<-shown
	return err
}

// tryProgress is how often the progress of the run is read. The agent reports twice a second.
const tryProgress = 500 * time.Millisecond

// watchProgress prints changes of a run's progress until the context ends. An error is ignored,
// because the log and the end of the run report it.
func watchProgress(ctx context.Context, g *client.Gateway, id string, to *changes) {
	tick := time.NewTicker(tryProgress)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if whole, err := g.Run(ctx, id); err == nil && !whole.State.Ended() {
			to.tell(noteOf(&whole.RunShown))
		}
	}
}

// changes prints a text each time that it changes.
type changes struct {
	out  io.Writer
	last string
}

func (c *changes) tell(text string) {
	if text == "" || text == c.last {
		return
	}
	c.last = text
	fmt.Fprintf(c.out, "progress: %s\n", show.Harmless(text))
}

// judge has the gate judge the output, as it would judge the version of a real run, and prints the
// verdict.
func (p *trying) judge(ctx context.Context, s *command.Session, here *platform.Platform, g *client.Gateway, whole *api.RunWhole) error {
	if whole.Plan == nil || whole.Plan.Model == "" {
		return nil
	}
	end, err := endOf(ctx, here.Broker(), whole)
	if err == nil {
		err = here.Models().Finished(ctx, end)
	}
	if err != nil {
		return fmt.Errorf("judge the output: %w", err)
	}
	look, err := lookAtVersion(ctx, g, whole.Plan.Model+"@"+tidemill.WhichNewest)
	if err != nil {
		return fmt.Errorf("judge the output: %w", err)
	}
	passed := showTried(s.Stdout, look.version, p.champion, show.ScreenOf(s.Stdout, s.Getenv))
	served := p.askScorers(ctx, s.Stdout, here, look.version)
	if !passed || !served {
		return command.ErrReported
	}
	return nil
}

// endOf reads the fact of a run's end from the log.
func endOf(ctx context.Context, b *broker.Broker, whole *api.RunWhole) (end *broker.View, err error) {
	at := broker.Position{Stream: tidemill.StreamFacts, Partition: whole.Partition, Offset: whole.Attempts[len(whole.Attempts)-1].Offset}
	for end == nil {
		next, err := b.Read(ctx, at, 1<<20, func(e *broker.Incoming) bool {
			if run, _ := e.Attribute(tidemill.AttrRun); e.Err == nil && e.Type == tidemill.TypeRunFinished && run == whole.ID {
				v := e.View.Clone()
				end = &v
			}
			return end == nil
		})
		if err != nil {
			return nil, err
		}
		if end == nil && next == at.Offset {
			return nil, fmt.Errorf("stream %s has no end of run %s", at.Stream, whole.ID)
		}
		at.Offset = next
	}
	return end, nil
}

// showTried prints the verdict on the output of a try, and reports whether the gate passes.
func showTried(w io.Writer, v *api.ModelVersion, champion string, screen show.Screen) bool {
	passed := v.Judgement != nil && v.Judgement.Passed
	word := "fails"
	if passed {
		word = "passes"
	}
	fmt.Fprintf(w, "\nThe gate %s: version %d %s\n", word, v.Number, show.Harmless(shortSentence(v)))
	if champion != "" {
		fmt.Fprintf(w, "Version %d is the output of this run. The champion is the folder %s.\n", v.Number, champion)
	}
	showClauses(w, v.Judgement)
	showMeasured(w, v.Number, v.Measured, screen)
	return passed
}

// readSamples reads the events of --sample, one a line.
func (p *trying) readSamples() error {
	if p.sample == "" {
		return nil
	}
	text, err := os.ReadFile(p.sample)
	if err != nil {
		return fmt.Errorf("read the sample events: %w", err)
	}
	for i, line := range bytes.Split(text, []byte("\n")) {
		var v broker.View
		if len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if err := broker.UnmarshalStructured(line, &v); err != nil {
			return fmt.Errorf("read the sample events: %s:%d: %w; write one event in the CloudEvents JSON format a line", p.sample, i+1, err)
		}
		p.samples = append(p.samples, v)
	}
	return nil
}

// showSamples prints the answers of a scorer to the sample events, and reports whether it can answer
// all of them.
func (p *trying) showSamples(w io.Writer, c *config.Scorer, m *infer.Model) (answered bool) {
	fmt.Fprintf(w, "\nScorer %s answers the events of %s:\n", c.Name, p.sample)
	answered = true
	for i := range p.samples {
		r, err := score.Answer(c, m, &p.samples[i], nil)
		text := answerOf(r.Label, r.Score, r.Values)
		if err != nil {
			text, answered = "cannot be scored: "+err.Error(), false
		}
		fmt.Fprintf(w, "  %s  %s\n", show.Harmless(p.samples[i].ID), show.Harmless(text))
	}
	return answered
}

// askScorers loads the output as each scorer that would serve it, prints the answers to the golden
// request and the sample events, and reports whether all scorers can serve it.
func (p *trying) askScorers(ctx context.Context, w io.Writer, here *platform.Platform, v *api.ModelVersion) bool {
	served := v.Judgement == nil || !v.Judgement.Lacks // without a scorer too
	if t := v.Measured; t != nil && t.Trial != nil && t.Trial.Error != "" {
		return false // the verdict has the reason
	}
	for _, scorer := range here.Config().Scorers {
		if !scorer.Serves(v.Model, p.key) {
			continue
		}
		m, err := here.LoadModel(ctx, infer.Ref{Model: v.Model, Version: v.Number, Artifact: v.Artifact, Engine: scorer.Engine})
		if err != nil {
			fmt.Fprintf(w, "\nScorer %s cannot serve it: %s\n", scorer.Name, show.Harmless(err.Error()))
			served = false
			continue
		}
		showGolden(w, scorer.Name, m.Engine(), m.Golden())
		if p.sample != "" {
			served = p.showSamples(w, &scorer, m) && served
		}
		m.Release()
	}
	return served
}

// showGolden prints the answers of a model to the golden request.
func showGolden(w io.Writer, scorer, engine string, answers []infer.Answer) {
	if len(answers) == 0 {
		fmt.Fprintf(w, "\nScorer %s can serve it with the engine %s; model.yaml has no golden request, so no answer is shown.\n", scorer, engine)
		return
	}
	fmt.Fprintf(w, "\nScorer %s answers the golden request of model.yaml with the engine %s:\n", scorer, engine)
	for i := range answers {
		fmt.Fprintf(w, "  row %d  %s\n", i+1, show.Harmless(answerText(&answers[i])))
	}
}

// goldenScores is the number of scores or values of an answer that are shown.
const goldenScores = 5

func answerText(a *infer.Answer) string {
	var parts []string
	if a.Label != "" {
		parts = append(parts, a.Label)
	}
	for i, score := range append(a.Scores[:len(a.Scores):len(a.Scores)], a.Values...) {
		if i == goldenScores {
			parts = append(parts, "…")
			break
		}
		text := number(float64(score))
		if i < len(a.Labels) {
			text = a.Labels[i] + " " + text
		}
		parts = append(parts, text)
	}
	return strings.Join(parts, "  ")
}
