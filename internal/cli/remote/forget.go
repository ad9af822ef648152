package remote

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"
	"time"

	"golang.org/x/term"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/gateway/client"
)

func forgetCommand() command.Command {
	return command.Command{
		Name:    "forget",
		Args:    "KEY",
		Summary: "forget a key: its runs, models, data, logs and dead letters",
		About: `It ends the key's runs and retires its models. It removes its datasets with all
versions, its logs and its checkpoints, drops its dead letters, and delivers none of
its waiting events. Events on streams stay until their retention ends: the receipt
lists them with the time. On a terminal the command shows the list and asks first;
elsewhere it needs --yes.`,
		Examples: []command.Example{
			{"tidemill forget bot-42 --dry-run", "what would be removed, and what would stay"},
			{"tidemill forget bot-42 --reason 'the customer has left' --yes", "without being asked"},
		},
		Make: func() command.Program {
			p := &keyForget{}
			return &request{json: true, quiet: true, flags: p.flags, do: p.do}
		},
	}
}

type keyForget struct {
	reason              string
	dryRun, yes, noWait bool
}

func (p *keyForget) flags(f *command.FlagSet) {
	f.Text(&p.reason, "reason", "", "TEXT", "reason, for the receipt")
	f.Yes(&p.dryRun, "dry-run", "only show what would be forgotten")
	f.Yes(&p.yes, "yes", "do not ask")
	f.Yes(&p.noWait, "no-wait", "do not wait for the receipt")
}

func (p *keyForget) do(ctx context.Context, c *call) error {
	ask := api.KeyAsked{Key: c.positional[0], Reason: p.reason, DryRun: true}
	if p.dryRun || !p.yes {
		there, err := c.g.ForgetKey(ctx, client.NewAsking(), ask)
		if err != nil {
			return err
		}
		if p.dryRun {
			return tellEnd(c, &there)
		}
		if err := agreed(ctx, c.Session, there.Receipt); err != nil {
			return err
		}
	}
	ask.DryRun, ask.Wait = false, false
	end, err := c.g.ForgetKey(ctx, client.NewAsking(), ask)
	if err == nil && !p.noWait {
		fmt.Fprintf(c.Stderr, "It is being forgotten under the id %s.\n", end.ID)
		err = await(ctx, c.g, &end)
	}
	if err != nil {
		return err
	}
	return tellEnd(c, &end)
}

// agreed asks the user at the terminal. Piped input cannot confirm by accident.
func agreed(ctx context.Context, s *command.Session, there *tidemill.KeyForgotten) error {
	f, ok := s.Stdin.(*os.File)
	if !ok || !term.IsTerminal(int(f.Fd())) {
		return command.Usagef("--yes is missing: without a terminal the command cannot ask; --dry-run shows what would be forgotten")
	}
	sayEnd(s.Stderr, there)
	fmt.Fprintf(s.Stderr, "Forget %s? This cannot be undone. Type the key to continue: ", show.Harmless(there.Key))
	line, err := bufio.NewReader(untilDone(ctx, f)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	if !isKey(line, there.Key) {
		return errors.New("nothing was forgotten: this is not the key")
	}
	return nil
}

// isKey reports whether a typed line is a key. A key may begin or end with spaces.
func isKey(line, key string) bool {
	return strings.TrimRight(line, "\r\n") == key || strings.TrimSpace(line) == key
}

const lookForReceipt = 500 * time.Millisecond

// await polls for the receipt. Ctrl-C ends only the waiting, not the forgetting.
func await(ctx context.Context, g *client.Gateway, end *api.KeyEnd) error {
	look := time.NewTicker(lookForReceipt)
	defer look.Stop()
	for id := end.ID; ; {
		now, err := g.ForgottenKey(ctx, id)
		switch {
		case err == nil && now.Done:
			*end = now
			return nil
		case err != nil && client.Status(err) != http.StatusNotFound: // not found means that it has not begun
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return nil
		}
	}
}

func tellEnd(c *call, end *api.KeyEnd) error {
	w := c.Stdout
	if c.json {
		return writeIndented(w, end)
	}
	switch {
	case end.DryRun:
		fmt.Fprintf(w, "Would be forgotten:\n")
	case end.Done:
		fmt.Fprintf(w, "Forgotten; the receipt is on the stream facts:\n")
	default:
		fmt.Fprintf(w, "It is being forgotten under the id %s.\n", end.ID)
		return nil
	}
	sayEnd(w, end.Receipt)
	return nil
}

// sayEnd prints a receipt for people.
func sayEnd(w io.Writer, r *tidemill.KeyForgotten) {
	for i := range r.Runs {
		fmt.Fprintf(w, "  %s of recipe %s\n", show.Count(len(r.Runs[i].Runs), "run"), r.Runs[i].Recipe)
	}
	for _, m := range r.Models {
		fmt.Fprintf(w, "  model %s with %s\n", show.Harmless(m.Model), show.Count(m.Versions, "version"))
	}
	for _, d := range r.Datasets {
		fmt.Fprintf(w, "  dataset %s with %s\n", show.Harmless(d.Dataset), show.Count(d.Commits, "commit"))
	}
	if r.Letters > 0 {
		fmt.Fprintf(w, "  %s\n", show.Count(r.Letters, "dead letter"))
	}
	if len(r.Runs)+len(r.Models)+len(r.Datasets)+r.Letters == 0 {
		fmt.Fprintf(w, "  nothing is stored for %s\n", show.Harmless(r.Key))
	}
	fmt.Fprintln(w, "Still stored, and until when:")
	for _, left := range r.Remains {
		until := left.Ends
		if left.Until != nil {
			until = "until " + left.Until.UTC().Format(time.RFC3339) + ", " + left.Ends
		}
		fmt.Fprintf(w, "  %s: %s; %s\n", left.Place, left.What, until)
	}
}
