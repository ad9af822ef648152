package main

import (
	"context"
	"log/slog"

	"tidemill.dev/internal/remote"
)

// gate is the flags of the commands that only a gateway can answer.
type gate struct{ reach }

// atTheGate explains to people where these commands go.
const atTheGate = `It asks the gateway: the one that --url names, else TIDEMILL_URL, else that of a
tidemill up that was started in the same folder.`

func (g *gate) flags(f *flagSet) {
	g.gatewayFlags(f)
	g.data = dataFolder
	f.text(&g.data, "data", "", "FOLDER", "where tidemill up keeps its data and its addresses")
	f.text(&g.log, "log", "", "LEVEL", "debug, info, warn or error")
	f.fromEnv("data", "TIDEMILL_DATA")
	f.fromEnv("log", "TIDEMILL_LOG")
}

// enter reaches the gateway, and worries aloud if it does not answer. done lets
// go of it.
func (g *gate) enter(ctx context.Context, s *session) (_ *remote.Gateway, done func(), err error) {
	at, leave, err := g.enterQuietly(ctx, s)
	if err != nil {
		return nil, nil, err
	}
	worried := worry{who: "the gateway", trouble: at.Trouble}
	stop := worried.watch(s.stderr, "it is asked again for a while")
	return at, func() { stop(); leave() }, nil
}

// enterQuietly is enter for what takes its time and tells of it itself.
func (g *gate) enterQuietly(ctx context.Context, s *session) (_ *remote.Gateway, done func(), err error) {
	log, err := g.logger(s.stderr, slog.LevelWarn)
	if err != nil {
		return nil, nil, err
	}
	w, err := g.choose(s.getenv)
	if err != nil {
		return nil, nil, err
	}
	if w.url == "" {
		return nil, nil, usagef("only a gateway knows this, and only TIDEMILL_KAFKA is set: name one with --url or %s", envURL)
	}
	at, err := g.knock(ctx, s, w, log)
	if err != nil {
		return nil, nil, err
	}
	return at, at.Close, nil
}
