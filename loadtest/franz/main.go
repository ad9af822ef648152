// Command franz is franz-go's client doing the load test's work. It is a module
// of its own, so that no other part of Tidemill can come to depend on a second
// Kafka client.
//
// Equal to ours: acks=all and idempotent, compression, linger, batch size,
// buffered bytes, read committed, a group that commits as often. In franz-go's
// favour: the bytes of a fetch, where it has what suits it best; up to five
// produce requests in flight, where ours keeps one; its user builds records from
// bytes that lie ready, and looks at headers as they are, where ours checks and
// decodes a CloudEvent each; it commits what the last poll returned, where ours
// keeps track of each event's end. In ours: a view is the caller's again when
// Send returns, where a record is kept until it is acknowledged and so is made
// anew for each event; -reuse pools them, which changes CPU little.
package main

import (
	"context"
	"fmt"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"

	"tidemill.dev/loadtest/internal/task"
)

func main() {
	if err := run(context.Background(), os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "franz:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("give one task as JSON; `make bench` does")
	}
	t, err := task.Parse(args[0])
	if err != nil {
		return err
	}
	var r task.Result
	switch t.Do {
	case task.Produce:
		r, err = produce(ctx, t)
	case task.Consume:
		r, err = consume(ctx, t)
	case task.Copy:
		r, err = copyOn(ctx, t)
	default:
		err = fmt.Errorf("cannot %q", t.Do)
	}
	if err != nil {
		return err
	}
	return r.Write(os.Stdout)
}

func client(t task.Task, more ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{kgo.SeedBrokers(t.Addr)}, more...)...)
}
