//go:build slow

package crash

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/alicebob/miniredis/v2"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker/embedded"
)

// twoRecipes has two recipes, so that every kind of effect happens. The runs of one recipe commit
// their output to a dataset. The runs of the other recipe make a model, which is judged. A trainer
// notes each of its calls and waits until the second event has been published. That event comes
// while the first event's run is live, so its run has to wait. The output differs from run to run,
// because an unchanged second output would make no commit.
const twoRecipes = `version: 1
name: crash
streams: {events: {partitions: 2}, facts: {partitions: 2}, progress: {partitions: 1}, dead-letters: {partitions: 1}}
pools: {default: {slots: 2}}
recipes:
  clean:
    when: {type: bot-created}
    run:
      dir: .
      command: [sh, -c, "echo $TIDEMILL_RUN >> $HOME/calls; while [ ! -e $HOME/second ]; do sleep 0.02; done; echo $TIDEMILL_RUN > $TIDEMILL_OUT/clean.txt; echo '{\"step\": 1, \"total\": 1}' > $TIDEMILL_OUT/metrics.jsonl"]
      backoff: {first: 10ms, cap: 10ms}
    makes: {dataset: "clean/{key}"}
  learn:
    when: {type: bot-created}
    run:
      dir: .
      command: [sh, -c, "echo $TIDEMILL_RUN >> $HOME/calls; while [ ! -e $HOME/second ]; do sleep 0.02; done; echo $TIDEMILL_RUN > $TIDEMILL_OUT/weights; echo CAg6QQoQCgF4EgF5IghJZGVudGl0eRIBZ1oUCgF4Eg8KDQgBEgkKAxIBbgoCCAFiFAoBeRIPCg0IARIJCgMSAW4KAggBQgIQDQ== | base64 -d > $TIDEMILL_OUT/model.onnx; echo '{\"loss\": 0.5}' > $TIDEMILL_OUT/metrics.json; printf 'truth,predicted\na,a\nb,b\nb,a\n' > $TIDEMILL_OUT/predictions.csv"]
      backoff: {first: 10ms, cap: 10ms}
    makes: {model: "intent/{key}"}
    gate: ["metrics.accuracy > 0.6", "metrics.loss < 1"]
`

const (
	key    = "bot-42"
	events = 2 // number of events, and of runs of each recipe
	cleans = "clean"
	learns = "learn"
	model  = "intent/" + key
)

// round holds the servers, which start once, and the process, which starts once or twice.
type round struct {
	dir     string
	at      point
	trap    *trap
	redis   *miniredis.Miniredis
	kafka   *embedded.Servers
	toKafka *tap
	toRedis *tap
	proc    *process
	log     *os.File

	published int // number of published events
}

// patience is the longest time of a round; it only ends a round that hangs.
const patience = 2 * time.Minute

func openRound(dir string, at point) (*round, error) {
	r := &round{dir: dir, at: at}
	r.trap = newTrap(at, r.causeFault)
	if err := os.WriteFile(filepath.Join(dir, "tidemill.yaml"), []byte(twoRecipes), 0o644); err != nil {
		return nil, err
	}
	var err error
	if r.log, err = os.Create(filepath.Join(dir, "log")); err != nil {
		return nil, err
	}
	if err := r.openKafka(); err != nil {
		return nil, err
	}
	return r, r.openRedis()
}

func (r *round) openKafka() (err error) {
	if r.toKafka, err = openTap(readKafka, r.looks("kafka")); err != nil {
		return err
	}
	if r.kafka, err = embedded.Start(context.Background(), embedded.Options{Advertise: r.toKafka.addr()}); err != nil {
		return err
	}
	r.toKafka.run(r.kafka.Kafka())
	return nil
}

func (r *round) openRedis() (err error) {
	if r.toRedis, err = openTap(readRedis, r.looks("redis")); err != nil {
		return err
	}
	r.redis = miniredis.NewMiniRedis()
	if err := r.redis.Start(); err != nil {
		return err
	}
	r.toRedis.run(r.redis.Addr())
	return nil
}

func (r *round) looks(server string) func(string, moment) bool {
	return func(write string, when moment) bool { return r.trap.mayPass(server, write, when) }
}

func (r *round) close() error {
	var err error
	if r.proc != nil {
		err = r.proc.end()
	}
	r.toKafka.close()
	r.toRedis.close()
	r.redis.Close()
	return errors.Join(err, r.kafka.Close(), r.log.Close())
}

// causeFault causes the point's fault.
func (r *round) causeFault() {
	if r.at.kill {
		r.proc.kill()
	}
	if r.at.flush {
		r.redis.FlushAll()
	}
}

// process is the process that is stopped.
type process struct {
	cmd   *exec.Cmd
	stdin io.Closer
	url   string
	gone  chan error
}

// start starts the process with further environment variables.
func (r *round) start(life ...string) error {
	cmd := exec.Command(os.Args[0])
	cmd.Stderr = r.log
	cmd.Env = append(os.Environ(), envDir+"="+r.dir, envKafka+"="+r.toKafka.addr(), envRedis+"="+r.toRedis.addr(), "HOME="+r.dir)
	cmd.Env = append(cmd.Env, life...)
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		return errors.Join(fmt.Errorf("the process said nothing: %w", err), cmd.Wait())
	}
	r.proc = &process{cmd: cmd, stdin: in, url: "http://" + strings.TrimSpace(line), gone: make(chan error, 1)}
	go func() { r.proc.gone <- cmd.Wait() }()
	return nil
}

// stopsItself returns the variables that make the process stop itself at a write to its store,
// because such a write uses no connection.
func (r *round) stopsItself() []string {
	if r.at.server != "store" {
		return nil
	}
	at := 2 * r.at.number // the store notes before and after each write
	if r.at.when == before {
		at--
	}
	return []string{fmt.Sprintf("%s=%d", envStoreAt, at), fmt.Sprintf("%s=%t %t", envStoreDo, r.at.kill, r.at.flush)}
}

func (r *round) store() string { return storeOf(r.dir) }

// pointReached reports whether the round's point was reached.
func (r *round) pointReached() bool {
	if r.at.server != "store" {
		return r.trap.hasSprung()
	}
	_, err := os.Stat(filepath.Join(r.dir, sprungFile))
	return err == nil
}

// kill returns at once, because it is called in the middle of the process's work.
func (p *process) kill() { _ = p.cmd.Process.Kill() }

func (p *process) end() error {
	p.stdin.Close()
	return <-p.gone
}

// play publishes the events, starts the process again if it was killed, and waits for the runs'
// ends.
func (r *round) play(ctx context.Context) ([]tidemill.Run, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := r.start(r.stopsItself()...); err != nil {
		return nil, err
	}
	r.trap.arm()
	if err := os.WriteFile(filepath.Join(r.dir, armedFile), nil, 0o644); err != nil {
		return nil, err
	}
	runs, err := r.await(ctx)
	r.trap.disarm()
	if !errors.Is(err, errGone) {
		return runs, err
	}
	<-r.proc.gone
	if err := r.start(); err != nil { // second start of the process
		return nil, err
	}
	return r.await(ctx)
}

// publishWhat publishes the first event at once, and the second while both of the first event's
// runs are live. An event without an acknowledgement is published again, as publishers do.
func (r *round) publishWhat(ctx context.Context) error {
	if r.published == 0 && r.publish(ctx, 1) {
		r.published = 1
	}
	if r.published != 1 || r.commandCalls() < 2 || !r.publish(ctx, 2) {
		return nil
	}
	r.published = 2
	return os.WriteFile(filepath.Join(r.dir, "second"), nil, 0o644)
}

// commandCalls returns how many runs have started their command.
func (r *round) commandCalls() int {
	text, _ := os.ReadFile(filepath.Join(r.dir, callsFile)) // the file does not exist before the first call
	lines := strings.Fields(string(text))
	slices.Sort(lines)
	return len(slices.Compact(lines))
}

const (
	event     = `{"specversion": "1.0", "type": "bot-created", "source": "/crash", "id": "%d", "subject": "` + key + `"}`
	callsFile = "calls"
)

// publish reports whether the event was acknowledged.
func (r *round) publish(ctx context.Context, id int) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.proc.url+"/events", strings.NewReader(fmt.Sprintf(event, id)))
	if err != nil {
		return false
	}
	req.Header.Set("Content-Type", "application/cloudevents+json")
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	res.Body.Close()
	return res.StatusCode == http.StatusAccepted
}

var errGone = errors.New("the process is gone")

// await waits until the runs of both events have ended, the first event's first.
func (r *round) await(ctx context.Context) ([]tidemill.Run, error) {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for {
		if err := r.publishWhat(ctx); err != nil {
			return nil, err
		}
		var page api.Runs
		if err := r.get(ctx, "/api/v1/runs?key="+key, &page); err == nil && r.published == 2 && allEnded(page.Runs) && r.allTold(ctx) {
			return oldestFirst(page.Runs), nil
		}
		select {
		case err := <-r.proc.gone:
			r.proc.gone <- err
			return nil, errGone
		case <-ctx.Done():
			return nil, fmt.Errorf("the runs have not ended: %+v: %w", page.Runs, context.Cause(ctx))
		case <-look.C:
		}
	}
}

func allEnded(runs []api.RunShown) bool {
	return len(runs) >= 2*events && !slices.ContainsFunc(runs, func(r api.RunShown) bool { return !r.State.Ended() })
}

// allTold reports whether each version has its verdict, also on the log.
func (r *round) allTold(ctx context.Context) bool {
	m, err := r.modelNow(ctx)
	judged := 0
	for _, h := range m.Versions {
		if h.State != tidemill.VersionRegistered {
			judged++
		}
	}
	return err == nil && judged >= events && len(m.Owed) == 0
}

func oldestFirst(shown []api.RunShown) []tidemill.Run {
	runs := make([]tidemill.Run, len(shown))
	for i := range shown {
		runs[len(runs)-1-i] = shown[i].Run
	}
	return runs
}

func (r *round) get(ctx context.Context, path string, to any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, r.proc.url+path, nil)
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s", path, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(to)
}
