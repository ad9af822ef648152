package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"tidemill.dev/internal/runs/agent"
)

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
