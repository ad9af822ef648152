// The command tidemill-agent does the attempts of a pod, in the container of the run's own image.
// It is static and small because it is copied into that container.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tidemill.dev/internal/runs/agent"
)

// The exit codes. They tell the watcher of the pod whether the agent has reported the attempt's
// end.
const (
	exitTold       = 0
	exitUntold     = 1
	exitMisused    = 2
	exitSuperseded = 3 // another attempt has replaced this one, so there is nothing to report
)

func main() {
	err := run(context.Background(), os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "tidemill-agent:", err)
	}
	os.Exit(codeOf(err))
}

// errMisused is wrapped by errors of a wrong call.
var errMisused = errors.New("call it with install DIR, or with run")

func run(ctx context.Context, args []string) error {
	switch {
	case len(args) == 2 && args[0] == "install":
		return install(args[1])
	case len(args) != 1 || args[0] != "run":
		return errMisused
	}
	if err := hideProcess(); err != nil {
		return err
	}
	if os.Getpid() == 1 {
		return beFirst(args)
	}
	return runAttempts(ctx, os.Getenv)
}

func codeOf(err error) int {
	var first *exitStatus
	switch {
	case err == nil:
		return exitTold
	case errors.As(err, &first):
		return first.code
	case errors.Is(err, errMisused):
		return exitMisused
	case errors.Is(err, agent.ErrSuperseded):
		return exitSuperseded
	}
	return exitUntold
}

const installed = "agent"

// install copies this program into a folder. The copy appears complete or not at all. It may
// replace a copy from before a restart of the container.
func install(dir string) (err error) {
	self, err := os.Executable()
	if err == nil {
		err = copyTo(self, dir)
	}
	if err != nil {
		return fmt.Errorf("install the agent in %s: %w", dir, err)
	}
	return nil
}

func copyTo(self, dir string) error {
	from, err := os.Open(self)
	if err != nil {
		return err
	}
	defer from.Close()
	to, err := os.CreateTemp(dir, installed+"-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(to, from)
	err = errors.Join(err, to.Chmod(0o755), to.Close())
	if err == nil {
		err = os.Rename(to.Name(), filepath.Join(dir, installed))
	}
	if err != nil {
		return errors.Join(err, os.Remove(to.Name()))
	}
	return nil
}

const (
	defaultGrace = 30 * time.Second
	shortOf      = time.Second // time before the end of the pod's grace at which everything is reported
	mostOf       = 10          // shortOf is at most this fraction of the grace
)

// runAttempts does the pod's attempt, then all further attempts that the gateway gives to the pod.
func runAttempts(ctx context.Context, getenv func(string) string) error {
	o, l, grace, err := optionsOf(getenv)
	if err != nil {
		return fmt.Errorf("%w: %w", errMisused, err)
	}
	o.Logger = slog.New(slog.NewTextHandler(os.Stderr, nil))
	o.Echo = func(stream string, data []byte) {
		to := io.Writer(os.Stdout)
		if stream != "stdout" {
			to = os.Stderr
		}
		_, _ = to.Write(data) // the gateway has the real log
	}
	o.HTTP, o.Equip, o.Inside = newClient(), agent.InPod, true
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer leaveOnSignal(cancel, grace)()
	return agent.Follow(ctx, o, l)
}

// leaveOnSignal ends the attempt when the pod gets SIGTERM. Call the returned function to stop.
func leaveOnSignal(cancel context.CancelCauseFunc, grace time.Duration) (stop func()) {
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		if _, ok := <-asked; ok {
			cancel(&agent.Stopping{By: time.Now().Add(grace - min(shortOf, grace/mostOf))})
		}
	}()
	return func() {
		signal.Stop(asked)
		close(asked)
	}
}

// newClient returns a client without a proxy: an image's proxy is for outside addresses.
func newClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DialContext: (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext,
		TLSHandshakeTimeout: 10 * time.Second, ForceAttemptHTTP2: true, MaxIdleConnsPerHost: 8, IdleConnTimeout: 30 * time.Second}}
}

// optionsOf reads the variables that the launcher sets.
func optionsOf(getenv func(string) string) (o agent.Options, l agent.Lingering, grace time.Duration, err error) {
	o = agent.Options{Gateway: getenv(agent.EnvGateway), Attempt: getenv(agent.EnvAttempt), Token: getenv(agent.EnvToken), Node: getenv(agent.EnvNode),
		Work: getenv(agent.EnvWork), Part: getenv(agent.EnvPart), Workers: list(getenv(agent.EnvWorkers)), Servers: list(getenv(agent.EnvServers))}
	for name, v := range map[string]string{agent.EnvGateway: o.Gateway, agent.EnvAttempt: o.Attempt, agent.EnvToken: o.Token, agent.EnvWork: o.Work} {
		if v == "" {
			return o, l, 0, fmt.Errorf("%s is not set", name)
		}
	}
	if o.Part != "" && o.Part != agent.Worker && o.Part != agent.Server {
		return o, l, 0, fmt.Errorf("%s: %q is neither %s nor %s", agent.EnvPart, o.Part, agent.Worker, agent.Server)
	}
	if text := getenv(agent.EnvIndex); text != "" {
		if o.Index, err = strconv.Atoi(text); err != nil || o.Index < 0 {
			return o, l, 0, fmt.Errorf("%s: %q is not the number of a worker", agent.EnvIndex, text)
		}
	}
	if grace, err = durationOf(getenv, agent.EnvGrace, defaultGrace); err != nil {
		return o, l, 0, err
	}
	l.Pod = getenv(agent.EnvPod)
	if l.For, err = durationOf(getenv, agent.EnvLinger, 0); err != nil {
		return o, l, 0, err
	}
	l.Clean = newCleaner(o.Work, getenv(envFirst) != "").clean
	return o, l, grace, nil
}

func durationOf(getenv func(string) string, name string, without time.Duration) (time.Duration, error) {
	text := getenv(name)
	if text == "" {
		return without, nil
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		return 0, fmt.Errorf("%s: %q is not a duration", name, text)
	}
	return d, nil
}

func list(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}
