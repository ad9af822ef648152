package chaos

import (
	"context"
	"errors"
	"os"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"tidemill.dev"
	"tidemill.dev/broker"
	"tidemill.dev/config"
	"tidemill.dev/triggers/schedule"
)

const clockConfig = `version: 1
name: chaos
schedules:
  even: {cron: "* * * * * *", missed: all, keys: [a, b, c, d, e, f]}
  laid: {cron: "*/2 * * * * *", missed: all, keys: [a, b, c, d, e, f, g, h], spread: 2s}
`

// leaseFor is short, so that controllers take over during a round.
const leaseFor = time.Second

// controller runs a controller's process.
func (c *child) controller(ctx context.Context) error {
	conf, err := config.Parse("chaos", []byte(clockConfig))
	if err != nil {
		return err
	}
	names, err := conf.Names()
	if err != nil {
		return err
	}
	b, err := c.open(ctx)
	if err != nil {
		return err
	}
	defer b.Close()
	o := schedule.Options{Broker: b, Names: names, Config: conf, Verify: true, Lease: leaseFor, Logger: c.log}
	if addr := os.Getenv(envRedis); addr != "" {
		o.Redis = redis.NewClient(&redis.Options{Addr: addr, DialTimeout: time.Second})
		defer o.Redis.Close()
	}
	k, err := schedule.Open(o)
	if err != nil {
		return err
	}
	<-ctx.Done()
	until, cancel := context.WithTimeout(context.Background(), stopLimit-5*time.Second)
	defer cancel()
	return k.Close(until)
}

// firing is a tick on the stream.
type firing struct {
	schedule, key, id string
	at                time.Time
	partition         int32
	offset            int64
}

// readTicks reads the ticks, as any reader of committed events would.
func readTicks(ctx context.Context, b *broker.Broker) (all []firing, err error) {
	for i := range int32(partitions) {
		_, err := b.ReadBack(ctx, []broker.Position{{Stream: tidemill.StreamEvents, Partition: i}}, func(e *broker.Incoming) {
			schedule, _ := e.Attribute(tidemill.AttrSchedule)
			at, broken := time.Parse(time.RFC3339, e.View.Time)
			err = errors.Join(err, broken)
			all = append(all, firing{strings.Clone(schedule), strings.Clone(e.Subject), strings.Clone(e.ID), at, i, e.Offset})
		})
		if err != nil {
			return nil, err
		}
	}
	return all, err
}
