package remote

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"tidemill.dev/api"
	"tidemill.dev/config/spelling"
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
		return inWordsOf(err, "of: ", "")
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

// OpenCommand opens a page of the dashboard.
func OpenCommand() command.Command {
	return command.Command{
		Name:    "open",
		Daily:   true,
		Args:    "[PAGE [NAME]]",
		Summary: "open a page of the dashboard in the browser",
		About: `It prints the page's address, and opens it if this machine has a browser. Pages:
  fleet, models, runs, scorers, approvals, data, lineage, streams, triggers, dead-letters, health
  key KEY, model MODEL, run RUN, scorer SCORER, stream STREAM, trigger TRIGGER, letter ID`,
		Examples: []command.Example{
			{"tidemill open", "the fleet"},
			{"tidemill open key bot-42", "all that is known about one key"},
			{"tidemill open runs --print", "only print the address"},
		},
		Make: func() command.Program {
			p := &openPage{}
			return &request{flags: p.flags, accept: acceptPage, do: p.do}
		},
	}
}

type openPage struct{ print bool }

func (p *openPage) flags(f *command.FlagSet) {
	f.Yes(&p.print, "print", "only print the address")
}

func acceptPage(positional []string) error {
	_, err := pagePath(positional)
	return err
}

// wholePages returns the paths of the pages that need no name.
func wholePages() map[string]string {
	return map[string]string{"fleet": "/", "models": "/ui/models", "runs": "/ui/runs", "scorers": "/ui/scorers", "approvals": "/ui/approvals", "data": "/ui/data",
		"lineage": "/ui/lineage", "streams": "/ui/streams", "triggers": "/ui/triggers", "dead-letters": "/ui/dead-letters", "health": "/ui/health"}
}

// pagesOfOne returns the paths of the pages that end with a name.
func pagesOfOne() map[string]string {
	return map[string]string{"key": "/ui/key?key=", "model": "/ui/model?name=", "run": "/ui/runs/", "scorer": "/ui/scorers/", "stream": "/ui/streams/",
		"trigger": "/ui/triggers/", "letter": "/ui/dead-letters/"}
}

// pagePath returns the path of a page of the dashboard.
func pagePath(words []string) (string, error) {
	page, whole, ofOne := "fleet", wholePages(), pagesOfOne()
	if len(words) > 0 {
		page = words[0]
	}
	if path, known := whole[page]; known {
		if len(words) > 1 {
			return "", command.Usagef("the page %s needs no name", page)
		}
		return path, nil
	}
	path, known := ofOne[page]
	switch {
	case !known:
		near, found := spelling.Nearest(page, slices.Concat(slices.Sorted(maps.Keys(whole)), slices.Sorted(maps.Keys(ofOne))))
		if !found {
			return "", command.Usagef("there is no page %s; tidemill help open lists them", page)
		}
		return "", command.Usagef("there is no page %s; did you mean %s?", page, near)
	case len(words) != 2:
		return "", command.Usagef("the page %s needs one name, such as: tidemill open %s NAME", page, page)
	case strings.HasSuffix(path, "="):
		return path + url.QueryEscape(words[1]), nil
	}
	return path + url.PathEscape(words[1]), nil
}

func (p *openPage) do(ctx context.Context, c *call) error {
	path, err := pagePath(c.positional)
	if err != nil {
		return err
	}
	address := strings.TrimSuffix(c.g.URL(), "/") + path
	fmt.Fprintln(c.Stdout, address)
	if p.print {
		return nil
	}
	opener := browserCommand(runtime.GOOS, c.Getenv, address)
	if opener == nil {
		fmt.Fprintln(c.Stderr, "This machine has no display. Open the address in a browser that reaches it.")
		return nil
	}
	if err := exec.CommandContext(ctx, opener[0], opener[1:]...).Run(); err != nil {
		fmt.Fprintf(c.Stderr, "%s did not open it (%v). Open the address yourself.\n", opener[0], err)
	}
	return nil
}

// browserCommand returns the command that opens an address; nil if there is no display.
func browserCommand(system string, getenv func(string) string, address string) []string {
	switch {
	case system == "darwin":
		return []string{"open", address}
	case system == "windows":
		return []string{"rundll32", "url.dll,FileProtocolHandler", address}
	case getenv("DISPLAY") == "" && getenv("WAYLAND_DISPLAY") == "":
		return nil
	}
	return []string{"xdg-open", address}
}
