package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"tidemill.dev/broker"
)

const (
	keysEach  = 24
	sendEvery = 10 * time.Millisecond
	burst     = 8
)

// publish sends bursts until its context ends. Its ids contain its life, because a restarted
// publisher does not know which events its predecessor has sent.
func (c *child) publish(ctx context.Context) error {
	b, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	p, err := b.Producer(broker.ProducerOptions{MaxBuffered: 1 << 20, Linger: time.Duration(c.index) * time.Millisecond,
		Compression: []broker.Compression{broker.Uncompressed, broker.LZ4}[c.index%2]})
	if err != nil {
		return err
	}
	c.sendBursts(ctx, p)
	return p.Close(context.Background())
}

func (c *child) sendBursts(ctx context.Context, p *broker.Producer) {
	r := rand.New(rand.NewPCG(c.seed, uint64(c.index)))
	ticks := time.NewTicker(sendEvery)
	defer ticks.Stop()
	for n := 0; ctx.Err() == nil; {
		select {
		case <-ticks.C:
		case <-ctx.Done():
			return
		}
		for range 1 + r.IntN(burst) {
			c.send(ctx, p, r, n)
			n++
		}
	}
}

func (c *child) send(ctx context.Context, p *broker.Producer, r *rand.Rand, n int) {
	id := fmt.Sprintf("%s.%d.%d", c.name, c.life, n)
	v := &broker.View{ID: id, Source: "/chaos", Type: "chaos", Subject: fmt.Sprintf("%s-%d", c.name, r.IntN(keysEach)),
		Data: []byte(strings.Repeat("x", r.IntN(1500)))}
	c.j.note("send", id)
	p.Send(ctx, streamIn, v, func(at broker.Receipt, err error) {
		if err != nil {
			c.j.note("refused", id, strings.ReplaceAll(err.Error(), "\n", "; "))
			return
		}
		c.j.note("ack", id, at.Partition, at.Offset)
	})
}
