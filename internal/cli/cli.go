package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"tidemill.dev/api"
	"tidemill.dev/config"
	"tidemill.dev/examples/demo"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/remote"
	"tidemill.dev/internal/runs/local"
	"tidemill.dev/internal/scoring/infer/sandbox"
)

const summary = "Tidemill trains and serves models from events on Kafka streams."

// Main runs the program and exits.
func Main() {
	ctx, stop := untilInterrupted(context.Background(), os.Stderr)
	defer stop()
	os.Exit(report(os.Stderr, run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)))
}

// run executes the command line. Tests call it as Main does.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	if len(args) == 2 && args[0] == sandbox.Argument {
		return sandbox.Child(args[1])
	}
	if len(args) == 1 { // only the program itself calls itself with these arguments
		switch args[0] {
		case local.GuardArgument:
			return local.Guard(ctx)
		case demo.Trainer:
			return demo.Train(ctx, os.Getenv, stdout)
		}
	}
	s := &command.Session{Stdin: stdin, Stdout: stdout, Stderr: stderr, Getenv: os.Getenv}
	return everything().Execute(ctx, s, args, nil)
}

const exitAborted = 130 // exit status of shells for an end by SIGINT

const sayAfter = time.Second

// untilInterrupted returns a context that the first Ctrl-C or SIGTERM cancels, so that the stop
// order runs. The second one ends the process at once.
func untilInterrupted(ctx context.Context, stderr io.Writer) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
		// Most stops take less than a second. If one takes longer, say why.
		time.AfterFunc(sayAfter, func() {
			fmt.Fprintln(stderr, "tidemill: still stopping gracefully; press Ctrl-C again to stop at once")
		})
		cancel()
		<-signals
		os.Exit(exitAborted)
	}()
	return ctx, cancel
}

// everything is the commands of tidemill.
func everything() *command.Set {
	return &command.Set{Summary: summary, Flags: new(connect.Reach).Flags, Nouns: nouns(), Values: map[string][]string{
		"ROLE": roles(), "ROLES": config.AccessRoles(), "STATE": remote.RunStates(),
	}}
}

func nouns() []command.Noun {
	return append([]command.Noun{
		{ID: "operate", Title: "Start and operate", Commands: []command.Command{
			upCommand(), initCommand(), remote.StatusCommand(), remote.OpenCommand(), demoCommand(), serveCommand(), validateCommand(),
			tokenNewCommand(), tokenListCommand(), tokenRemoveCommand(), command.CompletionCommand(), command.VersionCommand(), command.HelpCommand()}},
	}, remote.Nouns()...)
}

// Tree returns all commands, for documentation. They cannot be run.
func Tree() *cobra.Command { return everything().Tree() }

const (
	exitFailed = 1
	exitUsage  = 2
)

// report prints an error and returns the exit status.
func report(stderr io.Writer, err error) int {
	var usage *command.UsageError
	switch {
	case err == nil:
		return 0
	case errors.Is(err, command.ErrReported):
		return exitFailed
	case errors.As(err, &usage):
		fmt.Fprintf(stderr, "tidemill: %v\n", err)
		return exitUsage
	}
	fmt.Fprintf(stderr, "tidemill: %s%s\n", explainError(err), hint(err))
	return exitFailed
}

// hint adds what a gateway does not know: how a command gets a token.
func hint(err error) string {
	var p *api.Problem
	if errors.As(err, &p) && p.Type == api.ProblemBase+api.Unauthenticated {
		return "; give a valid one by " + connect.EnvToken + " or --token-file"
	}
	return ""
}

// explainError returns the text of an error for a user of the command line. Only Ctrl-C and SIGTERM
// cancel the context of a command, and a gateway's own text never has this error in it.
func explainError(err error) string {
	text := strings.ReplaceAll(err.Error(), context.Canceled.Error(), "interrupted")
	if errors.As(err, new(*api.Problem)) {
		text = namingCommands(text)
	}
	return text
}

// routes are the routes that problems of a gateway name, each with the command that shows the same.
// The longer of two routes with the same beginning is first.
var routes = []struct{ route, command string }{
	{`/model\?model=([^\s;,)]+)`, "tidemill models show $1"},
	{`/models`, "tidemill models"},
	{`/model`, "tidemill models show MODEL"},
	{`/dead-letters/\{id\}`, "tidemill dl show ID"},
	{`/dead-letters`, "tidemill dl"},
	{`/data/datasets`, "tidemill data ls"},
	{`/(runs|recipes|pools|triggers|schedules|scorers)`, "tidemill $1"},
}

// namingCommands replaces the routes in a gateway's text with commands, because a gateway writes for
// callers of HTTP.
func namingCommands(text string) string {
	if !strings.Contains(text, "GET /api/v1/") {
		return text
	}
	for _, r := range routes {
		text = regexp.MustCompile(`GET /api/v1`+r.route).ReplaceAllString(text, r.command)
	}
	return text
}
