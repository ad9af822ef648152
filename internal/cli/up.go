package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/broker/embedded"
	"tidemill.dev/config"
	"tidemill.dev/internal/cli/command"
	"tidemill.dev/internal/cli/connect"
	"tidemill.dev/internal/cli/show"
	"tidemill.dev/internal/data/ledger"
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

func upCommand() command.Command {
	return command.Command{
		Name:    "up",
		Daily:   true,
		Summary: "run Tidemill, all in one process",
		About: `It starts an embedded Kafka and Redis on loopback, with their data and passwords in a
folder. tidemill kafka-config prints how other programs connect to that Kafka.
Acknowledged events survive kill -9, and with --sync also a power cut. With --kafka and
--redis it uses yours. Runs work on this machine. Their inputs and outputs are in the
data folder too, or in the object store of --store.

It creates the streams of its config, and applies the file again when it changes. After
an invalid change the previous config stays in force; /readyz and the log report it.
Other commands and HTTP clients use its gateway, the same as tidemill serve gateway.
Commands find its address in the data folder.`,
		Examples: []command.Example{
			{"tidemill up", "start, or continue from the last stop"},
			{"tidemill up -f tidemill.yaml --data /var/lib/tidemill --sync", "a folder of your choice, safe against power cuts"},
			{"tidemill up --kafka-port 0 --redis-port 0 --listen 127.0.0.1:0", "on free ports, next to another one"},
		},
		Make: func() command.Program {
			return &up{door: connect.DoorFlags{Listen: connect.ListenAt}, kafkaPort: kafkaPort, redisPort: redisPort}
		},
	}
}

type up struct {
	connect.Connection
	door                 connect.DoorFlags
	scoring              scoringFlags
	kafkaPort, redisPort int
	sync, reorder        bool
	secrets              string
}

func (u *up) Flags(f *command.FlagSet) {
	u.door.Flags(f)
	f.Number(&u.kafkaPort, "kafka-port", "", "PORT", "port of the embedded Kafka; 0 is a free one")
	f.Number(&u.redisPort, "redis-port", "", "PORT", "port of the embedded Redis; 0 is a free one")
	f.Yes(&u.sync, "sync", "make the embedded Kafka survive power cuts: one fsync per batch")
	f.Yes(&u.reorder, "reorder", "allow new partitions of streams, although keys then move between them")
	f.Text(&u.secrets, "secrets", "", "FOLDER", "folder with the secrets of runs, one file NAME/KEY each (default secrets in the data folder)")
	f.FromEnv("secrets", "TIDEMILL_SECRETS")
	u.scoring.Flags(f)
	u.Connection.Flags(f)
}

func (u *up) Accept([]string) error {
	for name, port := range map[string]int{"--kafka-port": u.kafkaPort, "--redis-port": u.redisPort} {
		if port < 0 || port > 65535 {
			return command.Usagef("%s %d: a port is 0 to 65535", name, port)
		}
	}
	if err := u.scoring.accept(); err != nil {
		return err
	}
	return u.door.Accept()
}

// Run keeps the stop order: the platform closes the HTTP server first, and the embedded servers
// last.
func (u *up) Run(ctx context.Context, s *command.Session, _ []string) error {
	began := time.Now()
	log, err := u.Logger(s.Stderr, slog.LevelInfo)
	if err != nil {
		return err
	}
	if err := u.door.Check(); err != nil {
		return err
	}
	source := u.Source()
	conf, err := source.Load()
	if err != nil {
		return fmt.Errorf("read the config: %w", err)
	}
	u.door.WarnOfPlainHTTP(log)
	for _, line := range memoryNote(conf, agent.LimitsMemory) {
		log.Warn("up: " + line)
	}
	p, err := u.openPlatform(ctx, s, conf, log)
	if err != nil {
		return unlessInterrupted(ctx, log, err)
	}
	return stay(ctx, p, log, source, doorBlock, "up: stopping; live runs continue with another attempt at the next start", func(ctx context.Context) error {
		return unlessInterrupted(ctx, log, u.serve(ctx, s, p, log, source, began))
	})
}

// serve opens the gateway after the servers. So a second up on the same folder reports the folder in
// use, not the port. The scorers need the whole ledger: if it takes long to fill, they open after the
// gateway, which answers everything else meanwhile.
func (u *up) serve(ctx context.Context, s *command.Session, p *platform.Platform, log *slog.Logger, source *connect.ConfigSource, began time.Time) error {
	if err := begin(ctx, p, log); err != nil {
		return err
	}
	filled, err := fillSoon(ctx, p)
	if err != nil {
		return err
	}
	g, err := u.door.Open(ctx, p)
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("%w (--listen)%s", err, besideAnother)
	}
	if err != nil {
		return err
	}
	if err := u.tellAddresses(s, p, source, g, time.Since(began)); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	running.Go(func() { (&happenings{b: p.Broker(), config: p.Config, log: log, out: s.Stdout}).run(ctx) })
	failed := make(chan error, 1)
	if !filled {
		running.Go(func() {
			if err := fill(ctx, p, s.Stdout); err != nil && ctx.Err() == nil {
				failed <- err
				stop()
			}
		})
	}
	if err := connect.Serve(ctx, g); err != nil {
		return err
	}
	select {
	case err := <-failed:
		return err
	default:
		return nil
	}
}

func (u *up) openPlatform(ctx context.Context, s *command.Session, conf *config.Config, log *slog.Logger) (*platform.Platform, error) {
	addresses, err := config.ReadAddresses(u.Addresses, s.Getenv)
	if err != nil {
		return nil, err
	}
	o := platform.Options{Config: conf, Addresses: addresses, Security: u.Security, RedisSecurity: u.Redis, OwnStreams: true, Reorder: u.reorder,
		Runs: u.runs(), Scoring: u.scoring.options(), Telemetry: connect.TelemetryOf(s, ""), Logger: log}
	switch {
	case addresses.Kafka == "" && addresses.Redis == "" && (u.Security != (broker.Security{}) || u.Redis != (platform.RedisSecurity{})):
		return nil, command.Usagef("the embedded servers have no TLS, and passwords of their own (--kafka-tls, --kafka-sasl, --redis-tls and the like, or their variables): give --kafka and --redis too, or leave these out")
	case addresses.Kafka == "" && addresses.Redis == "":
		o.Embedded = &embedded.Options{
			Dir: u.Data, Sync: u.sync, Logger: log,
			Kafka: loopback(u.kafkaPort), Redis: loopback(u.redisPort),
		}
	case addresses.Kafka == "" || addresses.Redis == "":
		return nil, command.Usagef("only one of --kafka and --redis is given (flag or environment): give both to use yours, or neither for the embedded ones")
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
	return &platform.RunsOptions{Recipes: u.Source().Folder(), Data: u.Data, Secrets: cmp.Or(u.secrets, filepath.Join(u.Data, "secrets")), Launch: true}
}

const besideAnother = "; is another tidemill up running? To run both, start this one with --kafka-port 0 --redis-port 0 --listen 127.0.0.1:0"

func loopback(port int) string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(port)) }

// tellAddresses prints the addresses, and writes them to a file for the other commands.
func (u *up) tellAddresses(s *command.Session, p *platform.Platform, source *connect.ConfigSource, g *gateway.Gateway, took time.Duration) error {
	if err := u.leaveAddresses(p, source, g); err != nil {
		return err
	}
	a := p.Addresses()
	fmt.Fprintf(s.Stdout, "tidemill is up after %s\n", took.Round(time.Millisecond))
	fmt.Fprintf(s.Stdout, "  http    %s\n%s  kafka   %s\n  redis   %s\n  config  %s\n", u.door.URL(g), connect.GRPCLine(g), a.Kafka, a.Redis, source.Shown())
	if !p.Embedded() {
		return nil
	}
	fmt.Fprintf(s.Stdout, "  data    %s\n\nThe dashboard is at %s/\n\nIn another terminal:\n%s\nCtrl-C stops it.\n", u.Data, u.door.URL(g), u.nextSteps(p.Config(), u.door.URL(g)))
	return nil
}

func (u *up) leaveAddresses(p *platform.Platform, source *connect.ConfigSource, g *gateway.Gateway) error {
	path, err := filepath.Abs(source.Path)
	if err != nil {
		return err
	}
	a := p.Addresses()
	r := platform.Running{PID: os.Getpid(), Name: p.Names().Install(), Kafka: a.Kafka, Redis: a.Redis, HTTP: g.Addr(), URL: u.door.URL(g), Config: path, Embedded: p.Embedded()}
	p.AtStop(platform.Doors, "the addresses", func(context.Context) error { return platform.Forget(u.Data) })
	return r.Write(u.Data)
}

// nextSteps returns command lines that work from the same folder. If the gateway needs a token, the
// user must fill it in.
func (u *up) nextSteps(conf *config.Config, door string) string {
	flags, curl, token := "", "", ""
	if u.Data != connect.DataFolder {
		flags = " --data " + u.Data
	}
	if u.door.Cert != "" {
		named, ca := u.door.Trust(door)
		if named != door {
			door, flags = named, " --url "+named
		}
		if ca != "" {
			flags, curl = flags+" --ca "+ca, " --cacert "+ca
		}
	}
	if u.door.Access != "" {
		token = "  export " + connect.EnvToken + "=tm_…  # tidemill token new NAME --role publish,read --file " + u.door.Access + " makes one\n"
		curl += " -H \"Authorization: Bearer $" + connect.EnvToken + "\""
	}
	typ := typeToPublish(conf)
	return token + "  tidemill tail events" + flags + "\n" +
		"  tidemill publish " + typ + " --subject bot-42 -d '{\"name\": \"Ada\"}'" + flags + "\n" +
		"  curl -i" + curl + " -X POST " + door + "/events -H 'ce-specversion: 1.0' -H 'ce-type: " + typ + "' -H 'ce-source: /crm' -H 'ce-id: 1' -H 'ce-subject: bot-43'\n"
}

// typeToPublish returns a type from outside that a trigger waits for, so that a published event has an
// effect. It must not need quotes.
func typeToPublish(conf *config.Config) string {
	for i := range conf.Triggers {
		for _, w := range conf.Triggers[i].When {
			for _, typ := range w.Types {
				if w.Where == "" && tidemill.Reserved(typ, "") == nil && typ != tidemill.TypeNewData && typ != tidemill.TypeBotDeleted && !strings.ContainsAny(typ, " '\"$`\\") {
					return typ
				}
			}
		}
	}
	return tidemill.TypeBotCreated
}

// beginWithin limits the wait for the triggers. The start waits because triggers must get all
// events that are published after it reports success.
const beginWithin = 15 * time.Second

// begin starts the dispatcher, the controller and the observer.
func begin(ctx context.Context, p *platform.Platform, log *slog.Logger) error {
	if err := beginTriggers(ctx, p, log); err != nil {
		return err
	}
	if _, err := p.Controller(ctx); err != nil {
		return fmt.Errorf("start the clock: %w", err)
	}
	return p.Observer(ctx)
}

// fillWithin is how long a start waits for the ledger, and fillEvery the time between two reports after
// that.
const (
	fillWithin = 2 * time.Second
	fillEvery  = 5 * time.Second
)

// fillSoon starts the scorers if the ledger is filled soon. So the scorers of a small install get all
// events that are published after the start reports success.
func fillSoon(ctx context.Context, p *platform.Platform) (filled bool, err error) {
	soon, cancel := context.WithTimeout(ctx, fillWithin)
	defer cancel()
	if err := p.Ledger().CaughtUp(soon); err != nil {
		return false, ctx.Err()
	}
	return true, startScorers(ctx, p)
}

// fill reports how far the ledger is until it is filled, and then starts the scorers.
func fill(ctx context.Context, p *platform.Platform, out io.Writer) error {
	for {
		if line := fillLine(p.Ledger().Status()); line != "" {
			fmt.Fprintln(out, line)
		}
		waiting, cancel := context.WithTimeout(ctx, fillEvery)
		err := p.Ledger().CaughtUp(waiting)
		cancel()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if err == nil {
			break
		}
	}
	if err := startScorers(ctx, p); err != nil {
		return err
	}
	fmt.Fprintln(out, "the ledger is filled: runs, models and scorers are ready")
	return nil
}

// fillLine says how far the ledger is; it is empty if an error stops the ledger, which the log reports.
func fillLine(s ledger.Status) string {
	if s.Err != nil || s.Behind == 0 || s.Total == 0 {
		return ""
	}
	line := fmt.Sprintf("the ledger is filling: %d %% of %s", 100*(s.Total-s.Behind)/s.Total, show.Count(int(s.Total), "fact"))
	if s.Left > 0 {
		line += fmt.Sprintf(", about %d s left", int(math.Ceil(s.Left.Seconds())))
	}
	return line + "; events can be published, but runs, models and scorers wait"
}

func startScorers(ctx context.Context, p *platform.Platform) error {
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
