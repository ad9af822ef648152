// Command loadtest is the program of `make bench`. On the embedded broker it compares our client
// with franz-go's, our gateway with a bare net/http server, and our dispatcher with a bare net/http
// client. It also measures how long an event takes from publish to tail and to function. One run
// prints one table with the bars next to the measured values. `loadtest score` measures the
// scenarios of scorers, for `make loadtest`; see docs/loadtest.md.
//
// The broker, each client, each server and each load generator has its own process, so that its CPU
// time can be measured alone. Compared programs alternate round by round, and a ratio is taken
// within a round, because other work of the machine then slows both. franz/main.go lists how the
// two Kafka clients differ. Both HTTP servers get the same requests over as many connections.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"time"

	"tidemill.dev/internal/runs/local"
	"tidemill.dev/loadtest/internal/task"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "loadtest:", err)
		os.Exit(1)
	}
}

// errMissed is the error of a full run that missed a bar, so that a script notices.
var errMissed = errors.New("a bar was missed; see the table")

func run(ctx context.Context, args []string, stdin io.Reader, stdout io.Writer) error {
	if len(args) > 0 {
		switch args[0] {
		case roleServe:
			return runBroker(ctx, args[1:], stdin, stdout)
		case roleClient:
			return runWork(ctx, args[1:], stdout)
		case roleBare:
			return runBareServer(ctx, stdin, stdout)
		case roleGateway:
			return runGateway(ctx, args[1:], stdin, stdout)
		case roleLoad:
			return runGenerator(ctx, args[1:], stdin, stdout)
		case roleDispatcher:
			return runDispatcher(ctx, args[1:], stdin, stdout)
		case roleLap:
			return runLap(ctx, args[1:], stdin, stdout)
		case roleLaptop:
			return runLaptop(ctx, args[1:], stdin, stdout)
		case local.GuardArgument:
			return local.Guard(ctx)
		case rolePoster:
			return runPoster(ctx, args[1:], stdin, stdout)
		case roleScorer:
			return runScorer(ctx, args[1:], stdin, stdout)
		case roleInfer:
			return inferAlone(ctx, args[1:], stdout)
		case roleCache:
			return cacheAlone(ctx, args[1:], stdout)
		case "score":
			return scoreMain(ctx, args[1:], stdout)
		}
	}
	p, err := parse(args)
	if err != nil {
		return err
	}
	return bench(ctx, p, stdout)
}

// plan is the amount of work of a run.
type plan struct {
	rounds  int
	records int
	warm    int
	seconds int // seconds of the latency measurement
	franz   string
	reuse   bool
	profile string
	only    string
	smoke   bool

	// Settings of the gateway's measurement.
	connections  int
	settle, turn time.Duration
	dedupe       string
	beside       string

	parked     int // events of the triggers' measurement
	parkedKeys int // keys of these events
	bots       int // bots of the runs' measurement
	files      int // files of the data measurement
}

func parse(args []string) (plan, error) {
	p := plan{warm: 60_000, settle: time.Second}
	f := flag.NewFlagSet("loadtest", flag.ContinueOnError)
	f.BoolVar(&p.smoke, "smoke", false, "a short run that fails only if something breaks")
	f.IntVar(&p.rounds, "rounds", 7, "rounds of each comparison")
	f.IntVar(&p.records, "records", 400_000, "records a client handles in a round")
	f.IntVar(&p.seconds, "seconds", 10, "seconds of latency measurement")
	f.StringVar(&p.franz, "franz", "", "franz-go's client, already built; built here by default")
	f.BoolVar(&p.reuse, "reuse", false, "let franz-go's user pool the records that it produces")
	f.StringVar(&p.profile, "profile", "", "folder for CPU and allocation profiles of our client and our gateway")
	f.StringVar(&p.only, "only", "", "only produce, consume, latency, door, triggers, dead, parked, runs or score")
	f.IntVar(&p.connections, "connections", 128, "connections to the door, for single events")
	f.DurationVar(&p.turn, "turn", 3*time.Second, "how long one turn at the door or with triggers is measured")
	f.StringVar(&p.dedupe, "dedupe", "10m", "how long the door remembers an event; off")
	f.StringVar(&p.beside, "beside", "", "another build of this program, whose gateway is measured beside this one's")
	f.IntVar(&p.parked, "parked", 1_000_000, "events that are parked for a dead subscriber")
	f.IntVar(&p.parkedKeys, "parked-keys", 0, "keys of these events; 0 is one for every fifty")
	f.IntVar(&p.bots, "bots", 10_000, "bots that are created at once")
	f.IntVar(&p.files, "files", 50_000, "files that are put; four times as many are in the dataset that one is added to")
	if err := f.Parse(args); err != nil {
		return p, err
	}
	if f.NArg() > 0 {
		return p, fmt.Errorf("what is %q? -h lists the flags", f.Arg(0))
	}
	if p.smoke {
		p.rounds, p.records, p.warm, p.seconds = 1, 50_000, 10_000, 2
		p.settle, p.turn, p.parked = 300*time.Millisecond, time.Second, 20_000
		p.bots, p.files = 300, 1000
	}
	return p, nil
}

// score returns the bench's plan for scorers: one scenario and the latency. `make loadtest` runs
// the others.
func (p plan) score() scorePlan {
	return scorePlan{only: "bots,latency", rounds: min(p.rounds, 3), smoke: p.smoke, profile: p.profile, franz: p.franz}
}

// runWork runs a client's process: one task, one result.
func runWork(ctx context.Context, args []string, stdout io.Writer) error {
	if len(args) != 1 {
		return errors.New("client: give one task as JSON")
	}
	t, err := task.Parse(args[0])
	if err != nil {
		return err
	}
	var r task.Result
	switch t.Do {
	case task.Produce:
		r, err = produceOurs(ctx, t)
	case task.Consume:
		r, err = consumeOurs(ctx, t)
	case task.Copy:
		r, err = copyOn(ctx, t)
	default:
		err = fmt.Errorf("client: cannot %q", t.Do)
	}
	if err != nil {
		return err
	}
	return r.Write(stdout)
}
