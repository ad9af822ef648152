package main

import (
	"context"
	"fmt"
	"io"
	"time"

	"tidemill.dev"
)

func modelsShowCommand() command {
	return command{
		name:    "models show",
		args:    "MODEL[@VERSION]",
		summary: "show a model: its versions, why each serves or not, its confusion matrix",
		about: `VERSION is a number, champion, previous (the champion before) or newest. Without one all
versions are listed, and the champion's verdict is shown.

The rows of a confusion matrix are what examples are, its columns what they were said to
be. Beside it stands the champion's that was measured on the same data, if one was.

` + atTheGate,
		examples: []example{
			{"tidemill models show intent/bot-42", "all versions, and why the champion is one"},
			{"tidemill models show intent/bot-42@newest", "what became of the newest"},
			{"tidemill models show intent/bot-42@7 -o json", "for a script"},
		},
		make: func() program { return &modelShow{output: "text"} },
	}
}

type modelShow struct {
	gate
	output string
}

func (p *modelShow) flags(f *flagSet) {
	f.text(&p.output, "output", "o", "FORMAT", "text or json")
	p.gate.flags(f)
}

func (p *modelShow) accept(positional []string) error {
	if err := checkOutput(p.output); err != nil {
		return err
	}
	if err := wants(positional, "MODEL"); err != nil {
		return err
	}
	_, _, err := versionArg(positional[0])
	return err
}

func (p *modelShow) run(ctx context.Context, s *session, positional []string) error {
	g, done, err := p.enter(ctx, s)
	if err != nil {
		return err
	}
	defer done()
	model, which, err := versionArg(positional[0])
	if err != nil {
		return err
	}
	whole, err := g.Model(ctx, model, "")
	if err != nil {
		return err
	}
	n, err := findVersion(&whole, which)
	if err != nil && (which != "" || len(whole.Versions) > 0) {
		return err
	}
	look := lookedAt{model: &whole}
	if n != 0 {
		if look, err = measuredVersion(ctx, g, &whole, n); err != nil {
			return err
		}
	}
	if p.output == "json" && which != "" {
		return writeIndented(s.stdout, look.version)
	}
	if p.output == "json" {
		return writeIndented(s.stdout, whole)
	}
	return showModel(s.stdout, look, which == "", screenOf(s.stdout, s.getenv), time.Now())
}

// showModel prints a model and one version of it, for people.
func showModel(w io.Writer, look lookedAt, all bool, s screen, now time.Time) error {
	if err := sayModel(w, look.model); err != nil {
		return err
	}
	if all {
		if err := tabulateVersions(w, look.model, now); err != nil {
			return err
		}
		showChanges(w, look.model)
	}
	if v := look.version; v != nil {
		showVerdict(w, look.model, v)
		if err := showOrigin(w, v, now); err != nil {
			return err
		}
		showMeasured(w, v.Number, v.Measured, s)
	}
	_, err := fmt.Fprint(w, nextForModel(look))
	return err
}

func nextForModel(look lookedAt) string {
	m := look.model
	name := harmless(m.Name)
	newest := m.Which(tidemill.WhichNewest)
	switch v := look.version; {
	case v == nil:
		return ""
	case v.State == tidemill.VersionAwaiting && m.Champion == 0:
		return fmt.Sprintf("\nNext: tidemill promote %s\n", harmless(tidemill.VersionName(m.Name, v.Number)))
	case v.State == tidemill.VersionAwaiting:
		return fmt.Sprintf("\nNext: tidemill promote %s\n      tidemill compare %s@champion @%d\n", harmless(tidemill.VersionName(m.Name, v.Number)), name, v.Number)
	case v.Number != newest:
		return fmt.Sprintf("\nNext: tidemill models show %s@%d tells of the newest\n", name, newest)
	case v.Number == m.Champion && m.Previous != 0:
		return fmt.Sprintf("\nNext: tidemill compare %s@previous @%d\n      tidemill rollback %[1]s makes version %d the champion again\n", name, v.Number, m.Previous)
	}
	return fmt.Sprintf("\nNext: tidemill runs show %s tells how it was made\n", shortID(look.version.Run))
}
