package remote

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	graphs "tidemill.dev/internal/models/lineage/drawing"
)

func whyCommand() command.Command {
	return command.Command{
		Name:    "why",
		Daily:   true,
		Args:    "KIND/ID",
		Summary: "trace the causes and effects of a model, run, commit or event",
		About: `KIND/ID is one of
  run/ID                  the id, or at least its first six letters
  model/NAME[@VERSION]    a number, champion, previous or newest (default champion)
  commit/DATASET@COMMIT   a branch, or the beginning of a commit's id
  event/ID                or event/SOURCE#ID, in quotes; for the input of a scorer,
                          event/STREAM/PARTITION/OFFSET

It shows data, code, node, cause and effects: at most 200 objects, the nearest ones.
Notes at the end list the parts that are left out.`,
		Examples: []command.Example{
			{"tidemill why model/intent/bot-42", "the champion: its verdict, its run, its data, its cause"},
			{"tidemill why run/3k7mzq", "the cause of a run, and its output"},
			{"tidemill why commit/bots/bot-42@main", "the models made from the newest data"},
			{"tidemill why model/intent/bot-42@7 --graph svg --out why.svg", "a picture, for a browser"},
			{"tidemill why model/intent/bot-42@7 -o json", "for a script"},
		},
		Make: func() command.Program {
			p := &whyProgram{}
			r := &request{json: true, flags: p.flags, do: p.do}
			r.accept = func([]string) error { return p.check(r.output) }
			return r
		},
	}
}

type whyProgram struct{ graph, out string }

func (p *whyProgram) flags(f *command.FlagSet) {
	f.Text(&p.graph, "graph", "", "FORMAT", "draw it: dot (for Graphviz) or svg (for a browser)")
	f.Text(&p.out, "out", "", "FILE", "write to this file")
}

func (p *whyProgram) check(output string) error {
	switch {
	case p.graph != "" && p.graph != "dot" && p.graph != "svg":
		return command.Usagef("--graph %q: give dot or svg", p.graph)
	case p.graph != "" && output == "json":
		return command.Usagef("--graph %s is not JSON: leave out -o json or --graph", p.graph)
	}
	return nil
}

func (p *whyProgram) do(ctx context.Context, c *call) error {
	graph, err := c.g.Why(ctx, c.positional[0])
	if err != nil {
		return err
	}
	if p.out == "" {
		return p.write(c.Stdout, &graph, c.json)
	}
	return p.save(c, &graph)
}

// save writes the output to the file of --out.
func (p *whyProgram) save(c *call, graph *api.Graph) error {
	f, err := os.Create(p.out)
	if err != nil {
		return fmt.Errorf("write why: %w", err)
	}
	err = p.write(f, graph, c.json)
	if closed := f.Close(); err == nil {
		err = closed
	}
	if err != nil {
		return fmt.Errorf("write why to %s: %w", p.out, err)
	}
	_, err = fmt.Fprintf(c.Stderr, "Written to %s.\n", p.out)
	return err
}

func (p *whyProgram) write(w io.Writer, graph *api.Graph, json bool) error {
	switch {
	case json:
		return writeIndented(w, graph)
	case p.graph == "dot":
		return graphs.DOT(w, graph, seconds)
	case p.graph == "svg":
		return graphs.SVG(w, graph, seconds)
	}
	return graphs.Tree(w, graph, seconds)
}

// seconds formats a time to the second, with the date if it is not today.
func seconds(t time.Time) string {
	t = t.Local()
	if now := time.Now(); t.YearDay() != now.YearDay() || t.Year() != now.Year() {
		return t.Format("2006-01-02 15:04:05")
	}
	return t.Format("15:04:05")
}
