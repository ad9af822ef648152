package score

import (
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"tidemill.dev"
	"tidemill.dev/broker"
)

// TestBeAScorer is the main function of a child process: it scores until standard input ends.
func TestBeAScorer(t *testing.T) {
	if os.Getenv(childRole) != "scorer" {
		t.Skip("it is for processes that a test starts")
	}
	w := &world{TB: t, dir: os.Getenv(childDir), partitions: crashPartitions, kafka: os.Getenv(childKafka), redis: os.Getenv(childRedis)}
	w.connect()
	conf := scorer()
	conf.Hold = 5 * time.Millisecond
	p := &process{w: w, session: 3 * time.Second}
	p.start(conf)
	fmt.Println("ready")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

const crashPartitions = 4

// crashes is a broker and scorers, each in a separate process.
type crashes struct {
	*world
	folder string // folder of the broker
	server *exec.Cmd
	all    []*exec.Cmd
}

func newCrashes(t *testing.T) *crashes {
	c := &crashes{world: &world{TB: t, dir: t.TempDir(), partitions: crashPartitions}, folder: t.TempDir()}
	c.serve()
	c.connect()
	return c
}

func (c *crashes) serve() {
	c.Helper()
	var addrs []string
	c.server, addrs = child(c, "broker", childDir+"="+c.folder, childKafka+"="+c.kafka, childRedis+"="+c.redis)
	c.kafka, c.redis = addrs[0], addrs[1]
}

func (c *crashes) scorer() {
	c.Helper()
	cmd, _ := child(c, "scorer", childDir+"="+c.dir, childKafka+"="+c.kafka, childRedis+"="+c.redis)
	c.all = append(c.all, cmd)
}

func kill(cmd *exec.Cmd) {
	_ = cmd.Process.Kill()
	_, _ = cmd.Process.Wait()
}

// Scorers and the broker are killed under load, while champions change.
func TestNothingIsLostOrDoubledByCrashes(t *testing.T) { crashRounds(t, 500) }

func crashRounds(t *testing.T, each int) {
	c := newCrashes(t)
	c.bots(8)
	c.scorer()
	c.scorer()
	r := rand.New(rand.NewPCG(3, 4))
	const rounds = 4
	for round := range rounds {
		var sending sync.WaitGroup
		sending.Go(func() { c.insist(batchOf(round*each, each, 8)) })
		model := fmt.Sprint("m/bot-", round)
		c.register(model, 2)
		c.promote(model, 2, 1, 1)
		c.waitScored(r.IntN(each/2) + round*each)
		if round == 1 {
			kill(c.server)
			c.serve()
		} else {
			victim := r.IntN(len(c.all))
			kill(c.all[victim])
			c.all = append(c.all[:victim], c.all[victim+1:]...)
			c.scorer()
		}
		sending.Wait()
	}
	c.judgeOnce(rounds * each)
}

// insist publishes until every event is acknowledged. An event without a clear result is sent
// again, so an id may be on the stream twice, at different offsets.
func (c *crashes) insist(views []broker.View) {
	for i := range views {
		for {
			_, err := c.p.Publish(c.Context(), streamIn, &views[i])
			if err == nil {
				break
			}
			if c.Context().Err() != nil {
				return
			}
		}
	}
}

// waitScored waits until a number of events have been scored.
func (c *crashes) waitScored(n int) {
	c.Helper()
	c.poll(fmt.Sprint(n, " outputs"), func() bool {
		ends, err := c.b.Ends(c.Context(), streamOut)
		sum := int64(0)
		for _, e := range ends {
			sum += e.Offset
		}
		return err == nil && sum >= int64(n)
	})
}

// judgeOnce waits until each event of the input has been scored, and checks the outputs.
func (c *crashes) judgeOnce(atLeast int) {
	c.Helper()
	inputs := len(c.outputs(streamIn))
	if inputs < atLeast {
		c.Fatalf("%d events came, not %d", inputs, atLeast)
	}
	c.judge(inputs)
	if dead := c.outputs(tidemill.StreamDeadLetters); len(dead) != 0 {
		c.Errorf("%d dead letters", len(dead))
	}
}
