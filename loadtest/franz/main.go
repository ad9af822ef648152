// Command franz does the load test's work with franz-go's client. It is a separate module, so that
// no other part of Tidemill can depend on a second Kafka client.
//
// Both clients have the same settings for acks=all, idempotence, compression, linger, batch size,
// buffered bytes, read committed, and the group's commit interval.
//
// In franz-go's favour: franz-go uses the fetch size that suits it best, and up to five produce
// requests in flight, while our client has one. Its user makes records from existing bytes and
// reads raw headers, while our client checks and decodes CloudEvents. franz-go commits the last
// poll's records, while our client tracks the end of each event.
//
// In our favour: a caller may reuse a view when Send returns. A franz-go record is in use until it
// is acknowledged, so each event needs a new one. -reuse pools the records, which changes CPU
// little.
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
