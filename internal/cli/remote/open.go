package remote

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os/exec"
	"runtime"
	"slices"
	"strings"

	"tidemill.dev/config/spelling"
	"tidemill.dev/internal/cli/command"
)

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
