package broker

import (
	"context"
	"fmt"
	"io"

	"github.com/segmentio/kafka-go/protocol"
)

// routed carries one of kafka-go's own requests to a chosen server, past what
// the transport would do with it: route it by a cache that may be seconds old,
// and after a creation wait for topics to show in that cache, in which only one
// topic ever shows.
type routed struct {
	node    int32
	client  string
	request protocol.Message
	version int16
	answer  protocol.Message
}

var (
	_ protocol.BrokerMessage = (*routed)(nil)
	_ protocol.RawExchanger  = (*routed)(nil)
)

// ApiKey is the carried request's.
func (r *routed) ApiKey() protocol.ApiKey { return r.request.ApiKey() }

// Broker routes to the server that was chosen.
func (r *routed) Broker(protocol.Cluster) (protocol.Broker, error) {
	return protocol.Broker{ID: r.node}, nil
}

// Required takes the version that the connection agreed on.
func (r *routed) Required(versions map[protocol.ApiKey]int16) bool {
	r.version = versions[r.ApiKey()]
	return true
}

// RawExchange is the request and its answer on the wire. It returns itself,
// because the transport acts on answers whose type it knows.
func (r *routed) RawExchange(rw io.ReadWriter) (_ protocol.Message, err error) {
	if err := protocol.WriteRequest(rw, r.version, 0, r.client, r.request); err != nil {
		return nil, err
	}
	_, r.answer, err = protocol.ReadResponse(rw, r.ApiKey(), r.version)
	return r, err
}

// ask sends one of kafka-go's requests to a server and returns its answer.
func ask[T protocol.Message](ctx context.Context, b *Broker, node int32, request protocol.Message) (T, error) {
	var none T
	ctx, cancel := b.within(ctx)
	defer cancel()
	r := &routed{node: node, client: b.names.Install(), request: request}
	if err := b.roundTrip(ctx, r); err != nil {
		return none, fmt.Errorf("ask Kafka for %s: %w", request.ApiKey(), err)
	}
	answer, ok := r.answer.(T)
	if !ok {
		return none, fmt.Errorf("ask Kafka for %s: the answer is a %T", request.ApiKey(), r.answer)
	}
	return answer, nil
}
