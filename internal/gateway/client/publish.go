package client

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"tidemill.dev"
	"tidemill.dev/api"
	"tidemill.dev/broker"
	"tidemill.dev/broker/cehttp"
)

// Receipt is the result of publishing an event.
type Receipt struct {
	broker.Receipt      // position of the event, if it was stored now
	Repeated       bool // true if the event was on the stream before, so that nothing was stored
}

// Publish publishes one event and waits until all in-sync replicas have stored it. If stream is
// empty, the event goes to the stream of its type. Retries have the same id, so the gateway
// recognises them.
func (g *Gateway) Publish(ctx context.Context, stream string, v *broker.View) (Receipt, error) {
	r, err := g.publish(ctx, stream, v)
	if err != nil {
		return r, ofEvent(stream, v.ID, err)
	}
	return r, nil
}

func (g *Gateway) publish(ctx context.Context, stream string, v *broker.View) (Receipt, error) {
	if err := v.Validate(); err != nil {
		return Receipt{}, err
	}
	path, err := toStream(stream)
	if err != nil {
		return Receipt{}, err
	}
	h := http.Header{}
	body := cehttp.WriteBinary(h, v)
	p := g.publishing()
	a, err := p.sendUntilFinal(ctx, request{method: http.MethodPost, path: path, header: h, body: body})
	if err != nil {
		return Receipt{}, err
	}
	if a.status != http.StatusAccepted {
		return Receipt{}, p.withDoubt(g.failureError(a))
	}
	return g.receiptOf(a)
}

// receiptOf reads a successful answer. An answer without a position is an error, because a web
// server may answer 200 to any path without storing the event.
func (g *Gateway) receiptOf(a wholeAnswer) (Receipt, error) {
	if a.header.Get(api.HeaderRepeated) == "true" {
		return Receipt{Repeated: true}, nil
	}
	at, err := parsePosition(a.header.Get(api.HeaderPosition))
	if err != nil {
		return Receipt{}, fmt.Errorf("%s answered %s without the position of the event: is it a gateway of Tidemill?", g.base, statusText(a.status))
	}
	return Receipt{Receipt: at}, nil
}

var errPosition = errors.New("position is not stream/partition/offset")

func parsePosition(text string) (broker.Receipt, error) {
	parts := strings.Split(text, "/")
	if len(parts) != 3 || tidemill.CheckStream(parts[0]) != nil {
		return broker.Receipt{}, errPosition
	}
	partition, err := strconv.ParseInt(parts[1], 10, 32)
	if err != nil || partition < 0 {
		return broker.Receipt{}, errPosition
	}
	offset, err := strconv.ParseInt(parts[2], 10, 64)
	if err != nil || offset < -1 {
		return broker.Receipt{}, errPosition
	}
	return broker.Receipt{Stream: parts[0], Partition: int32(partition), Offset: offset}, nil
}

func ofEvent(stream, id string, err error) error {
	if stream == "" {
		return fmt.Errorf("publish event %s: %w", id, err)
	}
	return fmt.Errorf("publish event %s to stream %s: %w", id, stream, err)
}
