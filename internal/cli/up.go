package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"syscall"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/gateway"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/runs/agent"
)

const configEvery = 500 * time.Millisecond

// The laptop's ports differ from those of a real Kafka and Redis, so that both can run on one
// machine.
const (
	kafkaPort = 19092
	redisPort = 16379
)

func upCommand() command {
	return command{
		name:    "up",
		daily:   true,
		summary: "run Tidemill, all in one process",
		about: `It starts an embedded Kafka and Redis on loopback, with their data and passwords in a
folder. tidemill kafka-config prints how other programs connect to that Kafka.
Acknowledged events survive kill -9, and with --sync also a power cut. With --kafka and
--redis it uses yours. Runs work on this machine. Their inputs and outputs are in the
data folder too, or in the object store of --store.

It creates the streams of its config, and applies the file again when it changes. After
an invalid change the previous config stays in force; /readyz and the log report it.
Other commands and HTTP clients use its gateway, the same as tidemill serve gateway.
Commands find its address in the data folder.`,
		examples: []example{
			{"tidemill up", "start, or continue from the last stop"},
			{"tidemill up -f tidemill.yaml --data /var/lib/tidemill --sync", "a folder of your choice, safe against power cuts"},
			{"tidemill up --kafka-port 0 --redis-port 0 --listen 127.0.0.1:0", "on free ports, next to another one"},
		},
		make: func() program {
			return &up{door: doorFlags{listen: listenAt}, kafkaPort: kafkaPort, redisPort: redisPort}
		},
	}
}

type up struct {
	connection
	door                 doorFlags
	scoring              scoringFlags
	kafkaPort, redisPort int
	sync, reorder        bool
	secrets              string
}

func (u *up) flags(f *flagSet) {
	u.door.flags(f)
	f.number(&u.kafkaPort, "kafka-port", "", "PORT", "port of the embedded Kafka; 0 is a free one")
	f.number(&u.redisPort, "redis-port", "", "PORT", "port of the embedded Redis; 0 is a free one")
	f.yes(&u.sync, "sync", "make the embedded Kafka survive power cuts: one fsync per batch")
	f.yes(&u.reorder, "reorder", "allow new partitions of streams, although keys then move between them")
	f.text(&u.secrets, "secrets", "", "FOLDER", "folder with the secrets of runs, one file NAME/KEY each (default secrets in the data folder)")
	f.fromEnv("secrets", "TIDEMILL_SECRETS")
	u.scoring.flags(f)
	u.connection.flags(f)
}

func (u *up) accept(positional []string) error {
	for name, port := range map[string]int{"--kafka-port": u.kafkaPort, "--redis-port": u.redisPort} {
		if port < 0 || port > 65535 {
			return usagef("%s %d: a port is 0 to 65535", name, port)
		}
	}
	if err := wants(positional); err != nil {
		return err
	}
	if err := u.scoring.accept(); err != nil {
		return err
	}
	return u.door.accept()
}

// run keeps the stop order: the platform closes the HTTP server first, and the embedded servers
// last.
func (u *up) run(ctx context.Context, s *session, _ []string) error {
	began := time.Now()
	log, err := u.logger(s.stderr, slog.LevelInfo)
	if err != nil {
		return err
	}
	if err := u.door.check(); err != nil {
		return err
	}
	source := u.source()
	conf, err := source.load()
	if err != nil {
		return fmt.Errorf("read the config: %w", err)
	}
	u.door.warnOfPlainHTTP(log)
	for _, line := range memoryNote(conf, agent.LimitsMemory) {
		log.Warn("up: " + line)
	}
	p, err := u.openPlatform(ctx, s, conf, log)
	if err != nil {
		return unlessInterrupted(ctx, log, err)
	}
	return stay(ctx, p, log, source, doorBlock, func(ctx context.Context) error {
		if err := begin(ctx, p, log); err != nil {
			return unlessInterrupted(ctx, log, err)
		}
		// The gateway opens after the servers. So a second up on the same folder reports the folder
		// in use, not the port.
		g, err := u.door.open(ctx, p)
		if errors.Is(err, syscall.EADDRINUSE) {
			return fmt.Errorf("%w (--listen)%s", err, besideAnother)
		}
		if err != nil {
			return unlessInterrupted(ctx, log, err)
		}
		if err := u.tellAddresses(s, p, source, g, time.Since(began)); err != nil {
			return err
		}
		telling, stop := context.WithCancel(ctx)
		var told sync.WaitGroup
		told.Go(func() { (&happenings{b: p.Broker(), config: p.Config, log: log, out: s.stdout}).run(telling) })
		defer told.Wait()
		defer stop()
		return serve(ctx, g)
	})
}

func (u *up) openPlatform(ctx context.Context, s *session, conf *config.Config, log *slog.Logger) (*platform.Platform, error) {
	addresses, err := config.ReadAddresses(u.addresses, s.getenv)
	if err != nil {
		return nil, err
	}
	o := platform.Options{Config: conf, Addresses: addresses, Security: u.security, RedisSecurity: u.redis, OwnStreams: true, Reorder: u.reorder,
		Runs: u.runs(), Scoring: u.scoring.options(), Telemetry: telemetryOf(s, ""), Logger: log}
	switch {
	case addresses.Kafka == "" && addresses.Redis == "" && (u.security != (broker.Security{}) || u.redis != (platform.RedisSecurity{})):
		return nil, usagef("the embedded servers have no TLS, and passwords of their own (--kafka-tls, --kafka-sasl, --redis-tls and the like, or their variables): give --kafka and --redis too, or leave these out")
	case addresses.Kafka == "" && addresses.Redis == "":
		o.Embedded = &embedded.Options{
			Dir: u.data, Sync: u.sync, Logger: log,
			Kafka: loopback(u.kafkaPort), Redis: loopback(u.redisPort),
		}
	case addresses.Kafka == "" || addresses.Redis == "":
		return nil, usagef("only one of --kafka and --redis is given (flag or environment): give both to use yours, or neither for the embedded ones")
	}
	p, err := platform.Open(ctx, o)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("start: %w (--kafka-port, --redis-port)%s", err, besideAnother)
	case err != nil:
		return nil, fmt.Errorf("start: %w", err)
	}
	return p, nil
}

// runs returns the options for runs; their files are in the data folder.
func (u *up) runs() *platform.RunsOptions {
	return &platform.RunsOptions{Recipes: u.source().folder(), Data: u.data, Secrets: cmp.Or(u.secrets, filepath.Join(u.data, "secrets")), Launch: true}
}

const besideAnother = "; is another tidemill up running? To run both, start this one with --kafka-port 0 --redis-port 0 --listen 127.0.0.1:0"

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// tellAddresses prints the addresses, and writes them to a file for the other commands.
func (u *up) tellAddresses(s *session, p *platform.Platform, source *configSource, g *gateway.Gateway, took time.Duration) error {
	if err := u.leaveAddresses(p, source, g); err != nil {
		return err
	}
	a := p.Addresses()
	fmt.Fprintf(s.stdout, "tidemill is up after %s, with %d streams\n", took.Round(time.Millisecond), len(p.Config().Streams))
	fmt.Fprintf(s.stdout, "  http    %s\n  kafka   %s\n  redis   %s\n  config  %s\n", u.door.url(g), a.Kafka, a.Redis, source.shown())
	if !p.Embedded() {
		return nil
	}
	fmt.Fprintf(s.stdout, "  data    %s\n\nThe dashboard is at %s/\n\nIn another terminal:\n%s\nCtrl-C stops it.\n", u.data, u.door.url(g), u.nextSteps(u.door.url(g)))
	return nil
}

func (u *up) leaveAddresses(p *platform.Platform, source *configSource, g *gateway.Gateway) error {
	path, err := filepath.Abs(source.path)
	if err != nil {
		return err
	}
	a := p.Addresses()
	r := platform.Running{PID: os.Getpid(), Name: p.Names().Install(), Kafka: a.Kafka, Redis: a.Redis, HTTP: g.Addr(), URL: u.door.url(g), Config: path, Embedded: p.Embedded()}
	p.AtStop(platform.Doors, "the addresses", func(context.Context) error { return platform.Forget(u.data) })
	return r.Write(u.data)
}

// nextSteps returns command lines that work from the same folder. If the gateway needs a token, the
// user must fill it in.
func (u *up) nextSteps(door string) string {
	flags, curl, token := "", "", ""
	if u.data != dataFolder {
		flags = " --data " + u.data
	}
	if u.door.cert != "" {
		named, ca := u.door.trust(door)
		if named != door {
			door, flags = named, " --url "+named
		}
		if ca != "" {
			flags, curl = flags+" --ca "+ca, " --cacert "+ca
		}
	}
	if u.door.access != "" {
		token = "  export " + envToken + "=tm_…  # tidemill token new NAME --role publish,read --file " + u.door.access + " makes one\n"
		curl += " -H \"Authorization: Bearer $" + envToken + "\""
	}
	return token + "  tidemill tail events" + flags + "\n" +
		"  tidemill publish bot-created --subject bot-42 -d '{\"name\": \"Ada\"}'" + flags + "\n" +
		"  curl -i" + curl + " -X POST " + door + "/events -H 'ce-specversion: 1.0' -H 'ce-type: bot-created' -H 'ce-source: /crm' -H 'ce-id: 1' -H 'ce-subject: bot-43'\n"
}

// beginWithin limits the wait for the triggers. The start waits because triggers must get all
// events that are published after it reports success.
const beginWithin = 15 * time.Second

// begin starts the dispatcher, the controller and the scorers.
func begin(ctx context.Context, p *platform.Platform, log *slog.Logger) error {
	if err := beginTriggers(ctx, p, log); err != nil {
		return err
	}
	if _, err := p.Controller(ctx); err != nil {
		return fmt.Errorf("start the clock: %w", err)
	}
	if err := p.Scorers(ctx, ""); err != nil {
		return fmt.Errorf("start the scorers: %w", err)
	}
	return nil
}

// beginTriggers opens the dispatcher and waits until every trigger has begun. After the time limit
// the start continues without the others; readiness reports them.
func beginTriggers(ctx context.Context, p *platform.Platform, log *slog.Logger) error {
	d, err := p.Dispatcher(ctx)
	if err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, beginWithin)
	defer cancel()
	err = d.Ready(waiting)
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		log.Warn("up: not all triggers have started; they miss events that are published before", "reason", err)
		return nil
	}
	if err != nil {
		return fmt.Errorf("start: %w", err)
	}
	return nil
}
