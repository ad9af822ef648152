package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"tidemill.dev/loadtest/internal/scenario"
)

// scorePlan holds the flags of `loadtest score`.
type scorePlan struct {
	only    string
	json    string
	svg     string
	rounds  int
	fetch   bool
	smoke   bool
	beside  string
	profile string
	self    string
	franz   string
}

func parseScore(args []string) (scorePlan, error) {
	var p scorePlan
	f := flag.NewFlagSet("loadtest score", flag.ContinueOnError)
	f.StringVar(&p.only, "scenario", "", "only these scenarios, by name, with commas")
	f.StringVar(&p.json, "json", "", "file for the measurements, as JSON")
	f.StringVar(&p.svg, "svg", "", "file for a chart of it")
	f.IntVar(&p.rounds, "rounds", 3, "rounds of each comparison")
	f.BoolVar(&p.fetch, "fetch", false, "fetch the packages of the Python scorer and of the peers that are not installed yet")
	f.StringVar(&p.beside, "beside", "", "another build of this program, which is measured beside this one where the peers are")
	f.BoolVar(&p.smoke, "smoke", false, "a short run of some scenarios, which fails only if something breaks")
	f.StringVar(&p.profile, "profile", "", "folder for CPU and allocation profiles of the scorer and of inference alone")
	f.StringVar(&p.franz, "franz", "", "franz-go's client, already built; built here by default")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	if f.NArg() > 0 {
		return p, fmt.Errorf("what is %q? -h lists the flags", f.Arg(0))
	}
	if p.smoke {
		p.rounds = 1
	}
	return p, nil
}

// scoreMain runs `loadtest score`.
func scoreMain(ctx context.Context, args []string, stdout io.Writer) error {
	p, err := parseScore(args)
	if err != nil {
		return err
	}
	return runScores(ctx, p, stdout)
}

func runScores(ctx context.Context, p scorePlan, stdout io.Writer) (err error) {
	all, err := p.scenarios()
	if err != nil {
		return err
	}
	if p.self, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	folder, err := os.MkdirTemp("", "tidemill-score-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	built, err := buildContenders(ctx, p, folder)
	if err != nil {
		return err
	}
	fmt.Fprintf(stdout, "Scorers next to their ceiling: copying in series with inference alone. The broker and each client have their own process;\n"+
		"medians of %d rounds, of which each has all of them. CPU is user + system, of the client's process and of the broker's.\n%s\n\n", p.rounds, built)
	report := scoreReport{At: time.Now().UTC(), Machine: thisMachine(), Smoke: p.smoke, Rounds: p.rounds}
	for i := range all {
		o, err := measureScenario(ctx, p, &all[i], built, filepath.Join(folder, all[i].Name))
		if err != nil {
			return fmt.Errorf("scenario %s: %w", all[i].Name, err)
		}
		o.print(stdout)
		report.Scenarios = append(report.Scenarios, *o)
	}
	return errors.Join(report.write(p), report.checkBudgets(p))
}

// checkBudgets returns an error if a budget was missed.
func (r *scoreReport) checkBudgets(p scorePlan) error {
	for i := range r.Scenarios {
		o := &r.Scenarios[i]
		switch {
		case o.auditFailed():
			return fmt.Errorf("scenario %s: events were lost, scored twice or wrongly; see the table", o.Name)
		case o.budgetMissed() && !p.smoke:
			return errMissed
		}
	}
	return nil
}

func (r *scoreReport) write(p scorePlan) error {
	var err error
	if p.json != "" {
		var data []byte
		if data, err = json.MarshalIndent(r, "", "  "); err == nil {
			err = os.WriteFile(p.json, append(data, '\n'), 0o644)
		}
	}
	if p.svg == "" {
		return err
	}
	var drawn strings.Builder
	return errors.Join(err, r.draw(&drawn), os.WriteFile(p.svg, []byte(drawn.String()), 0o644))
}

// scenarios returns the chosen scenarios, in the order of their files.
func (p scorePlan) scenarios() ([]scenario.Scenario, error) {
	var all []scenario.Scenario
	left := strings.FieldsFunc(p.only, func(r rune) bool { return r == ',' })
	every := len(left) == 0
	entries, err := scenarioFiles.ReadDir("scenarios")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		s, err := readScenario(e.Name())
		if err != nil {
			return nil, err
		}
		at := slices.Index(left, s.Name)
		if at >= 0 {
			left = slices.Delete(left, at, at+1)
		} else if !every || p.smoke && s.Smoke.Skip {
			continue
		}
		if p.smoke {
			*s = s.Short()
		}
		all = append(all, *s)
	}
	if len(left) > 0 {
		return nil, fmt.Errorf("there is no scenario %q; loadtest/scenarios has a file for each", left[0])
	}
	return all, nil
}

func readScenario(file string) (*scenario.Scenario, error) {
	data, err := scenarioFiles.ReadFile("scenarios/" + file)
	if err != nil {
		return nil, err
	}
	return scenario.Read(file, data)
}

// scenarioFiles are embedded, so that the program runs from any folder.
//
//go:embed scenarios/*.yaml
var scenarioFiles embed.FS
