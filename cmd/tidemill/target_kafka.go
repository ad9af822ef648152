package main

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"

	"tidemill.dev/broker"
	"tidemill.dev/internal/api"
	"tidemill.dev/internal/platform"
	"tidemill.dev/internal/remote"
	"tidemill.dev/internal/tail"
	"tidemill.dev/internal/web"
)

const lingerFile = 2 * time.Millisecond // a file's events have company

// kafkaTarget goes straight to Kafka. It decides by the config what a gateway
// decides by its own.
type kafkaTarget struct {
	p   *platform.Platform
	out io.Writer // for what people should know

	once     sync.Once
	producer *broker.Producer // of send
	failed   error
}

func (*kafkaTarget) worry() worry {
	return worry{who: "Kafka", trouble: func() error { return nil }} // its client keeps that to itself
}

func (k *kafkaTarget) publish(ctx context.Context, stream string, v *broker.View) (remote.Receipt, error) {
	producer, err := k.p.Producer(broker.ProducerOptions{})
	if err != nil {
		return remote.Receipt{}, err
	}
	r, err := producer.Publish(ctx, k.home(stream, v), v)
	return remote.Receipt{Receipt: r}, err
}

func (k *kafkaTarget) send(ctx context.Context, stream string, v *broker.View, done func(remote.Receipt, error)) {
	k.once.Do(func() {
		k.producer, k.failed = k.p.Producer(broker.ProducerOptions{Linger: lingerFile, Compression: broker.LZ4})
	})
	if k.failed != nil {
		done(remote.Receipt{}, k.failed)
		return
	}
	k.producer.Send(ctx, k.home(stream, v), v, func(r broker.Receipt, err error) { done(remote.Receipt{Receipt: r}, err) })
}

func (k *kafkaTarget) home(stream string, v *broker.View) string {
	if stream == "" {
		return k.p.Config().StreamFor(v.Type)
	}
	return stream
}

func (k *kafkaTarget) flush(ctx context.Context) error {
	if k.producer == nil {
		return nil
	}
	return k.producer.Flush(ctx)
}

func (k *kafkaTarget) follow(ctx context.Context, o following, each func(*tail.Event) error) (err error) {
	r, err := tail.Open(ctx, k.p.Broker(), tail.Options{Stream: o.stream, Start: o.start, ToEnd: o.toEnd})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, r.Close(context.WithoutCancel(ctx))) }()
	o.begun()
	away := &absence{out: k.out, ping: k.p.Broker().Ping, looked: time.Now()}
	for {
		batch, err := r.Next(ctx)
		switch {
		case err == io.EOF: // bare: the end, and not a connection's
			return nil
		case err != nil:
			return err
		case len(batch) == 0:
			away.look(ctx)
		}
		for i := range batch {
			if !o.wants(&batch[i]) {
				continue
			}
			if err := each(&batch[i]); err != nil {
				return err
			}
		}
	}
}

func (k *kafkaTarget) streams(ctx context.Context) ([]api.Stream, error) {
	infos, err := k.p.Broker().Streams(ctx)
	if err != nil {
		return nil, err
	}
	all := make([]api.Stream, 0, len(infos))
	for i := range infos {
		all = append(all, web.StreamOf(&infos[i]))
	}
	return all, nil
}

func (k *kafkaTarget) close(ctx context.Context) error { return closePlatform(ctx, k.p) }
